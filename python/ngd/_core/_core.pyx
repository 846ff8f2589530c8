# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3, boundscheck=False, wraparound=False, binding=True, embedsignature=True
# cython: auto_pickle=False, autotestdict=False
"""The crossing into C++: thin, no op by name, no shape logic, no defaults."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cython.operator cimport dereference
from libc.stdint cimport int64_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.vector cimport vector

from numpy cimport PyArray_DATA, import_array, ndarray

from ngd cimport *

import threading

from ngd import errors as _errors

import_array()
ngd_set_error_module(_errors)

cdef extern from "Python.h":
    # As Python declares it: the exception stays set, for ngd_raise_python_error to find.
    int PyErr_CheckSignals() noexcept

cdef extern from *:
    """
    #include <array>
    static const char* ngd_version() { return NGD_VERSION; }
    static const char* ngd_mode() { return NGD_MODE; }
    """
    const char* ngd_version()
    const char* ngd_mode()

_LANES = ("input", "output", "variable", "constant", "private", "shared")
_ACTIONS = ("run", "start", "wait")
_MAIN_THREAD = threading.main_thread().ident


cdef string _bytes(str text):
    return text.encode()


cdef str _text(string_view view):
    return view.data()[:view.size()].decode()


cdef DType _dtype(str name) except *:
    cdef string text = _bytes(name)
    return dtype_named(string_view(text.data(), text.size()))


cdef TensorType _tensor_type(str dtype, tuple shape) except *:
    cdef TensorType type
    type.dtype = _dtype(dtype)
    type.shape = shape
    return type


cdef Attrs _attrs(dict attrs) except *:
    cdef Attrs result
    for name, value in attrs.items():
        if isinstance(value, int):  # and bool
            result.set_integer(_bytes(name), <int64_t> value)
        elif isinstance(value, float):
            result.set_number(_bytes(name), <double> value)
        elif isinstance(value, str):
            result.set_text(_bytes(name), _bytes(value))
        else:
            result.set_integers(_bytes(name), <vector[int64_t]> value)
    return result


cdef cbool _signal_pending() noexcept nogil:
    with gil:
        if threading.get_ident() != _MAIN_THREAD:
            return False
        return PyErr_CheckSignals() != 0


def build_info() -> dict:
    """Version, mode, oneDNN's version, SIMD level and MPI library of this build."""
    return {
        "version": ngd_version().decode(),
        "mode": ngd_mode().decode(),
        "onednn": onednn_version().decode() or None,
        "simd": _text(simd_name(simd_level())),
        "mpi": cpp_mpi_library_version().decode() or None,
    }


def finalize_mpi() -> None:
    """End MPI where ngd began it; after a failure this ends the process."""
    with nogil:
        cpp_finalize_mpi()


def thread_count() -> int:
    """How many threads a kernel may use in this process."""
    return cpp_thread_count()


def timeout_seconds() -> float:
    """NGD_TIMEOUT: the deadline of everything that waits for a rank; 0 = none."""
    return cpp_timeout_seconds()


def available_cores() -> int:
    """The cores of this process's affinity mask and cgroup quota."""
    return cpp_available_cores()


def set_thread_share(int threads) -> None:
    """Tell how many threads are left for this process beside the ranks that share its cores."""
    cpp_set_thread_share(threads)


def kernel_table() -> list:
    """(op, implementation) of every row of the CPU's kernel table, in order."""
    cdef KernelTable table = cpu_table()
    return [(_text(table[i].op), _text(table[i].implementation)) for i in range(table.size())]


def query_kernel(str op, list inputs, list outputs, dict attrs) -> tuple:
    """(implementation or None, reasons, scratch bytes, in-place bits) for types (dtype, shape)."""
    cdef KernelQuery query
    cdef Verdict verdict
    cdef string reasons, op_bytes = _bytes(op)
    query.op = string_view(op_bytes.data(), op_bytes.size())
    for dtype, shape in inputs:
        query.inputs.push_back(_tensor_type(dtype, shape))
    for dtype, shape in outputs:
        query.outputs.push_back(_tensor_type(dtype, shape))
    query.attrs = _attrs(attrs)
    cdef const KernelRow* row
    with nogil:
        row = find(cpu_table(), query, &verdict, &reasons)
    if row == NULL:
        return None, reasons.decode(), 0, 0
    return _text(row.implementation), "", verdict.scratch_bytes, verdict.in_place


cdef class Buffer:
    """Memory on the CPU device: what a variable holds."""

    cdef CppBuffer buffer

    def __init__(self, size_t nbytes):
        self.buffer = CppBuffer(cpu(), nbytes)

    def write(self, ndarray array) -> None:
        """Copy a contiguous array in; as many bytes as the buffer has."""
        if <size_t> array.nbytes != self.buffer.bytes():
            raise ValueError(f"Buffer.write: {array.nbytes} bytes into {self.buffer.bytes()}")
        cpu().copy_from_host(self.buffer.data(), PyArray_DATA(array), self.buffer.bytes())

    def read(self, ndarray array) -> None:
        """Copy the bytes out to a contiguous array."""
        if <size_t> array.nbytes != self.buffer.bytes():
            raise ValueError(f"Buffer.read: {self.buffer.bytes()} bytes into {array.nbytes}")
        cpu().copy_to_host(PyArray_DATA(array), self.buffer.data(), self.buffer.bytes())


cdef class ProgramBuilder:
    """Fills a Program; `str()` is its stable text form."""

    cdef CppProgram program

    def add_value(self, str dtype, tuple shape, str lane, size_t place) -> int:
        """Add a value and return its number."""
        cdef Value value
        value.type = _tensor_type(dtype, shape)
        value.lane = <Lane> <int> _LANES.index(lane)
        value.place = place
        self.program.values.push_back(value)
        return self.program.values.size() - 1

    def add_constant(self, bytes data) -> int:
        """Add a constant's bytes and return its place in the lane of constants."""
        cdef vector[char] copied
        copied.assign(PyBytes_AS_STRING(data), PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data))
        self.program.constants.push_back(copied)
        return self.program.constants.size() - 1

    def add_instruction(
        self, str action, str op, list inputs, list outputs, dict attrs, int start, str site
    ) -> int:
        """Add an instruction and return its number."""
        cdef CppInstruction instruction
        instruction.action = <Action> <int> _ACTIONS.index(action)
        instruction.op = _bytes(op)
        instruction.inputs = inputs
        instruction.outputs = outputs
        instruction.attrs = _attrs(attrs)
        instruction.start = start
        instruction.site = _bytes(site)
        self.program.instructions.push_back(instruction)
        return self.program.instructions.size() - 1

    def set_sizes(self, size_t inputs, size_t outputs, size_t variables) -> None:
        """How many inputs, outputs and variables a call has."""
        self.program.inputs = inputs
        self.program.outputs = outputs
        self.program.variables = variables

    def set_arenas(self, size_t private_bytes, size_t shared_bytes) -> None:
        """The sizes of the two arenas."""
        self.program.private_bytes = private_bytes
        self.program.shared_bytes = shared_bytes

    def set_collectives(self, str text, uint64_t hash) -> None:
        """The sequence of collectives, for the comparison between ranks."""
        self.program.collectives = _bytes(text)
        self.program.collectives_hash = hash

    def __str__(self) -> str:
        return program_text(self.program).decode()


cdef class Sequence:
    """What a rank's step says of all its collectives: compared with the peers' at the first one."""

    cdef string text
    cdef ProgramIdentity identity

    def __init__(self, str text, uint64_t hash):
        self.text = _bytes(text)
        self.identity.hash = hash
        self.identity.text = self.text.c_str()


cdef class Communicator:
    """A group of ranks; every call is collective over it."""

    cdef unique_ptr[CppCommunicator] communicator

    @staticmethod
    def make_self() -> Communicator:
        """A group of one."""
        cdef Communicator result = Communicator.__new__(Communicator)
        result.communicator = make_self_communicator()
        return result

    @staticmethod
    def make_shm(str job_key, int rank, int size, double timeout) -> Communicator:
        """The ranks of one host."""
        cdef Communicator result = Communicator.__new__(Communicator)
        cdef string key = _bytes(job_key)
        with nogil:
            result.communicator = make_shm_communicator(
                key, rank, size, timeout, _signal_pending
            )
        result.communicator.get().set_interrupt(_signal_pending)
        return result

    @staticmethod
    def make_mpi(int fortran_handle, double timeout) -> Communicator:
        """The ranks of an MPI communicator; -1 means MPI_COMM_WORLD."""
        cdef Communicator result = Communicator.__new__(Communicator)
        with nogil:
            result.communicator = make_mpi_communicator(fortran_handle, timeout)
        result.communicator.get().set_interrupt(_signal_pending)
        return result

    @property
    def name(self) -> str:
        """self, shm or mpi."""
        return _text(self.communicator.get().name())

    @property
    def rank(self) -> int:
        """My number, from 0."""
        return self.communicator.get().rank()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.communicator.get().size()

    @property
    def local_rank(self) -> int:
        """My number among the ranks of my host."""
        return self.communicator.get().local_rank()

    @property
    def local_size(self) -> int:
        """The number of ranks on my host."""
        return self.communicator.get().local_size()

    def submit(
        self, str kind, str op, str dtype, int root, ndarray source, ndarray destination,
        str algorithm, str site, Sequence sequence,
    ) -> int:
        """Start a collective on contiguous arrays, which the caller keeps until wait returns."""
        cdef Collective collective
        cdef string text = _bytes(kind), site_bytes = _bytes(site)
        cdef CppWork work
        collective.kind = kind_named(string_view(text.data(), text.size()))
        text = _bytes(op)
        collective.op = reduce_op_named(string_view(text.data(), text.size()))
        text = _bytes(algorithm)
        collective.algorithm = algorithm_named(string_view(text.data(), text.size()))
        collective.dtype = _dtype(dtype)
        collective.count = source.size
        collective.root = root
        collective.source = PyArray_DATA(source)
        collective.destination = PyArray_DATA(destination)
        collective.site = site_bytes.c_str()
        if sequence is not None:
            collective.program = &sequence.identity
        with nogil:
            validate(collective, self.communicator.get().size())
            work = self.communicator.get().submit(collective)
        return work.sequence

    def wait(self, uint64_t sequence, double timeout) -> None:
        """Return when the result of that collective is there."""
        cdef CppWork work
        work.sequence = sequence
        with nogil:
            self.communicator.get().wait(work, timeout)

    def abort(self, str traceback) -> None:
        """Tell the peers that this rank failed, and close."""
        cdef string text = traceback.encode(errors="replace")
        with nogil:
            self.communicator.get().abort(text)

    def close(self) -> None:
        """Leave in good order; idempotent."""
        with nogil:
            self.communicator.get().close()


cdef class Executable:
    """A program made ready to run."""

    cdef unique_ptr[Executor] executor
    cdef ProgramBuilder builder
    cdef Communicator communicator  # kept alive
    cdef list variables             # kept alive
    cdef size_t n_inputs, n_outputs

    def __init__(self, ProgramBuilder builder, Communicator communicator, list variables):
        cdef vector[void*] pointers
        cdef CppCommunicator* group = NULL
        self.builder, self.communicator, self.variables = builder, communicator, variables
        for variable in variables:
            pointers.push_back((<Buffer?> variable).buffer.data())
        if communicator is not None:
            group = communicator.communicator.get()
        self.n_inputs, self.n_outputs = builder.program.inputs, builder.program.outputs
        self.executor.reset(new Executor(builder.program, cpu(), cpu_table(), group, pointers))

    def run(self, list inputs, list outputs) -> None:
        """Run once on contiguous arrays of the program's types."""
        cdef vector[const void*] sources
        cdef vector[void*] destinations
        if <size_t> len(inputs) != self.n_inputs or <size_t> len(outputs) != self.n_outputs:
            raise ValueError("Executable.run: wrong number of inputs or outputs")
        sources.reserve(self.n_inputs + 1)
        destinations.reserve(self.n_outputs + 1)
        for array in inputs:
            sources.push_back(PyArray_DATA(<ndarray?> array))
        for array in outputs:
            destinations.push_back(PyArray_DATA(<ndarray?> array))
        with nogil:
            dereference(self.executor).run(sources.data(), destinations.data())

    @property
    def variables_touched(self) -> bool:
        """Whether the last run failed after the first write to a variable had begun."""
        return dereference(self.executor).variables_touched()

    def __str__(self) -> str:
        return str(self.builder)
