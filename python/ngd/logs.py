# SPDX-License-Identifier: Apache-2.0
"""Logs as JSON for NGD_LOG=json: one object per line, with rank and job.

A program can write its own log lines in the same form::

    handler = logging.StreamHandler()
    handler.setFormatter(ngd.logs.JsonFormatter())
    logging.getLogger().addHandler(handler)
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from ._util import config
from .comm.launchers.detect import launch_from_environment
from .comm.launchers.job_names import label_of
from .errors import InitError

logger = logging.getLogger("ngd")


def log_fields() -> dict[str, Any]:
    """Return the fields rank, size, job and host of this process.

    Rank, size and job are from the launcher's environment variables. They are None if the variables
    are invalid.
    """
    try:
        launch = launch_from_environment(os.environ)
    except InitError:  # ngd.init() will raise it
        return log_fields_of(None, None, None)
    return log_fields_of(launch.rank, launch.size, label_of(launch.job_key))


def log_fields_of(rank: int | None, size: int | None, job: str | None) -> dict[str, Any]:
    """Return the fields rank, size, job and host of a rank on this host."""
    return {"rank": rank, "size": size, "job": job, "host": socket.gethostname()}


class JsonFormatter(logging.Formatter):
    """A formatter of Python's logging that writes each record as one line of JSON.

    The fields are time (ISO 8601, UTC), level, logger, message, rank, size, job and host. If the
    record has an exception, the field exception has the traceback. The field job identifies the
    job. It is a hash, 8 hexadecimal digits, of the key that all ranks of a job get from the
    launcher. Metrics have the same value in the label ngd_job.

    Parameters
    ----------
    place : mapping, optional
        The fields rank, size, job and host. By default they are read from the launcher's
        environment variables. If these are invalid, rank, size and job are None.

    Examples
    --------
    >>> import logging
    >>> handler = logging.StreamHandler()
    >>> handler.setFormatter(ngd.logs.JsonFormatter())
    """

    def __init__(self, place: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.place = place

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON, without the line end.

        Parameters
        ----------
        record : logging.LogRecord
            The record.
        """
        if self.place is None:
            self.place = log_fields()
        seconds = datetime.fromtimestamp(record.created, UTC)
        fields = {
            "time": seconds.isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self.place,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            fields["exception"] = record.exc_text
        return json.dumps(fields)


def line_of(message: str, level: int, name: str, place: Mapping[str, Any]) -> str:
    """Return a message as a line of JSON, for messages that do not come from logging."""
    record = logging.LogRecord(name, level, "", 0, message, None, None)
    return JsonFormatter(place).format(record)


def as_json(line: bytes, stream: str, place: Mapping[str, Any]) -> bytes:
    """Convert a line of a rank's output to a line of JSON, and return it.

    A JSON object is returned unchanged. Any other text becomes the field message of a new object.
    In this object, the field logger is `stream` ("stdout" or "stderr"), and the fields rank, size,
    job and host are those of `place`. For an empty line the result is b"".
    """
    text = line.strip()
    if not text:
        return b""
    if text[:1] == b"{" and text[-1:] == b"}":
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            return text + b"\n"
    message = text.decode(errors="backslashreplace")
    return line_of(message, logging.INFO, stream, place).encode() + b"\n"


def begin() -> None:
    """Start to log JSON lines to standard error, if NGD_LOG=json.

    The lines are the messages of the logger "ngd" and uncaught exceptions.
    """
    try:
        is_json = config.log_as_json()
    except InitError:  # ngd.init() and `ngd run` report it
        return
    if not is_json:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    sys.excepthook = log_uncaught


def log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Log an uncaught exception at level CRITICAL. `begin` sets sys.excepthook to this."""
    logger.critical("uncaught %s: %s", kind.__name__, error, exc_info=(kind, error, trace))
