# SPDX-License-Identifier: Apache-2.0
"""Data sets in their authors' files: MNIST and its like, CIFAR-10, CIFAR-100."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .sources import Arrays

Array = NDArray[Any]

IDX_DTYPES: Final = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

CIFAR_IMAGE: Final = (3, 32, 32)
CIFAR_10: Final = ("cifar-10-batches-bin", [f"data_batch_{n}.bin" for n in range(1, 6)], 1)
CIFAR_100: Final = ("cifar-100-binary", ["train.bin"], 2)
"""The folder's name, the files that train, and how many bytes of labels an image has."""


def mnist(folder: str | os.PathLike[str]) -> tuple[Arrays, Arrays]:
    """Training and test set from MNIST's four IDX files, or Fashion-MNIST's, gzipped or not.

    Images are [height, width] bytes, labels int64.
    """
    place = Path(folder)
    if not place.is_dir():
        raise ValueError(f"data.mnist: {place} is not a directory")
    train, test = (
        labelled_images(
            find(place, f"{name}-images-idx3-ubyte"), find(place, f"{name}-labels-idx1-ubyte")
        )
        for name in ("train", "t10k")
    )
    if train.columns[0].shape[1:] != test.columns[0].shape[1:]:
        raise ValueError(
            f"{place}: training images of {train.columns[0].shape[1:]} pixels, "
            f"test images of {test.columns[0].shape[1:]}"
        )
    return train, test


def find(folder: Path, name: str) -> Path:
    """The file of that name, or its gzipped form."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise ValueError(f"{folder} holds neither {name} nor {name}.gz")


def labelled_images(images_path: Path, labels_path: Path) -> Arrays:
    """One set, from its two files."""
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or images.dtype != np.uint8:
        raise ValueError(f"{images_path}: expected grey images of bytes, got {describe(images)}")
    if labels.ndim != 1 or labels.dtype != np.uint8:
        raise ValueError(f"{labels_path}: expected a list of bytes, got {describe(labels)}")
    if len(images) != len(labels):
        raise ValueError(f"{images_path}: {len(images)} images, but {len(labels)} labels")
    if images.size == 0:
        raise ValueError(f"{images_path}: no images in it")
    return Arrays(images, labels.astype(np.int64))


def read_idx(path: str | os.PathLike[str]) -> Array:
    """Read an array in IDX format (http://yann.lecun.com/exdb/mnist), gzipped or not.

    Two zero bytes, the element type, the number of axes, each axis's length as a big-endian 32-bit
    integer, then the elements in row-major order.
    """
    data = Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{path}: damaged or truncated gzip file ({error})") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in IDX_DTYPES:
        raise ValueError(f"{path}: not an IDX file: it begins with {data[:4].hex(' ')}")
    element, axes = np.dtype(IDX_DTYPES[data[2]]), data[3]
    start = 4 + 4 * axes
    if len(data) < start:
        raise ValueError(f"{path}: truncated: {len(data)} bytes, its header alone takes {start}")
    shape = [int(n) for n in np.frombuffer(data, ">u4", axes, 4)]
    expected = start + element.itemsize * int(np.prod(shape, dtype=object))
    if len(data) != expected:
        fault = "truncated" if len(data) < expected else "too long"
        raise ValueError(f"{path}: {fault}: {len(data)} bytes, its header promises {expected}")
    return np.frombuffer(data, element, offset=start).reshape(shape)


def cifar(folder: str | os.PathLike[str]) -> tuple[Arrays, Arrays]:
    """Training and test set of CIFAR-10 or CIFAR-100, of their binary version.

    (The Python version is pickles: to read one runs whatever code is in it.) Images are
    [32, 32, 3] bytes, labels int64; those of CIFAR-100 are the fine ones. The folder is the
    archive's own, or the one that holds it.
    """
    place = Path(folder)
    for inner, training, label_bytes in (CIFAR_10, CIFAR_100):
        for at in (place, place / inner):
            if (at / training[0]).is_file():
                test = "test_batch.bin" if label_bytes == 1 else "test.bin"
                return read_cifar(at, training, label_bytes), read_cifar(at, [test], label_bytes)
    pickles = (*place.rglob("data_batch_1"), *place.rglob("meta")) if place.is_dir() else ()
    reason = "the Python version, which is pickles" if pickles else "no CIFAR"
    raise ValueError(
        f"data.cifar: {place} holds {reason}; expected the binary version: {CIFAR_10[1][0]} or "
        f"{CIFAR_100[1][0]}"
    )


def read_cifar(folder: Path, names: list[str], label_bytes: int) -> Arrays:
    """One set: a record an image, of its labels, of which the last counts, and three planes."""
    record = label_bytes + int(np.prod(CIFAR_IMAGE))
    parts = []
    for path in (folder / name for name in names):
        data = np.fromfile(path, np.uint8)
        if not data.size or data.size % record:
            raise ValueError(
                f"{path}: {data.size} bytes are no whole number of {record}-byte images"
            )
        parts.append(data.reshape(-1, record))
    records = np.concatenate(parts)
    planes = records[:, label_bytes:].reshape(-1, *CIFAR_IMAGE)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return Arrays(images, records[:, label_bytes - 1].astype(np.int64))


def describe(array: Array) -> str:
    """The type of an array, for a message."""
    return f"{array.dtype.name}{list(array.shape)}"
