# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3, boundscheck=False, wraparound=False, binding=True, embedsignature=True
# cython: auto_pickle=False, autotestdict=False
"""Python classes over the C++ core. They contain no op names, shape rules or defaults."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, PyObject
from cython.operator cimport dereference, preincrement
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.unordered_set cimport unordered_set
from libcpp.vector cimport vector

from numpy cimport (
    NPY_BOOL, NPY_FLOAT64, NPY_FLOAT32, NPY_FLOAT16, NPY_INT8, NPY_INT16, NPY_INT32, NPY_INT64,
    NPY_LONGLONG, NPY_MAXDIMS, NPY_UINT8, NPY_UINT16, NPY_UINT32, NPY_UINT64, NPY_ULONGLONG,
    PyArray_CompareLists, PyArray_DATA, PyArray_DIMS, PyArray_EMPTY, PyArray_ISCARRAY,
    PyArray_ISCARRAY_RO, PyArray_NBYTES, PyArray_NDIM, PyArray_SIZE, PyArray_TYPE, import_array,
    ndarray, npy_intp
)

from ngd cimport *

import os
import sys
import threading

from numbers import Integral as _Integral, Real as _Real

from ml_dtypes import bfloat16 as _ml_bfloat16
from numpy import dtype as _numpy_dtype

from ngd import errors as _errors
from ngd._util.callsite import owner as _owner

import_array()
ngd_set_error_module(_errors)

cdef extern from "Python.h":
    # Declared without "except", as in Python.h. Cython does not handle the exception, so it stays
    # set for ngd_raise_python_error.
    int PyErr_CheckSignals() noexcept
    long PyLong_AsLongAndOverflow(object number, int* overflow) except? -1
    unsigned long PyThread_get_thread_ident() noexcept nogil

cdef extern from *:
    """
    #include <array>
    static const char* ngd_version() { return NGD_VERSION; }
    static const char* ngd_mode() { return NGD_MODE; }
    """
    const char* ngd_version()
    const char* ngd_mode()

_MEMORY_KINDS = ("input", "output", "variable", "constant", "private", "shared", "nowhere")
_ACTIONS = ("run", "start", "wait", "scan", "cond")
cdef unsigned long _main_thread = threading.main_thread().ident


cdef str _text(string_view view):
    return view.data()[:view.size()].decode("utf-8", "backslashreplace")


cdef str _str(const string& text):
    return _text(string_view(text.data(), text.size()))


cdef DType _dtype(str name) except *:
    cdef string text = _bytes(name)
    return dtype_named(string_view(text.data(), text.size()))


cdef int _set_type(TensorType& type, str dtype, tuple shape) except -1:
    type.dtype = _dtype(dtype)
    type.shape = _int64s(shape)
    return 0


cdef int _set_attrs(Attrs& result, dict attrs) except -1:
    for name, value in attrs.items():
        if isinstance(value, _Integral):  # and bool
            result.set_integer(_bytes(name), <int64_t> value)
        elif isinstance(value, _Real):
            result.set_number(_bytes(name), <double> _float(name, value))
        elif isinstance(value, str):
            result.set_text(_bytes(name), _bytes(value))
        elif all([isinstance(v, _Integral) for v in value]):
            result.set_integers(_bytes(name), _int64s(value))
        elif all([isinstance(v, _Real) for v in value]):
            result.set_numbers(_bytes(name), _doubles([_float(name, v) for v in value]))
        else:
            result.set_texts(_bytes(name), _texts(value))
    return 0


cdef object _float(name, value):
    number = float(value)
    if number != value and value == value:
        raise ValueError(f"attribute {name}: a float cannot hold {value!r}")
    return number


# The interrupt callback of the core. It returns True if a signal handler has raised an exception.
# Only the main thread handles signals. Other threads must not take the GIL here, because when the
# program ends, Python ends a thread that asks for the GIL by unwinding its stack.
cdef cbool _signal_pending() noexcept nogil:
    if PyThread_get_thread_ident() != _main_thread:
        return False
    with gil:
        return PyErr_CheckSignals() != 0


def _find_main_thread() -> None:
    global _main_thread
    _main_thread = threading.get_ident()


os.register_at_fork(after_in_child=_find_main_thread)


def begin_end() -> None:
    """Record that the program ends. Then `stay_if_ending` returns only in the main thread."""
    ngd_begin_end(_main_thread)


def stay_if_ending() -> None:
    """Sleep forever if the program ends and this is not the main thread.

    Python would end such a daemon thread when it takes the GIL again. Sleeping is the behaviour of
    Python 3.14 and later. The thread then prints no error whose only cause is the program's end.
    """
    ngd_stay_if_ending()


def build_info() -> dict:
    """Return the version, build mode, oneDNN version, SIMD level and MPIs ("openmpi mpich")."""
    return {
        "version": ngd_version().decode(),
        "mode": ngd_mode().decode(),
        "onednn": onednn_version().decode() or None,
        "simd": _text(simd_name(simd_level())),
        "mpi": cpp_mpis().decode() or None,
    }


def load_mpi(str name) -> None:
    """Load an MPI library into this process; "" is the first one of the build that is found."""
    cpp_load_mpi(_bytes(name))


def mpi_version() -> str:
    """Return the version text of the loaded MPI library, or an empty text."""
    return cpp_mpi_version().decode(errors="replace").strip("\0\n ")


def finalize_mpi() -> None:
    """Finalize MPI if ngd has initialised it. After a failure, this ends the process."""
    with nogil:
        cpp_finalize_mpi()


def keep_for_mpi(memory) -> None:
    """Keep an object alive forever if MPI still uses memory of a collective that failed."""
    _keep_for_mpi(memory)


def set_host_invoke(invoke) -> None:
    """Set the function that runs the Python functions of ngd.call_host."""
    ngd_set_host_invoke(invoke)


def thread_count() -> int:
    """Return the number of threads that a kernel may use in this process."""
    return cpp_thread_count()


def timeout_seconds() -> float:
    """Return NGD_TIMEOUT, the longest wait for a rank in seconds; 0 means no limit."""
    return cpp_timeout_seconds()


def available_cores() -> int:
    """Return the number of cores that the affinity mask and the cgroup quotas allow."""
    return cpp_available_cores()


def xla_handler() -> int:
    """Return the address of the handler of XLA's custom calls (src/cpp/bridges/xla.hpp)."""
    return cpp_xla_handler()


def set_thread_share(int threads) -> None:
    """Set this process's share of the cores, which is the default number of its threads."""
    cpp_set_thread_share(threads)


include "variable_state.pxi"
include "device.pxi"
include "call_site.pxi"
include "communicator.pxi"
include "call.pxi"
include "quick_call.pxi"
include "fair_lock.pxi"
include "recording.pxi"
include "program.pxi"
