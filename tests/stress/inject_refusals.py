# SPDX-License-Identifier: Apache-2.0
"""Queries that no kernel accepts, for inject.py. The text of a reason needs memory, too.

Each is a query of the kernel table with a part of the expected reason.
src/cpp/kernels/README.md explains the attributes.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

DTYPES = {
    "b": "bool",
    "i1": "int8",
    "i4": "int32",
    "i8": "int64",
    "u8": "uint64",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
}

Type = tuple[str, tuple[int, ...]]


class UnsupportedQuery(NamedTuple):
    """A query that no kernel accepts."""

    op: str
    inputs: list[Type]
    outputs: list[Type]
    attrs: dict[str, Any]
    reason: str


def types(text: str) -> list[Type]:
    """Return the types of a text such as "f4[2,3] i8[]"."""
    matches = re.findall(r"(\w+)\[([\d,]*)\]", text)
    return [(DTYPES[name], tuple(int(n) for n in shape.split(",") if n)) for name, shape in matches]


def query(op: str, signature: str, reason: str, /, **attrs: Any) -> UnsupportedQuery:
    """Return a query of a signature such as "f4[2] -> f4[2]"."""
    inputs, _, outputs = signature.partition("->")
    return UnsupportedQuery(op, types(inputs), types(outputs), attrs, reason)


def program(
    text: str, reason: str, /, signature: str = "f4[2] -> f4[2]", **attrs: Any
) -> UnsupportedQuery:
    """Return a query of an elementwise kernel body."""
    attributes = {"program": text, "results": [0], "input_strides": [1], **attrs}
    return query("elementwise", signature, reason, **attributes)


def reduced_program(
    text: str, reason: str, /, signature: str = "f4[2,3] -> f4[2]", **attrs: Any
) -> UnsupportedQuery:
    """Return a query of a kernel body whose first statement is reduced along the last axis."""
    attributes = {
        "program": text,
        "results": [],
        "input_strides": [3, 1],
        "shape": [2, 3],
        "axes": [1],
    }
    attributes |= {"reduced": [0], "reductions": ["sum"], **attrs}
    return query("elementwise_reduce", signature, reason, **attributes)


def product(
    reason: str, /, signature: str = "f4[3,4] f4[3,2] f4[4,2] -> f4[4,2]", **attrs: Any
) -> UnsupportedQuery:
    """Return a query of a kernel body that reads a matmul. The first matrix is transposed."""
    attributes = {"program": "add:f32 i0 i1", "results": [0], "input_strides": [2, 1, 2, 1]}
    attributes |= {"products": [0], "product_shape": [4, 2], "transpose_a": 1, **attrs}
    return query("elementwise_product", signature, reason, **attributes)


def attend(signature: str, reason: str, /) -> UnsupportedQuery:
    """Return a query of attention over a query, keys and values."""
    return query("attend", signature, reason, causal=0, scale=1.0, heads_last=0)


def conv(signature: str, reason: str, /, op: str = "conv", **attrs: Any) -> UnsupportedQuery:
    """Return a query of a convolution along one axis."""
    attributes = {"strides": [1], "padding": [0, 0], "dilations": [1], "groups": 1, **attrs}
    return query(op, signature, reason, **attributes)


def pool(op: str, signature: str, reason: str, /, **attrs: Any) -> UnsupportedQuery:
    """Return a query of a pool along one axis, by default with windows of length 3."""
    attributes = {"kernel": [3], "strides": [1], "padding": [0, 0], "dilations": [1], **attrs}
    return query(op, signature, reason, include_pad=0, **attributes)


TANH = "tanh:f32 i0"

UNSUPPORTED = [
    query("nonsense", "-> f4[2]", "no kernel is called"),
    # elementwise
    program("frobnicate:f32 i0", "there is no elementwise opcode"),
    program("tanh i0", "lacks its dtype"),
    program("tanh:f31 i0", "f31"),
    program("tanh:f32>i64 i0", "only a cast has two dtypes"),
    program("tanh:f32 i7", "is not an input, an earlier result or an immediate"),
    program("tanh:f64 i0", "where f64 is expected"),
    program("tanh:f32 i0 i0", "takes 1 operands, not 2"),
    program("add:i64 #1 #half", "is not of dtype i64", "-> i8[2]", input_strides=[]),
    program("tanh:i64 i0", "not defined for i64", "i8[2] -> i8[2]"),
    program(TANH, "input_strides has 2 numbers", input_strides=[1, 1]),
    program(TANH, "a stride is negative", input_strides=[-1]),
    program(TANH, "reach past its end", input_strides=[5]),
    program(TANH, "2 results and 0 reduced statements for 1", results=[0, 0]),
    program(TANH, "results name 3, which is not", results=[3]),
    program(TANH, "differs from its statement in dtype", "f4[2] -> f8[2]"),
    program(TANH, "the outputs have different shapes", "f4[2] -> f4[2] f4[1]", results=[0, 0]),
    program(TANH, "more than 256 slots", f"f4[2] -> {'f4[2]' * 300}", results=[0] * 300),
    program(";".join(f"add:f32 i0 #{n}" for n in range(70)), "more than 64 tiles at once"),
    reduced_program(TANH, "axis 4 is not in the shape", axes=[4]),
    reduced_program(TANH, "need one reduction each", reductions=["sum", "sum"]),
    reduced_program(TANH, "there is no reduction", reductions=["median"]),
    reduced_program(
        "abs:i64 i0", "mean supports only float dtypes", "i8[2,3] -> i8[2]", reductions=["mean"]
    ),
    reduced_program("logical_not:bool i0", "does not support bool", "b[2,3] -> b[2]"),
    reduced_program(TANH, "does not have the kept axes", "f4[2,3] -> f4[7]"),
    reduced_program(TANH, "of no elements", "f4[2,0] -> f4[2]", shape=[2, 0], reductions=["max"]),
    reduced_program(
        "add:f32 i0 i1",
        "has no constant stride along a row",
        "f4[2,3,4] f4[4] -> f4[2]",
        shape=[2, 3, 4],
        axes=[1, 2],
        input_strides=[12, 4, 1, 0, 0, 1],
    ),
    reduced_program(
        "cast:f32>f64 i0;cast:f64>f32 t0",
        "a wider dtype makes the tiles",
        "f4[2,2000] -> f4[2]",
        shape=[2, 2000],
        input_strides=[2000, 1],
        reduced=[1],
    ),
    # elementwise_product
    product("1 to 4 products", products=[]),
    product("operands are missing", "f4[3,4] -> f4[4,2]"),
    product("the products are not in order", products=[5]),
    product("only products of f32 and f64", "f2[3,4] f2[3,2] f4[4,2] -> f4[4,2]"),
    product("only products of two axes", product_shape=[8]),
    product("differ from the products in the number", product_shape=[4, 3]),
    product("the operands' dtypes differ", "f4[3,4] f8[3,2] f4[4,2] -> f4[4,2]"),
    product(
        "the products have different depths",
        "f4[3,4] f4[3,2] f4[5,4] f4[5,2] -> f4[4,2]",
        products=[0, 1],
    ),
    product("no elements to multiply", "f4[0,4] f4[0,2] f4[4,2] -> f4[4,2]"),
    product("the inner length is too large", "f4[300,4] f4[300,2] f4[4,2] -> f4[4,2]"),
    product("a product is not read in its own order", input_strides=[1, 2, 2, 1]),
    # reduce, moments, argmax, top_k, cumsum
    query("reduce", "f4[2] -> f4[]", "there is no reduction", op="median", axes=[0]),
    query("reduce", "f4[2] -> f8[]", "the output's dtype is not the input's", op="sum", axes=[0]),
    query("reduce", "i8[2] -> i8[]", "mean supports only float dtypes", op="mean", axes=[0]),
    query("reduce", "b[2] -> b[]", "does not support bool", op="sum", axes=[0]),
    query("reduce", "f4[2] -> f4[]", "axis 3 is not in the input", op="sum", axes=[3]),
    query("reduce", "f4[2] -> f4[7]", "the input's kept axes", op="sum", axes=[0]),
    query("reduce", "f4[0] -> f4[]", "of no elements", op="max", axes=[0]),
    query("moments", "i4[2] -> i4[1] i4[1] i4[1]", "moments support only float", axes=[0]),
    query("moments", "f4[2] -> f4[1] f4[1] f4[1]", "axis 3 is not in the input", axes=[3]),
    query("moments", "f4[2] -> f4[1] f4[2] f4[1]", "the input's widened dtype", axes=[0]),
    query("moments", "f4[0] -> f4[1] f4[1] f4[1]", "of no elements", axes=[0]),
    query("argmax", "f4[2] -> i8[]", "axis 3 is not in the input", axis=3),
    query("argmax", "f4[2] -> i4[]", "the output is not i64", axis=0),
    query("argmax", "f4[0] -> i8[]", "of no elements", axis=0),
    query("argmax", "f4[2] -> i8[5]", "the input's other axes", axis=0),
    query("top_k", "f4[2] -> i8[1]", "are not two arrays, values and positions"),
    query("top_k", "f4[2] -> f8[1] i8[1]", "the values differ from the input in dtype"),
    query("top_k", "f4[2] -> f4[1] i4[1]", "the positions are not i64"),
    query("top_k", "f4[2] -> f4[2] i8[1]", "the outputs have different shapes"),
    query("top_k", "f4[2,2] -> f4[1] i8[1]", "the input's other axes"),
    query("top_k", "f4[2] -> f4[3] i8[3]", "more elements along the axis"),
    query("cumsum", "f4[2] -> f4[2]", "axis 3 is not in the input", axis=3),
    query("cumsum", "f4[2] -> f8[2]", "the output differs from the input in type", axis=0),
    query("cumsum", "b[2] -> b[2]", "cumsum does not support bool", axis=0),
    # movement
    query("copy", "f4[2] -> f4[3]", "differ in size"),
    query("transpose", "f4[2,3] -> f8[3,2]", "dtypes differ", permutation=[1, 0]),
    query(
        "transpose",
        "f4[2,3] -> f4[3,2]",
        "does not name each axis of the input once",
        permutation=[1, 1],
    ),
    query("transpose", "f4[2,3] -> f4[2,3]", "the permuted shape", permutation=[1, 0]),
    query("slice", "f4[2] -> f8[1]", "dtypes differ", starts=[0], steps=[1]),
    query("slice", "f4[2] -> f4[2]", "reach past the input", starts=[1], steps=[1]),
    query("pad_slice", "f4[2] -> f8[2]", "dtypes differ", starts=[0], steps=[1]),
    query("pad_slice", "f4[2] -> f4[2]", "reach past the output", starts=[1], steps=[1]),
    query("concat", "f4[2] -> f4[2]", "axis 4 is not in the output", axis=4),
    query("concat", "f4[2] f8[2] -> f4[4]", "another dtype or rank", axis=0),
    query("concat", "f4[2,1] f4[2,3] -> f4[4,3]", "differs in another axis", axis=0),
    query("concat", "f4[2] f4[2] -> f4[5]", "do not fill the output's axis", axis=0),
    # indexing
    query("gather", "f4[2] i8[1] -> f4[1]", "axis 2 is not in the tensor", axis=2),
    query("gather", "f4[2] f4[1] -> f4[1]", "the indices are not", axis=0),
    query("gather", "f4[2] i8[1] -> f8[1]", "dtypes differ", axis=0),
    query("gather", "f4[2] i8[1] -> f4[2]", "in place of the axis", axis=0),
    query("scatter_add", "f4[2] f4[1] -> f4[2]", "the indices are not", axis=0),
    query("one_hot", "f4[2] -> f4[2,3]", "the indices are not integers"),
    query("one_hot", "i8[2] -> f4[]", "the output has no axis"),
    query("one_hot", "i8[2] -> f4[3,2]", "one more axis"),
    query("iota", "-> f4[2]", "axis 1 is not in the output", axis=1),
    # random
    query("random_uniform", "f4[2] -> f4[2]", "is not two 64-bit integers"),
    query("random_uniform", "i8[2] -> i8[2]", "random_uniform does not make i64"),
    query("random_bits", "i8[2] -> f4[2]", "random_bits does not make f32"),
    # matmul
    query(
        "matmul",
        "f4[2,3] f4[3,2] -> f4[2,2]",
        "there is no post-operation",
        post=("gelu_by_tangents",),
    ),
    query("matmul", "f4[2,3] f8[3,2] -> f4[2,2]", "the operands' dtypes differ"),
    query("matmul", "f4[2,3] f4[3,2] f8[2] -> f4[2,2]", "the operands' dtypes differ"),
    query("matmul", "f4[2,3] f4[3,2] -> f8[2,2]", "the output has another dtype"),
    query("matmul", "f2[2,0] f2[0,2] -> f4[2,2]", "dtypes are mixed"),
    query(
        "matmul",
        "f4[2,3] f4[3,2] f4[4] -> f4[2,2]",
        "the addend differs from the output",
        post=("add",),
    ),
    query("matmul", "f4[3] f4[3,2] -> f4[1,2]", "fewer than two axes"),
    query("matmul", "f4[2,3] f4[4,2] -> f4[2,2]", "the inner lengths differ"),
    query("matmul", "f4[2,3] f4[3,2] -> f4[2,5]", "the output has another shape"),
    query("matmul", "f4[2,3] f4[3,2] f4[4] -> f4[2,2]", "the bias does not have n elements"),
    query("matmul", "f4[2,2,3] f4[4,3,2] -> f4[2,2,2]", "do not broadcast"),
    query("matmul", "i8[2,3] i8[3,2] -> i8[2,2]", "supports only float dtypes", post=("relu",)),
    query("matmul", "f4[2,3] f4[3,2] -> f4[2,2]", "after relu", post=("relu", "gelu")),
    # grouped_matmul
    query("grouped_matmul", "i8[2,3] i8[1,3,2] i8[1] -> i8[2,2]", "is not of a float dtype"),
    query("grouped_matmul", "f4[2,3] f8[1,3,2] i8[1] -> f4[2,2]", "dtypes differ"),
    query("grouped_matmul", "f4[2,3] f4[1,3,2] f4[1] -> f4[2,2]", "are not i32 or i64"),
    query("grouped_matmul", "f4[2,3] f4[1,3,2] i8[1,1] -> f4[2,2]", "do not have exactly one axis"),
    query("grouped_matmul", "f4[2] f4[1,3,2] i8[1] -> f4[2,2]", "are not a matrix"),
    query("grouped_matmul", "f4[2,3] f4[2,3,2] i8[1] -> f4[2,2]", "the shapes do not match"),
    query("grouped_weight_grad", "f4[2,3] f4[2,2] i8[1] -> f4[3,2]", "the shapes do not match"),
    # attention
    attend("f2[1,2,3] f2[1,2,3] f2[1,2,3] -> f2[1,2,3] f2[1,2]", "are not float32 or float64"),
    attend("f4[2,3] f4[2,3] f4[2,3] -> f4[2,3] f4[2]", "one rank of at least 3"),
    attend("f4[1,2,3] f4[1,0,3] f4[1,0,3] -> f4[1,2,3] f4[1,2]", "there are no keys"),
    attend("f4[1,2,3] f4[1,4,3] f4[1,4,3] f4[7] -> f4[1,2,3] f4[1,2]", "does not broadcast"),
    attend("f4[1,2,3] f4[1,4,3] f4[1,4,3] i4[2,4] -> f4[1,2,3] f4[1,2]", "is not of dtype bool or"),
    attend("f4[1,2,3] f8[1,4,3] f4[1,4,3] -> f4[1,2,3] f4[1,2]", "do not have one dtype"),
    # windows
    conv("f4[1,2] f4[2,2] -> f4[1,2]", "do not have 1 to 3 spatial axes"),
    conv("f4[1,2] f4[1,2] -> f4[2,2]", "do not have 1 to 3 spatial axes", op="conv_weight_grad"),
    conv("f4[1,1,4] f4[1,1,3] -> f4[1,1,2]", "does not have one number per axis", strides=[]),
    conv("f4[1,1,4] f4[1,1,5] -> f4[1,1,2]", "a window is larger than"),
    conv("f4[1,1,4] f4[1,1,3] -> f4[1,1,3]", "the number of windows that fit"),
    conv("f4[1,1,4] f8[1,1,3] -> f4[1,1,2]", "the dtypes differ"),
    conv("f4[1,1,4] f4[1,2,3] -> f4[1,1,2]", "differ in channels or batch size"),
    conv("i8[1,1,4] i8[1,1,3] -> i8[1,1,2]", "convolutions support only float"),
    conv("f4[1,1,4] f4[1,1,3] f4[5] -> f4[1,1,2]", "does not have one number per channel"),
    conv("f4[1,1,4] f4[1,1,3] -> f4[1,1,2]", "there is no post-operation", post=("median",)),
    conv("f2[1,1,4] f2[1,1,3] f2[1] -> f2[1,1,2]", "16-bit floats are not used here"),
    conv("f2[1,1,4] f2[1,1,3] -> f4[1,1,2]", "dtypes are mixed"),
    pool(
        "max_pool",
        "f4[1,3000000000,1] -> f4[1,2999999998,1] i8[1,2999999998,1]",
        "more elements than an int32 can count",
        channels_last=1,
    ),
    pool("max_pool", "i8[1,1,4] -> i8[1,1,2] i8[1,1,2]", "of one float dtype"),
    pool("max_pool", "f4[1,1,4] -> f4[1,2,2] i8[1,2,2]", "differ in batch size or channels"),
    pool("max_pool", "f4[1,1,4] -> f4[1,1,2] i4[1,1,2]", "the positions are not i64"),
    pool("avg_pool", "i8[1,1,4] -> i8[1,1,2]", "of one float dtype"),
    pool("avg_pool", "f4[1,1,5] -> f4[1,1,1]", "the windows have a dilation", dilations=[2]),
    # along an axis
    query("take_along_axis", "f4[2] i8[2] -> f4[2]", "axis 3 is not in the tensor", axis=3),
    query("take_along_axis", "f4[2] f4[2] -> f4[2]", "are not i32 or i64", axis=0),
    query("take_along_axis", "f4[2] i8[2] -> f8[2]", "dtypes differ", axis=0),
    query("take_along_axis", "f4[2] i8[3] -> f4[2]", "do not have one element per element", axis=0),
    query("add_along_axis", "f4[2,3] i8[2,3] -> f4[4,5]", "differ in another axis", axis=0),
    # softmax
    query("softmax", "i8[2] -> i8[2]", "the input is not of a float dtype", axis=0),
    query("softmax", "f4[2] -> f4[3]", "differs from the input in type", axis=0),
    query("softmax", "f4[2] -> f4[2]", "axis 1 is not in the input", axis=1),
    query("softmax_cross_entropy", "i8[2,3] i8[2] -> i8[2]", "the logits are not of a float dtype"),
    query("softmax_cross_entropy", "f4[] i8[] -> f4[]", "the logits have no axis"),
    query("softmax_cross_entropy", "f4[2,3] f4[2] -> f4[2]", "the labels are not i32 or i64"),
    query("softmax_cross_entropy", "f4[2,3] i8[2] f4[2] -> f4[2]", "wrong number of inputs"),
    query("softmax_cross_entropy", "f4[2,3] i8[3] -> f4[2]", "the logits' shape without"),
    query("softmax_cross_entropy", "f4[2,3] i8[2] -> f8[2]", "differs from the logits in type"),
]
