# SPDX-License-Identifier: Apache-2.0
"""Modules: objects that compute nodes from nodes. They have variables and contain other modules.

A module declares its variables in its constructor. A variable is made when it is first used,
because only then the path of the module in the model is known. The name of the variable is this
path and the name of the attribute. The first value of the variable depends only on a seed and on
the name, so the first value is equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import numpy as np

from .. import errors, trees
from ..comm.calls import all_reduce
from ..dtypes import bfloat16
from ..graph.node import Node
from ..graph.variable import Variable
from ..graph.variable_names import Scope
from .constructors import naming_errors
from .modes import current
from .parameter import Parameter
from .plain import CONTAINERS, ContainedValue, find_in, plain_container_error
from .state_dict import Keys, load

INSTEAD: Final = {
    "train": "`with nn.training(nn.Random(seed)):` around the forward pass",
    "eval": "nn.evaluation; outside of nn.training graphs are built for evaluation",
    "named_parameters": "parameters(), a dict of variables by name",
    "to": "astype",
}
"""Methods of PyTorch's modules that ngd.nn does not have, and what replaces each of them."""

REGISTERS: Final = ("_parameters", "_modules", "_parent")
"""The names of the attributes in which a module stores its structure.

- `_parameters`: the declarations of the module's variables, by attribute name
- `_modules`: the submodules, by attribute name
- `_parent`: the parent module and the name of its attribute for this module; None without a parent
"""


def is_floating(dtype: Any) -> bool:
    """Return True for floats, including 16-bit floats."""
    return dtype == bfloat16 or np.issubdtype(dtype, np.floating)


class Module:
    """The base class of all modules. A subclass defines `forward`, from nodes to nodes.

    A module registers attributes by name, in the order in which they are set, if they are modules
    or declarations of variables (nn.Parameter, nn.Buffer). For several modules in one attribute use
    an nn.ModuleList or an nn.ModuleDict. A plain list, tuple, set or dict raises TypeError if it
    contains modules, declarations or variables that no module has registered.

    Attributes
    ----------
    name : str
        The prefix of the names of the model's variables. The first values depend on it: two models
        with the same structure and name start with equal values. Set the name before the first call
        of the model. If a variable of the model exists already, a new name raises RuntimeError. The
        keys of state dicts do not contain the name.

    Notes
    -----
    Call a module with nodes of the shapes that its `forward` documents, or with NumPy arrays. The
    call returns nodes.

    Examples
    --------
    >>> class Block(nn.Module):
    ...     def __init__(self, width):
    ...         self.inner = nn.Linear(width, 4 * width)
    ...         self.outer = nn.Linear(4 * width, width)
    ...
    ...     def forward(self, x):
    ...         return x + self.outer(ops.gelu(self.inner(x)))
    >>> block = Block(8)
    >>> features = ngd.placeholder("features", (32, 8))
    >>> block(features).shape
    (32, 8)
    >>> list(block.parameters())
    ['inner.weight', 'inner.bias', 'outer.weight', 'outer.bias']
    """

    name = ""

    _parameters: dict[str, Parameter]
    _modules: dict[str, Module]
    _parent: tuple[Module, str] | None
    _scope: Scope
    """The prefix of the names of a model's variables, and a number that no other model has.

    Each variable stores the scope of its model, which is the outermost module. If two models in a
    step have variables with equal names, such as "weight", their scopes distinguish the variables.
    """

    def __init_subclass__(cls) -> None:
        if "__init__" in vars(cls) and cls.__module__.startswith(f"{__package__}."):
            cls.__init__ = naming_errors(cls.__init__)  # type: ignore[method-assign]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a module with empty dicts for its declarations (Parameter, Buffer) and submodules.

        They are made here and not in __init__, so that subclasses need not call
        `super().__init__()`.
        """
        if (args or kwargs) and cls.__init__ is object.__init__:  # object ignores arguments
            shown = ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())])
            raise TypeError(
                f"{cls.__name__}: expected no arguments; got {shown}. Give the class an __init__ "
                "that takes them."
            )
        module = super().__new__(cls)
        module.__dict__.update(_parameters={}, _modules={}, _parent=None, _scope=Scope())
        return module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the module. Subclasses define this method."""
        raise NotImplementedError(f"{type(self).__name__}.forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of `forward`.

        The text of this module, such as "enc.2: Linear(17, 8)", is added to ngd's errors in
        `forward`, and to the call sites that are stored for the nodes that `forward` builds.
        """
        self._refuse_hidden()
        state = current()
        num_pending = len(state.updates.pending) if state is not None else 0
        with errors.in_layer(self._layer(self.title)):
            results = self.forward(*args, **kwargs)
        if state is not None and len(state.updates.pending) > num_pending:
            state.updates.expect(num_pending, trees.flatten(results)[0])
        return results

    def __setattr__(self, key: str, value: Any) -> None:
        if isinstance(value, Variable):
            raise TypeError(
                f"{type(self).__name__}.{key}: expected a declaration; got {value!r}: share it by "
                'other.parameter("name"), or declare one, nn.Parameter(shape, initializer)'
            )
        if key == "name" and isinstance(value, str) and value != self.name:
            self._refuse_new_name()
        if isinstance(value, CONTAINERS) and key not in REGISTERS:
            self._refuse_plain(key, value)
        if self._parametrization(key) is not None:
            raise RuntimeError(
                f"{type(self).__name__}.{key}: expected an attribute without a parametrization; "
                f"got {value!r} for one that is computed. Call nn.remove_parametrizations(module, "
                f"{key!r}) first."
            )
        register: dict[str, Any] = self.__dict__
        if isinstance(value, Parameter):
            register = self._parameters
            value.register(self, key)
        elif isinstance(value, Module):
            register = self._modules
            value._parent = value._parent or (self, key)
        for other in (self.__dict__, self._parameters, self._modules):
            if other is not register:
                other.pop(key, None)
        register[key] = value

    def __getattr__(self, key: str) -> Any:
        if key in self.__dict__.get("_parameters", {}):
            return self._parameters[key].variable
        if key in self.__dict__.get("_modules", {}):
            return self._modules[key]
        parametrization = self._parametrization(key)
        if parametrization is not None:
            return parametrization()
        instead = f". Use {INSTEAD[key]}" if key in INSTEAD else ""
        raise AttributeError(
            f"{type(self).__name__}: expected an attribute of the module; got {key!r}, and "
            f"{type(self).__name__} has no attribute {key!r}{instead}"
        )

    def __delattr__(self, key: str) -> None:
        for register in (self._parameters, self._modules, self.__dict__):
            if key in register:
                del register[key]
                return
        raise AttributeError(
            f"{type(self).__name__}: expected an attribute of the module; got {key!r}, and "
            f"{type(self).__name__} has no attribute {key!r}"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy or pickle of this module, without the parent.

        So a copy of a part of a model is a model of its own.
        """
        state = {**self.__dict__, "_parent": None}
        del state["_scope"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._scope.is_copy = True
        for key, parameter in self._parameters.items():
            parameter.register(self, key)
        for key, module in self._modules.items():
            module._parent = module._parent or (self, key)

    def _parametrization(self, key: str) -> Module | None:
        """Return the parametrization (a module that computes the attribute `key`), or None."""
        modules = self.__dict__.get("_modules", {}).get("parametrizations")
        return modules._modules.get(key) if isinstance(modules, Parametrizations) else None

    def _has_parameter(self, key: str) -> bool:
        """Return True if the attribute `key` is a variable, or is computed by a parametrization.

        The check does not make the variable. Reading the attribute would make it.
        """
        return key in self._parameters or self._parametrization(key) is not None

    def _refuse_plain(self, key: str, container: Any) -> None:
        """Raise TypeError if a container, such as a list, has unregistered modules or variables.

        A value is registered if it is an attribute of a module. `__setattr__` calls this check when
        the container is assigned. The container may be filled later, so `_refuse_hidden` checks it
        again in each call of the module.
        """
        known_ids: set[int] | None = None
        for item in find_in(key, container, (Module, Parameter, Variable)):
            if isinstance(item.value, Module):
                is_registered = item.value is self or item.value._parent is not None
            elif isinstance(item.value, Parameter):
                is_registered = item.value._owner is not None
            else:
                known_ids = self._registered_ids() if known_ids is None else known_ids
                is_registered = id(item.value) in known_ids
            if not is_registered:
                raise self._refusal(item)

    def _refuse_hidden(self) -> None:
        """Raise TypeError if a list, dict or set in an attribute hides modules or variables.

        They are hidden if they are not registered in any module of the model, so that `declared`
        does not yield them.
        """
        items: list[ContainedValue] = []
        for key, value in self.__dict__.items():
            if isinstance(value, CONTAINERS) and key not in REGISTERS:
                items += find_in(key, value, (Module, Parameter, Variable))
        if items:
            registered_ids = self._outermost()._registered_ids()
            for item in items:
                if id(item.value) not in registered_ids:
                    raise self._refusal(item)

    def _refusal(self, item: ContainedValue) -> TypeError:
        """Return the error for `item`, a module or variable in a plain container of this module."""
        module = item.value.title if isinstance(item.value, Module) else None
        return plain_container_error(type(self).__name__, item, module)

    def _registered_ids(self) -> set[int]:
        """Return id(x) for this module, its submodules, and their Parameters and variables."""
        ids: set[int] = set()
        for module in self.modules().values():
            ids.add(id(module))
            for parameter in module._parameters.values():
                ids |= {id(parameter), id(parameter._variable)}
        return ids

    def _outermost(self) -> Module:
        """Return the model: the outermost module that contains this one, or this module itself."""
        module = self
        while module._parent is not None:
            module = module._parent[0]
        return module

    def _refuse_new_name(self) -> None:
        """Raise RuntimeError if the model has variables already.

        Their names begin with the name of the model and would not follow a new name.
        """
        for _, parameter in self._walk(""):
            place = parameter._owner
            if parameter.has_variable and place is not None and place[0]._outermost() is self:
                raise RuntimeError(
                    f"{type(self).__name__}.name: expected a name before the model is first called "
                    "or its variables are made; got one after variable "
                    f"{parameter.variable.name!r}. Set "
                    "`model.name` where the model is constructed."
                )

    def _layer(self, title: str) -> str:
        """Return the text for this module in errors and profiles, such as "enc.2: Linear(17, 8)".

        The text is the path of the module and `title`, or only `title` if the path is empty.
        """
        return f"{self.path}: {title}" if self.path else title

    @property
    def path(self) -> str:
        """The dotted path of this module from the outermost module, whose name comes first."""
        if self._parent is None:
            return self.name
        module, key = self._parent
        return f"{module.path}.{key}" if module.path else key

    def parameter(self, key: str) -> Parameter:
        """Return the declaration of a variable by its dotted name, to share it with another module.

        Parameters
        ----------
        key : str
            The dotted name, such as "encoder.0.weight".

        Returns
        -------
        Parameter
            The declaration. Set an attribute of another module to it to share the variable.

        Raises
        ------
        KeyError
            The module has no declaration of this name.

        Examples
        --------
        >>> embedding, head = nn.Embedding(100, 8), nn.Linear(8, 100, bias=False)
        >>> head.weight = embedding.parameter("weight")
        """
        declaration = dict(self.declared()).get(key)
        if declaration is None:
            raise KeyError(
                f"{type(self).__name__}.parameter: expected a name of a parameter; got {key!r}. "
                "See the names in module.parameters()."
            )
        return declaration

    def declared(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Yield (dotted name, declaration) in the order of PyTorch's state dicts.

        A declaration is an nn.Parameter or nn.Buffer. If several attributes share a declaration,
        it is yielded once for each of them.

        Parameters
        ----------
        prefix : str, default ""
            The text before each name.
        """
        for module in self.modules().values():
            module._refuse_hidden()
        yield from self._walk(prefix)

    def _walk(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        """Yield (dotted name, Parameter or Buffer) pairs, without the checks of `declared`."""
        for trained in (True, False):
            for key, parameter in self._parameters.items():
                if parameter.trained is trained:
                    yield prefix + key, parameter
        for key, module in self._modules.items():
            yield from module._walk(f"{prefix}{key}.")

    def modules(self, prefix: str = "") -> dict[str, Module]:
        """Return all modules by dotted name, including the module itself as "".

        Parameters
        ----------
        prefix : str, default ""
            The name of the module itself, and the first part of the other names.

        Examples
        --------
        >>> list(nn.Sequential(nn.Linear(2, 3), nn.ReLU()).modules())
        ['', '0', '1']
        """
        modules: dict[str, Module] = {prefix: self}
        for key, module in self._modules.items():
            modules |= module.modules(f"{prefix}.{key}" if prefix else key)
        return modules

    def variables(self) -> dict[str, Variable]:
        """Return all variables by dotted name, each variable once, for a checkpoint.

        Returns
        -------
        dict from str to Variable
            The variables of `parameters()` and of `buffers()`.
        """
        first_names: dict[int, tuple[str, Parameter]] = {}
        for key, parameter in self.declared():
            first_names.setdefault(id(parameter), (key, parameter))
        return {key: parameter.variable for key, parameter in first_names.values()}

    def parameters(self) -> dict[str, Variable]:
        """Return the variables for an optimizer to train, by dotted name, each variable once.

        Returns
        -------
        dict from str to Variable
            The variables.

        Examples
        --------
        >>> list(nn.Linear(3, 2).parameters())
        ['weight', 'bias']
        """
        declared = dict(self.declared())
        return {key: v for key, v in self.variables().items() if declared[key].trained}

    def buffers(self) -> dict[str, Variable]:
        """Return the variables that no optimizer trains, by dotted name, each variable once.

        Examples
        --------
        >>> list(nn.BatchNorm1d(3).buffers())
        ['running_mean', 'running_var', 'num_batches_tracked']
        """
        declared = dict(self.declared())
        return {key: v for key, v in self.variables().items() if not declared[key].trained}

    @contextmanager
    def averaged_buffers(self, group: Any = None) -> Iterator[None]:
        """Set each floating buffer to its mean over all ranks, inside a `with` block.

        Use it for an evaluation with batch normalization. Each rank has running statistics of its
        own shard, and inside the block they are equal on all ranks. After the block each rank has
        its own values again. All ranks call this method.

        Parameters
        ----------
        group : Group, optional
            The ranks. The default is the world.

        Examples
        --------
        >>> with model.averaged_buffers():
        ...     state = model.state_dict()
        """
        floating = [v for v in self.buffers().values() if is_floating(v.dtype)]
        own_values = [v.numpy() for v in floating]
        try:
            for v, value in zip(floating, own_values, strict=True):
                v.assign(all_reduce(value, op="mean", group=group))
            yield
        finally:
            for v, value in zip(floating, own_values, strict=True):
                v.assign(value)

    def astype(self, dtype: Any) -> Any:
        """Set the dtype of all floating variables before they are made.

        Parameters
        ----------
        dtype : dtype
            A floating dtype.

        Returns
        -------
        Module
            The module itself.

        Raises
        ------
        RuntimeError
            A variable exists already, so graphs may contain it.

        Examples
        --------
        >>> nn.Linear(3, 2).astype(ngd.float64).weight.dtype
        dtype('float64')
        """
        for key, parameter in self.declared():
            if parameter.has_variable:
                raise RuntimeError(
                    f"Module.astype: expected a fresh module; got one whose {key!r} is in use. "
                    "Call astype before the first call of the module."
                )
        for _, parameter in self.declared():
            if is_floating(parameter.dtype):
                parameter.dtype = np.dtype(dtype)
        return self

    def initialize(self, seed: int = 0) -> None:
        """Set all variables and buffers to new first values, even if they are already trained.

        Parameters
        ----------
        seed : int, default 0
            The seed. Without a call of this method, variables start with the values of seed 0.

        Examples
        --------
        >>> nn.Linear(3, 2).initialize(seed=7)
        """
        for _, parameter in self.declared():
            parameter.assign(parameter.draw(seed))

    def state_dict(self) -> dict[str, Any]:
        """Return all values by dotted name, with PyTorch's names and layouts.

        Returns
        -------
        dict from str to numpy.ndarray
            Copies of the values of all variables, except of buffers with `saved=False`.

        Examples
        --------
        >>> state = nn.Linear(3, 2).state_dict()
        >>> {key: value.shape for key, value in state.items()}
        {'weight': (2, 3), 'bias': (2,)}
        """
        return {key: p.variable.numpy() for key, p in self.declared() if p.saved}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Keys:
        """Assign the values of a state dict. If an error is raised, no value has changed.

        Parameters
        ----------
        state : mapping from str to array_like
            Arrays by dotted name. Any floating or integer dtype is cast to the dtype of the
            variable. PyTorch's tensors and parameters are accepted, including those that require a
            gradient and those of bfloat16. A shared variable needs only one of its names.
        strict : bool, default True
            Raise an error for missing and unexpected keys.

        Returns
        -------
        Keys
            The missing keys and the unexpected keys.

        Raises
        ------
        ValueError
            Keys are missing or unexpected, and `strict` is True. The message names all of them.
        ShapeError
            Values do not have the shapes of their variables. The message names all such values.
        TypeError
            A value is not an array of numbers.
        BusyError
            A running step reads or writes one of the variables.

        Notes
        -----
        On several ranks, either all of them load the same state, or one rank loads it and
        ngd.broadcast_variables gives its values to the other ranks.

        Examples
        --------
        >>> model.load_state_dict(model.state_dict())
        Keys(missing=[], unexpected=[])
        """
        where = f"{type(self).__name__}.load_state_dict"
        if not isinstance(state, Mapping):
            raise TypeError(
                f"{where}: expected a mapping of names to arrays; got {state!r}. Pass the result "
                "of "
                "state_dict()."
            )
        saved = {key: p for key, p in self.declared() if p.saved}
        return load(saved, state, strict, where)

    @property
    def title(self) -> str:
        """The class with the text of `describe`, such as "Linear(3, 4, bias=True)"."""
        return f"{type(self).__name__}({self.describe()})"

    def describe(self) -> str:
        """Return the arguments that `repr` shows between parentheses."""
        return ""

    def __repr__(self) -> str:
        inside = [f"({key}): {module!r}" for key, module in self._modules.items()]
        if not inside:
            return self.title
        lines = "\n".join(inside).replace("\n", "\n  ")
        return f"{type(self).__name__}({self.describe()}\n  {lines}\n)"


class OpModule(Module):
    """The base class of modules that apply one function of ngd.ops with options."""

    function: ClassVar[Callable[..., Any]]
    options: dict[str, Any]
    """The keyword arguments that `forward` passes to `function`."""

    def forward(self, x: Node) -> Node:
        """Return function(x, **options). The subclass documents the shapes of x and the result."""
        y: Node = type(self).function(x, **self.options)
        return y

    def describe(self) -> str:
        """Return the options, for `repr`."""
        return ", ".join(f"{key}={value!r}" for key, value in self.options.items())


class Parametrizations(Module):
    """The parametrizations of a module's attributes, by the name of the attribute.

    A parametrization is a module that computes an attribute from other variables.
    """
