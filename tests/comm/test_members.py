# SPDX-License-Identifier: Apache-2.0
"""Tests of `ngd run --min-ranks`: launcher, ngd.init() and DiLoCo when members leave or join."""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import ngd
from ngd.comm import membership
from ngd.errors import InitError
from tests.support import harness

pytestmark = harness.needs_ranks

BEGIN = """
import json, logging, os, signal, sys, time
import numpy as np
import ngd
from ngd import optim, train

logging.basicConfig(level=logging.INFO, format="%(message)s")
me = int(os.environ["NGD_MEMBER"])

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def tell(**what):
    print(json.dumps({"member": me, **what}), flush=True)
"""

ROUNDS = (
    BEGIN
    + """
LATER = 3
w = [np.zeros((2, 3), "f4"), np.zeros(1, "f4")]
moments = np.zeros(1)
d = train.DiLoCo(w, every=2, outer=optim.SGD(1.0), carried=[moments])
tell(begins=d.round, w=float(w[1][0]), moments=float(moments[0]))
while d.round < ROUNDS:
    before = d.round
    for _ in range(2):
        w[0] -= 1 + me
        w[1] -= 1 + me
        moments += 1
        harm(before)
        d.step()
    tell(round=d.round, size=ngd.init().size, w=float(w[1][0]))
tell(ends=d.round, w=w[0].tolist(), moments=float(moments[0]))
"""
)


class JobEnd:
    """The exit code and output of a job, and the lines that its members printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.err = code, err
        self.told = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        self.all = f"code {code}\n{out}\n{err}"

    def of(self, what: str) -> dict[int, Any]:
        """Return the last line with this key of each member."""
        return {line["member"]: line for line in self.told if what in line}


def run(
    folder: Path, program: str, *options: str, seconds: float = 120, timeout: str = "30"
) -> JobEnd:
    """Run a job to its end. Fail if a process of it remains."""
    script = folder / "program.py"
    script.write_text(program)
    marker = secrets.token_hex(8)
    command = [sys.executable, "-m", "ngd.launch", "--no-prefix", *options, str(script)]
    inherited = {k: v for k, v in os.environ.items() if not harness.LAUNCHED.fullmatch(k)}
    env = {**inherited, harness.MARKER: marker, "NGD_TIMEOUT": timeout, "OMP_NUM_THREADS": "1"}
    env["TMPDIR"] = str(folder)
    job = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        out, err = job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        job.kill()
        out, err = job.communicate()
        pytest.fail(f"the job did not end in {seconds} s\n{out}\n{err}")
    assert harness.marked_processes(marker) == []
    assert [path.name for path in folder.iterdir() if path.name.startswith("ngd-run-")] == []
    return JobEnd(job.returncode, out, err)


def rounds(harm: str, count: int = 6) -> str:
    """Return the DiLoCo program, with `harm` before each inner step."""
    return ROUNDS.replace("LATER = 3", f"ROUNDS = {count}\ndef harm(round):\n    {harm}\n")


def test_a_job_continues_without_a_lost_member(tmp_path: Path) -> None:
    job_end = run(
        tmp_path, rounds("if me == 1 and round == 2: die()"), "-n", "3", "--min-ranks", "2"
    )
    assert job_end.code == 0, job_end.all
    # A round moves by the mean of 2 * (1 + me): 4 with all members, and 4 with members 0 and 2.
    assert job_end.of("ends").keys() == {0, 2}
    assert [line["size"] for line in job_end.told if "size" in line and line["member"] == 0] == [
        *(3, 3, 2, 2, 2, 2)
    ]
    assert job_end.of("ends")[0]["w"] == job_end.of("ends")[2]["w"] == [[-24.0] * 3] * 2
    assert "member 1 was killed by SIGKILL; 2 other members continue" in job_end.err
    assert "world 2 has the members 0, 2" in job_end.err
    assert re.search(r"train\.DiLoCo: outer step 3: .*: rank 1 .*has died", job_end.err), (
        job_end.all
    )


def test_the_mean_is_over_the_present_members(tmp_path: Path) -> None:
    job_end = run(
        tmp_path, rounds("if me == 2 and round == 1: die()"), "-n", "3", "--min-ranks", "1"
    )
    assert job_end.code == 0, job_end.all
    assert job_end.of("ends")[0]["w"][0][0] == -(4 + 5 * 3)


@pytest.mark.long
def test_a_new_member_gets_the_state_of_another(tmp_path: Path) -> None:
    slow = "time.sleep(0.25); die() if me == 0 and round == 1 else None"
    job_end = run(tmp_path, rounds(slow, 20), "-n", "2", "--min-ranks", "1", "--max-restarts", "1")
    assert job_end.code == 0, job_end.all
    begins, ends = job_end.of("begins")[2], job_end.of("ends")
    assert ends.keys() == {1, 2}
    assert 2 <= begins["begins"] < 20
    # It has the weights of the other member, and the same number of inner steps.
    peers = [line for line in job_end.told if line.get("round") == begins["begins"]]
    assert [line["w"] for line in peers if line["member"] == 1] == [begins["w"]]
    assert begins["moments"] == 2 * begins["begins"]
    assert ends[1]["w"] == ends[2]["w"]
    assert ends[1]["moments"] == ends[2]["moments"] == 40
    # Rounds of members 0 and 1 move by 3, of only member 1 by 4, of members 1 and 2 by 5.
    assert ends[1]["w"][0][0] == -(3 + 4 * (begins["begins"] - 1) + 5 * (20 - begins["begins"]))
    # The new member may start before the other one notices the lost member.
    assert re.search(r"world [23] has the members 1, 2", job_end.err), job_end.all
    for words in (
        "member 0 was killed by SIGKILL; member 2 replaces it",
        "member 2 waits for the other members",
        "got the state of rank 0, at round",
    ):
        assert words in job_end.err, job_end.all


def test_too_few_members_end_the_job(tmp_path: Path) -> None:
    slow = "time.sleep(0.1); sys.exit(7) if me == 1 else None"
    job_end = run(tmp_path, rounds(slow, 10**6), "-n", "2", "--min-ranks", "2")
    assert job_end.code == 7, job_end.all
    assert "rank 1 returned 7; ending the other ranks" in job_end.err


def test_the_loss_of_all_members_with_weights_ends_the_job(tmp_path: Path) -> None:
    """New members do not start the training again."""
    job_end = run(tmp_path, rounds("die()"), "-n", "1", "--min-ranks", "1", "--max-restarts", "3")
    assert job_end.code == 128 + signal.SIGKILL, job_end.all
    assert job_end.of("begins").keys() == {0}


@pytest.mark.long
def test_a_member_that_starts_after_the_training_ends(tmp_path: Path) -> None:
    program = rounds("die() if me == 0 and round == 1 else None", 3)
    late_program = program.replace(
        "import numpy", "time.sleep(0 if me < 2 else 600)\nimport numpy", 1
    )
    late_program = late_program.replace("me = int", "", 1).replace(
        '(os.environ["NGD_MEMBER"])\n', "\n", 1
    )
    late_program = late_program.replace(
        "import json, ", 'import os\nme = int(os.environ["NGD_MEMBER"])\nimport json, '
    )
    options = ("-n", "2", "--min-ranks", "1", "--max-restarts", "1")
    job_end = run(tmp_path, late_program, *options, seconds=60)
    assert job_end.code == 0, job_end.all
    assert "the training ended before these members joined: 2" in job_end.err


@pytest.mark.long
def test_a_stopped_member_is_killed_at_the_deadline(tmp_path: Path) -> None:
    stop = "os.kill(os.getpid(), signal.SIGSTOP) if me == 1 and round == 2 else None"
    job_end = run(tmp_path, rounds(stop), "-n", "3", "--min-ranks", "2", timeout="3")
    assert job_end.code == 0, job_end.all
    assert job_end.of("ends").keys() == {0, 2}
    assert "member 1 did not arrive in 3 s, and is killed" in job_end.err


@pytest.mark.long
@pytest.mark.parametrize("timeout", ["0", "inf"])
def test_infinite_timeouts_work(tmp_path: Path, timeout: str) -> None:
    job_end = run(tmp_path, rounds("pass", 2), "-n", "2", "--min-ranks", "1", timeout=timeout)
    assert job_end.code == 0, job_end.all
    assert job_end.of("ends").keys() == {0, 1}


def test_a_member_that_dies_before_the_first_world_is_not_awaited(tmp_path: Path) -> None:
    program = (
        rounds("pass").replace("LATER", "").replace("def die", "if me == 0: sys.exit(2)\ndef die")
    )
    job_end = run(tmp_path, program, "-n", "3", "--min-ranks", "2")
    assert job_end.code == 0, job_end.all
    assert "world 1 has the members 1, 2" in job_end.err


@pytest.mark.long
def test_a_member_that_dies_before_the_rendezvous_is_not_awaited(tmp_path: Path) -> None:
    early = """
from ngd.comm.launchers.launcher_pipe import send_to_launcher
if me == 1:
    send_to_launcher("+1", os.environ)
    time.sleep(1)
    die()
"""
    program = rounds("pass").replace("d = train", f"{early}d = train", 1)
    job_end = run(tmp_path, program, "-n", "3", "--min-ranks", "2", timeout="5")
    assert job_end.code == 0, job_end.all
    assert job_end.of("ends").keys() == {0, 2}
    assert "world 2 has the members 0, 2" in job_end.err


@pytest.mark.long
def test_a_job_inside_a_member_is_separate(tmp_path: Path) -> None:
    program = (
        BEGIN
        + """
import subprocess
ngd.init()
inner = "import ngd; w = ngd.init(); print(w.size, ngd.newcomers())"
command = [sys.executable, "-m", "ngd.launch", "--no-prefix", "-n", "2", sys.executable, "-c"]
said = subprocess.run([*command, inner], capture_output=True, text=True, timeout=60)
tell(said=said.stdout)
"""
    )
    job_end = run(tmp_path, program, "-n", "1", "--min-ranks", "1")
    assert job_end.code == 0, job_end.all
    assert [t["said"] for t in job_end.told] == ["2 None\n" * 2], job_end.all


@pytest.mark.long
def test_a_mismatch_between_members_ends_the_job(tmp_path: Path) -> None:
    program = rounds("pass").replace("np.zeros((2, 3)", "np.zeros((2 + me, 3)")
    job_end = run(tmp_path, program, "-n", "2", "--min-ranks", "1")
    assert job_end.code == 1, job_end.all
    assert "CollectiveMismatchError" in job_end.err


@pytest.mark.long
def test_a_child_of_a_member_is_not_a_member(tmp_path: Path) -> None:
    program = (
        BEGIN
        + """
import subprocess
ngd.init()
child = "import ngd\\ntry: ngd.init()\\nexcept ngd.errors.InitError as e: print(e)"
said = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, timeout=60)
tell(said=said.stdout)
"""
    )
    job_end = run(tmp_path, program, "-n", "2", "--min-ranks", "1")
    assert job_end.code == 0, job_end.all
    assert all("has inherited its environment" in t["said"] for t in job_end.told), job_end.all
    assert len(job_end.told) == 2


def test_a_signal_ends_a_job_of_members(tmp_path: Path) -> None:
    program = rounds("tell(now=round) if me == 0 else time.sleep(0.05)", 10**6)
    program = program.replace("def die", "def die")
    script = tmp_path / "program.py"
    script.write_text(program)
    job = subprocess.Popen(
        [sys.executable, "-m", "ngd.launch", "-n", "2", "--min-ranks", "1", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert job.stdout is not None
    assert any('"now": 2' in line for line in job.stdout)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=30)
    assert job.returncode == 128 + signal.SIGTERM


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_random_deaths_leave_equal_weights(tmp_path: Path, seed: int) -> None:
    """Members die at random moments. The remaining ones have equal weights, and none hangs."""
    draw = random.Random(seed)
    times = [round(draw.uniform(0.0, 2.0), 3) for _ in range(16)]
    harm = "time.sleep(0.01)"
    program = (
        rounds(harm, 150)
        .replace("def die", f"TIMES = {times}\ndef die", 1)
        .replace(
            "d = train",
            "import threading\n"
            "if me not in (0, 5): threading.Timer(TIMES[me], die).start()\n"
            "d = train",
            1,
        )
    )
    options = ("-n", "3", "--min-ranks", "1", "--max-restarts", "5")
    job_end = run(tmp_path, program, *options, seconds=200)
    assert job_end.code == 0, job_end.all
    ends = job_end.of("ends")
    assert 0 in ends
    assert ends[0]["ends"] == 150
    assert len({json.dumps(line["w"]) for line in ends.values()}) == 1, job_end.all


def test_other_jobs_have_no_newcomers() -> None:
    assert ngd.newcomers() is None


@pytest.mark.parametrize("ranks", ["0", "3", "-1"])
def test_a_bad_min_ranks_is_an_error(ranks: str) -> None:
    command = [sys.executable, "-m", "ngd.launch", "-n", "2", "--min-ranks", ranks, "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"--min-ranks {ranks}: expected a number from 1 to 2" in done.stderr


# The launcher's part only.


def test_a_world_is_made_when_all_members_with_state_wait(tmp_path: Path) -> None:
    board = membership.Board(str(tmp_path), 3, 10)
    assert board.waits(2) is None
    assert board.waits(0) is None
    board.forget(1)
    world = board.settle()
    assert world is not None
    assert (world.number, world.members) == (1, (0, 2))
    assert membership.read(str(tmp_path)) == world
    assert board.waits(4) is None
    assert membership.read(str(tmp_path)).newcomers == (4,)
    assert membership.read(str(tmp_path)).members == (0, 2)
    assert board.waits(2) is None
    second = board.waits(0)
    assert second is not None
    assert (second.number, second.members, second.newcomers) == (2, (0, 2, 4), ())
    assert second.job not in ("", world.job)


def test_a_late_member_is_reported_once(tmp_path: Path) -> None:
    board = membership.Board(str(tmp_path), 3, 0.05)
    assert board.late_members() == []
    board.waits(7)  # a new member may wait for long
    assert board.deadline is None
    board.waits(1)
    time.sleep(0.06)
    assert board.late_members() == [0, 2]
    assert board.late_members() == []
    endless = membership.Board(str(tmp_path), 2, 0)
    endless.waits(0)
    assert endless.deadline is None


def test_a_launcher_that_does_not_answer_raises(tmp_path: Path) -> None:
    environ = {"NGD_MEMBER": "1", "NGD_ELASTIC_DIR": str(tmp_path), "NGD_RESTART_COUNT": "0"}
    environ["NGD_SURROUNDINGS"] = ngd.comm.launchers.registry.surroundings(environ)
    with pytest.raises(InitError, match="expected an answer of `ngd run`"):
        membership.join_next_world(environ, 1)
