# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: a safetensors file with the variables, and a JSON index that names this file.

    ngd.checkpoint.save(folder, [parameters, optimizer.state], position={"epoch": 3, "batch": 17},
                        generators={"order": random})
    position = ngd.checkpoint.load(folder, [parameters, optimizer.state], generators=...)

The *index* of a folder is the file `checkpoint.json`. It has the name of the file with the tensors.
`save` replaces a checkpoint in these steps:

1. It writes the tensors to a new file under a temporary name, flushes it to the disk, and renames
   it.
2. It replaces the index in the same way.
3. It deletes the files that the index does not name.

So the index names a complete file at any moment, even if the process is killed.

`optimizer.state` is a *live state* (ngd.LiveState): a mapping from names to variables that grows,
because an optimizer creates most of its variables in its first step. Pass the live state itself,
not a copy. If a checkpoint is loaded before the first step, the live state keeps the loaded values
until their variables exist. Such values are *pending*. A `save` before the first step writes the
pending values to the new checkpoint, so none of them is lost.

*Private* variables have values that differ between ranks, such as the running statistics of batch
normalization. Pass them as `private=`. The file has the value of each rank under the name
"NAME@RANK". Under NAME it has a value for jobs with another number of ranks and for other readers:
the mean over the ranks for floats, and the value of rank 0 for other dtypes.
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
"""The name of the JSON file of a checkpoint, which gives the name of the file with the tensors."""
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
"""A dict from the name of a dtype in safetensors files to the NumPy dtype.

The file format is described at https://github.com/huggingface/safetensors.
"""

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
    """Save variables, generators and a position as the checkpoint of a folder.

    If all ranks have the same values, one rank saves, and all ranks may load. Two processes must
    not save into one folder at the same time. With `private`, or if ranks have shards of variables
    (`shard="world"` of ngd.compile), all ranks call this function and rank 0 writes the file.

    Parameters
    ----------
    folder : str or path
        The folder. It is created if it does not exist, and a checkpoint in it is replaced.
    variables : structure of Variable
        The variables, of any shape, in dicts, lists, tuples or dataclasses. Their names are the
        keys in the file, and must differ. `optimizer.state` is saved completely. This includes
        values that were loaded for variables that the first step has not created yet.
    private : structure of Variable, optional
        The variables whose values differ between ranks. They may also be in `variables`. With
        `private`, even if it is empty (`private={}`), only rank 0 of `group` writes the file.
        Without it, each rank that calls this function writes the file, unless ranks have shards
        of variables.
    position : JSON value, optional
        The position of the training in its data.
    generators : mapping from str to numpy.random.Generator, optional
        Random generators by name. Their states are saved.
    group : Group, optional
        The ranks that have values of `private`. The default is the world.

    Examples
    --------
    >>> ngd.checkpoint.save(folder, [model.variables(), optimizer.state], position={"epoch": 3})
    >>> ngd.checkpoint.load(folder, [model.variables(), optimizer.state])
    {'epoch': 3}
    """
    path = Path(folder)
    by_name, states = collect_variables("save", variables=variables, private=private)
    values = with_pending_values("save", by_name, states)
    sharded = [v for v in by_name.values() if v.kept_by is not None]
    ranks, is_writer = 1, not sharded or sharded[0].kept_by.rank == 0
    if private is not None:
        world = init() if group is None else group
        ranks, is_writer = world.size, world.rank == 0
        values |= gather_private(private, world) if ranks > 1 else {}
    if not is_writer:
        for v in sharded:
            v.numpy()  # takes part in the collective that gathers the shards
        return
    path.mkdir(parents=True, exist_ok=True)
    number = int(read_index(path)["number"]) + 1 if (path / INDEX).exists() else 1
    name = TENSORS.format(number)
    generator_states = {key: g.bit_generator.state for key, g in (generators or {}).items()}
    index = {"number": number, "tensors": name, "ranks": ranks}
    index |= {
        "position": position,
        "generators": generator_states,
        "states": index_of_states(by_name, states),
    }
    text = json.dumps(index, default=encode, indent=1)  # fails before anything is written
    replace(path / name, safetensors(values))
    replace(path / INDEX, [text.encode()])
    for other in path.glob(TENSORS.format("*") + "*"):
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
        The variables to assign to. Each one must be in the file with the same name, shape and
        dtype. Other values of the file are not read.
    private : structure of Variable, optional
        The variables whose values differ between ranks. If the number of ranks is the same as at
        the save, each rank gets its own value. Otherwise all ranks get the mean for floats, and the
        value of rank 0 for other dtypes.
    generators : mapping from str to numpy.random.Generator, optional
        Random generators by name. Their states are set.
    group : Group, optional
        The ranks that get values of `private`. The default is the world.

    Returns
    -------
    JSON value
        The position that was saved.

    Raises
    ------
    ValueError
        A variable is not in the file, or has another shape or dtype there. A generator is not in
        the file. `variables` has a copy such as `dict(optimizer.state)`, and the file has values
        of optimizer variables that do not exist before the first step. A step has already
        created the variables of `optimizer.state`, and a value of this state in the file belongs
        to none of them. In each case no value has changed.
    FileNotFoundError
        There is no checkpoint.

    Notes
    -----
    If only one rank can read the folder, load the checkpoint on that rank, and then call
    ngd.broadcast_variables to send its values to the other ranks.

    `optimizer.state` gets all of its saved values. An optimizer creates most of its variables in
    the first step, so `optimizer.state` keeps their loaded values until then. The first step that
    updates `optimizer.state` raises an error if a loaded value has no variable. If the checkpoint
    was saved after a first step, it also raises an error if a variable has no loaded value.

    Examples
    --------
    >>> ngd.checkpoint.save(folder, model.variables(), position={"epoch": 3, "batch": 17})
    >>> position = ngd.checkpoint.load(folder, model.variables())
    >>> position["epoch"]
    3
    """
    path = Path(folder)
    index = read_index(path)
    source = f"checkpoint {path}"
    by_name, states = collect_variables("load", variables=variables, private=private)
    arrays = read_safetensors(path / index["tensors"])
    saved_states = index.get("states", {})
    if private is not None and index.get("ranks", 1) > 1:
        arrays |= own_private_values(arrays, index, private, init() if group is None else group)
    for name, v in by_name.items():
        array = arrays.get(name)
        if array is None or array.shape != v.shape or array.dtype != v.dtype:
            actual = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise ValueError(
                f"checkpoint.load: expected {v.type} for variable {v.name!r}; got {actual} in "
                f"{path}. "
                "Build the model as it was when it was saved, or leave the variable out."
            )
    for name in (generators or {}).keys() - index["generators"].keys():
        raise ValueError(
            f"checkpoint.load: expected names of saved generators; got {name!r}, which {path} "
            "does "
            "not contain. Leave it out."
        )
    expect_states(by_name, states, saved_states)
    pending = {
        state.name: {n: arrays[n] for n in names_in(saved_states, state.name) if n not in by_name}
        for state in states
    }
    for state in states:
        state.expect_not_run(pending[state.name], source)
    for name, v in by_name.items():
        v.assign(arrays[name])
    for state in states:
        is_complete = saved_states.get(state.name, {}).get("is_complete", True)
        state.restore(pending[state.name], source, is_complete=is_complete)
    for name, generator in (generators or {}).items():
        generator.bit_generator.state = index["generators"][name]
    return index["position"]


def own_private_values(
    arrays: Mapping[str, Any], index: Mapping[str, Any], private: Any, ranks: Group
) -> dict[str, Any]:
    """Return this rank's values of the variables whose saved values differ between ranks, by name.

    `private` is the nested dict or list of these variables that the user passes to `load`. Return
    an empty dict if the checkpoint was saved by another number of ranks.
    """
    if ranks.size != index["ranks"]:
        return {}
    by_name, states = collect_variables("load", private=private)
    saved_states = index.get("states", {})
    names = [*by_name, *(name for state in states for name in names_in(saved_states, state.name))]
    own_arrays = {name: arrays.get(key_of_rank(name, ranks.rank)) for name in names}
    return {name: array for name, array in own_arrays.items() if array is not None}


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


def collect_variables(where: str, **arguments: Any) -> tuple[dict[str, Variable], list[LiveState]]:
    """Return the variables in the arguments by name, and a list of the LiveStates in the arguments.

    `where` is the name of the public function, "save" or "load", for error messages. Each keyword
    is the name of an argument of that function. Its value is a structure (nested dicts, lists,
    tuples or dataclasses) of variables and LiveStates such as `optimizer.state`, or None.
    """
    by_name: dict[str, Variable] = {}
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
                if by_name.setdefault(v.name, v) is not v:
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
    return by_name, [*states.values()]


def is_state(tree: Any) -> bool:
    """Return True for a LiveState, such as `optimizer.state`.

    `collect_variables` passes this function to `trees.flatten`, so that a LiveState is one leaf
    although it is a mapping.
    """
    return isinstance(tree, LiveState)


def with_pending_values(
    where: str, by_name: Mapping[str, Variable], states: Iterable[LiveState]
) -> dict[str, Any]:
    """Return all values to save, by name: the variables in `by_name`, and the pending values.

    A state, such as `optimizer.state`, may have values that were loaded from a checkpoint before
    their variables exist. These are the pending values. `where` is the name of the public function
    for error messages, such as "save".
    """
    values: dict[str, Any] = dict(by_name)
    for state in states:
        for name, value in state.own_pending.items():
            if name in values:
                raise ValueError(
                    f"checkpoint.{where}: expected different names; got {name!r} as a variable and "
                    f"as a pending value of the state {state.name!r}. Rename one."
                )
            values[name] = value
    return values


def index_of_states(by_name: Mapping[str, Variable], states: Iterable[LiveState]) -> dict[str, Any]:
    """Return "states" of `checkpoint.json`: a dict from the name of each LiveState to its entry.

    A LiveState, such as `optimizer.state`, gets its variables in the first step. The entry has the
    names of the state's values, and `is_complete`, which is False if the first step may create
    more variables of the state.
    """
    owners = {id(v.owner): v.owner for v in by_name.values() if v.owner is not None}
    owners |= {id(state): state for state in states}
    state_ids = {id(state) for state in states}
    index: dict[str, Any] = {}
    for key, state in owners.items():
        names = [name for name, v in by_name.items() if v.owner is state]
        names += state.own_pending if key in state_ids else []
        index[state.name] = {"names": names, "is_complete": state.is_complete}
    return index


def names_in(saved_states: Mapping[str, Any], state: str) -> list[str]:
    """Return the names of the saved values of one optimizer state, from a checkpoint's index.

    `saved_states` is the entry "states" of the index, and `state` is the name of the state.
    """
    names: list[str] = saved_states.get(state, {}).get("names", [])
    return names


def expect_states(
    by_name: Mapping[str, Variable], states: Iterable[LiveState], saved_states: Mapping[str, Any]
) -> None:
    """Raise ValueError if the user passed an incomplete copy of a state, not the state itself.

    A state is a LiveState, such as `optimizer.state`. It can store loaded values for variables
    that do not exist before the first step. A copy of all its variables, such as
    `dict(optimizer.state)`, cannot. It is incomplete if the file has more values of the state.
    """
    state_ids = {id(state) for state in states}
    copied = {id(v.owner): v.owner for v in by_name.values() if id(v.owner) not in state_ids}
    for state in filter(None, copied.values()):
        has_all = all(name in by_name for name in state.own_variables)
        missing = [name for name in names_in(saved_states, state.name) if name not in by_name]
        if has_all and missing:
            raise ValueError(
                f"checkpoint.load: expected the state {state.name!r} itself; got a copy of its "
                f"variables, which is incomplete: the file has {missing[0]!r} too. Give "
                "optimizer.state, not a dict or a list made of it."
            )


def key_of_rank(name: str, rank: int) -> str:
    """Return "NAME@RANK", the key in the checkpoint's file for one rank's value of a variable.

    Variables whose values differ between ranks have one such key per rank.
    """
    return f"{name}@{rank}"


def gather_private(private: Any, ranks: Group) -> dict[str, Any]:
    """Gather the values of variables that differ between ranks, on rank 0 of `ranks`.

    `private` is the structure of these variables that the user passes to `save`. On rank 0, return
    their entries for the checkpoint's file. On other ranks, return an empty dict.
    """
    values: dict[str, Any] = {}
    for name, v in with_pending_values("save", *collect_variables("save", private=private)).items():
        own = gather((v.numpy() if isinstance(v, Variable) else v)[None], group=ranks)
        if own is not None:
            values |= entries_of_ranks(name, own)
    return values


def entries_of_ranks(name: str, values: Any) -> dict[str, Any]:
    """Return the entries of the checkpoint's file for a variable that differs between ranks.

    They are one entry "NAME@RANK" per rank with the value of the rank, and one entry NAME with the
    mean over the ranks for floats, or the value of rank 0 for other dtypes. `values` has the value
    of rank r at index r of its first axis.
    """
    combined = values[0]
    if combined.dtype in FLOATS:
        combined = np.mean(values.astype(np.float64), 0).astype(combined.dtype)
    return {name: combined, **{key_of_rank(name, rank): value for rank, value in enumerate(values)}}


def safetensors(values: Mapping[str, Any]) -> Iterable[bytes | memoryview]:
    """Yield the parts of a safetensors file: the length of the header, the header, and each value.

    The values are variables or arrays, by name.
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
    """Return the arrays of a safetensors file by name.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    dict from str to numpy.ndarray
        The arrays. They are views of the mapped file, so their bytes are read when they are used.
        Module.load_state_dict accepts them.

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
            f"checkpoint: expected a complete safetensors file; got {path}, which is "
            "truncated or damaged. Load an older checkpoint."
        )
    data: Any = (
        np.memmap(path, np.uint8, "r", 8 + length) if size > 8 + length else np.empty(0, "u1")
    )
    return {
        name: np.asarray(data[begin:end]).view(dtype).reshape(shape)
        for name, (dtype, shape, begin, end) in parts.items()
    }


def _read_header(path: Path, size: int) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file of `size` bytes, and the header's length in bytes."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError(
                f"checkpoint: expected a complete safetensors file; got {path}, which is "
                "truncated or damaged"
            )
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, length


def read_index(folder: Path) -> dict[str, Any]:
    """Return a folder's `checkpoint.json` as a dict; raise FileNotFoundError if it is missing."""
    try:
        text = (folder / INDEX).read_text()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"checkpoint.load: expected a checkpoint in {str(folder)!r}; got a folder without "
            f"{INDEX}, or no folder. Check the path, or call checkpoint.exists(folder) first."
        ) from None
    index: dict[str, Any] = json.loads(text, object_hook=decode)
    return index


def encode(value: Any) -> Any:
    """Return an array or a NumPy scalar in a form that JSON supports, for states of generators."""
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.name}
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(
        f"checkpoint.save: position: expected a JSON value; got {value!r}. Use dicts, lists, "
        "strings "
        "and numbers."
    )


def decode(value: dict[str, Any]) -> Any:
    """Return the array if the dict is a result of `encode`; return any other dict unchanged."""
    if value.keys() == {"array", "dtype"}:
        return np.array(value["array"], value["dtype"])
    return value


def replace(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file, or replace it, atomically.

    The parts are written to a temporary file, which is flushed to the disk and renamed.
    """
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


__all__ = ["exists", "load", "read_safetensors", "save"]

check_public_names(globals())
