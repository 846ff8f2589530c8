# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: devices, and memory on them.

cdef class Device:
    """A device of this build, by name: its memory, and the table of its kernels."""

    cdef CppDevice* device
    cdef KernelTable table

    def __init__(self, str name):
        cdef string text = _bytes(name)
        cdef const DeviceRow* row = &device_named(string_view(text.data(), text.size()))
        self.device, self.table = &row.device(), row.table()

    @property
    def name(self) -> str:
        """The name."""
        return _text(self.device.name())

    def kernel_table(self) -> list:
        """(op, implementation) of every row of the table, in order."""
        return [
            (_text(self.table[i].op), _text(self.table[i].implementation))
            for i in range(self.table.size())
        ]

    def query_kernel(self, str op, list inputs, list outputs, dict attrs) -> tuple:
        """Return (implementation or None, refusals, scratch bytes, [(output, input) in place])."""
        cdef KernelQuery query
        cdef TensorType type
        cdef string op_bytes = _bytes(op)
        query.op = string_view(op_bytes.data(), op_bytes.size())
        for dtype, shape in inputs:
            _set_type(type, dtype, shape)
            query.inputs.push_back(type)
        for dtype, shape in outputs:
            _set_type(type, dtype, shape)
            query.outputs.push_back(type)
        _set_attrs(query.attrs, attrs)
        cdef KernelTable table = self.table
        cdef Found found
        with nogil:
            found = find(table, query, this_machine())
        if found.row == NULL:
            return None, _str(found.offer.refusal), 0, []
        cdef const Kernel* kernel = found.offer.kernel.get()
        in_place = [(pair.output, pair.input) for pair in kernel.in_place()]
        return _text(found.row.implementation), "", kernel.scratch_bytes(), in_place


cdef class CommonMemory:
    """Memory of a host that several ranks read and write, while this lives.

    A process may also map it a second time, for views that it may write to without changing the
    memory (Communicator.map_privately).
    """

    cdef shared_ptr[void] memory
    cdef int maker
    cdef uint64_t number
    cdef size_t nbytes
    cdef unique_ptr[CppCopyOnWriteMapping] mapping

    def copied(self) -> list:
        """Return the ranges of bytes (begin, end) whose pages this process has written."""
        cdef vector[CppRange] ranges
        cdef size_t i
        if self.mapping.get() == NULL:
            return []
        with nogil:
            ranges = self.mapping.get().copied()
        return [(ranges[i].begin, ranges[i].end) for i in range(ranges.size())]

    def discard_copies(self) -> None:
        """Let the private views show what the memory holds."""
        if self.mapping.get() != NULL:
            self.mapping.get().discard()

    def write(self, size_t offset, ndarray array, size_t begin, size_t end) -> None:
        """Copy bytes [begin, end) of a contiguous array to their place in an array at `offset`."""
        memcpy(<char*> self.memory.get() + offset + begin, <char*> PyArray_DATA(array) + begin,
               end - begin)


cdef uint64_t _moves = 1  # how often a buffer has moved, and 1


cdef class Memory:
    """The memory of a buffer: that of this process, or memory in common. Views keep it alive."""

    cdef CppBuffer own
    cdef CommonMemory common


cdef class MemoryView:
    """The bytes of a variable for Python's buffer protocol."""

    cdef Memory memory
    cdef void* data
    cdef Py_ssize_t nbytes

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.nbytes, 0, flags)

    def __releasebuffer__(self, Py_buffer* buffer):
        pass


def moves() -> int:
    """Return a number that grows whenever a buffer has moved: then views show an old value."""
    return _moves


cdef class Buffer:
    """Memory on a device: the value of a variable. It may lie in memory in common."""

    cdef Memory memory
    cdef char* data  # where the first byte is, or would be
    cdef size_t nbytes
    cdef size_t begin, end  # of the bytes that it has: all, or a part
    cdef CppDevice* device

    def __init__(self, Device device not None, size_t nbytes):
        self.memory = Memory()
        self.memory.own = CppBuffer(dereference(device.device), nbytes)
        self.device, self.nbytes = device.device, nbytes
        self.begin, self.end = 0, nbytes
        self.data = <char*> self.memory.own.data()

    @property
    def is_common(self) -> bool:
        """Whether it lies in memory in common."""
        return self.memory.common is not None

    def view(self) -> memoryview:
        """Return the bytes, which must be all of them, without a copy."""
        if self.end - self.begin != self.nbytes:
            raise ValueError(f"Buffer.view: {self.end - self.begin} of {self.nbytes} bytes")
        cdef MemoryView view = MemoryView()
        view.memory, view.data, view.nbytes = self.memory, self.data, <Py_ssize_t> self.nbytes
        return memoryview(view)

    @property
    def common(self) -> tuple | None:
        """The memory in common that has the value, and the offset there; else None."""
        cdef CommonMemory common = self.memory.common
        if common is None:
            return None
        return common, self.data - <char*> common.memory.get()

    def private_view(self) -> memoryview:
        """Return the bytes as the private mapping of its memory in common shows them."""
        cdef MemoryView view = MemoryView()
        cdef CommonMemory common = self.memory.common
        if common is None or common.mapping.get() == NULL:
            raise ValueError("Buffer.private_view: expected memory that is mapped privately")
        view.memory, view.nbytes = self.memory, <Py_ssize_t> self.nbytes
        view.data = <char*> common.mapping.get().data() + (self.data - <char*> common.memory.get())
        return memoryview(view)

    def lie_in(self, CommonMemory common, size_t offset) -> None:
        """Lie in memory in common from now on, and hold what stands there; None: in its own memory.

        There it holds what it held before. No step uses it now; the device's kernels address the
        host's memory.
        """
        global _moves
        cdef Memory memory = Memory()
        cdef char* data
        if common is None:
            memory.own = CppBuffer(dereference(self.device), self.nbytes)
            data = <char*> memory.own.data()
            memcpy(data + self.begin, self.data + self.begin, self.end - self.begin)
        else:
            memory.common = common
            data = <char*> common.memory.get() + offset
        self.memory, self.data = memory, data
        self.begin, self.end = 0, self.nbytes
        _moves += 1

    def keep(self, Buffer memory not None, size_t begin) -> None:
        """Have some bytes alone from now on, in the memory of another buffer, which is used up.

        They are as many as that one has, from `begin` on. No step uses it now.
        """
        global _moves
        if self.memory.common is not None or begin + memory.nbytes > self.nbytes:
            raise ValueError(f"Buffer.keep: bytes {begin} to {begin + memory.nbytes}")
        memcpy(memory.data, self.data + begin, memory.nbytes)
        self.memory = memory.memory
        self.begin, self.end = begin, begin + memory.nbytes
        self.data = <char*> (<size_t> memory.data - begin)
        _moves += 1

    def write(self, ndarray array) -> None:
        """Copy a contiguous array in; as many bytes as the buffer has."""
        if <size_t> array.nbytes != self.nbytes:
            raise ValueError(f"Buffer.write: {array.nbytes} bytes into {self.nbytes}")
        cdef const void* source = PyArray_DATA(array)
        cdef Memory memory = self.memory
        cdef cbool common = memory.common is not None
        with nogil:  # the caller holds the variable: no step uses it, and it does not move
            if common:
                memcpy(self.data, source, self.nbytes)
            else:
                memory.own.write(source)

    def write_part(self, ndarray array, size_t begin, size_t end) -> None:
        """Copy some bytes of a contiguous array, which it has, to their place."""
        if <size_t> array.nbytes != self.nbytes or not self.begin <= begin <= end <= self.end:
            raise ValueError(f"Buffer.write_part: {array.nbytes} bytes into {self.nbytes}")
        memcpy(self.data + begin, <char*> PyArray_DATA(array) + begin, end - begin)

    # The GIL is held to the end: no step begins to write the variable meanwhile.
    def read(self, ndarray array, Cell cell) -> None:
        """Copy the bytes out to a contiguous array, where the variable may be read now."""
        cell.check_readable()
        self.copy_to(array)

    def read_part(self, ndarray array, Cell cell) -> None:
        """The same of the bytes alone that it has."""
        cell.check_readable()
        if <size_t> array.nbytes != self.end - self.begin:
            raise ValueError(f"Buffer.read_part: {self.end - self.begin} into {array.nbytes}")
        memcpy(PyArray_DATA(array), self.data + self.begin, array.nbytes)

    def copy_to(self, ndarray array) -> None:
        """The same for who holds the variable."""
        if <size_t> array.nbytes != self.nbytes:
            raise ValueError(f"Buffer.read: {self.nbytes} bytes into {array.nbytes}")
        if self.memory.common is not None:
            memcpy(PyArray_DATA(array), self.data, self.nbytes)
        else:
            self.memory.own.read(PyArray_DATA(array))

    def checksum(self) -> tuple[int, int]:
        """Return a checksum of 128 bits of the bytes, whose variable the caller holds."""
        return _checksum(self.data + self.begin, self.end - self.begin)


cdef tuple _checksum(const char* data, size_t nbytes):
    cdef CppChecksum found
    with nogil:
        found = cpp_checksum(data, nbytes)
    return found.low, found.high


def checksum(ndarray array) -> tuple[int, int]:
    """Return a checksum of 128 bits of the bytes of a contiguous array."""
    return _checksum(<const char*> PyArray_DATA(array), array.nbytes)
