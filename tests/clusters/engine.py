# SPDX-License-Identifier: Apache-2.0
"""Containers as Docker runs them, by podman: its default seccomp filter, 64 MB in /dev/shm."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence

import pytest

CGROUP2 = 'umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"'
"""podman knows no cgroups of version 1 with 2 beside them; it is to make none anyway."""


@functools.cache
def _before() -> tuple[str, ...]:
    kind = subprocess.run(
        ["stat", "--file-system", "--format=%T", "/sys/fs/cgroup"], capture_output=True, text=True
    )
    if kind.stdout.strip() == "cgroup2fs":
        return ()
    return ("unshare", "--mount", "sh", "-c", CGROUP2, "sh")


def podman(*words: str) -> list[str]:
    """A command of podman, whose images are where CONTAINERS_STORAGE_CONF says."""
    return [
        *_before(),
        "podman",
        "--cgroup-manager",
        "cgroupfs",
        "--events-backend",
        "none",
        *words,
    ]


@functools.cache
def why_not(image: str) -> str | None:
    """The reason why this image cannot be run here; None if it can, or must: storage is named."""
    if "CONTAINERS_STORAGE_CONF" in os.environ:
        return None
    if shutil.which("podman") is None:
        return "needs podman"
    if subprocess.run([*podman("image", "exists", image)], capture_output=True).returncode != 0:
        return f"needs the image {image}, which .ci/clusters builds"
    return None


def needs(image: str) -> pytest.MarkDecorator:
    """Skip where the image is not there."""
    reason = why_not(image)
    return pytest.mark.skipif(reason is not None, reason=str(reason))


def command(image: str, words: Sequence[str], *options: str) -> list[str]:
    """The command line that runs `words` in a new container of the image."""
    limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
    fixed = ("--rm", "--pull", "never", "--cgroups", "disabled", *limits)
    return podman("run", *fixed, *options, image, *words)


def run(
    image: str, words: Sequence[str], *options: str, seconds: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, without a network."""
    line = command(image, words, "--network", "none", *options)
    return subprocess.run(line, capture_output=True, text=True, timeout=seconds)
