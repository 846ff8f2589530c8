# SPDX-License-Identifier: Apache-2.0
"""The metrics of a job for Prometheus: NGD_METRICS (docs/metrics.md).

`counting` records the time of compiled steps. `families` turns these records, and the
number, time and bytes of collectives, into metrics with names and labels. `serving` serves the
metrics of all ranks of a host on one port. The last two modules are imported only if NGD_METRICS is
set. Users call `count` and `address`. The other names are internal.
"""

from __future__ import annotations

from .._util import config
from .._util.signature_errors import check_public_names
from ..dtypes import as_int
from .counting import Tally, tally, user_counts

_begun = False
"""True after the first call of `begin`, which serves the metrics if NGD_METRICS is set."""

__all__ = ["Tally", "address", "begin", "count", "is_enabled", "tally"]


def count(*, examples: int = 0, steps: int = 0) -> None:
    """Add to the metrics `ngd_examples_total` and `ngd_steps_total` of this rank.

    Compiled steps are counted without a call, and `ngd.train.Trainer` counts its samples. Without
    NGD_METRICS the call has no effect.

    Parameters
    ----------
    examples : int, default 0
        The number of samples (images, sequences) that this rank has trained on since the last call.
    steps : int, default 0
        The number of training steps that ngd has not compiled, for example steps of PyTorch whose
        gradients ngd reduces over the ranks.

    Raises
    ------
    ValueError
        A number is negative.

    Examples
    --------
    >>> ngd.metrics.count(examples=32)
    """
    numbers = {}
    for name, value in (("examples", examples), ("steps", steps)):
        numbers[name] = as_int(value, "metrics.count", name, 64)
        if numbers[name] < 0:
            raise ValueError(f"metrics.count: {name}: expected a number >= 0; got {value}")
    user_counts.add(**numbers)
    if not _begun:
        begin()


def address() -> tuple[str, int] | None:
    """Return the address and port where this process serves the metrics of its host.

    Returns
    -------
    tuple of str and int, or None
        None if another rank of the host serves them, if the port was taken, or without NGD_METRICS.

    Examples
    --------
    >>> ngd.metrics.address() is None
    True
    """
    if not is_enabled():
        return None
    from . import serving

    return serving.address()


def is_enabled() -> bool:
    """Return True if the environment variable NGD_METRICS is set."""
    return config.metrics() is not None


def begin(size: int | None = None) -> None:
    """Start to serve the metrics of this host if NGD_METRICS is set.

    A second call does not start the server again. It only stores `size`, if `size` is given.

    Parameters
    ----------
    size : int, optional
        The number of ranks in the world. The default is the number that the launcher has set in
        the environment.

    Raises
    ------
    ImportError
        prometheus-client is not installed.
    InitError
        NGD_METRICS is invalid.
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
            "NGD_METRICS: expected the package prometheus-client; got none. Install it: "
            "pip install 'ngd-runtime[metrics]'"
        ) from None
    from . import serving

    serving.begin(where, size)
    _begun = True


check_public_names(globals())
