# SPDX-License-Identifier: Apache-2.0
"""Sources: objects with a length that return the columns of the samples at given indices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .._util.signature_errors import check_constructor

Array = NDArray[Any]

SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp")


class Arrays:
    """A source of arrays in memory. Sample i consists of row i of each array.

    Parameters
    ----------
    *columns : array_like of shape [samples, ...]
        Arrays with the same number of rows.

    Attributes
    ----------
    columns : tuple of arrays
        The arrays.

    Raises
    ------
    ValueError
        No array is given, or the arrays have different numbers of rows.

    Notes
    -----
    The workers of a loader share one copy of the arrays. If an array is memory-mapped, the copy
    has all of its data in memory.

    Examples
    --------
    >>> from ngd import data
    >>> source = data.Arrays([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [0, 1, 0])
    >>> len(source)
    3
    >>> x, y = source[[2, 0]]
    >>> x.tolist(), y.tolist()
    ([[5.0, 6.0], [1.0, 2.0]], [0, 0])
    """

    @check_constructor("data.Arrays")
    def __init__(self, *columns: Any) -> None:
        if not columns:
            raise ValueError(
                "data.Arrays: expected at least one array; got none. Write data.Arrays(x, y)."
            )
        self.columns = tuple(np.asarray(column) for column in columns)
        rows = [column.shape[:1] for column in self.columns]
        if len({*rows}) > 1 or not rows[0]:
            shapes = ", ".join(str(column.shape) for column in self.columns)
            raise ValueError(
                f"data.Arrays: expected arrays with the same number of rows; got shapes {shapes}. "
                "Give arrays of one row per sample."
            )

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, indices: Any) -> tuple[Array, ...]:
        return tuple(np.asarray(column[indices]) for column in self.columns)


class ImageFolder:
    """A source of image files in a folder that has one subfolder per class.

    The columns are a list of uint8 images [height, width, 3], which may differ in size, and an
    int64 array of labels. It needs Pillow.

    Parameters
    ----------
    folder : path
        The folder. The sorted names of its subfolders are the classes.

    Attributes
    ----------
    classes : list of str
        The names of the classes. Label i is the class `classes[i]`.
    files : list of str
        The paths of the images.
    labels : int64 array
        The label of each image.

    Raises
    ------
    ValueError
        The folder does not exist, or a class has no images. Or, when the source is indexed: an
        image is damaged.
    ImportError
        Pillow is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> from ngd import data
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("cat", "dog"):
    ...     (folder / name).mkdir()
    ...     Image.new("RGB", (4, 3)).save(folder / name / "0.png")
    >>> source = data.ImageFolder(folder)
    >>> source.classes
    ['cat', 'dog']
    >>> images, labels = source[[1]]
    >>> images[0].shape, labels.tolist()
    ((3, 4, 3), [1])
    """

    @check_constructor("data.ImageFolder")
    def __init__(self, folder: str | os.PathLike[str]) -> None:
        root = Path(folder)
        pillow()
        if not root.is_dir():
            raise ValueError(
                f"data.ImageFolder: expected a folder; got {root}, which is not a directory. Give "
                "the folder that has one subfolder per class."
            )
        self.classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
        self.files: list[str] = []
        labels: list[int] = []
        for label, name in enumerate(self.classes):
            class_files = sorted(
                p for p in (root / name).rglob("*") if p.suffix.lower() in SUFFIXES
            )
            if not class_files:
                raise ValueError(
                    f"data.ImageFolder: expected images in {root / name}; got none. "
                    f"Remove the folder, or add files with a suffix among {', '.join(SUFFIXES)}."
                )
            self.files += map(str, class_files)
            labels += [label] * len(class_files)
        if not labels:
            raise ValueError(
                f"data.ImageFolder: expected one subfolder per class in {root}; got no "
                "folders with images. Give the folder above the classes."
            )
        self.labels = np.array(labels, np.int64)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, indices: Any) -> tuple[list[Array], Array]:
        return [decode(self.files[i]) for i in indices], self.labels[indices]


def decode(path: str) -> Array:
    """Return the pixels in an encoded image file: uint8 [height, width, 3]."""
    image = pillow()
    try:
        with image.open(path) as opened:
            return np.array(opened.convert("RGB"))
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise ValueError(
            f"data.ImageFolder: {path}: expected an image; got a file that is not an image that "
            f"Pillow can read ({error}). Remove or replace the file."
        ) from error


def pillow() -> Any:
    """Import and return Pillow's module Image."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("ngd.data needs Pillow for images: pip install pillow") from None
    return Image


class Tokens:
    """A source of windows of tokens, for language models.

    The only column is an int64 array of shape [N, length]. Tokens after the last complete window
    are not used.

    Parameters
    ----------
    tokens : path or array
        A file of integers, or a one-dimensional array of integers. A file is memory-mapped, and
        each worker of a loader opens it.
    length : int
        The number of tokens in a window. To predict the next token, give the length of the context
        plus 1.
    stride : int, optional
        The number of tokens from the start of a window to the start of the next one. The default is
        `length`: the windows do not overlap.
    dtype : dtype, default uint16
        The dtype of the tokens in a file. If the source is an array, this argument has no effect.

    Raises
    ------
    ValueError
        A number is below 1, the array is not a row of integers, or there are fewer tokens than
        `length`.

    Examples
    --------
    >>> import numpy as np
    >>> from ngd import data
    >>> source = data.Tokens(np.arange(10), length=4, stride=3)
    >>> len(source)
    3
    >>> source[[0, 2]][0].tolist()
    [[0, 1, 2, 3], [6, 7, 8, 9]]
    """

    @check_constructor("data.Tokens")
    def __init__(
        self,
        tokens: str | os.PathLike[str] | Array,
        length: int,
        *,
        stride: int | None = None,
        dtype: Any = np.uint16,
    ) -> None:
        self.length, self.stride = length, length if stride is None else stride
        if length < 1 or self.stride < 1:
            raise ValueError(
                "data.Tokens: expected length >= 1 and stride >= 1; got "
                f"{length} and {self.stride}."
            )
        self.path = Path(tokens) if isinstance(tokens, (str, os.PathLike)) else None
        self.dtype = np.dtype(dtype)
        self.tokens = np.asarray(tokens) if self.path is None else self._open()
        if self.tokens.ndim != 1 or self.tokens.dtype.kind not in "iu":
            has = f"{self.tokens.dtype}{list(self.tokens.shape)}"
            raise ValueError(
                f"data.Tokens: tokens: expected one row of integers; got {has}. Concatenate the "
                "documents into one array."
            )
        if len(self.tokens) < length:
            raise ValueError(
                f"data.Tokens: expected at least {length} tokens, the length of a window; got "
                f"{len(self.tokens)} in {self.path or 'the array'}. Use a smaller length."
            )

    def _open(self) -> Array:
        """Return the file as a memory-mapped array of tokens.

        Raise ValueError if the file is empty, or its size is not a multiple of a token's size.
        """
        assert self.path is not None
        size = self.path.stat().st_size
        if not size or size % self.dtype.itemsize:
            raise ValueError(
                f"data.Tokens: {self.path}: expected a multiple of {self.dtype.itemsize} bytes, "
                f"the size of a {self.dtype} token; got {size} bytes. Give the dtype of the file."
            )
        return np.memmap(self.path, self.dtype, "r")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "tokens": self.tokens if self.path is None else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.path is not None:
            self.tokens = self._open()

    def __len__(self) -> int:
        return (len(self.tokens) - self.length) // self.stride + 1

    def __getitem__(self, indices: Any) -> tuple[Array]:
        starts = np.asarray(indices) * self.stride
        rows = [self.tokens[start : start + self.length] for start in starts]
        return (np.stack(rows).astype(np.int64),)
