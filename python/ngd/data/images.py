# SPDX-License-Identifier: Apache-2.0
"""Transforms of images, which are the first column of a batch.

Images are [height, width] or [height, width, channels] bytes, a list of them or an array, until
Normalize makes [N, channels, height, width] float32 of them. A transform is called with the columns
and a generator a sample; all that it draws for a sample comes from that sample's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .sources import pillow

Array = NDArray[Any]
Columns: TypeAlias = tuple[Any, ...]
Generators: TypeAlias = Sequence[np.random.Generator]
Transform: TypeAlias = Callable[[Columns, Generators], Columns]
Transforms: TypeAlias = Transform | Sequence[Transform]
Part: TypeAlias = tuple[slice, slice]
"""Some rows and columns."""


def extents(size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width, from two numbers or one."""
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"ngd.data: expected a size in pixels >= 1; got {size}")
    return height, width


def resized(image: Array, height: int, width: int) -> Array:
    """An image in another size.

    By a triangle as wide as a pixel of the coarser of the two grids, as Pillow has it.
    """
    if image.dtype != np.uint8 or image.ndim not in (2, 3):
        raise ValueError(
            f"ngd.data: expected an image [height, width, channels] of bytes; "
            f"got {image.dtype}{list(image.shape)}"
        )
    library = pillow()
    grey = image.ndim == 3 and image.shape[2] == 1
    whole = library.fromarray(image[..., 0] if grey else image)
    made = np.array(whole.resize((width, height), library.Resampling.BILINEAR))
    return made[..., None] if grey else made


def stacked(where: str, images: Any) -> Array:
    """One array of images of one size."""
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        raise ValueError(
            f"data.{where}: expected images of one size; got {sorted(shapes)}: crop them first"
        )
    return np.asarray(images)


class OfEach:
    """The base of what changes each image by itself."""

    def __call__(self, columns: Columns, random: Generators) -> Columns:
        """Change the first column."""
        images, *others = columns
        return [self.image(i, r) for i, r in zip(images, random, strict=True)], *others

    def image(self, image: Array, random: np.random.Generator) -> Array:
        """The new image."""
        raise NotImplementedError(type(self).__name__)


class Resize(OfEach):
    """The shorter side gets this many pixels, the longer one as many as keep the shape."""

    def __init__(self, shorter: int) -> None:
        self.shorter, _ = extents(shorter)

    def image(self, image: Array, random: np.random.Generator) -> Array:
        """The new image."""
        height, width = image.shape[:2]
        factor = self.shorter / min(height, width)
        return resized(image, round(height * factor), round(width * factor))


class CenterCrop(OfEach):
    """The middle of an image."""

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = extents(size)

    def image(self, image: Array, random: np.random.Generator) -> Array:
        """The new image."""
        (height, width), (has_height, has_width) = self.size, image.shape[:2]
        if has_height < height or has_width < width:
            raise ValueError(
                f"data.CenterCrop: expected images of {height} x {width} pixels or more; "
                f"got {has_height} x {has_width}"
            )
        top, left = (has_height - height) // 2, (has_width - width) // 2
        return image[top : top + height, left : left + width]


class RandomResizedCrop(OfEach):
    """A part of random place, area and shape, resized.

    Szegedy et al., 2014 (arXiv:1409.4842), section 6: the part has a share of the area within
    `scale`, and width / height is within `ratio`, evenly on a logarithmic scale. Where ten such
    parts do not fit, it is the largest one in the middle whose ratio is allowed.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
    ) -> None:
        for name, (low, high) in (("scale", scale), ("ratio", ratio)):
            if not 0 < low <= high:
                raise ValueError(f"data.RandomResizedCrop: expected 0 < low <= high {name}")
        self.size, self.scale, self.ratio = extents(size), scale, ratio

    def image(self, image: Array, random: np.random.Generator) -> Array:
        """The new image."""
        height, width = image.shape[:2]
        return resized(image[self._part(height, width, random)], *self.size)

    def _part(self, height: int, width: int, random: np.random.Generator) -> Part:
        """Draw the part."""
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


class RandomFlip(OfEach):
    """Left and right change places, with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"data.RandomFlip: expected a probability; got {p}")
        self.p = p

    def image(self, image: Array, random: np.random.Generator) -> Array:
        """The new image."""
        return image[:, ::-1] if random.random() < self.p else image


class Normalize:
    """Bytes to (x / 255 - mean) / std, of each channel or of all, as [N, C, H, W] float32."""

    def __init__(self, mean: Any, std: Any) -> None:
        self.mean, self.std = (np.atleast_1d(np.asarray(v, np.float64)) for v in (mean, std))
        if self.mean.ndim > 1 or self.std.ndim > 1 or not np.all(self.std > 0):
            raise ValueError(
                "data.Normalize: expected a mean, and a std > 0, of each channel; "
                f"got {mean}, {std}"
            )

    def __call__(self, columns: Columns, random: Generators) -> Columns:
        """Change the first column."""
        images = stacked("Normalize", columns[0])
        if images.ndim == 3:
            images = images[..., None]
        channels = images.shape[-1]
        if images.dtype != np.uint8 or {len(self.mean), len(self.std)} - {1, channels}:
            raise ValueError(
                f"data.Normalize: expected images of bytes with {len(self.mean)} channels; "
                f"got {images.dtype}{list(images.shape)}"
            )
        planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2), np.float32)
        factor = (1 / (255 * self.std)).astype(np.float32)[:, None, None]
        planes *= factor
        planes -= (self.mean / self.std).astype(np.float32)[:, None, None]
        return planes, *columns[1:]


def apply(transforms: Transforms, columns: Columns, random: Generators) -> Columns:
    """Apply one transform, or several one behind the other."""
    for transform in (transforms,) if callable(transforms) else transforms:
        columns = transform(columns, random)
    return columns


class Mixup:
    """Each image becomes a mean of two, and so does its label.

    Zhang et al., 2017 (arXiv:1710.09412): share * own + (1 - share) * partner, the share from
    Beta(alpha, alpha). The partner is any sample of the source; which one depends on the sample's
    generator, as everything else, and not on who else is in the batch. It goes through `transform`
    too, which has to end with images of floats. Labels become [N, classes] float32.
    """

    def __init__(
        self, source: Any, transform: Transforms, *, classes: int, alpha: float = 0.2
    ) -> None:
        if classes < 1 or not alpha > 0:
            raise ValueError(
                f"data.Mixup: expected classes >= 1 and alpha > 0; got {classes}, {alpha}"
            )
        self.source, self.transform, self.classes, self.alpha = source, transform, classes, alpha

    def __call__(self, columns: Columns, random: Generators) -> Columns:
        """Images and labels."""
        count = len(self.source)
        images, labels = self._whole(columns, random)
        others = self.source[np.array([int(r.integers(0, count)) for r in random])]
        partners, their_labels = self._whole(others, random)
        share = np.array([r.beta(self.alpha, self.alpha) for r in random], np.float32)

        def mixed(own: Array, other: Array) -> Array:
            part = share.reshape(-1, *(1,) * (own.ndim - 1))
            return part * own + (1 - part) * other

        return mixed(images, partners), mixed(labels, their_labels)

    def _whole(self, columns: Columns, random: Generators) -> tuple[Array, Array]:
        """The images, transformed, and the labels, a column a class."""
        images, labels = apply(self.transform, columns, random)
        images = stacked("Mixup", images)
        if images.dtype.kind != "f":
            raise ValueError(f"data.Mixup: expected a transform to floats; got {images.dtype}")
        return images, np.eye(self.classes, dtype=np.float32)[labels]
