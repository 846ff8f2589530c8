# SPDX-License-Identifier: Apache-2.0
"""Labelled digits: MNIST's four IDX files, or what comes with scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ngd import data

Array = NDArray[Any]


class Digits(NamedTuple):
    """A set of images, one a row, pixels in [0, 1], and their classes."""

    pixels: Array
    labels: Array


def load(directory: Path | None, dtype: str) -> tuple[Digits, Digits]:
    """The training and the test set; raises OSError or ValueError with one clear line."""
    if directory is None:
        return load_bundled(dtype)
    train, test = data.mnist(directory, dtype=dtype)
    return rows(train), rows(test)


def rows(images: data.Arrays) -> Digits:
    """Return one image per row."""
    pixels, labels = images.columns
    return Digits(pixels.reshape(len(pixels), -1), labels)


def load_bundled(dtype: str) -> tuple[Digits, Digits]:
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
    return Digits(pixels[~test], labels[~test]), Digits(pixels[test], labels[test])
