# SPDX-License-Identifier: Apache-2.0
"""One port a host: the ranks of a job meet at a name of the kernel's, and one of them serves all.

The name is an abstract Unix socket's, made of the job's key: whoever binds it first serves, and the
others connect to it. A scrape asks all of them at once; each writes its own metrics as text, and
who serves puts the texts together. Between scrapes nobody does anything. Who dies closes its
connection, and where that was the one who served, the others look for the name again. Nothing is a
file, so nothing is left behind.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import socketserver
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import REGISTRY, Metric, generate_latest
from prometheus_client.registry import Collector

from ..comm.launchers.base import Launch
from ..comm.launchers.detect import told_by_launcher
from ..comm.launchers.job_names import label_of, name_of_metrics
from ..comm.launchers.process_tree import refuse_inherited_place
from ..errors import InitError
from .families import NgdCollector

logger = logging.getLogger("ngd")

DEADLINE: Final = 2.0
"""Seconds that the ranks have to answer a scrape; who does not is left out of it."""
RETRY: Final = 5.0
"""Seconds until a port that was taken is tried again."""
AGAIN: Final = 0.1
"""Seconds until a rank that has lost who served looks for another one."""
ANSWER: Final = struct.Struct("<qq")
"""Before a text: the rank, and the text's length in bytes."""
CREDENTIALS: Final = struct.Struct("3i")
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
FAMILY: Final = "\n# HELP "
"""What each family begins with; no line of a text has it inside."""


class Labelled(Collector):
    """All metrics of this process, the user's among them, with labels that say whose they are."""

    def __init__(self, collector: Collector, labels: dict[str, str]) -> None:
        self.collector, self.labels = collector, labels

    def collect(self) -> Iterator[Metric]:
        """A label that a metric has already is kept as exported_NAME, as Prometheus does it."""
        for metric in self.collector.collect():
            labelled = Metric(metric.name, metric.documentation, metric.type)
            for sample in metric.samples:
                own = {
                    f"exported_{k}" if k in self.labels else k: v for k, v in sample.labels.items()
                }
                labelled.samples.append(sample._replace(labels={**own, **self.labels}))
            yield labelled


class Rank:
    """A rank: it writes its metrics for who serves those of its host, or serves them itself."""

    def __init__(self, where: tuple[str, int], launch: Launch) -> None:
        self.where, self.rank, self.size = where, launch.rank, launch.size
        self.job = label_of(launch.job_key)
        self.name = name_of_metrics(launch)
        self.collector = NgdCollector(lambda: self.size)
        REGISTRY.register(self.collector)
        self.writing = threading.Lock()
        self.complained = False
        self.leader = self.meet()

    def begin(self) -> None:
        """Serve, or answer who does; the port is taken before this returns."""
        if isinstance(self.leader, Leader):
            self.leader.listen()
        threading.Thread(target=self.run, name="ngd-metrics", daemon=True).start()

    def run(self) -> None:
        """Answer who serves, for as long as there is one; then serve."""
        while isinstance(self.leader, socket.socket):
            with contextlib.suppress(OSError), self.leader as leader:
                while leader.recv(1):
                    text = self.text()
                    leader.sendall(ANSWER.pack(self.rank, len(text)) + text)
            time.sleep(AGAIN)
            self.leader = self.meet()
        if self.leader is not None:
            self.leader.run()

    def meet(self) -> socket.socket | Leader | None:
        """A connection to who serves; or this rank does, since it has taken the name."""
        limit = time.monotonic() + DEADLINE
        while time.monotonic() < limit:
            other = socket.socket(socket.AF_UNIX)
            other.settimeout(DEADLINE)
            try:
                other.connect(self.name)
            except OSError:  # nobody listens there, yet or any more; or others have filled it
                other.close()
            else:
                if is_mine(other):
                    other.settimeout(None)
                    return other
                other.close()
                break
            with contextlib.suppress(OSError):  # another one was first, and has to listen yet
                return Leader(self)
            time.sleep(0.01)
        logger.warning("NGD_METRICS: no rank of this host could be met; this one has no metrics")
        return None

    def text(self) -> bytes:
        """What this rank has to say."""
        labels = {"rank": str(self.rank), "ngd_job": self.job}
        with self.writing:
            try:
                return generate_latest(Labelled(REGISTRY, labels))
            except Exception as error:
                if not self.complained:
                    logger.warning("NGD_METRICS: a metric beside those of ngd fails: %r", error)
                self.complained = True
                return generate_latest(Labelled(self.collector, labels))

    def end(self) -> None:
        """From here on nothing is written: the core is about to end."""
        self.writing.acquire(timeout=DEADLINE)


class Leader:
    """Who serves: asks the ranks that have connected, and answers Prometheus."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.meeting = socket.socket(socket.AF_UNIX)
        try:
            self.meeting.bind(rank.name)
            self.meeting.listen(socket.SOMAXCONN)
        except OSError:
            self.meeting.close()
            raise
        self.meeting.setblocking(False)
        self.members: list[socket.socket] = []
        self.scraping = threading.Lock()
        self.server: Server | None = None
        self.warned = False

    def listen(self) -> None:
        """Take the port, or say once why that cannot be done."""
        host, port = self.rank.where
        try:
            self.server = Server(self)
        except OSError as error:
            if not self.warned:
                logger.warning(
                    "NGD_METRICS: port %d at %s cannot be had (%s), so nobody sees the metrics of "
                    "this job; it is tried again every %d s",
                    *(port, host, error.strerror, RETRY),
                )
            self.warned = True
        else:
            logger.info("metrics at http://%s:%d/metrics", host, self.server.server_port)

    def run(self) -> None:
        """Serve until the process ends."""
        while self.server is None:
            self.listen()
            if self.server is None:
                time.sleep(RETRY)
        self.server.serve_forever()

    def scrape(self) -> bytes:
        """The metrics of all ranks, in their order."""
        with self.scraping:
            self.admit()
            limit = time.monotonic() + DEADLINE
            asked = [member for member in list(self.members) if self.ask(member)]
            texts = {}
            mine = self.rank.text()
            for member in asked:
                try:
                    rank, text = answer(member, limit)
                    texts[rank] = text
                except OSError:  # it has gone, or is too late: then it connects again
                    self.drop(member)
            texts[self.rank.rank] = mine
            return together([texts[rank].decode() for rank in sorted(texts)]).encode()

    def admit(self) -> None:
        """Take in who has connected since."""
        with contextlib.suppress(BlockingIOError):
            while True:
                member, _ = self.meeting.accept()
                if is_mine(member):
                    self.members.append(member)
                else:
                    member.close()

    def ask(self, member: socket.socket) -> bool:
        """Whether a rank is there still to be asked."""
        try:
            member.settimeout(DEADLINE)
            member.sendall(b"?")
        except OSError:
            self.drop(member)
            return False
        return True

    def drop(self, member: socket.socket) -> None:
        """Be done with it."""
        member.close()
        self.members.remove(member)

    def close(self) -> None:
        """Of a child that was forked: these are its parent's."""
        for each in (self.meeting, *self.members, *([self.server.socket] if self.server else [])):
            each.close()


class Server(ThreadingHTTPServer):
    """Answers GET /metrics."""

    daemon_threads = True
    allow_reuse_port = False  # two jobs would share the port, and a scrape would find either

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        host, port = leader.rank.where
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found.sort(key=lambda each: each[0] != socket.AF_INET)  # localhost may be ::1, too
        self.address_family, *_, address = found[0]
        super().__init__(address[:2], Page)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Without a look at the name service for this host's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no news."""
        if not isinstance(sys.exc_info()[1], OSError):
            logger.warning("NGD_METRICS: a scrape failed", exc_info=True)


class Page(BaseHTTPRequestHandler):
    """A request."""

    timeout = 10  # seconds, for who connects and says nothing

    def do_GET(self) -> None:
        """The page of metrics."""
        assert isinstance(self.server, Server)
        found = self.path.partition("?")[0] in ("/", "/metrics")
        text = self.server.leader.scrape() if found else b"see /metrics\n"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", TEXT)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def is_mine(peer: socket.socket) -> bool:
    """Whether a process of this user is at the other end, as the kernel says."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return bool(CREDENTIALS.unpack(credentials)[1] == os.getuid())


def answer(member: socket.socket, limit: float) -> tuple[int, bytes]:
    """What a rank answers until `limit`: its number, and its metrics. OSError where it does not."""
    rank, length = ANSWER.unpack(receive(member, ANSWER.size, limit))
    return rank, receive(member, length, limit)


def receive(member: socket.socket, length: int, limit: float) -> bytes:
    """So many bytes."""
    parts = []
    while length:
        member.settimeout(max(limit - time.monotonic(), 0.001))
        parts.append(member.recv(length))
        if not parts[-1]:
            raise ConnectionResetError("the rank has gone")
        length -= len(parts[-1])
    return b"".join(parts)


def together(texts: Iterable[str]) -> str:
    """One text of several: each family once, with the samples of all."""
    families: dict[str, list[str]] = {}
    for text in texts:
        for block in f"\n{text}".split(FAMILY)[1:]:
            about, type_, samples = (*block.rstrip("\n").split("\n", 2), "")[:3]
            head = f"# HELP {about}\n{type_}"
            lines = families.setdefault(about.partition(" ")[0], [head])
            lines += [samples] if samples else []
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


_entrance = threading.Lock()
_here: Rank | None = None
_is_child = False
"""Of a rank: it has the rank's environment, and is no rank."""


def begin(where: tuple[str, int], size: int | None) -> None:
    """Take part, or say how many ranks there are now."""
    global _here, _is_child
    with _entrance:
        if _is_child:
            return
        if _here is None:
            launch = told_by_launcher(os.environ)
            try:
                if launch.size > 1:
                    refuse_inherited_place(launch)
            except InitError:
                _is_child = True
                return
            _here = Rank(where, launch)
            atexit.register(_here.end)
            _here.begin()
        if size is not None:
            _here.size = size


def address() -> tuple[str, int] | None:
    """Where this process serves."""
    leader = None if _here is None else _here.leader
    server = leader.server if isinstance(leader, Leader) else None
    return None if server is None else (server.server_name, server.server_port)


def _after_fork() -> None:
    """What the parent has stays the parent's."""
    global _entrance, _here, _is_child
    _entrance = threading.Lock()
    if _here is None:
        return
    if _here.leader is not None:
        _here.leader.close()
    atexit.unregister(_here.end)
    _here, _is_child = None, True


os.register_at_fork(after_in_child=_after_fork)
