# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: devices, and the memory of variables.

cdef class Device:
    """A device of this build, and its table of kernels."""

    cdef CppDevice* device
    cdef KernelTable table

    def __init__(self, str name):
        cdef string text = _bytes(name)
        cdef const DeviceRow* row = &device_named(string_view(text.data(), text.size()))
        self.device, self.table = &row.device(), row.table()

    @property
    def name(self) -> str:
        """The name of the device."""
        return _text(self.device.name())

    def kernel_table(self) -> list:
        """Return (op, implementation) for each row of the kernel table, in order."""
        return [
            (_text(self.table[i].op), _text(self.table[i].implementation))
            for i in range(self.table.size())
        ]

    def query_kernel(self, str op, list inputs, list outputs, dict attrs) -> tuple:
        """Find the kernel for an op.

        Return (implementation, reason, scratch bytes, pairs). If there is no kernel, the
        implementation is None, and the reason says why. Each of the pairs (output, input) names an
        output that may be written to the memory of that input.
        """
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
    """Memory that several ranks of a host read and write. It exists as long as this object.

    A process may map it a second time, copy on write (Communicator.map_privately). It may write to
    views of this private mapping without a change of the common memory.
    """

    cdef shared_ptr[void] memory
    cdef int maker
    cdef uint64_t number
    cdef size_t nbytes
    cdef unique_ptr[CppCopyOnWriteMapping] mapping

    def copied(self) -> list:
        """Return the byte ranges (begin, end) of the private mapping that this process has written.

        The ranges consist of whole pages.
        """
        cdef vector[CppRange] ranges
        cdef size_t i
        if self.mapping.get() == NULL:
            return []
        with nogil:
            ranges = self.mapping.get().copied()
        return [(ranges[i].begin, ranges[i].end) for i in range(ranges.size())]

    def discard_copies(self) -> None:
        """Discard the copied pages, so that the private views show the common memory again."""
        if self.mapping.get() != NULL:
            self.mapping.get().discard()

    def write(self, size_t offset, ndarray array, size_t begin, size_t end) -> None:
        """Copy bytes [begin, end) of an array to `offset` + begin in the memory."""
        memcpy(<char*> self.memory.get() + offset + begin, <char*> PyArray_DATA(array) + begin,
               end - begin)


cdef uint64_t _moves = 1  # 1 + the number of times that a buffer moved to other memory


cdef class Memory:
    """The memory of a Buffer: private memory in `own`, or common memory. Views keep it alive."""

    cdef CppBuffer own
    cdef CommonMemory common


cdef class MemoryView:
    """An object with the buffer protocol of Python, for the bytes of a variable."""

    cdef Memory memory
    cdef void* data
    cdef Py_ssize_t nbytes

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data, self.nbytes, 0, flags)

    def __releasebuffer__(self, Py_buffer* buffer):
        pass


def moves() -> int:
    """Return a number that increases when a buffer moves to other memory.

    A view of the old memory does not show later values.
    """
    return _moves


cdef class Buffer:
    """The value of a variable on a device, in private memory or in common memory."""

    cdef Memory memory
    cdef char* data  # the address of byte 0 of the whole value, even if a shard begins later
    cdef size_t nbytes  # the size of the whole value
    cdef size_t begin, end  # the bytes that this buffer has: all, or a shard
    cdef CppDevice* device

    def __init__(self, Device device not None, size_t nbytes):
        self.memory = Memory()
        self.memory.own = CppBuffer(dereference(device.device), nbytes)
        self.device, self.nbytes = device.device, nbytes
        self.begin, self.end = 0, nbytes
        self.data = <char*> self.memory.own.data()

    @property
    def is_common(self) -> bool:
        """True if the value is in common memory."""
        return self.memory.common is not None

    def view(self) -> memoryview:
        """Return the bytes of the value without a copy; raise ValueError for a shard."""
        if self.end - self.begin != self.nbytes:
            raise ValueError(f"Buffer.view: {self.end - self.begin} of {self.nbytes} bytes")
        cdef MemoryView view = MemoryView()
        view.memory, view.data, view.nbytes = self.memory, self.data, <Py_ssize_t> self.nbytes
        return memoryview(view)

    @property
    def common(self) -> tuple | None:
        """The common memory of the value and the offset in it, or None for private memory."""
        cdef CommonMemory common = self.memory.common
        if common is None:
            return None
        return common, self.data - <char*> common.memory.get()

    def private_view(self) -> memoryview:
        """Return the bytes of the value in the private mapping of the common memory."""
        cdef MemoryView view = MemoryView()
        cdef CommonMemory common = self.memory.common
        if common is None or common.mapping.get() == NULL:
            raise ValueError("Buffer.private_view: expected memory that is mapped privately")
        view.memory, view.nbytes = self.memory, <Py_ssize_t> self.nbytes
        view.data = <char*> common.mapping.get().data() + (self.data - <char*> common.memory.get())
        return memoryview(view)

    def lie_in(self, CommonMemory common, size_t offset) -> None:
        """Move to common memory, or to private memory if `common` is None.

        A move to common memory copies nothing: the value is then the present content of that
        memory. A move to private memory copies the value. No step may use the buffer during the
        call. The kernels of the device must address the memory of the host.
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
        """Keep only a shard, which begins at byte `begin`, in the memory of another buffer.

        The other buffer has the size of the shard, and must not be used again. No step may use this
        buffer during the call.
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
        """Copy the value from a contiguous array of the same size."""
        if <size_t> array.nbytes != self.nbytes:
            raise ValueError(f"Buffer.write: {array.nbytes} bytes into {self.nbytes}")
        cdef const void* source = PyArray_DATA(array)
        cdef Memory memory = self.memory
        cdef cbool common = memory.common is not None
        with nogil:  # the caller holds the variable, so no step uses or moves it
            if common:
                memcpy(self.data, source, self.nbytes)
            else:
                memory.own.write(source)

    def write_part(self, ndarray array, size_t begin, size_t end) -> None:
        """Copy bytes [begin, end) of a contiguous array with the whole value to this buffer."""
        if <size_t> array.nbytes != self.nbytes or not self.begin <= begin <= end <= self.end:
            raise ValueError(f"Buffer.write_part: {array.nbytes} bytes into {self.nbytes}")
        memcpy(self.data + begin, <char*> PyArray_DATA(array) + begin, end - begin)

    # The next functions hold the GIL until they return, so no step can begin to write the variable.
    def read(self, ndarray array, Cell cell) -> None:
        """Copy the value to a contiguous array.

        Raise an error if the variable must not be read now.
        """
        cell.check_readable()
        self.copy_to(array)

    def read_part(self, ndarray array, Cell cell) -> None:
        """Copy the bytes that this buffer has, all or a shard, to a contiguous array.

        Raise an error if the variable must not be read now.
        """
        cell.check_readable()
        if <size_t> array.nbytes != self.end - self.begin:
            raise ValueError(f"Buffer.read_part: {self.end - self.begin} into {array.nbytes}")
        memcpy(PyArray_DATA(array), self.data + self.begin, array.nbytes)

    def copy_to(self, ndarray array) -> None:
        """Copy the value to a contiguous array. No step may write the variable during the call."""
        if <size_t> array.nbytes != self.nbytes:
            raise ValueError(f"Buffer.read: {self.nbytes} bytes into {array.nbytes}")
        if self.memory.common is not None:
            memcpy(PyArray_DATA(array), self.data, self.nbytes)
        else:
            self.memory.own.read(PyArray_DATA(array))

    def checksum(self) -> tuple[int, int]:
        """Return a checksum of 128 bits of the bytes that this buffer has.

        No step may write the variable during the call.
        """
        return _checksum(self.data + self.begin, self.end - self.begin)


cdef tuple _checksum(const char* data, size_t nbytes):
    cdef CppChecksum found
    with nogil:
        found = cpp_checksum(data, nbytes)
    return found.low, found.high


def checksum(ndarray array) -> tuple[int, int]:
    """Return a checksum of 128 bits of the bytes of a contiguous array."""
    return _checksum(<const char*> PyArray_DATA(array), array.nbytes)
