# SPDX-License-Identifier: Apache-2.0
"""`ngd run`: what ranks are told, what is shown, and that nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ngd.launch import rank_environment

DEADLINE = 60.0


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """A word for the job's command lines; at the end no process may carry it."""
    word = f"mark-{tmp_path.name}-{os.getpid()}"
    yield word
    assert wait_until(lambda: not carriers(word), 10), f"left behind: {carriers(word)}"


def carriers(word: str) -> list[int]:
    """The processes with this word among their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in arguments:
                found.append(int(entry.name))
    return found


def wait_until(condition: object, seconds: float) -> bool:
    end = time.monotonic() + seconds
    assert callable(condition)
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def launcher(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ngd.launch", *arguments]


def start(tmp_path: Path, program: str, mark: str, *options: str) -> subprocess.Popen[str]:
    """Start a job of a Python program that is given the mark."""
    script = tmp_path / "program.py"
    script.write_text(program)
    return subprocess.Popen(
        launcher(*options, str(script), mark),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(job: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = job.communicate(timeout=DEADLINE)
    return job.returncode, out, err


def test_every_rank_knows_its_place_and_the_job(tmp_path: Path, mark: str) -> None:
    program = """
import os
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NGD_JOB".split()
print(*(os.environ[n] for n in names), "MASTER_ADDR" in os.environ)
"""
    code, out, _ = finish(start(tmp_path, program, mark, "-n", "3"))
    assert code == 0
    lines = sorted(out.splitlines())
    places = [line.split() for line in lines]
    assert [p[:5] for p in places] == [[f"[{r}]", str(r), "3", str(r), "3"] for r in range(3)]
    (job,) = {p[5] for p in places}
    assert len(job) == 32
    assert {p[6] for p in places} == {"False"}
    _, other, _ = finish(start(tmp_path, program, mark, "-n", "1"))
    assert job not in other


def test_the_rest_of_the_environment_is_kept() -> None:
    environ = rank_environment(1, 2, "key", {"A": "b", "MASTER_PORT": "1", "RANK": "7"})
    assert environ["A"] == "b"
    assert environ["RANK"] == "1"
    assert "MASTER_PORT" not in environ


def test_lines_stay_whole_and_the_streams_apart(tmp_path: Path, mark: str) -> None:
    program = """
import sys
for i in range(2000):
    print("out", i, "x" * 100)
    print("err", i, file=sys.stderr)
sys.stdout.write("no end of line")
"""
    code, out, err = finish(start(tmp_path, program, mark, "-n", "2"))
    assert code == 0
    for rank in range(2):
        # A line without an end is followed by whatever comes next.
        mine = [p for line in out.splitlines() for p in line.split("[") if p.startswith(f"{rank}]")]
        expected = [f"{rank}] out {i} {'x' * 100}" for i in range(2000)]
        assert mine == [*expected, f"{rank}] no end of line"]
        errors = [line for line in err.splitlines() if line.startswith(f"[{rank}]")]
        assert errors == [f"[{rank}] err {i}" for i in range(2000)]


def test_without_a_prefix_lines_are_what_the_rank_printed(tmp_path: Path, mark: str) -> None:
    job = start(tmp_path, "print('plain')", mark, "-n", "1", "--no-prefix", "--")
    assert finish(job)[:2] == (0, "plain\n")


@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        ("sys.exit(7)", 7, "rank 1 returned 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + 9, "rank 1 was killed by SIGKILL"),
        ("raise RuntimeError('why')", 1, "rank 1 returned 1"),
    ],
)
def test_the_first_failure_ends_the_job(
    tmp_path: Path, mark: str, ending: str, code: int, words: str
) -> None:
    program = f"""
import os, signal, sys, time
if os.environ["RANK"] == "1":
    {ending}
time.sleep(600)
"""
    begin = time.monotonic()
    got, _, err = finish(start(tmp_path, program, mark, "-n", "3"))
    assert got == code
    assert words in err
    assert ("why" in err) == ("why" in ending)
    assert time.monotonic() - begin < 20


def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path, mark: str) -> None:
    program = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready")
if os.environ["RANK"] == "0":
    time.sleep(1)
    sys.exit(3)
time.sleep(600)
"""
    begin = time.monotonic()
    code, _, _ = finish(start(tmp_path, program, mark, "-n", "2", "--grace", "0.5"))
    assert code == 3
    assert time.monotonic() - begin < 20


GRANDCHILD = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1]])
print("ready", flush=True)
"""


def test_what_a_rank_has_started_goes_with_it(tmp_path: Path, mark: str) -> None:
    assert finish(start(tmp_path, GRANDCHILD, mark, "-n", "2"))[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_job(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    job = start(tmp_path, GRANDCHILD + "time.sleep(600)", mark, "-n", "2")
    assert job.stdout is not None
    assert [job.stdout.readline()[3:] for _ in range(2)] == [" ready\n"] * 2
    job.send_signal(number)
    code, _, _ = finish(job)
    assert code == 128 + number


def test_the_ranks_die_with_a_killed_launcher(tmp_path: Path, mark: str) -> None:
    job = start(
        tmp_path, "print('ready', flush=True)\nimport time; time.sleep(600)", mark, "-n", "2"
    )
    assert job.stdout is not None
    assert [job.stdout.readline()[3:] for _ in range(2)] == [" ready\n"] * 2
    job.kill()
    finish(job)


def test_a_program_that_is_not_python(mark: str) -> None:
    command = launcher("-n", "2", "sh", "-c", 'echo "$RANK/$WORLD_SIZE"', mark)
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert sorted(done.stdout.splitlines()) == ["[0] 0/2", "[1] 1/2"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-n", "2", "/no/such/program"], 127, "cannot start /no/such/program"),
        (["-n", "0", "true"], 2, "at least one rank"),
        (["-n", "x", "true"], 2, "invalid int"),
        (["true"], 2, "-n"),
        (["-n", "2", "/etc/passwd"], 126, "cannot start /etc/passwd"),
    ],
)
def test_what_cannot_be_started(arguments: list[str], code: int, words: str) -> None:
    done = subprocess.run(launcher(*arguments), capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr
