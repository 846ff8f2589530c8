# SPDX-License-Identifier: Apache-2.0
"""Collectives in functions that JAX compiles, with gradients and vmap.

    import ngd.jax

    step = jax.jit(lambda w, x: w - 0.1 * ngd.jax.all_reduce(jax.grad(loss)(w, x), op="mean"))

Each rank is a process with one CPU device. The program does not need to initialize jax.distributed.
The operands are arrays as in ngd's collectives (docs/collectives.md), or trees of arrays. Every
rank traces the same program. Each call of a collective is compiled to a custom call of XLA's
foreign function interface. The custom call copies no array and runs no Python.

The calls in the body of one compiled function, or of one loop, run in the order of the program,
because each call takes a token from the call before it. The token is not part of this API. Calls in
different bodies (a loop and the function around it, or two compiled functions) are ordered only by
their data: a call runs after the computations of its operands. If the ranks make their calls in
different orders, all ranks raise an error. JAX drops a call whose result is not used, so either all
ranks or no ranks must use the result.

With `async_op=True`, another thread of the process makes the call. XLA continues with computations
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
from ..comm.world import group_or_world
from ..dtypes import ALL, Type, as_dtype, as_int, parse_shape
from ..errors import DTypeError, GradientError, ShapeError
from ..ops.collectives.checks import expect_reduction, expect_rows

Tree: TypeAlias = Any
"""An array of JAX, or a tree of arrays."""

TARGET: Final = "ngd_collective"
"""The name in XLA programs of the custom call that runs ngd's collectives."""
LINEAR: Final = ("none", "sum", "mean")
"""The reductions that have a gradient. "none" is for collectives that do not reduce."""

_groups: Final[list[Group]] = []
"""The registered groups. A compiled program refers to a group by its index in this list, so a group
is never removed."""


def register_group(group: Group) -> int:
    """Return the number by which compiled programs refer to a group."""
    for number, registered in enumerate(_groups):
        if registered is group:
            return number
    number = group.communicator.register_for_xla()
    assert number == len(_groups), "programs refer to groups by their index in this list"
    _groups.append(group)
    return number


collective_p: Final = Primitive("ngd_collective")
"""The primitive of a collective on one array.

Params: kind (the name of the collective), op (the reduction), root (a rank), group (the number from
`register_group`), asynchronous (True if another thread makes the call), site (the user's source
line that made the call, for error messages)."""
send_p: Final = Primitive("ngd_send")
"""The primitive of a send. It takes an array and returns a scalar.

The first operand is the array. The second operand, `before`, is the result of an earlier call,
or 0. Its value is ignored, but JAX computes it first, so the send runs after that call.
Params: root (the receiving rank), tag, group, asynchronous, site (the user's source line)."""
recv_p: Final = Primitive("ngd_recv")
"""The primitive of a receive. It returns the received array.

The first operand is the scalar argument `after` of `recv`. The second operand, `before`, is the
result of an earlier call, or 0. Both values are ignored, but JAX computes them before the receive.
Params: root (the sending rank), tag, group, asynchronous, site (the user's source line), shape and
dtype."""


def operand(x: Any, where: str) -> Any:
    """Return `x` as an array of JAX; DTypeError if ngd cannot send its dtype."""
    x = jnp.asarray(x)
    if np.dtype(x.dtype) not in ALL:
        raise DTypeError(f"{where}: expected numbers or booleans; got {x.dtype}")
    return x


def bind_collective(
    x: Any, kind: Kind, op: str, group: Group | None, root: int, asynchronous: bool
) -> Any:
    """Check the arguments of a collective on one array, and bind its primitive."""
    where = f"ngd.jax.{kind.name}"
    ranks, x = group_or_world(group), operand(x, where)
    operand_type = Type(np.dtype(x.dtype), x.shape)
    if kind.reduces:
        expect_reduction(where, op, operand_type)
    if kind.root_only:
        root = check_root(root, ranks.size, where)
    if kind.operand != "whole":
        expect_rows(where, operand_type)
    if kind.operand == "blocks":
        block_rows(x.shape, ranks.size, where)
    params = {"kind": kind.name, "op": op, "root": root, "group": register_group(ranks)}
    return collective_p.bind(x, **params, asynchronous=bool(asynchronous), site=call_site())


def point_to_point_params(
    call: str, name: str, other: int, tag: int, group: Group | None, asynchronous: bool
) -> dict[str, Any]:
    """Check the arguments of `send` or `recv`, and return a dict of params for JAX's `bind`.

    `other` is the rank to which `send` sends, or from which `recv` receives. `name` is its public
    argument ("to" or "source"), for error messages. `recv` adds the params shape and dtype.
    """
    where, ranks = f"ngd.jax.{call}", group_or_world(group)
    other = check_other_rank(other, ranks.rank, ranks.size, where, name)
    params = {"root": other, "tag": as_int(tag, where, "tag"), "group": register_group(ranks)}
    return {**params, "asynchronous": bool(asynchronous), "site": call_site()}


def result_aval(x: Any, *, kind: str, group: int, **_: Any) -> Any:
    """Return the shape and dtype of the result of a collective, as a ShapedArray of JAX.

    `x` has the shape and dtype of the operand.
    """
    rows = [KINDS[kind].rows(n, _groups[group].size) for n in x.shape[:1]]
    return jax.core.ShapedArray((*rows, *x.shape[1:]), x.dtype)


@functools.cache
def compiled_call(primitive: Primitive, **params: Any) -> Any:
    """Return a jitted function that calls `primitive` with `params`, and nothing else.

    `run` calls this function to run a primitive outside of jax.jit. The jitted function is cached,
    so JAX compiles it only once for operands of the same shape and dtype.
    """
    return jax.jit(functools.partial(primitive.bind, **params))


def run(primitive: Primitive, *operands: Any, **params: Any) -> Any:
    """Run a primitive outside of jax.jit."""
    return compiled_call(primitive, **params)(*operands)


def lower(ctx: Any, x: Any, *, kind: str, site: str, op: str = "none", **numbers: int) -> Any:
    """Lower a primitive to a custom call.

    A custom call takes the token that the previous custom call in its MLIR block returned, and
    returns a token for the next one. A block is the body of a function or of a loop, for example.
    The first custom call of a block takes the constant 0.
    """
    register()
    token = jax.core.ShapedArray((), np.dtype(np.int32))
    operand_aval, (output_aval,) = ctx.avals_in[0], ctx.avals_out
    token_context = ctx.replace(avals_in=[operand_aval, token], avals_out=[output_aval, token])
    is_in_place = KINDS[kind].operand == KINDS[kind].result == "whole"
    rule = ffi.ffi_lowering(
        TARGET, has_side_effect=True, operand_output_aliases={0: 0, 1: 1} if is_in_place else {1: 1}
    )
    attrs = {name: np.int64(number) for name, number in numbers.items()}
    result, _ = rule(token_context, x, last_token(), kind=kind, op=op, site=site, **attrs)
    return [result]


def last_token() -> Any:
    """Return the token of the last custom call of ngd in the MLIR block that is being built.

    If the block has no such call yet, return the constant 0. The next call takes this token as an
    operand, so that XLA keeps the order of the calls.
    """
    block = mlir.ir.InsertionPoint.current.block
    for operation in reversed(list(block.operations)):
        if operation.operation.name == "stablehlo.custom_call":
            name = operation.operation.attributes["call_target_name"]
            if mlir.ir.StringAttr(name).value == TARGET:
                return operation.operation.results[1]
    return mlir.ir_constant(np.int32(0))


@functools.cache
def register() -> None:
    """Register ngd's handler of the custom call in XLA."""
    handler = ctypes.CFUNCTYPE(None)(_core.xla_handler())
    ffi.register_ffi_target(TARGET, ffi.pycapsule(handler), platform="cpu")


def jvp_collective(primals: Any, tangents: Any, **params: Any) -> Any:
    """Return the result of a collective and its tangent.

    The tangent is the result of a second collective, on the tangent of the operand. If the operand
    has no tangent, the result has none.
    """
    if params["op"] not in LINEAR:
        raise GradientError(
            f"ngd.jax.{params['kind']}: expected op='sum' or 'mean' to differentiate; got "
            f"op={params['op']!r}, which has no gradient. Use jax.lax.stop_gradient on its operand."
        )
    (x,), (tangent,) = primals, tangents
    result = collective_p.bind(x, **params)
    if type(tangent) is ad.Zero:
        return result, ad.Zero.from_primal_value(result)
    return result, collective_p.bind(tangent, **params)


def transpose_collective(upstream: Any, x: Any, *, kind: str, op: str, **params: Any) -> Any:
    """Return the adjoint of a collective: the gradient with respect to this rank's operand.

    `upstream` is the gradient with respect to this rank's result. Both gradients are those
    of the sum of the losses of all ranks.
    docs/adr/0003-gradient-of-all-reduce.md has the table of adjoints.
    """
    if type(upstream) is ad.Zero:
        return [ad.Zero(x.aval)]
    group = _groups[params["group"]]
    if kind in ("all_reduce", "all_to_all"):
        return [collective_p.bind(upstream, kind=kind, op=op, **params)]
    if kind == "all_gather":
        return [collective_p.bind(upstream, kind="reduce_scatter", op="sum", **params)]
    if kind == "reduce_scatter":
        gathered = collective_p.bind(upstream, kind="all_gather", op="none", **params)
        return [gathered / group.size if op == "mean" else gathered]
    total = collective_p.bind(upstream, kind="all_reduce", op="sum", **params)
    # All ranks use `total`, because JAX drops a call whose result is not used.
    is_root = np.bool_(group.rank == params["root"])
    return [jnp.where(is_root, total, jnp.zeros_like(total))]


def batch_collective(operands: Any, axes: Any, **params: Any) -> Any:
    """Run a collective under jax.vmap: one call for the whole batch.

    For all_reduce and broadcast, the batch axis keeps its position. The other collectives split or
    concatenate along the first axis, so the batch axis is moved to the end.
    """
    (x,), (axis,) = operands, axes
    if KINDS[params["kind"]].operand == "whole":
        return collective_p.bind(x, **params), axis
    result = collective_p.bind(jnp.moveaxis(x, axis, -1), **params)
    return result, result.ndim - 1


def jvp_exchange(primitive: Primitive, primals: Any, tangents: Any, **params: Any) -> Any:
    """Run a send or a receive, and return the result and its tangent.

    The primitive is called a second time, with the tangent of its first operand. This call returns
    the tangent of the result. If the first operand has no tangent, there is no second call, and the
    result has no tangent. The second call takes the result of the first call as an operand.
    Otherwise JAX could drop the first call, if nothing else uses its result.
    """
    result = primitive.bind(*primals, **params)
    if type(tangents[0]) is ad.Zero:
        return result, ad.Zero.from_primal_value(result)
    return result, primitive.bind(tangents[0], result, **params)


def transpose_send(token: Any, x: Any, before: Any, **params: Any) -> Any:
    """Receive the gradient of the sent array, from the rank to which the array was sent."""
    if type(token) is ad.Zero:
        return [ad.Zero(x.aval), None]
    return [recv_p.bind(token, before, shape=x.aval.shape, dtype=x.aval.dtype, **params), None]


def transpose_recv(
    upstream: Any, after: Any, before: Any, *, shape: Any, dtype: Any, **params: Any
) -> Any:
    """Send the gradient of the received array back to the rank that sent the array.

    Return the token of this send as the gradient of `after`, the scalar operand of the receive.
    """
    if type(upstream) is ad.Zero:
        return [ad.Zero(after.aval), None]
    return [send_p.bind(upstream, before, **params).astype(after.aval.dtype), None]


def batch_size(operands: Any, axes: Any) -> int:
    """Return the size of the batch axis."""
    pairs = zip(operands, axes, strict=True)
    return int(next(x.shape[axis] for x, axis in pairs if axis is not None))


def batch_send(operands: Any, axes: Any, **params: Any) -> Any:
    """Run a send under jax.vmap: send the whole batch in one call, with the batch axis first."""
    count, (x, before), axis = batch_size(operands, axes), operands, axes[0]
    batch_shape = (count, *x.shape)
    x = jnp.broadcast_to(x, batch_shape) if axis is None else jnp.moveaxis(x, axis, 0)
    return jnp.broadcast_to(send_p.bind(x, before, **params), (count,)), 0


def batch_recv(operands: Any, axes: Any, *, shape: Any, **params: Any) -> Any:
    """Run a receive under jax.vmap: receive the batch in one call, with the batch axis first."""
    after, before = operands
    shape = (batch_size(operands, axes), *shape)
    return recv_p.bind(after.sum(), before, shape=shape, **params), 0


def lower_send(ctx: Any, x: Any, before: Any, **params: Any) -> Any:
    """Lower send_p without its operand `before`.

    `before` is the result of an earlier call, after which the send must run. The compiled program
    does not need it: each custom call of ngd takes a token that the previous one returned, so XLA
    keeps the order of the calls.
    """
    return lower(ctx, x, kind="send", **params)


def lower_recv(ctx: Any, after: Any, before: Any, *, shape: Any, dtype: Any, **params: Any) -> Any:
    """Lower recv_p. The type of the result gives the shape and dtype to receive."""
    return lower(ctx, after, kind="recv", **params)


def define(primitive: Primitive, lowering: Any) -> None:
    """Register how JAX runs a primitive outside of jax.jit, and how JAX lowers it to XLA."""
    primitive.def_impl(functools.partial(run, primitive))
    # A cached lowering would reuse the token of another call.
    mlir.register_lowering(primitive, lowering, platform="cpu", cacheable=False)


define(collective_p, lower)
define(send_p, lower_send)
define(recv_p, lower_recv)
collective_p.def_abstract_eval(result_aval)
send_p.def_abstract_eval(lambda x, _, **__: jax.core.ShapedArray((), x.dtype))
recv_p.def_abstract_eval(lambda *_, shape, dtype, **__: jax.core.ShapedArray(shape, dtype))
ad.primitive_jvps[collective_p] = jvp_collective
ad.primitive_jvps[send_p] = functools.partial(jvp_exchange, send_p)
ad.primitive_jvps[recv_p] = functools.partial(jvp_exchange, recv_p)
ad.primitive_transposes[collective_p] = transpose_collective
ad.primitive_transposes[send_p] = transpose_send
ad.primitive_transposes[recv_p] = transpose_recv
batching.primitive_batchers[collective_p] = batch_collective
batching.primitive_batchers[send_p] = batch_send
batching.primitive_batchers[recv_p] = batch_recv


def map_tree(
    tree: Tree,
    name: str,
    group: Group | None,
    asynchronous: bool,
    *,
    op: str = "none",
    root: int = 0,
) -> Tree:
    """Run a collective on each array of a tree.

    If `asynchronous` is True, XLA does not wait in the call: one background thread of the process
    runs the asynchronous calls one after another. An old version of XLA, whose foreign function
    interface has no futures, waits nevertheless.
    """
    kind = KINDS[name]
    return jax.tree.map(lambda x: bind_collective(x, kind, op, group, root, asynchronous), tree)


def all_reduce(x: Tree, *, op: str, async_op: bool = False, group: Group | None = None) -> Tree:
    """Reduce over the ranks, element by element; every rank gets the result.

    Corresponds to `jax.lax.psum` (op "sum"), `pmean`, `pmin` and `pmax`.

    Parameters
    ----------
    x : array or tree of arrays
        The operand, of the same shapes and dtypes on all ranks.
    op : str
        "sum", "mean", "min", "max" or "prod". The last three have no gradient.
    async_op : bool
        If True, XLA continues with work that does not need the result. Ranks may differ in this.
    group : Group, optional
        The ranks; by default the world.
    """
    return map_tree(x, "all_reduce", group, async_op, op=op)


def reduce_scatter(x: Tree, *, op: str, async_op: bool = False, group: Group | None = None) -> Tree:
    """Reduce over the ranks, and give rank r the r-th block of the first axis.

    Corresponds to `jax.lax.psum_scatter` with `tiled=True`. The gradient is an all_gather.

    Parameters
    ----------
    x : array or tree of arrays
        The operand, of the same shapes and dtypes on all ranks. The number of ranks must divide the
        first axis.
    op : str
        "sum", "mean", "min", "max" or "prod". The last three have no gradient.
    async_op : bool
        If True, XLA continues with work that does not need the result. Ranks may differ in this.
    group : Group, optional
        The ranks; by default the world.
    """
    return map_tree(x, "reduce_scatter", group, async_op, op=op)


def all_gather(x: Tree, *, async_op: bool = False, group: Group | None = None) -> Tree:
    """Concatenate the ranks' arrays, which have the same shape, along the first axis.

    Corresponds to `jax.lax.all_gather` with `tiled=True`. The gradient is a reduce_scatter.

    Parameters
    ----------
    x : array or tree of arrays
        The operand, of the same shapes and dtypes on all ranks.
    async_op : bool
        If True, XLA continues with work that does not need the result. Ranks may differ in this.
    group : Group, optional
        The ranks; by default the world.
    """
    return map_tree(x, "all_gather", group, async_op)


def broadcast(
    x: Tree, root: int = 0, *, async_op: bool = False, group: Group | None = None
) -> Tree:
    """Return the array of rank `root` on all ranks.

    The gradient is the sum of all ranks' gradients on the root, and zero on the other ranks.

    Parameters
    ----------
    x : array or tree of arrays
        The arrays to send. The other ranks pass arrays of the same shapes and dtypes.
    root : int
        The rank that sends.
    async_op : bool
        If True, XLA continues with work that does not need the result. Ranks may differ in this.
    group : Group, optional
        The ranks; by default the world.
    """
    return map_tree(x, "broadcast", group, async_op, root=root)


def all_to_all(x: Tree, *, async_op: bool = False, group: Group | None = None) -> Tree:
    """Send rank r the r-th block of the first axis, and concatenate the received blocks.

    Corresponds to `jax.lax.all_to_all` with `tiled=True`. The gradient is an all_to_all.

    Parameters
    ----------
    x : array or tree of arrays
        The operand, of the same shapes and dtypes on all ranks. The number of ranks must divide the
        first axis.
    async_op : bool
        If True, XLA continues with work that does not need the result. Ranks may differ in this.
    group : Group, optional
        The ranks; by default the world.
    """
    return map_tree(x, "all_to_all", group, async_op)


def send(
    x: Any, to: int, tag: int = 0, *, async_op: bool = False, group: Group | None = None
) -> Any:
    """Send an array to rank `to`, which receives it by `recv`. Return a token.

    The token is a scalar 0 of the dtype of `x`. It is available when rank `to` has received the
    array. JAX drops the send unless the token is used: return the token from the compiled function,
    or add it to the loss. If the token is part of the loss, the backward pass of this rank receives
    the gradient with respect to `x` from rank `to`; the notes of `recv` have an example. A rank
    receives arrays in the order in which the other rank sends them. If the send and the matching
    receive differ in the tag, the dtype or the number of elements, both ranks raise an error.

    Parameters
    ----------
    x : array
        The array.
    to : int
        The rank that receives it.
    tag : int
        A number that both ranks pass.
    async_op : bool
        If True, XLA continues with work that does not need the result.
    group : Group, optional
        The ranks; by default the world.
    """
    x, params = (
        operand(x, "ngd.jax.send"),
        point_to_point_params("send", "to", to, tag, group, async_op),
    )
    return send_p.bind(x, np.int32(0), **params)


def recv(
    source: int,
    tag: int = 0,
    *,
    shape: int | Sequence[int],
    dtype: Any,
    after: Any = None,
    async_op: bool = False,
    group: Group | None = None,
) -> Any:  # long because each argument is described
    """Receive an array of this shape and dtype from rank `source`.

    Parameters
    ----------
    source : int
        The rank that sends the array.
    tag : int
        A number that both ranks pass.
    shape : int or sequence of int
        The shape of the array.
    dtype : dtype
        The dtype of the array.
    after : scalar, optional
        A value that is computed before the receive. The value itself is ignored.
    async_op : bool
        If True, XLA continues with work that does not need the result.
    group : Group, optional
        The ranks; by default the world.

    Notes
    -----
    In the backward pass, this rank sends the gradient with respect to the received array back to
    `source`. This send returns a token, a scalar 0, which JAX treats as the gradient with respect
    to `after`. JAX drops the send of the gradient unless the token is used. So a rank whose loss
    depends on a received array must pass a scalar as `after`, differentiate with respect to it, and
    use the result, for example return it from the compiled function. Any value of the scalar works:

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
    wanted_dtype = as_dtype(dtype, where)
    if jax.dtypes.canonicalize_dtype(wanted_dtype) != wanted_dtype:
        raise DTypeError(
            f"{where}: expected a dtype that JAX has enabled; got {wanted_dtype}. "
            "Set jax_enable_x64."
        )
    after = jnp.zeros((), wanted_dtype) if after is None else jnp.asarray(after)
    if after.ndim:
        raise ShapeError(f"{where}: after: expected a scalar; got an array of shape {after.shape}")
    params = point_to_point_params("recv", "source", source, tag, group, async_op)
    params |= {"shape": parse_shape(shape, where, wanted_dtype.itemsize), "dtype": wanted_dtype}
    return recv_p.bind(after, np.int32(0), **params)


__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "recv",
    "reduce_scatter",
    "send",
]
