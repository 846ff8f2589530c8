# SPDX-License-Identifier: Apache-2.0
"""Call sites: which line of the user's a message shows.

Between the user and ngd there may be others: a decorator of the standard library, PyTorch, a
library of training loops. A call site is the line of the nearest caller whose code is none of
theirs. Where there is no such caller, because the program itself is installed, it is the nearest
one outside of ngd. _core/call_site.pxi does the same with a table of known callers.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from types import FrameType
from typing import Any, Final

from ..errors import LAYER

NGD: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
STANDARD_LIBRARY: Final = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
COMMANDS: Final = os.path.join(sys.prefix, "bin", "")
INSTALLED: Final = tuple(os.sep + each + os.sep for each in ("site-packages", "dist-packages"))


class Shown(threading.local):
    """The sites to show instead of the callers' own, the innermost last: each thread's own."""

    def __init__(self) -> None:
        self.sites: list[str] = []


_shown: Final = Shown()


class Owner(Enum):
    """Whose code a file is."""

    NGD = 0
    LIBRARY = 1
    USER = 2


@functools.cache
def owner(file: str) -> Owner:
    """Whose code a file is, by its name in code objects. What has no file was typed by the user."""
    if file.startswith(NGD):
        return Owner.NGD
    if file.startswith(STANDARD_LIBRARY) or any(folder in file for folder in INSTALLED):
        return Owner.LIBRARY
    if file.startswith(COMMANDS) and not file.endswith(".py"):  # as pip makes one: it calls main()
        return Owner.LIBRARY
    return Owner.USER


class ExpansionSite(str):
    """The call site of the nodes that one op was expanded into, with the name of that op."""

    __slots__ = ("op", "origin")

    def __new__(cls, site: str, op: str) -> ExpansionSite:
        """Make one per expansion: two expansions are distinguished by identity."""
        made = super().__new__(cls, site)
        made.op, made.origin = op, site
        return made

    op: str
    origin: str
    """The call site of the op."""


class NodeSite(str):
    """The call site of one node of a graph, with the id of the node.

    Passes keep the call sites of nodes, so the id leads to the instructions that compute the node.
    """

    __slots__ = ("id",)

    def __new__(cls, site: str, id: int) -> NodeSite:
        """Make the site of the node with this id."""
        made = super().__new__(cls, site)
        made.id = id
        return made

    id: int


REWRITES: Final[ContextVar[list[dict[Any, Any]] | None]] = ContextVar("rewrites", default=None)
"""If set, a list to which each Graph.rewrite adds the nodes that it replaced, by the old ones."""


def node_id(site: str) -> int | None:
    """Return the id of the node that a call site belongs to, or None if it has none."""
    while isinstance(site, ExpansionSite):
        site = site.origin
    return site.id if isinstance(site, NodeSite) else None


def call_site() -> str:
    """`file:line` of the user's code that has called, with the layer if there is one.

    In a layer (errors.in_layer) it is `file:line in enc.2: Linear(17, 8)`.
    """
    if _shown.sites:
        return _shown.sites[-1]
    frame: FrameType | None = sys._getframe(1)
    shown = nearest = None
    while frame is not None:
        shown, whose = frame, owner(frame.f_code.co_filename)
        if whose is Owner.USER:
            break
        if nearest is None and whose is Owner.LIBRARY:
            nearest = frame
        frame = frame.f_back
    else:
        shown = nearest or shown
    assert shown is not None
    layer = LAYER.get()
    return f"{shown.f_code.co_filename}:{shown.f_lineno}{layer and f' in {layer}'}"


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning at the line of the nearest caller whose code is the user's."""
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and owner(frame.f_code.co_filename) is not Owner.USER:
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, category, stacklevel=depth)


@contextmanager
def at_site(site: str) -> Iterator[Callable[[str], None]]:
    """What calls inside is shown at `site`: passes keep the user's line on what they rewrite.

    What it gives changes the site.
    """
    sites = _shown.sites
    sites.append(site)

    def move(to: str) -> None:
        sites[-1] = to

    try:
        yield move
    finally:
        sites.pop()
