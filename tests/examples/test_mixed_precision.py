# SPDX-License-Identifier: Apache-2.0
"""Tests of mixed_precision.py: 16-bit floats learn like float32, and a loss scale adapts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.examples.runs import needs_ranks, report_of, start

pytestmark = pytest.mark.long

EXAMPLE = "mixed_precision.py"
STEPS = 16  # 2,048 samples in batches of 128


@needs_ranks
def test_every_precision_learns() -> None:
    report = report_of(start(EXAMPLE, 2, "--smoke"))
    exact = report["float32"]
    assert exact["loss"] < exact["first_loss"] - 0.03
    for precision, digits in (("bfloat16", 8), ("float16", 11)):
        found = report[precision]
        assert found["first_loss"] == pytest.approx(exact["first_loss"], rel=2.0**-digits)
        assert found["first_loss"] != exact["first_loss"]  # the operands of matmuls are rounded
        assert found["loss"] == pytest.approx(exact["loss"], rel=0.01)
    assert (report["float16"]["skipped"], report["float16"]["scale"]) == (0, 2.0**15)


@needs_ranks
def test_a_too_large_scale_is_halved_in_each_skipped_step() -> None:
    options = ["--precision", "float16", "--init-scale", str(2.0**100)]
    report = report_of(start(EXAMPLE, 2, "--smoke", *options))["float16"]
    assert report["skipped"] == STEPS
    assert report["scale"] == 2.0 ** (100 - STEPS)
    few = report_of(start(EXAMPLE, 2, "--smoke", *options[:-1], str(2.0**26)))["float16"]
    assert 0 < few["skipped"] < STEPS
    assert few["scale"] == 2.0 ** (26 - few["skipped"])
    assert np.isfinite(few["loss"])
