# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: groups of ranks.

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
        self, str kind, str op, str dtype, uint64_t count, int root, size_t source,
        size_t destination, *, str algorithm="auto", str site="", Sequence sequence=None,
        counts=None, receive_counts=None, int tag=0,
    ) -> int:
        """Start a collective on memory by address, which the caller keeps until wait returns.

        collective.hpp says what count, root, counts and receive_counts mean to each kind.
        """
        cdef Collective collective
        cdef vector[uint64_t] blocks, received
        cdef string text = _bytes(kind), site_bytes = _bytes(site)
        cdef CppWork work
        collective.kind = kind_named(string_view(text.data(), text.size()))
        text = _bytes(op)
        collective.op = reduce_op_named(string_view(text.data(), text.size()))
        text = _bytes(algorithm)
        collective.algorithm = algorithm_named(string_view(text.data(), text.size()))
        collective.dtype = _dtype(dtype)
        collective.count = count
        collective.root = root
        collective.tag = tag
        collective.source = <const void*> source
        collective.destination = <void*> destination
        if counts is not None:
            blocks = counts
            self._check_counts(blocks)
            collective.counts = blocks.data()
        if receive_counts is not None:
            received = receive_counts
            self._check_counts(received)
            collective.receive_counts = received.data()
        collective.site = site_bytes.c_str()
        if sequence is not None:
            collective.program = &sequence.identity
        with nogil:
            validate(
                collective, self.communicator.get().rank(), self.communicator.get().size()
            )
            work = self.communicator.get().submit(collective)
        return work.sequence

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
        with nogil:
            result.communicator = self.communicator.get().split(color, key)
        if not result.communicator:
            return None
        result.communicator.get().set_interrupt(_signal_pending)
        return result

    def stats(self) -> list:
        """What each call site has cost: (kind, op, site, calls, bytes, s, s waited, last)."""
        cdef vector[CallStats] entries = self.communicator.get().stats()
        return [
            (
                _text(kind_name(each.kind)), _text(reduce_op_name(each.op)), each.site.decode(),
                each.calls, each.bytes, each.seconds, each.waited_seconds, each.last,
            )
            for each in entries
        ]

    cdef int _check_counts(self, const vector[uint64_t]& counts) except -1:
        if counts.size() != <size_t> self.communicator.get().size():
            raise ValueError(
                f"expected a number for each of {self.communicator.get().size()} ranks; "
                f"got {counts.size()}"
            )
        return 0

    def abort(self, str traceback) -> None:
        """Tell the peers that this rank failed, and close."""
        cdef string text = traceback.encode(errors="replace")
        with nogil:
            self.communicator.get().abort(text)

    def close(self) -> None:
        """Leave in good order; idempotent."""
        with nogil:
            self.communicator.get().close()
