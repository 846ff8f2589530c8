# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: a lock for variables.
#
# While a step runs, it *holds* its variables: as a reader, together with other readers, or as the
# only writer. No call waits for a variable. A call that needs a variable that another step holds
# raises a BusyError. To take or release a variable means to assign a few fields while the GIL is
# held. No Python code runs in between, so no other thread, Ctrl-C or signal handler can leave a
# variable held.

cdef class Cell:
    """The state of a variable: its readers, its writer, and the device with its newest value."""

    cdef readonly str name
    cdef int readers
    cdef cbool writing
    cdef public cbool poisoned
    cdef public str latest  # the device that has the newest value
    cdef public size_t version

    def __init__(self, str name):
        self.name = name

    def check_readable(self) -> None:
        """Raise the error that a read would raise now: BusyError or PoisonedVariableError."""
        self.expect_no_writer()
        self.expect_value()

    def replace(self, list storages, ndarray value) -> str | None:
        """Write the value to the storages of the variable, one per device, and return None.

        If a storage refuses the value before the first write, return its reason. An exception
        during the writes poisons the variable.
        """
        self.expect_nobody()
        self.writing = True
        try:
            for storage in storages:
                refusal = storage.refusal(value)
                if refusal is not None:
                    return refusal
            try:
                for storage in storages:
                    storage.write(value)
                self.poisoned = False
                self.version += 1
            except BaseException:
                self.poisoned = True
                raise
            return None
        finally:
            self.writing = False

    cdef int expect_no_writer(self) except -1:
        if self.writing:
            self.refuse("is written")
        return 0

    cpdef int expect_nobody(self) except -1:
        """Raise a BusyError while a step reads or writes the variable."""
        self.expect_no_writer()
        if self.readers > 0:
            self.refuse("is read")
        return 0

    cdef int expect_value(self) except -1:
        if self.poisoned:
            raise _errors.PoisonedVariableError(
                f"variable {self.name!r}: a step failed while it was updated, so its value is "
                "unknown; assign() a value, or load a checkpoint"
            )
        return 0

    cdef int refuse(self, str what) except -1:
        raise _errors.BusyError(
            f"variable {self.name!r} {what} by a step that runs now, in another thread or below "
            "this signal handler; call again when it has returned"
        )


def while_held(list cells, call):
    """Hold variables as their writer while call() runs, and return its result.

    Raise a BusyError if a step holds one of the variables.
    """
    cdef Cell cell
    for object_ in cells:
        cell = <Cell?> object_
        cell.expect_nobody()
        cell.expect_value()
    for object_ in cells:
        (<Cell> object_).writing = True
    try:
        return call()
    finally:
        for object_ in cells:
            (<Cell> object_).writing = False


cdef class Hold:
    """The variables that an executable holds while it runs."""

    cdef list read, written
    cdef str device

    def __init__(self, list read, list written, str device):
        cdef Cell cell
        for cell in read + written:
            pass  # the loop checks the types, because later casts do not
        self.read, self.written, self.device = read, written, device

    def run(self, step, list inputs, list outputs) -> None:
        """Run step.run(inputs, outputs) while the variables are held.

        A failure after the step has begun to write variables poisons the written variables.
        """
        cdef Cell cell
        self.take()
        try:
            step.run(inputs, outputs)
            for object_ in self.written:
                cell = <Cell> object_
                cell.latest = self.device
                cell.version += 1
        except BaseException:
            if step.variables_touched:
                for object_ in self.written:
                    (<Cell> object_).poisoned = True
            raise
        finally:
            for object_ in self.read:
                (<Cell> object_).readers -= 1
            for object_ in self.written:
                (<Cell> object_).writing = False

    cdef int take(self) except -1:
        """Begin to hold all variables; if one cannot be held, raise an error and hold none."""
        cdef Cell cell
        for object_ in self.read:
            cell = <Cell> object_
            cell.expect_no_writer()
            cell.expect_value()
        for object_ in self.written:
            cell = <Cell> object_
            cell.expect_nobody()
            cell.expect_value()
        for object_ in self.read:
            (<Cell> object_).readers += 1
        for object_ in self.written:
            (<Cell> object_).writing = True
        return 0
