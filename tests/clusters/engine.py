# SPDX-License-Identifier: Apache-2.0
"""Runs containers with podman as Docker does: with its seccomp filter, and 64 MB in /dev/shm."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence

import pytest

CGROUP2 = 'umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
"""Shell code that mounts only cgroups of version 2, because podman does not support both."""


@functools.cache
def _prefix() -> tuple[str, ...]:
    kind = subprocess.run(
        ["stat", "--file-system", "--format=%T", "/sys/fs/cgroup"], capture_output=True, text=True
    )
    if kind.stdout.strip() == "cgroup2fs":
        return ()
    return ("unshare", "--mount", "sh", "-c", CGROUP2, "sh")


def podman(*words: str) -> list[str]:
    """Return a command of podman, which finds its images by CONTAINERS_STORAGE_CONF."""
    return [
        *_prefix(),
        "podman",
        "--cgroup-manager",
        "cgroupfs",
        "--events-backend",
        "none",
        *words,
    ]


@functools.cache
def why_not(image: str) -> str | None:
    """Return the reason why this image cannot run here, or None.

    If CONTAINERS_STORAGE_CONF is set, the image must run, so the result is None.
    """
    if "CONTAINERS_STORAGE_CONF" in os.environ:
        return None
    if shutil.which("podman") is None:
        return "needs podman"
    if subprocess.run([*podman("image", "exists", image)], capture_output=True).returncode != 0:
        return f"needs the image {image}, which .ci/clusters builds"
    return None


def needs(image: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test if the image does not exist."""
    reason = why_not(image)
    return pytest.mark.skipif(reason is not None, reason=str(reason))


def command(image: str, words: Sequence[str], *options: str) -> list[str]:
    """Return the command line that runs `words` in a new container of the image."""
    limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
    fixed = ("--rm", "--pull", "never", "--cgroups", "disabled", *limits)
    return podman("run", *fixed, *options, image, *words)


def run(
    image: str, words: Sequence[str], *options: str, seconds: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a command in a new container without a network, and return how it ended."""
    line = command(image, words, "--network", "none", *options)
    return subprocess.run(line, capture_output=True, text=True, timeout=seconds)
