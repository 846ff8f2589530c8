# SPDX-License-Identifier: Apache-2.0
"""Tests of image transforms, compared with NumPy and Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ngd import data


def generators(count: int, seed: int = 0) -> list[np.random.Generator]:
    return [np.random.default_rng((seed, i)) for i in range(count)]


def picture(height: int, width: int, channels: int = 3) -> Any:
    random = np.random.default_rng(height * width)
    return random.integers(0, 256, (height, width, channels)).astype(np.uint8)


def apply_transform(transform: Any, images: Sequence[Any], seed: int = 0) -> Any:
    return transform((images, None), generators(len(images), seed))[0]


def test_resize_keeps_the_aspect_ratio_and_equals_pillow() -> None:
    wide, high = picture(20, 30), picture(30, 20)
    found = apply_transform(data.Resize(10), [wide, high])
    assert [image.shape for image in found] == [(10, 15, 3), (15, 10, 3)]
    expected = Image.fromarray(wide).resize((15, 10), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(found[0], np.array(expected))


def test_grey_images_are_resized() -> None:
    for image in (picture(8, 8, 1), picture(8, 8, 1)[..., 0]):
        (found,) = apply_transform(data.Resize(4), [image])
        assert found.shape == (4, 4, *image.shape[2:])
    flat = np.full((9, 7), 77, np.uint8)
    np.testing.assert_array_equal(apply_transform(data.Resize(5), [flat])[0], np.full((6, 5), 77))


def test_center_crop_takes_the_middle_and_rejects_small_images() -> None:
    image = picture(7, 9)
    (found,) = apply_transform(data.CenterCrop((3, 4)), [image])
    np.testing.assert_array_equal(found, image[2:5, 2:6])
    with pytest.raises(ValueError, match="expected images of 8 x 8 pixels or more; got 7 x 9"):
        apply_transform(data.CenterCrop(8), [image])


def test_a_random_crop_is_resized_like_pillow() -> None:
    """The values of the image are its row and column numbers, so they show the area of the crop."""
    rows, columns = np.mgrid[:200, :200]
    image = np.stack([rows, columns, rows], -1).astype(np.uint8)
    crop = data.RandomResizedCrop(50)
    areas = []
    for seed in range(200):
        (found,) = apply_transform(crop, [image], seed)
        assert found.shape == (50, 50, 3)
        height, width = (
            float(found[-1, 25, 0]) - float(found[0, 25, 0]),
            float(found[25, -1, 1]) - float(found[25, 0, 1]),
        )
        areas.append(
            height * width / 0.98**2 / 40000
        )  # from the center of the first pixel to the center of the last one
        assert 0.7 < width / height < 1.45
    assert 0.07 < min(areas) < 0.15
    assert 0.8 < max(areas) < 1.05
    assert 0.4 < np.mean(areas) < 0.65
    part = Image.fromarray(image[crop._region(200, 200, np.random.default_rng((3, 0)))])
    expected = np.array(part.resize((50, 50), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(apply_transform(crop, [image], 3)[0], expected)


def test_a_crop_of_a_very_long_image_is_its_middle() -> None:
    image = np.zeros((1, 100, 3), np.uint8)
    image[:, 49] = 255
    (found,) = apply_transform(data.RandomResizedCrop(4, ratio=(0.5, 0.6)), [image])
    assert found.min() == 255  # only a region of 1 x 1 pixels fits


def test_random_flip_flips_about_half_of_the_images() -> None:
    image = picture(4, 6)
    found = apply_transform(data.RandomFlip(), [image] * 400)
    is_flipped = [np.array_equal(one, image[:, ::-1]) for one in found]
    assert all(t or np.array_equal(one, image) for t, one in zip(is_flipped, found, strict=True))
    assert 160 < sum(is_flipped) < 240
    assert all(np.array_equal(f, image) for f in apply_transform(data.RandomFlip(0), [image] * 9))


def test_normalize_returns_float32_planes() -> None:
    images = np.stack([picture(4, 5), picture(4, 5)[::-1]])
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    found = apply_transform(data.Normalize(mean, std), images)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    expected = (images / 255 - mean) / np.array(std)
    np.testing.assert_allclose(found, expected.transpose(0, 3, 1, 2), rtol=1e-5, atol=1e-6)
    grey = apply_transform(data.Normalize(0.5, 0.5), images[..., 0])
    np.testing.assert_allclose(grey[:, 0], images[..., 0] / 127.5 - 1, rtol=1e-5, atol=1e-6)


def test_normalize_does_not_divide_floats_by_255() -> None:
    images = picture(4, 5, 1)[None, ..., 0] / np.float32(255)
    before = images.copy()
    found = apply_transform(data.Normalize(0.5, 0.25), images)
    np.testing.assert_allclose(found, (before[:, None] - 0.5) / 0.25, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(images, before)
    with pytest.raises(ValueError, match=r"images of uint8 or floats .*; got int64\[1, 2, 2, 1\]"):
        apply_transform(data.Normalize(0, 1), np.zeros((1, 2, 2), np.int64))


def test_normalize_rejects_other_sizes_and_other_channels() -> None:
    normalize = data.Normalize((0.5, 0.5), (0.5, 0.5))
    with pytest.raises(ValueError, match="expected images of one size"):
        apply_transform(normalize, [picture(3, 3), picture(4, 4)])
    with pytest.raises(ValueError, match="expected images of uint8 or floats with 2 channels"):
        apply_transform(normalize, [picture(3, 3)])
    with pytest.raises(ValueError, match="expected a mean, and a std > 0"):
        data.Normalize(0, 0)


def test_mixup_averages_two_images_and_their_labels() -> None:
    """The images have one value each, so the mean shows the weight of each image."""
    values = np.arange(5, dtype=np.uint8) * 10
    source = data.Arrays(np.broadcast_to(values[:, None, None, None], (5, 2, 2, 3)), np.arange(5))
    mixup = data.Mixup(source, data.Normalize(0, 1), num_classes=5, alpha=0.7)
    images, labels = mixup(source[np.arange(5)], generators(5))
    assert labels.shape == (5, 5)
    assert labels.dtype == images.dtype == np.float32
    np.testing.assert_allclose(labels.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(images[:, 0, 0, 0], labels @ (values / 255), rtol=1e-5)
    own = labels[np.arange(5), np.arange(5)]
    assert np.all(own > 0)
    assert np.any(own < 1)


def test_mixup_weights_have_a_beta_distribution() -> None:
    source = data.Arrays(np.zeros((1000, 1, 1, 1), np.uint8), np.arange(1000))
    mixup = data.Mixup(source, data.Normalize(0, 1), num_classes=1000, alpha=0.4)
    _, labels = mixup(source[np.arange(1000)], generators(1000))
    shares = labels[np.arange(1000), np.arange(1000)]
    assert abs(shares.mean() - 0.5) < 0.05
    assert abs(shares.var() - 0.25 / 1.8) < 0.02  # Beta(a, a): 1 / (4 (2 a + 1))


def test_bad_arguments_are_refused() -> None:
    source = data.Arrays(np.zeros((3, 2, 2, 3), np.uint8), np.arange(3))
    with pytest.raises(ValueError, match="a transform that returns floats; got uint8"):
        data.Mixup(source, [], num_classes=3)(source[np.arange(3)], generators(3))
    for make in (
        lambda: data.RandomFlip(2),
        lambda: data.Resize(0),
        lambda: data.CenterCrop((3, 0)),
        lambda: data.RandomResizedCrop(3, scale=(0.0, 1.0)),
        lambda: data.Mixup(source, [], num_classes=0),
    ):
        with pytest.raises(ValueError, match="expected"):
            make()
    with pytest.raises(
        ValueError, match=r"data\.Resize: expected images uint8.*; got float64\[3, 3\]"
    ):
        apply_transform(data.Resize(2), [np.zeros((3, 3))])
