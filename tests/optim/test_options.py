# SPDX-License-Identifier: Apache-2.0
"""Tests that unknown and invalid options of optimizers, averages and schedules raise errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import ngd
from ngd import nn, ops, optim

GROUP = optim.ParameterGroup
MODEL = nn.Linear(3, 2)
PARAMETERS_GO = r"The parameters are an argument of minimize: optimizer\.minimize\(loss, "

REFUSED: list[tuple[str, type[Exception], str]] = [
    (
        "optim.AdamW(learning_rate=0.5)",
        TypeError,
        "optim.AdamW: .*'learning_rate'. Did you mean lr",
    ),
    ("optim.SGD(rate=0.5)", TypeError, "got 'rate'. Did you mean lr"),
    ("optim.Adam(1e-3, epsilon=1e-2)", TypeError, "got 'epsilon'. Did you mean eps"),
    ("optim.AdamW(weight_dekay=1.0)", TypeError, "got 'weight_dekay'. Did you mean weight_de"),
    ("optim.Adam(max_grad_norm=1.0)", TypeError, "Did you mean clip_norm"),
    ("optim.Adam(b1=0.9)", TypeError, "Did you mean betas"),
    ("optim.RMSprop(decay=0.9)", TypeError, "Did you mean alpha"),
    ("optim.Adagrad(rate_decay=0.9)", TypeError, "Did you mean lr_decay"),
    ("optim.SGD(0.1, fused=True)", TypeError, "got 'fused'. Remove it"),
    ("optim.SGD(MODEL.parameters(), lr=0.1)", TypeError, PARAMETERS_GO),
    ("optim.Adam(MODEL.parameters(), 1e-3)", TypeError, PARAMETERS_GO),
    ("optim.Adam(MODEL.parameters().values(), 1e-3)", TypeError, PARAMETERS_GO),
    ("optim.SGD(v for v in MODEL.parameters().values())", TypeError, PARAMETERS_GO),
    ("optim.SGD(MODEL.weight)", TypeError, PARAMETERS_GO),
    ("optim.SGD(params=MODEL.parameters())", TypeError, PARAMETERS_GO),
    ('optim.SGD("0.1")', TypeError, "lr: expected a number; got '0.1'"),
    ("optim.SGD(True)", TypeError, "lr: expected a number; got True"),
    ('optim.SGD(float("nan"))', ValueError, "lr: expected a finite number"),
    ('optim.SGD(ngd.placeholder("r", (2,)))', ValueError, "lr: expected a scalar"),
    ('optim.SGD(0.1, clip_norm="1")', TypeError, "clip_norm: expected a number; got '1'"),
    ("optim.SGD(0.1, clip_norm=0)", ValueError, "clip_norm: expected a number > 0; got 0"),
    ('optim.SGD(0.1, clip_norm=float("nan"))', ValueError, "clip_norm: expected a finite"),
    ('optim.SGD(0.1, momentum="0.9")', TypeError, "momentum: expected a number; got '0.9'"),
    ("optim.SGD(0.1, momentum=-0.9)", ValueError, "momentum: expected a number >= 0; got -0.9"),
    ("optim.SGD(0.1, nesterov=1)", TypeError, "nesterov: expected True or False; got 1"),
    (
        "optim.AdamW(weight_decay=-0.1)",
        ValueError,
        "weight_decay: expected a number >= 0; got -0.1",
    ),
    ("optim.AdamW(weight_decay=None)", TypeError, "weight_decay: expected a number; got None"),
    ("optim.Adam(eps=-1e-8)", ValueError, "eps: expected a number >= 0; got"),
    ("optim.Adam(betas=0.9)", TypeError, "betas: expected a pair of numbers; got 0.9"),
    (
        "optim.Adam(betas=(0.9, 1.0))",
        ValueError,
        r"betas\[1\]: expected a number in \[0, 1\); got 1.0",
    ),
    ('optim.Adam(amsgrad="yes")', TypeError, "amsgrad: expected True or False; got 'yes'"),
    ("optim.RMSprop(alpha=1.5)", ValueError, r"alpha: expected a number in \[0, 1\); got 1.5"),
    ("optim.Muon(ns_steps=0)", ValueError, "ns_steps: expected a whole number >= 1; got 0"),
    ("optim.Muon(ns_steps=2.5)", TypeError, "ns_steps: expected a whole number; got 2.5"),
    (
        'optim.LARS(0.1, trust_coefficient=float("inf"))',
        ValueError,
        "coefficient: expected a finite",
    ),
    ('optim.Adam(groups=[{"params": []}])', TypeError, "groups: expected a list of optim.Par"),
    ('optim.Adam(groups=[GROUP("*", wd=0.0)])', TypeError, "Did you mean weight_decay"),
    ('optim.Adam(groups=[GROUP("*", weight_decay="0")])', TypeError, "weight_decay: expected"),
    ("optim.Adam(loss_scale=1024.0)", TypeError, "loss_scale: expected optim.LossScale()"),
    ("optim.Adam(name=3)", TypeError, "name: expected a non-empty text; got 3"),
    ('optim.LossScale("1")', TypeError, "init_scale: expected a number"),
    ("optim.LossScale(growth_interval=1.5)", TypeError, "growth_interval: expected a whole"),
    ('optim.ExponentialMovingAverage("0.9")', TypeError, "decay: expected a number"),
    ('optim.ExponentialMovingAverage(float("nan"))', ValueError, "decay: expected a finite"),
    ('optim.clip_by_global_norm([MODEL.weight], "1")', TypeError, "max_norm: expected a number"),
    ("optim.warm_up(10, optim.cosine(1e-3, 5))", TypeError, r"Write warm_up\(schedule, steps\)"),
    ("optim.cosine(1e-3)", TypeError, r"cosine\(lr, steps, final_lr=0.0\); got no `steps`"),
    ("optim.cosine(1e-3, T_max=9)", TypeError, "'T_max'. `T_max` is called `steps`"),
    ('optim.cosine("1", 10)', TypeError, "optim.cosine: lr: expected a number; got '1'"),
    ("optim.cosine(-1.0, 10)", ValueError, "lr: expected a number >= 0; got -1.0"),
    ("optim.cosine(1.0, optim.constant(1))", TypeError, "steps: expected a number; got"),
    ("optim.steps(0.1, [30, 60])", TypeError, "factors: expected a dict of factors by steps"),
    ('optim.polynomial(0.1, 5, power=float("nan"))', ValueError, "power: expected a finite"),
]


@pytest.mark.parametrize(("call", "kind", "says"), REFUSED, ids=[row[0] for row in REFUSED])
def test_bad_options_raise_when_the_optimizer_is_created(
    call: str, kind: type[Exception], says: str
) -> None:
    names = {"optim": optim, "MODEL": MODEL, "GROUP": GROUP, "ngd": ngd}
    with pytest.raises(kind) as caught:
        eval(call, names)
    assert type(caught.value) is kind
    assert re.search(says, str(caught.value)), caught.value


def test_an_option_is_checked_by_the_class_that_has_it() -> None:
    """A subclass may use the names of ngd's options for other values, and may pass values on."""

    class Mine(optim.Optimizer):
        def __init__(self, lr: float, *, betas: str = "", **common: Any) -> None:
            super().__init__(lr, betas=betas, inner=[1], **common)

        def rule(self, w: ngd.Node, g: ngd.Node, state: optim.State) -> ngd.Node:
            return w - state.scalar(state.lr) * g * float(len(state["betas"]) + state["inner"][0])

    with pytest.raises(TypeError, match=r"^test_an.*Mine: .*got 'beta'. Did you mean betas"):
        Mine(0.5, beta="x")
    w = ngd.variable("w", np.zeros(2))
    updates = Mine(0.5, betas="xx", clip_norm=9).apply({w: ngd.constant(np.ones(2))})
    ngd.compile([], [], updates)()
    np.testing.assert_array_equal(w.numpy(), -1.5)


def test_numpy_scalars_and_integers_are_valid_options() -> None:
    """Options take the dtype of the weights, like Python floats."""
    w = ngd.variable("w", np.ones(2, np.float32))
    optimizer = optim.SGD(np.float64(1), momentum=np.float32(0.5), weight_decay=1, clip_norm=np.inf)
    assert optimizer.options == {
        "lr_factor": 1.0, "momentum": 0.5, "dampening": 0.0, "nesterov": False,
        "weight_decay": 1.0,
    }  # fmt: skip
    step = ngd.compile([], [], optimizer.apply({w: ops.ones((2,))}))
    step()
    np.testing.assert_array_equal(w.numpy(), -1)
    assert optimizer.state["sgd.w.momentum"].dtype == np.float32
