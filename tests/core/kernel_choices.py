# SPDX-License-Identifier: Apache-2.0
"""Print which kernel the CPU chooses for 300 queries, one line per query.

    NGD_SIMD=avx2 NGD_THREADS=2 ONEDNN_MAX_CPU_ISA=AVX2 python -m tests.core.kernel_choices

A line has the query, the folder of the kernel, and, except for kernels of oneDNN, the scratch bytes
and the results that can be computed in place. The environment variables simulate another machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from types import MappingProxyType
from typing import Any, NamedTuple

from ngd._core import Device

Type = tuple[str, tuple[int, ...]]


class Query(NamedTuple):
    op: str
    inputs: list[Type]
    outputs: list[Type]
    attrs: Mapping[str, Any] = MappingProxyType({})

    def __str__(self) -> str:
        types = [" ".join(f"{d}{list(s)}" for d, s in t) for t in (self.inputs, self.outputs)]
        attrs = " ".join(f"{name}={value!r}" for name, value in sorted(self.attrs.items()))
        return f"{self.op} {types[0]} -> {types[1]} {attrs}".rstrip()


def matmul(
    m: int, n: int, k: int, dtype: str = "float32", batch: tuple[int, ...] = (), **attrs: Any
) -> Query:
    """Return a matmul. `bias` gives it a third operand."""
    bias = [(dtype, (n,))] if attrs.pop("bias", False) else []
    a = (k, m) if attrs.get("transpose_a") else (m, k)
    b = (n, k) if attrs.get("transpose_b") else (k, n)
    inputs = [(dtype, batch + a), (dtype, batch + b), *bias]
    return Query("matmul", inputs, [(dtype, (*batch, m, n))], attrs)


def matmuls() -> Iterator[Query]:
    sizes = [1, 7, 16, 31, 32, 128, 129]
    for m, n, k in product(sizes, [33, 100, 512, 1024], [128]):
        yield matmul(m, n, k)
    for n, k in product([50, 68, 100, 1000], [16, 256, 784]):
        yield matmul(128, n, k, transpose_a=1)
        yield matmul(128, n, k, transpose_b=1)
    for m, n, k in [(784, 100, 128), (1024, 1024, 128), (1024, 1024, 257), (16, 1000, 4)]:
        yield matmul(m, n, k, transpose_a=1)
        yield matmul(m, n, k, transpose_a=1, bias=True, post=["relu"])
    for post in (["relu"], ["gelu"], ["gelu_tanh"], ["silu"], ["relu", "gelu"]):
        yield matmul(64, 256, 256, post=post)
        yield matmul(128, 1024, 784, post=post)
    for dtype in ("float64", "int32", "int64", "uint8", "bool"):
        yield matmul(64, 64, 64, dtype)
        yield matmul(8, 100, 300, dtype, batch=(3,))
    for batch in ((2,), (4, 12), (1,)):
        yield matmul(64, 64, 32, batch=batch)
        yield matmul(128, 100, 128, batch=batch)
    yield matmul(0, 4, 4)
    yield matmul(4, 4, 0)


def grouped_matmuls() -> Iterator[Query]:
    for dtype, groups, k, n in product(("float32", "float64"), (1, 8), (16, 256), (32, 512)):
        rows, weight = (dtype, (96, k)), (dtype, (groups, k, n))
        offsets = ("int64", (groups,))
        yield Query("grouped_matmul", [rows, weight, offsets], [(dtype, (96, n))])
        out = (dtype, (96, n))
        yield Query("grouped_weight_grad", [rows, out, offsets], [weight])


def convolutions() -> Iterator[Query]:
    cases = [
        (8, 28, channels, out, kernel, stride, groups, last)
        for channels, out in ((3, 16), (16, 16), (64, 64), (64, 128))
        for kernel, stride in ((1, 1), (3, 1), (3, 2), (5, 1))
        for groups in ((1, 16) if channels % 16 == 0 else (1,))
        for last in (0, 1)
    ]
    cases += [(32, 56, 64, 256, 1, 1, 1, 1), (2, 14, 1024, 256, 1, 1, 1, 1)]
    cases += [(32, 28, 128, 128, 3, 2, 1, 1), (1, 7, 512, 512, 3, 1, 1, 1)]
    for batch, side, channels, out, kernel, stride, groups, last in cases:
        pad = kernel // 2
        ends = (side + 2 * pad - kernel) // stride + 1

        def image(count: int, length: int, batch: int = batch, last: int = last) -> Type:
            spatial = (length, length)
            return ("float32", (batch, *spatial, count) if last else (batch, count, *spatial))

        weights = ("float32", (out, channels // groups, kernel, kernel))
        attrs = {
            "strides": [stride, stride],
            "dilations": [1, 1],
            "padding": [pad] * 4,
            "groups": groups,
            **({"channels_last": 1} if last else {}),
        }
        data, result = image(channels, side), image(out, ends)
        yield Query("conv", [data, weights], [result], attrs)
        if kernel == 3 or groups == 1:
            yield Query("conv_data_grad", [result, weights], [data], attrs)
            yield Query("conv_weight_grad", [data, result], [weights], attrs)


def other_queries() -> Iterator[Query]:
    for dtype, axis in product(("float32", "float64", "bfloat16"), (0, 1, -1)):
        shape = (24, 40, 56)
        reduced_shape = list(shape)
        del reduced_shape[axis]
        axes = [axis % 3]
        x = (dtype, shape)
        for op in ("sum", "max"):
            yield Query("reduce", [x], [(dtype, tuple(reduced_shape))], {"op": op, "axes": axes})
        yield Query("softmax", [x], [x], {"axis": axis % 3})
        yield Query("argmax", [x], [("int64", tuple(reduced_shape))], {"axis": axis % 3})
        yield Query("cumsum", [x], [x], {"axis": axis % 3, "reverse": 0})
    for dtype, keys in product(("float32", "float64", "float16"), (64, 1024)):
        q, k = (dtype, (2, 8, 64, 32)), (dtype, (2, 8, keys, 32))
        sums = (dtype, (2, 8, 64))
        attrs = {"causal": 0, "heads_last": 0, "scale": 0.5}
        yield Query("attend", [q, k, k], [q, sums], attrs)
        yield Query("attend_grad", [q, k, k, q, sums, q, sums], [q, k, k], attrs)
    for dtype in ("float32", "float64", "float16", "int32"):
        x = (dtype, (300, 500))
        program = f"add:{dtype_code(dtype)} i0 i1"
        attrs = {"program": program, "results": [0], "input_strides": [1, 1]}
        flat = (dtype, (150000,))
        yield Query("elementwise", [flat, flat], [flat], attrs)
        yield Query("copy", [x], [x])
        yield Query("transpose", [x], [(dtype, (500, 300))], {"permutation": [1, 0]})
    for depth in (64, 256, 257):
        a, b, w = (("float32", s) for s in ((128, depth), (depth, 256), (128, 256)))
        attrs = {
            "program": "multiply:f32 i0 #0.5; subtract:f32 i1 t0",
            "results": [1],
            "input_strides": [256, 1, 256, 1],
            "products": [0],
            "product_shape": [128, 256],
            "transpose_a": 0,
            "transpose_b": 0,
        }
        yield Query("elementwise_product", [a, b, w], [w], attrs)


def dtype_code(dtype: str) -> str:
    """Return the name of a dtype in programs of the elementwise kernel."""
    return {"float32": "f32", "float64": "f64", "float16": "f16", "int32": "i32"}[dtype]


def queries() -> list[Query]:
    return [*matmuls(), *grouped_matmuls(), *convolutions(), *other_queries()]


def main() -> None:
    device = Device("CPU")
    for query in queries():
        kernel, _, scratch, in_place = device.query_kernel(*query[:3], dict(query.attrs))
        if kernel in (None, "onednn"):
            print(f"{query}: {kernel}")
        else:
            print(f"{query}: {kernel} {scratch} {in_place}")


if __name__ == "__main__":
    main()
