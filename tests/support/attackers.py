# SPDX-License-Identifier: Apache-2.0
"""Processes of another user that attack a job, and jobs for them to attack.

An attacker knows what every user of the host can know: the names of sockets, and how ngd computes
them from a key that can be guessed. tests/comm/test_strangers.py has what each attack must not
achieve; tests/stress/strangers.py combines the attacks at random.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import ngd
from tests.support.harness import say

NOBODY = 65534
NAMES = 16
"""The number of names of a rendezvous, as in src/cpp/comm/shm/names.hpp."""
SQUATTERS = ("silent", "closing", "talking", "bound", "datagram", "full", "greedy")
KNOCKERS = ("flood", "hello")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")


def names_of(key: str) -> list[str]:
    """Return the names under which the rendezvous of a job can be."""
    hashes = [hashlib.sha256(f"{key}/{i}".encode()).hexdigest()[:32] for i in range(NAMES)]
    return [f"ngd-{os.geteuid()}-{each}" for each in hashes]


def hello(rank: int, size: int) -> bytes:
    """Return the first message of a rank, Message in src/cpp/comm/shm/channel.hpp."""
    header = Path(__file__).parents[2] / "src/cpp/comm/shm/segment.hpp"
    version = re.search(r"kLayoutVersion = (\d+)", header.read_text())
    assert version is not None
    words = [int(version[1]), 0, rank, size, 1, 0]
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    head = b"ngd-shm1" + b"".join(word.to_bytes(4, "little") for word in words)
    return head + bytes(8) + b"\xff" * 128 + bytes(32) + boot.ljust(2048, b"\0")


@contextlib.contextmanager
def attackers(kinds: Sequence[str], names: Sequence[str] = ()) -> Iterator[list[Attacker]]:
    """Start an attacker of each kind, and end all of them with the context."""
    started: list[Attacker] = []
    try:
        for kind in kinds:
            started.append(Attacker(kind, names))
        for each in started:
            each.wait_until_up()
        yield started
    finally:
        for each in started:
            each.end()


class Attacker:
    """One process of the other user."""

    def __init__(self, kind: str, names: Sequence[str]) -> None:
        arguments = [str(NOBODY), kind, hello(1, 2).hex(), f"@ngd-{os.geteuid()}-", *names]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", ATTACK, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_up(self) -> None:
        """Wait until the attack has started."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"

    def end(self) -> str:
        """End the process, and return its report."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.communicate(timeout=10)[0]
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.communicate()[0]


ATTACK = """
import array, os, signal, socket, sys, threading, time
uid, kind, hello, prefix, names = int(sys.argv[1]), sys.argv[2], *sys.argv[3:5], sys.argv[5:]
hello = bytes.fromhex(hello)
os.setgroups([]), os.setresgid(uid, uid, uid), os.setresuid(uid, uid, uid)
kept, got = [], [0, 0]
signal.signal(signal.SIGTERM, lambda *_: (print("got", *got, flush=True), os._exit(0)))


def squat(name):
    datagram = kind == "datagram"
    door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM if datagram else socket.SOCK_SEQPACKET)
    door.bind("\\0" + name)
    kept.append(door)
    if kind not in ("bound", "datagram"):
        door.listen(0 if kind == "full" else 128)
    if kind == "full":
        for _ in range(2):
            knock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            knock.setblocking(False)
            kept.append(knock)
            try:
                knock.connect("\\0" + name)
            except BlockingIOError:
                break
    if kind in ("closing", "talking", "greedy"):
        threading.Thread(target=serve, args=(door,), daemon=True).start()


def serve(door):
    while True:
        guest, _ = door.accept()
        try:
            if kind == "talking":
                for topic in (1, 2, 4, 5):
                    guest.send(hello[:12] + bytes([topic]) + hello[13:])
                kept.append(guest)
            peer = guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            other_attacker = int.from_bytes(peer[4:8], sys.byteorder) == uid
            if kind == "greedy" and not other_attacker:
                kept.append(guest)
                guest.settimeout(0.5)
                data, ancillary, _, _ = guest.recvmsg(1 << 16, 1 << 10)
                got[0] += len(data)
                got[1] += len(ancillary)
        except OSError:
            pass


def knock():
    memory = os.memfd_create("ngd", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, 1 << 28)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory, memory]))]
    while True:
        with open("/proc/net/unix") as file:
            found = {line.split()[-1] for line in file if prefix in line}
        for name in found:
            for _ in range(50):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guest:
                    guest.settimeout(0.05)
                    try:
                        guest.connect("\\0" + name[1:])
                        if kind == "hello":
                            guest.sendmsg([hello], rights)
                    except OSError:
                        break


def forge():
    while True:
        with open("/proc/net/unix") as file:
            found = {line.split(" @", 1)[-1].strip() for line in file if "@ngd" in line}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            for name in found:
                try:
                    channel.sendto(b"0", "\\0" + name)
                except OSError:
                    pass
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                for number in os.listdir(f"/proc/{pid}/fd"):
                    pipe = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
                    os.write(pipe, b"0\\n")
                    os.close(pipe)
            except OSError:
                pass
        time.sleep(0.01)


if kind in ("flood", "hello"):
    for _ in range(4):
        threading.Thread(target=knock, daemon=True).start()
elif kind == "forge":
    threading.Thread(target=forge, daemon=True).start()
else:
    for name in names:
        squat(name)
print("up", flush=True)
while True:
    signal.pause()
"""


# Jobs.


def meet_twice() -> dict[str, Any]:
    """Join and leave the world twice, and return the sums or the error."""
    say("coming")
    try:
        sums = []
        for _ in range(2):
            world = ngd.init()
            half = world.split(world.rank % 2)
            sums.append(int(ngd.all_reduce(10**world.rank, op="sum")))
            half.all_reduce(1, op="sum")
            ngd.shutdown()
    except ngd.errors.Error as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"sums": sums}


def leave_with_3() -> None:
    """Exit on rank 1 with code 3, some time after all ranks have joined."""
    rank = ngd.init().rank
    ngd.barrier()
    time.sleep(0.5)
    if rank == 1:
        sys.exit(3)
    ngd.barrier()
