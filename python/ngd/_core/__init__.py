# SPDX-License-Identifier: Apache-2.0
"""The Cython module over the C++ core.

tests/project/test_house_rules.py lists the modules that may import it.
"""

import os

from .._util.links import page_url

# By default, threads of libgomp spin for milliseconds at the end of a parallel region, on cores
# that other processes may need. A training step of 784-600-10 on two threads took 525 us with this
# count and 528 us with the default on idle cores. On busy cores it took 2.5 ms, and 3 to 10 ms with
# the default. libgomp reads the variable once, when it is loaded. A value of the user is not
# changed.
_short_spin = not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()
if _short_spin:
    os.environ["GOMP_SPINCOUNT"] = "1000"

try:
    from ._core import (
        AbortOnError,
        Arena,
        ArrayType,
        Buffer,
        Call,
        Cell,
        CommonMemory,
        Communicator,
        Device,
        Executable,
        FairLock,
        Hold,
        Mark,
        ProgramBuilder,
        Sequence,
        available_cores,
        begin_end,
        begin_recording,
        build_info,
        checksum,
        clock_ns,
        dropped_events,
        end_recording,
        finalize_mpi,
        first_fit,
        keep_for_mpi,
        load_mpi,
        moves,
        mpi_version,
        recorded_events,
        recorded_labels,
        run_calls,
        set_host_invoke,
        set_thread_share,
        start_calls,
        stay_if_ending,
        thread_count,
        timeout_seconds,
        while_held,
        xla_handler,
    )
except ImportError as error:
    if "undefined symbol: dnnl_" in str(error):
        raise ImportError(
            "ngd: expected ngd's own oneDNN, libdnnl.so.3; got that of another package, such as "
            f"PaddlePaddle. Use a build of ngd that works with it: see {page_url('paddle')}"
        ) from error
    if error.name != f"{__name__}._core" or not isinstance(error, ModuleNotFoundError):
        raise
    raise ImportError(
        "ngd's compiled part is missing: this is a source tree that was not built. "
        "Run 'pip install .' in it, and import ngd from another directory."
    ) from None
finally:
    if _short_spin:
        del os.environ["GOMP_SPINCOUNT"]

__all__ = [
    "AbortOnError",
    "Arena",
    "ArrayType",
    "Buffer",
    "Call",
    "Cell",
    "CommonMemory",
    "Communicator",
    "Device",
    "Executable",
    "FairLock",
    "Hold",
    "Mark",
    "ProgramBuilder",
    "Sequence",
    "available_cores",
    "begin_end",
    "begin_recording",
    "build_info",
    "checksum",
    "clock_ns",
    "dropped_events",
    "end_recording",
    "finalize_mpi",
    "first_fit",
    "keep_for_mpi",
    "load_mpi",
    "moves",
    "mpi_version",
    "recorded_events",
    "recorded_labels",
    "run_calls",
    "set_host_invoke",
    "set_thread_share",
    "start_calls",
    "stay_if_ending",
    "thread_count",
    "timeout_seconds",
    "while_held",
    "xla_handler",
]
