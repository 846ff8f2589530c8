# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: collectives, from their description to their end.
#
# The handler of a signal may raise an exception between any two bytecodes of Python. Here it does
# so only where the engine waits and asks for signals. So each pair of steps that must not be
# separated is one call into this file: submit and note that it was submitted, or submit and wait.
# The submitted call keeps the memory that the engine uses, because an exception ends the frames of
# Python.

# The dtype of ngd + 1 for each type number of NumPy; 0 if ngd has no such dtype.
cdef enum:
    TYPE_NUMBERS = 24  # NumPy's own types
cdef unsigned char[TYPE_NUMBERS] _dtypes
cdef int _bfloat16_number = _numpy_dtype(_ml_bfloat16).num

cdef void _fill_dtypes() noexcept:
    _dtypes[<int> NPY_BOOL] = 1 + <int> DType.Bool
    _dtypes[<int> NPY_INT8] = 1 + <int> DType.I8
    _dtypes[<int> NPY_INT16] = 1 + <int> DType.I16
    _dtypes[<int> NPY_INT32] = 1 + <int> DType.I32
    _dtypes[<int> NPY_LONGLONG] = _dtypes[<int> NPY_INT64] = 1 + <int> DType.I64
    _dtypes[<int> NPY_UINT8] = 1 + <int> DType.U8
    _dtypes[<int> NPY_UINT16] = 1 + <int> DType.U16
    _dtypes[<int> NPY_UINT32] = 1 + <int> DType.U32
    _dtypes[<int> NPY_ULONGLONG] = _dtypes[<int> NPY_UINT64] = 1 + <int> DType.U64
    _dtypes[<int> NPY_FLOAT16] = 1 + <int> DType.F16
    _dtypes[<int> NPY_FLOAT32] = 1 + <int> DType.F32
    _dtypes[<int> NPY_FLOAT64] = 1 + <int> DType.F64

_fill_dtypes()


cdef void _keep_for_mpi(object memory) noexcept:
    """Keep an object forever if MPI still uses memory of a collective that failed."""
    if cpp_mpi_holds_memory():
        Py_INCREF(memory)


cdef inline int _dtype_of(ndarray array) noexcept:
    """Return the dtype of ngd + 1, or 0 if ngd does not have it."""
    cdef int number = PyArray_TYPE(array)
    if 0 <= number < TYPE_NUMBERS:
        return _dtypes[number]
    return 1 + <int> DType.BF16 if number == _bfloat16_number else 0


cdef inline void _set_array(
    CallState& state, int dtype, ndarray source, ndarray destination
) noexcept:
    """Set the dtype, which is that of `_dtype_of`, and the addresses."""
    state.collective.dtype = <DType> (dtype - 1)
    state.collective.source = PyArray_DATA(source)
    state.collective.destination = PyArray_DATA(destination)


cdef int _add_array(CallState& state, ndarray source, ndarray destination) except -1:
    """Add an array to a collective on a list."""
    cdef Tensor array
    array.dtype = <DType> (_dtype_of(source) - 1)
    array.count = PyArray_SIZE(source)
    array.source = PyArray_DATA(source)
    array.destination = PyArray_DATA(destination)
    state.add_array(array, <const int64_t*> PyArray_DIMS(source), PyArray_NDIM(source))
    return 0


cdef class Sequence:
    """The sequence of a step's collectives; ranks compare it at the first one."""

    cdef string text
    cdef ProgramIdentity identity
    cdef unique_ptr[HeldComputation] held

    def __init__(
        self, str text, uint64_t hash, uint64_t computation, uint64_t branch,
        Communicator communicator,
    ):
        self.text = _bytes(text)
        self.identity.hash = hash
        self.identity.text = self.text.c_str()
        self.identity.computation = computation
        self.identity = in_branch(self.identity, branch)
        self.held.reset(
            new HeldComputation(communicator.communicator.get().computations(), computation)
        )


@cython.final
@cython.no_gc_clear
cdef class Call:
    """A collective on an array, on a list of arrays or on memory.

    It keeps its arrays until the collective is over. collective.hpp defines count, root, counts and
    receive_counts for each kind.
    """

    cdef Communicator communicator
    cdef object kept
    cdef unique_ptr[CallState] state
    cdef Call keeper  # an empty call, made before the collective starts: see __dealloc__
    cdef Call next  # in a communicator's list of dropped calls
    cdef cbool over
    cdef readonly bint started

    @staticmethod
    def on_array(
        Communicator communicator not None, str kind, str op, ndarray source, ndarray destination,
        uint64_t count, int root=0, *, str algorithm="auto", str site="", Sequence sequence=None,
        counts=None, receive_counts=None, int tag=0, shape=(), uint64_t more=0,
    ) -> Call:
        """Describe a collective on contiguous arrays of one of ngd's dtypes.

        The ranks compare `shape`, except extents of 1, and `more`: layout.hpp.
        """
        cdef vector[int64_t] extents = _int64s(shape)
        cdef Call result = Call.of(communicator, (source, destination, sequence))
        cdef Collective* collective = &result.state.get().collective
        result.set_names(kind, op, algorithm, root, site)
        _set_array(dereference(result.state), _dtype_of(source), source, destination)
        collective.count = count
        collective.tag = tag
        if sequence is not None:
            collective.program = &sequence.identity
        result.state.get().set_shape(extents.data(), <int> extents.size(), more)
        result.set_counts(counts, receive_counts)
        result.check()
        return result

    @staticmethod
    def on_list(
        Communicator communicator not None, str kind, str op, int root, list sources,
        list destinations, *, str algorithm="auto", str site="",
    ) -> Call:
        """Describe an all_reduce or a broadcast of each of many arrays; see comm/grouped.hpp."""
        cdef Call result = Call.of(communicator, (sources, destinations))
        result.set_names(kind, op, algorithm, root, site)
        result.state.get().is_list = True
        for source, destination in zip(sources, destinations):
            _add_array(dereference(result.state), <ndarray?> source, <ndarray?> destination)
        return result

    @staticmethod
    def on_memory(
        Communicator communicator not None, str kind, str op, str dtype, uint64_t count, int root,
        size_t source, size_t destination, *, str site="", counts=None, receive_counts=None,
        int tag=0,
    ) -> Call:
        """Describe a collective on memory by address, which the caller keeps until it is over."""
        cdef Call result = Call.of(communicator, None)
        cdef Collective* collective = &result.state.get().collective
        result.set_names(kind, op, "auto", root, site)
        collective.dtype = _dtype(dtype)
        collective.source = <const void*> source
        collective.destination = <void*> destination
        collective.count = count
        collective.tag = tag
        result.set_counts(counts, receive_counts)
        result.check()
        return result

    @staticmethod
    cdef Call of(Communicator communicator, kept):
        """Return a call that describes nothing yet."""
        cdef Call result = Call.__new__(Call)
        result.communicator, result.kept = communicator, kept
        result.state = make_call_state()
        return result

    cdef int set_names(self, str kind, str op, str algorithm, int root, str site) except -1:
        cdef Collective* collective = &self.state.get().collective
        cdef string text = _bytes(kind)
        collective.kind = kind_named(string_view(text.data(), text.size()))
        text = _bytes(op)
        collective.op = reduce_op_named(string_view(text.data(), text.size()))
        text = _bytes(algorithm)
        collective.algorithm = algorithm_named(string_view(text.data(), text.size()))
        collective.root = root
        collective.site = _interned(_bytes(site))
        return 0

    cdef int set_counts(self, counts, receive_counts) except -1:
        cdef CallState* state = self.state.get()
        if counts is not None:
            state.counts = _uint64s(counts)
            self.check_counts(state.counts)
            state.collective.counts = state.counts.data()
        if receive_counts is not None:
            state.receive_counts = _uint64s(receive_counts)
            self.check_counts(state.receive_counts)
            state.collective.receive_counts = state.receive_counts.data()
        return 0

    cdef int check_counts(self, const vector[uint64_t]& counts) except -1:
        cdef int size = self.communicator.communicator.get().size()
        if counts.size() != <size_t> size:
            raise ValueError(
                f"expected a number for each of {size} ranks; got {counts.size()}"
            )
        return 0

    cdef int check(self) except -1:
        cdef CppCommunicator* group = self.communicator.communicator.get()
        validate(self.state.get().collective, group.rank(), group.size())
        return 0

    def start(self) -> None:
        """Submit the collective. A BusyError means that it was not submitted."""
        self.communicator.release_dropped()
        self.submit(False)

    def wait(self, double timeout) -> None:
        """Return when it is over; `timeout` is a deadline after which the group is closed."""
        if self.over:
            return
        with nogil:
            self.state.get().wait(dereference(self.communicator.communicator), timeout)
        self.end()

    def finish(self, double timeout) -> None:
        """Wait right after the start: never a BusyError."""
        with nogil:
            self.state.get().finish(dereference(self.communicator.communicator), timeout)
        self.end()

    def wait_for(self, double seconds) -> bool:
        """Wait for at most some seconds, and return whether it is over."""
        return self.over or self.ends_within(self.communicator, seconds) != 0

    cdef int submit(self, cbool follows) except -1:
        """Submit. follows: a collective of the same call was submitted before."""
        cdef AbortOnError scope = self.communicator.scope
        cdef double timeout = self.communicator.timeout
        follows = follows or (scope is not None and scope.has_submitted)
        self.keeper = Call.__new__(Call)
        with nogil:
            self.state.get().submit(
                dereference(self.communicator.communicator), follows, timeout
            )
        self.started = True
        if scope is not None:
            scope.has_submitted = True
        return 0

    cdef int ends_within(self, Communicator communicator, double seconds) except -1:
        """Do the same as wait_for, with the communicator, which a dropped call does not have."""
        cdef cbool is_over
        with nogil:
            is_over = self.state.get().wait_for(
                dereference(communicator.communicator), seconds
            )
        if is_over:
            self.end()
        return is_over

    cdef void end(self) noexcept:
        self.over = True
        self.kept = None
        self.keeper = None

    def __dealloc__(self):
        # The engine may still use the arrays. The keeper takes them, and the communicator keeps it,
        # without a reference back and without asking for memory.
        cdef Call keeper = self.keeper
        if not self.started or self.over or self.communicator is None:
            return
        keeper.kept = self.kept
        keeper.state.swap(self.state)
        keeper.started = True
        keeper.next = self.communicator.dropped
        self.communicator.dropped = keeper


def start_calls(list calls) -> None:
    """Submit the collectives of one call, which are of one group."""
    cdef Call each
    cdef cbool follows = False
    if calls:
        (<Call?> calls[0]).communicator.release_dropped()
    for each in calls:
        each.submit(follows)
        follows = True


def run_calls(list calls, double timeout) -> None:
    """Submit the collectives of one call, and wait for them."""
    cdef Call each
    start_calls(calls)
    for each in calls:
        each.finish(timeout)


cdef class AbortOnError:
    """A context for a call that makes several collectives: an exception inside closes the groups.

    The rank that raises has left the groups' common sequence, so each function of `aborts` is
    called with the reason. `is_promised`: an exception before the first collective closes the
    groups too, unless it is a BusyError.
    """

    cdef list communicators, aborts
    cdef cbool is_promised
    cdef cbool has_submitted  # a collective

    def __init__(self, list communicators, list aborts, cbool is_promised):
        self.communicators, self.aborts = communicators, aborts
        self.is_promised = is_promised

    def __enter__(self) -> None:
        cdef Communicator communicator
        for communicator in self.communicators:
            communicator.scope = self

    def __exit__(self, kind, error, trace) -> None:
        cdef Communicator communicator
        cdef str why
        for communicator in self.communicators:
            communicator.scope = None
        if kind is None:
            return
        if not self.has_submitted and (
            not self.is_promised or issubclass(kind, _errors.BusyError)
        ):
            return
        why = str(error) or kind.__name__
        for communicator in self.communicators:
            communicator.abort(why)
        for abort in self.aborts:  # of the groups that were split from them, too
            abort(why)
