# SPDX-License-Identifier: Apache-2.0
"""`ngd.timeline`: a file that shows when each rank ran each instruction.

The file has the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open. In
this format a *slice* is an entry with a begin and a duration, and a *row* is a thread of a process.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from .. import _core
from ..comm import Group
from ..comm.launchers.detect import detect
from ..comm.world import open_world
from ..errors import InitError
from ..passes import Plan
from .collectives import shown_names, variables_of
from .recording import BridgeCall, Recording, bridge_calls, plans, record_block

if TYPE_CHECKING:
    from pathlib import Path

MOST_EVENTS: Final = 1_000_000
"""The default limit of events per rank. An event takes 40 bytes of memory, and about 150 bytes in
the file."""
PINGS: Final = 30
"""The number of round trips that measure the offset of a clock."""
BRIDGES: Final = 1_000_000
"""The thread id (`tid` in the file) of the collectives of bridges, which have their own row.

A bridge is a module with the interface of another library, such as ngd.horovod. The ids of real
threads are smaller.
"""

Event: TypeAlias = tuple[int, int, int, int, int]
"""(program, instruction, thread, begin in ns, end in ns), with numbers for the first three.

Instruction -1 stands for a run of the whole program.
"""
Label: TypeAlias = tuple[str, str, str, int]
"""(action, op, call site, start) of an instruction.

`start` is, for a wait, the number of the instruction that started the collective.
"""


@contextmanager
def timeline(
    path: str | os.PathLike[str], *, most_events: int = MOST_EVENTS
) -> Iterator[Recording]:  # long because each argument is described
    """Record when each instruction of compiled steps runs in a block; write a file for Perfetto.

    The file shows a rank as a process, and an instruction or a whole step as a slice. Pending
    collectives are below them, from the start of the collective to the end of the wait. All times
    are in the clock of rank 0. The file also has the collectives of ngd.horovod. After the block,
    `Executable.report()` has times too.

    All ranks of a job enter and leave the block. At its end, rank 0 gathers the events and writes
    the file. Each rank writes its own events to a separate file, such as `trace.rank1.json`, in two
    cases: an exception leaves the block, or at its end the rank is not in the world, because
    ngd.init was not called or the world is closed. These files use the clock of their rank.

    Parameters
    ----------
    path : str or path
        The JSON file. An existing file is replaced when the new one is complete. A relative path is
        resolved when the block begins.
    most_events : int, default 1000000
        The largest number of events per rank. The file has the number of events that were dropped.

    Yields
    ------
    Recording
        The steps that were compiled in the block.

    Raises
    ------
    BusyError
        The process is in a block of ngd.profile or ngd.timeline already.
    ValueError
        most_events is less than 1.
    OSError
        The file cannot be written. It is raised on the rank that writes the file.

    Notes
    -----
    Ranks on one Linux kernel use the same clock. If a rank and rank 0 run on different kernels, 30
    round trips measure the offset between their clocks. Only the shortest round trip is used. Rank
    0 is assumed to read its clock in the middle of this round trip (F. Cristian 1989,
    "Probabilistic clock synchronization").

    Examples
    --------
    >>> step = ngd.compile([x, y], [loss])
    >>> with ngd.timeline(folder / "trace.json"):
    ...     outputs = step(images, labels)
    """
    if most_events < 1:
        raise ValueError(f"timeline: most_events: expected at least 1; got {most_events}")
    from pathlib import Path  # here, because it is slow to import

    with timeline_file(Path(path).absolute(), most_events) as recording:
        yield recording


@contextmanager
def timeline_file(path: Path, most_events: int) -> Iterator[Recording]:
    """Record the steps that run in a block. At its end, write the events of all ranks to a file."""
    entered = False
    try:
        with record_block(most_events) as recording:
            entered = True
            yield recording
    except BaseException:
        if entered:
            write_after_error(path)
        raise
    world = open_world()
    if world is None:
        write_own_events(path)
    else:
        try:
            with world.collectives_scope():
                parts = gather_events(world)
        except BaseException:
            write_after_error(path)
            raise
        if world.rank == 0:
            save(path, parts)


def gather_events(world: Group) -> list[bytes]:
    """On rank 0, return the JSON text of each rank's events; on other ranks, an empty list."""
    events = _core.recorded_events()
    offset = offset_to_root(world)
    begin = int(world.all_reduce(np.int64(first(events) + offset), op="min"))
    own_part = part(world.rank, events, offset, begin)
    num_bytes = world.all_gather(np.array([len(own_part)]))
    if world.rank > 0:
        world.send(np.frombuffer(own_part, np.uint8), 0)
        return []
    parts = [own_part]
    for rank in range(1, world.size):
        parts.append(world.recv(rank, shape=(int(num_bytes[rank]),), dtype=np.uint8).tobytes())
    return parts


def write_own_events(path: Path) -> None:
    """Write the events of this rank to a separate file, in the clock of this rank."""
    try:
        me = detect()
        rank, size = me.rank, me.size
    except InitError:  # the launcher's variables are invalid, and the program has not needed them
        rank, size = 0, 1
    if size > 1:
        path = path.with_suffix(f".rank{rank}{path.suffix}")
    events = _core.recorded_events()
    save(path, [part(rank, events, 0, first(events))])


def write_after_error(path: Path) -> None:
    """Write the events of this rank while another exception is raised.

    If the file cannot be written, issue a warning, so that the other exception is not replaced.
    """
    try:
        write_own_events(path)
    except OSError as error:
        warnings.warn(f"ngd.timeline: the file was not written: {error}", stacklevel=5)


def first(events: Iterable[Event]) -> int:
    """Return the start time of the first event, in ns. Without events, return the present time."""
    begins = [event[3] for event in events] + [begin for _, _, begin, _ in bridge_calls()]
    return min(begins, default=_core.clock_ns())


def save(path: Path, parts: Iterable[bytes]) -> None:
    """Write the file and replace an old one atomically. A pipe or device is written in place."""
    path = path.resolve()
    special_file = path if path.exists() and not path.is_file() else None
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with (special_file or temporary).open("wb") as file:
            file.write(b'{"displayTimeUnit": "ns", "traceEvents": [\n')
            for number, each in enumerate(parts):
                file.write(b",\n" * (number > 0) + each)
            file.write(b"\n]}\n")
        if special_file is None:
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def part(rank: int, events: Iterable[Event], offset: int, begin: int) -> bytes:
    """Return the events of this process as JSON objects, separated by commas, for the file.

    The time of an event in the file is (time + offset - begin) / 1000, in microseconds. The three
    terms are in ns. `offset` converts the clock of this rank to the clock of rank 0. `begin` is the
    time of the first event of all ranks, in the clock of rank 0. In a separate file of one rank,
    `offset` is 0 and `begin` is the first event of that rank.
    """
    dropped = _core.dropped_events()
    name = f"rank {rank} on {os.uname().nodename}" + (
        f", {dropped} events dropped" if dropped else ""
    )
    head = [
        {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": name}},
        {"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": rank}},
    ]
    converter = EventConverter(rank, _core.recorded_labels())
    shift = offset - begin
    lines = [*head, *[each for event in events for each in converter.objects(event, shift)]]
    lines += [bridge_slice(rank, call, shift) for call in bridge_calls()]
    return ",\n".join(map(json.dumps, lines)).encode(errors="backslashreplace")


def bridge_slice(rank: int, call: BridgeCall, shift: int) -> dict[str, Any]:
    """Return the JSON object of a collective of a bridge, with the thread id BRIDGES.

    `shift` is added to the times, in ns.
    """
    name, site, begin, end = call
    length = {"ts": (begin + shift) / 1e3, "dur": (end - begin) / 1e3}
    at = {"ph": "X", "cat": "collective", "pid": rank, "tid": BRIDGES}
    return {**at, "name": name, **length, "args": {"site": site}}


class EventConverter:
    """A converter of the events of a rank to JSON objects of the file.

    Parameters
    ----------
    rank : int
        The rank.
    labels : dict
        The labels of the instructions of each program.
    """

    def __init__(self, rank: int, labels: dict[int, list[Label]]) -> None:
        self.rank, self.labels = rank, labels
        self.programs = {program: n for n, program in enumerate(sorted(labels))}
        self.details = details_of(labels)
        self.started: dict[tuple[int, int], int] = {}
        """A dict {(program, instruction): time in ns} of collectives that have started and not
        ended. The instruction is the one that started the collective."""
        self.num_collectives = 0

    def objects(self, event: Event, shift: int) -> Iterator[dict[str, Any]]:
        """Yield the JSON objects of an event.

        The first object shows the event, with its begin and duration. The event of a wait for
        a collective yields two more objects: one for the begin of the collective, and one for its
        end, the end of the wait. These two are left out if the start was not recorded. `shift` is
        added to the times, in ns.
        """
        program, number, thread, begin, end = event
        at = {"pid": self.rank, "tid": thread}
        length = {"ts": (begin + shift) / 1e3, "dur": (end - begin) / 1e3}
        if number < 0:
            name = f"step {self.programs[program]}"
            yield {"ph": "X", "name": name, "cat": "step", **at, **length}
            return
        action, op, site, start = self.labels[program][number]
        name = op if action == "run" else f"{action} {op}"
        details = {"site": site, **self.details[program][number]}
        args = {**details, "instruction": number}
        yield {"ph": "X", "name": name, "cat": action, **at, **length, "args": args}
        if action == "start":
            self.started[program, number] = begin
        elif action == "wait" and (program, start) in self.started:
            self.num_collectives += 1
            same = {
                "name": op,
                "cat": "collective",
                "id": f"{self.rank}.{self.num_collectives}",
                **at,
            }
            started = self.started.pop((program, start))
            yield {"ph": "b", **same, "ts": (started + shift) / 1e3, "args": details}
            yield {"ph": "e", **same, "ts": (end + shift) / 1e3}


def details_of(labels: dict[int, list[Label]]) -> dict[int, list[dict[str, str]]]:
    """Return the result type and the updated variables of each collective.

    The keys of the result are the numbers of the programs. A value is a list with one dict per
    instruction; the dict is empty if the instruction is not a collective.

    The recorded events do not refer to a plan (the list of instructions that a program was made
    from). So the plan of a program is found by comparing labels: the instructions of the plan have
    the labels of the program, which are tuples (action, op, call site, start). If several plans
    with these labels differ in a collective, for example in its shape, this collective gets no
    details.
    """
    details_of_labels: dict[tuple[Label, ...], list[dict[str, str]]] = {}
    remaining = list(plans())
    while remaining:
        plan = remaining.pop()
        remaining += [body for step in plan.steps for body in step.bodies]
        key = tuple((each.action, each.op, each.site, each.start) for each in plan.steps)
        details = collectives_of(plan)
        pairs = zip(details_of_labels.get(key, details), details, strict=True)
        details_of_labels[key] = [one if one == other else {} for one, other in pairs]
    nothing: dict[str, str] = {}
    return {
        program: details_of_labels.get(tuple(each), [nothing] * len(each))
        for program, each in labels.items()
    }


def collectives_of(plan: Plan) -> list[dict[str, str]]:
    """Return one dict per instruction of a plan.

    The dict is empty if the instruction does not start a collective or wait for one. "type" is the
    dtype and shape of the result of the collective. "variables" has the names of the variables that
    are updated from this result.
    """
    variables = variables_of(plan)
    details: list[dict[str, str]] = [{} for _ in plan.steps]
    for number, names in variables.items():
        details[number]["type"] = plan.steps[number].outputs[0][0].short
        if names:
            details[number]["variables"] = shown_names(names)
    return details


def clock_name() -> str:
    """Return a name that is equal in processes with the same CLOCK_MONOTONIC.

    It consists of the boot id of the kernel and the time namespace.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            kernel = file.read()
    except OSError:
        kernel = os.uname().nodename
    try:
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:  # older than Linux 5.6
        namespace = ""
    return kernel + namespace


def offset_to_root(world: Group) -> int:
    """Return the number of ns to add to this rank's clock to get the clock of rank 0."""
    digest = hashlib.sha256(clock_name().encode()).digest()[:8]
    clocks = world.all_gather(np.frombuffer(digest, np.uint64))
    for rank in np.flatnonzero(clocks != clocks[0]).tolist():
        if world.rank == 0:
            answer_pings(world, rank)
        elif world.rank == rank:
            return measure_offset(world)
    return 0


def answer_pings(world: Group, rank: int) -> None:
    """Receive the pings of another rank, `rank`, and answer each with the time of this rank."""
    for _ in range(PINGS):
        world.recv(rank, shape=(1,), dtype=np.int64)
        world.send(np.array([_core.clock_ns()]), rank)


def measure_offset(world: Group) -> int:
    """Return (clock of rank 0) - (clock of this rank) in ns, from the shortest round trip."""
    trips = []
    for _ in range(PINGS):
        begin = _core.clock_ns()
        world.send(np.array([begin]), 0)
        root_time = int(world.recv(0, shape=(1,), dtype=np.int64)[0])
        end = _core.clock_ns()
        trips.append((end - begin, root_time - (begin + end) // 2))
    return min(trips)[1]
