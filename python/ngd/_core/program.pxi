# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: programs, and the executables that run them.

def first_fit(list lives) -> list:
    """Return an offset for each block of memory, so that blocks do not overlap while they are used.

    A block is (first instruction, last instruction, bytes). Each block gets the lowest free offset.
    """
    cdef vector[Life] blocks
    cdef Life life
    blocks.reserve(len(lives))
    for life.first, life.last, life.bytes in lives:
        blocks.push_back(life)
    return cpp_first_fit(blocks)


cdef class Arena:
    """An arena that several executables use in turn. Only one of them runs at a time."""

    cdef shared_ptr[CppArena] arena

    def __cinit__(self):
        self.arena = make_shared[CppArena]()  # unlike reset(), it raises MemoryError


cdef class ProgramBuilder:
    """The builder of a Program. `str()` returns the text of the program, for tests."""

    cdef CppProgram program
    cdef Arena arena  # if None, the executable allocates its own arena

    def add_value(self, str dtype, tuple shape, str memory, size_t position, size_t offset) -> int:
        """Add a value and return its number."""
        cdef Value value
        _set_type(value.type, dtype, shape)
        value.memory = <MemoryKind> <int> _MEMORY_KINDS.index(memory)
        value.position = position
        value.offset = offset
        self.program.values.push_back(value)
        return self.program.values.size() - 1

    def add_constant(self, bytes data) -> int:
        """Add the bytes of a constant and return its number."""
        cdef vector[char] copied
        cdef const char* begin = data
        copied.assign(begin, begin + len(data))
        self.program.constants.push_back(copied)
        return self.program.constants.size() - 1

    def add_instruction(
        self, str action, str op, list inputs, list outputs, dict attrs, int start, int group,
        str site, list bodies,
    ) -> int:
        """Add an instruction and return its number."""
        cdef CppInstruction instruction
        instruction.action = <Action> <int> _ACTIONS.index(action)
        instruction.op = _bytes(op)
        instruction.inputs = _ints(inputs)
        instruction.outputs = _ints(outputs)
        _set_attrs(instruction.attrs, attrs)
        instruction.start = start
        instruction.group = group
        instruction.site = _bytes(site)
        for body in bodies:
            instruction.bodies.push_back((<ProgramBuilder?> body).program)
        self.program.instructions.push_back(instruction)
        return self.program.instructions.size() - 1

    def set_members(self, size_t number, list members) -> None:
        """Set the ops that an instruction computes, as tuples (op, call site, application).

        Ops into which the compiler expanded one op have the same number `application`. It is -1 for
        an op that was not expanded.
        """
        cdef Member member
        for op, site, application in members:
            member.op, member.site, member.application = _bytes(op), _bytes(site), application
            self.program.instructions.at(number).members.push_back(member)

    def set_sizes(self, size_t inputs, size_t outputs, size_t variables) -> None:
        """Set the numbers of inputs, outputs and variables of the program."""
        self.program.inputs = inputs
        self.program.outputs = outputs
        self.program.variables = variables

    def set_arenas(self, size_t private_bytes, size_t shared_bytes) -> None:
        """Set the sizes of the private and of the shared arena."""
        self.program.private_bytes = private_bytes
        self.program.shared_bytes = shared_bytes

    def use_arena(self, Arena arena) -> None:
        """Make the executable use an existing arena."""
        self.arena = arena

    def add_group(self, str text, uint64_t hash, uint64_t computation) -> None:
        """Add a group and its sequence of collectives, which the ranks of the group compare.

        `text` has one collective per line. `hash` is a hash of these lines, but not of the call
        sites in them. `computation` is a hash of the computation of the step.
        """
        cdef GroupSequence group
        group.text = _bytes(text)
        group.hash = hash
        group.computation = computation
        self.program.groups.push_back(group)

    def __str__(self) -> str:
        return _str(program_text(self.program))


cdef class ArrayType:
    """The dtype and shape of an array."""

    cdef int number, axes
    cdef npy_intp[NPY_MAXDIMS] shape

    def __init__(self, dtype, tuple shape):
        cdef int axis
        self.number, self.axes = dtype.num, len(shape)
        for axis in range(self.axes):
            self.shape[axis] = shape[axis]

    cdef cbool fits(self, array) noexcept:
        """Return True for a contiguous NumPy array of this type."""
        return (
            type(array) is ndarray
            and PyArray_TYPE(<ndarray> array) == self.number
            and PyArray_ISCARRAY_RO(<ndarray> array)
            and PyArray_NDIM(<ndarray> array) == self.axes
            and PyArray_CompareLists(PyArray_DIMS(<ndarray> array), self.shape, self.axes)
        )

    cdef ndarray fresh(self):
        """Return a new array of this type, without initial values."""
        return PyArray_EMPTY(self.axes, self.shape, self.number, 0)


@cython.no_gc_clear
cdef class Executable:
    """A program that is ready to run on the device of its variables."""

    cdef unique_ptr[Executor] executor
    cdef ProgramBuilder builder
    cdef tuple communicators, variables  # the executor must not outlive them
    cdef list given, made  # the types of the arguments and results of a call
    cdef list checks  # functions that raise an error if a variable that has moved must not be used
    cdef cbool entered  # True if the last call has reached the executor
    cdef size_t n_inputs, n_outputs
    cdef uint64_t moves  # the value of _moves when the executor last got the addresses of buffers

    def __init__(
        self, Device device not None, ProgramBuilder builder, list communicators, list variables,
        list given, list made, list checks=[],
    ):
        cdef vector[CppCommunicator*] groups
        cdef vector[void*] pointers
        cdef shared_ptr[CppArena] arena
        if builder.arena is not None:
            arena = builder.arena.arena
        self.builder, self.given, self.made, self.checks = builder, given, made, checks
        # Tuples, because the garbage collector may clear lists, but not tuples.
        self.communicators, self.variables = tuple(communicators), tuple(variables)
        for variable in variables:
            if (<Buffer?> variable).device != device.device:
                raise ValueError(f"Executable: a variable is not on the device {device.name}")
        for communicator in communicators:
            groups.push_back((<Communicator?> communicator).communicator.get())
        self.n_inputs, self.n_outputs = builder.program.inputs, builder.program.outputs
        self.find(pointers)
        # This takes minutes for a large program: oneDNN compiles kernels, and the arenas are
        # allocated. No other thread has this object yet. The first run sets the addresses again.
        with nogil:
            self.executor.reset(new Executor(
                builder.program, dereference(device.device), device.table, groups, pointers,
                _signal_pending, arena,
            ))

    cdef int follow(self) except -1:
        """Give the executor the present addresses of the variables, after a buffer has moved.

        Raise an error first if a variable that has moved must not be used.
        """
        for check in self.checks:
            check()
        cdef vector[void*] variables
        self.find(variables)
        dereference(self.executor).move_variables(variables)
        self.moves = _moves
        return 0

    cdef int find(self, vector[void*]& variables) except -1:
        """Append the addresses of the variables to `variables`."""
        for variable in self.variables:
            variables.push_back((<Buffer> variable).data)
        return 0

    def __dealloc__(self):
        self.executor.reset()

    def call(self, Hold hold not None, tuple arrays):
        """Run the program once on these arrays, and return new arrays with the results.

        If the arrays do not have the types of the program, do not run it, and return None.
        """
        cdef Py_ssize_t i
        if len(arrays) != len(self.given):
            return None
        for i in range(len(arrays)):
            if not (<ArrayType> self.given[i]).fits(arrays[i]):
                return None
        results = [(<ArrayType> each).fresh() for each in self.made]
        hold.run(self, list(arrays), results)
        return results

    def run(self, list inputs, list outputs) -> None:
        """Run the program once on contiguous arrays, which have the types of the program."""
        cdef vector[const void*] sources
        cdef vector[void*] destinations
        if <size_t> len(inputs) != self.n_inputs or <size_t> len(outputs) != self.n_outputs:
            raise ValueError("Executable.run: wrong number of inputs or outputs")
        self.entered = False
        if self.moves != _moves:
            self.follow()
        self.entered = True
        sources.reserve(self.n_inputs + 1)
        destinations.reserve(self.n_outputs + 1)
        for array in inputs:
            sources.push_back(PyArray_DATA(<ndarray?> array))
        for array in outputs:
            destinations.push_back(PyArray_DATA(<ndarray?> array))
        try:
            with nogil:
                dereference(self.executor).run(sources.data(), destinations.data())
        except BaseException:
            _keep_for_mpi((self, inputs, outputs))
            raise

    @property
    def variables_touched(self) -> bool:
        """True if the last run failed after it had begun to write a variable."""
        return self.entered and dereference(self.executor).variables_touched()

    def record(self) -> tuple:
        """Return the times of the last recording in which the program ran.

        They are (times of the program, list of times of instructions, list of records of bodies).
        Times are (calls, ns of all calls, ns of the shortest call, ns since the collective of a
        wait started).
        """
        return _record(dereference(self.executor).record())

    def __str__(self) -> str:
        return str(self.builder)
