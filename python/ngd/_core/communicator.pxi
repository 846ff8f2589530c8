# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: groups of ranks.

# NumPy's number of a dtype -> ngd's + 1; 0 = none.
cdef enum:
    TYPE_NUMBERS = 24  # of NumPy's own types
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

cdef dict _quick_kinds = {
    "all_reduce": <int> Kind.AllReduce, "reduce_scatter": <int> Kind.ReduceScatter,
    "all_gather": <int> Kind.AllGather, "broadcast": <int> Kind.Broadcast,
    "all_to_all": <int> Kind.AllToAll,
}
cdef dict _reductions = {
    "none": 0, "sum": <int> ReduceOp.Sum, "mean": <int> ReduceOp.Mean, "min": <int> ReduceOp.Min,
    "max": <int> ReduceOp.Max, "prod": <int> ReduceOp.Prod,
}


cdef void _keep_for_mpi(object memory) noexcept:
    """Keep an object for good if MPI still uses memory of a collective that failed."""
    if cpp_mpi_holds_memory():
        Py_INCREF(memory)


cdef int _dtype_of(ndarray array) noexcept:
    """Ngd's dtype + 1; 0 where it has none."""
    cdef int number = PyArray_TYPE(array)
    if 0 <= number < TYPE_NUMBERS:
        return _dtypes[number]
    return 1 + <int> DType.BF16 if number == _bfloat16_number else 0


cdef int _plain_dtype(array) noexcept:
    """Return ngd's dtype + 1 of a contiguous NumPy array, and 0 for anything else."""
    if type(array) is not ndarray or not PyArray_ISCARRAY_RO(<ndarray> array):
        return 0
    return _dtype_of(<ndarray> array)


cdef cbool _set_op_and_root(Collective& collective, op, root) noexcept:
    """Set the op and the root, or return False: op is not a name, or root not a small int."""
    cdef int overflow = 0
    cdef long number
    reduction = _reductions.get(op) if type(op) is str else None
    if reduction is None or type(root) is not int:
        return False
    number = PyLong_AsLongAndOverflow(root, &overflow)
    if overflow != 0 or number != <int> number:
        return False
    collective.op = <ReduceOp> <int> reduction
    collective.root = <int> number
    return True


cdef cbool _overlap(ndarray a, ndarray b) noexcept:
    """Whether two contiguous arrays share memory."""
    cdef const char* first = <const char*> PyArray_DATA(a)
    cdef const char* second = <const char*> PyArray_DATA(b)
    return first < second + PyArray_NBYTES(b) and second < first + PyArray_NBYTES(a)


cdef Layout _layout_of(ndarray array, int64_t* extents, uint64_t* room) noexcept:
    cdef int i
    for i in range(PyArray_NDIM(array)):
        extents[i] = PyArray_DIMS(array)[i]
    return layout_of_shape(extents, PyArray_NDIM(array), 0, room)


cdef class Sequence:
    """What a rank's step says of all its collectives: compared with the peers' at the first one."""

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


cdef class Mark:
    """While it lives, /proc/PID/maps of this process has a line that ends with this name."""

    cdef unique_ptr[CppMark] mark

    def __init__(self, str name):
        self.mark.reset(new CppMark(_bytes(name)))


@cython.no_gc_clear
cdef class Communicator:
    """A group of ranks; every call is collective over it."""

    cdef unique_ptr[CppCommunicator] communicator
    cdef Communicator parent  # which this one must not outlive
    cdef list dropped  # Pendings that nobody waits for
    cdef UnderWay call  # that makes several collectives
    cdef double timeout

    def __cinit__(self):
        self.timeout = cpp_timeout_seconds()
        self.dropped = []

    def __dealloc__(self):
        if self.communicator and self.communicator.get().in_child():
            self.communicator.release()  # only the parent may destroy it: docs/adr/0046
        with nogil:  # over MPI to leave takes a while
            self.communicator.reset()
        _keep_for_mpi(self.dropped)

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

    @staticmethod
    def make_hierarchical(int fortran_handle, double timeout) -> Communicator:
        """The same ranks, over shared memory inside a host and over MPI between hosts."""
        cdef Communicator result = Communicator.__new__(Communicator)
        with nogil:
            result.communicator = make_hierarchical_communicator(
                fortran_handle, timeout, _signal_pending
            )
        result.communicator.get().set_interrupt(_signal_pending)
        return result

    @property
    def name(self) -> str:
        """self, shm, mpi or hierarchical."""
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

    @property
    def has_common_memory(self) -> bool:
        """Whether the ranks can have memory in common."""
        return self.communicator.get().has_common_memory()

    @property
    def is_over(self) -> bool:
        """Of a group of several ranks: whether it is closed, or has failed."""
        cdef cbool over
        with nogil:  # a thread that is in the group may hold its lock for a moment
            over = self.communicator.get().is_over()
        return over

    def enlist(self) -> int:
        """Make the group known to XLA's programs, by a number; it must live as long as they do."""
        return cpp_enlist(dereference(self.communicator.get()))

    def make_common(self, size_t nbytes) -> int:
        """Make memory for all ranks of the group, and return its number for open_common."""
        cdef uint64_t number
        with nogil:  # a system call per MiB
            number = self.communicator.get().make_common(nbytes)
        return number

    def open_common(self, int maker, uint64_t number, size_t nbytes) -> CommonMemory:
        """What a rank of the group has made; every rank opens it, that one too."""
        cdef CommonMemory result = CommonMemory.__new__(CommonMemory)
        result.maker, result.number, result.nbytes = maker, number, nbytes
        with nogil:
            result.memory = self.communicator.get().open_common(maker, number)
        return result

    def map_privately(self, CommonMemory common not None) -> None:
        """Map memory that this group has opened a second time, copy on write."""
        if common.mapping.get() == NULL:
            common.mapping = self.communicator.get().map_common(
                common.maker, common.number, common.nbytes
            )

    def submit(
        self, str kind, str op, str dtype, uint64_t count, int root, size_t source,
        size_t destination, *, str site="", counts=None, receive_counts=None, int tag=0,
    ) -> int:
        """Start a collective on memory by address, which the caller keeps until wait returns.

        collective.hpp says what count, root, counts and receive_counts mean to each kind.
        """
        cdef Collective collective
        cdef vector[uint64_t] blocks, received
        cdef string text = _bytes(kind)
        cdef CppWork work
        collective.kind = kind_named(string_view(text.data(), text.size()))
        text = _bytes(op)
        collective.op = reduce_op_named(string_view(text.data(), text.size()))
        collective.dtype = _dtype(dtype)
        collective.source = <const void*> source
        collective.destination = <void*> destination
        collective.count = count
        collective.root = root
        collective.tag = tag
        if counts is not None:
            blocks = _uint64s(counts)
            self._check_counts(blocks)
            collective.counts = blocks.data()
        if receive_counts is not None:
            received = _uint64s(receive_counts)
            self._check_counts(received)
            collective.receive_counts = received.data()
        collective.site = _interned(_bytes(site))
        with nogil:
            validate(
                collective, self.communicator.get().rank(), self.communicator.get().size()
            )
            work = self.communicator.get().submit(collective)
        return work.sequence

    def submit_next(self, waiting, numbers) -> None:
        """Submit the first of a deque of (args, kwargs), and move its number to a list's end.

        Where that raises, nothing was submitted and nothing has moved: no interrupt comes between.
        """
        args, kwargs = waiting[0]
        number = self.submit(*args, **kwargs)
        waiting.popleft()
        numbers.append(number)

    def quick(self, str kind, array, out, op, root=0) -> object:
        """Run a collective from an array to `out`, or to a new array, for the caller's caller.

        Return None, and start nothing, unless all arguments are plain: contiguous NumPy arrays or
        lists of them, blocks along the first axis, and an op by name. The call site must be known,
        too. After None the caller prepares the collective itself (comm/plans.py).
        """
        cdef Collective collective
        if not _set_op_and_root(collective, op, root):
            return None
        if type(array) is list:
            return self._quick_list(kind, <list> array, out, collective)
        return self._quick_array(kind, array, out, collective)

    cdef object _quick_array(self, str kind, array, out, Collective& collective):
        """Run a collective on one array, or return None; see quick."""
        cdef Layout layout
        cdef int64_t[NPY_MAXDIMS] extents
        cdef uint64_t[NPY_MAXDIMS] room
        cdef CppWork work
        cdef ndarray source, destination
        cdef cbool blocks
        cdef int dtype = _plain_dtype(array)
        if dtype == 0:
            return None
        source = <ndarray> array
        collective.kind = <Kind> <int> _quick_kinds[kind]
        blocks = collective.kind != Kind.AllReduce and collective.kind != Kind.Broadcast
        destination = self._quick_destination(collective.kind, blocks, source, out)
        if destination is None:
            return None
        collective.site = _caller_site()
        if collective.site == NULL:
            return None
        collective.dtype = <DType> (dtype - 1)
        collective.count = PyArray_SIZE(source)
        if collective.kind == Kind.ReduceScatter or collective.kind == Kind.AllToAll:
            collective.count //= self.communicator.get().size()
        collective.source = PyArray_DATA(source)
        collective.destination = PyArray_DATA(destination)
        if PyArray_NDIM(source) > 1:
            layout = _layout_of(source, extents, room)
            if layout.hash != 0:
                collective.layout = &layout
        try:
            with nogil:
                work = self.communicator.get().submit(collective)
                self.communicator.get().finish(work, self.timeout)
        except BaseException:
            _keep_for_mpi((source, destination))
            raise
        return destination

    cdef list _quick_list(self, str kind, list arrays, out, Collective& pattern):
        """Run a collective on the arrays of a list, or return None; see quick."""
        cdef vector[Tensor] tensors
        cdef Tensor tensor
        cdef unique_ptr[CppGrouped] grouped
        cdef ndarray source, destination
        cdef int64_t[NPY_MAXDIMS] extents
        cdef uint64_t[NPY_MAXDIMS] room
        cdef list results = []
        cdef int dtype
        cdef Py_ssize_t i
        if not arrays or not (out is None or type(out) is list and len(out) == len(arrays)):
            return None
        pattern.kind = <Kind> <int> _quick_kinds[kind]
        if pattern.kind != Kind.AllReduce and pattern.kind != Kind.Broadcast:
            return None
        for i in range(len(arrays)):
            dtype = _plain_dtype(arrays[i])
            if dtype == 0:
                return None
            source = <ndarray> arrays[i]
            destination = self._quick_destination(
                pattern.kind, False, source, None if out is None else out[i]
            )
            if destination is None:
                return None
            results.append(destination)
            tensor.dtype = <DType> (dtype - 1)
            tensor.count = PyArray_SIZE(source)
            tensor.source = PyArray_DATA(source)
            tensor.destination = PyArray_DATA(destination)
            tensor.layout = _layout_of(source, extents, room).hash
            tensors.push_back(tensor)
        pattern.site = _caller_site()
        if pattern.site == NULL:
            return None
        try:
            with nogil:
                grouped.reset(new CppGrouped(dereference(self.communicator), pattern, tensors))
                grouped.get().finish(self.timeout)
        except BaseException:
            _keep_for_mpi((arrays, results))
            raise
        return results

    cdef ndarray _quick_destination(self, Kind kind, cbool blocks, ndarray source, out):
        """`out`, or a new array, where it and the source are of fitting shapes; else None."""
        cdef int size = self.communicator.get().size(), axes = PyArray_NDIM(source)
        cdef npy_intp[NPY_MAXDIMS] shape
        cdef ndarray destination
        memcpy(shape, PyArray_DIMS(source), axes * sizeof(npy_intp))
        if blocks:
            if axes == 0 or (kind != Kind.AllGather and shape[0] % size != 0):
                return None
            if kind == Kind.AllGather:
                shape[0] *= size
            elif kind == Kind.ReduceScatter:
                shape[0] //= size
        if out is None:
            return PyArray_EMPTY(axes, shape, PyArray_TYPE(source), 0)
        if type(out) is not ndarray:
            return None
        destination = <ndarray> out
        if (
            PyArray_TYPE(destination) != PyArray_TYPE(source)
            or not PyArray_ISCARRAY(destination)
            or PyArray_NDIM(destination) != axes
            or not PyArray_CompareLists(PyArray_DIMS(destination), shape, axes)
        ):
            return None
        if _overlap(source, destination) and (
            blocks or PyArray_DATA(source) != PyArray_DATA(destination)
        ):
            return None
        return destination

    def quick_barrier(self) -> bool:
        """Return True when every rank has come; False, at once, where the caller is no user's."""
        cdef Collective collective
        cdef CppWork work
        collective.site = _caller_site()
        if collective.site == NULL:
            return False
        with nogil:
            work = self.communicator.get().submit(collective)
            self.communicator.get().finish(work, self.timeout)
        return True

    def wait(self, uint64_t sequence, double timeout) -> None:
        """Return when the result of that collective is there."""
        cdef CppWork work
        work.sequence = sequence
        with nogil:
            self.communicator.get().wait(work, timeout)

    def wait_for(self, uint64_t sequence, double seconds) -> bool:
        """Whether the result of that collective is there after at most so many seconds."""
        cdef CppWork work
        cdef cbool there
        work.sequence = sequence
        with nogil:
            there = self.communicator.get().wait_for(work, seconds)
        return there

    def done(self, uint64_t sequence) -> bool:
        """Whether the result of that collective is there; progresses what can be."""
        return self.wait_for(sequence, 0.0)

    def split(self, int color, int key) -> Communicator | None:
        """The group of those who give my color, by key; None for a negative color."""
        cdef Communicator result = Communicator.__new__(Communicator)
        cdef cbool follows = self.call is not None and self.call.engaged
        with nogil:
            if follows:
                result.communicator = self.communicator.get().split_next(
                    color, key, self.timeout
                )
            else:
                result.communicator = self.communicator.get().split(color, key)
        if self.call is not None:
            self.call.engaged = True
        if not result.communicator:
            return None
        result.parent = self
        result.communicator.get().set_interrupt(_signal_pending)
        return result

    def next_group_number(self) -> int:
        """Of a world over MPI: the first number that no group of this rank has."""
        cdef int number
        with nogil:
            number = cpp_next_group_number(dereference(self.communicator))
        return number

    def group_of(self, members, int number, str key, double timeout) -> Communicator:
        """A group of a world over MPI, made by its members alone; see communicator.hpp."""
        cdef Communicator result = Communicator.__new__(Communicator)
        cdef vector[int] ranks = _ints(members)
        cdef string text = _bytes(key)
        with nogil:
            result.communicator = make_group_of(
                dereference(self.communicator), ranks, number, text, timeout, _signal_pending
            )
        result.parent = self
        result.communicator.get().set_interrupt(_signal_pending)
        return result

    def stats(self) -> list:
        """What each call site has cost: (kind, op, site, calls, bytes, s, s waited, last)."""
        cdef vector[CallStats] entries
        cdef size_t i
        with nogil:
            entries = self.communicator.get().stats()
        return [
            (
                _text(kind_name(entries[i].kind)), _text(reduce_op_name(entries[i].op)),
                _str(entries[i].site), entries[i].calls, entries[i].bytes, entries[i].seconds,
                entries[i].waited_seconds, entries[i].last,
            )
            for i in range(entries.size())
        ]

    cdef int _check_counts(self, const vector[uint64_t]& counts) except -1:
        if counts.size() != <size_t> self.communicator.get().size():
            raise ValueError(
                f"expected a number for each of {self.communicator.get().size()} ranks; "
                f"got {counts.size()}"
            )
        return 0

    cdef int look_at_dropped(self) except -1:
        """Let go of what is over."""
        cdef list dropped = self.dropped
        cdef Pending each
        if not dropped:
            return 0
        self.dropped = []
        try:
            for each in dropped:
                each._has_ended(self, 0.0)
        except (_errors.BusyError, _errors.GroupClosedError):
            pass  # another thread is in the group; or the call that follows is refused by its name
        finally:
            self.dropped += [each for each in dropped if not (<Pending> each).over]
        return 0

    def abort(self, str traceback) -> None:
        """Tell the peers that this rank failed, and close."""
        cdef string text = _bytes(traceback)
        with nogil:
            self.communicator.get().abort(text)

    def close(self) -> None:
        """Leave in good order; idempotent."""
        with nogil:
            self.communicator.get().close()
        _keep_for_mpi(self.dropped)
        self.dropped = []
