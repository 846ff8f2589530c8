# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: the fast path of collectives on arrays (docs/adr/0011-fast-path-for-arrays.md).
# It runs a collective without creating a Call. Communicator.quick defines a plain call.

cdef dict _quick_kinds = {
    "all_reduce": <int> Kind.AllReduce, "reduce_scatter": <int> Kind.ReduceScatter,
    "all_gather": <int> Kind.AllGather, "broadcast": <int> Kind.Broadcast,
    "all_to_all": <int> Kind.AllToAll,
}
cdef dict _reductions = {
    "none": 0, "sum": <int> ReduceOp.Sum, "mean": <int> ReduceOp.Mean, "min": <int> ReduceOp.Min,
    "max": <int> ReduceOp.Max, "prod": <int> ReduceOp.Prod,
}


cdef inline int _plain_dtype(array) noexcept:
    """Return 1 + the number of the dtype of a contiguous NumPy array; 0 for any other object."""
    if type(array) is not ndarray or not PyArray_ISCARRAY_RO(<ndarray> array):
        return 0
    return _dtype_of(<ndarray> array)


cdef inline cbool _set_op_and_root(Collective& collective, op, root) noexcept:
    """Set the op and the root. Return False if op is not a name, or root does not fit an int."""
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
    """Return True if two contiguous arrays share memory."""
    cdef const char* first = <const char*> PyArray_DATA(a)
    cdef const char* second = <const char*> PyArray_DATA(b)
    return first < second + PyArray_NBYTES(b) and second < first + PyArray_NBYTES(a)


cdef ndarray _quick_destination(Kind kind, int size, ndarray source, out):
    """Return the array for the result: `out`, or a new array if `out` is None.

    Return None if `out` or the shape of the source does not fit the collective.
    """
    cdef int axes = PyArray_NDIM(source)
    cdef npy_intp[NPY_MAXDIMS] shape
    cdef ndarray destination
    cdef cbool has_blocks = kind != Kind.AllReduce and kind != Kind.Broadcast
    memcpy(shape, PyArray_DIMS(source), axes * sizeof(npy_intp))
    if has_blocks:
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
        has_blocks or PyArray_DATA(source) != PyArray_DATA(destination)
    ):
        return None
    return destination


cdef inline ndarray _take_array(CallState& state, array, out, int size):
    """Describe a collective on an array in `state`, and return the array for its result.

    Return None if the call is not plain (Communicator.quick).
    """
    cdef ndarray source, destination
    cdef int dtype = _plain_dtype(array)
    if dtype == 0:
        return None
    source = <ndarray> array
    destination = _quick_destination(state.collective.kind, size, source, out)
    if destination is None:
        return None
    _set_array(state, dtype, source, destination)
    state.collective.count = PyArray_SIZE(source)
    if state.collective.kind == Kind.ReduceScatter or state.collective.kind == Kind.AllToAll:
        state.collective.count //= size
    if PyArray_NDIM(source) > 1:
        state.set_shape(<const int64_t*> PyArray_DIMS(source), PyArray_NDIM(source), 0)
    return destination


cdef list _take_list(CallState& state, list arrays, out, int size):
    """Describe a collective on a list in `state`, and return the arrays for its results.

    Return None if the call is not plain (Communicator.quick).
    """
    cdef Kind kind = state.collective.kind
    cdef list results = []
    cdef Py_ssize_t i
    cdef ndarray destination
    if not arrays or not (out is None or type(out) is list and len(out) == len(arrays)):
        return None
    if kind != Kind.AllReduce and kind != Kind.Broadcast:
        return None
    state.is_list = True
    for i in range(len(arrays)):
        if _plain_dtype(arrays[i]) == 0:
            return None
        destination = _quick_destination(
            kind, size, <ndarray> arrays[i], None if out is None else out[i]
        )
        if destination is None:
            return None
        results.append(destination)
        _add_array(state, <ndarray> arrays[i], destination)
    return results


cdef object _run_quick(Communicator communicator, str kind, array, out, op, root):
    """Run the call of Communicator.quick and return its result; None if the call is not plain."""
    cdef CallState state
    cdef double timeout = communicator.timeout
    cdef int size = communicator.communicator.get().size()
    if not _set_op_and_root(state.collective, op, root):
        return None
    state.collective.kind = <Kind> <int> _quick_kinds[kind]
    if type(array) is list:
        result = _take_list(state, <list> array, out, size)
    else:
        result = _take_array(state, array, out, size)
    if result is None:
        return None
    state.collective.site = _caller_site()
    if state.collective.site == NULL:
        return None
    try:
        with nogil:
            state.run(dereference(communicator.communicator), timeout)
    except BaseException:
        _keep_for_mpi((array, result))
        raise
    return result
