# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: recordings of the times and events of instructions.

def begin_recording(size_t max_events) -> None:
    """Begin a recording and delete the last one. With max_events=0, it has times but no events."""
    recording().begin(max_events)


def end_recording() -> None:
    """End the recording."""
    recording().end()


def recorded_events() -> list:
    """Return all events as (program, instruction or -1 for a whole run, thread, begin, end).

    The times are in ns.
    """
    return [
        (e.program, -1 if e.instruction == whole_run else <int64_t> e.instruction, e.thread,
         e.begin_ns, e.end_ns)
        for e in recording().events()
    ]


def recorded_labels() -> dict:
    """Return the labels of the instructions of each program, by the number of the program.

    A label is (action, op, call site, instruction that started the collective of a wait).
    """
    cdef unordered_map[uint64_t, vector[Label]] labels = recording().labels()
    cdef dict found = {}
    cdef unordered_map[uint64_t, vector[Label]].iterator each = labels.begin()
    while each != labels.end():
        found[dereference(each).first] = _labels(dereference(each).second)
        preincrement(each)
    return found


cdef list _labels(const vector[Label]& labels):
    # In a loop over the vector, Cython would copy texts outside of a try block, and bad_alloc would
    # end the process.
    cdef list found = []
    cdef const Label* label
    cdef size_t i
    for i in range(labels.size()):
        label = &labels[i]
        found.append((_ACTIONS[<Py_ssize_t> <int> label.action], _str(label.op), _str(label.site),
                      label.start))
    return found


def dropped_events() -> int:
    """Return the number of events that were dropped because the buffer was full."""
    return recording().dropped()


def clock_ns() -> int:
    """Return the time of CLOCK_MONOTONIC in ns, which events use."""
    return now_ns()


cdef tuple _timing(const Timing& timing):
    return timing.calls, timing.ns, timing.least_ns, timing.pending_ns


cdef tuple _record(const Record& record):
    cdef list instructions = [], bodies = []
    cdef size_t i
    for i in range(record.instructions.size()):
        instructions.append(_timing(record.instructions[i]))
    for i in range(record.bodies.size()):
        bodies.append(_record(record.bodies[i]))
    return _timing(record.whole), instructions, bodies
