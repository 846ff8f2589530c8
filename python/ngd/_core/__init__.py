# SPDX-License-Identifier: Apache-2.0
"""The compiled part. Only ngd.compiler and ngd.distributed import it."""

try:
    from ._core import (
        Buffer,
        Communicator,
        Executable,
        ProgramBuilder,
        Sequence,
        available_cores,
        build_info,
        finalize_mpi,
        kernel_table,
        query_kernel,
        set_thread_share,
        thread_count,
    )
except ModuleNotFoundError as error:
    if error.name != f"{__name__}._core":
        raise
    raise ImportError(
        "ngd's compiled part is missing: this is a source tree that was not built. "
        "Run 'pip install .' in it, and import ngd from another directory."
    ) from None

__all__ = [
    "Buffer",
    "Communicator",
    "Executable",
    "ProgramBuilder",
    "Sequence",
    "available_cores",
    "build_info",
    "finalize_mpi",
    "kernel_table",
    "query_kernel",
    "set_thread_share",
    "thread_count",
]
