# SPDX-License-Identifier: Apache-2.0
"""Train the model of tests/train/lines.py in a job, slowly until the job was requeued."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import ngd
from tests.train import lines

EPOCHS = 60
SLOW = 0.25
"""Seconds per step, so that the training lasts longer than any deadline of these tests."""


def main(folder: Path, slow: bool) -> int:
    world = ngd.init()
    signals = [signal.SIGTERM, signal.SIGUSR1]
    options: dict[str, Any] = {"save": folder / "saved", "log": folder / "log", "resume": True}
    trainer, _ = lines.trainer_of(world, EPOCHS, stop_at=signals, **options)
    restarted = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    make_step, began = trainer.step, trainer.done

    def step(*columns: Any) -> Any:
        time.sleep(SLOW if slow and not restarted else 0)
        if world.rank == 0 and trainer.done == began + 2:
            print("it trains", flush=True)  # all ranks have made a step, and handle signals
        return make_step(*columns)

    trainer.step = step
    trainer.run()
    if world.rank == 0:
        stopped = None if trainer.stopped is None else trainer.stopped.name
        sizes = [world.size, world.local_size, world.communicator.name]
        report = {"world": sizes, "began": began, "done": trainer.done, "stopped": stopped}
        print(json.dumps({**report, "restarted": restarted}), flush=True)
    ngd.barrier()
    return os.EX_TEMPFAIL if trainer.stopped else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:] == ["slow"]))
