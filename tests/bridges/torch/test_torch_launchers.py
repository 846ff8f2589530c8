# SPDX-License-Identifier: Apache-2.0
"""Tests of the rendezvous of torch.distributed over "ngd", under every launcher and without one."""

from __future__ import annotations

import json
import os
import re
import runpy
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import harness

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.distributed as dist  # noqa: E402

import ngd  # noqa: E402
from tests.bridges.torch import torch_ranks  # noqa: E402

pytestmark = harness.needs_ranks
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def init_and_reduce(backend: str) -> Any:
    dist.init_process_group(backend)
    rank = dist.get_rank()
    tensor = torch.tensor([2.0**rank])
    dist.all_reduce(tensor)
    dist.all_reduce(other := torch.tensor([2.0**rank]), group=dist.new_group())
    assert other.item() == tensor.item()
    dist.barrier()  # rank 0 holds the store
    shared = ngd.init().size == dist.get_world_size()
    dist.destroy_process_group()
    return [tensor.item(), shared]


LAUNCHERS: dict[str, tuple[str | Sequence[str], str]] = {
    "torchrun": ([*TORCHRUN, "2", "--master-port", "{port}"], "cpu:ngd"),
    "ngd run": ("ngd run", "ngd"),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_launcher_starts_the_ranks(launcher: str) -> None:
    command, backend = LAUNCHERS[launcher]
    port = str(free_port())
    if not isinstance(command, str):
        command = [part.format(port=port) for part in command]
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if launcher != "torchrun" else {}
    outcomes = torch_ranks.run(
        init_and_reduce, 2, launcher=command, env=env, arguments={"backend": backend}
    )
    assert outcomes == [[3.0, True]] * 2


def run_page() -> Any:
    page = (Path(__file__).parents[3] / "docs" / "torch.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    exec(compile(block, "torch.md", "exec"), {})
    tensor = torch.tensor([2.0 ** dist.get_rank()])
    dist.all_reduce(tensor)
    backend = dist.get_backend()
    dist.destroy_process_group()
    return [backend, tensor.item()]


def test_the_program_of_the_page_runs() -> None:
    outcomes = torch_ranks.run(run_page, 2, launcher="ngd run")
    assert outcomes == [["ngd", 3.0]] * 2


def run_spawned_rank(rank: int, port: int, folder: str) -> None:
    """Run a rank whose number is not in the environment."""
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("ngd", init_method=address, rank=rank, world_size=2)
    tensor = torch.tensor([2.0**rank])
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    with open(os.path.join(folder, str(rank)), "w", encoding="ascii") as file:
        file.write(f"{tensor.item()} {ngd.init().size}")


def spawn_ranks(port: int, folder: str) -> None:
    import torch.multiprocessing

    import ngd.torch  # noqa: F401

    torch.multiprocessing.spawn(run_spawned_rank, (port, folder), nprocs=2)


def test_ranks_of_torch_multiprocessing(tmp_path: Any) -> None:
    """PyTorch's store gives the ranks a key. The world of ngd has one rank in each process."""
    arguments = {"port": free_port(), "folder": str(tmp_path)}
    env = dict.fromkeys((), "")
    with torch_ranks.job(
        spawn_ranks, 1, arguments=arguments, launcher=["env", "-u", "RANK"], env=env
    ) as job:
        job.wait(60)
        assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["3.0 1"] * 2


def run_example(name: str) -> None:
    """Run an example as one rank does."""
    runpy.run_path(str(harness.EXAMPLES / name), run_name="example")["main"](["--epochs", "5"])


def test_the_example_learns() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    arguments = {"name": "torch_ddp.py"}
    with torch_ranks.job(run_example, 2, arguments=arguments, env=env) as job:
        reports = [json.loads(outcome.out or "null") for outcome in job.wait(60)]
    assert reports[0]["test_accuracy"] > 0.9
    assert reports[1] is None
