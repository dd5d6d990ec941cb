"""Where the items of a small graph are drawn: the same graph always looks the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# The size of a drawing, and how close the middles of two items may be.
WIDTH, HEIGHT, APART = 1000, 640, 80
_MARGIN = 48
_STRESS_STEPS, _APART_STEPS = 300, 300
_MOST_STRETCH = 2.0
_GOLDEN_ANGLE = np.pi * (3 - 5**0.5)


def layout(n: int, edges: Any) -> NDArray[np.int64]:
    """Places (n, 2) in a drawing of WIDTH times HEIGHT, so that joined items are near each other.

    Distances in the drawing follow the number of edges between items (stress majorization). The
    longer side lies from left to right, and the first item to the left.

    Parameters
    ----------
    n
        Items; some tens of them.
    edges : int array of shape (m, 2)
    """
    if n == 0:
        return np.zeros((0, 2), np.int64)
    distances = _hops(n, np.asarray(edges, np.int64).reshape(-1, 2))
    places = _by_stress(_spiral(distances), distances)
    return np.round(_apart(_fitted(_turned(places)))).astype(np.int64)


def _hops(n: int, edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """The number of edges between any two items; a little more than the most where none lead."""
    hops = np.full((n, n), np.inf)
    hops[edges[:, 0], edges[:, 1]] = hops[edges[:, 1], edges[:, 0]] = 1
    np.fill_diagonal(hops, 0)
    for between in range(n):
        np.minimum(hops, hops[:, between, None] + hops[None, between, :], out=hops)
    known = hops[np.isfinite(hops)]
    return np.where(np.isfinite(hops), hops, max(1.0, float(known.max())) + 1)


def _spiral(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """A beginning: around the first item, the nearer ones first."""
    order = np.lexsort((np.arange(len(distances)), distances[0]))
    turn = np.argsort(order)
    return np.stack([np.cos(turn * _GOLDEN_ANGLE), np.sin(turn * _GOLDEN_ANGLE)], 1) * np.sqrt(
        turn[:, None].astype(np.float64)
    )


def _by_stress(places: NDArray[np.float64], distances: NDArray[np.float64]) -> NDArray[np.float64]:
    n = len(places)
    if n < 2:
        return places
    weights = 1 / np.maximum(distances, 1) ** 2
    np.fill_diagonal(weights, 0)
    inverse = np.linalg.pinv(np.diag(weights.sum(1)) - weights)
    for _ in range(_STRESS_STEPS):
        between = np.linalg.norm(places[:, None] - places[None], axis=2)
        np.fill_diagonal(between, 1)
        pulls = -weights * distances / np.maximum(between, 1e-9)
        np.fill_diagonal(pulls, 0)
        np.fill_diagonal(pulls, -pulls.sum(1))
        places = inverse @ (pulls @ places)
    return places


def _turned(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turned so that the longer side lies from left to right, the first item on the left."""
    centered = places - places.mean(0)
    (xx, xy), (_, yy) = centered.T @ centered
    angle = 0.5 * np.arctan2(2 * xy, xx - yy)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turned = centered @ turn
    return np.asarray(turned * np.where(turned[0] > 0, -1, 1))


def _fitted(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Stretched to the size of the drawing; one side at most twice as much as the other."""
    low, high = places.min(0), places.max(0)
    room = np.array([WIDTH, HEIGHT]) - 2.0 * _MARGIN
    scales = room / np.maximum(high - low, 1e-9)
    scales = np.minimum(scales, min(_MOST_STRETCH * float(scales.min()), float(room.max())))
    middle = np.array([WIDTH, HEIGHT]) / 2
    return np.asarray(middle + (places - (low + high) / 2) * scales)


def _apart(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pushed apart where items would cover each other."""
    n, low = len(places), float(_MARGIN)
    high = np.array([WIDTH, HEIGHT]) - low
    # Items at the same place need a direction: one of its own for each.
    turn = np.arange(n) * _GOLDEN_ANGLE
    places = places + np.stack([np.cos(turn), np.sin(turn)], 1) * 1e-3
    for _ in range(_APART_STEPS):
        gaps = places[:, None] - places[None]
        between = np.linalg.norm(gaps, axis=2)
        np.fill_diagonal(between, np.inf)
        missing = np.maximum(APART + 1 - between, 0)
        if not missing.any():
            break
        push = gaps / between[:, :, None] * (missing / 2)[:, :, None]
        places = np.clip(places + 0.8 * push.sum(1), low, high)
    return places
