# SPDX-License-Identifier: Apache-2.0
"""Measure the first step and the memory of ngd.torch.compile_step and PyTorch.

    python benchmarks/models/torch_preparation.py                      # the first step, on one core
    python benchmarks/models/torch_preparation.py --ranks 4            # memory of ranks of a host
    python benchmarks/models/torch_preparation.py --models resnet50 --ways ngd

Without ranks, each way runs in a separate process. The results are the seconds until the end of
the first step, and those of the first step of another batch size. Compilers start without a cache.

With ranks, each way is a job. The result is the memory of weights and optimizer state on the host,
as a multiple of one copy. Memory that several processes share counts once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__)
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]
from timing import cpu_name, last_line  # noqa: E402
from torch_models import Case, classification, make_training  # noqa: E402

ALONE = ("ngd", "inductor")
OF_RANKS = ("ngd", "ddp")


def resnet50(batch: int) -> Case:
    """Return ResNet-50 on images of 224 x 224."""
    import timm
    import torch

    inputs = torch.randn(batch, 3, 224, 224), torch.randint(0, 10, (batch,))
    return timm.create_model("resnet50", num_classes=10), classification, inputs


def gpt2(batch: int) -> Case:
    """Return GPT-2 of 12 layers of 768."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    tokens = torch.randint(0, 50257, (batch, 64))
    return GPT2LMHeadModel(GPT2Config()), lambda m, x: m(x, labels=x).loss, (tokens,)


def bert(batch: int) -> Case:
    """Return BERT-base, which classifies texts."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    inputs = torch.randint(0, 30522, (batch, 64)), torch.randint(0, 2, (batch,))
    model = BertForSequenceClassification(BertConfig())
    return model, lambda m, x, y: m(x, labels=y).loss, inputs


MODELS: dict[str, Callable[[int], Case]] = {each.__name__: each for each in (resnet50, gpt2, bert)}
BATCHES = (2, 3)
"""The batch size of the first step, and the other one."""


def measure_alone(way: str, name: str) -> dict[str, Any]:
    """Return the seconds of the first step, and of the first step of another batch size."""
    cases = [MODELS[name](batch) for batch in BATCHES]
    model, loss, batch = cases[0]
    seconds = []
    begin = time.perf_counter()
    step = make_training(way, (model, loss, batch)).step
    step(*batch)
    seconds.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    step(*cases[1][2])
    seconds.append(time.perf_counter() - begin)
    return {"first_step_s": round(seconds[0], 2), "new_batch_size_s": round(seconds[1], 2)}


def state_tensors(model: Any, optimizer: Any) -> Iterator[Any]:
    """Yield the weights of a model, and the state tensors of its optimizer."""
    import torch

    for weight in model.parameters():
        yield weight.detach()
        for value in optimizer.state[weight].values():
            if isinstance(value, torch.Tensor) and value.ndim:
                yield value


class Mapping(NamedTuple):
    """A range of addresses of this process; `file` is the inode, or 0."""

    begin: int
    end: int
    file: int


def mappings() -> tuple[list[Mapping], dict[int, int]]:
    """Return the mappings of this process, and by file the bytes that it has copied."""
    found: list[Mapping] = []
    copied: dict[int, int] = {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            found.append(Mapping(begin, end, int(rest[3])))
        elif first == "Anonymous:":
            file = found[-1].file
            copied[file] = copied.get(file, 0) + int(rest[0]) * 1024
    return found, copied


def memory_of(tensors: Sequence[Any]) -> tuple[int, dict[int, int]]:
    """Return the bytes of tensors that are private, and the bytes in each shared file."""
    known, copied = mappings()
    alone, files = 0, dict[int, int]()
    for tensor in tensors:
        address = tensor.data_ptr()
        file = next((m.file for m in known if m.begin <= address < m.end), 0)
        if file:
            files[file] = files.get(file, 0) + tensor.nbytes
        else:
            alone += tensor.nbytes
    return alone + sum(copied[file] for file in files), files


def run_rank(way: str, name: str) -> None:
    """Take two steps on this rank, and print the memory of all ranks on rank 0."""
    import torch

    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model, loss, batch = MODELS[name](BATCHES[0])
    training = make_training(way, (model, loss, batch))
    for _ in range(2):
        training.step(*batch)
    torch.distributed.barrier()
    tensors = list(state_tensors(training.model, training.optimizer))
    everywhere: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(everywhere, memory_of(tensors))
    if torch.distributed.get_rank() == 0:
        shared = {file: size for _, files in everywhere for file, size in files.items()}
        total = sum(alone for alone, _ in everywhere) + sum(shared.values())
        size = sum(tensor.nbytes for tensor in tensors)
        result = {"one_copy_mib": round(size / 2**20, 1), "copies": round(total / size, 3)}
        print(json.dumps(result), flush=True)
    torch.distributed.destroy_process_group()


def measure(way: str, name: str, ranks: int) -> dict[str, Any]:
    """Return the results of one way, measured in separate processes."""
    command = [sys.executable, str(HERE), "--models", name, "--ways", way, "--inner"]
    if ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command[1:1] = launcher
    with tempfile.TemporaryDirectory() as cache:
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "NGD_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": cache,
        }
        return last_line(command, way, env)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print one JSON line per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--ways", nargs="+", choices=[*ALONE, *OF_RANKS[1:]])
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.inner and "RANK" in os.environ:
        run_rank(args.ways[0], args.models[0])
    elif args.inner:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(json.dumps(measure_alone(args.ways[0], args.models[0])), flush=True)
    else:
        for name in args.models:
            ways = args.ways or (ALONE if args.ranks == 1 else OF_RANKS)
            result = {way: measure(way, name, args.ranks) for way in ways}
            about = {"model": name, "ranks": args.ranks, "cpu": cpu_name()}
            print(json.dumps({**about, **result}), flush=True)


if __name__ == "__main__":
    main()
