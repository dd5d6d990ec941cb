"""Labels in a chart: each is put where it covers least of what is drawn.

The package adjustText was tried on the paper's figures: it left texts on marks and on dashed lines,
and it imports ``pyplot``, which charts keep out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# In points, like all lengths in this module.
LABEL_SIZE = 7.0
_GAP = 4.5


class LabelRoom:
    """The places of marks, lines and texts of a panel, in points, and of the room between them."""

    def __init__(self, axes: Any) -> None:
        self._axes = axes
        self._scale = 72 / axes.figure.dpi
        box = axes.get_window_extent()
        self._low = np.array([box.x0, box.y0]) * self._scale
        self._high = np.array([box.x1, box.y1]) * self._scale
        self._boxes: list[tuple[float, float, float, float, float]] = []

    def _place(self, points: Any) -> NDArray[Any]:
        places: NDArray[Any] = self._axes.transData.transform(points) * self._scale
        return places

    def _block(self, middle: Any, half: float, weight: float) -> None:
        x, y = middle
        self._boxes.append((x - half, y - half, x + half, y + half, weight))

    def occupy(self, points: NDArray[Any], *, joined: bool) -> None:
        """Keep texts off marks and, less strictly, off the lines between them.

        Parameters
        ----------
        points : array of shape (k, 2)
            The marks, in the coordinates of the data.
        joined
            Whether lines are drawn between them.
        """
        places = self._place(points) if len(points) else points
        for place in places:
            self._block(place, 3.0, 1.0)
        for start, end in itertools.pairwise(places):
            pieces = int(np.hypot(*(end - start)) / 4) if joined else 0
            for piece in range(1, pieces):
                self._block(start + (end - start) * piece / pieces, 2.0, 0.5)

    def write_beside(self, text: str, point: NDArray[Any], color: str) -> None:
        """Write a text beside a mark, on the side where it covers least."""
        half = self._half_size(text)
        sides = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1))
        # At a corner the gap is smaller: the marks are round.
        gaps = [_GAP * (0.4 if all(side) else 1.0) for side in sides]
        place = self._place(point)
        spots = [
            place + (half + gap) * np.array(side) for gap, side in zip(gaps, sides, strict=True)
        ]
        self._write(text, self._best(spots, half), half, color=_darker(color))

    def write_along(self, text: str, value: float, color: str, *, level: bool) -> None:
        """Write the name of a dashed line along it, where it covers least.

        Parameters
        ----------
        text
        value
            Where the line is, in the coordinates of the data.
        color
        level
            True for a horizontal line, False for a vertical one.
        """
        along, beside = (0, 1) if level else (1, 0)
        half = self._half_size(text)[[along, beside]]
        corner = [self._axes.get_xlim()[0], self._axes.get_ylim()[0]]
        corner[beside] = value
        line = self._place(corner)[beside]
        low, high = self._low[along] + half[along] + 2, self._high[along] - half[along] - 2
        spots = []
        for start in (high, low, (low + high) / 2):
            for side in (1, -1):
                spot = np.empty(2)
                spot[along], spot[beside] = start, line + side * (half[beside] + 1.5)
                spots.append(spot)
        rotation = 0 if level else 90
        self._write(text, self._best(spots, half), half, color=_darker(color), rotation=rotation)

    def _half_size(self, text: str) -> NDArray[Any]:
        """Half the width and height of a text, near enough to keep it off other things."""
        return np.array([0.31 * len(text), 0.5]) * LABEL_SIZE

    def _best(self, spots: Sequence[NDArray[Any]], half: NDArray[Any]) -> NDArray[Any]:
        """The spot where a text covers least; the first one of equals."""
        return min(spots, key=lambda spot: self._covered(spot, half))

    def _covered(self, spot: NDArray[Any], half: NDArray[Any]) -> float:
        """How much a text at a spot would cover, in square points; leaving the axes weighs most."""
        low, high = spot - half, spot + half
        outside = np.maximum(self._low - low, 0) + np.maximum(high - self._high, 0)
        taken = np.array(self._boxes).reshape(-1, 5)
        sides = np.minimum(high, taken[:, 2:4]) - np.maximum(low, taken[:, :2])
        areas = np.prod(np.maximum(sides, 0), axis=1)
        return float(np.sum(areas * taken[:, 4]) + 100 * np.sum(outside))

    def _write(self, text: str, spot: NDArray[Any], half: NDArray[Any], **look: Any) -> None:
        # Fractions of the axes: a file of another resolution has its texts in the same spots.
        across, up = (spot - self._low) / (self._high - self._low)
        where = {"transform": self._axes.transAxes, "ha": "center", "va": "center"}
        self._axes.text(across, up, text, fontsize=LABEL_SIZE, zorder=4, **where, **look)
        self._boxes.append((*(spot - half), *(spot + half), 2.0))


def _darker(color: str) -> str:
    """A colour in which small letters can be read on white."""
    parts = [int(color[start : start + 2], 16) for start in (1, 3, 5)]
    return "#" + "".join(f"{round(0.72 * part):02x}" for part in parts)
