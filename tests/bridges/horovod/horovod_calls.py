# SPDX-License-Identifier: Apache-2.0
"""Make random calls of Horovod's API for PyTorch, and store the results.

    python horovod_calls.py MODULE SEED CALLS FOLDER

MODULE is horovod.torch or ngd.horovod.torch, so that both run the same program. Values are small
integers, whose sums are exact in any order.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

REDUCED = (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64)
DTYPES = (*REDUCED, torch.uint8)
SHAPES = ((), (1,), (5,), (3, 4), (2, 0, 3), (2, 3, 2))


class Calls:
    """The random calls of a seed. All ranks draw the same calls, and each rank its own values."""

    def __init__(self, hvd: Any, seed: int) -> None:
        self.hvd, self.seed = hvd, seed
        self.random = np.random.default_rng(seed)
        self.number = 0
        size = hvd.size()
        self.sets = [hvd.global_process_set]
        if size > 2:
            self.sets.append(hvd.add_process_set(list(range(0, size, 2))))
        if size > 1:
            self.sets.append(hvd.add_process_set([size - 1]))

    def draw(self, *choices: Any) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def tensor(self, shape: Any, dtype: Any, part: int = 0) -> Any:
        own = np.random.default_rng([self.seed, self.number, self.hvd.rank(), part])
        low = 0 if dtype == torch.uint8 else -4
        return torch.tensor(own.integers(low, 5, size=shape), dtype=dtype)

    def op(self, dtype: Any) -> Any:
        ops = [self.hvd.Sum, self.hvd.Min, self.hvd.Max, self.hvd.Product]
        return self.draw(*ops, *([self.hvd.Average] * 2 if dtype.is_floating_point else []))

    def scale_factors(self, op: Any, dtype: Any) -> dict[str, Any]:
        if not dtype.is_floating_point or op not in (self.hvd.Sum, self.hvd.Average):
            return {}
        return {"prescale_factor": self.draw(1.0, 0.5), "postscale_factor": self.draw(1.0, 2.0)}

    def allreduce(self, process_set: Any) -> Any:
        dtype, shape = self.draw(*REDUCED), self.draw(*SHAPES)
        op = self.op(dtype)
        how = {
            "op": op,
            "process_set": process_set,
            "name": f"call.{self.number}",
            **self.scale_factors(op, dtype),
        }
        kind = self.draw("", "_", "_async", "_async_")
        tensor = self.tensor(shape, dtype)
        if self.draw(True, False) and kind == "" and dtype == torch.float32:
            how["compression"] = self.hvd.Compression.fp16
        result = getattr(self.hvd, f"allreduce{kind}")(tensor, **how)
        return self.hvd.synchronize(result) if "async" in kind else result

    def grouped_allreduce(self, process_set: Any) -> Any:
        dtype = self.draw(*REDUCED)
        shapes = [self.draw(*SHAPES) for _ in range(self.draw(1, 2, 4))]
        tensors = [self.tensor(shape, dtype, i) for i, shape in enumerate(shapes)]
        return self.hvd.grouped_allreduce(
            tensors, op=self.op(dtype), process_set=process_set, name=f"call.{self.number}"
        )

    def allgather(self, process_set: Any) -> Any:
        dtype, rest = self.draw(*DTYPES), self.draw((), (3,), (2, 2))
        rows = [int(n) for n in self.random.integers(0, 4, size=self.hvd.size())]
        tensor = self.tensor((rows[self.hvd.rank()], *rest), dtype)
        return self.hvd.allgather(tensor, process_set=process_set, name=f"call.{self.number}")

    def broadcast(self, process_set: Any) -> Any:
        dtype, shape = self.draw(*DTYPES), self.draw(*SHAPES)
        root = self.draw(*process_set.ranks)
        call = self.hvd.broadcast if self.draw(True, False) else self.hvd.broadcast_
        return call(
            self.tensor(shape, dtype), root, process_set=process_set, name=f"call.{self.number}"
        )

    def alltoall(self, process_set: Any) -> Any:
        dtype, size = self.draw(*DTYPES), len(process_set.ranks)
        table = self.random.integers(0, 3, size=(size, size))
        mine = table[process_set.ranks.index(self.hvd.rank())]
        tensor = self.tensor((int(mine.sum()), 2), dtype)
        splits = torch.tensor(mine, dtype=torch.int32)
        return list(
            self.hvd.alltoall(
                tensor, splits=splits, process_set=process_set, name=f"call.{self.number}"
            )
        )

    def reducescatter(self, process_set: Any) -> Any:
        dtype, rows = self.draw(*REDUCED), int(self.random.integers(4, 8))
        op = self.draw(self.hvd.Sum, self.hvd.Average if dtype.is_floating_point else self.hvd.Sum)
        return self.hvd.reducescatter(
            self.tensor((rows, 3), dtype),
            op=op,
            process_set=process_set,
            name=f"call.{self.number}",
        )

    def objects(self, process_set: Any) -> Any:
        mine = {"rank": self.hvd.rank(), "values": self.tensor((3,), torch.int64).tolist()}
        name = f"call.{self.number}"
        if process_set is self.sets[0] and self.draw(True, False):
            return self.hvd.allgather_object(mine, name=name)
        root = self.draw(*process_set.ranks)
        return self.hvd.broadcast_object(mine, root_rank=root, process_set=process_set, name=name)

    def run(self, count: int) -> list[Any]:
        kinds = ["allreduce"] * 3 + ["grouped_allreduce", "allgather", "broadcast", "alltoall"]
        kinds += ["reducescatter", "objects"]
        results = []
        for self.number in range(count):
            kind, process_set, state = self.draw(*kinds), self.draw(*self.sets), self.random
            self.random = np.random.default_rng([self.seed, self.number])
            is_member = self.hvd.rank() in process_set.ranks
            results.append(
                [kind, to_json(getattr(self, kind)(process_set)) if is_member else "not a member"]
            )
            self.random = state
        return results


def to_json(result: Any) -> Any:
    """Return a result in a form that JSON can store."""
    if isinstance(result, torch.Tensor):
        return [str(result.dtype), list(result.shape), result.tolist()]
    if isinstance(result, (list, tuple)):
        return [to_json(each) for each in result]
    return result


def main() -> None:
    module, seed, count, folder = sys.argv[1:]
    hvd = importlib.import_module(module)
    hvd.init()
    results = Calls(hvd, int(seed)).run(int(count))
    Path(folder, f"{module}.{hvd.rank()}.json").write_text(json.dumps(results))
    hvd.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    main()
