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
        """(implementation or None, reasons, scratch bytes, [(output, input) in place])."""
        cdef KernelQuery query
        cdef TensorType type
        cdef Verdict verdict
        cdef string reasons, op_bytes = _bytes(op)
        query.op = string_view(op_bytes.data(), op_bytes.size())
        for dtype, shape in inputs:
            _set_type(type, dtype, shape)
            query.inputs.push_back(type)
        for dtype, shape in outputs:
            _set_type(type, dtype, shape)
            query.outputs.push_back(type)
        _set_attrs(query.attrs, attrs)
        cdef KernelTable table = self.table
        cdef const KernelRow* row
        with nogil:
            row = find(table, query, &verdict, &reasons)
        if row == NULL:
            return None, _str(reasons), 0, []
        in_place = [(pair.output, pair.input) for pair in verdict.in_place]
        return _text(row.implementation), "", verdict.scratch_bytes, in_place


cdef class Buffer:
    """Memory on a device: what a variable holds."""

    cdef CppBuffer buffer

    def __init__(self, Device device not None, size_t nbytes):
        self.buffer = CppBuffer(dereference(device.device), nbytes)

    def write(self, ndarray array) -> None:
        """Copy a contiguous array in; as many bytes as the buffer has."""
        if <size_t> array.nbytes != self.buffer.bytes():
            raise ValueError(f"Buffer.write: {array.nbytes} bytes into {self.buffer.bytes()}")
        self.buffer.write(PyArray_DATA(array))

    # The GIL is held to the end: no step begins to write the variable meanwhile.
    def read(self, ndarray array, Cell cell) -> None:
        """Copy the bytes out to a contiguous array, where the variable may be read now."""
        cell.check_readable()
        if <size_t> array.nbytes != self.buffer.bytes():
            raise ValueError(f"Buffer.read: {self.buffer.bytes()} bytes into {array.nbytes}")
        self.buffer.read(PyArray_DATA(array))
