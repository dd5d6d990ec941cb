"""Charts of measurements: lines, clouds of points and contours, side by side with one legend.

Drawn with matplotlib, which is optional: ``pip install -e ".[plots]"``. Nothing here goes
through ``pyplot``, and matplotlib's settings are the user's own again when a function returns.
"""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.files.writing import replace_files
from hybrid_gpu.lab.canvas import FAINT, encoded, figures_of_ours, write_at
from hybrid_gpu.lab.chart_labels import LABEL_SIZE, LabelRoom
from hybrid_gpu.lab.chart_panels import Contours, Panel, Series, check_panels
from hybrid_gpu.lab.chart_styles import MARK_SIZES, Style, dashed_look, styles_of
from hybrid_gpu.lab.wording import axis_number, plain_line
from hybrid_gpu.validation import check_count

_CHART_LOOK: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#444444",
    "axes.formatter.limits": (-4, 7),
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "font.size": 9,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "xtick.color": "#444444",
    "xtick.labelsize": 8,
    "ytick.color": "#444444",
    "ytick.labelsize": 8,
}

# The layout of a chart, in inches.
_PANEL_WIDTH, _ONE_PANEL_WIDTH, _PANEL_HEIGHT = 4.5, 5.4, 2.9
_TITLE_HEIGHT, _LEGEND_LINE, _NOTE_LINE, _BORDER = 0.36, 0.22, 0.15, 0.06
# A line of more points than this has marks only at this fraction of the length of the axes.
_DENSE, _MARK_SPACING = 25, 0.12


def chart(
    panels: Sequence[Panel | Contours],
    *,
    path: str | os.PathLike[str],
    title: str = "",
    columns: int = 2,
    note: str = "",
) -> None:
    """Draw panels side by side, with one legend for all of them, into a PNG or SVG file.

    A series has the same colour and mark in all panels. The same panels give the same bytes. The
    file is put in place in one step, so that nobody sees half of it.

    Parameters
    ----------
    panels : sequence of Panel or Contours
    path
        The picture's file; it ends in ``.png`` or ``.svg``.
    title
        A line above the panels.
    columns
        Panels in a row, at most.
    note
        Small print below everything.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    ValueError
        If there is no panel, if the parts of a panel do not fit together, or if the file has
        another ending.
    """
    ending = Path(path).suffix.lower().lstrip(".")
    if ending not in ("png", "svg"):
        raise ValueError(
            f"path must end in .png or .svg; got {os.fspath(path)!r}. Rename the picture."
        )
    pictures = drawn(panels, formats=(ending,), title=title, columns=columns, note=note)
    replace_files({Path(path): pictures[ending]})


def drawn(
    panels: Sequence[Panel | Contours],
    *,
    formats: Sequence[str] = ("png", "svg"),
    title: str = "",
    columns: int = 2,
    note: str = "",
) -> dict[str, bytes]:
    """The chart that :func:`chart` writes, as bytes of a file in each format, by format."""
    check_count(columns, "columns")
    check_panels(panels)
    with figures_of_ours(**_CHART_LOOK) as make_figure:
        figure = _lay_out(make_figure, panels, title=title, columns=columns, note=note)
        return {name: encoded(figure, name) for name in formats}


def _lay_out(
    make_figure: Any,
    panels: Sequence[Panel | Contours],
    *,
    title: str,
    columns: int,
    note: str,
) -> Any:
    """A figure with a title, the panels in rows, one legend, and a note at the bottom.

    The heights of all parts are known beforehand, so that panels have the same size in every chart.
    """
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = _ONE_PANEL_WIDTH if columns == 1 else columns * _PANEL_WIDTH
    styles = styles_of(panels)
    names = [name for name in styles if name]
    # Three panels in two columns: the legend has the fourth place.
    legend_in_grid = rows * columns > len(panels) and bool(names)
    legend_columns = 1 if legend_in_grid else _legend_columns(names, width)
    note_lines = textwrap.wrap(plain_line(note), int(width * 16))
    note_height = _BORDER + len(note_lines) * _NOTE_LINE + (0.05 if note_lines else 0)
    legend_height = 0.0
    if names and not legend_in_grid:
        legend_height = math.ceil(len(names) / legend_columns) * _LEGEND_LINE + 0.1
    title_height = _TITLE_HEIGHT if title else _BORDER
    below = note_height + legend_height
    height = title_height + rows * _PANEL_HEIGHT + below

    figure = make_figure((width, height), dpi=150, facecolor="white", layout="constrained")
    panel_area = (0, below / height, 1, rows * _PANEL_HEIGHT / height)
    figure.get_layout_engine().set(rect=panel_area, w_pad=0.09, h_pad=0.07)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid, panels, strict=False):
        _draw_panel(axes, panel, styles)
    write_at(figure, 0.12, height - 0.22, plain_line(title), fontsize=11, weight="bold")
    write_at(figure, 0.12, note_height / 2, "\n".join(note_lines), fontsize=7.5, color=FAINT)
    if names:
        bottom = None if legend_in_grid else note_height / height
        _draw_legend(figure, grid, styles, columns=legend_columns, bottom=bottom)

    # Labels come last: where there is room for them depends on everything else.
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")
    for axes, panel in zip(grid, panels, strict=False):
        _label_panel(axes, panel, styles)
    return figure


def _legend_columns(names: Sequence[str], width: float) -> int:
    longest = max((len(name) for name in names), default=1)
    return max(1, min(len(names), int(width / (0.085 * longest + 0.6))))


def _draw_legend(
    figure: Any, grid: Any, styles: Mapping[str, Style], *, columns: int, bottom: float | None
) -> None:
    """Draw one legend for all panels.

    Parameters
    ----------
    figure
    grid
        All axes of the figure.
    styles
        Of all series, in the order of the legend.
    columns
        Of the legend.
    bottom
        Its lower end, as a part of the figure's height; None puts it into the last place of the
        grid.
    """
    handles: dict[str, Any] = {}
    for axes in grid:
        for line, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, line)
    # A series may be joined in one panel and not in another: the first one stands for it.
    names = [name for name in map(plain_line, styles) if name in handles]
    lines = [handles[name] for name in names]
    options = {"frameon": False, "ncols": columns, "handlelength": 2.4}
    if bottom is None:
        legend = grid[-1].legend(lines, names, loc="center", labelspacing=0.9, **options)
    else:
        spot = {"loc": "lower center", "bbox_to_anchor": (0.5, bottom), "borderaxespad": 0.0}
        legend = figure.legend(lines, names, **spot, **options)
    legend.set_in_layout(False)


def _draw_panel(axes: Any, panel: Panel | Contours, styles: Mapping[str, Style]) -> None:
    """Draw the axes, the series and the dashed lines of a panel, but no texts inside it."""
    axes.set(xlabel=plain_line(panel.x), ylabel=plain_line(panel.y))
    axes.set_title(plain_line(panel.title))
    if isinstance(panel, Contours):
        axes.grid(visible=False)
        axes.spines[:].set_visible(True)
        axes.set(xlim=(panel.across[0], panel.across[-1]), ylim=(panel.up[0], panel.up[-1]))
        _set_ticks(axes.xaxis, np.asarray(panel.across), log=False)
        _set_ticks(axes.yaxis, np.asarray(panel.up), log=False)
        return
    visible = [_visible(series, panel) for series in panel.series]
    axes.margins(0.05, 0.08)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    for series, (points, _) in zip(panel.series, visible, strict=True):
        _draw_series(axes, series, points, styles[series.name])
    for name, value, level in _dashed(panel):
        draw = axes.axhline if level else axes.axvline
        draw(value, **dashed_look(name, styles))
    points_of_all = np.concatenate([np.empty((0, 2)), *(points for points, _ in visible)])
    _set_ticks(axes.xaxis, points_of_all[:, 0], log=panel.log_x)
    _set_ticks(axes.yaxis, points_of_all[:, 1], log=panel.log_y)


def _visible(series: Series, panel: Panel) -> tuple[NDArray[Any], list[str]]:
    """The points that have a place on the axes of a panel, and their labels."""
    points = np.asarray(series.points, dtype=float).reshape(-1, 2)
    low = [0 if log else -np.inf for log in (panel.log_x, panel.log_y)]
    kept = np.all(np.isfinite(points) & (points > low), axis=1)
    labels = series.labels or ("",) * len(points)
    return points[kept], [plain_line(labels[place]) for place in np.flatnonzero(kept)]


def _draw_series(axes: Any, series: Series, points: NDArray[Any], style: Style) -> None:
    """Draw the line and the marks of a series."""
    dense = series.joined and len(points) > _DENSE
    axes.plot(
        points[:, 0],
        points[:, 1],
        color=style.color,
        linestyle=style.line if series.joined else "none",
        # A dense line without a name needs no marks: no legend explains them.
        marker=style.marker if series.name or not dense else None,
        markersize=MARK_SIZES[style.marker],
        markevery=_MARK_SPACING if dense else None,
        # A white rim parts marks that overlap.
        markeredgecolor="white",
        markeredgewidth=0.6,
        label=plain_line(series.name) or "_nameless",
        zorder=3,
    )


def _dashed(panel: Panel) -> list[tuple[str, float, bool]]:
    """The dashed lines that have a place on the axes: name, value, whether it is a level."""
    lines = [(*line, True, panel.log_y) for line in panel.levels]
    lines += [(*line, False, panel.log_x) for line in panel.edges]
    return [
        (name, value, level)
        for name, value, level, log in lines
        if math.isfinite(value) and (value > 0 or not log)
    ]


def _set_ticks(axis: Any, values: NDArray[Any], *, log: bool) -> None:
    """Put ticks at round numbers, written as plain text."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if log:
        low, high = axis.get_view_interval()
        # Below two decades there are too few powers of ten to read values by.
        steps = (1.0,) if high >= 100 * low else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(subs=steps))
        axis.set_major_formatter(FuncFormatter(lambda value, _: axis_number(value)))
        axis.set_minor_formatter(NullFormatter())
    elif values.size and np.all(values == np.round(values)):
        axis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]))


def _label_panel(axes: Any, panel: Panel | Contours, styles: Mapping[str, Style]) -> None:
    """Write the texts inside a panel: labels of points, and names of dashed lines."""
    if isinstance(panel, Contours):
        _draw_contours(axes, panel)
        return
    visible = [_visible(series, panel) for series in panel.series]
    if not any(len(points) for points, _ in visible):
        _say_nothing_is_there(axes)
    room = LabelRoom(axes)
    for series, (points, _) in zip(panel.series, visible, strict=True):
        room.occupy(points, joined=series.joined)
    for name, value, level in _dashed(panel):
        color = dashed_look(name, styles)["color"]
        room.write_along(plain_line(name), value, color, level=level)
    for series, (points, labels) in zip(panel.series, visible, strict=True):
        for point, label in zip(points, labels, strict=True):
            if label:
                room.write_beside(label, point, styles[series.name].color)


def _say_nothing_is_there(axes: Any) -> None:
    spot = {"transform": axes.transAxes, "ha": "center", "va": "center"}
    axes.text(0.5, 0.5, "nothing to draw", color=FAINT, **spot)


def _draw_contours(axes: Any, panel: Contours) -> None:
    """Draw the lines of equal value, each with its value."""
    from matplotlib import colormaps

    values = np.ma.masked_invalid(np.asarray(panel.values, dtype=float))
    present = values.compressed()
    levels = sorted(
        {level for level in panel.levels if present.size and present.min() < level < present.max()}
    )
    if not levels:
        _say_nothing_is_there(axes)
        return
    # The bright end of viridis is too pale for thin lines.
    shades = colormaps["viridis"](np.linspace(0.0, 0.8, len(levels)))
    lines = axes.contour(panel.across, panel.up, values, levels, colors=shades, linewidths=1.3)
    for text in axes.clabel(lines, fmt=axis_number, fontsize=LABEL_SIZE, inline_spacing=4):
        # A number that is cut off at the border would be read as another number.
        text.set(clip_on=False, zorder=5)
