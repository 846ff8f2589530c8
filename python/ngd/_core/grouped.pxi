# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: many tensors, one hand-off.

@cython.no_gc_clear
cdef class Grouped:
    """An all_reduce or a broadcast that runs on many arrays; see comm/grouped.hpp."""

    cdef unique_ptr[CppGrouped] grouped
    cdef Communicator communicator  # which it must not outlive

    def __init__(
        self, Communicator communicator, str kind, str op, int root, list sources,
        list destinations, *, str algorithm="auto", str site="",
    ):
        """Start it on contiguous arrays, which the caller keeps until wait returns."""
        cdef Collective pattern
        cdef vector[Tensor] tensors
        cdef Tensor tensor
        cdef ndarray source, destination
        cdef string text = _bytes(kind)
        pattern.kind = kind_named(string_view(text.data(), text.size()))
        text = _bytes(op)
        pattern.op = reduce_op_named(string_view(text.data(), text.size()))
        text = _bytes(algorithm)
        pattern.algorithm = algorithm_named(string_view(text.data(), text.size()))
        pattern.root = root
        pattern.site = _interned(_bytes(site))
        for source, destination in zip(sources, destinations):
            tensor.dtype = <DType> (_dtype_of(source) - 1)
            tensor.count = PyArray_SIZE(source)
            tensor.source = PyArray_DATA(source)
            tensor.destination = PyArray_DATA(destination)
            tensors.push_back(tensor)
        self.communicator = communicator
        with nogil:
            self.grouped.reset(
                new CppGrouped(dereference(communicator.communicator), pattern, tensors)
            )

    def __dealloc__(self):
        self.grouped.reset()

    def wait(self, double timeout) -> None:
        """Return when all results are there."""
        with nogil:
            self.grouped.get().wait(timeout)

    def wait_for(self, double seconds) -> bool:
        """Whether all results are there after at most so many seconds."""
        cdef cbool there
        with nogil:
            there = self.grouped.get().wait_for(seconds)
        return there
