# SPDX-License-Identifier: Apache-2.0
"""Tests of sources: the contents of their files, and the errors for damaged files."""

from __future__ import annotations

import gzip
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ngd import data


def test_arrays_give_rows() -> None:
    x, y = np.arange(12).reshape(6, 2), np.arange(6)
    source = data.Arrays(x, y)
    assert len(source) == 6
    rows, labels = source[np.array([4, 0])]
    assert rows.tolist() == [[8, 9], [0, 1]]
    assert labels.tolist() == [4, 0]


def test_arrays_of_different_lengths_are_rejected() -> None:
    for columns in ((), (np.zeros(3), np.zeros((2, 3))), (np.zeros(()),)):
        with pytest.raises(ValueError, match=r"data\.Arrays: expected"):
            data.Arrays(*columns)


@pytest.mark.parametrize(
    ("code", "dtype"), [(8, "u1"), (9, "i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")]
)
def test_idx_files_of_all_dtypes_are_read(tmp_path: Path, code: int, dtype: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    header = struct.pack(">BBBB3I", 0, 0, code, 3, 2, 3, 4)
    (tmp_path / "file").write_bytes(header + array.tobytes())
    np.testing.assert_array_equal(data.read_idx(tmp_path / "file"), array)


def write_cifar(folder: Path, names: list[str], labels: int, images: int) -> Any:
    """Write records of labels and three planes. Return the pixels [N, 32, 32, 3] and the labels."""
    folder.mkdir(exist_ok=True)
    random, records_of_files = np.random.default_rng(1), []
    for name in names:
        records = random.integers(0, 256, (images, labels + 3072)).astype(np.uint8)
        records[:, :labels] %= 10
        records.tofile(folder / name)
        records_of_files.append(records)
    all_records = np.concatenate(records_of_files)
    pixels = np.stack([all_records[:, labels + 1024 * c :][:, :1024] for c in range(3)], -1)
    return pixels.reshape(-1, 32, 32, 3), all_records[:, labels - 1]


@pytest.mark.parametrize("inside", [True, False])
def test_cifar_10_and_cifar_100_are_read(tmp_path: Path, inside: bool) -> None:
    for name, files, test, labels in (
        ("cifar-10-batches-bin", [f"data_batch_{n}.bin" for n in range(1, 6)], "test_batch.bin", 1),
        ("cifar-100-binary", ["train.bin"], "test.bin", 2),
    ):
        data_folder = tmp_path / name / name
        data_folder.mkdir(parents=True)
        training = write_cifar(data_folder, files, labels, 3)
        testing = write_cifar(data_folder, [test], labels, 2)
        sets = data.cifar(data_folder if inside else data_folder.parent)
        for found, (pixels, classes) in zip(sets, (training, testing), strict=True):
            np.testing.assert_array_equal(found.columns[0], pixels)
            np.testing.assert_array_equal(found.columns[1], classes)
            assert found.columns[1].dtype == np.int64


def test_cifar_pickles_and_damaged_cifar_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected the binary version.*; got no CIFAR files"):
        data.cifar(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(b"")
    with pytest.raises(ValueError, match="the Python version, which is pickles"):
        data.cifar(tmp_path)
    (tmp_path / "train.bin").write_bytes(b"abc")
    with pytest.raises(
        ValueError, match="expected a multiple of 3074 bytes, one record per image; got 3"
    ):
        data.cifar(tmp_path)
    write_cifar(tmp_path, ["train.bin"], 2, 1)
    with pytest.raises(ValueError, match=r"expected test\.bin in .*; got no such file"):
        data.cifar(tmp_path)


def write_idx(path: Path, array: Any, *, is_gzipped: bool = False) -> None:
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    if is_gzipped:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Write five training images and three test images of 2 x 3 pixels. The test set is gzipped."""
    for name, count in (("train", 5), ("t10k", 3)):
        images = np.arange(count * 6).reshape(count, 2, 3) * 8
        is_gzipped = name == "t10k"
        write_idx(tmp_path / f"{name}-images-idx3-ubyte", images, is_gzipped=is_gzipped)
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte", np.arange(count), is_gzipped=is_gzipped)
    return tmp_path


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
def test_mnist_has_pixels_between_0_and_1(digits: Path, dtype: str) -> None:
    sets = data.mnist(digits) if dtype == "float32" else data.mnist(digits, dtype=dtype)
    for source, count in zip(sets, (5, 3), strict=True):
        assert len(source) == count
        images, labels = source[np.arange(count)]
        assert (images.dtype, labels.dtype) == (np.dtype(dtype), np.int64)
        pixels = np.arange(count * 6).reshape(count, 2, 3) * 8
        expected = pixels if dtype == "uint8" else pixels.astype(dtype) / np.dtype(dtype).type(255)
        np.testing.assert_array_equal(images, expected)
        assert labels.tolist() == [*range(count)]
    assert sets[0].columns[0].max() == (
        232 if dtype == "uint8" else np.dtype(dtype).type(232) / 255
    )


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"0")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (shutil.rmtree, "data.mnist: expected a folder .*is not a directory. Give"),
    "no file": (
        lambda d: (d / "train-labels-idx1-ubyte").unlink(),
        "data.mnist: expected train-labels-idx1-ubyte or .*got neither. Download",
    ),
    "truncated": (
        lambda d: truncate(d / "train-images-idx3-ubyte"),
        "data.mnist: .*/train-images-idx3-ubyte: expected a file of 46 bytes .* truncated .* of 43",
    ),
    "too long": (lambda d: extend(d / "train-labels-idx1-ubyte"), "too long of 14 bytes"),
    "half a gzip": (lambda d: truncate(d / "t10k-images-idx3-ubyte.gz"), "a whole gzip file; got"),
    "a web page": (
        lambda d: (d / "train-images-idx3-ubyte").write_text("<html>"),
        "expected a file in IDX format; got the first bytes 3c 68 74 6d",
    ),
    "an empty file": (
        lambda d: (d / "train-images-idx3-ubyte").write_text(""),
        "got an empty file",
    ),
    "a header": (
        lambda d: (d / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03"),
        "expected a header of 16 bytes; got a truncated file of 4 bytes",
    ),
    "swapped files": (
        lambda d: write_idx(d / "train-images-idx3-ubyte", np.zeros(5)),
        r"expected grey images, uint8\[N, height, width\]; got uint8\[5\]",
    ),
    "labels": (
        lambda d: write_idx(d / "train-labels-idx1-ubyte", np.zeros((5, 1))),
        r"expected labels, uint8\[N\]; got uint8\[5, 1\]",
    ),
    "other labels": (
        lambda d: write_idx(d / "train-labels-idx1-ubyte", np.zeros(7)),
        "got 5 images in .* and 7 labels",
    ),
    "no images": (
        lambda d: write_idx(d / "train-images-idx3-ubyte", np.zeros((0, 2, 3))),
        r"got uint8\[0, 2, 3\]",
    ),
    "another size": (
        lambda d: write_idx(d / "train-images-idx3-ubyte", np.zeros((5, 4, 4))),
        r"one size; got \[4, 4\] and \[2, 3\] pixels",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_missing_and_damaged_files_of_mnist_are_named(digits: Path, damage: str) -> None:
    harm, words = DAMAGES[damage]
    harm(digits)
    with pytest.raises(ValueError, match=words) as raised:
        data.mnist(digits)
    assert str(raised.value).startswith("data.mnist: ")


def test_mnist_rejects_integer_dtypes_except_uint8(digits: Path) -> None:
    with pytest.raises(ValueError, match=r"dtype: expected one of float32, .*; got int32"):
        data.mnist(digits, dtype=np.int32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label, name in enumerate(("cat", "ant", "bee")):
        (tmp_path / name / "more").mkdir(parents=True)
        pixels = np.full((2 + label, 5, 3), 60 * label + 10, np.uint8)
        Image.fromarray(pixels).save(tmp_path / name / "b.png")
        Image.fromarray(pixels[..., 0]).save(tmp_path / name / "more" / "a.PNG")
        (tmp_path / name / "read.me").write_text("no image")
    return tmp_path


def test_a_folder_of_images_has_one_class_per_folder(folder: Path) -> None:
    source = data.ImageFolder(folder)
    assert source.classes == ["ant", "bee", "cat"]
    assert [Path(f).name for f in source.files] == ["b.png", "a.PNG"] * 3
    images, labels = source[np.array([5, 0])]
    assert labels.tolist() == [2, 0]
    np.testing.assert_array_equal(images[0], np.full((2, 5, 3), 10))  # grey is converted to RGB
    np.testing.assert_array_equal(images[1], np.full((3, 5, 3), 70))


def test_bad_folders_and_images_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="none, which is not a directory"):
        data.ImageFolder(folder / "none")
    with pytest.raises(ValueError, match="more; got no folders with images"):
        data.ImageFolder(folder / "cat" / "more")
    (folder / "cat" / "b.png").write_bytes((folder / "cat" / "b.png").read_bytes()[:40])
    with pytest.raises(
        ValueError, match=r"b\.png: expected an image; .* not an image that Pillow can read"
    ):
        data.ImageFolder(folder)[np.array([4])]
    (folder / "dog").mkdir()
    with pytest.raises(ValueError, match="dog; got none"):
        data.ImageFolder(folder)


def test_windows_of_tokens_are_adjacent_or_overlap_by_the_stride(tmp_path: Path) -> None:
    np.arange(100, 111, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    side_by_side = data.Tokens(tmp_path / "tokens.bin", 3)
    assert len(side_by_side) == 3
    (rows,) = side_by_side[np.array([2, 0])]
    assert rows.tolist() == [[106, 107, 108], [100, 101, 102]]
    assert rows.dtype == np.int64
    every = data.Tokens(np.arange(11, dtype=np.uint8), 3, stride=1)
    assert len(every) == 9
    assert every[np.array([8])][0].tolist() == [[8, 9, 10]]


def test_a_file_of_tokens_is_pickled_by_its_path(tmp_path: Path) -> None:
    np.arange(10**6, dtype=np.uint32).tofile(tmp_path / "tokens.bin")
    source = data.Tokens(tmp_path / "tokens.bin", 4, dtype="uint32")
    text = pickle.dumps(source)
    assert len(text) < 1000
    assert pickle.loads(text)[np.array([100])][0].tolist() == [[400, 401, 402, 403]]


def test_bad_tokens_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.bin"
    path.write_bytes(b"abc")
    with pytest.raises(
        ValueError, match="multiple of 2 bytes, the size of a uint16 token; got 3 bytes"
    ):
        data.Tokens(path, 2)
    path.write_bytes(b"ab")
    with pytest.raises(ValueError, match=r"at least 2 tokens, .*; got 1 in .*tokens\.bin"):
        data.Tokens(path, 2)
    with pytest.raises(ValueError, match="expected length >= 1 and stride >= 1; got 2 and 0"):
        data.Tokens(path, 2, stride=0)
    with pytest.raises(ValueError, match=r"expected one row of integers; got float64\[3\]"):
        data.Tokens(np.zeros(3), 2)
