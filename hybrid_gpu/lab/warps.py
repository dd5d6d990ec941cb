"""Arithmetic of pictures: random affine warps, and the directions that describe them best."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def warped(
    images: NDArray[Any],
    *,
    rotations: NDArray[Any],
    scales: NDArray[Any],
    shears: NDArray[Any],
    shifts: NDArray[Any],
) -> NDArray[np.float32]:
    """Pictures after an affine warp of each about its center; zeros come in from outside.

    Parameters
    ----------
    images : array of shape (c, height, width)
    rotations : array of shape (c,)
        Angles in radians.
    scales : array of shape (c,)
        Factors by which pictures become larger.
    shears : array of shape (c,)
        Pixels to the right per pixel down; applied before the rotation.
    shifts : array of shape (c, 2)
        Pixels (down, right); applied last.

    Returns
    -------
    float32 array of shape (c, height, width)
        Interpolated between the four nearest pixels.
    """
    if images.ndim != 3:
        raise ValueError(f"images must have shape (c, height, width); got {images.shape}.")
    count, height, width = images.shape
    down, right = _parameters(shifts, "shifts", (count, 2)).T[:, :, None]
    angle, scale, shear = (
        _parameters(values, what, (count,))[:, None]
        for values, what in ((rotations, "rotations"), (scales, "scales"), (shears, "shears"))
    )
    # Where a pixel of the result comes from: the warp is undone. Each position is the sum of a part
    # that depends on the row and a part that depends on the column.
    y = (np.arange(height) - (height - 1) / 2 - down) / scale
    x = (np.arange(width) - (width - 1) / 2 - right) / scale
    cosine, sine = np.cos(angle), np.sin(angle)
    top, from_top = _pixels_before(cosine * y, -sine * x, height)
    left, from_left = _pixels_before(
        (sine - shear * cosine) * y, (cosine + shear * sine) * x, width
    )
    # One pixel of zeros before and two behind: every position has four neighbors.
    padded = np.zeros((count, height + 3, width + 3), dtype=np.float32)
    padded[:, 1:-2, 1:-2] = images
    first = top * (width + 3) + left + (np.arange(count) * padded[0].size)[:, None, None]
    flat = padded.ravel()

    def blended(place: NDArray[np.intp]) -> NDArray[np.float32]:
        left_pixel, right_pixel = flat.take(place), flat[1:].take(place)
        right_pixel -= left_pixel
        right_pixel *= from_left
        right_pixel += left_pixel
        return right_pixel

    above, below = blended(first), blended(first + (width + 3))
    below -= above
    below *= from_top
    below += above
    return below


def random_warps(count: int, seed: int, repetition: int) -> dict[str, NDArray[np.float64]]:
    """Small random parameters of ``warped``, for one pass over all pictures."""
    # Drawn row by row: the parameters of a picture do not depend on how many pictures follow.
    draws = np.random.default_rng([seed, repetition]).uniform(-1, 1, (count, 5))
    return {
        "rotations": np.deg2rad(15) * draws[:, 0],
        "scales": 1 + 0.1 * draws[:, 1],
        "shears": 0.1 * draws[:, 2],
        "shifts": 2 * draws[:, 3:],
    }


def leading_directions(descriptors: NDArray[Any], count: int) -> NDArray[np.float32]:
    """The leading eigenvectors of the second moments of some vectors, as columns."""
    d = descriptors.shape[1]
    moments = np.zeros((d, d))
    for start in range(0, len(descriptors), 4096):
        part = np.asarray(descriptors[start : start + 4096], dtype=np.float32)
        moments += part.T @ part
    directions = np.linalg.eigh(moments)[1][:, ::-1][:, :count]
    # An eigenvector has no sign of its own: make its largest entry positive.
    largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=0)[None], axis=0)
    return np.ascontiguousarray(directions * np.sign(largest), dtype=np.float32)


def _parameters(values: Any, what: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(
            f"{what} must have shape {shape}, a row for each image; got shape {array.shape}."
        )
    return array


def _pixels_before(
    by_row: NDArray[np.float64], by_column: NDArray[np.float64], size: int
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """For each position, the last pixel at or before it in the padded picture, and the rest."""
    by_row = by_row + (size - 1) / 2 + 1
    places = by_row.astype(np.float32)[:, :, None] + by_column.astype(np.float32)[:, None, :]
    np.clip(places, 0, size + 1, out=places)
    whole = np.floor(places)
    places -= whole
    return whole.astype(np.intp), places
