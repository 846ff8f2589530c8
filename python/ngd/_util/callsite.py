# SPDX-License-Identifier: Apache-2.0
"""Call sites: the line of the user's code that a message shows.

Between the user's code and ngd there may be code of libraries, such as a decorator of the standard
library, PyTorch, or a training loop. The call site is the line of the nearest caller that is not in
ngd or in a library. If all callers are in ngd or in a library, because the program itself is
installed in site-packages, the call site is the line of the nearest caller outside of ngd.

_core/call_site.pxi finds the same line for collectives on arrays. It stores the line in a table, so
that a later call from the same bytecode instruction needs no search.
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


class SiteStack(threading.local):
    """The call sites of the open `at_site` blocks of a thread, the innermost block last.

    `call_site` returns the call site of the innermost block.
    """

    def __init__(self) -> None:
        self.sites: list[str] = []


_site_stack: Final = SiteStack()


class Owner(Enum):
    """The owner of the code in a file: ngd, a library, or the user."""

    NGD = 0
    LIBRARY = 1
    USER = 2


@functools.cache
def owner(file: str) -> Owner:
    """Return the owner of the code in a file: ngd, a library, or the user.

    `file` is the `co_filename` of a code object. Code without a file, such as that of the
    interactive interpreter, belongs to the user.
    """
    if file.startswith(NGD):
        return Owner.NGD
    if file.startswith(STANDARD_LIBRARY) or any(folder in file for folder in INSTALLED):
        return Owner.LIBRARY
    if file.startswith(COMMANDS) and not file.endswith(".py"):  # a script of pip that calls main()
        return Owner.LIBRARY
    return Owner.USER


class ExpansionSite(str):
    """The call site of the nodes that replace (expand) one op, with the name of that op."""

    __slots__ = ("op", "origin")

    def __new__(cls, site: str, op: str) -> ExpansionSite:
        """Create the call site of the nodes that replace one op, named `op`, at `site`.

        Each replacement of an op creates its own object. So two replacements at the same line have
        equal texts, but different objects.
        """
        instance = super().__new__(cls, site)
        instance.op, instance.origin = op, site
        return instance

    op: str
    origin: str
    """The call site of the op that was replaced."""


class NodeSite(str):
    """The call site of one node of a graph, with the id of the node.

    If the compiler replaces a node, the new nodes get its call site. The instructions of the
    compiled step get the call sites of their nodes. So the id shows which instructions compute the
    node.
    """

    __slots__ = ("id",)

    def __new__(cls, site: str, id: int) -> NodeSite:
        """Create the call site of the node with this id."""
        instance = super().__new__(cls, site)
        instance.id = id
        return instance

    id: int


REWRITES: Final[ContextVar[list[dict[Any, Any]] | None]] = ContextVar("rewrites", default=None)
"""A list of the nodes that passes have replaced, or None if replacements are not recorded.

Each call of `Graph.rewrite` that replaces nodes appends one dict, from old nodes to new nodes.
"""


def node_id(site: str) -> int | None:
    """Return the id of the node that a call site belongs to, or None if it has none."""
    while isinstance(site, ExpansionSite):
        site = site.origin
    return site.id if isinstance(site, NodeSite) else None


def call_site() -> str:
    """Return `file:line` of the user's code that called ngd.

    While a layer is called (errors.in_layer), the name of the layer follows: `file:line in LAYER`,
    where LAYER is a path and a module, such as "enc.2: Linear(17, 8, bias=True)".
    """
    if _site_stack.sites:
        return _site_stack.sites[-1]
    frame: FrameType | None = sys._getframe(1)
    site_frame = library_frame = None
    while frame is not None:
        site_frame, frame_owner = frame, owner(frame.f_code.co_filename)
        if frame_owner is Owner.USER:
            break
        if library_frame is None and frame_owner is Owner.LIBRARY:
            library_frame = frame
        frame = frame.f_back
    else:
        site_frame = library_frame or site_frame
    assert site_frame is not None
    layer = LAYER.get()
    return f"{site_frame.f_code.co_filename}:{site_frame.f_lineno}{layer and f' in {layer}'}"


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning at the line of the nearest caller in the user's code."""
    frame, depth = sys._getframe(1), 2
    while frame.f_back is not None and owner(frame.f_code.co_filename) is not Owner.USER:
        frame, depth = frame.f_back, depth + 1
    warnings.warn(message, category, stacklevel=depth)


@contextmanager
def at_site(site: str) -> Iterator[Callable[[str], None]]:
    """Use `site` as the call site in this block.

    Passes of the compiler use this block to give new nodes the call site of the nodes that they
    replace. The `with` statement yields a function. A call of this function with another call site
    sets that call site for the rest of the block.
    """
    sites = _site_stack.sites
    sites.append(site)

    def move(to: str) -> None:
        sites[-1] = to

    try:
        yield move
    finally:
        sites.pop()
