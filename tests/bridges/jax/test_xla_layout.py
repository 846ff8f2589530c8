# SPDX-License-Identifier: Apache-2.0
"""Compare ngd's declarations of XLA's interface with the header that jaxlib contains."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

jax: Any = pytest.importorskip("jax", reason="JAX is not installed")

ROOT = Path(__file__).parents[3]
OURS = ROOT / "src/cpp/bridges/xla_ffi.hpp"
STRUCT = re.compile(r"^struct (XLA_FFI_\w+) \{\n(.*?)^\};", re.M | re.S)
MEMBER = re.compile(r"(?:(\w+)|\(\*(\w+)\)\(.*\));")
ENUMERATOR = re.compile(r"\b(XLA_FFI_\w+) = \d+")
PREFIXES = ("XLA_FFI_Metadata",)
"""Structures of which ngd declares only the first members."""


def members(body: str) -> list[str]:
    """Return the names of the members of a structure."""
    lines = (line.split("//")[0].strip() for line in body.splitlines())
    return [found[1] or found[2] for line in lines if (found := MEMBER.search(line))]


def assertions() -> list[str]:
    """Return C++ checks of the offsets and sizes of members, and of the values of enumerators."""
    text = OURS.read_text()
    checks = []
    for name, body in STRUCT.findall(text):
        if name != "XLA_FFI_Api" and name not in PREFIXES:
            checks.append(f"sizeof(ours::{name}) == sizeof({name})")
        for member in members(body):
            checks.append(f"offsetof(ours::{name}, {member}) == offsetof({name}, {member})")
            checks.append(f"sizeof(ours::{name}::{member}) == sizeof({name}::{member})")
    names = ENUMERATOR.findall(text)
    checks += [f"int(ours::{name}) == int({name})" for name in names if "API_M" not in name]
    checks.append("XLA_FFI_API_MAJOR == kMajor && XLA_FFI_API_MINOR >= kMinor")
    return checks


def compile_checks(checks: list[str], folder: Path) -> str:
    """Compile the checks, and return the errors of the compiler."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    source = folder / "layout.cpp"
    lines = [
        f'#include "{OURS}"',
        "constexpr int kMajor = ngd::bridges::xla_ffi::XLA_FFI_API_MAJOR;",
        "constexpr int kMinor = ngd::bridges::xla_ffi::XLA_FFI_API_MINOR;",
        '#include "xla/ffi/api/c_api.h"',
        "namespace ours = ngd::bridges::xla_ffi;",
        *(f"static_assert({check});" for check in checks),
    ]
    source.write_text("\n".join(lines) + "\n")
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{jax.ffi.include_dir()}", str(source)]
    return subprocess.run(command, capture_output=True, text=True).stderr


def test_declarations_have_the_layout_of_the_header(tmp_path: Path) -> None:
    checks = assertions()
    assert len(checks) > 150
    assert compile_checks(checks, tmp_path) == ""


def test_a_different_layout_fails_to_compile(tmp_path: Path) -> None:
    wrong = "offsetof(ours::XLA_FFI_Buffer, data) == offsetof(XLA_FFI_Buffer, dims)"
    assert "static assertion failed" in compile_checks([wrong], tmp_path)
