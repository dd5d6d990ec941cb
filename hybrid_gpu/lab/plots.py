"""Pictures: charts of measurements, and what diffusion did to rankings.

matplotlib is optional: ``pip install -e ".[plots]"``. Nothing here goes through ``pyplot``,
and matplotlib's settings are the user's own again when a function returns.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.files.writing import replace_files
from hybrid_gpu.lab.canvas import FAINT, INSTALL, encoded, figures_of_ours, write_at
from hybrid_gpu.lab.chart_panels import Contours, Panel, Series
from hybrid_gpu.lab.charts import chart
from hybrid_gpu.validation import check_count

__all__ = ["INSTALL", "Contours", "Panel", "Series", "chart", "ranking_grid"]

_RIGHT, _WRONG, _QUERY = "#1a7f37", "#c4231b", "#333333"

# The layout of a grid of rankings, in inches.
_CELL = 0.62
_MARGIN = 0.12
_GAP = 0.3
_HEADING = 0.7
_QUERY_SIDE = 1.4 * _CELL
_FIRST_RESULT = _MARGIN + _QUERY_SIDE + 1.1
_LEAST_WIDTH = 6.2


def check_picture(path: str | os.PathLike[str]) -> None:
    """Refuse a picture that cannot be drawn, before the work for it begins.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If the file's ending names no format that matplotlib writes.
    """
    with figures_of_ours() as make_figure:
        formats = make_figure().canvas.get_supported_filetypes()
    if _format(path) not in formats:
        raise ValueError(
            f"{os.fspath(path)}: pictures are written as {', '.join(sorted(formats))}; got "
            f"{Path(path).suffix}."
        )


def _format(path: str | os.PathLike[str]) -> str:
    return Path(path).suffix.lower().lstrip(".") or "png"


def ranking_grid(
    images: Any,
    query_images: Any,
    *,
    before_ids: Any,
    after_ids: Any,
    labels: Any,
    query_labels: Any,
    path: str | os.PathLike[str],
    results: int = 12,
    title: str = "",
) -> None:
    """Draw what diffusion did to the first results of some queries.

    Each query has two rows: the first results by similarity, and below them those after diffusion.
    Right results have a green frame, wrong results a dashed red frame and a cross.

    Parameters
    ----------
    images : array of shape (n, height, width) or (n, height, width, 3)
        Pictures of the database.
    query_images : array of shape (m, height, width) or (m, height, width, 3)
        Pictures of the queries; all of them are drawn, so pass only a few.
    before_ids, after_ids : int arrays of shape (m, k)
        Rankings of the queries by similarity and after diffusion, best first; -1 is skipped.
    labels, query_labels : arrays of shape (n,) and (m,)
        A result is right if it has the query's label.
    path
        The picture's file; its ending names the format.
    results
        Results to draw, at most; fewer if the rankings are shorter.
    title
        A line above the picture.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If the numbers of queries do not match.
    """
    pictures, query_pictures = np.asarray(images), np.asarray(query_images)
    orders = [np.asarray(before_ids), np.asarray(after_ids)]
    classes, query_classes = np.asarray(labels), np.asarray(query_labels)
    _check_queries(
        len(query_pictures), before_ids=orders[0], after_ids=orders[1], query_labels=query_classes
    )
    depth = min(check_count(results, "results"), *(order.shape[1] for order in orders))

    m = len(query_pictures)
    width = max(_LEAST_WIDTH, _FIRST_RESULT + depth * _CELL + _MARGIN)
    block = 2 * _CELL + _GAP
    height = _HEADING + m * block - _GAP + _MARGIN
    with figures_of_ours() as make_figure:
        figure = make_figure(figsize=(width, height), dpi=150, facecolor="white")
        _write_heading(figure, title)
        for query in range(m):
            top = height - _HEADING - query * block
            _draw_query(figure, query_pictures[query], query_classes[query], top)
            for row, (name, order) in enumerate(
                zip(("similarity", "diffusion"), orders, strict=True)
            ):
                # -1 stands for "nothing found".
                ids = order[query, :depth][order[query, :depth] >= 0]
                right = classes[ids] == query_classes[query]
                _draw_row(figure, name, pictures[ids], right, top - (row + 1) * _CELL)
        content = encoded(figure, _format(path))
    replace_files({Path(path): content})


def _check_queries(m: int, **parts: NDArray[Any]) -> None:
    for name, part in parts.items():
        if len(part) != m:
            raise ValueError(
                f"{name} must have one row for each of the {m} queries; got {len(part)}."
            )
    if m == 0:
        raise ValueError("there must be at least one query to draw.")


def _write_heading(figure: Any, title: str) -> None:
    height = figure.get_size_inches()[1]
    legend = "green frame: the query's class     dashed red frame and cross: another class"
    write_at(figure, _MARGIN, height - 0.22, title, fontsize=10, weight="bold")
    write_at(figure, _MARGIN, height - 0.46, legend, fontsize=8, color=FAINT)


def _draw_query(figure: Any, picture: NDArray[Any], label: Any, top: float) -> None:
    bottom = top - _QUERY_SIDE - 0.08
    _draw(_axes(figure, _MARGIN, bottom, _QUERY_SIDE), picture, _QUERY, "solid", 1.2)
    middle = _MARGIN + _QUERY_SIDE / 2
    write_at(figure, middle, bottom - 0.08, f"query: {label}", fontsize=8, ha="center")


def _draw_row(
    figure: Any, name: str, pictures: NDArray[Any], right: NDArray[np.bool_], bottom: float
) -> None:
    """Draw the results of one query in one order, with the number of right ones before them."""
    text = f"{name}\n{int(right.sum())} of {right.size} right"
    write_at(figure, _FIRST_RESULT - 0.1, bottom + _CELL / 2, text, fontsize=8, ha="right")
    for place, (picture, hit) in enumerate(zip(pictures, right, strict=True)):
        axes = _axes(figure, _FIRST_RESULT + place * _CELL, bottom, _CELL)
        if hit:
            _draw(axes, picture, _RIGHT, "solid", 1.6)
            continue
        _draw(axes, picture, _WRONG, (0, (2.5, 1.2)), 2.2)
        # The cross tells right from wrong without colour; its white rim shows on dark pictures.
        for color, thickness in (("white", 4.0), (_WRONG, 1.6)):
            style = {"color": color, "linewidth": thickness, "transform": axes.transAxes}
            axes.plot([0.74, 0.93], [0.74, 0.93], **style)
            axes.plot([0.74, 0.93], [0.93, 0.74], **style)


def _axes(figure: Any, left: float, bottom: float, side: float) -> Any:
    """Axes for one picture, with some room around them."""
    width, height = figure.get_size_inches()
    inner, room = 0.86 * side, 0.07 * side
    return figure.add_axes(
        ((left + room) / width, (bottom + room) / height, inner / width, inner / height)
    )


def _draw(axes: Any, picture: NDArray[Any], color: str, style: Any, thickness: float) -> None:
    axes.imshow(picture, cmap="gray_r", interpolation="nearest", aspect="equal")
    axes.set(xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set(color=color, linestyle=style, linewidth=thickness)
