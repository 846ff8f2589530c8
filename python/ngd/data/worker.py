# SPDX-License-Identifier: Apache-2.0
"""The program of a worker: it makes batches until the loader or the loader's process ends.

The loader starts the worker as a new process. A fork would copy locks of OpenMP and of the C++ core
that a thread holds, and no thread of the fork would release them. The worker does not load the
core at its start: its module `ngd` is a placeholder. The first use of a name of the package, in a
source or a transform, runs the code of the package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pickle
import runpy
import socket
import sys
import threading
import time
import traceback
import types
from pathlib import Path
from typing import Any, Final

PACKAGE: Final = Path(__file__).parents[1]
CHECKS_PER_SECOND: Final = 4
"""The number of times per second that a worker checks whether the loader's process still runs."""


def watch(parent: int) -> None:
    """Wait until the loader's process has ended, and then end this process.

    `parent` is the id of the loader's process.
    """
    while os.getppid() == parent:
        time.sleep(1 / CHECKS_PER_SECOND)
    os._exit(1)


def install_empty_package() -> None:
    """Install a placeholder for the package `ngd` in `sys.modules`, so that the worker starts fast.

    When the worker first uses a name that the placeholder lacks, such as `ngd.ops`, the code of the
    real package (`ngd/__init__.py`) runs in the namespace of the placeholder.
    """
    folders = [str(PACKAGE)]
    spec = importlib.util.spec_from_file_location(
        "ngd", PACKAGE / "__init__.py", submodule_search_locations=folders
    )
    assert spec is not None
    package: Any = importlib.util.module_from_spec(spec)

    def fill(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        del package.__getattr__
        assert spec.loader is not None
        spec.loader.exec_module(package)
        return getattr(package, name)

    package.__getattr__ = fill
    sys.modules["ngd"] = package


def import_main(name: str | None, file: str | None) -> None:
    """Import the user's program as module `__mp_main__`.

    Pickles of the loader refer to classes and functions of the program. `name` is its module name
    if the program was started by `python -m`, and None otherwise. Without `name`, `file` is the
    path of the program. If both are None, as in an interactive session, `__mp_main__` is empty.
    """
    main = types.ModuleType("__mp_main__")
    sys.modules["__main__"] = sys.modules["__mp_main__"] = main
    if name:
        main.__dict__.update(runpy.run_module(name, run_name="__mp_main__"))
    elif file:
        main.__dict__.update(runpy.run_path(file, run_name="__mp_main__"))


def failure(error: BaseException) -> tuple[str, BaseException | None, str]:
    """Return the answer for an exception: ("failure", exception, traceback as text).

    The exception is None if it cannot be pickled.
    """
    text = traceback.format_exc()
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return "failure", None, text
    return "failure", error, text


def serve(link: socket.socket, main: tuple[str | None, str | None]) -> None:
    """Answer each request of the loader with a batch or an exception, until the socket closes."""
    from ngd.data import messages

    class Unpickler(pickle.Unpickler):
        """An unpickler that imports the user's program when a pickle first refers to it."""

        def find_class(self, module: str, name: str) -> Any:
            if module == "__main__" and "__mp_main__" not in sys.modules:
                import_main(*main)
            return super().find_class(module, name)

    def answer(file: int) -> None:
        messages.send(link, file)
        os.close(file)

    recipe: Any = None
    with contextlib.suppress(EOFError, ConnectionError):
        file = messages.receive(link)
        try:
            recipe = messages.unpack(file, Unpickler, in_place=True)
        except Exception as error:
            answer(messages.pack(failure(error)))  # read as the answer to the first request
        while True:
            indices, epoch = messages.unpack(messages.receive(link), Unpickler)
            try:
                file = messages.pack(("batch", recipe.make(indices, epoch)))
            except Exception as error:
                file = messages.pack(failure(error))
            answer(file)


def run() -> None:
    """Run the worker. The first argument of the program has the settings, as JSON."""
    settings = json.loads(sys.argv[1])
    threading.Thread(target=watch, args=(settings["parent"],), daemon=True).start()
    sys.path[:] = settings["path"]
    sys.argv[:] = settings["arguments"]
    install_empty_package()
    serve(socket.socket(fileno=settings["link"]), tuple(settings["main"]))


if __name__ == "__main__":
    run()
