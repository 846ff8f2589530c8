# SPDX-License-Identifier: Apache-2.0
"""The comparison of variables between ranks, at the end of the first call of a step.

Training on several ranks goes wrong silently if the ranks hold different values of a variable:
weights that were loaded on one rank, gradients that were not averaged. So the first call of a step
ends with a comparison. In each group in which the step communicates, the ranks compare checksums of
the variables that the step has updated. Later calls compare nothing.

"First" has to mean the same call on all ranks of a group. A rank may compile a step again when the
other ranks do not, for example for a batch of another length. So this module does not remember
which steps were compared. It remembers pairs: a step's sequence of collectives, and the set of
variables that were compared. If a step has a pair that was compared before, it compares nothing.
All ranks of the group have the same sequence of collectives, so they agree on which call is the
first.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from .. import _core
from .._util.callsite import call_site
from ..comm import Group
from ..comm.world import open_world
from ..dtypes import Array
from ..errors import VariableMismatchError, VaryingVariableWarning
from ..graph.graph import Graph
from ..graph.node import Node
from ..passes.sharding.uniform import NextValue, source_of_variation, varying
from .collective_sequence import CollectiveSequence

MANY_BYTES: Final = 1 << 24
"""The least number of bytes of variables for which several threads compute the checksums."""
FEW: Final = 3
"""The number of variables that a message names."""

_compared: Final[WeakKeyDictionary[Group, set[tuple[Any, ...]]]] = WeakKeyDictionary()
"""For each group, the keys of the comparisons of variables that this process has made in it. A key
has the name of the device, the hash of the step's sequence of collectives, and the variables' ids.
"""


_members: Final[WeakKeyDictionary[Group, list[int]]] = WeakKeyDictionary()
"""A dict from a group to the numbers of its ranks in the world, which is the group of all ranks of
the job. `compare` adds a group when its ranks compare variables."""


class ComparedStep(Protocol):
    """The members of a compiled step that this module uses to compare the step's variables."""

    device: ClassVar[str]
    graph: Graph
    sequence: CollectiveSequence
    hold: _core.Hold
    next_values: list[NextValue]

    def checksum(self, variable: Node) -> tuple[int, int] | None:
        """Return a checksum of a variable that the step holds (locks); None if ranks share it."""
        ...


class Entry(NamedTuple):
    """A variable of this rank, with the numbers that the ranks of a group compare."""

    name: str
    words: tuple[int, int, int, int, int]
    """Five numbers: a hash of the variable's name; 1 if the tuple `others` (below) is not empty, or
    else 0; a hash of the computation of the variable's new value; and the two numbers of a checksum
    of its value."""
    others: tuple[Group, ...]
    """Further groups of the variable, besides the group of the comparison. Only the ranks that are
    in all of these groups are compared, because the variable should be equal on them."""


class Comparison(NamedTuple):
    """The variables to compare in one group."""

    group: Group
    key: tuple[Any, ...]
    entries: list[Entry]


class Difference(NamedTuple):
    """A variable that differs between the ranks of a group."""

    entry: Entry | None
    """This rank's `Entry` for the variable; None if this rank has no variable of this name."""
    ranks: tuple[int, ...]
    """The ranks outside the majority. The ranks of the majority all lack the variable, or all have
    it with the same value and the same computation of its new value."""
    usual: int
    """The first rank of the majority (the ranks that agree on the variable). The error message
    says that `ranks` differ from it."""
    what: str
    """The kind of the difference: "variables" (some ranks lack the variable), "update rules" (the
    computations of its new value differ) or "values"."""


CURES: Final = {
    "variables": "Let all ranks build the same model and optimizer, with the same names",
    "update rules": (
        "Give all ranks the same optimizer and the same constants, such as learning rates"
    ),
    "values": (
        "Call ngd.broadcast_variables(variables) before the first step, and average the gradients "
        "over the ranks (optimizer.minimize does)"
    ),
}
"""The advice for each kind of difference, in order of priority. If variables differ in several
ways, the error reports the kind that comes first in this table."""
KINDS: Final = tuple(CURES)


class FirstCall(_core.Hold):
    """An object that holds (locks) a step's variables in a run, and compares them between ranks.

    A new step has this object as its attribute `hold`. After the first call that ends with equal
    variables on all ranks, the attribute becomes an object that compares nothing, so later calls
    have no extra cost. `states` are the live states (ngd.LiveState) of the variables that the step
    updates.
    """

    def __init__(self, step: ComparedStep, hold: _core.Hold, states: Sequence[Any]) -> None:
        super().__init__([], [], step.device)
        self.step, self.hold, self.states = step, hold, states

    def run(self, native: Any, inputs: list[Array], outputs: list[Array]) -> None:
        """Run the step once, and compare its variables between the ranks.

        Before the run, check the values that `states` loaded from checkpoints. Raise a ValueError
        if the state has no variable for a loaded value. If the loaded state was complete, also
        raise it for a variable that was made after the load and got no loaded value.
        """
        for state in self.states:
            state.expect_complete()
        with ExitStack() as until_compared:
            watched = Watched(native, self.step, until_compared)
            self.hold.run(watched, inputs, outputs)
            different = compare(watched.comparisons)
            if different and len(watched.comparisons) > 1:  # raise here to close the groups
                raise mismatch(different, self.step)
        if different:
            raise mismatch(different, self.step)
        self.step.hold = self.hold


class Watched:
    """A step that computes checksums of its variables after a run, while they are still locked.

    If an exception is raised between the run and the end of the comparison, the other ranks would
    wait for this one. So `run` enters a context that closes the groups in case of an exception. The
    context is on the ExitStack `until_compared`, which the caller closes after the comparison.
    """

    def __init__(self, native: Any, step: ComparedStep, until_compared: ExitStack) -> None:
        self.native, self.step, self.until_compared = native, step, until_compared
        self.comparisons = comparisons_of(step)

    @property
    def variables_touched(self) -> bool:
        """True if the run failed after it had begun to write variables."""
        return bool(self.native.variables_touched)

    def run(self, inputs: list[Array], outputs: list[Array]) -> None:
        """Run the step once, and store in `comparisons` the checksums that ranks will compare."""
        groups = [each.group for each in self.comparisons]
        call = _core.AbortOnError([g.communicator for g in groups], [g.abort for g in groups], True)
        self.until_compared.enter_context(call)
        self.native.run(inputs, outputs)
        add_entries(self.comparisons, self.step)


def communicating_groups(step: ComparedStep) -> dict[Group, int]:
    """Return a dict from each group in which a step has collectives to a hash of their sequence."""
    pairs = zip(step.sequence.groups, step.sequence.hashes(), strict=True)
    return {
        group: hash for group, hash in pairs if hash and group.size > 1 and isinstance(group, Group)
    }


def comparisons_of(step: ComparedStep) -> list[Comparison]:
    """Return a comparison for each group in which this step's variables were not compared yet.

    The comparisons are in the order of the step's groups. `_compared` has the keys of the
    comparisons that were made before.
    """
    found: dict[Group, Comparison] = {}
    for group, hash in communicating_groups(step).items():
        mine = [value for value in step.next_values if group in value.groups]
        key = (step.device, hash, *(value.variable.id for value in mine))
        if mine and key not in _compared.setdefault(group, set()):
            found[group] = Comparison(group, key, [])
    return [*found.values()]


def add_entries(comparisons: Sequence[Comparison], step: ComparedStep) -> None:
    """Add an entry with a checksum for each variable that should be equal on several ranks.

    `step.next_values` has these variables, each with a set of groups (`NextValue.groups`). The
    variable should be equal on the ranks that are in all groups of its set. The entry is added to
    the comparison of one group of the set: the first in which the step communicates.
    """
    found = {each.group: each for each in comparisons}
    compared: list[tuple[NextValue, list[Group]]] = []
    communicating = communicating_groups(step)
    for value in step.next_values:
        groups = [group for group in communicating if group in value.groups]
        if groups and groups[0] in found and all(each.size > 1 for each in value.groups):
            compared.append((value, groups))
    checksums = checksums_of(step, [value.variable for value, _ in compared])
    for (value, (first, *others)), checksum in zip(compared, checksums, strict=True):
        if checksum is not None:
            name = step.graph.names[value.variable]
            head = hash_of(name.encode(errors="backslashreplace")), int(bool(others))
            words = (*head, hash_of(value.computation), *checksum)
            found[first].entries.append(Entry(name, words, tuple(others)))


def checksums_of(step: ComparedStep, variables: Sequence[Node]) -> Iterable[tuple[int, int] | None]:
    """Return the checksums of variables. Several threads compute those of large variables."""
    threads = min(_core.thread_count(), len(variables))
    if threads < 2 or sum(v.type.bytes for v in variables) < MANY_BYTES:
        return [step.checksum(v) for v in variables]
    from concurrent.futures import ThreadPoolExecutor  # here, because it is slow to import

    with ThreadPoolExecutor(threads) as pool:
        return [*pool.map(step.checksum, variables)]


def hash_of(text: bytes) -> int:
    """Return a hash of 64 bits that is equal in all processes."""
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def compare(comparisons: Sequence[Comparison]) -> list[Difference]:
    """Compare variables with the other ranks, and return the differences.

    Each comparison is made in one group, whose ranks all call this. All ranks of the group find the
    same differences in it.
    """
    site = f"step() at {call_site()}"
    heads = [exchange_heads(each, site) for each in comparisons]
    for each, head in zip(comparisons, heads, strict=True):
        _members[each.group] = head[:, 0].tolist()
    different: list[Difference] = []
    for each, head in zip(comparisons, heads, strict=True):
        if head[:, 2].any() or (head[:, 1:] != head[0, 1:]).any():
            different += exchange_entries(each, head, site)
    if not different:
        for each in comparisons:
            _compared[each.group].add(each.key)
    return different


def exchange_heads(each: Comparison, site: str) -> Array:
    """Gather one row of five numbers from each rank of a group, and return the array of all rows.

    The row of a rank summarizes its entries (one `Entry` per variable to compare). It has the
    number of the rank in the world, the number of its entries, the number of entries whose variable
    has groups besides this one (`Entry.others`), and the two halves of a hash of its entries.
    """
    world = open_world()
    number = each.group.rank if world is None else world.rank
    hasher = hashlib.blake2b(digest_size=16)
    hasher.update(np.array([entry.words for entry in each.entries], np.uint64).tobytes())
    low, high = np.frombuffer(hasher.digest(), np.uint64)
    conditional = sum(bool(entry.others) for entry in each.entries)
    mine = np.array([[number, len(each.entries), conditional, low, high]], np.uint64)
    rows: Array = each.group.all_gather(mine, site=site)
    return rows


def exchange_entries(each: Comparison, head: Array, site: str) -> list[Difference]:
    """Compare all variables between the ranks of a group, and return those that differ.

    Each rank sends its entries (one `Entry` per variable) to all ranks. `head` is the array that
    `exchange_heads` returns. Its row for a rank begins with the number of the rank in the world,
    and the number of entries of the rank.
    """
    mine = np.array([entry.words for entry in each.entries], np.uint64).reshape(-1, 5)
    counts = [int(count) for count in head[:, 1]]
    rows = each.group.all_gather_v(mine, counts=counts, site=site).tolist()
    entries = {entry.words[0]: entry for entry in each.entries}
    all_words: dict[int, dict[int, tuple[int, ...]]] = {}
    """all_words[hash of a variable's name][number of a rank in the world] has three numbers: a hash
    of the computation of the variable's new value, and the two numbers of its checksum."""
    for number, count in zip(head[:, 0].tolist(), counts, strict=True):
        for name, is_conditional, *words in rows[:count]:
            if name in entries or not is_conditional:  # else it concerns groups without this rank
                all_words.setdefault(name, {})[number] = tuple(words)
        del rows[:count]
    found = []
    for name, by_rank in all_words.items():
        entry = entries.get(name)
        others = entry.others if entry is not None else ()
        words_of = {
            rank: by_rank.get(rank)
            for rank in head[:, 0].tolist()
            if all(rank in _members[other] for other in others)
        }
        usual, _ = Counter(words_of.values()).most_common(1)[0]
        differing = tuple(rank for rank, words in words_of.items() if words != usual)
        if differing:
            first = next(rank for rank, words in words_of.items() if words == usual)
            found.append(
                Difference(entry, differing, first, kind_of_difference([*words_of.values()]))
            )
    return found


def kind_of_difference(all_words: Sequence[tuple[int, ...] | None]) -> str:
    """Return how one variable differs between ranks: "variables", "update rules" or "values".

    `all_words` has one tuple per rank: a hash of the computation of the variable's new value, and
    the two numbers of its checksum. If a rank lacks the variable, None replaces its tuple.
    """
    words = [each for each in all_words if each is not None]
    if len(words) < len(all_words):
        return "variables"
    return "update rules" if len({each[0] for each in words}) > 1 else "values"


def mismatch(different: Sequence[Difference], step: ComparedStep) -> VariableMismatchError:
    """Return the error for some differences. Its message names the ranks and the variables."""
    ranks = sorted({rank for each in different for rank in each.ranks})
    named = ", ".join(str(rank) for rank in ranks)
    what = next(kind for kind in KINDS if any(each.what == kind for each in different))
    labels = names_of(
        [
            repr(each.entry.name)
            if each.entry is not None
            else "a variable that this rank does not have"
            for each in different
        ]
    )
    error = VariableMismatchError(
        "compile: expected variables that are equal on all ranks after the first call of the step "
        f"compiled at {step.sequence.site}; got other {what} on rank{'s' * (len(ranks) > 1)} "
        f"{named} than on rank {different[0].usual}, for {labels}. {CURES[what]}, or, if ranks "
        "differ by design, make the variable with ngd.variable(name, value, per_rank=True)."
    )
    error.ranks = tuple(ranks)
    return error


def names_of(names: Sequence[str]) -> str:
    """Return the names of the first three variables, and the number of others, for a message."""
    shown = ", ".join(names[:FEW])
    more = len(names) - FEW
    return f"{shown} and {more} more" if more > 0 else shown


def warn_of_varying(values: Sequence[NextValue], group: Any, site: str) -> None:
    """Warn of variables whose new values the compiler cannot prove equal on all ranks."""
    unproved = varying(values)
    if not unproved:
        return
    first = unproved[0]
    source = source_of_variation(first.value, group)
    called = f" {source.attrs['name']!r}" if "name" in source.attrs else ""
    text = (
        "compile: expected next values of variables that are equal on all ranks; got, for "
        f"{names_of([repr(v.variable.attrs['name']) for v in unproved])}, values that depend on "
        f"{source.op.name}{called} of each rank (made at {source.site}) without a collective in "
        "between. Average the gradients over the ranks (optimizer.minimize does), or, if ranks "
        "differ by design, make the variable with ngd.variable(name, value, per_rank=True)."
    )
    file, _, line = site.rpartition(":")
    warnings.warn_explicit(
        text, VaryingVariableWarning, file or site, int(line) if line.isdigit() else 1
    )


__all__ = ["FirstCall", "compare", "warn_of_varying"]
