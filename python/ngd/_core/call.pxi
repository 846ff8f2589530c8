# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: collectives, from their description to their completion.
#
# A signal handler may raise an exception between any two bytecodes of Python. This file has no
# bytecodes, so an exception is raised only in a wait of the core, which checks for signals. Actions
# that no exception may separate are therefore one call into this file: to submit a collective and
# record that, or to submit it and wait. The Call refers to the arrays that the core uses, because
# an exception deletes the frames of Python that refer to them.

# For each type number of NumPy: 1 + the dtype of ngd, or 0 if ngd does not have it.
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
    """Keep an object alive forever if MPI still uses memory of a collective that failed."""
    if cpp_mpi_holds_memory():
        Py_INCREF(memory)


cdef inline int _dtype_of(ndarray array) noexcept:
    """Return 1 + the number of the array's dtype in ngd; 0 for a dtype that ngd does not have."""
    cdef int number = PyArray_TYPE(array)
    if 0 <= number < TYPE_NUMBERS:
        return _dtypes[number]
    return 1 + <int> DType.BF16 if number == _bfloat16_number else 0


cdef inline void _set_array(
    CallState& state, int dtype, ndarray source, ndarray destination
) noexcept:
    """Set the dtype and the two addresses of a collective. `dtype` is a result of `_dtype_of`."""
    state.collective.dtype = <DType> (dtype - 1)
    state.collective.source = PyArray_DATA(source)
    state.collective.destination = PyArray_DATA(destination)


cdef int _add_array(CallState& state, ndarray source, ndarray destination) except -1:
    """Add a source and its destination to a collective on a list of arrays."""
    cdef Tensor array
    array.dtype = <DType> (_dtype_of(source) - 1)
    array.count = PyArray_SIZE(source)
    array.source = PyArray_DATA(source)
    array.destination = PyArray_DATA(destination)
    state.add_array(array, <const int64_t*> PyArray_DIMS(source), PyArray_NDIM(source))
    return 0


cdef class Sequence:
    """The sequence of the collectives of a step. At the first one, the ranks compare sequences."""

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
    """A collective on an array, on a list of arrays, or on memory by address.

    It refers to its arrays until the collective is complete. collective.hpp defines count, root,
    counts and receive_counts for each kind.
    """

    cdef Communicator communicator
    cdef object kept
    cdef unique_ptr[CallState] state
    cdef Call keeper  # an empty call, which gets the arrays if this call is deleted too early
    cdef Call next  # the next one in a communicator's list of dropped calls
    cdef cbool over
    cdef readonly bint started

    @staticmethod
    def on_array(
        Communicator communicator not None, str kind, str op, ndarray source, ndarray destination,
        uint64_t count, int root=0, *, str algorithm="auto", str site="", Sequence sequence=None,
        counts=None, receive_counts=None, int tag=0, shape=(), uint64_t more=0,
    ) -> Call:
        """Return a call on contiguous arrays of one of ngd's dtypes. It does not start.

        All ranks must give the same `shape`, apart from axes of length 1, and the same number
        `more`, such as an axis (comm/layout.hpp).
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
        """Return a call that reduces or broadcasts each array of a list; see comm/grouped.hpp."""
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
        """Return a call on memory by address. The caller keeps the memory until it is complete."""
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
        """Return a call whose collective is not set yet. It keeps the objects in `kept` alive."""
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
        """Submit the collective. If a BusyError is raised, the collective was not submitted."""
        self.communicator.release_dropped()
        self.submit(False)

    def wait(self, double timeout) -> None:
        """Wait until the collective is complete.

        If it takes more than `timeout` seconds, the group is closed.
        """
        if self.over:
            return
        with nogil:
            self.state.get().wait(dereference(self.communicator.communicator), timeout)
        self.end()

    def finish(self, double timeout) -> None:
        """Wait until the collective is complete, directly after its start.

        If another thread uses the group, wait for that thread too instead of raising a BusyError.
        """
        with nogil:
            self.state.get().finish(dereference(self.communicator.communicator), timeout)
        self.end()

    def wait_for(self, double seconds) -> bool:
        """Wait for at most some seconds, and return True if the collective is complete."""
        return self.over or self.ends_within(self.communicator, seconds) != 0

    cdef int submit(self, cbool follows) except -1:
        """Submit the collective.

        `follows` means that a collective of the same public call was submitted before. Then a
        BusyError would come too late, so the call waits while another thread uses the group.
        """
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
        """Wait for at most some seconds, and return True if the collective is complete.

        The communicator is an argument, because a dropped call does not refer to it. A dropped call
        is one that was deleted before its collective was complete.
        """
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
        # The core may still use the arrays. They move to the keeper, which is added to the
        # communicator's list of dropped calls. The keeper does not refer to the communicator, so
        # there is no cycle of references. Nothing is allocated here.
        cdef Call keeper = self.keeper
        if not self.started or self.over or self.communicator is None:
            return
        keeper.kept = self.kept
        keeper.state.swap(self.state)
        keeper.started = True
        keeper.next = self.communicator.dropped
        self.communicator.dropped = keeper


def start_calls(list calls) -> None:
    """Submit the collectives of one public call. All of them are on the same group."""
    cdef Call each
    cdef cbool follows = False
    if calls:
        (<Call?> calls[0]).communicator.release_dropped()
    for each in calls:
        each.submit(follows)
        follows = True


def run_calls(list calls, double timeout) -> None:
    """Submit the collectives of one public call, and wait until they are complete."""
    cdef Call each
    start_calls(calls)
    for each in calls:
        each.finish(timeout)


cdef class AbortOnError:
    """A context for a call that runs several collectives. An exception inside closes the groups.

    After an exception, this rank has not run the same collectives as the other ranks. So the groups
    are aborted, and each function of `aborts` is called with the reason.

    An exception before the first collective closes no group, except if `is_promised` is True. Then
    it does, unless it is a BusyError.
    """

    cdef list communicators, aborts
    cdef cbool is_promised
    cdef cbool has_submitted  # True after the first collective of the block

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
        for abort in self.aborts:  # these also abort the groups that were split from them
            abort(why)
