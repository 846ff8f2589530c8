# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: collectives on arrays, from before they are submitted until they are over.
#
# A signal's handler may raise between any two bytecodes of Python, and never in here but where the
# engine waits and asks for it. So what must not come apart is one crossing: to submit and to know
# it, to submit and to wait. And memory that the engine uses is kept by what is submitted, not by
# the frames of Python that an exception leaves.

@cython.no_gc_clear
cdef class Pending:
    """One collective, or one on many arrays, which keeps its arrays until it is over."""

    cdef Communicator communicator
    cdef object kept
    cdef Pending heir  # an empty one, made before the collective starts: see __dealloc__
    cdef Collective collective
    cdef vector[uint64_t] counts, receive_counts, room
    cdef vector[Layout] layout  # one at the most, of the numbers in room
    cdef vector[Tensor] tensors
    cdef unique_ptr[CppGrouped] grouped
    cdef CppWork work
    cdef cbool many, over
    cdef readonly bint started

    @staticmethod
    def one(
        Communicator communicator, str kind, str op, ndarray source, ndarray destination,
        uint64_t count, int root=0, *, str algorithm="auto", str site="", Sequence sequence=None,
        counts=None, receive_counts=None, int tag=0, shape=(), uint64_t more=0,
    ) -> Pending:
        """A collective on contiguous arrays of one of ngd's dtypes.

        collective.hpp says what count, root, counts and receive_counts mean to each kind. The ranks
        compare `shape`, extents of 1 aside, and `more`: layout.hpp.
        """
        cdef vector[int64_t] extents = _int64s(shape)
        cdef Pending result = Pending.__new__(Pending)
        result.communicator = communicator
        result.kept = source, destination, sequence
        result._fill(kind, op, root, algorithm, site)
        result.collective.dtype = <DType> (_dtype_of(source) - 1)
        result.collective.source = PyArray_DATA(source)
        result.collective.destination = PyArray_DATA(destination)
        result.collective.count = count
        result.collective.tag = tag
        if sequence is not None:
            result.collective.program = &sequence.identity
        if counts is not None:
            result.counts = _uint64s(counts)
            communicator._check_counts(result.counts)
            result.collective.counts = result.counts.data()
        if receive_counts is not None:
            result.receive_counts = _uint64s(receive_counts)
            communicator._check_counts(result.receive_counts)
            result.collective.receive_counts = result.receive_counts.data()
        result.room.resize(extents.size())
        result.layout.push_back(layout_of_shape(
            extents.data(), <int> extents.size(), more, result.room.data()
        ))
        if result.layout[0].hash != 0:
            result.collective.layout = &result.layout[0]
        validate(
            result.collective, communicator.communicator.get().rank(),
            communicator.communicator.get().size()
        )
        return result

    @staticmethod
    def each(
        Communicator communicator, str kind, str op, int root, list sources, list destinations, *,
        str algorithm="auto", str site="",
    ) -> Pending:
        """An all_reduce or a broadcast of each of many arrays; see comm/grouped.hpp."""
        cdef Pending result = Pending.__new__(Pending)
        cdef Tensor tensor
        cdef ndarray source, destination
        cdef int64_t[NPY_MAXDIMS] extents
        cdef uint64_t[NPY_MAXDIMS] room
        result.communicator = communicator
        result.kept = sources, destinations
        result.many = True
        result._fill(kind, op, root, algorithm, site)
        for source, destination in zip(sources, destinations):
            tensor.dtype = <DType> (_dtype_of(source) - 1)
            tensor.count = PyArray_SIZE(source)
            tensor.source = PyArray_DATA(source)
            tensor.destination = PyArray_DATA(destination)
            tensor.layout = _layout_of(source, extents, room).hash
            result.tensors.push_back(tensor)
        return result

    cdef int _fill(self, str kind, str op, int root, str algorithm, str site) except -1:
        cdef string text = _bytes(kind)
        self.collective.kind = kind_named(string_view(text.data(), text.size()))
        text = _bytes(op)
        self.collective.op = reduce_op_named(string_view(text.data(), text.size()))
        text = _bytes(algorithm)
        self.collective.algorithm = algorithm_named(string_view(text.data(), text.size()))
        self.collective.root = root
        self.collective.site = _interned(_bytes(site))
        return 0

    cdef int _start(self, cbool follows) except -1:
        """Submit. follows: another one of the same call was before, so Busy would be too late."""
        cdef CppCommunicator* group = self.communicator.communicator.get()
        cdef double timeout = self.communicator.timeout
        cdef UnderWay call = self.communicator.call
        follows = follows or (call is not None and call.engaged)
        self.heir = Pending.__new__(Pending)
        with nogil:
            if self.many:
                self.grouped.reset(
                    new CppGrouped(dereference(group), self.collective, self.tensors)
                )
            elif follows:
                self.work = group.submit_next(self.collective, timeout)
            else:
                self.work = group.submit(self.collective)
        self.started = True
        if call is not None:
            call.engaged = True
        return 0

    cdef void _end(self) noexcept:
        self.over = True
        self.kept = None
        self.heir = None

    cdef int _has_ended(self, Communicator communicator, double seconds) except -1:
        """As wait_for; of a pending that may have been dropped, by its communicator."""
        cdef cbool there
        with nogil:
            if self.many:
                there = self.grouped.get().wait_for(seconds)
            else:
                there = communicator.communicator.get().wait_for(self.work, seconds)
        if there:
            self._end()
        return there

    def wait(self, double timeout) -> None:
        """Return when it is over; `timeout` is a deadline after which the group is closed."""
        if self.over:
            return
        with nogil:
            if self.many:
                self.grouped.get().wait(timeout)
            else:
                self.communicator.communicator.get().wait(self.work, timeout)
        self._end()

    def finish(self, double timeout) -> None:
        """Wait, for a call that has just submitted it: never Busy."""
        with nogil:
            if self.many:
                self.grouped.get().finish(timeout)
            else:
                self.communicator.communicator.get().finish(self.work, timeout)
        self._end()

    def wait_for(self, double seconds) -> bool:
        """Whether it is over after at most so many seconds."""
        return self.over or self._has_ended(self.communicator, seconds) != 0

    def __dealloc__(self):
        # Nobody waits for it any more, and the engine goes on with its arrays: an heir has them,
        # which the communicator keeps, and not it the communicator.
        cdef Pending heir
        if not self.started or self.over or self.communicator is None:
            return
        heir = self.heir
        heir.kept = self.kept
        heir.counts.swap(self.counts)
        heir.receive_counts.swap(self.receive_counts)
        heir.room.swap(self.room)
        heir.layout.swap(self.layout)
        heir.tensors.swap(self.tensors)
        heir.grouped.swap(self.grouped)
        heir.work = self.work
        heir.many = self.many
        heir.started = True
        try:
            self.communicator.dropped.append(heir)
        except MemoryError:
            Py_INCREF(heir)  # nothing can free it any more, and nothing may


def start(list pending) -> None:
    """Submit collectives that belong to one call, of one group."""
    cdef Pending each
    cdef cbool follows = False
    if pending:
        (<Pending?> pending[0]).communicator.look_at_dropped()
    for each in pending:
        each._start(follows)
        follows = True


def run(list pending, double timeout) -> None:
    """Submit collectives that belong to one call, and wait for them."""
    cdef Pending each
    start(pending)
    for each in pending:
        each.finish(timeout)


cdef class UnderWay:
    """A context: from before the first to after the last collective of a call that makes several.

    Who leaves it by an exception in between has left the groups' common sequence, so that it
    closes them: each of `aborts` is called with the reason. `promised`: it has so before the first
    one, too, unless another thread was in the group.
    """

    cdef list communicators, aborts
    cdef cbool promised
    cdef cbool engaged  # a collective of the call was submitted

    def __init__(self, list communicators, list aborts, cbool promised):
        self.communicators, self.aborts, self.promised = communicators, aborts, promised

    def __enter__(self) -> None:
        cdef Communicator communicator
        for communicator in self.communicators:
            communicator.call = self

    def __exit__(self, kind, error, trace) -> None:
        cdef Communicator communicator
        cdef str why
        for communicator in self.communicators:
            communicator.call = None
        if kind is None:
            return
        if not self.engaged and (not self.promised or issubclass(kind, _errors.BusyError)):
            return
        why = str(error) or kind.__name__
        for communicator in self.communicators:
            communicator.abort(why)
        for abort in self.aborts:  # with the groups that were split from them
            abort(why)
