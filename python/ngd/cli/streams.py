# SPDX-License-Identifier: Apache-2.0
"""The output of `ngd run`: the lines of the ranks and the launcher's own messages.

Each rank has two streams. The launcher prints their bytes unchanged, one whole line at a time and
with a prefix, so lines of several ranks do not mix. With NGD_LOG=json, each line becomes a JSON
object (ngd.logs).
"""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any, Final, TextIO

from .. import logs
from .._util import config

MAX_LINE_BYTES: Final = 1 << 16
"""The size, in bytes, at which an unfinished line is printed at once.

The launcher stores a shorter unfinished line until the rest of the line arrives.
"""
PIPE_BYTES: Final = 1 << 20
"""The size of one read, in bytes.

1 MiB is the largest size of a pipe by Linux's default limits, so one read empties the pipe.
"""


class OutputStream:
    """The standard output or standard error of a rank, which the launcher prints.

    Parameters
    ----------
    source : file
        The reading end of the rank's pipe.
    target : file
        The stream on which the launcher prints: its standard output or standard error.
    prefix : str
        The text before each line.
    rewrite : function, optional
        A function that gets a line of the rank. Its result is printed, without the prefix.
    """

    def __init__(
        self,
        source: IO[bytes],
        target: TextIO,
        prefix: str,
        rewrite: Callable[[bytes], bytes] | None = None,
    ) -> None:
        os.set_blocking(source.fileno(), False)
        self.source = source
        self.target = target.buffer
        self.prefix = prefix.encode()
        self.rewrite = rewrite
        self.unfinished = b""
        """The beginning of a line that is not complete yet."""
        self.last_byte = b"\n"
        """The last byte that was printed."""

    def forward(self, is_last: bool = False) -> bool:
        """Print the complete lines that can be read now, and return True if more may follow.

        An unfinished line at the end is printed too if its rest cannot follow: if the pipe is
        closed, or if `is_last` is True because the rank has ended.
        """
        data, may_continue = self._read()
        lines = self._split(data, is_last or not may_continue)
        if self.rewrite is not None:
            self.target.writelines(map(self.rewrite, lines))
        else:
            self._print(lines)
        self.target.flush()
        return may_continue

    def _read(self) -> tuple[bytes, bool]:
        """Return (bytes in the pipe, is_open); is_open is False if the writing end is closed."""
        try:
            data = os.read(self.source.fileno(), PIPE_BYTES)
        except BlockingIOError:
            return b"", True
        return data, bool(data)

    def _split(self, data: bytes, is_last: bool) -> list[bytes]:
        """Return the lines to print now.

        An unfinished last line is kept for the next call. It is returned now if `is_last` is True,
        or if it has MAX_LINE_BYTES or more.
        """
        # A progress bar ends its lines with a carriage return.
        lines = (self.unfinished + data).splitlines(keepends=True)
        is_unfinished = bool(lines) and not lines[-1].endswith((b"\n", b"\r"))
        keeps = not is_last and is_unfinished and len(lines[-1]) < MAX_LINE_BYTES
        self.unfinished = lines.pop() if keeps else b""
        return lines

    def _print(self, lines: list[bytes]) -> None:
        """Write the lines, each with the prefix before it.

        In two cases there is no prefix. The first is the rest of a line whose beginning was printed
        before. The second is a newline directly after a carriage return: a progress bar ends each
        line with a carriage return, and then ends the last line with a newline.
        """
        for line in lines:
            begins = self.last_byte == b"\n" or (self.last_byte == b"\r" and line != b"\n")
            self.target.write(self.prefix + line if begins else line)
            self.last_byte = line[-1:]


def streams_of(
    rank: int, process: subprocess.Popen[bytes], has_prefix: bool, log_fields: Mapping[str, Any]
) -> list[OutputStream]:
    """Return the streams of the standard output and the standard error of a rank.

    `log_fields` are the fields size, job and host that each line gets with NGD_LOG=json.
    """
    streams = []
    for source, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
        assert source is not None
        rewrite = None
        if has_prefix and config.log_as_json():
            name = "stdout" if target is sys.stdout else "stderr"
            rewrite = functools.partial(
                logs.as_json, stream=name, place={**log_fields, "rank": rank}
            )
        streams.append(OutputStream(source, target, f"[{rank}] " if has_prefix else "", rewrite))
    return streams


def print_message(line: str, log_fields: Mapping[str, Any] | None = None) -> None:
    """Print a message of the launcher on standard error, as JSON with NGD_LOG=json.

    `log_fields` are the fields rank, size, job and host of the JSON line. They are not known before
    the job starts. If `log_fields` is None, the fields rank, size and job are null.
    """
    text = f"ngd run: {line}"
    if config.log_as_json():
        fields = log_fields or logs.log_fields_of(None, None, None)
        text = logs.line_of(line, logging.WARNING, "ngd.run", fields)
    print(text, file=sys.stderr, flush=True)
