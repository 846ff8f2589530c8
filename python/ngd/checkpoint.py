# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: variables as safetensors, and an index in JSON, replaced as one.

    ngd.checkpoint.save(folder, [parameters, optimizer.state], position={"epoch": 3, "batch": 17},
                        generators={"order": random})
    position = ngd.checkpoint.load(folder, [parameters, optimizer.state], generators=...)

The folder holds `checkpoint.json`, which names the file of the tensors. To save: the tensors go
into a new file, under another name first; it is synchronized with the disk and gets its name; then
the index is replaced in the same way; at last what no index names is deleted. So at any moment,
also if the process is killed there, the index names a whole file.

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
    (`shard="world"` of ngd.compile), the call is collective, and rank 0 writes.

    Parameters
    ----------
    variables
        In any structure; their names, which must differ, are the keys.
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
    values: dict[str, Any] = dict(named("save", variables=variables, private=private))
    apart = [v for v in values.values() if v.kept_by is not None]
    ranks, first = 1, not apart or apart[0].kept_by.rank == 0
    if private is not None:
        world = init() if group is None else group
        ranks, first = world.size, world.rank == 0
        for name, v in named("save", private=private).items() if ranks > 1 else ():
            own = gather(v.numpy()[None], group=world)
            if own is not None:
                values |= of_ranks(name, own)
    if not first:
        for v in apart:
            v.numpy()  # which has a part of it here
        return
    place.mkdir(parents=True, exist_ok=True)
    number = int(read_index(place)["number"]) + 1 if (place / INDEX).exists() else 1
    name = TENSORS.format(number)
    states = {key: g.bit_generator.state for key, g in (generators or {}).items()}
    index = {"number": number, "tensors": name, "ranks": ranks}
    index |= {"position": position, "generators": states}
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
    """
    place = Path(folder)
    index = read_index(place)
    by_name = named("load", variables=variables, private=private)
    found = read_safetensors(place / index["tensors"])
    if private is not None and index.get("ranks", 1) > 1:
        world = init() if group is None else group
        if world.size == index["ranks"]:
            own = {
                name: found.get(of_rank(name, world.rank))
                for name in named("load", private=private)
            }
            found |= {name: array for name, array in own.items() if array is not None}
    for name, v in by_name.items():
        array = found.get(name)
        if array is None or array.shape != v.shape or array.dtype != v.dtype:
            has = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise ValueError(f"checkpoint.load: {place} holds {has} for {v!r}")
    for name in (generators or {}).keys() - index["generators"].keys():
        raise ValueError(f"checkpoint.load: {place} holds no generator {name!r}")
    for name, v in by_name.items():
        v.assign(found[name])
    for name, generator in (generators or {}).items():
        generator.bit_generator.state = index["generators"][name]
    return index["position"]


def exists(folder: str | os.PathLike[str]) -> bool:
    """Whether the folder holds a checkpoint."""
    return (Path(folder) / INDEX).exists()


def named(where: str, **arguments: Any) -> dict[str, Variable]:
    """The variables of structures by name; None has none."""
    found: dict[str, Variable] = {}
    for argument, tree in arguments.items():
        leaves, structure = trees.flatten([] if tree is None else tree)
        for leaf, path in zip(leaves, structure.paths(argument), strict=True):
            if not isinstance(leaf, Variable):
                raise TypeError(f"checkpoint.{where}: {path}: expected a variable; got {leaf!r}")
            if found.setdefault(leaf.name, leaf) is not leaf:
                raise ValueError(f"checkpoint.{where}: two variables are called {leaf.name!r}")
    return found


def of_rank(name: str, rank: int) -> str:
    """What one rank's value of a private variable is called."""
    return f"{name}@{rank}"


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
