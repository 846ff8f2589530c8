# SPDX-License-Identifier: Apache-2.0
"""Random numbers from a counter: the same seed and offset give the same numbers on every device.

The generator is Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1,
2, 3, SC'11, section 3.3). It maps a key and a counter to a block of four random 32-bit words. The
key is the 64-bit seed, low word first. Words 0 and 1 of the counter are the index of the block, low
word first, and words 2 and 3 are the 64-bit offset. The elements of a result, in row-major order,
take the words of block 0, then those of block 1, and so on: one word per element, or two per
float64.

In the body of ops.scan, iteration t adds t * 2^40 to the offset (control/tracing.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from ..dtypes import (
    FLOATS,
    INTEGERS,
    Array,
    DType,
    Shape,
    Type,
    as_dtype,
    bfloat16,
    float16,
    float32,
    float64,
    int64,
    uint32,
)
from ..errors import DTypeError, ShapeError
from ..graph.leaves import constant_node
from ..graph.node import Node, Op
from ..graph.registry import register
from ..graph.samples import Operand, Sample
from ._casting import cast
from ._compare import where
from ._concatenation import stack
from ._operands import Value, as_node, as_shape, compute_dtype, expect_dtype, narrow, widen
from .control.tracing import per_iteration

__all__ = ["dropout", "random_bits", "random_normal", "random_uniform"]

_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_WEYL: Final = (0x9E3779B9, 0xBB67AE85)
_LOW: Final = np.uint64(0xFFFFFFFF)
_HIGH: Final = np.uint64(32)


def philox_4x32_10(counter: Array, key: tuple[int, int]) -> Array:
    """Return n blocks of four random words, [4, n], for n counters [4, n] and one key.

    A counter has four 32-bit words, and the key has two.
    """
    c0, c1, c2, c3 = counter.astype(np.uint64)
    for round in range(10):
        k0, k1 = (np.uint64((k + round * w) & 0xFFFFFFFF) for k, w in zip(key, _WEYL, strict=True))
        p0, p1 = c0 * np.uint64(_MULTIPLIERS[0]), c2 * np.uint64(_MULTIPLIERS[1])
        c0, c1, c2, c3 = (p1 >> _HIGH) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HIGH) ^ c3 ^ k1, p0 & _LOW
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)


def random_words(seed: Array, count: int) -> Array:
    """Return the first `count` random words, as uint32, for the seed tensor [seed, offset]."""
    key, offset = (int(n) & 0xFFFFFFFFFFFFFFFF for n in seed)
    block = np.arange(-(-count // 4), dtype=np.uint64)
    counter = np.empty((4, block.size), np.uint32)
    counter[0], counter[1] = block & _LOW, block >> _HIGH
    counter[2], counter[3] = offset & 0xFFFFFFFF, offset >> 32
    words = philox_4x32_10(counter, (key & 0xFFFFFFFF, key >> 32))
    return words.T.reshape(-1)[:count]


def random_uniforms(seed: Array, count: int, dtype: DType) -> Array:
    """Return `count` random floats in [0, 1).

    They are multiples of 2^-bits, where bits is the size of the dtype's significand.
    """
    if dtype == float64:
        low, high = random_words(seed, 2 * count).astype(np.uint64).reshape(-1, 2).T
        return ((high << _HIGH | low) >> np.uint64(11)) * 2.0**-53
    bits = {float32: 24, float16: 11, bfloat16: 8}[dtype]
    words = random_words(seed, count) >> np.uint32(32 - bits)
    return narrow(words * 2.0**-bits, dtype)


def seed_tensor(where: str, seed: Any, offset: Any) -> Node:
    """Return the seed tensor int64 [2], (seed, offset), from Python ints or integer scalar nodes.

    In the body of a loop it differs in each iteration: see per_iteration in control/tracing.py.
    """
    parts = [
        value
        if isinstance(value, Node)
        else constant_node(np.array(int(value) & 0xFFFFFFFFFFFFFFFF, np.uint64).astype(int64))
        for value in (seed, offset)
    ]
    for part in parts:
        if part.dtype not in INTEGERS or part.shape:
            raise DTypeError(
                f"{where}: expected an integer scalar for a seed; got {part.type}. Give a Python "
                "integer."
            )
    if not any(isinstance(value, Node) for value in (seed, offset)):
        return per_iteration(constant_node(np.stack([part.attrs["value"] for part in parts])))
    return per_iteration(stack([cast(part, int64) for part in parts]))


def expect_seed(where: str, seed: Type) -> None:
    """Raise a ShapeError unless `seed` is the type of a seed tensor, int64[2]."""
    if seed != Type(int64, (2,)):
        raise ShapeError(
            f"{where}: expected a seed tensor int64[2]; got {seed}. Give an integer seed."
        )


class Draw(Op):
    """The base of ops that draw random floats."""

    # Attributes of a node: shape, dtype.
    dtypes = ()

    def __call__(
        self,
        shape: int | Sequence[int],
        dtype: Any = float32,
        *,
        seed: int | Node,
        offset: int | Node = 0,
    ) -> Node:
        attrs = {"shape": as_shape(shape), "dtype": as_dtype(dtype, self.name)}
        return self.node((seed_tensor(self.name, seed, offset),), attrs)

    def infer(self, seed: Type, *, shape: Shape, dtype: DType) -> Type:
        expect_seed(self.name, seed)
        if dtype not in FLOATS:
            raise DTypeError(
                f"{self.name}: expected a floating dtype; got {dtype.name}. Cast the result "
                "instead."
            )
        return Type(dtype, shape)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)

    def samples(self) -> Iterable[Sample]:
        seed = Operand((2,), 0, 2**40, dtype=int64)
        for dtype in FLOATS:
            for shape in ((), (7,), (3, 4, 5), (0, 2), (1025,)):
                yield Sample((seed,), {"shape": shape, "dtype": dtype})


class RandomUniform(Draw):
    """Return random numbers in [0, 1), which are multiples of 2^-bits.

    Here bits is the number of bits of the dtype's significand: 53 for float64, 24 for float32, 11
    for float16 and 8 for bfloat16.

    Parameters
    ----------
    shape : int or sequence of int
        The shape of the result.
    dtype : dtype, default float32
        A floating dtype.
    seed : int or node
        The key of the generator, an integer of 64 bits.
    offset : int or node, default 0
        The number of the sequence of random numbers, an integer of 64 bits. Each offset selects
        another sequence for the same seed: offset 1 does not shift the numbers of offset 0. Equal
        seeds and offsets give equal numbers on every device. In the body of ops.scan, iteration t
        adds t * 2**40 to the offset.

    Raises
    ------
    DTypeError
        The dtype is not a floating dtype, or the seed or offset is not an integer scalar.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.random_uniform(3, seed=1))()
        array([0.8903, 0.8947, 0.5857], dtype=float32)
    """

    name = "random_uniform"

    def reference(self, seed: Array, *, shape: Shape, dtype: DType) -> Array:
        return random_uniforms(seed, math.prod(shape), dtype).reshape(shape)


random_uniform: Final[RandomUniform] = register(RandomUniform())


class RandomNormal(Draw):
    """Return random numbers with mean 0 and standard deviation 1.

    Parameters
    ----------
    shape : int or sequence of int
        The shape of the result.
    dtype : dtype, default float32
        A floating dtype.
    seed, offset : int or node
        The same as for ops.random_uniform.

    Raises
    ------
    DTypeError
        The dtype is not a floating dtype, or the seed or offset is not an integer scalar.

    Notes
    -----
    Box and Muller's transform (Ann. Math. Stat. 29, 1958) computes the elements 2k and 2k + 1 of
    the result, for k = 0, 1, ..., from the elements 2k and 2k + 1 of a sequence of uniform numbers.
    For 16-bit floats, the uniform numbers are float32. The transform is computed in float64 and
    rounded at the end.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.random_normal(3, seed=1))()
        array([ 1.6585, -1.2917, -0.3199], dtype=float32)
    """

    name = "random_normal"

    def reference(self, seed: Array, *, shape: Shape, dtype: DType) -> Array:
        count = math.prod(shape)
        source = compute_dtype(dtype)
        uniforms = random_uniforms(seed, count + count % 2, source).astype(np.float64)
        u1, u2 = 1 - uniforms[0::2], uniforms[1::2]
        radius, angle = np.sqrt(-2 * np.log(u1)), 2 * np.pi * u2
        pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
        return narrow(pairs.reshape(-1)[:count].reshape(shape), dtype)


random_normal: Final[RandomNormal] = register(RandomNormal())


class RandomBits(Op):
    """Return random words of the generator, uint32.

    Parameters
    ----------
    shape : int or sequence of int
        The shape of the result.
    seed, offset : int or node
        The same as for ops.random_uniform.

    Raises
    ------
    DTypeError
        The seed or offset is not an integer scalar.

    Notes
    -----
    The generator is Philox 4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
    easy as 1, 2, 3" (SC'11), section 3.3.

    Examples
    --------
    ::

        >>> ngd.function(lambda: ops.random_bits(3, seed=1))()
        array([3823634032, 3842641596, 2515673792], dtype=uint32)
    """

    # Attribute of a node: shape.
    name = "random_bits"
    dtypes = ()

    def __call__(
        self, shape: int | Sequence[int], *, seed: int | Node, offset: int | Node = 0
    ) -> Node:
        return self.node((seed_tensor(self.name, seed, offset),), {"shape": as_shape(shape)})

    def infer(self, seed: Type, *, shape: Shape) -> Type:
        expect_seed(self.name, seed)
        return Type(uint32, shape)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (None,)

    def reference(self, seed: Array, *, shape: Shape) -> Array:
        return random_words(seed, math.prod(shape)).reshape(shape)

    def samples(self) -> Iterable[Sample]:
        for shape in ((), (7,), (3, 4, 5), (0, 2), (1025,)):
            yield Sample((Operand((2,), 0, 2**40, dtype=int64),), {"shape": shape})


random_bits: Final[RandomBits] = register(RandomBits())


class Dropout(Op):
    """Set each element to 0 with probability rate, and divide the other elements by 1 - rate.

    Parameters
    ----------
    x : node or array
        Floats of any shape.
    rate : float
        The probability, in [0, 1).
    seed, offset : int or node
        The same as for ops.random_uniform.

    Raises
    ------
    ValueError
        The rate is outside of [0, 1).
    DTypeError
        x does not have a floating dtype, or the seed or offset is not an integer scalar.

    Notes
    -----
    ops.random_uniform draws one float32 number per element. If the number is less than rate, the
    element becomes 0. So the same elements become 0 for every dtype of x.

    Examples
    --------
    ::

        >>> ngd.function(lambda x: ops.dropout(x, 0.5, seed=3))(np.ones(8))
        array([2., 0., 2., 2., 0., 2., 0., 2.])
    """

    # Attribute of a node: rate.
    name = "dropout"
    dtypes = FLOATS

    def __call__(self, x: Value, rate: float, *, seed: int | Node, offset: int | Node = 0) -> Node:
        x = as_node(x, where=self.name)
        return self.node((x, seed_tensor(self.name, seed, offset)), {"rate": float(rate)})

    def infer(self, x: Type, seed: Type, *, rate: float) -> Type:
        expect_seed(self.name, seed)
        expect_dtype(self.name, (x,), self.dtypes)
        if not 0 <= rate < 1:
            raise ValueError(f"dropout: expected a rate in [0, 1); got {rate}")
        return x

    def expand(self, x: Node, seed: Node, *, rate: float) -> Node:
        chance = random_uniform.node((seed,), {"shape": x.shape, "dtype": float32})
        return where(chance >= rate, x * (1 / (1 - rate)), 0)

    def grad(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return self.node((dy, node.inputs[1]), node.attrs), None

    def reference(self, x: Array, seed: Array, *, rate: float) -> Array:
        is_kept = random_uniforms(seed, x.size, float32).reshape(x.shape) >= np.float32(rate)
        wide = widen(x)
        return narrow(np.where(is_kept, wide * wide.dtype.type(1 / (1 - rate)), 0), x.dtype)

    def samples(self) -> Iterable[Sample]:
        seed = Operand((2,), 0, 2**40, dtype=int64)
        for shape, rate in (((40,), 0.5), ((3, 4), 0.1), ((2, 0), 0.3), ((5,), 0.0)):
            yield Sample((Operand(shape), seed), {"rate": rate})


dropout: Final[Dropout] = register(Dropout())
