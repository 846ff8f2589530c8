# SPDX-License-Identifier: Apache-2.0
"""What a job does, in numbers for Prometheus: NGD_METRICS (docs/metrics.md).

`counting` notes what steps take; `families` gives that, and what collectives have cost, names and
labels; `serving` brings the ranks of a host together behind one port. The last two are imported
where NGD_METRICS is set, and nowhere else. Users call `count` and `address`, the rest is ngd's own.
"""

from __future__ import annotations

from .. import config
from ..dtype import whole
from .counting import Tally, by_hand, tally

_begun = False
"""Whether this process takes part, or has looked and need not."""

__all__ = ["Tally", "address", "begin", "count", "tally", "wanted"]


def count(*, examples: int = 0, steps: int = 0) -> None:
    """Add to the metrics of this rank: `ngd_examples_total` and `ngd_steps_total`.

    Compiled steps count themselves, and `ngd.train.Trainer` counts its examples. Without
    NGD_METRICS nothing comes of it.

    Parameters
    ----------
    examples
        How many examples (images, sequences) this rank has trained on since the last call; >= 0.
    steps
        How many steps it has made that ngd has not compiled, as those of a framework over one of
        the bridges; >= 0.
    """
    numbers = {}
    for name, given in (("examples", examples), ("steps", steps)):
        numbers[name] = whole(given, "metrics.count", name, 64)
        if numbers[name] < 0:
            raise ValueError(f"metrics.count: {name}: expected a number >= 0; got {given}")
    by_hand.add(**numbers)
    if not _begun:
        begin()


def address() -> tuple[str, int] | None:
    """Where this process serves the metrics of its host: address and port.

    None where another rank of the host serves them, where the port was taken, and without
    NGD_METRICS.
    """
    if not wanted():
        return None
    from . import serving

    return serving.address()


def wanted() -> bool:
    """Whether NGD_METRICS is set."""
    return config.metrics() is not None


def begin(size: int | None = None) -> None:
    """Take part in the metrics of this host, where NGD_METRICS is set; idempotent.

    Parameters
    ----------
    size
        How many ranks the world has; by default as many as the launcher tells.

    Raises
    ------
    ImportError
        There is no prometheus-client.
    InitError
        NGD_METRICS makes no sense.
    """
    global _begun
    where = config.metrics()
    if where is None:
        _begun = True
        return
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise ImportError(
            "NGD_METRICS needs prometheus-client: pip install 'ngd-runtime[metrics]'"
        ) from None
    from . import serving

    serving.begin(where, size)
    _begun = True
