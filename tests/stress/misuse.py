# SPDX-License-Identifier: Apache-2.0
"""Calls every public callable of ngd with bad arguments, and checks its errors.

    python -m tests.stress.misuse --runs 0 --seed 7

A case is a callable of ngd, ops, nn, optim, data, train, checkpoint or metrics, or a method of a
group, and one bad argument: an unknown keyword, a wrong type, the wrong order, NaN, an empty array,
a size that is zero, negative or huge, a wrong rank or dtype, or two objects of one name
(misused_calls.py). A call must either succeed or raise an error of a proper class whose message
names the public call. A result must be equal on both devices. No call may leave a file, a thread, a
call site, or a broken group.

Cases run in child processes, so that a crash or a hang is one finding. A case takes milliseconds;
`--seconds N` limits the time, and `--runs N` the number of cases (0: all). The last line is a JSON
object; the exit code is 1 if there are findings that KNOWN does not list.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from tests.support.paths import PYTHONPATH

BATCH: Final = 400
"""The number of cases of one child process."""

CASE_SECONDS: Final = 20.0
"""A case that takes more seconds counts as hung, even on a machine under load."""

SPACE_BYTES: Final = 6 << 30
"""The address space of a child: a huge size is a MemoryError, and harms no other process."""

LARGE_BYTES: Final = 1 << 22
"""A result with more bytes is not computed."""

SAVES: Final = {"checkpoint.save"}
"""The calls that write files when they succeed."""

KNOWN: Final[tuple[tuple[str, str, str], ...]] = (
    (
        r"^ngd\.\w+: group = |^Group\."
        r"|^ngd\.(all_|barrier|broadcast|gather|reduce|scatter|make_mesh)",
        "^no name",
        "the collectives' calls are not wrapped, since call sites are counted by frames; messages "
        "name the argument (`group: expected an ngd.Group`) or are NumPy's",
    ),
    (
        r"^ngd\.(jvp|vjp|custom_gradient|remat|function|compile|constant|placeholder|variable|TopK)",
        "^no name",
        "the message names the argument, or the helper that checks it (`forward_of`)",
    ),
    (
        r"^(data|checkpoint|train|trees|metrics)\.",
        "^no name",
        "the message is Python's or NumPy's own, of the line that uses the argument",
    ),
    (
        r"^(optim|initializers)\.",
        "^(no name|class: AttributeError: .*options)",
        "the message is Python's own; optimizers check kinds of options where they are used",
    ),
    (
        r"^nn\.(Buffer|Parameter|Random)",
        "^no name",
        "declarations; the module that has one is named",
    ),
    (
        r"^nn\.ModuleDict",
        "^class: AttributeError: .*items",
        "the message says that a dict is missing",
    ),
    (
        r"^(ngd|Group)\.(all_gather_v|all_to_all_v): out",
        "^state: the world does not work",
        "the number of rows is compared after the ranks have exchanged theirs; the group is closed",
    ),
    (r"^train\.Trainer", "^class: AttributeError: .*sampler", "the loader is used as it is given"),
    (r"^nn\.(LSTM|GRU): num_layers", "^crash", "10**12 layers are declared one by one"),
    (
        r"ngd\.call_host: types = ",
        "when it runs, TypeError: .*missing 1 required positional argument",
        "a node is a type, and the user's function, which gets no node, raises its own error",
    ),
)
"""Accepted findings: a pattern of the case, a pattern of the finding, and the reason."""


def main(arguments: Sequence[str]) -> int:
    """Run cases; print what was found; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=0, help="the number of cases; 0: all")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no batch after so long")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--only", default="", help="a pattern: cases that it matches")
    parser.add_argument("--verbose", action="store_true", help="print every finding")
    options = parser.parse_args(arguments)
    from tests.stress import misused_calls

    chosen = [
        str(i) for i, c in enumerate(misused_calls.cases()) if re.search(options.only, str(c))
    ]
    names = [str(c) for c in misused_calls.cases()]
    random.Random(options.seed).shuffle(chosen)
    chosen = chosen[: options.runs or len(chosen)]
    begin, counts, found = time.monotonic(), Counter[str](), dict[str, list[str]]()
    while chosen and time.monotonic() - begin < options.seconds:
        batch, chosen = chosen[:BATCH], chosen[BATCH:]
        for number, entry in run_batch(batch, options.seconds - (time.monotonic() - begin)).items():
            counts["cases"] += 1
            kind, _, text = entry.partition(": ")
            known = any(re.search(c, names[number]) and re.search(t, entry) for c, t, _ in KNOWN)
            counts["known" if known and text else kind] += 1
            if text and not known:
                found.setdefault(f"{kind}: {text}", []).append(names[number])
    for entry, where in sorted(found.items(), key=lambda item: -len(item[1])):
        print(f"{len(where)} x {entry}\n    {'; '.join(where[: None if options.verbose else 4])}")
    print(json.dumps({"seed": options.seed, **counts, "findings": len(found)}))
    return bool(found)


def run_batch(batch: list[str], seconds: float) -> dict[int, str]:
    """Run cases in child processes, and return the outcome of each, by number."""
    outcomes: dict[int, str] = {}
    begin = time.monotonic()
    while batch and time.monotonic() - begin < seconds:
        with tempfile.TemporaryDirectory() as folder:
            env = {"NGD_TIMEOUT": "3", "NGD_THREADS": "1", "NGD_DEVICE": "CPU"}
            env["PYTHONPATH"] = PYTHONPATH
            child = subprocess.Popen(
                [sys.executable, "-m", "tests.stress.misuse", "--child", *batch],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=folder,
                env={**os.environ, **env},
            )
            allowed = min(CASE_SECONDS * 3 + len(batch) * 0.5, max(seconds, CASE_SECONDS) + 30)
            try:
                out, err = child.communicate(timeout=allowed)
            except subprocess.TimeoutExpired:
                child.kill()
                out, err = child.communicate()
        for line in out.splitlines():
            number, text = json.loads(line)
            outcomes[number] = text
        remaining = [number for number in batch if int(number) not in outcomes]
        if remaining and child.returncode != 0:
            outcomes[int(remaining[0])] = (
                f"crash: exit code {child.returncode}: {err.strip()[-300:]}"
            )
            remaining = remaining[1:]
        batch = remaining
    return outcomes


def run_child(numbers: Sequence[str]) -> None:
    """Run cases in this process, and print one line per case: its number and its outcome."""
    import numpy as np

    import ngd
    from tests.stress import misused_calls

    resource.setrlimit(resource.RLIMIT_AS, (SPACE_BYTES, SPACE_BYTES))
    faulthandler.enable()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    world = ngd.init()
    known = {target.name: target for target in misused_calls.targets()}
    cases = [*misused_calls.cases()]
    threads = threading.active_count()
    for number in numbers:
        case = cases[int(number)]
        faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
        with contextlib.redirect_stdout(io.StringIO()):
            text = outcome(case, known[case.target])
        faulthandler.cancel_dump_traceback_later()
        leftovers = state_after(world, threads, case.target in SAVES and text == "right")
        if leftovers is not None:
            text = text if text.startswith("class") else leftovers
            ngd.shutdown()
            world = ngd.init()
            known = {target.name: target for target in misused_calls.targets()}
        print(json.dumps([int(number), text]), flush=True)


def outcome(case: Any, target: Any) -> str:
    """Return "right", "raised" or "finding: ..." for one case."""
    from tests.stress import misused_calls

    try:
        result = misused_calls.make_call(case, target)
    except BaseException as error:
        return judge_error(target.name, error)
    try:
        return compare_devices(result)
    except BaseException as error:
        return judge_error(target.name, error, "when it runs, ")


PROPER: Final = ("TypeError", "ValueError", "NotImplementedError", "MemoryError", "OSError")


def judge_error(target: str, error: BaseException, when: str = "") -> str:
    """Return "raised" if an error has a proper class and names the public call, or a finding."""
    import ngd

    words = f"{type(error).__name__}: {error}".replace("\n", " ")[:200]
    proper = isinstance(error, ngd.errors.Error)
    proper |= any(base.__name__ in PROPER for base in type(error).__mro__)
    proper &= not isinstance(error, UnicodeError)
    if not proper:
        return f"class: {when}{words}"
    short = target.split(".")[-1]
    inner = re.search(r"\b(\w+)\.__\w+__\(\)", str(error))
    if inner and inner[1] != short:
        return f"internal name: {when}{words}"
    if isinstance(error, (MemoryError, OSError)) or short.lower() in str(error).lower():
        return "raised"
    return f"no name: {when}{words}"


def compare_devices(result: Any) -> str:
    """If the result is a graph, run it on both devices; return "right" if they agree."""
    import numpy as np

    import ngd
    from ngd.graph.leaves import PLACEHOLDER
    from ngd.graph.node import topological

    leaves, _ = ngd.trees.flatten(result)
    nodes = [leaf for leaf in leaves if isinstance(leaf, ngd.Node)]
    nodes = [n for n in nodes if n.type.bytes <= LARGE_BYTES]
    everything = topological(nodes)
    if not nodes or any(n.type.bytes > LARGE_BYTES for n in everything):
        return "right"
    inputs = [n for n in everything if n.op is PLACEHOLDER]
    arrays = [np.ones(n.shape, n.dtype) for n in inputs]
    both = [ngd.compile(inputs, nodes, device=d)(*arrays) for d in ("CPU", "INTERPRETER")]
    for ours, reference in zip(*both, strict=True):
        same = np.allclose(
            np.asarray(ours, np.float64),
            np.asarray(reference, np.float64),
            rtol=2e-2 if ours.dtype.itemsize == 2 else 1e-4,
            atol=1e-4,
            equal_nan=True,
        )
        if not same:
            return f"devices: {str(ours)[:80]} on CPU, {str(reference)[:80]} on the INTERPRETER"
    return "right"


def state_after(world: Any, threads: int, may_save: bool) -> str | None:
    """Describe what a call has left: files, threads or broken groups. None if nothing."""
    import numpy as np

    from ngd._util import callsite as sites

    if sites._site_stack.sites:
        sites._site_stack.sites.clear()
        return "state: a call site is left"
    files = os.listdir(".")
    if files:
        for name in files:
            subprocess.run(["rm", "-rf", name], check=True)
        if not may_save:
            return f"state: files are left: {files}"
    if threading.active_count() > threads:
        return "state: a thread is left"
    try:
        world.all_reduce(np.ones(2), op="sum")
    except Exception as error:
        return f"state: the world does not work: {type(error).__name__}: {error}"[:200]
    return None


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_child(sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
