# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: variables as safetensors, and an index in JSON, replaced as one.

    ngd.checkpoint.save(folder, [parameters, optimizer.state], position={"epoch": 3, "batch": 17},
                        generators={"order": random})
    position = ngd.checkpoint.load(folder, [parameters, optimizer.state], generators=...)

The folder holds `checkpoint.json`, which names the file of the tensors. To save: the tensors go
into a new file, under another name first; it is synchronized with the disk and gets its name; then
the index is replaced in the same way; at last what no index names is deleted. So at any moment,
also if the process is killed there, the index names a whole file.

An optimizer's state is given as it is, `optimizer.state`, and may be given before the first step:
values of variables that do not exist yet are kept by it (ngd.LiveState), and saved again.

What each rank has of its own, batch normalization's statistics say, is `private=`: the file holds
it for every rank, "NAME@RANK", and under NAME what other numbers of ranks and other readers take:
the mean of floats, and rank 0's of all else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from . import (
    Group,
    LiveState,
    Variable,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    gather,
    init,
    int8,
    int16,
    int32,
    int64,
    trees,
    uint8,
    uint16,
    uint32,
    uint64,
)

INDEX: Final = "checkpoint.json"
TENSORS: Final = "checkpoint-{}.safetensors"
DTYPES: Final[dict[str, Any]] = {
    "F64": float64,
    "F32": float32,
    "F16": float16,
    "BF16": bfloat16,
    "I64": int64,
    "I32": int32,
    "I16": int16,
    "I8": int8,
    "U64": uint64,
    "U32": uint32,
    "U16": uint16,
    "U8": uint8,
    "BOOL": bool_,
}
"""The names of dtypes in safetensors (https://github.com/huggingface/safetensors)."""

FLOATS: Final = (float64, float32, float16, bfloat16)


def save(
    folder: str | os.PathLike[str],
    variables: Any,
    *,
    private: Any = None,
    position: Any = None,
    generators: Mapping[str, np.random.Generator] | None = None,
    group: Group | None = None,
) -> None:
    """Replace the folder's checkpoint, or make the first one.

    Where all ranks hold the same values one of them saves, and all may load. Two processes must not
    save into one folder at a time. With `private`, or where ranks have a part each of a variable
    (`shard="world"` of ngd.compile), the call is collective, and rank 0 writes. A program that
    calls it on all ranks gives `private`, even `private={}`: on one host no rank has only a part.

    Parameters
    ----------
    variables
        In any structure; their names, which must differ, are the keys. Of a live state, such as
        `optimizer.state`, the pending values are saved too.
    private
        Variables, in any structure, of which each rank has a value of its own; they may be among
        the others too. A structure without any is one as well.
    position
        Whatever JSON holds: where in the data the training stands.
    generators
        NumPy's random generators by name, whose states are kept.
    group
        Whose ranks the private values are; by default the world's.
    """
    place = Path(folder)
    held, states = collected("save", variables=variables, private=private)
    values = with_pending("save", held, states)
    apart = [v for v in held.values() if v.kept_by is not None]
    ranks, first = 1, not apart or apart[0].kept_by.rank == 0
    if private is not None:
        world = init() if group is None else group
        ranks, first = world.size, world.rank == 0
        values |= gathered(private, world) if ranks > 1 else {}
    if not first:
        for v in apart:
            v.numpy()  # which has a part of it here
        return
    place.mkdir(parents=True, exist_ok=True)
    number = int(read_index(place)["number"]) + 1 if (place / INDEX).exists() else 1
    name = TENSORS.format(number)
    drawn = {key: g.bit_generator.state for key, g in (generators or {}).items()}
    index = {"number": number, "tensors": name, "ranks": ranks}
    index |= {"position": position, "generators": drawn, "states": index_of(held, states)}
    text = json.dumps(index, default=encoded, indent=1)  # fails before anything is written
    replace(place / name, safetensors(values))
    replace(place / INDEX, [text.encode()])
    for other in place.glob(TENSORS.format("*") + "*"):
        if other.name != name:
            other.unlink()


def load(
    folder: str | os.PathLike[str],
    variables: Any,
    *,
    private: Any = None,
    generators: Mapping[str, np.random.Generator] | None = None,
    group: Group | None = None,
) -> Any:
    """Assign to variables and generators what was saved; return the position.

    Each must be there, with its shape and dtype, else ValueError names it and nothing has changed.
    What was saved beside them is left alone. FileNotFoundError where there is no checkpoint. A
    private variable gets what this rank has saved where the group has as many ranks as then, else
    what `save` made of all ranks'. If only one rank can read the folder, that rank loads, and
    ngd.broadcast_variables gives the values to the others.

    A live state, such as `optimizer.state`, gets all values that were saved of it. Those of
    variables that do not exist yet are pending until the variables are made; the first step of the
    state checks that none is left over and none was missing. ValueError where a step has run and
    the file has values that no variable of the state takes.
    """
    place = Path(folder)
    index = read_index(place)
    source = f"checkpoint {place}"
    by_name, states = collected("load", variables=variables, private=private)
    found = read_safetensors(place / index["tensors"])
    saved = index.get("states", {})
    if private is not None and index.get("ranks", 1) > 1:
        found |= own_values(found, index, private, init() if group is None else group)
    for name, v in by_name.items():
        array = found.get(name)
        if array is None or array.shape != v.shape or array.dtype != v.dtype:
            has = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise ValueError(f"checkpoint.load: {place} holds {has} for {v!r}")
    for name in (generators or {}).keys() - index["generators"].keys():
        raise ValueError(f"checkpoint.load: {place} holds no generator {name!r}")
    expect_states(by_name, states, saved)
    rest = {
        state.name: {n: found[n] for n in names_in(saved, state.name) if n not in by_name}
        for state in states
    }
    for state in states:
        state.expect_not_run(rest[state.name], source)
    for name, v in by_name.items():
        v.assign(found[name])
    for state in states:
        is_complete = saved.get(state.name, {}).get("is_complete", True)
        state.restore(rest[state.name], source, is_complete=is_complete)
    for name, generator in (generators or {}).items():
        generator.bit_generator.state = index["generators"][name]
    return index["position"]


def own_values(
    found: Mapping[str, Any], index: Mapping[str, Any], private: Any, ranks: Group
) -> dict[str, Any]:
    """Return this rank's private values; none if another number of ranks saved them."""
    if ranks.size != index["ranks"]:
        return {}
    held, states = collected("load", private=private)
    saved = index.get("states", {})
    names = [*held, *(name for state in states for name in names_in(saved, state.name))]
    own = {name: found.get(of_rank(name, ranks.rank)) for name in names}
    return {name: array for name, array in own.items() if array is not None}


def exists(folder: str | os.PathLike[str]) -> bool:
    """Whether the folder holds a checkpoint."""
    return (Path(folder) / INDEX).exists()


def collected(where: str, **arguments: Any) -> tuple[dict[str, Variable], list[LiveState]]:
    """Return the variables of structures by name, and their live states; None has none."""
    found: dict[str, Variable] = {}
    states: dict[int, LiveState] = {}
    for argument, tree in arguments.items():
        leaves, structure = trees.flatten([] if tree is None else tree, is_state)
        for leaf, path in zip(leaves, structure.paths(argument), strict=True):
            if isinstance(leaf, LiveState):
                states |= {id(state): state for state in leaf.states}
                variables = list(leaf.variables.values())
            elif isinstance(leaf, Variable):
                variables = [leaf]
            else:
                raise TypeError(f"checkpoint.{where}: {path}: expected a variable; got {leaf!r}")
            for v in variables:
                if found.setdefault(v.name, v) is not v:
                    raise ValueError(f"checkpoint.{where}: two variables are called {v.name!r}")
    names = [state.name for state in states.values()]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"checkpoint.{where}: two states are called {name!r}")
    return found, [*states.values()]


def is_state(tree: Any) -> bool:
    """Return whether a part of a structure is a live state, which is not taken apart."""
    return isinstance(tree, LiveState)


def with_pending(
    where: str, held: Mapping[str, Variable], states: Iterable[LiveState]
) -> dict[str, Any]:
    """Return variables by name, and the pending values of live states."""
    values: dict[str, Any] = dict(held)
    for state in states:
        for name, value in state.own_pending.items():
            if name in values:
                raise ValueError(
                    f"checkpoint.{where}: {name!r} is a variable, and a pending value of the "
                    f"state {state.name!r}"
                )
            values[name] = value
    return values


def index_of(held: Mapping[str, Variable], states: Iterable[LiveState]) -> dict[str, Any]:
    """Return the part of the index about live states: the names of their values.

    `is_complete` is false before the first step of a training, which makes the other variables.
    """
    owners = {id(v.owner): v.owner for v in held.values() if v.owner is not None}
    owners |= {id(state): state for state in states}
    given = {id(state) for state in states}
    found: dict[str, Any] = {}
    for key, state in owners.items():
        names = [name for name, v in held.items() if v.owner is state]
        names += state.own_pending if key in given else []
        found[state.name] = {"names": names, "is_complete": state.is_complete}
    return found


def names_in(saved: Mapping[str, Any], state: str) -> list[str]:
    """Return the names of the values that the index lists for a state."""
    names: list[str] = saved.get(state, {}).get("names", [])
    return names


def expect_states(
    by_name: Mapping[str, Variable], states: Iterable[LiveState], saved: Mapping[str, Any]
) -> None:
    """Refuse a copy of a state's variables where the file holds more of the state."""
    given = {id(state) for state in states}
    copied = {id(v.owner): v.owner for v in by_name.values() if id(v.owner) not in given}
    for state in filter(None, copied.values()):
        all_given = all(name in by_name for name in state.own_variables)
        left = [name for name in names_in(saved, state.name) if name not in by_name]
        if all_given and left:
            raise ValueError(
                f"checkpoint.load: expected the state {state.name!r} itself; got a copy of its "
                f"variables, which exist only in part: the file holds {left[0]!r} too. Give "
                "optimizer.state, not a dict or a list made of it."
            )


def of_rank(name: str, rank: int) -> str:
    """What one rank's value of a private variable is called."""
    return f"{name}@{rank}"


def gathered(private: Any, ranks: Group) -> dict[str, Any]:
    """Return the entries of the file for private values: on rank 0 of the group, else none."""
    values: dict[str, Any] = {}
    for name, v in with_pending("save", *collected("save", private=private)).items():
        own = gather((v.numpy() if isinstance(v, Variable) else v)[None], group=ranks)
        if own is not None:
            values |= of_ranks(name, own)
    return values


def of_ranks(name: str, values: Any) -> dict[str, Any]:
    """What the file holds of a private variable; the first axis of its values is the ranks'."""
    whole = values[0]
    if whole.dtype in FLOATS:
        whole = np.mean(values.astype(float64), 0).astype(whole.dtype)
    return {name: whole, **{of_rank(name, rank): value for rank, value in enumerate(values)}}


def safetensors(values: Mapping[str, Any]) -> Iterable[bytes | memoryview]:
    """The parts of a safetensors file: the header's length, the header, and each value.

    Values are variables and arrays.
    """
    names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
    header: dict[str, Any] = {}
    end = 0
    for name, v in values.items():
        begin, end = end, end + v.nbytes
        header[name] = {
            "dtype": names[v.dtype],
            "shape": list(v.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for v in values.values():
        array = v.numpy() if isinstance(v, Variable) else np.ascontiguousarray(v)
        yield array.reshape(-1).view(np.uint8).data


def read_safetensors(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arrays of a safetensors file by name; they are views of the mapped file.

    What Module.load_state_dict takes. ValueError where the file is not whole.
    """
    path = Path(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError(f"checkpoint: {path} is no whole safetensors file")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    parts = {
        name: (DTYPES[t["dtype"]], t["shape"], *t["data_offsets"]) for name, t in header.items()
    }
    if 8 + length + max([end for *_, end in parts.values()], default=0) != size:
        raise ValueError(f"checkpoint: {path} is no whole safetensors file")
    data: Any = (
        np.memmap(path, np.uint8, "r", 8 + length) if size > 8 + length else np.empty(0, "u1")
    )
    return {
        name: np.asarray(data[begin:end]).view(dtype).reshape(shape)
        for name, (dtype, shape, begin, end) in parts.items()
    }


def read_index(place: Path) -> dict[str, Any]:
    """The index of a folder."""
    index: dict[str, Any] = json.loads((place / INDEX).read_text(), object_hook=decoded)
    return index


def encoded(value: Any) -> Any:
    """An array, or a number of NumPy's, as JSON has it: in some generators' states."""
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.name}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"checkpoint.save: JSON cannot hold {value!r}")


def decoded(value: dict[str, Any]) -> Any:
    """The inverse of `encoded`."""
    if value.keys() == {"array", "dtype"}:
        return np.array(value["array"], value["dtype"])
    return value


def replace(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Make a file, or put it in the place of another, whole or not at all."""
    beside = path.with_name(path.name + ".part")
    with beside.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


__all__ = ["exists", "load", "read_safetensors", "save"]
