"""Larger sets of warped pictures."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid_gpu.lab import augmentation
from hybrid_gpu.lab.augmentation import augmented
from hybrid_gpu.lab.benchmark import Dataset
from hybrid_gpu.lab.public_sets import digits


@pytest.fixture(scope="module")
def few_digits():
    data = digits()
    return Dataset("few", data.descriptors[:300], data.labels[:300], (8, 8))


@pytest.mark.parametrize("dimensions", [None, 10])
def test_smaller_augmented_set_is_the_head_of_a_larger_one(few_digits, dimensions):
    large = augmented(few_digits, 1000, 7, dimensions=dimensions)
    for n in (300, 301, 557, 900):
        small = augmented(few_digits, n, 7, dimensions=dimensions)
        np.testing.assert_array_equal(small.descriptors, large.descriptors[:n])
        np.testing.assert_array_equal(small.labels, large.labels[:n])


def test_warps_do_not_depend_on_the_chunks(few_digits, monkeypatch):
    usual = augmented(few_digits, 700, 7, dimensions=None)
    monkeypatch.setattr(augmentation, "_CHUNK", 41)
    np.testing.assert_array_equal(
        augmented(few_digits, 700, 7, dimensions=None).descriptors, usual.descriptors
    )


def test_augmented_items_are_the_pictures_and_then_each_picture_warped_in_turn():
    # Each picture has a brightness of its own, which no warp changes in the middle.
    brightness = np.arange(1, 301, dtype=np.float32)
    flat = np.repeat(brightness[:, None], 12 * 12, axis=1)
    made = augmented(Dataset("flat", flat, np.arange(300) % 7, (12, 12)), 900, 7, dimensions=None)
    assert made.name == "flat and warps"
    assert made.image_shape == (12, 12)
    assert made.descriptors.dtype == np.float32
    np.testing.assert_array_equal(made.descriptors[:300], flat)
    np.testing.assert_array_equal(made.images[:, 6, 6], np.tile(brightness, 3))
    np.testing.assert_array_equal(made.labels, np.tile(np.arange(300) % 7, 3))
    # Zeros came in from somewhere, with very few exceptions.
    assert np.mean(made.descriptors[300:].min(axis=1) < made.images[300:, 6, 6]) > 0.95


def test_every_pass_and_every_seed_warps_differently(few_digits):
    first = augmented(few_digits, 900, 7, dimensions=None).descriptors
    second = augmented(few_digits, 900, 8, dimensions=None).descriptors
    assert not np.any(np.all(first[300:600] == first[600:], axis=1))
    assert not np.any(np.all(first[300:] == second[300:], axis=1))
    np.testing.assert_array_equal(first[:300], second[:300])


def test_warps_are_small(monkeypatch, few_digits):
    seen = []

    def spy(images, **parameters):
        seen.append(parameters)
        return images

    monkeypatch.setattr(augmentation, "warped", spy)
    augmented(few_digits, 1500, 7, dimensions=None)
    for name, low, high in (
        ("rotations", -np.pi / 12, np.pi / 12),
        ("scales", 0.9, 1.1),
        ("shears", -0.1, 0.1),
        ("shifts", -2, 2),
    ):
        values = np.concatenate([parameters[name] for parameters in seen])
        assert len(values) == 1200
        # 1,200 even draws come within 5 % of both ends, and do not pass them.
        assert low <= values.min() < low + 0.05 * (high - low)
        assert high - 0.05 * (high - low) < values.max() <= high


def test_projection_is_the_best_one_of_the_originals_without_centering(few_digits):
    made = augmented(few_digits, 700, 7, dimensions=10)
    assert made.descriptors.shape == (700, 10)
    assert made.descriptors.dtype == np.float32
    assert made.image_shape is None
    assert made.name == "few and warps"
    # Their Gram matrix is the best approximation of rank 10 to that of the pictures.
    left, values, _ = np.linalg.svd(few_digits.descriptors.astype(np.float64), full_matrices=False)
    best = (left[:, :10] * values[:10] ** 2) @ left[:, :10].T
    own = made.descriptors[:300].astype(np.float64)
    np.testing.assert_allclose(own @ own.T, best, atol=1e-4 * best.max())
    np.testing.assert_allclose(np.linalg.norm(own, axis=0), values[:10], rtol=1e-4)


def test_projection_to_all_dimensions_keeps_every_inner_product(few_digits):
    whole = augmented(few_digits, 400, 7, dimensions=64).descriptors.astype(np.float64)
    pixels = augmented(few_digits, 400, 7, dimensions=None).descriptors.astype(np.float64)
    gram = pixels @ pixels.T
    np.testing.assert_allclose(whole @ whole.T, gram, atol=1e-5 * gram.max())


def test_augmenting_tells_how_far_it_is(few_digits):
    calls = []
    augmented(few_digits, 700, 7, progress=lambda *call: calls.append(call))
    assert calls[-1] == ("warps", 700, 700)
    assert [done for _, done, _ in calls] == [256, 300, 556, 600, 700]


def test_what_cannot_be_augmented_is_refused(few_digits):
    with pytest.raises(ValueError, match="n must be at least 300"):
        augmented(few_digits, 299, 7)
    with pytest.raises(ValueError, match="dimensions must be at most 64"):
        augmented(few_digits, 300, 7, dimensions=65)
    for shape in (None, (4, 4, 4)):
        data = Dataset("words", few_digits.descriptors, few_digits.labels, shape)
        with pytest.raises(ValueError, match="words must hold gray pictures"):
            augmented(data, 400, 7)
