# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: a lock that an interrupt does not leave locked. Python raises
# KeyboardInterrupt, or the exception of a signal handler, only between two bytecodes, and this code
# has no bytecodes.


cdef class FairLock:
    """A lock with priority for waiting threads.

    If a thread releases the lock and takes it again, a thread that already waits gets it first.

    The thread that holds the lock may enter it again, because an exception may have prevented its
    exit. One exit then releases the lock.
    """

    cdef object _next, _lock
    cdef unsigned long _owner

    def __cinit__(self):
        self._next, self._lock = threading.Lock(), threading.Lock()

    def __enter__(self):
        cdef unsigned long me = PyThread_get_thread_ident()
        if self._owner == me:
            return
        with self._next:
            self._lock.acquire()
        self._owner = me

    def __exit__(self, *error):
        if self._owner == PyThread_get_thread_ident():
            self._owner = 0
            self._lock.release()

    def has_waiters(self) -> bool:
        """Return True if another thread waits for the lock."""
        return self._next.locked()
