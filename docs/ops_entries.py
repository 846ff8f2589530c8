# SPDX-License-Identifier: Apache-2.0
"""Texts and examples of docs/ops.md for ops whose docstrings have no sections yet.

`TEXTS` is used for an op whose docstring has no section of parameters, `EXAMPLES` for one whose
docstring has no examples. An example that begins with "(" holds the arguments of
`ngd.function(ops.NAME)`. A key may begin with the module, such as "shape.take".
"""

from __future__ import annotations

from typing import Final

TEXTS: Final = {
    # elementwise
    "abs": "Return the absolute value of each element. The gradient at 0 is 0.",
    "add": "Return a + b, element by element.",
    "ceil": "Return the smallest integer that is not less than each element. The gradient is 0.",
    "clip": """Limit each element to the range [min, max]. Either bound may be left out.

The gradient of an element on a bound goes to x; beyond the bound it goes to the bound.""",
    "divide": "Return a / b in floats. Integers are cast to float64 first.",
    "floor": "Return the largest integer that is not greater than each element. The gradient is 0.",
    "floor_divide": """Return the floor of a / b, as in NumPy. The gradient is 0.

An integer divided by zero is 0.""",
    "maximum": """Return the larger of a and b, element by element. NaN propagates.

If both are equal, each gets half of the gradient.""",
    "minimum": """Return the smaller of a and b, element by element. NaN propagates.

If both are equal, each gets half of the gradient.""",
    "multiply": "Return a * b, element by element.",
    "negative": "Return -x.",
    "reciprocal": "Return 1 / x.",
    "remainder": """Return a - floor_divide(a, b) * b, which has the sign of b, as in NumPy.

An integer modulo zero is 0.""",
    "round": "Round each element to the nearest integer, and halves to the even one.",
    "sign": "Return -1, 0 or 1 for each element. NaN stays NaN, and the gradient is 0.",
    "square": "Return x * x.",
    "subtract": "Return a - b, element by element.",
    "cos": "Return the cosine of x, in radians.",
    "sin": "Return the sine of x, in radians.",
    "tanh": "Return the hyperbolic tangent of x.",
    "erf": "Return the error function, 2 / sqrt(pi) times the integral of exp(-t * t) from 0 to x.",
    "exp": "Return e to the power of x.",
    "expm1": "Return exp(x) - 1, which is accurate near 0.",
    "log": "Return the natural logarithm of x.",
    "log1p": "Return log(1 + x), which is accurate near 0.",
    "power": """Return a to the power of b.

An integer to a negative power is truncated: it is 0 unless abs(a) is 1. The gradient to the
exponent is 0 for a <= 0.""",
    "rsqrt": "Return 1 / sqrt(x).",
    "sqrt": "Return the square root of x.",
    # comparisons and bits
    "equal": "Return True where a equals b. NaN is not equal to any number.",
    "not_equal": "Return True where a differs from b.",
    "greater": "Return True where a > b.",
    "greater_equal": "Return True where a >= b.",
    "less": "Return True where a < b.",
    "less_equal": "Return True where a <= b.",
    "logical_and": "Return True where both a and b are true. Numbers other than 0 are true.",
    "logical_or": "Return True where a or b is true. Numbers other than 0 are true.",
    "logical_not": "Return True where x is false. Numbers other than 0 are true.",
    "bitwise_and": "Return the bits that are set in both a and b.",
    "bitwise_or": "Return the bits that are set in a or b.",
    "bitwise_xor": "Return the bits that are set in one of a and b.",
    "bitwise_not": "Invert each bit of an integer, or a bool.",
    "where": """Return x where the condition is true, and y elsewhere.

All three broadcast to one shape.""",
    # activations
    "elu": """Return x for x > 0, and alpha * (exp(x) - 1) otherwise.

Clevert, Unterthiner and Hochreiter, 2016 (arXiv:1511.07289), equation 14.""",
    "gelu": """Return x * P(X <= x), where X has the standard normal distribution.

With approximate="tanh": 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))).
Hendrycks and Gimpel, 2016 (arXiv:1606.08415), section 2.""",
    "hardsigmoid": "Return min(max(x + 3, 0), 6) / 6. The gradient at -3 and at 3 is 0.",
    "hardswish": """Return x * min(max(x + 3, 0), 6) / 6. The gradient at -3 is 0, and at 3 it is 1.

Howard et al., 2019 (arXiv:1905.02244), section 5.2.""",
    "leaky_relu": """Return x for x > 0, and negative_slope * x otherwise.

The gradient at 0 is negative_slope.

Maas, Hannun and Ng, "Rectifier nonlinearities improve neural network acoustic models" (2013),
equation 2.""",
    "relu": "Return max(x, 0). NaN propagates, and the gradient at 0 is 0.",
    "sigmoid": "Return 1 / (1 + exp(-x)).",
    "silu": """Return x * sigmoid(x), which is also called swish.

Elfwing, Uchibe and Doya, 2018 (arXiv:1702.03118), equation 3.""",
    "softplus": """Return log(1 + exp(x)), without overflow.

Dugas et al., "Incorporating second-order functional knowledge" (NIPS 2000), equation 3.""",
    "softmax": "Return exp(x) divided by its sum along the axis, without overflow.",
    "log_softmax": "Return the logarithm of softmax, without overflow and without log(0).",
    # reductions
    "all": "Return True if no element along the axes is 0, and for no elements.",
    "any": "Return True if an element along the axes is not 0, and False for no elements.",
    "argmax": """Return the index of the largest element, an int64.

It is the first of equal elements, or the first NaN. With axis=None it counts in the flattened
array.""",
    "argmin": """Return the index of the smallest element, an int64.

It is the first of equal elements, or the first NaN. With axis=None it counts in the flattened
array.""",
    "cumsum": """Return the sum of each element and all elements before it.

With reverse=True, of all elements after it. Bools and small integers become int64 or uint64.
float32 is accumulated in float64, and 16-bit floats in float32.""",
    "logsumexp": """\
Return log(sum(exp(x))) along the axes, without overflow. Integers become floats.

The gradient is the softmax of x, and 0 if all elements are -inf.""",
    "max": """\
Return the largest element along the axes. NaN propagates, and equals share the gradient.""",
    "min": """\
Return the smallest element along the axes. NaN propagates, and equals share the gradient.""",
    "mean": "Return the mean along the axes. The mean of no elements is NaN.",
    "prod": "Return the product of the elements along the axes, and 1 for no elements.",
    "sum": "Return the sum of the elements along the axes, and 0 for no elements.",
    "var": """Return the variance along the axes: the mean squared distance from the mean.

The sum of the squares is divided by n - ddof, where n is the number of elements. Integers become
float64.""",
    "vector_norm": """Return (sum of abs(x) ** ord) ** (1 / ord) along the axes.

For ord=inf and -inf it is the largest and smallest abs(x). Integers become floats.""",
    # shapes
    "broadcast_to": "Repeat an array along new axes and along axes of size 1, as in NumPy.",
    "concat": "Concatenate arrays along an axis. They are promoted to one dtype.",
    "expand_dims": "Insert an axis of size 1.",
    "flip": "Reverse the order of the elements along the axes; the default is all axes.",
    "full": "Return an array whose elements all have one value.",
    "arange": "Return start, start + step, start + 2 * step, ... below stop.",
    "moveaxis": "Move one axis to another index. The other axes keep their order.",
    "one_hot": """\
Return 1 at each index along a new last axis, and 0 elsewhere: [...] to [..., depth].

An index outside of [0, depth) makes zeros.""",
    "ones": "Return an array of ones.",
    "zeros": "Return an array of zeros.",
    "pad": """Add elements before and after each axis.

The widths are one number, one pair (before, after) for all axes, or one pair per axis. The mode is
"constant" (with the given value), "edge", "reflect", "symmetric" or "wrap", as in numpy.pad.""",
    "reshape": "Return the elements in row-major order with another shape. One size may be -1.",
    "roll": "Shift elements along the axes. Elements that leave at one end enter at the other.",
    "split": "Split an array into equal parts, or at the given indices, as numpy.split.",
    "squeeze": "Remove axes of size 1: the given ones, or all.",
    "stack": "Join arrays of one shape along a new axis.",
    "swapaxes": "Exchange two axes.",
    "tile": "Repeat an array along each axis.",
    "transpose": "Permute the axes. The default reverses their order.",
    "tri": "Return a matrix of bools that is True on and below the k-th diagonal.",
    "tril": """\
Keep elements on and below the k-th diagonal of the last two axes; the others become 0.""",
    "triu": """\
Keep elements on and above the k-th diagonal of the last two axes; the others become 0.""",
    "cast": """Return the values in another dtype.

Integers wrap. A float becomes an integer towards zero, out of range it saturates, and NaN is 0.
All values except 0 become True. float64 and integers are rounded to float32 first if they become
16-bit floats.""",
    "stop_gradient": "Return x. No gradient flows through it.",
    "as_node": """Return a node unchanged, and everything else as a constant.

A Python scalar takes the dtype of `like`. Without it, the dtype is NumPy's: bool, int64 or
float64.""",
    # indexing, sorting
    "at": """Update elements of an array, and return the new array: at(x)[index].set(values).

A node has it as `x.at[index]`. Besides `set` there are `add`, `multiply`, `min`, `max` and
`get`. The index is as for `getitem`. It may also be a mask of bools that a step computes, of
the shape of x or of its first axes. Then the values are scalars, or have the shape of the other
axes.""",
    "dynamic_slice": """Return a slice of static size that begins at computed indices, one per axis.

A slice that would exceed an axis begins earlier, so that it fits.""",
    "embedding": """Return rows of a table: indices [...] and a table [rows, E] give [..., E].

The row padding_idx gets no gradient. An index outside of [0, rows) raises OutOfRangeError when the
step runs. Negative indices do not count from the end, in contrast to `weight[indices]`.""",
    "take": """Return the elements at some indices along an axis, as numpy.take.

Negative indices count from the end. An index out of range raises OutOfRangeError when the step
runs.""",
    "getitem": """Return x[index], as in NumPy.

An index consists of integers, slices, None, `...`, arrays of integers, nodes of integers, and masks
that are known when the graph is built. The gradients of an element that is read several times are
added. An index out of range raises ShapeError, or OutOfRangeError if a step computes it.""",
    "scatter_add": """Return zeros to which the updates are added at the indices along the axis.

It is the adjoint of reading these indices. 16-bit floats are accumulated in float32. An index
out of range raises OutOfRangeError when the step runs.""",
    "slice": "Return x[index] for integers, slices of any step, None and `...`.",
    "take_along_axis": """\
Return the elements at the indices along an axis, as numpy.take_along_axis.

Negative indices count from the end. An index out of range raises OutOfRangeError when the step
runs.""",
    "argsort": """\
Return the indices that sort x along the axis, int64. Equal elements keep their order.""",
    "sort": "Sort along an axis. NaN comes last, or first in descending order.",
    "top_k": """\
Return the k largest or smallest elements along the axis, and their indices (int64).

The most extreme element comes first. Of equal ones, the smaller index comes first. NaN counts as
the largest.""",
    # linear algebra
    "einsum": """Sum products of elements by labels of axes, as numpy.einsum.

The labels of the result may be left out, "..." stands for axes that broadcast, and a label that
occurs twice in one operand is its diagonal.""",
    "matmul": """\
Return the matrix product, as numpy.matmul: [..., M, K] and [..., K, N] give [..., M, N].

Operands of one axis are vectors, and the leading axes broadcast. 16-bit floats are accumulated in
float32 and rounded once.""",
    # convolution and pooling
    "conv": """Convolve x [N, C, spatial...] with a weight [O, C / groups, kernel...].

The bias is [O]. Other parameters are those of torch.nn.functional.conv1d, conv2d and conv3d. The
padding may also be pairs (before, after) per axis, or "same", which makes ceil(n / stride) windows
for any stride.""",
    "conv_transpose": """Apply a transposed convolution to x [N, C, spatial...].

The weight is [C, O / groups, kernel...] and the bias [O]. It is the adjoint of a convolution with
this weight. output_padding is less than the stride.""",
    "avg_pool": """Return the mean of each window of x [N, C, spatial...].

The zeros of the padding count as elements, unless count_include_pad is False.""",
    "max_pool": """Return the maximum of each window of x [N, C, spatial...].

With return_indices the result is a pair. Its second part has the index of each maximum, int64,
in row-major order over the spatial axes. It is the first of equals, or the first NaN. The gradient
goes to that element.""",
    "adaptive_avg_pool": """\
Return the mean of each of output_size windows of x [N, C, spatial...].

Window i of `count` windows over n elements is [floor(i * n / count),
ceil((i + 1) * n / count)).""",
    "adaptive_max_pool": """\
Return the maximum of each of output_size windows of x [N, C, spatial...].

The windows are those of adaptive_avg_pool.""",
    # normalization
    "batch_norm": """Normalize x [N, C, ...] per channel with its own statistics, as in training.

The result is the tuple (value, mean, variance), with mean and variance [C]. The value is
(x - mean) / sqrt(variance + eps) * weight + bias. Ioffe and Szegedy, 2015 (arXiv:1502.03167),
algorithm 1.""",
    "batch_norm_inference": """Normalize x [N, C, ...] per channel with given statistics.

(x - mean) / sqrt(variance + eps) * weight + bias, where all four are [C].""",
    "group_norm": """Normalize x [N, C, ...] over groups of channels of each sample.

Weight and bias are [C]. Wu and He, 2018 (arXiv:1803.08494), section 3.1.""",
    "layer_norm": """Normalize x over its last axes, whose shape is normalized_shape.

(x - mean) / sqrt(variance + eps) * weight + bias, with the variance divided by n. Ba, Kiros and
Hinton, 2016 (arXiv:1607.06450), equation 4.""",
    "rms_norm": """Divide x by its root mean square over its last axes, of shape normalized_shape.

x / sqrt(mean(x**2) + eps) * weight. Zhang and Sennrich, 2019 (arXiv:1910.07467), equation 4.""",
    "standardize": """Return (x - mean) / sqrt(variance + eps), the mean and the variance.

Mean and variance keep the axes, with size 1. The variance is divided by the number of elements.""",
    # losses
    "binary_cross_entropy": """Return -(t * log(p) + (1 - t) * log(1 - p)).

A logarithm is at least -100, and beyond that its gradient is 0. binary_cross_entropy_with_logits is
more accurate. The operands are of one shape, and the weight broadcasts.""",
    "binary_cross_entropy_with_logits": """Return binary_cross_entropy of sigmoid(logits).

It does not overflow. The weight and pos_weight broadcast; pos_weight multiplies the positive
part.""",
    "cross_entropy": """Return the cross-entropy of logits and integer labels.

The loss is logsumexp(logits) - logits[label]. The logits are [C], [N, C] or [N, C, d1, ...],
and the labels have their shape without C. Labels that equal ignore_index do not count; if no
label counts, the mean is NaN. With label smoothing, all classes share that part of the label
(Szegedy et al., 2016, arXiv:1512.00567, section 7).""",
    "huber_loss": """Return half the squared distance up to delta, and a line beyond.

With d = abs(prediction - target), it is d**2 / 2 for d <= delta, and delta * (d - delta / 2)
otherwise. Huber, 1964 (Ann. Math. Stat. 35), section 1.""",
    "kl_div": """Return target * (log(target) - log_prediction), the Kullback-Leibler divergence.

With log_target the target is a logarithm. Targets of 0 do not count. The reduction may also be
"batchmean", the sum divided by the size of the first axis. Kullback and Leibler, 1951 (Ann. Math.
Stat. 22), equation 2.4.""",
    "l1_loss": "Return abs(prediction - target), reduced. Both are of one shape.",
    "mse_loss": "Return (prediction - target)**2, reduced. Both are of one shape.",
    "softmax_cross_entropy": """\
Return -log_softmax(logits)[label]: logits [..., C] and labels [...].

The result has the shape of the labels. A label outside of [0, C) raises OutOfRangeError when the
step runs.""",
    # attention and recurrence
    "attention": """Return softmax(query @ key^T * scale) @ value, scaled dot-product attention.

The query is [..., heads, L, E], the key [..., h, S, E] and the value [..., h, S, V]. h divides
heads, and each key head serves heads / h query heads. The mask broadcasts to [..., heads, L,
S]. In a mask of bools True takes part; floats are added to the scores. With causal=True,
position i of L attends to positions up to i of S. The scale is 1 / sqrt(E) by default. A query
that attends to no position gives 0.

The scores are computed in blocks and are not stored, so memory grows linearly with S.

Vaswani et al., 2017 (arXiv:1706.03762), equation 1. Ainslie et al., 2023 (arXiv:2305.13245).
Dao et al., 2022 (arXiv:2205.14135).""",
    "gru": """Run one layer of a GRU over x [L, ..., I]. Return all hidden states and the last one.

With reverse=True it begins at the last position. The weights are those of torch.nn.GRU.""",
    "gru_cell": """Return the next hidden state of a GRU, from x [..., I] and h [..., H].

r, z, n are the thirds of x @ weight_ih.T + bias_ih. R, Z, N are those of h @ weight_hh.T + bias_hh.
With u = sigmoid(z + Z) and m = tanh(n + sigmoid(r + R) * N), the result is (1 - u) * m + u * h. Cho
et al., 2014 (arXiv:1406.1078).""",
    "lstm": """\
Run one layer of an LSTM over x [L, ..., I]. Return all hidden states, the last h and c.

With reverse=True it begins at the last position. The weights are those of torch.nn.LSTM.""",
    "lstm_cell": """Return the next h and c of an LSTM, from x [..., I], h and c [..., H].

i, f, g, o are the quarters of x @ weight_ih.T + bias_ih + h @ weight_hh.T + bias_hh. Then
c = sigmoid(f) * c + sigmoid(i) * tanh(g) and h = sigmoid(o) * tanh(c). Hochreiter and Schmidhuber,
1997 (Neural Computation 9), with the forget gate of Gers et al., 2000 (Neural Computation 12).""",
    # random numbers
    "dropout": """\
Set each element to 0 with probability rate, and divide the others by 1 - rate.""",
    "random_bits": "Return random uint32 numbers of the Philox generator.",
    "random_normal": """Return random numbers with mean 0 and standard deviation 1.

They are Box and Muller's transform (Ann. Math. Stat. 29, 1958) of uniform numbers.""",
    "random_uniform": """Return random numbers in [0, 1), multiples of 2**-bits.

The bits are 53 for float64, 24 for float32, 11 for float16 and 8 for bfloat16.""",
    # collectives
    "all_gather": """Concatenate the arrays of all ranks along an axis, in the order of ranks.

x has one shape on all ranks. The adjoint is reduce_scatter(op="sum").""",
    "all_gather_v": """Concatenate arrays of different lengths; rank r's x has counts[r] rows.

The counts, and the other axes, are equal on all ranks. The adjoint is reduce_scatter with
op="sum" and these counts.""",
    "all_reduce": """Reduce an array over all ranks, element by element. All ranks get the result.

The op is "sum", "mean", "min", "max" or "prod". "mean" takes floats. A weight, a scalar for
op="mean", is the weight of this rank. A rank of weight 0 contributes nothing, even if its x is NaN.
If all weights are 0, so is the result.

compression="bf16" sends a float32 x as bfloat16, accumulates in float32 and rounds once. The
gradient is compressed too. The adjoint of sum is sum, and that of mean is mean. The other
reductions have no gradient.""",
    "all_to_all": """Send block r of x to rank r, and concatenate the received blocks.

split_axis is split into one equal block per rank. The blocks are joined along concat_axis in the
order of ranks. x has one shape on all ranks. The adjoint exchanges the two axes.""",
    "all_to_all_v": """\
Send send_counts[r] rows of x to rank r, and receive receive_counts[r] rows from it.

The rows are in the order of ranks. The adjoint exchanges the counts.""",
    "broadcast": """Copy the root's x to all ranks.

The adjoint is the sum over ranks on the root, and zero elsewhere.""",
    "gather": """Concatenate the arrays of all ranks along an axis on the root.

The result on the other ranks is zero. x has one shape on all ranks. The adjoint is scatter.""",
    "reduce": """\
Reduce an array over all ranks to the root. The result elsewhere is zero.

The op is as for all_reduce. The gradient of sum and mean is broadcast from the root; the other
reductions have no gradient.""",
    "own_rank": "Return the number of this rank in the group, an int64 scalar.",
    "recv": """Receive an array of this shape and dtype that another rank sends.

`after` is a scalar that is computed before, such as the token of a send. The adjoint of `after` is
the token of the send that returns the adjoint of the received array to `source`. So a rank whose
loss depends on a received array also differentiates by `after`, and makes that token an output.""",
    "send": """Send x to another rank, which receives it by recv.

The result is a token: a scalar 0 of x's dtype, which is available when x is received. The send runs
only if a step needs the token: make it an output, or add it to an output. Both ranks make their
sends and receives in the same order. The tag is compared to detect a difference.""",
    "reduce_scatter": """Reduce an array over all ranks. Rank r gets block r along the axis.

The axis is split into equal blocks, or into blocks of counts[r] elements. The op is as for
all_reduce. The adjoint of sum is all_gather. Min, max and prod have no gradient.""",
    "scatter": """Split the root's x along an axis. Rank r gets block r.

x has one shape on all ranks; only the root's values are read. The adjoint is a gather to the
root.""",
    "sparse_all_reduce": """Reduce only the elements of the largest magnitude over all ranks.

The result is a pair: the reduced array, and the elements that were not sent. Add them to the next x
(error feedback), so that no element is lost. See Stich, Cordonnier and Jaggi, "Sparsified SGD with
Memory" (NeurIPS 2018), Algorithm 1. ngd.TopK does the same for arrays outside of a step.""",
    "iterations": """Return how often the code that is traced now runs per step.

It is the product of the lengths of all ops.scan loops around the code, and 1 outside of loops.
Random draws in a loop need that many numbers.""",
}
"""The text of an op: sentences, formula and source."""

A = "np.array([1.0, 2.0, 4.0])"
B = "np.array([3.0, 2.0, 1.0])"
M = "np.arange(6.0).reshape(2, 3)"
I = "np.array([6, 3])"  # noqa: E741
J = "np.array([3, 5])"
BOOLS = "np.array([True, False]), np.array([True, True])"
MAPS = "np.arange(16.0).reshape(1, 1, 4, 4)"

EXAMPLES: Final = {
    **dict.fromkeys(("add", "divide", "maximum", "minimum", "multiply"), f"({A}, {B})"),
    **dict.fromkeys(("subtract", "power", "remainder", "floor_divide"), f"({A}, {B})"),
    **dict.fromkeys(("equal", "not_equal", "greater", "greater_equal"), f"({A}, {B})"),
    **dict.fromkeys(("less", "less_equal"), f"({A}, {B})"),
    **dict.fromkeys(("logical_and", "logical_or"), f"({BOOLS})"),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), f"({I}, {J})"),
    **dict.fromkeys(("abs", "negative", "sign", "relu", "square"), "(np.array([-2.0, 0.0, 3.0]))"),
    **dict.fromkeys(("elu", "gelu", "hardsigmoid", "hardswish"), "(np.array([-1.0, 0.0, 1.0]))"),
    **dict.fromkeys(("leaky_relu", "sigmoid", "silu", "softplus"), "(np.array([-1.0, 0.0, 1.0]))"),
    **dict.fromkeys(("cos", "sin", "tanh", "erf", "exp", "expm1"), "(np.array([0.0, 1.0]))"),
    **dict.fromkeys(("log", "sqrt", "rsqrt", "reciprocal"), "(np.array([1.0, 4.0]))"),
    **dict.fromkeys(("ceil", "floor", "round"), "(np.array([-1.5, 0.4, 2.5]))"),
    **dict.fromkeys(("sum", "mean", "max", "min", "prod", "var", "argmax"), f"({M}, axis=1)"),
    **dict.fromkeys(("argmin", "logsumexp", "vector_norm"), f"({M}, axis=1)"),
    **dict.fromkeys(("all", "any"), f"({M}, axis=1)"),
    **dict.fromkeys(("softmax", "log_softmax"), f"({A})"),
    **dict.fromkeys(("tril", "triu", "transpose", "flip"), f"({M})"),
    **dict.fromkeys(("zeros", "ones"), "((2, 3))"),
    **dict.fromkeys(("mse_loss", "l1_loss", "huber_loss"), f"({A}, {B})"),
    **dict.fromkeys(("all_gather", "broadcast", "scatter"), "(np.arange(4.0))"),
    **dict.fromkeys(("gather", "all_to_all"), "(np.arange(4.0))"),
    **dict.fromkeys(("reduce_scatter", "all_reduce"), '(np.arange(4.0), op="sum")'),
    **dict.fromkeys(("reduce",), '(np.arange(4.0), op="sum")'),
    **dict.fromkeys(("take",), f"({M}, np.array([2, 0]), axis=1)"),
    "adaptive_avg_pool": f"({MAPS}, 2)",
    "adaptive_max_pool": f"({MAPS}, 2)",
    "all_gather_v": "(np.arange(3.0), counts=[3])",
    "all_to_all_v": "(np.arange(3.0), [3], [3])",
    "argsort": "(np.array([3.0, 1.0, 2.0]))",
    "as_node": f"({A})",
    "at": "ngd.function(lambda x: ops.at(x)[1].add(10.0))(np.array([1.0, 2.0, 3.0]))",
    "attention": """\
query, key, value = np.ones((1, 2, 3, 4)), np.ones((1, 2, 5, 4)), np.ones((1, 2, 5, 6))
ngd.function(ops.attention)(query, key, value).shape""",
    "avg_pool": f"({MAPS}, 2)",
    "batch_norm": f"({M})",
    "batch_norm_inference": f"({M}, np.zeros(3), np.ones(3))",
    "binary_cross_entropy": "(np.array([0.9, 0.2]), np.array([1.0, 0.0]))",
    "binary_cross_entropy_with_logits": "(np.array([2.0, -1.0]), np.array([1.0, 0.0]))",
    "bitwise_not": f"({I})",
    "broadcast_to": "(np.array([1.0, 2.0]), (3, 2))",
    "cast": '(np.array([1.7, -1.7]), "int32")',
    "clip": "ngd.function(lambda x: ops.clip(x, 0.0, 2.0))(np.array([-1.0, 1.0, 3.0]))",
    "concat": "([np.array([1.0]), np.array([2.0, 3.0])])",
    "cond": """\
step = ngd.function(lambda p, x: ops.cond(p, ops.exp, ops.negative, x))
step(np.bool_(False), np.array([1.0, 2.0, 4.0]))""",
    "conv": """\
images, weight = np.ones((8, 3, 32, 32)), np.ones((16, 3, 3, 3))
ngd.function(ops.conv)(images, weight, padding=1).shape""",
    "conv_transpose": """\
images, weight = np.ones((8, 3, 16, 16)), np.ones((3, 16, 2, 2))
ngd.function(ops.conv_transpose)(images, weight, stride=2).shape""",
    "cross_entropy": "(np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([0, 1]))",
    "cumsum": f"({A})",
    "dropout": "ngd.function(lambda x: ops.dropout(x, 0.5, seed=3))(np.ones(8))",
    "dynamic_slice": f"({M}, [np.int64(0), np.int64(1)], (2, 2))",
    "einsum": f'("ij,kj->ik", {M}, {M})',
    "embedding": f"(np.array([1, 0]), {M})",
    "expand_dims": f"({A}, 0)",
    "full": "ngd.function(lambda: ops.full((2, 2), 0.5))()",
    "getitem": f"ngd.function(lambda x: ops.getitem(x, (slice(None), 1)))({M})",
    "group_norm": "(np.arange(8.0).reshape(1, 4, 2), 2)",
    "gru": """\
step = ngd.function(ops.gru)
outputs, h = step(np.ones((3, 2, 4)), np.zeros((2, 5)), np.ones((15, 4)), np.ones((15, 5)))
outputs.shape, h.shape""",
    "gru_cell": """\
step = ngd.function(ops.gru_cell)
step(np.ones((2, 4)), np.zeros((2, 5)), np.ones((15, 4)), np.ones((15, 5))).shape""",
    "arange": "(4)",
    "iterations": "ops.iterations()",
    "kl_div": "(np.log(np.array([0.5, 0.5])), np.array([0.25, 0.75]))",
    "layer_norm": f"({M}, 3)",
    "log1p": "(np.array([0.0, 1.0]))",
    "logical_not": "(np.array([True, False]))",
    "lstm": """\
step, h, c = ngd.function(ops.lstm), np.zeros((2, 5)), np.zeros((2, 5))
outputs, h, c = step(np.ones((3, 2, 4)), h, c, np.ones((20, 4)), np.ones((20, 5)))
outputs.shape, h.shape, c.shape""",
    "lstm_cell": """\
step, h, c = ngd.function(ops.lstm_cell), np.zeros((2, 5)), np.zeros((2, 5))
h, c = step(np.ones((2, 4)), h, c, np.ones((20, 4)), np.ones((20, 5)))
h.shape, c.shape""",
    "matmul": f"({M}, np.ones((3, 2)))",
    "max_pool": f"({MAPS}, 2)",
    "moveaxis": f"({M}, 0, 1)",
    "one_hot": "(np.array([2, 0]), 3)",
    "own_rank": "()",
    "pad": f"({A}, 1)",
    "random_bits": "((3,), seed=1)",
    "random_normal": "((3,), seed=1)",
    "random_uniform": "((3,), seed=1)",
    "recv": """\
step = ngd.function(lambda x: ops.recv((2,), "float64", 0, after=x))  # on rank 1""",
    "reshape": f"({M}, (3, 2))",
    "rms_norm": f"({M}, 3)",
    "roll": f"({A}, 1)",
    "scan": f"ngd.function(lambda x: ops.scan(lambda c, t: (c + t, c), 0.0, x))({A})",
    "scatter_add": "(np.array([1.0, 2.0]), np.array([3, 3]), 0, 5)",
    "send": "step = ngd.function(lambda x: ops.send(x, 1))  # on rank 0",
    "slice": f"ngd.function(lambda x: ops.slice(x, slice(0, 1)))({M})",
    "softmax_cross_entropy": "(np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([0, 1]))",
    "sort": "(np.array([3.0, 1.0, 2.0]))",
    "sparse_all_reduce": """\
step = ngd.function(lambda x, r: ops.sparse_all_reduce(x, r, ratio=0.5, op="mean"))
step(np.float32([0.0, 3.0]), np.zeros(2, np.float32))""",
    "split": "(np.arange(4.0), 2)",
    "squeeze": "(np.ones((1, 3)))",
    "stack": "([np.array([1.0, 2.0]), np.array([3.0, 4.0])])",
    "standardize": f"({M})",
    "stop_gradient": "ngd.grad(lambda x: x * ops.stop_gradient(x))(np.array(3.0))",
    "swapaxes": f"({M}, 0, 1)",
    "take_along_axis": f"({M}, np.array([[2], [0]]), axis=1)",
    "tile": "(np.array([1.0, 2.0]), 2)",
    "top_k": "(np.array([3.0, 1.0, 2.0]), 2)",
    "tri": "(3)",
    "where": "(np.array([True, False]), np.array([1.0, 2.0]), np.array([3.0, 4.0]))",
}
"""An example of an op: arguments of `ngd.function(ops.NAME)`, or code."""

PARAMETERS: Final = {
    "x": "The array.",
    "a": "The first array. Both arrays broadcast to one shape.",
    "b": "The second array.",
    "after": "A scalar that is computed before.",
    "algorithm": '"flat", "ring" or "auto".',
    "alpha": "The negative of the limit at minus infinity.",
    "approximate": '"none" or "tanh".',
    "axes": "The order of the axes. The default reverses it.",
    "axis": "The axis. None, where it is allowed, means all elements.",
    "axis1": "The first axis.",
    "axis2": "The second axis.",
    "bias": "The bias, or None.",
    "bias_hh": "The bias of h, or None.",
    "bias_ih": "The bias of x, or None.",
    "c": "The initial cell state.",
    "causal": "A query attends to positions up to its own only.",
    "ceil_mode": "Round the number of windows up.",
    "columns": "The number of columns. The default is the number of rows.",
    "compression": '"bf16", or None.',
    "concat_axis": "The axis along which received blocks are joined.",
    "condition": "An array of bools.",
    "count_include_pad": "The zeros of the padding count as elements.",
    "counts": "The number of rows per rank.",
    "delta": "The distance from which the loss is linear.",
    "depth": "The size of the new axis.",
    "descending": "Sort in descending order.",
    "destination": "The index of the axis in the result.",
    "dilation": "The distance between elements of the kernel, for all axes or per axis.",
    "dtype": "The dtype of the result.",
    "eps": "Added to the variance or mean square.",
    "equation": 'Labels of axes, such as "ij,jk->ik".',
    "group": "The ranks. The default is the group of the step.",
    "groups": "The number of groups of channels.",
    "h": "The initial hidden state.",
    "ignore_index": "The label that does not count.",
    "index": "The index, as in NumPy.",
    "indices": "An array of integers.",
    "k": "The number of the diagonal, 0 for the main one.",
    "keepdims": "Keep the reduced axes with size 1.",
    "kernel": "The size of a window, for all axes or per axis.",
    "key": "The keys.",
    "label_smoothing": "The part of a label that all classes share.",
    "labels": "The classes, an array of integers.",
    "largest": "Return the largest elements, not the smallest.",
    "like": "A node whose dtype a Python scalar takes.",
    "log_prediction": "The logarithms of the predicted probabilities.",
    "log_target": "The target is a logarithm.",
    "logits": "The logits.",
    "mask": "The mask, or None.",
    "max": "The upper bound, or None.",
    "mean": "The mean per channel.",
    "min": "The lower bound, or None.",
    "mode": "The values of the new elements.",
    "normalized_shape": "The shape of the last axes.",
    "negative_slope": "The slope for negative x.",
    "num_groups": "The number of groups of channels.",
    "offset": "The position in the sequence of random numbers.",
    "op": '"sum", "mean", "min", "max" or "prod".',
    "operands": "The arrays.",
    "ord": "The order of the norm.",
    "output_padding": "Elements that are added at the end of each axis.",
    "output_size": "The size of the output, for all axes or per axis.",
    "padding": "Elements that are added at both ends of each axis.",
    "padding_idx": "A row that gets no gradient.",
    "pos_weight": "The factor of the positive part.",
    "prediction": "The prediction.",
    "probabilities": "The predicted probabilities.",
    "query": "The queries.",
    "rate": "The probability that an element is set to 0.",
    "ratio": "The fraction of the elements to send, in (0, 1].",
    "receive_counts": "The number of rows from each rank.",
    "reduction": '"mean", "sum" or "none".',
    "reps": "The number of repetitions per axis.",
    "residual": "The elements that were not sent before.",
    "return_indices": "Return the indices too.",
    "reverse": "Begin at the end.",
    "root": "The number of the root.",
    "rows": "The number of rows.",
    "scale": "The factor of the scores. The default is 1 / sqrt(E).",
    "sections": "The number of equal parts, or the indices at which to split.",
    "seed": "The seed of the generator.",
    "shape": "The shape of the result.",
    "shift": "The number of positions.",
    "size": "The size of the axis.",
    "sizes": "The sizes of the result.",
    "source": "The axis to move.",
    "split_axis": "The axis that is split into blocks.",
    "starts": "The first index per axis.",
    "stride": "The distance between windows, for all axes or per axis.",
    "tag": "A number that both ranks give.",
    "target": "The target.",
    "to": "The rank that receives.",
    "updates": "The values to add.",
    "value": "The value.",
    "values": "The arrays.",
    "variance": "The variance per channel.",
    "weight": "The weight.",
    "weight_hh": "The weight of h.",
    "weight_ih": "The weight of x.",
    "where": "The name of the call, for messages.",
    "widths": "The number of new elements.",
    "y": "The array for a false condition.",
}
"""The meaning of a parameter by its name, or by "OP.NAME"."""
PARAMETERS |= {
    "arange.start": "The first number, or the bound if stop is None.",
    "arange.stop": "The bound, which is not part of the result.",
    "arange.step": "The difference between neighbours. It may be negative.",
    "send_counts": "The number of rows to each rank.",
    "var.ddof": "The number that is subtracted from the number of elements in the divisor.",
    "top_k.k": "The number of elements.",
    "recv.source": "The rank that sends.",
    "recv.shape": "The shape of the received array.",
    "as_node.value": "A node or an array.",
    "attention.value": "The values.",
    "all_reduce.weight": "The weight of this rank in a mean, or None.",
    "embedding.weight": "The table.",
    "where.x": "The array for a true condition.",
    "concat.values": "The arrays to join.",
    "binary_cross_entropy.weight": "The weight of each element, or None.",
    "binary_cross_entropy_with_logits.weight": "The weight of each element, or None.",
    "batch_norm.weight": "The weight per channel, or None.",
    "pad.value": "The value for the mode constant.",
}
