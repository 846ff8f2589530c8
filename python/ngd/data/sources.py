# SPDX-License-Identifier: Apache-2.0
"""Where samples come from: each has a length, and gives the columns of the samples asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp")


class Arrays:
    """Arrays: sample i is row i of each.

    A loader's processes share one copy of them, in memory, also of those that are memory-mapped.
    """

    def __init__(self, *columns: Any) -> None:
        if not columns:
            raise ValueError("data.Arrays: expected at least one array")
        self.columns = tuple(np.asarray(column) for column in columns)
        rows = [column.shape[:1] for column in self.columns]
        if len({*rows}) > 1 or not rows[0]:
            shapes = ", ".join(str(column.shape) for column in self.columns)
            raise ValueError(f"data.Arrays: expected arrays of equally many rows; got {shapes}")

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, indices: Any) -> tuple[Array, ...]:
        return tuple(np.asarray(column[indices]) for column in self.columns)


class ImageFolder:
    """Images in one folder a class; the classes are the subfolders, in the order of their names.

    Gives images as [height, width, 3] bytes, each of its own size, and int64 labels. Needs Pillow.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        place = Path(folder)
        pillow()
        if not place.is_dir():
            raise ValueError(f"data.ImageFolder: {place} is not a directory")
        self.classes = sorted(entry.name for entry in place.iterdir() if entry.is_dir())
        self.files: list[str] = []
        labels: list[int] = []
        for label, name in enumerate(self.classes):
            found = sorted(p for p in (place / name).rglob("*") if p.suffix.lower() in SUFFIXES)
            if not found:
                raise ValueError(f"data.ImageFolder: {place / name} holds no images")
            self.files += map(str, found)
            labels += [label] * len(found)
        if not labels:
            raise ValueError(f"data.ImageFolder: {place} holds no folders of images")
        self.labels = np.array(labels, np.int64)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, indices: Any) -> tuple[list[Array], Array]:
        return [decode(self.files[i]) for i in indices], self.labels[indices]


def decode(path: str) -> Array:
    """The bytes of an image's red, green and blue: [height, width, 3]."""
    image = pillow()
    try:
        with image.open(path) as opened:
            return np.array(opened.convert("RGB"))
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise ValueError(f"{path}: not an image that Pillow can read ({error})") from error


def pillow() -> Any:
    """Pillow's module of images, which is imported when it is needed."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("ngd.data needs Pillow for images: pip install pillow") from None
    return Image


class Tokens:
    """Windows of so many tokens, as int64, from a file of integers or an array of them.

    The file is memory-mapped, and opened again by each of a loader's processes. Windows begin
    `stride` tokens apart, by default side by side; what is left at the end is in none.
    """

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
                f"data.Tokens: expected length and stride >= 1; got {length}, {self.stride}"
            )
        self.path = Path(tokens) if isinstance(tokens, (str, os.PathLike)) else None
        self.dtype = np.dtype(dtype)
        self.tokens = np.asarray(tokens) if self.path is None else self._opened()
        if self.tokens.ndim != 1 or self.tokens.dtype.kind not in "iu":
            has = f"{self.tokens.dtype}{list(self.tokens.shape)}"
            raise ValueError(f"data.Tokens: expected a row of integers; got {has}")
        if len(self.tokens) < length:
            raise ValueError(
                f"data.Tokens: {self.path or 'the array'} holds {len(self.tokens)} tokens, "
                f"a window takes {length}"
            )

    def _opened(self) -> Array:
        assert self.path is not None
        size = self.path.stat().st_size
        if not size or size % self.dtype.itemsize:
            raise ValueError(
                f"data.Tokens: {self.path}: {size} bytes are no whole number of {self.dtype} tokens"
            )
        return np.memmap(self.path, self.dtype, "r")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "tokens": self.tokens if self.path is None else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.path is not None:
            self.tokens = self._opened()

    def __len__(self) -> int:
        return (len(self.tokens) - self.length) // self.stride + 1

    def __getitem__(self, indices: Any) -> tuple[Array]:
        starts = np.asarray(indices) * self.stride
        rows = [self.tokens[start : start + self.length] for start in starts]
        return (np.stack(rows).astype(np.int64),)
