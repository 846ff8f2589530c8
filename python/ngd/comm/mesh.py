# SPDX-License-Identifier: Apache-2.0
"""`ngd.Mesh`: ranks in a grid with named axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .._util.callsite import call_site
from ..dtypes import Array, as_int
from .group import Group
from .world import group_or_world


class Mesh:
    """Ranks in a grid with named axes. Use ngd.make_mesh to create one.

    `mesh[name]` is the group of this rank along an axis: the ranks whose coordinates differ from
    those of this rank only along this axis. The ranks are arranged in row-major order, so the
    coordinate along the last axis varies fastest.

    Parameters
    ----------
    group : Group
        All ranks of the grid.
    shape : sequence of ints
        The lengths of the axes, whose product is the number of ranks.
    names : sequence of str
        A name for each axis.

    Attributes
    ----------
    group : Group
        All ranks of the grid.
    shape : tuple of ints
        The lengths of the axes.
    names : tuple of str
        The names of the axes.
    coordinates : tuple of ints
        The coordinates of this rank.

    Examples
    --------
    >>> mesh = ngd.make_mesh((1, 1), ("data", "model"))
    >>> mesh.coordinates
    (0, 0)
    >>> ngd.all_reduce(np.ones(2), op="mean", group=mesh["data"])
    array([1., 1.])
    """

    def __init__(self, group: Group, shape: Sequence[int], names: Sequence[str]) -> None:
        group.check_open("make_mesh")
        self.shape = tuple(as_int(n, "make_mesh", "shape") for n in shape)
        self.names = tuple(names)
        if len(self.shape) != len(self.names) or len(set(self.names)) != len(self.names):
            raise ValueError(
                f"make_mesh: expected a name of its own for each axis of {self.shape}; "
                f"got {self.names}. Write for example names=('data', 'model')."
            )
        if any(n < 1 for n in self.shape) or math.prod(self.shape) != group.size:
            raise ValueError(
                f"make_mesh: expected sizes >= 1 whose product is the group's number of ranks, "
                f"{group.size}; got {self.shape}, for {math.prod(self.shape)} ranks. Change the "
                "shape, or start another number of ranks."
            )
        self.group = group
        grid = np.arange(group.size).reshape(self.shape)
        self.coordinates = tuple(int(n) for n in np.argwhere(grid == group.rank)[0])
        self._along: dict[str, Group] = {}
        with group.collectives_scope():
            difference = self._compare()
            if not difference:
                self._split(grid)
        if difference:
            raise ValueError(difference)

    def _split(self, grid: Array) -> None:
        """Create this rank's group along each axis. All ranks of the grid call this together."""
        for axis, name in enumerate(self.names):
            # The color of a line along this axis is the number of its first rank.
            start = (*self.coordinates[:axis], 0, *self.coordinates[axis + 1 :])
            line = self.group.split(int(grid[start]), self.coordinates[axis], name=name)
            self._along[name] = line

    def _compare(self) -> str:
        """Gather the shape and names of all ranks, and return an error message if they differ.

        Return an empty text if all ranks gave the same shape and names. All ranks of the group call
        this method, and all get the same result.
        """
        own_text = np.frombuffer(repr((self.shape, self.names)).encode(), np.uint8)
        site = f"make_mesh() at {call_site()}"
        num_bytes = self.group.all_gather(np.array([len(own_text)]), site=site)
        gathered = self.group.all_gather_v(own_text, counts=num_bytes, site=site)
        ends = np.cumsum(num_bytes)
        texts = [
            gathered[end - n : end].tobytes().decode()
            for n, end in zip(num_bytes, ends, strict=True)
        ]
        other = next((rank for rank, text in enumerate(texts) if text != texts[0]), None)
        if other is None:
            return ""
        return (
            f"make_mesh: expected the same shape and names on all ranks; rank 0 gives "
            f"{texts[0]}, rank {other} {texts[other]}"
        )

    def __getitem__(self, name: str) -> Group:
        """Return the group of this rank along an axis."""
        if name not in self._along:
            raise KeyError(f"Mesh: expected an axis among {', '.join(self.names)}; got {name!r}")
        return self._along[name]

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={n}" for name, n in zip(self.names, self.shape, strict=True))
        return f"<ngd.Mesh {axes}; this rank is at {self.coordinates}>"


def make_mesh(shape: Sequence[int], names: Sequence[str], *, group: Group | None = None) -> Mesh:
    """Arrange the ranks in a grid with named axes.

    All ranks of the group call this function. It splits the group along every axis.

    Parameters
    ----------
    shape : sequence of ints
        The lengths of the axes, whose product is the number of ranks. The last axis varies fastest,
        so ranks 0 and 1 are neighbours along it.
    names : sequence of str
        A name for each axis.
    group : Group, optional
        The ranks to arrange. The default is the world.

    Returns
    -------
    Mesh
        The grid. `mesh[name]` is the group of this rank along an axis.

    Raises
    ------
    ValueError
        The shape does not fit the number of ranks, or ranks give different shapes or names.

    Examples
    --------
    On four ranks the shape may be (2, 2).

    >>> mesh = ngd.make_mesh((1, 1), ("data", "model"))
    >>> mesh["data"].size
    1
    """
    return Mesh(group_or_world(group), shape, names)
