# SPDX-License-Identifier: Apache-2.0
"""Data sets in their published file formats: MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .sources import Arrays

Array = NDArray[Any]

IDX_DTYPES: Final = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}

CIFAR_IMAGE: Final = (3, 32, 32)
CIFAR_10: Final = ("cifar-10-batches-bin", [f"data_batch_{n}.bin" for n in range(1, 6)], 1)
CIFAR_100: Final = ("cifar-100-binary", ["train.bin"], 2)
"""A tuple: the folder, the files of the training set, and the number of label bytes per image.

CIFAR_10 is the same tuple for CIFAR-10.
"""

PIXEL_DTYPES: Final = ("float32", "float64", "uint8")


def mnist(
    folder: str | os.PathLike[str], *, dtype: DTypeLike = np.float32
) -> tuple[Arrays, Arrays]:  # long because each argument is described
    """Read the training set and the test set of MNIST.

    Other data sets in files of the same names and format, such as Fashion-MNIST, work too.

    Parameters
    ----------
    folder : path
        The folder of the four IDX files: train-images-idx3-ubyte, train-labels-idx1-ubyte,
        t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte. Each may be gzipped, with the suffix .gz.
    dtype : dtype, default float32
        float32 or float64: pixels in [0, 1]. uint8: the bytes of the file, from 0 to 255.

    Returns
    -------
    train, test : Arrays
        Sources with two columns: images of shape [N, height, width], and int64 labels of shape [N].

    Raises
    ------
    ValueError
        The folder or a file is missing, or a file is damaged. The numbers of images and labels
        of a set differ. The training and test images differ in height or width.

    Examples
    --------
    >>> import struct, tempfile
    >>> from pathlib import Path
    >>> from ngd import data
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("train", "t10k"):
    ...     images = struct.pack(">4B3I", 0, 0, 8, 3, 2, 1, 2) + bytes([0, 255, 51, 0])
    ...     labels = struct.pack(">4BI", 0, 0, 8, 1, 2) + bytes([7, 3])
    ...     _ = (folder / f"{name}-images-idx3-ubyte").write_bytes(images)
    ...     _ = (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels)
    >>> train, test = data.mnist(folder)
    >>> images, labels = train[[1, 0]]
    >>> images.tolist(), labels.tolist()
    ([[[0.20000000298023224, 0.0]], [[0.0, 1.0]]], [3, 7])
    """
    directory, name = Path(folder), np.dtype(dtype).name
    if name not in PIXEL_DTYPES:
        raise ValueError(
            f"data.mnist: dtype: expected one of {', '.join(PIXEL_DTYPES)}; got {name}. Convert "
            "the images with a transform."
        )
    train, test = (read_set(directory, part) for part in ("train", "t10k"))
    sizes = [images.shape[1:] for images, _ in (train, test)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            "data.mnist: expected training and test images of one size; got "
            f"{list(sizes[0])} and {list(sizes[1])} pixels in {directory}. The files belong to "
            "different data sets: download all four again."
        )
    return as_source(*train, name), as_source(*test, name)


def as_source(images: Array, labels: Array, dtype: str) -> Arrays:
    """Return a source of images and labels, with pixels of the given dtype.

    If `dtype` is a float dtype, the pixels are divided by 255, to be in [0, 1]. For "uint8" they
    are unchanged.
    """
    if dtype != "uint8":
        images = images.astype(dtype)
        images /= 255
    return Arrays(images, labels.astype(np.int64))


def find(folder: Path, name: str) -> Path:
    """Return the path of the file `name` of MNIST in a folder, or of the file with ".gz" added."""
    if not folder.is_dir():
        raise ValueError(
            f"data.mnist: expected a folder with the IDX files; got {folder}, which is not a "
            "directory. Give the folder that holds train-images-idx3-ubyte."
        )
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise ValueError(
        f"data.mnist: expected {name} or {name}.gz in {folder}; got neither. Download the four "
        "files of the data set into this folder."
    )


def read_set(folder: Path, name: str) -> tuple[Array, Array]:
    """Return the images and labels of MNIST's set "train" or "t10k" (the test set)."""
    images_path = find(folder, f"{name}-images-idx3-ubyte")
    labels_path = find(folder, f"{name}-labels-idx1-ubyte")
    images, labels = (read_array("data.mnist", path) for path in (images_path, labels_path))
    if images.ndim != 3 or images.dtype != np.uint8 or images.size == 0:
        raise ValueError(
            f"data.mnist: {images_path}: expected grey images, uint8[N, height, width]; got "
            f"{describe(images)}. Is it another file under this name?"
        )
    if labels.ndim != 1 or labels.dtype != np.uint8:
        raise ValueError(
            f"data.mnist: {labels_path}: expected labels, uint8[N]; got {describe(labels)}. Is it "
            "another file under this name?"
        )
    if len(images) != len(labels):
        raise ValueError(
            f"data.mnist: expected one label per image; got {len(images)} images in {images_path} "
            f"and {len(labels)} labels in {labels_path}. Download both files again."
        )
    return images, labels


def read_idx(path: str | os.PathLike[str]) -> Array:
    """Read an array from a file in IDX format, the format of MNIST.

    Parameters
    ----------
    path : path
        The file. A gzipped file is decompressed, under any name.

    Returns
    -------
    array
        An array of the shape and dtype in the file's header. The dtype is big-endian, as in the
        file.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        The file is not in IDX format, is truncated, too long, or is a damaged gzip file.

    Notes
    -----
    The header (http://yann.lecun.com/exdb/mnist) has two zero bytes, a code of the dtype, the
    number of axes, and the length of each axis as a big-endian 32-bit integer.

    Examples
    --------
    >>> import struct, tempfile
    >>> from ngd import data
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(struct.pack(">4BI", 0, 0, 8, 1, 3) + bytes([5, 6, 7]))
    ...     file.flush()
    ...     values = data.read_idx(file.name)
    >>> values.tolist()
    [5, 6, 7]
    """
    return read_array("data.read_idx", path)


def read_array(call: str, path: str | os.PathLike[str]) -> Array:
    """Return the array in a file of MNIST's format IDX.

    `call` is the name of the public function, such as "data.read_idx", for error messages.
    """
    content = Path(path).read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{call}: {path}: expected a whole gzip file; got a damaged or truncated "
                f"one ({error}). Download it again."
            ) from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_DTYPES:
        first = f"the first bytes {content[:4].hex(' ')}" if content else "an empty file"
        raise ValueError(
            f"{call}: {path}: expected a file in IDX format; got {first}: it is not an IDX "
            "file. Download it again, and check that it is not a web page."
        )
    dtype, num_axes = np.dtype(IDX_DTYPES[content[2]]), content[3]
    start = 4 + 4 * num_axes
    if len(content) < start:
        raise ValueError(
            f"{call}: {path}: expected a header of {start} bytes; got a truncated file of "
            f"{len(content)} bytes. Download it again."
        )
    shape = [int(n) for n in np.frombuffer(content, ">u4", num_axes, 4)]
    expected = start + dtype.itemsize * int(np.prod(shape, dtype=object))
    if len(content) != expected:
        fault = "a truncated one" if len(content) < expected else "one that is too long"
        raise ValueError(
            f"{call}: {path}: expected a file of {expected} bytes by its header; got "
            f"{fault} of {len(content)} bytes. Download it again."
        )
    return np.frombuffer(content, dtype, offset=start).reshape(shape)


def cifar(folder: str | os.PathLike[str]) -> tuple[Arrays, Arrays]:
    """Read the training set and the test set of CIFAR-10 or CIFAR-100 in the binary version.

    Parameters
    ----------
    folder : path
        The folder of the .bin files, or the folder that holds cifar-10-batches-bin or
        cifar-100-binary.

    Returns
    -------
    train, test : Arrays
        Sources with two columns: uint8 images of shape [N, 32, 32, 3], and int64 labels of shape
        [N]. The labels of CIFAR-100 are its 100 fine classes.

    Raises
    ------
    ValueError
        The folder does not hold the binary version, or a file is damaged. The Python version is not
        read, because unpickling a file runs code that is in it.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from ngd import data
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name in ("train.bin", "test.bin"):  # CIFAR-100, one black image of class 7
    ...     _ = (folder / name).write_bytes(bytes([1, 7]) + bytes(3072))
    >>> train, test = data.cifar(folder)
    >>> images, labels = train[[0]]
    >>> images.shape, labels.tolist()
    ((1, 32, 32, 3), [7])
    """
    directory = Path(folder)
    for inner, training, label_bytes in (CIFAR_10, CIFAR_100):
        for candidate in (directory, directory / inner):
            if (candidate / training[0]).is_file():
                test = "test_batch.bin" if label_bytes == 1 else "test.bin"
                return read_cifar(candidate, training, label_bytes), read_cifar(
                    candidate, [test], label_bytes
                )
    pickles = (
        (*directory.rglob("data_batch_1"), *directory.rglob("meta")) if directory.is_dir() else ()
    )
    content = "the Python version, which is pickles" if pickles else "no CIFAR files"
    raise ValueError(
        f"data.cifar: expected the binary version, {CIFAR_10[1][0]} or {CIFAR_100[1][0]}, in "
        f"{directory}; got {content}. Download the binary version of the data set."
    )


def read_cifar(folder: Path, names: list[str], label_bytes: int) -> Arrays:
    """Return a source of the images and labels in some files of CIFAR.

    A record of a file has one or two labels, and three planes of pixels. The last label is used: in
    CIFAR-100 it is the fine class.
    """
    record_bytes = label_bytes + int(np.prod(CIFAR_IMAGE))
    parts = []
    for path in (folder / name for name in names):
        if not path.is_file():
            raise ValueError(
                f"data.cifar: expected {path.name} in {folder}; got no such file. Unpack the whole "
                "archive."
            )
        content = np.fromfile(path, np.uint8)
        if not content.size or content.size % record_bytes:
            raise ValueError(
                f"data.cifar: {path}: expected a multiple of {record_bytes} bytes, one record per "
                f"image; got {content.size} bytes. Download the data set again."
            )
        parts.append(content.reshape(-1, record_bytes))
    records = np.concatenate(parts)
    planes = records[:, label_bytes:].reshape(-1, *CIFAR_IMAGE)
    images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return Arrays(images, records[:, label_bytes - 1].astype(np.int64))


def describe(array: Array) -> str:
    """Return the dtype and shape of an array, for a message."""
    return f"{array.dtype.name}{list(array.shape)}"
