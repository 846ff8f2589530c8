# SPDX-License-Identifier: Apache-2.0
"""Weights that a module computes from other variables: weight and spectral normalization.

A parametrization is a module that computes the attribute NAME of another module. It is stored as
`parametrizations.NAME` of that module. Each read of NAME adds the computation to the graph. The
keys of state dicts are PyTorch's.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, TypeVar

import numpy as np

from .. import ops
from ..compiler.driver import compile as compile_step
from ..graph.node import Node
from ..graph.precision_marks import full_precision
from .convolution import TransposedConvolution
from .modes import current, evaluation
from .module import Module, Parametrizations
from .parameter import Buffer, Parameter

AnyModule = TypeVar("AnyModule", bound=Module)

FIRST_ITERATIONS: Final = 15
"""The number of power iterations for the first values of singular vectors, as in PyTorch."""


def weight_norm(
    module: AnyModule, name: str = "weight", dim: int | None = 0
) -> AnyModule:  # long because each argument is described
    """Compute a weight of a module as a magnitude times a direction.

    Parameters
    ----------
    module : Module
        A module that declares the weight. It is changed in place.
    name : str, default "weight"
        The attribute of the weight.
    dim : int or None, default 0
        One norm is taken for each index of this axis of the weight. Axis 0 is the axis of the
        outputs of Linear and Conv. None takes one norm over all elements. Negative numbers raise
        ValueError, because -1 means None in PyTorch.

    Returns
    -------
    Module
        The module itself.

    Raises
    ------
    TypeError
        The module is not an nn.Module.
    ValueError
        The module does not declare the weight, the weight is normalized already, or it has no axis
        `dim`.

    Notes
    -----
    weight = original0 * original1 / norm(original1). See Salimans and Kingma, 2016
    (arXiv:1602.07868), section 2.

    Two parameters replace the weight: the magnitude `parametrizations.weight.original0`, of extent
    1 on all axes except dim, and the direction `parametrizations.weight.original1`, of the shape of
    the weight. If the weight has a value, the two parameters get values that give the same weight.
    Load a state dict of the plain module before this call, and a state dict of the normalized
    module after it.

    Weight decay of the magnitude changes the scale of the weight. A ParameterGroup with
    weight_decay=0.0 and the pattern "*.original0" excludes it.

    Examples
    --------
    >>> layer = nn.weight_norm(nn.Linear(3, 2, bias=False))
    >>> {name: value.shape for name, value in layer.parameters().items()}
    {'parametrizations.weight.original0': (2, 1), 'parametrizations.weight.original1': (2, 3)}
    >>> layer(ngd.placeholder("features", (4, 3))).shape
    (4, 2)
    """
    weight = declared_weight("nn.weight_norm", module, name)
    if dim is not None:
        expect_axis("nn.weight_norm", dim, weight, least=0)
    return parametrize(module, name, WeightNorm(weight, dim))


def spectral_norm(
    module: AnyModule,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> AnyModule:
    """Divide a weight of a module by an estimate of its largest singular value.

    Parameters
    ----------
    module : Module
        A module that declares the weight. It is changed in place.
    name : str, default "weight"
        The attribute of the weight.
    n_power_iterations : int, default 1
        The number of power iterations, at least 1. In training, each read of the attribute does
        these iterations.
    eps : float, default 1e-12
        The lower bound of the norms by which vectors are divided.
    dim : int, optional
        The axis of the outputs. The singular value is that of the weight reshaped to a matrix: this
        axis gives its rows, and the other axes, flattened, its columns. The default is 1 for
        ConvTranspose1d, 2d and 3d, and 0 for other modules.

    Returns
    -------
    Module
        The module itself.

    Raises
    ------
    TypeError
        The module is not an nn.Module.
    ValueError
        The module does not declare the weight, the weight is normalized already, or it has no axis
        `dim`.

    Notes
    -----
    weight = original / (u @ original @ v) with estimates u and v of the first singular vectors. In
    a graph for training, each read of the weight first does the power iterations. One power
    iteration is u <- normalized(original @ v), and then v <- normalized(original.T @ u). u and v
    have no gradient. See Miyato et al., 2018 (arXiv:1802.05957), algorithm 1. A weight of one axis
    is divided by its norm.

    The parameter is `parametrizations.weight.original`. The buffers
    `parametrizations.weight.0._u` and `parametrizations.weight.0._v` start with the result of 15
    power iterations. In training, each read stores their new values in `state.updates`, as
    nn.BatchNorm2d stores its running statistics. Give `state.updates` to ngd.compile.

    Examples
    --------
    >>> layer = nn.spectral_norm(nn.Linear(3, 2, bias=False))
    >>> list(layer.state_dict())
    ['parametrizations.weight.original', 'parametrizations.weight.0._u', \
'parametrizations.weight.0._v']
    >>> with nn.training() as state:
    ...     hidden = layer(ngd.placeholder("features", (4, 3)))
    >>> len(state.updates)
    2
    """  # long because each argument is described
    weight = declared_weight("nn.spectral_norm", module, name)
    dim = int(isinstance(module, TransposedConvolution)) if dim is None else dim
    expect_axis("nn.spectral_norm", dim, weight, least=-len(weight.shape))
    if n_power_iterations < 1:
        raise ValueError(
            f"nn.spectral_norm: expected n_power_iterations >= 1; got {n_power_iterations}"
        )
    return parametrize(
        module, name, SpectralNorm(weight, n_power_iterations, eps, dim % len(weight.shape))
    )


def remove_parametrizations(module: AnyModule, name: str = "weight") -> AnyModule:
    """Undo nn.weight_norm or nn.spectral_norm: make the computed weight a plain parameter.

    A step that is compiled afterwards reads the weight from a variable and does not compute it.
    Steps that were compiled before still compute it from the old variables.

    Parameters
    ----------
    module : Module
        The module whose weight is computed. It is changed in place.
    name : str, default "weight"
        The attribute of the weight.

    Returns
    -------
    Module
        The module itself. The attribute is an nn.Parameter. Its value is the weight that the
        module computed for evaluation.

    Raises
    ------
    TypeError
        The module is not an nn.Module.
    ValueError
        The weight is not computed by one of these functions.

    Examples
    --------
    >>> layer = nn.weight_norm(nn.Linear(3, 2))
    >>> list(nn.remove_parametrizations(layer).parameters())
    ['bias', 'weight']
    """
    where = "nn.remove_parametrizations"
    expect_module(where, module)
    parametrization = module._parametrization(name)
    if not isinstance(parametrization, (WeightNorm, SpectralNorm)):
        raise ValueError(
            f"{where}: expected the name of a weight that nn.weight_norm or nn.spectral_norm "
            f"computes; got {name!r} of {module.title}"
        )
    with evaluation():
        (value,) = compile_step([], [parametrization()])()
    declared = parametrization.weight()
    plain = Parameter(declared.shape, declared.initializer, declared.dtype)
    plain._copied = value
    del module.parametrizations._modules[name]
    if not module.parametrizations._modules:
        del module.parametrizations
    setattr(module, name, plain)
    return module


class WeightNorm(Module):
    """The module of nn.weight_norm: weight = magnitude * direction / norm(direction).

    Parameters
    ----------
    weight : Parameter
        The Parameter of the weight. It becomes `original1`, the Parameter of the direction.
    dim : int or None
        The axis that the norm does not reduce. None reduces all axes.
    """

    original0: Any
    original1: Any

    def __init__(self, weight: Parameter, dim: int | None) -> None:
        axes = range(len(weight.shape))
        self.axes = tuple(axis for axis in axes if axis != dim)
        self.keepdims = dim is not None
        self.dim = dim
        self.original0 = Magnitude(weight, self.axes, self.keepdims)
        self.original1 = weight

    def forward(self) -> Node:
        """Return the weight: direction * magnitude / norm of the direction."""
        direction = self.original1
        norm = ops.vector_norm(direction, self.axes, self.keepdims)
        weight: Node = direction * (self.original0 / norm)
        return weight

    def weight(self) -> Parameter:
        """Return `original1`, the nn.Parameter of the direction.

        Before nn.weight_norm, this object was the nn.Parameter of the weight.
        nn.remove_parametrizations creates a new nn.Parameter of the weight, with the shape, dtype
        and initializer of the returned one.
        """
        return self._parameters["original1"]

    def describe(self) -> str:
        """Return the axis `dim`, for `repr`."""
        return f"dim={self.dim}"


class Magnitude(Parameter):
    """The nn.Parameter of the magnitude, one of the two variables of WeightNorm.

    The other variable is the direction. The initial magnitude is the norm of the initial direction.
    """

    def __init__(self, direction: Parameter, axes: tuple[int, ...], keepdims: bool) -> None:
        extents = (1 if axis in axes else n for axis, n in enumerate(direction.shape))
        super().__init__(tuple(extents) if keepdims else (), dtype=direction.dtype)
        self.direction, self.axes, self.keepdims = direction, axes, keepdims
        if (value := direction.known_value()) is not None:
            self._copied = self.norms(value)

    def norms(self, value: Any) -> Any:
        """Return the norms of `value`, an array of the shape of the weight, over `self.axes`."""
        squares = np.square(np.asarray(value, np.float64))
        return np.asarray(np.sqrt(squares.sum(self.axes, keepdims=self.keepdims)))

    def draw(self, seed: int) -> Any:
        """Return the initial magnitude for a seed: the norms of the initial direction."""
        return self.norms(self.direction.draw(seed)).astype(self.dtype)


class SpectralNorm(Module):
    """The module of nn.spectral_norm: weight / (estimate of its largest singular value).

    Parameters
    ----------
    weight : Parameter
        The nn.Parameter of the weight before the division.
    n_power_iterations : int
        The number of power iterations. In training, each read of the weight does these iterations.
    eps : float
        The lower bound of the norms by which vectors are divided.
    dim : int
        The axis of the weight that becomes the rows of a matrix. The other axes become the columns.
    """

    original: Any

    def __init__(self, weight: Parameter, n_power_iterations: int, eps: float, dim: int) -> None:
        self.n_power_iterations, self.eps, self.dim = n_power_iterations, eps, dim
        self.original = weight
        if len(weight.shape) > 1:
            setattr(self, "0", SingularVectors(weight, eps, dim))  # as in PyTorch's state dicts

    def forward(self) -> Node:
        """Return the weight divided by the estimate of its largest singular value.

        In training, also improve the estimates of the singular vectors, and store them in
        `Training.updates`. A step that is compiled with these updates assigns them to the buffers.
        """
        weight = self.original
        if weight.ndim == 1:
            return normalized(weight, self.eps)
        matrix = ops.reshape(ops.moveaxis(weight, self.dim, 0), (weight.shape[self.dim], -1))
        vectors: SingularVectors = getattr(self, "0")
        with full_precision():
            u, v = vectors(ops.stop_gradient(matrix), self.n_power_iterations)
            largest = ops.sum(u * ops.matmul(matrix, v))
        divided: Node = weight / largest
        return divided

    def weight(self) -> Parameter:
        """Return `original`, the nn.Parameter of the weight before the division.

        nn.remove_parametrizations creates a new nn.Parameter of the weight, with the shape, dtype
        and initializer of the returned one.
        """
        return self._parameters["original"]

    def describe(self) -> str:
        """Return the main arguments of the constructor, for `repr`."""
        return f"n_power_iterations={self.n_power_iterations}, eps={self.eps}, dim={self.dim}"


class SingularVectors(Module):
    """A module with two buffers, estimates u and v of the first singular vectors of a matrix.

    The matrix is a weight, reshaped to two axes: rows and columns.

    Parameters
    ----------
    weight : Parameter
        The nn.Parameter of the weight.
    eps : float
        The lower bound of the norms by which vectors are divided.
    dim : int
        The axis of the weight that gives the rows of the matrix.
    """

    _u: Any
    _v: Any

    def __init__(self, weight: Parameter, eps: float, dim: int) -> None:
        self.eps = eps
        self._u, self._v = (SingularVector(weight, eps, dim, side) for side in (0, 1))

    def forward(self, matrix: Node, iterations: int) -> tuple[Node, Node]:
        """Return u and v, the estimates of the first singular vectors of the matrix.

        In training, first improve them by `iterations` power iterations, and store the results in
        `Training.updates`. A step that is compiled with these updates assigns them to the buffers
        `_u` and `_v`.

        Parameters
        ----------
        matrix : Node
            The weight, [rows, columns].
        iterations : int
            The number of power iterations.

        Returns
        -------
        u : Node
            [rows].
        v : Node
            [columns].
        """
        state = current()
        if state is None:
            return self._u, self._v
        u, v = state.now(self._u), state.now(self._v)
        for _ in range(iterations):
            u = normalized(ops.matmul(matrix, v), self.eps)
            v = normalized(ops.matmul(ops.transpose(matrix), u), self.eps)
        state.updates[self._u], state.updates[self._v] = u, v
        return u, v


class SingularVector(Buffer):
    """The nn.Buffer of an estimate of the first singular vector of a weight.

    The first singular vector belongs to the largest singular value. `side` is 0 for the left
    vector u, and 1 for the right vector v.
    """

    def __init__(self, weight: Parameter, eps: float, dim: int, side: int) -> None:
        rows = weight.shape[dim]
        size = int(np.prod(weight.shape)) // max(rows, 1)
        super().__init__((rows, size)[side], dtype=weight.dtype)
        self.weight, self.eps, self.dim, self.side = weight, eps, dim, side
        if (value := weight.known_value()) is not None:
            self._copied = self.estimate(value, seed=0)

    def estimate(self, value: Any, seed: int) -> Any:
        """Return an estimate of the singular vector of a weight whose value is `value`.

        Power iterations compute the estimate from a random vector, which depends on the seed only.
        """
        rows = self.weight.shape[self.dim]
        matrix = np.moveaxis(np.asarray(value, np.float64), self.dim, 0).reshape(rows, -1)
        random = np.random.default_rng([seed, zlib.crc32(b"singular vectors")])
        v = random.normal(size=matrix.shape[1])
        for _ in range(FIRST_ITERATIONS):
            u = matrix @ v
            u /= np.maximum(np.linalg.norm(u), self.eps)
            v = matrix.T @ u
            v /= np.maximum(np.linalg.norm(v), self.eps)
        return (u, v)[self.side]

    def draw(self, seed: int) -> Any:
        """Return the initial value of this buffer for a seed.

        It is an estimate of the singular vector of `weight.draw(seed)`, the initial weight.
        """
        return self.estimate(self.weight.draw(seed), seed).astype(self.dtype)


def normalized(vector: Node, eps: float) -> Node:
    """Return the vector divided by its norm, or by eps if the norm is less than eps."""
    return vector / ops.maximum(ops.vector_norm(vector), eps)


def expect_module(where: str, module: Any) -> None:
    """Raise TypeError for a value that is not a module."""
    if not isinstance(module, Module):
        raise TypeError(f"{where}: expected an nn.Module; got {module!r}")


def declared_weight(where: str, module: Any, name: Any) -> Parameter:
    """Return the nn.Parameter that a module has as its attribute `name`.

    Raise ValueError if no nn.Parameter has this name, for example after nn.weight_norm.
    """
    expect_module(where, module)
    weight: Parameter | None = module._parameters.get(name)
    if weight is not None and weight.trained:
        return weight
    if module._parametrization(name) is not None:
        raise ValueError(
            f"{where}: expected a weight without a parametrization; got {name!r} of "
            f"{module.title}, which is computed already. Call nn.remove_parametrizations first."
        )
    names = ", ".join(key for key, parameter in module._parameters.items() if parameter.trained)
    raise ValueError(
        f"{where}: expected the name of a parameter of {module.title}, among {names or 'none'}; "
        f"got {name!r}"
    )


def expect_axis(where: str, dim: int, weight: Parameter, least: int) -> None:
    """Raise ValueError unless least <= dim < number of axes of the weight.

    `least` is 0 if negative numbers are not allowed. It is minus the number of axes if negative
    numbers count axes from the end.
    """
    if not least <= dim < len(weight.shape):
        raise ValueError(
            f"{where}: expected a dim in [{least}, {len(weight.shape)}) for a weight of shape "
            f"{weight.shape}; got {dim}"
        )


def parametrize(module: AnyModule, name: str, parametrization: Module) -> AnyModule:
    """Let `parametrization` compute the attribute `name` of a module. Return the module.

    Before the call, the attribute is an nn.Parameter that both modules have. This function removes
    it from `module` only.
    """
    weight = module._parameters.pop(name)
    if weight._owner == (module, name):  # else it is shared, and keeps its name
        weight._owner = None
    for key, parameter in parametrization._parameters.items():
        parameter.register(parametrization, key)
    if "parametrizations" not in module._modules:
        module.parametrizations = Parametrizations()
    setattr(module.parametrizations, name, parametrization)
    return module
