# SPDX-License-Identifier: Apache-2.0
"""Messages of any size between a loader and its workers.

A message is a memfd, whose descriptor is sent over a Unix socket with one byte. The file holds a
pickle, and after it the aligned bytes of the arrays. The sender never waits for the receiver, so
two processes that send to each other cannot block.
"""

from __future__ import annotations

import array
import errno
import io
import mmap
import os
import pickle
import socket
import struct
from typing import Any, Final

import numpy as np

ALIGNMENT: Final = 64
NUMBER: Final = struct.Struct("<q")


def pack(value: Any) -> int:
    """Return the descriptor of a message's file, which the caller closes."""
    arrays: list[pickle.PickleBuffer] = []
    text = pickle.dumps(value, 5, buffer_callback=arrays.append)
    parts = [memoryview(text), *(one.raw() for one in arrays)]
    numbers = [len(parts), *(part.nbytes for part in parts)]
    head = b"".join(map(NUMBER.pack, numbers))
    file = os.memfd_create("ngd-data")
    try:
        at = write(file, memoryview(head), 0)
        for part in parts:
            at = write(file, part, aligned(at))
    except BaseException:
        os.close(file)
        raise
    return file


def aligned(at: int) -> int:
    """Return the first aligned offset at or after `at`."""
    return -(-at // ALIGNMENT) * ALIGNMENT


def write(file: int, data: memoryview, at: int) -> int:
    """Write all data at an offset and return the offset of its end."""
    while len(data):
        written = os.pwrite(file, data, at)
        data, at = data[written:], at + written
    return at


def unpack(file: int, unpickler: type[pickle.Unpickler], in_place: bool = False) -> Any:
    """Return the value of a message and close its file.

    The arrays are copies in this process. With in_place they are views of the file, and a page is
    copied when it is written to.
    """
    whole: Any
    try:
        size = os.fstat(file).st_size
        if in_place:
            whole = np.frombuffer(mmap.mmap(file, size, access=mmap.ACCESS_COPY), np.uint8)
        else:
            whole = np.empty(size, np.uint8)
            view, at = memoryview(whole), 0
            while at < size:
                at += os.preadv(file, [view[at:]], at)
    finally:
        os.close(file)
    (count,) = NUMBER.unpack_from(whole)
    at, parts = NUMBER.size * (count + 1), []
    for (length,) in NUMBER.iter_unpack(whole[NUMBER.size : at]):
        at = aligned(at)
        parts.append(whole[at : at + length])
        at += length
    return unpickler(io.BytesIO(parts[0]), buffers=parts[1:]).load()


def send(link: socket.socket, file: int) -> None:
    """Send a message. The caller closes the file."""
    link.sendmsg([b"m"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))])


def receive(link: socket.socket) -> int:
    """Return the file of the next message; raise EOFError if the socket was closed."""
    data, beside, _, _ = link.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise EOFError("the socket was closed")
    if not beside:  # this process has no descriptor left
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    files = array.array("i", beside[0][2])
    return files[0]
