# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's handwritten digits, for the tests of frameworks."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

FEATURES, CLASSES = 64, 10


@functools.cache
def _all() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), labels


def batch(step: int, rows: int) -> tuple[Any, Any]:
    """Return the images of a step for all ranks, with 64 values from 0 to 1, and their classes."""
    images, labels = _all()
    rows_of_step = slice(step * rows, (step + 1) * rows)
    assert rows_of_step.stop <= len(labels)
    return images[rows_of_step], labels[rows_of_step]
