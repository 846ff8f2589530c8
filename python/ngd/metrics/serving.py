# SPDX-License-Identifier: Apache-2.0
"""One HTTP port per host that serves the metrics of all ranks of a job on this host.

The ranks find each other by the name of an abstract Unix socket. The name is a hash of the job key,
which is equal on all ranks of the job and differs between jobs. The first rank that binds the name
is the leader: it serves the port, and the other ranks connect to it. For each scrape the leader
sends a request to all connected ranks at once. Each rank answers with its own metrics as text, and
the leader joins the texts. Between scrapes no rank does anything.

If a rank ends, the kernel closes its connection. If the leader ends, another rank binds the name
and is the new leader. An abstract socket is not a file, so no file remains after the job.
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
from ..comm.launchers.detect import launch_from_environment
from ..comm.launchers.job_names import label_of, name_of_metrics
from ..comm.launchers.process_tree import refuse_inherited_rank
from ..errors import InitError
from .families import NgdCollector

logger = logging.getLogger("ngd")

DEADLINE_SECONDS: Final = 2.0
"""The maximum time in seconds that a scrape waits for the other ranks of the host.

The result of the scrape omits ranks that answer later.
"""
RETRY_SECONDS: Final = 5.0
"""The time between two attempts to bind the HTTP port if it is in use, in seconds."""
REJOIN_SECONDS: Final = 0.1
"""The time in seconds that a rank waits after the loss of its connection to the leader.

Then the rank looks for the leader again. The leader is the rank that serves the port of the host.
"""
ANSWER: Final = struct.Struct("<qq")
"""The header of a rank's answer: the rank, and the length of its metrics' text in bytes.

The answer goes to the leader, which is the rank that serves the port of the host.
"""
CREDENTIALS: Final = struct.Struct("3i")
"""The layout of the socket option SO_PEERCRED: the ids of process, user and group."""
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
FAMILY_START: Final = "\n# HELP "
"""The text at which each metric family begins in the text format. It occurs nowhere else."""


class Labelled(Collector):
    """All metrics of this process, with labels of its rank and job.

    The metrics are those of `collector`, which may include the metrics of the user's program.
    """

    def __init__(self, collector: Collector, labels: dict[str, str]) -> None:
        self.collector, self.labels = collector, labels

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with the labels in `self.labels` added.

        If a metric has a label of the same name, that label is renamed to exported_NAME, as
        Prometheus does.
        """
        for metric in self.collector.collect():
            labelled = Metric(metric.name, metric.documentation, metric.type)
            for sample in metric.samples:
                labels = {
                    f"exported_{k}" if k in self.labels else k: v for k, v in sample.labels.items()
                }
                labelled.samples.append(sample._replace(labels={**labels, **self.labels}))
            yield labelled


class Rank:
    """A rank with metrics.

    One rank per host is the leader. It serves the metrics of all ranks of the host on an HTTP port.
    The other ranks send their metrics when the leader requests them.
    """

    def __init__(self, where: tuple[str, int], launch: Launch) -> None:
        self.where, self.rank, self.size = where, launch.rank, launch.size
        self.job = label_of(launch.job_key)
        self.name = name_of_metrics(launch)
        self.collector = NgdCollector(lambda: self.size)
        REGISTRY.register(self.collector)
        self.text_lock = threading.Lock()
        self.has_warned = False
        self.leader = self.find_leader()

    def begin(self) -> None:
        """Start the thread of this rank that serves or sends metrics.

        The leader is the rank that serves the HTTP port of the host. In the leader, this method
        first tries once to bind the port, and the thread serves it. In another rank, the thread
        sends the metrics of this rank when the leader requests them.
        """
        if isinstance(self.leader, Leader):
            self.leader.listen()
        threading.Thread(target=self.run, name="ngd-metrics", daemon=True).start()

    def run(self) -> None:
        """Send the metrics of this rank to the leader, or serve the HTTP port as the leader.

        The leader is the rank that serves the port of the host. It requests the metrics from the
        other ranks. If the connection to the leader is lost, look for the leader again. If this
        rank is or becomes the leader, serve the port until the process ends.
        """
        while isinstance(self.leader, socket.socket):
            with contextlib.suppress(OSError), self.leader as leader:
                while leader.recv(1):
                    text = self.text()
                    leader.sendall(ANSWER.pack(self.rank, len(text)) + text)
            time.sleep(REJOIN_SECONDS)
            self.leader = self.find_leader()
        if self.leader is not None:
            self.leader.run()

    def find_leader(self) -> socket.socket | Leader | None:
        """Return a socket that is connected to the leader, the rank that serves the HTTP port.

        If the host has no leader yet, this rank becomes the leader, and the result is a Leader.
        Return None if neither succeeds within DEADLINE_SECONDS, or if the process at the other end
        of the socket belongs to another user. Scrapes then omit this rank.
        """
        limit = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < limit:
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(DEADLINE_SECONDS)
            try:
                connection.connect(self.name)
            except OSError:  # no process listens at the name, or its queue is full
                connection.close()
            else:
                if is_same_user(connection):
                    connection.settimeout(None)
                    return connection
                connection.close()
                break
            with contextlib.suppress(OSError):  # another rank has the name, and will listen soon
                return Leader(self)
            time.sleep(0.01)
        logger.warning(
            "NGD_METRICS: this rank cannot connect to the rank that serves the metrics of this "
            "host, so its metrics are missing"
        )
        return None

    def text(self) -> bytes:
        """Return the metrics of this rank as text, those of ngd and those of the user's program.

        If a metric of the user raises an error, return only those of ngd.
        """
        labels = {"rank": str(self.rank), "ngd_job": self.job}
        with self.text_lock:
            try:
                return generate_latest(Labelled(REGISTRY, labels))
            except Exception as error:
                if not self.has_warned:
                    logger.warning("NGD_METRICS: a metric that is not ngd's fails: %r", error)
                self.has_warned = True
                return generate_latest(Labelled(self.collector, labels))

    def end(self) -> None:
        """Prevent further reads of the metrics at the end of the process.

        The method `text` reads the metrics from the C++ core, which is about to end. So this method
        takes the lock that `text` needs, and does not release it. It waits at most DEADLINE_SECONDS
        for a call of `text` that runs now.
        """
        self.text_lock.acquire(timeout=DEADLINE_SECONDS)


class Leader:
    """The rank that serves the HTTP port of a host, with the metrics of all connected ranks."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.listener = socket.socket(socket.AF_UNIX)
        try:
            self.listener.bind(rank.name)
            self.listener.listen(socket.SOMAXCONN)
        except OSError:
            self.listener.close()
            raise
        self.listener.setblocking(False)
        self.connections: list[socket.socket] = []
        self.scrape_lock = threading.Lock()
        self.server: Server | None = None
        self.has_warned = False

    def listen(self) -> None:
        """Bind the port. Log a warning the first time that this fails."""
        host, port = self.rank.where
        try:
            self.server = Server(self)
        except OSError as error:
            if not self.has_warned:
                logger.warning(
                    "NGD_METRICS: cannot bind port %d at %s (%s), so the metrics of this job are "
                    "not served; trying again every %d s",
                    *(port, host, error.strerror, RETRY_SECONDS),
                )
            self.has_warned = True
        else:
            logger.info("metrics at http://%s:%d/metrics", host, self.server.server_port)

    def run(self) -> None:
        """Serve the HTTP port until the process ends.

        If the port is not bound yet, first try to bind it every RETRY_SECONDS.
        """
        while self.server is None:
            self.listen()
            if self.server is None:
                time.sleep(RETRY_SECONDS)
        self.server.serve_forever()

    def scrape(self) -> bytes:
        """Return the metrics of all ranks as text, in the order of the ranks."""
        with self.scrape_lock:
            self.accept_ranks()
            limit = time.monotonic() + DEADLINE_SECONDS
            requested = [each for each in list(self.connections) if self.request_text(each)]
            texts = {}
            own_text = self.rank.text()
            for connection in requested:
                try:
                    rank, text = receive_answer(connection, limit)
                    texts[rank] = text
                except OSError:  # the rank has ended, or is late and will connect again
                    self.drop(connection)
            texts[self.rank.rank] = own_text
            return join_texts([texts[rank].decode() for rank in sorted(texts)]).encode()

    def accept_ranks(self) -> None:
        """Accept the connections that ranks have opened since the last scrape."""
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self.listener.accept()
                if is_same_user(connection):
                    self.connections.append(connection)
                else:
                    connection.close()

    def request_text(self, connection: socket.socket) -> bool:
        """Send a rank the request for the text of its metrics, and return True.

        If this fails, drop the connection to the rank and return False.
        """
        try:
            connection.settimeout(DEADLINE_SECONDS)
            connection.sendall(b"?")
        except OSError:
            self.drop(connection)
            return False
        return True

    def drop(self, connection: socket.socket) -> None:
        """Close the connection to a rank, and remove it from the connections."""
        connection.close()
        self.connections.remove(connection)

    def close(self) -> None:
        """Close all sockets, in a forked child.

        The parent still uses its own copies of the sockets.
        """
        for each in (
            self.listener,
            *self.connections,
            *([self.server.socket] if self.server else []),
        ):
            each.close()


class Server(ThreadingHTTPServer):
    """The HTTP server for the metrics of a host. It runs in one rank of the host, the leader."""

    daemon_threads = True
    allow_reuse_port = False  # with it, two jobs could share the port and mix their scrapes

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        host, port = leader.rank.where
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # Prefer IPv4, because localhost may be both 127.0.0.1 and ::1.
        addresses.sort(key=lambda each: each[0] != socket.AF_INET)
        self.address_family, *_, address = addresses[0]
        super().__init__(address[:2], Page)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        """Bind the port. In contrast to the base class, do not look up the name of this host."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error of a request, unless the client has disconnected."""
        if not isinstance(sys.exc_info()[1], OSError):
            logger.warning("NGD_METRICS: a scrape failed", exc_info=True)


class Page(BaseHTTPRequestHandler):
    """The handler of an HTTP request. It sends the metrics of all ranks of the host."""

    timeout = 10  # in seconds, after which a silent client is disconnected

    def do_GET(self) -> None:
        """Send the page of metrics, or the status 404 for another path."""
        assert isinstance(self.server, Server)
        is_found = self.path.partition("?")[0] in ("/", "/metrics")
        text = self.server.leader.scrape() if is_found else b"see /metrics\n"
        self.send_response(200 if is_found else 404)
        self.send_header("Content-Type", TEXT)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing. The base class would write one line per request."""


def is_same_user(peer: socket.socket) -> bool:
    """Return True if the process at the other end of a Unix socket belongs to the same user."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return bool(CREDENTIALS.unpack(credentials)[1] == os.getuid())


def receive_answer(connection: socket.socket, limit: float) -> tuple[int, bytes]:
    """Receive the metrics of another rank, and return (its rank, the metrics as text).

    Raise OSError if they are incomplete at the time `limit`, a value of time.monotonic().
    """
    rank, length = ANSWER.unpack(receive_bytes(connection, ANSWER.size, limit))
    return rank, receive_bytes(connection, length, limit)


def receive_bytes(connection: socket.socket, length: int, limit: float) -> bytes:
    """Receive `length` bytes; OSError if they have not arrived at the time `limit`.

    `limit` is a value of time.monotonic().
    """
    parts = []
    while length:
        connection.settimeout(max(limit - time.monotonic(), 0.001))
        parts.append(connection.recv(length))
        if not parts[-1]:
            raise ConnectionResetError("the rank closed the connection")
        length -= len(parts[-1])
    return b"".join(parts)


def join_texts(texts: Iterable[str]) -> str:
    """Join the texts of ranks: each metric family occurs once, with the samples of all texts."""
    families: dict[str, list[str]] = {}
    for text in texts:
        for block in f"\n{text}".split(FAMILY_START)[1:]:
            about, type_, samples = (*block.rstrip("\n").split("\n", 2), "")[:3]
            head = f"# HELP {about}\n{type_}"
            lines = families.setdefault(about.partition(" ")[0], [head])
            lines += [samples] if samples else []
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


_lock = threading.Lock()
_rank: Rank | None = None
_is_child = False
"""True in a child process that has inherited the environment of a rank but is not a rank.

It serves no metrics.
"""


def begin(where: tuple[str, int], size: int | None) -> None:
    """Start to serve the metrics of the host at the address and port `where`.

    If another rank of the host serves them, this rank sends its metrics to that rank. `size` is the
    number of ranks in the world. If it is None, the number from the launcher or from an earlier
    call stays. A second call only sets `size`.
    """
    global _rank, _is_child
    with _lock:
        if _is_child:
            return
        if _rank is None:
            launch = launch_from_environment(os.environ)
            try:
                if launch.size > 1:
                    refuse_inherited_rank(launch)
            except InitError:
                _is_child = True
                return
            _rank = Rank(where, launch)
            atexit.register(_rank.end)
            _rank.begin()
        if size is not None:
            _rank.size = size


def address() -> tuple[str, int] | None:
    """Return the IP address and the port at which this process serves the metrics of its host.

    Return None if another rank serves them, or if the port is not bound.
    """
    leader = None if _rank is None else _rank.leader
    server = leader.server if isinstance(leader, Leader) else None
    return None if server is None else (server.server_name, server.server_port)


def _after_fork() -> None:
    """Close the inherited sockets in a forked child, which serves no metrics."""
    global _lock, _rank, _is_child
    _lock = threading.Lock()
    if _rank is None:
        return
    if _rank.leader is not None:
        _rank.leader.close()
    atexit.unregister(_rank.end)
    _rank, _is_child = None, True


os.register_at_fork(after_in_child=_after_fork)
