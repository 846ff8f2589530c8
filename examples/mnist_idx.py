# SPDX-License-Identifier: Apache-2.0
"""Labelled images: MNIST's four IDX files, or the digits that come with scikit-learn."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

IDX_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


class Images(NamedTuple):
    """A set of images, one a row, pixels in [0, 1], and their classes."""

    pixels: Array
    labels: Array


def load(directory: Path | None, dtype: str) -> tuple[Images, Images]:
    """The training and the test set; raises OSError or ValueError with one clear line."""
    if directory is None:
        return load_digits(dtype)
    if not directory.is_dir():
        raise ValueError(f"--data: {directory} is not a directory")
    train, test = (
        load_images(
            find(directory, f"{name}-images-idx3-ubyte"),
            find(directory, f"{name}-labels-idx1-ubyte"),
            dtype,
        )
        for name in ("train", "t10k")
    )
    if train.pixels.shape[1] != test.pixels.shape[1]:
        raise ValueError(
            f"{directory}: training images of {train.pixels.shape[1]} pixels, "
            f"test images of {test.pixels.shape[1]}"
        )
    return train, test


def find(directory: Path, name: str) -> Path:
    """The file of that name, or its gzipped form."""
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    raise ValueError(f"{directory} holds neither {name} nor {name}.gz")


def load_images(images_path: Path, labels_path: Path, dtype: str) -> Images:
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
    pixels = images.reshape(len(images), -1).astype(dtype) / 255
    return Images(pixels, labels.astype(np.int64))


def read_idx(path: Path) -> Array:
    """Read an array in IDX format (http://yann.lecun.com/exdb/mnist), gzipped or not.

    Two zero bytes, the element type, the number of axes, each axis's length as a big-endian 32-bit
    integer, then the elements in row-major order.
    """
    data = path.read_bytes()
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


def load_digits(dtype: str) -> tuple[Images, Images]:
    """The 1,797 images of 8 x 8 pixels that scikit-learn holds; every fifth, once mixed, tests."""
    try:
        from sklearn import datasets
    except ImportError:
        raise ValueError(
            "without --data this needs scikit-learn: pip install 'ngd-runtime[examples]'"
        ) from None
    digits = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pixels = (digits.data[order] / 16).astype(dtype)
    labels = digits.target[order].astype(np.int64)
    test = np.arange(len(order)) % 5 == 0
    return Images(pixels[~test], labels[~test]), Images(pixels[test], labels[test])


def describe(array: Array) -> str:
    """The type of an array, for a message."""
    return f"{array.dtype.name}{list(array.shape)}"
