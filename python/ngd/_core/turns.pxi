# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: a lock that no interrupt leaves taken. Python raises KeyboardInterrupt, or what
# the handler of a signal raises, between two bytecodes; here there are none.


cdef class Turns:
    """A lock that a thread cannot take again before those that were waiting for it.

    A thread that has it, because something was raised before it could let go, may take it.
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

    def wanted(self) -> bool:
        """Whether another thread waits."""
        return self._next.locked()
