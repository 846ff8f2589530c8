# SPDX-License-Identifier: Apache-2.0
"""Collectives inside programs of JAX: in jax.jit, with gradients and vmap.

    import ngd.jax

    step = jax.jit(lambda w, x: w - 0.1 * ngd.jax.all_reduce(jax.grad(loss)(w, x), op="mean"))

Each rank is a process with one CPU device; jax.distributed is not needed. Arrays are those of
ngd's collectives (docs/collectives.md), or trees of them; every rank traces the same program. A
call is one of XLA's foreign function interface: no copy, no Python while the program runs.

In one function the calls run in the order of the program: each takes a token from the one before,
which needs nothing of the user. Calls of functions that were compiled apart, or of bodies of loops,
have that order as long as their operands do; another order is an error on all ranks. JAX drops a
call whose result nobody reads: all ranks have to read it, or none.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import ffi
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from . import _core
from .collectives import Group
from .distributed import chosen
from .dtype import ALL, is_float
from .errors import DTypeError, GradientError, ShapeError
from .kinds import KINDS, Kind
from .ops.collective import REDUCTIONS
from .sites import call_site

Tree: TypeAlias = Any
"""An array of JAX, or a tree of them."""

TARGET: Final = "ngd_collective"
LINEAR: Final = ("none", "sum", "mean")
"""The ops that have a gradient."""

_groups: Final[list[Group]] = []
"""Those that compiled programs may call, by their numbers; they are kept."""


def number_of(group: Group) -> int:
    """What programs call a group."""
    for number, known in enumerate(_groups):
        if known is group:
            return number
    number = group.communicator.enlist()
    assert number == len(_groups), "programs know groups by their place in this list"
    _groups.append(group)
    return number


collective_p: Final = Primitive("ngd_collective")
"""Of one array; params: kind, op, root, group, site."""


def collective(x: Any, kind: Kind, op: str, group: Group | None, root: int) -> Any:
    """One call of one array."""
    where = f"ngd.jax.{kind.name}"
    if kind.reduces and op not in REDUCTIONS:
        raise ValueError(f"{where}: op: expected sum, mean, min, max or prod; got {op!r}")
    ranks, x = chosen(group), jnp.asarray(x)
    if np.dtype(x.dtype) not in ALL:
        raise DTypeError(f"{where}: expected numbers or booleans; got {x.dtype}")
    if op == "mean" and not is_float(np.dtype(x.dtype)):
        raise DTypeError(f"{where}: op='mean': expected floats; got {x.dtype}")
    if not 0 <= root < ranks.size:
        raise ValueError(f"{where}: root: expected 0 to {ranks.size - 1}; got {root}")
    if kind.gives != "whole" and not x.ndim:
        raise ShapeError(f"{where}: expected an array of at least one axis; got a scalar")
    if kind.gives == "blocks" and x.shape[0] % ranks.size:
        raise ShapeError(
            f"{where}: expected a first axis that {ranks.size} ranks can share evenly; got an "
            f"array of shape {x.shape}"
        )
    how = {"kind": kind.name, "op": op, "root": root, "group": number_of(ranks)}
    return collective_p.bind(x, **how, site=call_site())


def abstract(x: Any, *, kind: str, group: int, **_: Any) -> Any:
    """The result's type."""
    rows = [KINDS[kind].rows(n, _groups[group].size) for n in x.shape[:1]]
    return jax.core.ShapedArray((*rows, *x.shape[1:]), x.dtype)


@functools.cache
def compiled(**how: Any) -> Any:
    """A program of one call."""
    return jax.jit(functools.partial(collective_p.bind, **how))


def run(x: Any, **how: Any) -> Any:
    """Outside of jax.jit."""
    return compiled(**how)(x)


def lower(ctx: Any, x: Any, *, kind: str, root: int, group: int, **texts: str) -> Any:
    """A call that takes the token of the one before in its block, and gives its own."""
    register()
    token = jax.core.ShapedArray((), np.dtype(np.int32))
    (of_x,), (of_result,) = ctx.avals_in, ctx.avals_out
    with_tokens = ctx.replace(avals_in=[of_x, token], avals_out=[of_result, token])
    same = KINDS[kind].gives == "whole"
    rule = ffi.ffi_lowering(
        TARGET, has_side_effect=True, operand_output_aliases={0: 0, 1: 1} if same else {1: 1}
    )
    attrs = {"kind": kind, "root": np.int64(root), "group": np.int64(group), **texts}
    result, _ = rule(with_tokens, x, last_token(), **attrs)
    return [result]


def last_token() -> Any:
    """What the last call in the block that is being written has given; else a first token."""
    block = mlir.ir.InsertionPoint.current.block
    for operation in reversed(list(block.operations)):
        if operation.operation.name == "stablehlo.custom_call":
            name = operation.operation.attributes["call_target_name"]
            if mlir.ir.StringAttr(name).value == TARGET:
                return operation.operation.results[1]
    return mlir.ir_constant(np.int32(0))


@functools.cache
def register() -> None:
    """Tell XLA where the handler is."""
    handler = ctypes.CFUNCTYPE(None)(_core.xla_handler())
    ffi.register_ffi_target(TARGET, ffi.pycapsule(handler), platform="cpu")


def of_tangents(primals: Any, tangents: Any, **how: Any) -> Any:
    """The same call, of the tangent."""
    if how["op"] not in LINEAR:
        raise GradientError(f"ngd.jax.{how['kind']}: op={how['op']!r} has no gradient")
    (x,), (tangent,) = primals, tangents
    result = collective_p.bind(x, **how)
    if type(tangent) is ad.Zero:
        return result, ad.Zero.from_primal_value(result)
    return result, collective_p.bind(tangent, **how)


def transposed(upstream: Any, x: Any, *, kind: str, op: str, **how: Any) -> Any:
    """The gradient of the sum of all ranks' results."""
    if type(upstream) is ad.Zero:
        return [ad.Zero(x.aval)]
    group = _groups[how["group"]]
    if kind in ("all_reduce", "all_to_all"):
        return [collective_p.bind(upstream, kind=kind, op=op, **how)]
    if kind == "all_gather":
        return [collective_p.bind(upstream, kind="reduce_scatter", op="sum", **how)]
    if kind == "reduce_scatter":
        gathered = collective_p.bind(upstream, kind="all_gather", op="none", **how)
        return [gathered / group.size if op == "mean" else gathered]
    total = collective_p.bind(upstream, kind="all_reduce", op="sum", **how)
    mine = np.bool_(group.rank == how["root"])  # JAX would drop a call whose result nobody reads
    return [jnp.where(mine, total, jnp.zeros_like(total))]


def batched(operands: Any, axes: Any, **how: Any) -> Any:
    """One call for a batch, whose axis goes to the end where the first one counts."""
    (x,), (axis,) = operands, axes
    if KINDS[how["kind"]].gives == "whole":
        return collective_p.bind(x, **how), axis
    result = collective_p.bind(jnp.moveaxis(x, axis, -1), **how)
    return result, result.ndim - 1


collective_p.def_abstract_eval(abstract)
collective_p.def_impl(run)
mlir.register_lowering(collective_p, lower, platform="cpu", cacheable=False)  # tokens differ
ad.primitive_jvps[collective_p] = of_tangents
ad.primitive_transposes[collective_p] = transposed
batching.primitive_batchers[collective_p] = batched


def each(tree: Tree, name: str, group: Group | None, *, op: str = "none", root: int = 0) -> Tree:
    """A call for each array of a tree."""
    return jax.tree.map(lambda x: collective(x, KINDS[name], op, group, root), tree)


def all_reduce(x: Tree, *, op: str, group: Group | None = None) -> Tree:
    """Reduce over the ranks, element by element; every rank gets the result.

    Parameters
    ----------
    x
        An array of one shape and dtype on all ranks, or a tree of them.
    op
        "sum", "mean", "min", "max" or "prod". The last three have no gradient.
    group
        The ranks; by default the world.
    """
    return each(x, "all_reduce", group, op=op)


def reduce_scatter(x: Tree, *, op: str, group: Group | None = None) -> Tree:
    """Reduce over the ranks, and give rank r the r-th part of the first axis."""
    return each(x, "reduce_scatter", group, op=op)


def all_gather(x: Tree, *, group: Group | None = None) -> Tree:
    """Join the ranks' arrays, of one shape, along the first axis."""
    return each(x, "all_gather", group)


def broadcast(x: Tree, root: int = 0, *, group: Group | None = None) -> Tree:
    """Give every rank the root's array; each gives one of its shape and dtype."""
    return each(x, "broadcast", group, root=root)


def all_to_all(x: Tree, *, group: Group | None = None) -> Tree:
    """Send rank r the r-th part of the first axis, and receive the parts from all ranks."""
    return each(x, "all_to_all", group)


__all__ = ["all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter"]
