"""Affine warps of pictures."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid_gpu.lab.warps import warped


def still(count, **changes):
    """Parameters that leave pictures as they are."""
    values = {
        "rotations": np.zeros(count),
        "scales": np.ones(count),
        "shears": np.zeros(count),
        "shifts": np.zeros((count, 2)),
    }
    return values | {name: np.array(value, dtype=float) for name, value in changes.items()}


@pytest.fixture
def pictures():
    return np.random.default_rng(37).uniform(1, 255, (3, 7, 6)).astype(np.float32)


def test_warp_by_nothing_changes_nothing(pictures):
    result = warped(pictures, **still(3))
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, pictures)


def test_shift_by_whole_pixels_shifts_and_fills_with_zeros(pictures):
    result = warped(pictures, **still(3, shifts=[[2, 0], [0, -1], [-9, 90]]))
    np.testing.assert_array_equal(result[0, 2:], pictures[0, :-2])
    np.testing.assert_array_equal(result[1, :, :-1], pictures[1, :, 1:])
    assert not result[0, :2].any()
    assert not result[1, :, -1].any()
    assert not result[2].any()


def test_half_a_pixel_is_the_mean_of_two(pictures):
    result = warped(pictures, **still(3, shifts=[[0.5, 0]] * 3))
    np.testing.assert_allclose(result[:, 1:], (pictures[:, 1:] + pictures[:, :-1]) / 2, rtol=1e-6)
    # Beyond the border lie zeros.
    np.testing.assert_allclose(result[:, 0], pictures[:, 0] / 2, rtol=1e-6)


def test_quarter_turn_is_that_of_numpy():
    square = np.random.default_rng(37).uniform(1, 255, (2, 6, 6)).astype(np.float32)
    result = warped(square, **still(2, rotations=[np.pi / 2, -np.pi / 2]))
    np.testing.assert_allclose(result[0], np.rot90(square[0], -1), rtol=1e-4)
    np.testing.assert_allclose(result[1], np.rot90(square[1]), rtol=1e-4)


def test_shear_moves_rows_sideways_in_proportion_to_their_height(pictures):
    result = warped(pictures, **still(3, shears=[1, 1, 1]))
    for row in range(7):
        offset = row - 3  # from the middle of 7 rows
        moved = warped(pictures, **still(3, shifts=[[0, offset]] * 3))
        np.testing.assert_allclose(result[:, row], moved[:, row], rtol=1e-6)


def test_scaling_by_two_spreads_every_pixel():
    image = np.zeros((1, 9, 9), np.float32)
    image[0, 4, 4], image[0, 2, 6] = 10, 20
    result = warped(image, **still(1, scales=[2]))
    assert (result[0, 4, 4], result[0, 0, 8]) == (10, 20)
    assert result[0, 4, 5] == 5


def test_affine_picture_is_warped_as_its_formula_says():
    # Bilinear interpolation is exact for brightness a*y + b*x + c: any warp can be worked out.
    y, x = np.mgrid[:25, :31].astype(np.float64)
    image = (100 + 2 * y - x).astype(np.float32)
    angle, scale, shear, (down, right) = 0.2, 1.1, -0.1, (1.3, -0.7)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])  # (y, x)
    forward = scale * turn @ np.array([[1, 0], [shear, 1]])
    middle = np.array([12, 15])[:, None]
    source = np.linalg.inv(forward) @ (np.stack([y.ravel() - down, x.ravel() - right]) - middle)
    expected = (100 + 2 * (source[0] + 12) - (source[1] + 15)).reshape(image.shape)
    result = warped(
        image[None],
        rotations=np.array([angle]),
        scales=np.array([scale]),
        shears=np.array([shear]),
        shifts=np.array([[down, right]]),
    )[0]
    inside = slice(8, -8)
    np.testing.assert_allclose(result[inside, inside], expected[inside, inside], rtol=1e-5)


def test_warps_that_do_not_fit_the_pictures_are_refused(pictures):
    with pytest.raises(ValueError, match=r"scales must have shape \(3,\)"):
        warped(pictures, **still(3, scales=[1, 1]))
    with pytest.raises(ValueError, match=r"shifts must have shape \(3, 2\)"):
        warped(pictures, **still(3, shifts=[1, 1, 1]))
    with pytest.raises(ValueError, match=r"images must have shape \(c, height, width\)"):
        warped(pictures[0], **still(3))
