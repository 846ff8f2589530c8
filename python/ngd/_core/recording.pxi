# SPDX-License-Identifier: Apache-2.0
# Part of _core.pyx: what instructions take, while somebody asks.

def begin_recording(size_t max_events) -> None:
    """Begin the process's recording; the last one is forgotten. 0: of times, of no events."""
    recording().begin(max_events)


def end_recording() -> None:
    """End it."""
    recording().end()


def recorded_events() -> list:
    """(program, instruction or -1: the whole run, thread, begin and end in ns) of the last one."""
    return [
        (e.program, -1 if e.instruction == whole_run else <int64_t> e.instruction, e.thread,
         e.begin_ns, e.end_ns)
        for e in recording().events()
    ]


def recorded_labels() -> dict:
    """Of each program among the events: (action, op, call site, number of a wait's start)."""
    cdef unordered_map[uint64_t, vector[Label]] labels = recording().labels()
    cdef dict found = {}
    cdef unordered_map[uint64_t, vector[Label]].iterator each = labels.begin()
    while each != labels.end():
        found[dereference(each).first] = _labels(dereference(each).second)
        preincrement(each)
    return found


cdef list _labels(const vector[Label]& labels):
    # A loop over the vector itself would copy texts, and end the process without memory.
    cdef list found = []
    cdef const Label* label
    cdef size_t i
    for i in range(labels.size()):
        label = &labels[i]
        found.append((_ACTIONS[<Py_ssize_t> <int> label.action], _str(label.op), _str(label.site),
                      label.start))
    return found


def dropped_events() -> int:
    """How many events were more than wanted."""
    return recording().dropped()


def clock_ns() -> int:
    """CLOCK_MONOTONIC, by which events are timed."""
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
