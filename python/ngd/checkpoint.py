# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: variables as safetensors, and an index in JSON, replaced as one.

    ngd.checkpoint.save(folder, [parameters, optimizer.state], position={"epoch": 3, "batch": 17},
                        generators={"order": random})
    position = ngd.checkpoint.load(folder, [parameters, optimizer.state], generators=...)

The folder has the file `checkpoint.json`, the index, which names the file of the tensors. `save`
writes the tensors to a new file under a temporary name, synchronizes it with the disk and renames
it. Then it replaces the index in the same way, and deletes files that the index does not name. So
the index names a complete file at any moment, even if the process is killed.

Give the optimizer's state itself, `optimizer.state`, before or after the first step. It keeps the
values of variables that do not exist yet (ngd.LiveState), and they are saved again.

`private=` is for variables of which each rank has its own value, such as the running statistics of
batch normalization. The file has the value of each rank as "NAME@RANK". Under NAME it has the value
for other numbers of ranks and other readers: the mean of floats, and rank 0's value otherwise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from . import trees
from ._util.signature_errors import check_public_names
from .comm import Group
from .comm.calls import gather
from .comm.world import init
from .dtypes import bfloat16
from .graph.live_state import LiveState
from .graph.variable import Variable

INDEX: Final = "checkpoint.json"
TENSORS: Final = "checkpoint-{}.safetensors"
DTYPES: Final[dict[str, Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": bfloat16,
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""The names of dtypes in safetensors (https://github.com/huggingface/safetensors)."""

FLOATS: Final = tuple(DTYPES[name] for name in ("F64", "F32", "F16", "BF16"))


def save(
    folder: str | os.PathLike[str],
    variables: Any,
    *,
    private: Any = None,
    position: Any = None,
    generators: Mapping[str, np.random.Generator] | None = None,
    group: Group | None = None,
) -> None:  # long because each argument is described
    """Save variables, generators and a position as the folder's checkpoint.

    If all ranks hold the same values, one of them saves, and all may load. Two processes must not
    save into one folder at the same time. With `private`, or if ranks have shards of variables
    (`shard="world"` of ngd.compile), the call is collective and rank 0 writes.

    Parameters
    ----------
    folder : str or path
        The folder, which is made if it does not exist. An older checkpoint in it is replaced.
    variables : structure of Variable
        The variables, of any shape; their names, which must differ, are the keys. The pending
        values of a live state, such as `optimizer.state`, are saved too.
    private : structure of Variable, optional
        Variables of which each rank has its own value. They may be among `variables` too. A program
        that saves on all ranks gives `private`, even `private={}`, so that one rank writes.
    position : JSON value, optional
        The position of the training in its data.
    generators : mapping from str to numpy.random.Generator, optional
        Random generators by name, whose states are saved.
    group : Group, optional
        The ranks of `private`. The default is the world.

    Examples
    --------
    >>> ngd.checkpoint.save(folder, [model.variables(), optimizer.state], position={"epoch": 3})
    >>> ngd.checkpoint.load(folder, [model.variables(), optimizer.state])
    {'epoch': 3}
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
) -> Any:  # long because each argument is described
    """Assign the saved values to variables and generators; return the position.

    Parameters
    ----------
    folder : str or path
        The folder of the checkpoint.
    variables : structure of Variable
        The variables to assign to. Each one is in the file with the same name, shape and dtype.
        Other values of the file are not read.
    private : structure of Variable, optional
        Variables with a value per rank. If the number of ranks is the same as at the save, each
        rank gets its own value. Otherwise all get the mean of floats, and rank 0's other
        values.
    generators : mapping from str to numpy.random.Generator, optional
        Random generators by name, whose states are set.
    group : Group, optional
        The ranks of `private`. The default is the world.

    Returns
    -------
    JSON value
        The position that was saved.

    Raises
    ------
    ValueError
        A variable or generator is not in the file, or has another shape or dtype. Nothing has
        changed. The same error is raised if a step has run and the file has values for which the
        live state has no variable.
    FileNotFoundError
        There is no checkpoint.

    Notes
    -----
    If only one rank can read the folder, that rank loads, and ngd.broadcast_variables gives its
    values to the other ranks.

    A live state, such as `optimizer.state`, gets all values that were saved of it. Values of
    variables that do not exist yet are pending until the variables are made. The first step of the
    state checks that each value has a variable, and each variable a value.

    Examples
    --------
    >>> ngd.checkpoint.save(folder, model.variables(), position={"epoch": 3, "batch": 17})
    >>> position = ngd.checkpoint.load(folder, model.variables())
    >>> position["epoch"]
    3
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
            raise ValueError(
                f"checkpoint.load: expected {v.type} for variable {v.name!r}; got {has} in "
                f"{place}. "
                "Build the model as it was when it was saved, or leave the variable out."
            )
    for name in (generators or {}).keys() - index["generators"].keys():
        raise ValueError(
            f"checkpoint.load: expected names of saved generators; got {name!r}, which {place} "
            "does "
            "not contain. Leave it out."
        )
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
    """Return True if the folder has a checkpoint.

    Parameters
    ----------
    folder : str or path
        The folder.

    Examples
    --------
    >>> ngd.checkpoint.exists(folder)
    False
    """
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
                raise TypeError(
                    f"checkpoint.{where}: {path}: expected a variable; got {leaf!r}. Pass "
                    "model.variables()."
                )
            for v in variables:
                if found.setdefault(v.name, v) is not v:
                    raise ValueError(
                        f"checkpoint.{where}: expected variables with different names; got two "
                        f"called {v.name!r}. Give each model a name before its first call, "
                        'model.name = "critic", and each optimizer and nn.Random a name='
                    )
    names = [state.name for state in states.values()]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"checkpoint.{where}: expected states with different names; got two called "
                f"{name!r}. Give each optimizer and nn.Random a name."
            )
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
                    f"checkpoint.{where}: expected different names; got {name!r} as a variable and "
                    f"as a pending value of the state {state.name!r}. Rename one."
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
    """Raise ValueError for a copy of a state's variables if the file has more of the state."""
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
    """Return the key of one rank's value of a private variable."""
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
    """Return the entries of a private variable. The first axis of the values is the ranks'."""
    whole = values[0]
    if whole.dtype in FLOATS:
        whole = np.mean(values.astype(np.float64), 0).astype(whole.dtype)
    return {name: whole, **{of_rank(name, rank): value for rank, value in enumerate(values)}}


def safetensors(values: Mapping[str, Any]) -> Iterable[bytes | memoryview]:
    """Yield the parts of a safetensors file: the header's length, the header, and each value.

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
    """Return the arrays of a safetensors file by name, as views of the mapped file.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    dict from str to numpy.ndarray
        Arrays of any shape, which Module.load_state_dict accepts.

    Raises
    ------
    ValueError
        The file is not complete.

    Examples
    --------
    >>> ngd.checkpoint.save(folder, model.variables())
    >>> arrays = ngd.checkpoint.read_safetensors(folder / "checkpoint-1.safetensors")
    >>> model.load_state_dict(arrays)
    Keys(missing=[], unexpected=[])
    """
    path = Path(path)
    size = path.stat().st_size
    header, length = _read_header(path, size)
    parts = {
        name: (DTYPES[t["dtype"]], t["shape"], *t["data_offsets"]) for name, t in header.items()
    }
    if 8 + length + max([end for *_, end in parts.values()], default=0) != size:
        raise ValueError(
            f"checkpoint: expected a complete safetensors file; got {path}, which is cut or "
            "damaged. Load an older checkpoint."
        )
    data: Any = (
        np.memmap(path, np.uint8, "r", 8 + length) if size > 8 + length else np.empty(0, "u1")
    )
    return {
        name: np.asarray(data[begin:end]).view(dtype).reshape(shape)
        for name, (dtype, shape, begin, end) in parts.items()
    }


def _read_header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file of `size` bytes, and the length of its text."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError(
                f"checkpoint: expected a complete safetensors file; got {path}, which is cut or "
                "damaged"
            )
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, length


def read_index(place: Path) -> dict[str, Any]:
    """Return the index of a folder."""
    try:
        text = (place / INDEX).read_text()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"checkpoint.load: expected a checkpoint in {str(place)!r}; got a folder without "
            f"{INDEX}, or none. Check the path, or call checkpoint.exists(folder) first."
        ) from None
    index: dict[str, Any] = json.loads(text, object_hook=decoded)
    return index


def encoded(value: Any) -> Any:
    """An array, or a number of NumPy's, as JSON has it: in some generators' states."""
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.name}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(
        f"checkpoint.save: position: expected a JSON value; got {value!r}. Use dicts, lists, "
        "strings "
        "and numbers."
    )


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

check_public_names(globals())
