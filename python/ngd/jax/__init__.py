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

With async_op=True another thread of the process makes the calls. XLA continues with computations
that do not need the result, while the call waits for the other ranks.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import ffi
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .. import _core
from .._util.callsite import call_site
from ..comm import Group
from ..comm.checks import block_rows, check_other_rank, check_root
from ..comm.kinds import KINDS, Kind
from ..comm.world import chosen
from ..dtypes import ALL, Type, as_dtype, lengths, whole
from ..errors import DTypeError, GradientError, ShapeError
from ..ops.collectives.checks import expect_reduction, expect_rows

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
    number = group.communicator.register_for_xla()
    assert number == len(_groups), "programs know groups by their place in this list"
    _groups.append(group)
    return number


collective_p: Final = Primitive("ngd_collective")
"""Of one array; params: kind, op, root, group, asynchronous, site."""
send_p: Final = Primitive("ngd_send")
"""Gives a scalar for an array. Its second operand is what shall have been computed before.

Params: root (who receives), tag, group, asynchronous, site.
"""
recv_p: Final = Primitive("ngd_recv")
"""Gives an array for a scalar; second operand and params as of send_p, and shape, dtype."""


def operand(x: Any, where: str) -> Any:
    """An array that may travel."""
    x = jnp.asarray(x)
    if np.dtype(x.dtype) not in ALL:
        raise DTypeError(f"{where}: expected numbers or booleans; got {x.dtype}")
    return x


def collective(
    x: Any, kind: Kind, op: str, group: Group | None, root: int, asynchronous: bool
) -> Any:
    """One call of one array."""
    where = f"ngd.jax.{kind.name}"
    ranks, x = chosen(group), operand(x, where)
    given = Type(np.dtype(x.dtype), x.shape)
    if kind.reduces:
        expect_reduction(where, op, given)
    if kind.rooted:
        root = check_root(root, ranks.size, where)
    if kind.gives != "whole":
        expect_rows(where, given)
    if kind.gives == "blocks":
        block_rows(x.shape, ranks.size, where)
    how = {"kind": kind.name, "op": op, "root": root, "group": number_of(ranks)}
    return collective_p.bind(x, **how, asynchronous=bool(asynchronous), site=call_site())


def between_two(
    call: str, name: str, other: int, tag: int, group: Group | None, asynchronous: bool
) -> dict[str, Any]:
    """Return the parameters of send_p and recv_p that describe the other rank."""
    where, ranks = f"ngd.jax.{call}", chosen(group)
    other = check_other_rank(other, ranks.rank, ranks.size, where, name)
    how = {"root": other, "tag": whole(tag, where, "tag"), "group": number_of(ranks)}
    return {**how, "asynchronous": bool(asynchronous), "site": call_site()}


def abstract(x: Any, *, kind: str, group: int, **_: Any) -> Any:
    """The result's type."""
    rows = [KINDS[kind].rows(n, _groups[group].size) for n in x.shape[:1]]
    return jax.core.ShapedArray((*rows, *x.shape[1:]), x.dtype)


@functools.cache
def compiled(primitive: Primitive, **how: Any) -> Any:
    """A program of one call."""
    return jax.jit(functools.partial(primitive.bind, **how))


def run(primitive: Primitive, *operands: Any, **how: Any) -> Any:
    """Outside of jax.jit."""
    return compiled(primitive, **how)(*operands)


def lower(ctx: Any, x: Any, *, kind: str, site: str, op: str = "none", **numbers: int) -> Any:
    """A call that takes the token of the one before in its block, and gives its own."""
    register()
    token = jax.core.ShapedArray((), np.dtype(np.int32))
    of_x, (of_result,) = ctx.avals_in[0], ctx.avals_out
    with_tokens = ctx.replace(avals_in=[of_x, token], avals_out=[of_result, token])
    same = KINDS[kind].gives == KINDS[kind].gets == "whole"
    rule = ffi.ffi_lowering(
        TARGET, has_side_effect=True, operand_output_aliases={0: 0, 1: 1} if same else {1: 1}
    )
    attrs = {name: np.int64(number) for name, number in numbers.items()}
    result, _ = rule(with_tokens, x, last_token(), kind=kind, op=op, site=site, **attrs)
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
        raise GradientError(
            f"ngd.jax.{how['kind']}: expected op='sum' or 'mean' to differentiate; got "
            f"op={how['op']!r}, which has no gradient. Use jax.lax.stop_gradient on its operand."
        )
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


def of_exchanged(primitive: Primitive, primals: Any, tangents: Any, **how: Any) -> Any:
    """The same call, of the tangent; it rests on the first one, which JAX would else drop."""
    result = primitive.bind(*primals, **how)
    if type(tangents[0]) is ad.Zero:
        return result, ad.Zero.from_primal_value(result)
    return result, primitive.bind(tangents[0], result, **how)


def received_back(token: Any, x: Any, before: Any, **how: Any) -> Any:
    """The gradient of what was sent, which the other rank sends."""
    if type(token) is ad.Zero:
        return [ad.Zero(x.aval), None]
    return [recv_p.bind(token, before, shape=x.aval.shape, dtype=x.aval.dtype, **how), None]


def sent_back(upstream: Any, after: Any, before: Any, *, shape: Any, dtype: Any, **how: Any) -> Any:
    """Sends the gradient of what was received; the token is the gradient of `after`."""
    if type(upstream) is ad.Zero:
        return [ad.Zero(after.aval), None]
    return [send_p.bind(upstream, before, **how).astype(after.aval.dtype), None]


def batch_of(operands: Any, axes: Any) -> int:
    """How many there are."""
    of_both = zip(operands, axes, strict=True)
    return int(next(x.shape[axis] for x, axis in of_both if axis is not None))


def batch_sent(operands: Any, axes: Any, **how: Any) -> Any:
    """One send for a batch: its axis is the first, as the other rank expects."""
    count, (x, before), axis = batch_of(operands, axes), operands, axes[0]
    of_all = (count, *x.shape)
    x = jnp.broadcast_to(x, of_all) if axis is None else jnp.moveaxis(x, axis, 0)
    return jnp.broadcast_to(send_p.bind(x, before, **how), (count,)), 0


def batch_received(operands: Any, axes: Any, *, shape: Any, **how: Any) -> Any:
    """One receive for a batch."""
    after, before = operands
    shape = (batch_of(operands, axes), *shape)
    return recv_p.bind(after.sum(), before, shape=shape, **how), 0


def lower_send(ctx: Any, x: Any, before: Any, **how: Any) -> Any:
    """`before` is in the order that tokens keep."""
    return lower(ctx, x, kind="send", **how)


def lower_recv(ctx: Any, after: Any, before: Any, *, shape: Any, dtype: Any, **how: Any) -> Any:
    """As lower_send; the result's type says what is received."""
    return lower(ctx, after, kind="recv", **how)


def define(primitive: Primitive, lowering: Any) -> None:
    """What JAX calls outside of programs, and where it writes one."""
    primitive.def_impl(functools.partial(run, primitive))
    mlir.register_lowering(primitive, lowering, platform="cpu", cacheable=False)  # tokens differ


define(collective_p, lower)
define(send_p, lower_send)
define(recv_p, lower_recv)
collective_p.def_abstract_eval(abstract)
send_p.def_abstract_eval(lambda x, _, **__: jax.core.ShapedArray((), x.dtype))
recv_p.def_abstract_eval(lambda *_, shape, dtype, **__: jax.core.ShapedArray(shape, dtype))
ad.primitive_jvps[collective_p] = of_tangents
ad.primitive_jvps[send_p] = functools.partial(of_exchanged, send_p)
ad.primitive_jvps[recv_p] = functools.partial(of_exchanged, recv_p)
ad.primitive_transposes[collective_p] = transposed
ad.primitive_transposes[send_p] = received_back
ad.primitive_transposes[recv_p] = sent_back
batching.primitive_batchers[collective_p] = batched
batching.primitive_batchers[send_p] = batch_sent
batching.primitive_batchers[recv_p] = batch_received


def each(
    tree: Tree,
    name: str,
    group: Group | None,
    asynchronous: bool,
    *,
    op: str = "none",
    root: int = 0,
) -> Tree:
    """A call for each array of a tree."""
    kind = KINDS[name]
    return jax.tree.map(lambda x: collective(x, kind, op, group, root, asynchronous), tree)


def all_reduce(x: Tree, *, op: str, async_op: bool = False, group: Group | None = None) -> Tree:
    """Reduce over the ranks, element by element; every rank gets the result.

    Parameters
    ----------
    x
        An array of one shape and dtype on all ranks, or a tree of them.
    op
        "sum", "mean", "min", "max" or "prod". The last three have no gradient.
    async_op
        If True, XLA continues with work that does not need the result. Ranks may differ in this.
    group
        The ranks; by default the world.
    """
    return each(x, "all_reduce", group, async_op, op=op)


def reduce_scatter(x: Tree, *, op: str, async_op: bool = False, group: Group | None = None) -> Tree:
    """Reduce over the ranks, and give rank r the r-th part of the first axis."""
    return each(x, "reduce_scatter", group, async_op, op=op)


def all_gather(x: Tree, *, async_op: bool = False, group: Group | None = None) -> Tree:
    """Join the ranks' arrays, of one shape, along the first axis."""
    return each(x, "all_gather", group, async_op)


def broadcast(
    x: Tree, root: int = 0, *, async_op: bool = False, group: Group | None = None
) -> Tree:
    """Give every rank the root's array; each gives one of its shape and dtype."""
    return each(x, "broadcast", group, async_op, root=root)


def all_to_all(x: Tree, *, async_op: bool = False, group: Group | None = None) -> Tree:
    """Send rank r the r-th part of the first axis, and receive the parts from all ranks."""
    return each(x, "all_to_all", group, async_op)


def send(
    x: Any, to: int, tag: int = 0, *, async_op: bool = False, group: Group | None = None
) -> Any:
    """Give an array to rank `to`, whose recv takes it. The result is a token.

    The token is a scalar 0 of x's dtype, which is there when x has been taken. Nothing is sent
    unless somebody reads it: return it, or add it to the loss, which is then differentiated through
    the other rank; see recv. Between two ranks the order of sends is that of receives; the tag, the
    dtype and the number of elements are compared.
    """
    x, how = operand(x, "ngd.jax.send"), between_two("send", "to", to, tag, group, async_op)
    return send_p.bind(x, np.int32(0), **how)


def recv(
    source: int,
    tag: int = 0,
    *,
    shape: int | Sequence[int],
    dtype: Any,
    after: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:
    """Receive an array of this shape and dtype that rank `source` sends.

    `after` is a scalar that is computed before; its value is not looked at. Its gradient is the
    token of the send that gives the gradient of what was received back to `source`. So a rank whose
    loss rests on what it received differentiates by `after`, too, and reads that token:

        # rank 0
        loss = lambda w: send(tanh(x @ w), 1)
        gw = jax.grad(loss)(w)

        # rank 1
        def loss(v, start):
            h = recv(0, shape=(8, 4), dtype="float32", after=start)
            return jnp.mean((h @ v - y) ** 2)

        gv, token = jax.grad(loss, (0, 1))(v, 0.0)
    """
    where = "ngd.jax.recv"
    wanted = as_dtype(dtype, where)
    if jax.dtypes.canonicalize_dtype(wanted) != wanted:
        raise DTypeError(
            f"{where}: expected a dtype that JAX has enabled; got {wanted}. Set jax_enable_x64."
        )
    after = jnp.zeros((), wanted) if after is None else jnp.asarray(after)
    if after.ndim:
        raise ShapeError(f"{where}: after: expected a scalar; got an array of shape {after.shape}")
    how = between_two("recv", "source", source, tag, group, async_op)
    how |= {"shape": lengths(shape, where, wanted.itemsize), "dtype": wanted}
    return recv_p.bind(after, np.int32(0), **how)


__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "recv",
    "reduce_scatter",
    "send",
]
