# SPDX-License-Identifier: Apache-2.0
"""Small data sets in the file format of MNIST, for tests of the examples."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def write_idx(path: Path, array: NDArray[Any], zipped: bool = False) -> None:
    """Write an array of bytes in IDX format."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    data = header + array.astype(np.uint8).tobytes()
    if zipped:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(data))
    else:
        path.write_bytes(data)


def write_images(directory: Path, train_images: int, zipped: bool = False) -> Path:
    """Write four files of 6 x 6 images in three classes: noise with one bright third."""
    random = np.random.default_rng(5)
    directory.mkdir()
    for name, count in (("train", train_images), ("t10k", 150)):
        labels = random.integers(0, 3, count)
        images = random.integers(0, 90, (count, 6, 6))
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 2] += 120
        write_idx(directory / f"{name}-images-idx3-ubyte", images, zipped)
        write_idx(directory / f"{name}-labels-idx1-ubyte", labels, zipped)
    return directory
