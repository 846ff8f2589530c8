# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: call sites. _util/callsite.py defines the line that a call site shows.
#
# A call site is a text that is never freed, because the core counts calls by the text's address. A
# table of known callers avoids the search and the creation of the text in later calls.

cdef extern from *:
    """
    static PyObject* ngd_frame_code(PyFrameObject* frame) {
      return reinterpret_cast<PyObject*>(PyFrame_GetCode(frame));
    }
    """
    ctypedef struct PyFrameObject:
        pass
    PyObject* ngd_frame_code(PyFrameObject* frame)  # a new reference
    int PyFrame_GetLineNumber(PyFrameObject* frame)

cdef enum Owner:  # the owner of the code of a frame
    OF_NGD
    OF_LIBRARY
    OF_USER

# A bytecode instruction that called ngd. Callers with the same slot in the table replace each
# other.
cdef struct Caller:
    PyObject* code  # a reference that the table owns
    int instruction
    Owner owner
    const char* site

cdef enum:
    CALLERS = 1024

cdef Caller[CALLERS] _callers
cdef unordered_set[string] _sites
cdef object _frame_above = sys._getframe
cdef object _ONE = 1


cdef const char* _interned(const string& site):
    return dereference(_sites.insert(site).first).c_str()


cdef const char* _caller_site() except? NULL:
    """Return the line that called the running Python function; NULL if ngd or C code called it.

    If a library called it, return the line of the user's code that called the library, if any.
    """
    cdef object frame
    cdef Owner owner
    cdef const char* site
    cdef const char* above
    try:
        frame = _frame_above(_ONE)
    except ValueError:  # the function was called from C
        return NULL
    site = _site_of(<PyFrameObject*> frame, &owner)
    while owner == OF_LIBRARY:
        frame = frame.f_back
        if frame is None:
            return site
        above = _site_of(<PyFrameObject*> frame, &owner)
        if owner == OF_USER:
            return above
        owner = OF_LIBRARY
    return site


cdef inline const char* _site_of(PyFrameObject* frame, Owner* owner) except? NULL:
    """Return the line of a frame, and set its owner. Return NULL for a frame of ngd."""
    cdef PyObject* code = ngd_frame_code(frame)
    cdef int instruction = (<object> frame).f_lasti
    cdef size_t slot = ((<size_t> code >> 4) + <size_t> instruction * 7) % CALLERS
    cdef Caller* caller = &_callers[slot]
    if caller.code == code and caller.instruction == instruction:
        Py_DECREF(<object> code)  # the table holds a reference
        owner[0] = caller.owner
        return caller.site
    file = (<object> code).co_filename
    owner[0] = <Owner> <int> _owner(file).value
    if owner[0] == OF_NGD:
        Py_DECREF(<object> code)
        return NULL
    cdef const char* site = _interned(_bytes(f"{file}:{PyFrame_GetLineNumber(frame)}"))
    cdef PyObject* before = caller.code
    caller.code = code
    caller.instruction = instruction
    caller.owner = owner[0]
    caller.site = site
    Py_XDECREF(before)  # after all assignments, because it may run code that calls this function
    return site
