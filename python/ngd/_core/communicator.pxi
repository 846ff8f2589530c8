# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: groups of ranks.

cdef class Mark:
    """A mark by which other processes find this one.

    While this object exists, a line of /proc/PID/maps ends with the name of the mark.
    """

    cdef unique_ptr[CppMark] mark

    def __init__(self, str name):
        self.mark.reset(new CppMark(_bytes(name)))


@cython.final
@cython.no_gc_clear
cdef class Communicator:
    """A group of ranks. All ranks run the same collectives in the same order."""

    cdef unique_ptr[CppCommunicator] communicator
    cdef Communicator parent  # the group that this one was made from, which must live longer
    cdef Call dropped  # the first of the calls that were deleted before they were complete
    cdef AbortOnError scope  # the context of the public call that runs several collectives now
    cdef double timeout

    def __cinit__(self):
        self.timeout = cpp_timeout_seconds()

    def __dealloc__(self):
        if self.communicator and self.communicator.get().in_child():
            self.communicator.release()  # a forked child must not destroy it: docs/adr/0046
        with nogil:  # over MPI, the destructor takes some time
            self.communicator.reset()
        self.free_dropped()

    @staticmethod
    def make_self() -> Communicator:
        """Return a group of one rank."""
        cdef Communicator result = Communicator.__new__(Communicator)
        result.communicator = make_self_communicator()
        return result

    @staticmethod
    def make_shm(str job_key, int rank, int size, double timeout) -> Communicator:
        """Return a group of ranks of one host, over shared memory.

        The ranks have the same `job_key`. Their rendezvous takes at most `timeout` seconds.
        """
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
        """Return a group of the ranks of an MPI communicator; -1 means MPI_COMM_WORLD."""
        cdef Communicator result = Communicator.__new__(Communicator)
        with nogil:
            result.communicator = make_mpi_communicator(fortran_handle, timeout)
        result.communicator.get().set_interrupt(_signal_pending)
        return result

    @staticmethod
    def make_hierarchical(int fortran_handle, double timeout) -> Communicator:
        """Return a group of the ranks of an MPI communicator, as `make_mpi` does.

        It uses shared memory inside a host, and MPI only between hosts.
        """
        cdef Communicator result = Communicator.__new__(Communicator)
        with nogil:
            result.communicator = make_hierarchical_communicator(
                fortran_handle, timeout, _signal_pending
            )
        result.communicator.get().set_interrupt(_signal_pending)
        return result

    @property
    def name(self) -> str:
        """The transport: self, shm, mpi or hierarchical."""
        return _text(self.communicator.get().name())

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        return self.communicator.get().rank()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.communicator.get().size()

    @property
    def local_rank(self) -> int:
        """The number of this rank among the ranks of its host."""
        return self.communicator.get().local_rank()

    @property
    def local_size(self) -> int:
        """The number of ranks on this host."""
        return self.communicator.get().local_size()

    @property
    def has_common_memory(self) -> bool:
        """True if the ranks can share memory."""
        return self.communicator.get().common_memory() != NULL

    @property
    def is_over(self) -> bool:
        """True if a group of several ranks is closed or has failed."""
        cdef cbool over
        with nogil:  # another thread may hold the lock of the group for a moment
            over = self.communicator.get().is_over()
        return over

    def register_for_xla(self) -> int:
        """Register the group for XLA's custom calls, and return its number.

        The group must exist until the last of these calls has ended.
        """
        return cpp_register_group(dereference(self.communicator.get()))

    def make_common(self, size_t nbytes) -> int:
        """Allocate memory that all ranks of the group can open, and return its number."""
        cdef uint64_t number
        with nogil:  # a system call per MiB
            number = common_memory_of(dereference(self.communicator)).make_common(nbytes)
        return number

    def open_common(self, int maker, uint64_t number, size_t nbytes) -> CommonMemory:
        """Open memory that rank `maker` of the group has allocated.

        All ranks of the group call this method, including `maker`.
        """
        cdef CommonMemory result = CommonMemory.__new__(CommonMemory)
        result.maker, result.number, result.nbytes = maker, number, nbytes
        with nogil:
            result.memory = common_memory_of(dereference(self.communicator)).open_common(
                maker, number
            )
        return result

    def map_privately(self, CommonMemory common not None) -> None:
        """Map common memory of this group in this process once more, copy on write.

        Do nothing if it has this private mapping already.
        """
        if common.mapping.get() == NULL:
            common.mapping = common_memory_of(dereference(self.communicator)).map_common(
                common.maker, common.number, common.nbytes
            )

    def quick(self, str kind, array, out, op, root=0) -> object:
        """Run a collective on the fast path, and return `out` or a new array with the result.

        Return None, and start nothing, if the call is not plain. A call is plain if its arguments
        are contiguous NumPy arrays or lists of them, with blocks along the first axis, and an op by
        name. The function that called this method must have been called from Python code outside of
        ngd, whose line is the call site. After None, the caller prepares the collective itself
        (comm/plans.py).
        """
        return _run_quick(self, kind, array, out, op, root)

    def quick_barrier(self) -> bool:
        """Run a barrier and return True.

        If the caller is not Python code outside of ngd, there is no call site: start nothing, and
        return False.
        """
        cdef Collective collective
        collective.site = _caller_site()
        if collective.site == NULL:
            return False
        with nogil:
            run_collective(dereference(self.communicator), collective, self.timeout)
        return True

    def split(self, int color, int key) -> Communicator | None:
        """Return the group of the ranks with this color, ordered by key.

        Return None if `color` is negative.
        """
        cdef Communicator result = Communicator.__new__(Communicator)
        cdef cbool follows = self.scope is not None and self.scope.has_submitted
        with nogil:
            if follows:
                result.communicator = split_retrying(
                    dereference(self.communicator), color, key, self.timeout
                )
            else:
                result.communicator = self.communicator.get().split(color, key)
        if self.scope is not None:
            self.scope.has_submitted = True
        if not result.communicator:
            return None
        result.parent = self
        result.communicator.get().set_interrupt(_signal_pending)
        return result

    def next_group_number(self) -> int:
        """Return the lowest number above those of all groups of this rank, in a world over MPI."""
        cdef int number
        with nogil:
            number = cpp_next_group_number(dereference(self.communicator))
        return number

    def group_of(self, members, int number, str key, double timeout) -> Communicator:
        """Return a group of some ranks of a world over MPI; see make_group_of in communicator.hpp.

        Only these ranks call this method.
        """
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
        """Return (kind, op, site, calls, bytes, seconds, seconds waited, last) per call site.

        `last` has, for each rank, the number of calls in which it arrived last.
        """
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

    cdef int release_dropped(self) except -1:
        """Release the dropped calls (deleted before they were complete) that are complete now."""
        cdef Call each, rest = self.dropped
        if rest is None:
            return 0
        self.dropped = None
        try:
            each = rest
            while each is not None:
                each.ends_within(self, 0.0)
                each = each.next
        except (_errors.BusyError, _errors.GroupClosedError):
            pass  # another thread uses the group, or the caller's collective raises the same error
        finally:
            while rest is not None:
                each, rest = rest, rest.next
                if not each.over:
                    each.next = self.dropped
                    self.dropped = each
        return 0

    cdef void free_dropped(self) noexcept:
        """Release all dropped calls, one by one.

        If the list were released as a whole, the recursion could overflow the stack.
        """
        _keep_for_mpi(self.dropped)
        while self.dropped is not None:
            self.dropped = self.dropped.next

    def abort(self, str traceback) -> None:
        """Notify the other ranks that this rank has failed, and close the group."""
        cdef string text = _bytes(traceback)
        with nogil:
            self.communicator.get().abort(text)

    def close(self) -> None:
        """Leave the group. A second call does nothing."""
        with nogil:
            self.communicator.get().close()
        self.free_dropped()
