# SPDX-License-Identifier: Apache-2.0
"""Tests of `ngd run`: environment and output of the ranks, and that no process remains."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ngd
from ngd.cli import binding, job
from ngd.cli import run as launch
from ngd.cli.environment import rank_environment
from ngd.comm.cores import available_cores

DEADLINE = 60.0


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """A word for the command lines of the job. At the end, no process may have it."""
    word = f"mark-{tmp_path.name}-{os.getpid()}"
    yield word
    assert wait_until(lambda: not processes_with(word), 10), f"left behind: {processes_with(word)}"


def processes_with(word: str) -> list[int]:
    """Return the processes with this word among their arguments."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word.encode() in arguments:
                pids.append(int(entry.name))
    return pids


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
    """Start a job of a Python program, with the mark as an argument."""
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


def test_every_rank_gets_its_number_and_the_job(tmp_path: Path, mark: str) -> None:
    program = """
import errno
import os
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NGD_JOB".split()
print(*(os.environ[n] for n in [*names, "MASTER_ADDR", "NGD_RESTART_COUNT", "MASTER_PORT"]))
"""
    code, out, _ = finish(start(tmp_path, program, mark, "-n", "3"))
    assert code == 0
    lines = sorted(out.splitlines())
    environments = [line.split() for line in lines]
    assert [p[:5] for p in environments] == [[f"[{r}]", str(r), "3", str(r), "3"] for r in range(3)]
    (job,) = {p[5] for p in environments}
    assert len(job) == 32
    assert {tuple(p[6:8]) for p in environments} == {("127.0.0.1", "0")}
    (port,) = {int(p[8]) for p in environments}
    assert 1024 <= port < 65536
    _, other, _ = finish(start(tmp_path, program, mark, "-n", "1"))
    assert job not in other


def test_ranks_have_own_process_groups_in_one_session(tmp_path: Path, mark: str) -> None:
    program = "import os; print(os.getsid(0), os.getpgid(0) == os.getpid())"
    code, out, _ = finish(start(tmp_path, program, mark, "-n", "2", "--no-prefix"))
    assert code == 0
    assert out.splitlines() == [f"{os.getsid(0)} True"] * 2


def test_other_environment_variables_are_unchanged() -> None:
    environ = rank_environment(1, 2, "key", 9, 0, {"A": "b", "MASTER_PORT": "1", "RANK": "7"})
    assert environ["A"] == "b"
    assert environ["RANK"] == "1"
    assert environ["MASTER_PORT"] == "9"


def test_lines_are_not_split_and_streams_are_not_mixed(tmp_path: Path, mark: str) -> None:
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
        # The next output follows directly after a line without an end.
        mine = [p for line in out.splitlines() for p in line.split("[") if p.startswith(f"{rank}]")]
        expected = [f"{rank}] out {i} {'x' * 100}" for i in range(2000)]
        assert mine == [*expected, f"{rank}] no end of line"]
        errors = [line for line in err.splitlines() if line.startswith(f"[{rank}]")]
        assert errors == [f"[{rank}] err {i}" for i in range(2000)]


def test_without_a_prefix_lines_are_what_the_rank_printed(tmp_path: Path, mark: str) -> None:
    job = start(tmp_path, "print('plain')", mark, "-n", "1", "--no-prefix", "--")
    assert finish(job)[:2] == (0, "plain\n")


def test_output_bytes_are_unchanged(tmp_path: Path, mark: str) -> None:
    program = """
import sys, time
sys.stdout.buffer.write("gr\u00fcn ".encode() + bytes([255, 0]) + b"\\ncarriage\\r")
sys.stdout.flush()
time.sleep(0.2)
sys.stdout.buffer.write(b"\\nreturn\\r\\n" + b"x" * (1 << 20) + b"\\n")
"""
    script = tmp_path / "program.py"
    script.write_text(program, encoding="utf-8")
    done = subprocess.run(
        launcher("-n", "1", str(script), mark),
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    lines = ["grün ".encode() + b"\xff\0", b"carriage\r", b"return\r", b"x" * (1 << 20)]
    assert done.stdout == b"".join(b"[0] " + line + b"\n" for line in lines)


@pytest.mark.parametrize(
    ("ending", "code", "words"),
    [
        ("sys.exit(7)", 7, "rank 1 returned 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + 9, "rank 1 was killed by SIGKILL"),
        ("os.kill(os.getpid(), 40)", 128 + 40, "rank 1 was killed by signal 40"),
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


def test_other_ranks_have_time_to_print_their_errors(tmp_path: Path, mark: str) -> None:
    program = """
import os, sys, time
if os.environ["RANK"] == "0":
    sys.exit(3)
time.sleep(0.3)
sys.exit("what I saw")
"""
    code, _, err = finish(start(tmp_path, program, mark, "-n", "2"))
    assert code == 3
    assert "[1] what I saw" in err


def test_a_rank_that_ignores_sigterm_is_killed_later(tmp_path: Path, mark: str) -> None:
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


def test_a_closed_output_ends_the_job(tmp_path: Path, mark: str) -> None:
    program = """
while True:
    print("more", flush=True)
"""
    job = start(tmp_path, program, mark, "-n", "2")
    assert job.stdout is not None
    assert job.stderr is not None
    assert "more" in job.stdout.readline()
    job.stdout.close()
    assert job.wait(DEADLINE) == 128 + signal.SIGPIPE
    assert "Traceback" not in job.stderr.read()
    job.stderr.close()


def test_processes_that_a_rank_started_end_with_it(tmp_path: Path, mark: str) -> None:
    assert finish(start(tmp_path, GRANDCHILD, mark, "-n", "2"))[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_job(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    job = start(tmp_path, GRANDCHILD + "time.sleep(600)", mark, "-n", "2")
    assert job.stdout is not None
    assert [job.stdout.readline()[3:] for _ in range(2)] == [" ready\n"] * 2
    job.send_signal(number)
    code, _, _ = finish(job)
    assert code == 128 + number


STOPPED = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(os.environ["RANK"]) * {step} + 75))
print("up", flush=True)
signal.pause()
"""


@pytest.mark.parametrize(("step", "code"), [(0, 75), (1, 128 + signal.SIGTERM)])
def test_ranks_that_handle_a_signal_set_the_exit_code(
    tmp_path: Path, mark: str, step: int, code: int
) -> None:
    """Ranks handle a signal, as a training does that saves and requests a restart.

    If their exit codes differ, the job returns 128 + N.
    """
    options = ("-n", "2", "--no-prefix", "--max-restarts", "1")
    job = start(tmp_path, STOPPED.format(step=step), mark, *options)
    assert job.stdout is not None
    assert [job.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    job.send_signal(signal.SIGTERM)
    assert finish(job) == (code, "", "")


def test_nohup_keeps_the_job_running(tmp_path: Path, mark: str) -> None:
    script = tmp_path / "program.py"
    script.write_text("print('ready', flush=True)\nimport time; time.sleep(1)\nprint('done')")
    job = subprocess.Popen(
        ["nohup", *launcher("-n", "1", str(script), mark)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "[0] ready\n"
    job.send_signal(signal.SIGHUP)
    assert finish(job)[:2] == (0, "[0] done\n")


def test_the_ranks_die_with_a_killed_launcher(tmp_path: Path, mark: str) -> None:
    job = start(
        tmp_path, "print('ready', flush=True)\nimport time; time.sleep(600)", mark, "-n", "2"
    )
    assert job.stdout is not None
    assert [job.stdout.readline()[3:] for _ in range(2)] == [" ready\n"] * 2
    job.kill()
    finish(job)


def test_processes_of_ranks_die_with_a_killed_launcher(tmp_path: Path, mark: str) -> None:
    job = start(tmp_path, GRANDCHILD + "time.sleep(600)", mark, "-n", "2")
    assert job.stdout is not None
    assert [job.stdout.readline()[3:] for _ in range(2)] == [" ready\n"] * 2
    # A process has no command line for a moment. The fixture waits until all have ended.
    assert wait_until(lambda: len(processes_with(mark)) == 5, 10), processes_with(mark)
    job.kill()
    finish(job)


FAILS_TWICE = """
import os, sys, time
again = os.environ["NGD_RESTART_COUNT"]
print(again, os.environ["NGD_JOB"], flush=True)
if os.environ["RANK"] == "1" and again != "2":
    sys.exit(5)
if again != "2":
    time.sleep(600)
"""


def test_a_restart_is_a_new_job(tmp_path: Path, mark: str) -> None:
    code, out, err = finish(start(tmp_path, FAILS_TWICE, mark, "-n", "2", "--max-restarts", "3"))
    assert code == 0
    assert "restart 1 of 3" in err
    assert "restart 2 of 3" in err
    assert "restart 3" not in err
    lines = {tuple(line.split()[1:]) for line in out.splitlines()}
    assert [count for count, _ in sorted(lines)] == ["0", "1", "2"]
    assert len({job for _, job in lines}) == 3


def test_the_number_of_restarts_is_limited(tmp_path: Path, mark: str) -> None:
    job = start(tmp_path, FAILS_TWICE, mark, "-n", "2", "--max-restarts", "1")
    code, out, _ = finish(job)
    assert code == 5
    assert sorted({line.split()[1] for line in out.splitlines()}) == ["0", "1"]


def test_an_interrupted_job_is_not_restarted(tmp_path: Path, mark: str) -> None:
    job = start(tmp_path, GRANDCHILD + "time.sleep(600)", mark, "-n", "2", "--max-restarts", "9")
    assert job.stdout is not None
    assert [job.stdout.readline()[3:] for _ in range(2)] == [" ready\n"] * 2
    job.send_signal(signal.SIGINT)
    code, _, err = finish(job)
    assert code == 128 + signal.SIGINT
    assert "restart" not in err


def test_a_module_and_its_arguments(tmp_path: Path, mark: str) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "thing.py").write_text("import sys; print(__name__, sys.argv[1:])")
    command = launcher("-n", "2", "-m", "some.thing", mark, "-n", "3", "--", "-m")
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE, cwd=tmp_path, check=True
    )
    expected = f"__main__ {[mark, '-n', '3', '--', '-m']}"
    assert sorted(done.stdout.splitlines()) == [f"[{r}] {expected}" for r in range(2)]


SHOW_CORES = "import os; print(*sorted(os.sched_getaffinity(0)))"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_are_bound_to_cores(tmp_path: Path, mark: str, ranks: int) -> None:
    job = start(tmp_path, SHOW_CORES, mark, "-n", str(ranks), "--bind", "core")
    code, out, err = finish(job)
    assert code == 0
    mine = os.sched_getaffinity(0)
    sets = [set(map(int, line.split()[1:])) for line in out.splitlines()]
    assert len(sets) == ranks
    assert all(each and each <= mine for each in sets)
    enough = available_cores() >= ranks
    assert (sum(map(len, sets)) == len(set().union(*sets))) == enough
    assert ("share" in err) == (not enough)


def write_topology(folder: Path, cores: list[tuple[int, int]], nodes: list[str]) -> Path:
    """Write the files in which the kernel shows CPUs as (package, core), and NUMA nodes."""
    for cpu, (package, core) in enumerate(cores):
        topology = folder / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{package}\n")
        (topology / "core_id").write_text(f"{core}\n")
    for number, cpus in enumerate(nodes):
        (folder / "node" / f"node{number}").mkdir(parents=True)
        (folder / "node" / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    return folder


# Two packages of two cores with two hyperthreads each: CPU n and CPU n + 4 are one core.
TWO_PACKAGES = [(0, 0), (0, 1), (1, 0), (1, 1)] * 2


@pytest.mark.parametrize(
    ("how", "ranks", "quota", "expected"),
    [
        ("none", 2, 8, ["0-7", "0-7"]),
        ("core", 1, 8, ["0-7"]),
        ("core", 2, 8, ["0-1,4-5", "2-3,6-7"]),
        ("core", 3, 8, ["0,4", "1,5", "2-3,6-7"]),
        ("core", 8, 8, ["0", "4", "1", "5", "2", "6", "3", "7"]),
        ("core", 9, 8, ["0", "0", "4", "1", "5", "2", "6", "3", "7"]),
        ("core", 2, 3, ["0", "1-2"]),
        ("core", 3, 2, ["0", "0", "1"]),
        ("numa", 1, 8, ["0-7"]),
        ("numa", 2, 8, ["0-1,4-5", "2-3,6-7"]),
        ("numa", 4, 8, ["0-1,4-5"] * 2 + ["2-3,6-7"] * 2),
    ],
)
def test_cores_are_divided_among_ranks(
    tmp_path: Path, how: str, ranks: int, quota: int, expected: list[str]
) -> None:
    system = write_topology(tmp_path, TWO_PACKAGES, ["0-1,4-5", "2-3,6-7"])
    cores = binding.cores_of_ranks(how, ranks, range(8), quota, system)
    assert [binding.format_cpus(each) for each in cores] == expected


def test_binding_respects_the_mask_and_works_without_topology(tmp_path: Path) -> None:
    system = write_topology(tmp_path, TWO_PACKAGES, ["0-1,4-5", "2-3,6-7"])
    assert binding.cores_of_ranks("core", 2, {1, 2, 6}, 8, system) == [[1], [2, 6]]
    assert binding.cores_of_ranks("numa", 2, {2, 6}, 8, system) == [[2, 6], [2, 6]]
    nothing = tmp_path / "nothing"
    assert binding.cores_of_ranks("core", 2, {1, 3, 5}, 8, nothing) == [[1], [3, 5]]
    assert binding.cores_of_ranks("numa", 2, {1, 3}, 8, nothing) == [[1, 3], [1, 3]]


def test_an_error_explains_the_option_hosts() -> None:
    command = launcher("--hosts", "a:2,b:1", "-m", "train", "--name", "two words")
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    started = shlex.split(done.stdout)
    assert started[:5] == ["mpirun", "-np", "3", "--host", "a:2,b:1"]
    assert started[-5:] == [sys.executable, "-m", "train", "--name", "two words"]
    mode = ngd.build_info()["mode"]
    assert done.returncode == (0 if mode == "OMPI" else 1)
    assert ("NGD_DISTRIBUTED_ENABLE=OMPI" in done.stderr) == (mode != "OMPI")


def test_hosts_get_the_variables_of_ngd() -> None:
    variables = {"NGD_TIMEOUT": "8", "NGD_JOB": "j", "NGD_HOST": "a", "NGD_METRICS": "localhost:9"}
    done = subprocess.run(
        launcher("--hosts", "a:2,b:2", "train.py"),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env={"PATH": os.environ["PATH"], **variables},
    )
    words = shlex.split(done.stdout)
    assert words[5:7] == ["--bind-to", "none"]
    assert words[7:11] == ["-x", "NGD_METRICS=localhost:9", "-x", "NGD_TIMEOUT=8"]
    assert not {"NGD_JOB=j", "NGD_HOST=a"} & set(words)


def test_hosts_can_be_a_file_of_pbs(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("n1\nn1\nn2\nn1\n")
    command = launcher("-n", "4", "--hosts", str(tmp_path / "nodes"), "train.py")
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert shlex.split(done.stdout)[:5] == ["mpirun", "-np", "4", "--host", "n1:3,n2:1"]


def test_a_variable_of_torchrun_sets_the_number_of_ranks(mark: str) -> None:
    for variables, arguments, ranks in (
        ({"PET_NPROC_PER_NODE": "3", "PET_NNODES": "1"}, [], 3),
        ({"PET_NPROC_PER_NODE": "3"}, ["-n", "2"], 2),
        ({"PET_NPROC_PER_NODE": "gpu"}, ["-n", "2"], 2),
        ({"PET_NPROC_PER_NODE": "", "PET_NNODES": ""}, ["-n", "1"], 1),
        ({"PET_NPROC_PER_NODE": "auto"}, [], available_cores()),
    ):
        done = subprocess.run(
            launcher(*arguments, "--no-prefix", "sh", "-c", "echo $WORLD_SIZE", mark),
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            env={**os.environ, **variables},
        )
        assert (done.returncode, done.stdout) == (0, f"{ranks}\n" * ranks), done.stderr


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1"}, "PET_NNODES=2: expected 1, .*mpirun"),
        ({"PET_NNODES": "1:4"}, "PET_NNODES=1:4: expected 1"),
        ({"PET_NPROC_PER_NODE": "gpu"}, "PET_NPROC_PER_NODE='gpu': expected a number, cpu or auto"),
        ({"PET_NPROC_PER_NODE": "0"}, "-n 0: at least one rank"),
    ],
)
def test_bad_variables_of_torchrun_are_errors(variables: dict[str, str], words: str) -> None:
    arguments = ["true"] if "PET_NPROC_PER_NODE" in variables else ["-n", "2", "true"]
    done = subprocess.run(
        launcher(*arguments),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env={**os.environ, **variables},
    )
    assert done.returncode == 2
    assert re.search(words, done.stderr), done.stderr


def test_a_program_in_another_language_runs(mark: str) -> None:
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
        (["-n", "2", "--max-restarts", "-1", "true"], 2, "--max-restarts"),
        (["-n", "2", "--bind", "socket", "true"], 2, "--bind"),
        (["--hosts", "a:x", "true"], 2, "HOST:RANKS"),
        (["--hosts", "/no/such/file", "true"], 2, "cannot read /no/such/file"),
        (["--hosts", "/dev/null", "true"], 2, "a host's name on each line of /dev/null"),
        (["-n", "3", "--hosts", "a:2", "true"], 2, "got -n 3"),
        (["-n", "2", "/etc/passwd"], 126, "cannot start /etc/passwd"),
    ],
)
def test_a_program_that_cannot_start_is_an_error(
    arguments: list[str], code: int, words: str
) -> None:
    done = subprocess.run(launcher(*arguments), capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [[], ["--max-restarts", "2"], ["--min-ranks", "1"]])
@pytest.mark.parametrize(
    ("module", "missing"),
    [
        ("train", "train"),
        ("package.train", "package.train"),
        ("package", "package.__main__"),
        ("package.module.train", "package.module.train"),
        ("", ""),
    ],
)
def test_a_missing_module_is_an_error(
    tmp_path: Path, options: list[str], module: str, missing: str
) -> None:
    """One line for all ranks, before any of them starts. Nothing is imported."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "package" / "module.py").write_text("")
    command = launcher("-n", "3", *options, "-m", module, "--epochs", "3")
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, cwd=tmp_path)
    assert done.returncode == 127
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    begin = f"ngd run: cannot start -m {module}: there is no module {missing} in {tmp_path}"
    assert line.startswith(begin)


def test_existing_modules_are_found() -> None:
    for name in (
        "ngd",
        "ngd.cli.doctor",
        "json.tool",
        "this",
        "pytest",
        "numpy.testing.print_coercion_tables",
    ):
        launch.check_module(name)
    for name in ("ngd.nothing", "json.tool.more", "nothing.json", "numpy.testing"):
        with pytest.raises(FileNotFoundError, match=f"^cannot start -m {name}: there is no module"):
            launch.check_module(name)


@pytest.mark.parametrize("options", [[], ["--max-restarts", "2"], ["--min-ranks", "1"]])
def test_a_missing_script_is_an_error(tmp_path: Path, options: list[str]) -> None:
    """One line for all ranks, before any of them starts."""
    command = launcher("-n", "3", *options, "train.py", "--epochs", "3")
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, cwd=tmp_path)
    assert done.returncode == 127
    assert done.stdout == ""
    assert done.stderr == (
        f"ngd run: cannot start train.py: there is no such file in {tmp_path.resolve()}\n"
    )


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [("print('ran')", 0, ""), ("this is no Python", 1, "SyntaxError")],
)
def test_a_script_without_execute_permission_runs(
    tmp_path: Path, content: str, code: int, words: str
) -> None:
    (tmp_path / "train.py").write_text(content)
    (tmp_path / "train.py").chmod(0o644)
    command = launcher("-n", "2", "train.py")
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, cwd=tmp_path)
    assert done.returncode == code
    assert words in done.stderr
    assert done.stdout.count("ran") == (2 if code == 0 else 0)


def test_a_folder_can_be_the_script(tmp_path: Path) -> None:
    """Python runs the file __main__.py of a folder."""
    (tmp_path / "train.py").mkdir()
    (tmp_path / "train.py" / "__main__.py").write_text("print('ran')")
    command = launcher("-n", "2", str(tmp_path / "train.py"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout.count("ran")) == (0, 2), done.stderr


def test_a_job_that_cannot_be_made_restores_the_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_guard() -> None:
        raise OSError(errno.EAGAIN, "no process")

    monkeypatch.setattr(job, "Guard", no_guard)
    before = signal.getsignal(signal.SIGTERM), len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no process"):
        launch.main(["-n", "1", "true"])
    assert (signal.getsignal(signal.SIGTERM), len(os.listdir("/proc/self/fd"))) == before
