# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: recordings of the time that instructions take.

def begin_recording(size_t max_events) -> None:
    """Begin a recording and forget the last one. most_events=0 records times and no events."""
    recording().begin(max_events)


def end_recording() -> None:
    """End the recording."""
    recording().end()


def recorded_events() -> list:
    """Return (program, instruction or -1 for the run, thread, begin ns, end ns) of all events."""
    return [
        (e.program, -1 if e.instruction == whole_run else <int64_t> e.instruction, e.thread,
         e.begin_ns, e.end_ns)
        for e in recording().events()
    ]


def recorded_labels() -> dict:
    """Return (action, op, call site, instruction that a wait ends) for each program."""
    cdef unordered_map[uint64_t, vector[Label]] labels = recording().labels()
    cdef dict found = {}
    cdef unordered_map[uint64_t, vector[Label]].iterator each = labels.begin()
    while each != labels.end():
        found[dereference(each).first] = _labels(dereference(each).second)
        preincrement(each)
    return found


cdef list _labels(const vector[Label]& labels):
    # A loop over the vector would copy texts outside of a try block, and bad_alloc would end
    # the process.
    cdef list found = []
    cdef const Label* label
    cdef size_t i
    for i in range(labels.size()):
        label = &labels[i]
        found.append((_ACTIONS[<Py_ssize_t> <int> label.action], _str(label.op), _str(label.site),
                      label.start))
    return found


def dropped_events() -> int:
    """Return the number of events that did not fit."""
    return recording().dropped()


def clock_ns() -> int:
    """Return the time of CLOCK_MONOTONIC, which events use."""
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
