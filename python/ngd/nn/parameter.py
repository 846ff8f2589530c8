# SPDX-License-Identifier: Apache-2.0
"""The declarations of a module's variables: nn.Parameter and nn.Buffer.

A declaration makes its variable when the variable is first used. At this time, the path of the
module in the model is known. The name of the variable is this path and the name of the attribute.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from .. import errors
from ..dtypes import float32
from ..graph.variable import Variable, variable
from ..graph.variable_names import Scope
from .initializers import Initializer, zeros


class Owner(Protocol):
    """A protocol with the attributes of nn.Module that Parameter and Buffer use."""

    name: str
    _scope: Scope

    @property
    def path(self) -> str:
        """The dotted path of the module from the outermost module."""

    def _layer(self, title: str) -> str:
        """Return the text for the module in errors: its path and `title`, "enc.2: Linear".

        `title` is the name of the class, or the class with its arguments.
        """

    def _outermost(self) -> Owner:
        """Return the model that the module is a part of."""


class Parameter:
    """The declaration of a variable that is trained.

    Set an attribute of a module to a Parameter. Reading the attribute returns the variable. For a
    type checker, annotate the attribute in the class: `weight: Any`.

    Parameters
    ----------
    shape : int or sequence of ints
        The shape of the variable.
    initializer : function, default nn.initializers.zeros
        A function of a NumPy generator and a shape that returns the first value.
    dtype : dtype, default float32
        The dtype of the variable.

    Notes
    -----
    A Parameter may be an attribute of several modules, which then share the variable. The name of
    the variable is the path of the attribute to which the Parameter was assigned first.

    Examples
    --------
    >>> class Scale(nn.Module):
    ...     def __init__(self, width):
    ...         self.factor = nn.Parameter(width, nn.initializers.ones)
    ...
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> Scale(3).parameters()["factor"].shape
    (3,)
    """

    trained = True
    saved = True
    per_rank = False

    def __init__(
        self,
        shape: int | Sequence[int],
        initializer: Initializer = zeros,
        dtype: Any = float32,
    ) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.initializer, self.dtype = initializer, np.dtype(dtype)
        self._owner: tuple[Owner, str] | None = None
        self._variable: Variable | None = None
        self._copied: Any = None
        """The first value of the variable, or None if the initializer makes the first value.

        In a copied or unpickled Parameter, it is the value that the original variable had.
        """

    @property
    def has_variable(self) -> bool:
        """True if the variable that this object declares exists.

        The variable is made by the first access to `variable` or the first call of `assign`.
        """
        return self._variable is not None

    def known_value(self) -> Any | None:
        """Return the value of the variable, or `_copied` if the variable does not exist yet.

        `_copied` is the first value, or None if the initializer will make it.
        """
        return self._copied if self._variable is None else self._variable.numpy()

    @property
    def name(self) -> str:
        """The name of the variable: the path of the module and the name of the attribute."""
        if self._owner is None:
            raise RuntimeError(
                "nn.Parameter: expected an attribute of a module; got one outside of modules. "
                "Assign it to self.name in __init__."
            )
        module, key = self._owner
        return f"{module.path}.{key}" if module.path else key

    @property
    def variable(self) -> Variable:
        """The variable that this object declares. The first access makes the variable."""
        if self._variable is None:
            value = self.draw(0) if self._copied is None else self._copied.astype(self.dtype)
            self._variable, self._copied = self._make_variable(value), None
        return self._variable

    def _make_variable(self, value: Any) -> Variable:
        """Return a new variable with the first value `value`. Errors name the module."""
        name = self.name
        assert self._owner is not None
        module = self._owner[0]
        with errors.in_layer(module._layer(type(module).__name__)):
            new = variable(name, value, per_rank=self.per_rank)
        model = module._outermost()
        new.scope = model._scope
        new.scope.prefix = model.name
        return new

    def draw(self, seed: int) -> Any:
        """Draw the initial value of the variable with a seed.

        Parameters
        ----------
        seed : int
            The seed. The random generator depends on it and on `name`, so that variables with
            different names get different values.

        Returns
        -------
        numpy.ndarray
            The value, in the shape and dtype of the variable.
        """
        random = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        return np.asarray(self.initializer(random, self.shape)).astype(self.dtype)

    def assign(self, value: Any) -> None:
        """Assign a value to the variable.

        Parameters
        ----------
        value : array_like
            An array of the shape of the variable. It is cast to the dtype of the variable.
        """
        if self._variable is None:
            self._variable = self._make_variable(np.zeros(self.shape, self.dtype))
        self._variable.assign(value)

    def register(self, module: Owner, key: str) -> None:
        """Record that this object is the attribute `key` of `module`.

        If an attribute is already recorded for this object, the call changes nothing.

        Parameters
        ----------
        module : Module
            The module that has the attribute.
        key : str
            The name of the attribute.
        """
        if self._owner is None:
            self._owner = module, key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape}, {self.dtype.name})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or pickle.

        The state has the value of the variable, but not the module that has this object as an
        attribute. The copied or unpickled module calls `register`, which records the new module.
        """
        state = {**self.__dict__, "_owner": None, "_variable": None}
        if self._variable is not None:
            state["_copied"] = self._variable.numpy()
        return state


class Buffer(Parameter):
    """The declaration of a variable that is not trained, such as running statistics.

    Optimizers do not change a buffer. In training, a module stores the new value of a buffer in
    `Training.updates`. A step that is compiled with these updates assigns the value.

    Parameters
    ----------
    shape : int or sequence of ints
        The shape of the variable.
    initializer : function, default nn.initializers.zeros
        A function of a NumPy generator and a shape that returns the first value.
    dtype : dtype, default float32
        The dtype of the variable.
    saved : bool, default True
        Include the variable in state dicts.
    per_rank : bool, default False
        If True, the value may differ between ranks by design. See ngd.variable.

    Examples
    --------
    >>> class Counter(nn.Module):
    ...     def __init__(self):
    ...         self.calls = nn.Buffer((), dtype=ngd.int64)
    >>> list(Counter().buffers())
    ['calls']
    """

    trained = False

    def __init__(
        self,
        shape: int | Sequence[int],
        initializer: Initializer = zeros,
        dtype: Any = float32,
        saved: bool = True,
        *,
        per_rank: bool = False,
    ) -> None:
        super().__init__(shape, initializer, dtype)
        self.saved, self.per_rank = saved, per_rank
