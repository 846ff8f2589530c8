# SPDX-License-Identifier: Apache-2.0
"""Transforms of images, the first column of a batch.

Images are uint8 arrays of shape [height, width] or [height, width, channels], in a list or in one
array. Normalize stacks them to one float32 array [batch, channels, height, width].

A transform is called with the columns and one NumPy generator per sample. It draws the random
numbers of a sample from the generator of that sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._util.signature_errors import check_constructor
from .sources import pillow

Array = NDArray[Any]
Columns: TypeAlias = tuple[Any, ...]
Generators: TypeAlias = Sequence[np.random.Generator]
Transform: TypeAlias = Callable[[Columns, Generators], Columns]
Transforms: TypeAlias = Transform | Sequence[Transform]
Region: TypeAlias = tuple[slice, slice]
"""A rectangle of an image: the slice of its rows and the slice of its columns."""


def height_and_width(call: str, size: int | Sequence[int]) -> tuple[int, int]:
    """Return (height, width) from an argument `size`: one number for both, or a pair."""
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(
            f"{call}: size: expected at least 1 pixel; got {size}. Give a height and a width, or "
            "one number for both."
        )
    return height, width


def resize(call: str, image: Array, height: int, width: int) -> Array:
    """Return an image in another size, computed by Pillow's bilinear filter with antialiasing."""
    if image.dtype != np.uint8 or image.ndim not in (2, 3):
        raise ValueError(
            f"{call}: expected images uint8[height, width, channels]; got "
            f"{image.dtype}{list(image.shape)}. Apply it before Normalize."
        )
    library = pillow()
    is_grey = image.ndim == 3 and image.shape[2] == 1
    source = library.fromarray(image[..., 0] if is_grey else image)
    result = np.array(source.resize((width, height), library.Resampling.BILINEAR))
    return result[..., None] if is_grey else result


def stack(call: str, images: Any) -> Array:
    """Return images as one array; raise ValueError if their sizes differ."""
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        raise ValueError(
            f"{call}: expected images of one size; got {sorted(shapes)}: crop them first, for "
            "example with data.CenterCrop."
        )
    return np.asarray(images)


class ImageTransform:
    """The base class of transforms that change each image independently of the others."""

    def __call__(self, columns: Columns, random: Generators) -> Columns:
        """Return the columns with changed images.

        Parameters
        ----------
        columns : tuple
            The columns. The first one is the images.
        random : sequence of numpy.random.Generator
            One generator per sample.

        Returns
        -------
        tuple
            The columns, with a list of images as the first one.
        """
        images, *others = columns
        return [self.image(i, r) for i, r in zip(images, random, strict=True)], *others

    def image(self, image: Array, random: np.random.Generator) -> Array:
        """Return one changed image.

        Parameters
        ----------
        image : uint8 array
            The image, of shape [height, width] or [height, width, channels].
        random : numpy.random.Generator
            The generator of the sample.

        Returns
        -------
        array
            The changed image.
        """
        raise NotImplementedError(type(self).__name__)


class Resize(ImageTransform):
    """A transform that resizes images so that the shorter side has `size` pixels.

    The aspect ratio is kept, up to the rounding to whole pixels.

    Parameters
    ----------
    size : int
        The length of the shorter side, in pixels.

    Raises
    ------
    ValueError
        The size is below 1.
    ImportError
        Pillow is not installed.

    Examples
    --------
    >>> import numpy as np
    >>> from ngd import data
    >>> resize = data.Resize(8)
    >>> resize.image(np.zeros((16, 24, 3), np.uint8), np.random.default_rng(0)).shape
    (8, 12, 3)
    """

    @check_constructor("data.Resize")
    def __init__(self, size: int) -> None:
        self.size, _ = height_and_width("data.Resize", size)

    def image(self, image: Array, random: np.random.Generator) -> Array:
        """Return one image, resized so that its shorter side has `size` pixels."""
        height, width = image.shape[:2]
        factor = self.size / min(height, width)
        return resize("data.Resize", image, round(height * factor), round(width * factor))


class CenterCrop(ImageTransform):
    """A transform that crops images to their center.

    Parameters
    ----------
    size : int or (int, int)
        The height and width of the result, in pixels, or one number for both.

    Raises
    ------
    ValueError
        The size is below 1. Or, in a call: an image is smaller than `size`.

    Examples
    --------
    >>> import numpy as np
    >>> from ngd import data
    >>> crop = data.CenterCrop((2, 4))
    >>> crop.image(np.zeros((6, 6, 3), np.uint8), np.random.default_rng(0)).shape
    (2, 4, 3)
    """

    @check_constructor("data.CenterCrop")
    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = height_and_width("data.CenterCrop", size)

    def image(self, image: Array, random: np.random.Generator) -> Array:
        """Return the rectangle in the center of one image."""
        (height, width), (has_height, has_width) = self.size, image.shape[:2]
        if has_height < height or has_width < width:
            raise ValueError(
                f"data.CenterCrop: expected images of {height} x {width} pixels or more; "
                f"got {has_height} x {has_width}. Resize them first, with data.Resize."
            )
        top, left = (has_height - height) // 2, (has_width - width) // 2
        return image[top : top + height, left : left + width]


class RandomResizedCrop(ImageTransform):
    """A transform that crops a random rectangle of each image and resizes it.

    Parameters
    ----------
    size : int or (int, int)
        The height and width of the result, in pixels, or one number for both.
    scale : (float, float), default (0.08, 1.0)
        The bounds of the area of the rectangle, as a fraction of the area of the image.
    ratio : (float, float), default (3 / 4, 4 / 3)
        The bounds of width / height of the rectangle.

    Raises
    ------
    ValueError
        The size is below 1, or the bounds are not 0 < low <= high.
    ImportError
        Pillow is not installed.

    Notes
    -----
    Szegedy et al., 2014 (arXiv:1409.4842), section 6. The area is drawn uniformly, and the ratio
    is drawn uniformly on a logarithmic scale. If ten rectangles in succession do not fit into the
    image, the result is the largest centered rectangle with an allowed ratio.

    Examples
    --------
    >>> import numpy as np
    >>> from ngd import data
    >>> crop = data.RandomResizedCrop(8)
    >>> crop.image(np.zeros((20, 30, 3), np.uint8), np.random.default_rng(0)).shape
    (8, 8, 3)
    """

    @check_constructor("data.RandomResizedCrop")
    def __init__(
        self,
        size: int | Sequence[int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
    ) -> None:
        for name, (low, high) in (("scale", scale), ("ratio", ratio)):
            if not 0 < low <= high:
                raise ValueError(
                    f"data.RandomResizedCrop: {name}: expected bounds with 0 < low <= high; got "
                    f"{(low, high)}."
                )
        self.size, self.scale, self.ratio = (
            height_and_width("data.RandomResizedCrop", size),
            scale,
            ratio,
        )

    def image(self, image: Array, random: np.random.Generator) -> Array:
        """Return a random rectangle of one image, resized to `size`."""
        height, width = image.shape[:2]
        region = image[self._region(height, width, random)]
        return resize("data.RandomResizedCrop", region, *self.size)

    def _region(self, height: int, width: int, random: np.random.Generator) -> Region:
        """Return a random rectangle of an image, as slices of rows and columns."""
        low, high = (math.log(bound) for bound in self.ratio)
        for _ in range(10):
            area = height * width * random.uniform(*self.scale)
            ratio = math.exp(random.uniform(low, high))
            across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < across <= width and 0 < down <= height:
                left = int(random.integers(0, width - across + 1))
                top = int(random.integers(0, height - down + 1))
                return slice(top, top + down), slice(left, left + across)
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        across, down = min(width, round(height * ratio)), min(height, round(width / ratio))
        left, top = (width - across) // 2, (height - down) // 2
        return slice(top, top + down), slice(left, left + across)


class RandomFlip(ImageTransform):
    """A transform that flips images horizontally at random.

    Parameters
    ----------
    p : float, default 0.5
        The probability of a flip.

    Raises
    ------
    ValueError
        The probability is not in [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from ngd import data
    >>> flip = data.RandomFlip(p=1.0)
    >>> flip.image(np.array([[1, 2, 3]], np.uint8), np.random.default_rng(0)).tolist()
    [[3, 2, 1]]
    """

    @check_constructor("data.RandomFlip")
    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"data.RandomFlip: p: expected a probability in [0, 1]; got {p}.")
        self.p = p

    def image(self, image: Array, random: np.random.Generator) -> Array:
        """Return one image, flipped with probability p."""
        return image[:, ::-1] if random.random() < self.p else image


class Normalize:
    """A transform that normalizes images by mean and standard deviation, and stacks them.

    The result is (x - mean) / std as float32 [batch, channels, height, width]. uint8 pixels are
    divided by 255 first, so that x is in [0, 1].

    Parameters
    ----------
    mean, std : float or sequence of float
        The mean and the standard deviation of x, one number per channel or one for all channels.

    Raises
    ------
    ValueError
        A std is not above 0. Or, in a call: the images are neither uint8 nor floats, differ in
        size, or have a number of channels that does not fit `mean` and `std`.

    Examples
    --------
    >>> import numpy as np
    >>> from ngd import data
    >>> normalize = data.Normalize(mean=0.5, std=0.5)
    >>> images, labels = normalize((np.array([[[0, 255]]], np.uint8), [7]), [])
    >>> images.tolist(), labels
    ([[[[-1.0, 1.0]]]], [7])
    """

    @check_constructor("data.Normalize")
    def __init__(self, mean: Any, std: Any) -> None:
        self.mean, self.std = (np.atleast_1d(np.asarray(v, np.float64)) for v in (mean, std))
        if self.mean.ndim > 1 or self.std.ndim > 1 or not np.all(self.std > 0):
            raise ValueError(
                "data.Normalize: expected a mean, and a std > 0, of each channel; "
                f"got {mean} and {std}. Give numbers, or one per channel."
            )

    def __call__(self, columns: Columns, random: Generators) -> Columns:
        """Return the columns with normalized images.

        Parameters
        ----------
        columns : tuple
            The columns. The first one is the images, uint8 or floating.
        random : sequence of numpy.random.Generator
            Not used.

        Returns
        -------
        tuple
            The columns, with a float32 array [batch, channels, height, width] as the first one.
        """
        images = stack("data.Normalize", columns[0])
        if images.ndim == 3:
            images = images[..., None]
        channels = images.shape[-1]
        is_bytes = images.dtype == np.uint8
        is_known = is_bytes or images.dtype.kind == "f"
        if not is_known or {len(self.mean), len(self.std)} - {1, channels}:
            raise ValueError(
                "data.Normalize: expected images of uint8 or floats with "
                f"{max(len(self.mean), len(self.std))} channels; "
                f"got {images.dtype}{list(images.shape)}."
            )
        planes = np.array(images.transpose(0, 3, 1, 2), np.float32, order="C")  # a copy
        factor = (1 / ((255 if is_bytes else 1) * self.std)).astype(np.float32)[:, None, None]
        planes *= factor
        planes -= (self.mean / self.std).astype(np.float32)[:, None, None]
        return planes, *columns[1:]


def apply(transforms: Transforms, columns: Columns, random: Generators) -> Columns:
    """Apply one transform, or several one after the other, to the columns of a batch."""
    for transform in (transforms,) if callable(transforms) else transforms:
        columns = transform(columns, random)
    return columns


class Mixup:
    """A transform that mixes each image and its label with those of a random other sample.

    Images are the first column and labels the second one. Labels become float32 [batch,
    num_classes].

    Parameters
    ----------
    source : source
        The source of the other samples, the partners. Give the source of the loader.
    transform : callable or sequence of callables
        The transforms of both images before they are mixed. The last one must return floats.
    num_classes : int
        The number of classes.
    alpha : float, default 0.2
        The parameter of the beta distribution, above 0.

    Raises
    ------
    ValueError
        A number is out of range, or the transform does not return floats.

    Notes
    -----
    Zhang et al., 2017 (arXiv:1710.09412). The result is lam * own + (1 - lam) * partner, where lam
    is drawn from Beta(alpha, alpha). The generator of the sample chooses the partner among all
    samples of the source. So the result does not depend on the other samples of the batch.

    Examples
    --------
    >>> import numpy as np
    >>> from ngd import data
    >>> source = data.Arrays(np.zeros((4, 2, 2), np.uint8), [0, 1, 1, 0])
    >>> mixup = data.Mixup(source, data.Normalize(0.5, 0.5), num_classes=2)
    >>> loader = data.Loader(source, data.Sampler(4, batch_size=4), mixup)
    >>> images, labels = next(iter(loader))
    >>> images.shape, labels.shape
    ((4, 1, 2, 2), (4, 2))
    """

    @check_constructor("data.Mixup")
    def __init__(
        self, source: Any, transform: Transforms, *, num_classes: int, alpha: float = 0.2
    ) -> None:
        if num_classes < 1 or not alpha > 0:
            raise ValueError(
                "data.Mixup: expected num_classes >= 1 and alpha > 0; got "
                f"{num_classes} and {alpha}."
            )
        self.source, self.transform = source, transform
        self.num_classes, self.alpha = num_classes, alpha

    def __call__(self, columns: Columns, random: Generators) -> Columns:
        """Return mixed images and labels.

        Parameters
        ----------
        columns : tuple
            Images and integer labels.
        random : sequence of numpy.random.Generator
            One generator per sample.

        Returns
        -------
        tuple
            Images, and float32 labels [batch, num_classes].
        """
        count = len(self.source)
        images, labels = self._transformed(columns, random)
        others = self.source[np.array([int(r.integers(0, count)) for r in random])]
        partners, partner_labels = self._transformed(others, random)
        lam = np.array([r.beta(self.alpha, self.alpha) for r in random], np.float32)

        def mix(own: Array, other: Array) -> Array:
            factor = lam.reshape(-1, *(1,) * (own.ndim - 1))
            return factor * own + (1 - factor) * other

        return mix(images, partners), mix(labels, partner_labels)

    def _transformed(self, columns: Columns, random: Generators) -> tuple[Array, Array]:
        """Return the images after the transform given to Mixup, and the labels as one-hot rows."""
        images, labels = apply(self.transform, columns, random)
        images = stack("data.Mixup", images)
        if images.dtype.kind != "f":
            raise ValueError(
                f"data.Mixup: expected a transform that returns floats; got {images.dtype}. End it "
                "with data.Normalize."
            )
        return images, np.eye(self.num_classes, dtype=np.float32)[labels]
