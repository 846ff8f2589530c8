# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's handwritten digits, as the tests of frameworks train on them."""

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
    """The images of a step, of 64 values from 0 to 1, and their classes: all ranks' together."""
    images, labels = _all()
    here = slice(step * rows, (step + 1) * rows)
    assert here.stop <= len(labels)
    return images[here], labels[here]
