# SPDX-License-Identifier: Apache-2.0
"""Messages of any size between a loader and its workers.

A message is a memfd, a file in memory. Its descriptor is sent over a Unix socket with one byte. The
file starts with the number of parts and the size of each part in bytes. The parts follow at aligned
offsets: a pickle without the data of its arrays, and then this data. The sender never waits for the
receiver, so two processes that send to each other cannot block.
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
"""The alignment, in bytes, of the parts of a message: its pickle and its arrays."""
NUMBER: Final = struct.Struct("<q")


def pack(value: Any) -> int:
    """Write a message to a new memfd, and return its descriptor, which the caller must close."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, 5, buffer_callback=buffers.append)
    parts = [memoryview(pickled), *(one.raw() for one in buffers)]
    numbers = [len(parts), *(part.nbytes for part in parts)]
    head = b"".join(map(NUMBER.pack, numbers))
    file = os.memfd_create("ngd-data")
    try:
        offset = write(file, memoryview(head), 0)
        for part in parts:
            offset = write(file, part, align(offset))
    except BaseException:
        os.close(file)
        raise
    return file


def align(offset: int) -> int:
    """Return the smallest multiple of ALIGNMENT that is at least `offset`."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def write(file: int, data: memoryview, offset: int) -> int:
    """Write all data to the file at an offset, and return the offset after the data."""
    while len(data):
        num_written = os.pwrite(file, data, offset)
        data, offset = data[num_written:], offset + num_written
    return offset


def unpack(file: int, unpickler: type[pickle.Unpickler], in_place: bool = False) -> Any:
    """Return the value of a message, and close its file.

    The arrays in the value are copies in this process. With in_place they are views of the file,
    and the operating system copies a page when this process first writes to it.
    """
    content: Any
    try:
        size = os.fstat(file).st_size
        if in_place:
            content = np.frombuffer(mmap.mmap(file, size, access=mmap.ACCESS_COPY), np.uint8)
        else:
            content = np.empty(size, np.uint8)
            view, offset = memoryview(content), 0
            while offset < size:
                offset += os.preadv(file, [view[offset:]], offset)
    finally:
        os.close(file)
    (count,) = NUMBER.unpack_from(content)
    offset, parts = NUMBER.size * (count + 1), []
    for (length,) in NUMBER.iter_unpack(content[NUMBER.size : offset]):
        offset = align(offset)
        parts.append(content[offset : offset + length])
        offset += length
    return unpickler(io.BytesIO(parts[0]), buffers=parts[1:]).load()


def send(link: socket.socket, file: int) -> None:
    """Send the descriptor of a message's file over a socket. The caller closes the file."""
    link.sendmsg([b"m"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))])


def receive(link: socket.socket) -> int:
    """Return the descriptor of the next message's file; raise EOFError if the socket was closed."""
    data, ancillary, _, _ = link.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    if not data:
        raise EOFError("the socket was closed")
    if not ancillary:  # the kernel drops it if too many files are open
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    files = array.array("i", ancillary[0][2])
    return files[0]
