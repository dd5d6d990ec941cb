"""What a chart shows: panels of lines, clouds of points and contours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one cloud of points.

    Attributes
    ----------
    name : str
        Stands in the legend; empty for none. A ranking method has the same colour in every chart.
    points : tuple of (x, y)
        Points that are not finite are left out, and on a log axis those that are not positive.
    labels : tuple of str
        A short text for each point, or an empty tuple for no texts.
    joined : bool
        False draws the marks only.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    labels: tuple[str, ...] = ()
    joined: bool = True

    def __repr__(self) -> str:
        return f"Series({self.name!r}, {len(self.points)} points)"


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes with its series.

    Attributes
    ----------
    title, x, y : str
        The texts above the panel, below it and beside it.
    series : tuple of Series
    log_x, log_y : bool
    levels, edges : tuple of (name, value)
        Dashed lines: levels are horizontal, edges are vertical.
    """

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log_x: bool = False
    log_y: bool = False
    levels: tuple[tuple[str, float], ...] = ()
    edges: tuple[tuple[str, float], ...] = ()

    def __repr__(self) -> str:
        return f"Panel({self.title!r}, {len(self.series)} series)"


@dataclass(frozen=True, slots=True, eq=False)
class Contours:
    """One pair of axes with lines of equal value.

    Attributes
    ----------
    title, x, y : str
        The texts above the panel, below it and beside it.
    across, up : tuples of float
        Increasing positions of the columns and of the rows of ``values``.
    values : float array of shape (len(up), len(across))
    levels : tuple of float
        Values to draw a line for; a level outside the range of ``values`` is left out.
    """

    title: str
    x: str
    y: str
    across: tuple[float, ...]
    up: tuple[float, ...]
    values: NDArray[Any]
    levels: tuple[float, ...]

    def __repr__(self) -> str:
        rows, columns = np.shape(self.values)
        return f"Contours({self.title!r}, {rows} by {columns}, {len(self.levels)} levels)"


def check_panels(panels: Sequence[Panel | Contours]) -> None:
    """Refuse panels whose parts do not fit together; ``ValueError`` says which."""
    if not panels:
        raise ValueError("panels must hold at least one panel; got none.")
    for panel in panels:
        if isinstance(panel, Contours):
            _check_contours(panel)
            continue
        for series in panel.series:
            if series.labels and len(series.labels) != len(series.points):
                raise ValueError(
                    f"labels of {series.name!r} must be one for each of its {len(series.points)} "
                    f"points; got {len(series.labels)}. Write '' for a point without one."
                )


def _check_contours(panel: Contours) -> None:
    """Refuse contours without a grid of at least 2 by 2, or of another shape than their axes."""
    expected = (len(panel.up), len(panel.across))
    if np.shape(panel.values) != expected:
        raise ValueError(
            f"values of {panel.title!r} must have one row for each of up and one column for each "
            f"of across, shape {expected}; got {np.shape(panel.values)}."
        )
    if min(expected) < 2:
        raise ValueError(
            f"values of {panel.title!r} must have at least 2 rows and 2 columns; got {expected}. "
            "Draw a single row as a Panel."
        )
