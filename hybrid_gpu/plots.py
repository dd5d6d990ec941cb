"""Charts of measurements and pictures of rankings, drawn with matplotlib.

matplotlib is optional: ``pip install 'hybrid-gpu[plots]'``. Nothing here goes through ``pyplot``,
and matplotlib's settings are the user's own again when a function returns.
"""

from __future__ import annotations

import io
import itertools
import math
import os
import re
import secrets
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.validation import check_count

INSTALL = "pip install 'hybrid-gpu[plots]'"

_RIGHT, _WRONG, _QUERY, _FAINT = "#1a7f37", "#c4231b", "#333333", "#555555"


@dataclass(frozen=True, slots=True)
class Series:
    """One line, or one cloud of points.

    Attributes
    ----------
    name : str
        Stands in the legend; empty for none. A ranking method has the same colour in every chart.
    points : tuple of (x, y)
        Points that are not finite are left out, and so are those below zero on a log axis.
    labels : tuple of str
        A short text beside each point, or nothing at all.
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
        What stands above the panel and beside its axes.
    series : tuple of Series
    log_x, log_y : bool
    levels, edges : tuple of (name, value)
        Dashed horizontal and vertical lines.
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
        What stands above the panel and beside its axes.
    across, up : tuples of float
        Increasing positions of the columns and of the rows of ``values``.
    values : float array of shape (len(up), len(across))
    levels : tuple of float
        Values to draw a line for; those out of the range of ``values`` are left out.
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


@dataclass(frozen=True, slots=True)
class _Style:
    color: str
    marker: str
    line: str = "-"


# The colours are those of Okabe and Ito, which the colour-blind tell apart, without their yellow,
# which nobody sees on white. No two methods share a mark: a grey print can be read as well.
_METHODS = {
    "temporal": _Style("#d55e00", "o"),
    "truncated": _Style("#e69f00", "D"),
    "fsr": _Style("#000000", "s"),
    "fsrw": _Style("#cc79a7", "^"),
    "hybrid-paper": _Style("#56b4e9", "P"),
    "shybrid": _Style("#009e73", "v"),
    "hybrid": _Style("#0072b2", "X"),
    "nn": _Style("#808080", "h"),
    "alpha-qe": _Style("#8c6510", "*"),
}
_OTHERS = (
    _Style("#0072b2", "o"),
    _Style("#d55e00", "s"),
    _Style("#009e73", "^"),
    _Style("#cc79a7", "D"),
    _Style("#e69f00", "v"),
    _Style("#56b4e9", "P"),
    _Style("#000000", "X"),
    _Style("#808080", "h"),
    _Style("#8c6510", "*"),
)
_LINES = ("-", "--", ":", "-.")
# Marks of one nominal size differ in how large they look.
_MARK_SIZES = {
    "D": 5.6,
    "s": 5.8,
    "o": 6.4,
    "h": 7.0,
    "^": 7.2,
    "v": 7.2,
    "P": 7.8,
    "X": 7.6,
    "*": 9.6,
}

# What a user may have set in a matplotlibrc must not change the pictures.
_SETTINGS = (
    *("axes", "contour", "figure", "font", "grid", "image", "legend", "lines", "markers"),
    *("patch", "path", "savefig", "svg", "text", "xaxis", "xtick", "yaxis", "ytick"),
)
_BASE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "svg.fonttype": "none",
    "svg.hashsalt": "hybrid-gpu",
    # A dollar in a name is a dollar.
    "text.parse_math": False,
}
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
# A dense line carries marks at this fraction of its length only.
_DENSE, _MARK_SPACING = 25, 0.12
_LABEL_SIZE, _LABEL_GAP = 7.0, 4.5


def chart(
    panels: Sequence[Panel | Contours],
    *,
    path: str | os.PathLike[str],
    title: str = "",
    columns: int = 2,
    note: str = "",
) -> None:
    """Draw panels side by side, with one legend for all of them, into a PNG or SVG file.

    A series has the same colour and mark in all panels. The same panels give the same bytes,
    and the file is put in place whole or not at all.

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
        If there is no panel, if a part of one does not fit another, or for another file ending.
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
    """The chart that :func:`chart` writes, as the bytes of a file of each format."""
    check_count(columns, "columns")
    _check_panels(panels)
    figure_class = _figure_class()
    with _own_settings(**_CHART_LOOK):
        figure = _lay_out(figure_class, panels, title=title, columns=columns, note=note)
        return {name: _encoded(figure, name) for name in formats}


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Write some files, none of which is ever seen half-written.

    All of them are written under temporary names first: if that fails, nothing has changed.
    """
    temporary = {
        path: path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
        for path in contents
    }
    try:
        for path, content in contents.items():
            temporary[path].write_bytes(content)
        for path, name in temporary.items():
            os.replace(name, path)
    finally:
        for name in temporary.values():
            name.unlink(missing_ok=True)


def plain_line(text: str) -> str:
    """A text on one line, without control characters: what a heading or a cell can show."""
    return " ".join("".join(mark if mark.isprintable() else " " for mark in text).split())


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError(f"pictures need matplotlib: {INSTALL}") from missing
    return Figure


@contextmanager
def _own_settings(**look: Any) -> Iterator[None]:
    import matplotlib

    standard = matplotlib.rcParamsDefault
    chosen: dict[Any, Any] = {
        key: standard[key] for key in standard if key.partition(".")[0] in _SETTINGS
    }
    with matplotlib.rc_context(chosen | _BASE | look):
        yield


def _encoded(figure: Any, name: str) -> bytes:
    """The file of a figure. Neither the date nor matplotlib's version is in it."""
    # Formats differ in the notes that they carry, and an unknown one is a warning.
    silent = {"png": ("Software",), "svg": ("Creator", "Date", "Format", "Type")}.get(name, ())
    content = io.BytesIO()
    figure.savefig(content, format=name, metadata=dict.fromkeys(silent) or None)
    if name != "svg":
        return content.getvalue()
    # Readers without our font take their own; ours is wider than most, so texts fit.
    return content.getvalue().replace(b"'DejaVu Sans'", b"sans-serif")


def _check_panels(panels: Sequence[Panel | Contours]) -> None:
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


def _styles(panels: Sequence[Panel | Contours]) -> dict[str, _Style]:
    """A look for every series of a chart, by name."""
    lines = [panel for panel in panels if isinstance(panel, Panel)]
    names = dict.fromkeys(series.name for panel in lines for series in panel.series)
    styles = {name: _METHODS[name] for name in names if name in _METHODS}
    for name in names:
        # "hybrid, r = 400" looks like "hybrid", unless another series does already.
        family = _METHODS.get(re.split(r"[ ,(:]", name.lower(), maxsplit=1)[0])
        if name not in styles and family is not None and family not in styles.values():
            styles[name] = family
    taken = {style.color for style in styles.values()}
    free = [style for style in _OTHERS if style.color not in taken] or list(_OTHERS)
    rest = [name for name in names if name not in styles]
    for place, name in enumerate(rest):
        turn, entry = divmod(place, len(free))
        # The marks move on by one with every turn, so that no two series look alike.
        mark = free[(entry + turn) % len(free)].marker
        styles[name] = _Style(free[entry].color, mark, _LINES[turn % len(_LINES)])
    return {name: styles[name] for name in names}


def _lay_out(
    figure_class: Any,
    panels: Sequence[Panel | Contours],
    *,
    title: str,
    columns: int,
    note: str,
) -> Any:
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = _ONE_PANEL_WIDTH if columns == 1 else columns * _PANEL_WIDTH
    styles = _styles(panels)
    names = [name for name in styles if name]
    # Three panels in two columns: the legend has the fourth place.
    beside = rows * columns > len(panels) and bool(names)
    across = 1 if beside else _legend_columns(names, width)
    small = textwrap.wrap(plain_line(note), int(width * 16))
    below = [
        _BORDER + len(small) * _NOTE_LINE + (0.05 if small else 0),
        0 if beside else math.ceil(len(names) / across) * _LEGEND_LINE + (0.1 if names else 0),
    ]
    above = _TITLE_HEIGHT if title else _BORDER
    height = above + rows * _PANEL_HEIGHT + sum(below)

    figure = figure_class((width, height), dpi=150, facecolor="white", layout="constrained")
    inside = (0, sum(below) / height, 1, rows * _PANEL_HEIGHT / height)
    figure.get_layout_engine().set(rect=inside, w_pad=0.09, h_pad=0.07)
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(places, panels, strict=False):
        _draw_panel(axes, panel, styles)
    _write(figure, 0.12, height - 0.22, plain_line(title), fontsize=11, weight="bold")
    _write(figure, 0.12, below[0] / 2, "\n".join(small), fontsize=7.5, color=_FAINT)
    if names:
        _draw_legend(figure, places, styles, across, None if beside else below[0] / height)

    # Texts look for a free spot, which is known when everything else has its place.
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")
    for axes, panel in zip(places, panels, strict=False):
        _label_panel(axes, panel, styles)
    return figure


def _legend_columns(names: Sequence[str], width: float) -> int:
    longest = max((len(name) for name in names), default=1)
    return max(1, min(len(names), int(width / (0.085 * longest + 0.6))))


def _draw_legend(
    figure: Any, places: Any, styles: Mapping[str, _Style], across: int, bottom: float | None
) -> None:
    """One legend for all panels: above ``bottom``, or in the last place of the grid if None."""
    handles: dict[str, Any] = {}
    for axes in places:
        for line, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, line)
    # A series may be joined in one panel and not in another: the first one stands for it.
    names = [name for name in map(plain_line, styles) if name in handles]
    lines = [handles[name] for name in names]
    options = {"frameon": False, "ncols": across, "handlelength": 2.4}
    if bottom is None:
        legend = places[-1].legend(lines, names, loc="center", labelspacing=0.9, **options)
    else:
        spot = {"loc": "lower center", "bbox_to_anchor": (0.5, bottom), "borderaxespad": 0.0}
        legend = figure.legend(lines, names, **spot, **options)
    legend.set_in_layout(False)


def _draw_panel(axes: Any, panel: Panel | Contours, styles: Mapping[str, _Style]) -> None:
    axes.set(xlabel=plain_line(panel.x), ylabel=plain_line(panel.y))
    axes.set_title(plain_line(panel.title))
    if isinstance(panel, Contours):
        axes.grid(visible=False)
        axes.spines[:].set_visible(True)
        axes.set(xlim=(panel.across[0], panel.across[-1]), ylim=(panel.up[0], panel.up[-1]))
        _set_ticks(axes.xaxis, np.asarray(panel.across), log=False)
        _set_ticks(axes.yaxis, np.asarray(panel.up), log=False)
        return
    seen = [_visible(series, panel) for series in panel.series]
    axes.margins(0.05, 0.08)
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    for series, (points, _) in zip(panel.series, seen, strict=True):
        _draw_series(axes, series, points, styles[series.name])
    for name, value, level in _dashed(panel):
        draw = axes.axhline if level else axes.axvline
        draw(value, **_line_look(name, styles))
    together = np.concatenate([np.empty((0, 2)), *(points for points, _ in seen)])
    _set_ticks(axes.xaxis, together[:, 0], log=panel.log_x)
    _set_ticks(axes.yaxis, together[:, 1], log=panel.log_y)


def _visible(series: Series, panel: Panel) -> tuple[NDArray[Any], list[str]]:
    """The points that have a place on the axes of a panel, and their labels."""
    points = np.asarray(series.points, dtype=float).reshape(-1, 2)
    low = [0 if log else -np.inf for log in (panel.log_x, panel.log_y)]
    kept = np.all(np.isfinite(points) & (points > low), axis=1)
    labels = series.labels or ("",) * len(points)
    return points[kept], [plain_line(labels[place]) for place in np.flatnonzero(kept)]


def _draw_series(axes: Any, series: Series, points: NDArray[Any], style: _Style) -> None:
    dense = series.joined and len(points) > _DENSE
    axes.plot(
        points[:, 0],
        points[:, 1],
        color=style.color,
        linestyle=style.line if series.joined else "none",
        # A line without a name has nothing that its marks would tell.
        marker=style.marker if series.name or not dense else None,
        markersize=_MARK_SIZES[style.marker],
        markevery=_MARK_SPACING if dense else None,
        # A white rim keeps marks apart that lie on each other.
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


def _line_look(name: str, styles: Mapping[str, _Style]) -> dict[str, Any]:
    known = styles.get(name) or _METHODS.get(name)
    color = _FAINT if known is None else known.color
    return {"color": color, "linestyle": (0, (5, 3)), "linewidth": 1.1, "zorder": 2}


def _set_ticks(axis: Any, values: NDArray[Any], *, log: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if log:
        low, high = axis.get_view_interval()
        # Less than two decades have too few powers of ten to read a value off.
        steps = (1.0,) if high >= 100 * low else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(subs=steps))
        axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        axis.set_minor_formatter(NullFormatter())
    elif values.size and np.all(values == np.round(values)):
        axis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]))


def _short(value: float) -> str:
    """A number on an axis or a contour line; plain text, also for the powers of ten."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"))
    number = f"{float(mantissa):g}"
    return power if number == "1" else f"{number}·{power}"


def _label_panel(axes: Any, panel: Panel | Contours, styles: Mapping[str, _Style]) -> None:
    if isinstance(panel, Contours):
        _draw_contours(axes, panel)
        return
    seen = [_visible(series, panel) for series in panel.series]
    if not any(len(points) for points, _ in seen):
        _say_nothing_is_there(axes)
    room = _Room(axes)
    for series, (points, _) in zip(panel.series, seen, strict=True):
        room.occupy(points, joined=series.joined)
    for name, value, level in _dashed(panel):
        color = _line_look(name, styles)["color"]
        room.write_along(plain_line(name), value, color, level=level)
    for series, (points, labels) in zip(panel.series, seen, strict=True):
        for point, label in zip(points, labels, strict=True):
            if label:
                room.write_beside(label, point, styles[series.name].color)


def _say_nothing_is_there(axes: Any) -> None:
    spot = {"transform": axes.transAxes, "ha": "center", "va": "center"}
    axes.text(0.5, 0.5, "nothing to draw", color=_FAINT, **spot)


def _draw_contours(axes: Any, panel: Contours) -> None:
    from matplotlib import colormaps

    values = np.ma.masked_invalid(np.asarray(panel.values, dtype=float))
    known = values.compressed()
    levels = sorted(
        {level for level in panel.levels if known.size and known.min() < level < known.max()}
    )
    if not levels:
        _say_nothing_is_there(axes)
        return
    # Viridis grows too pale for thin lines at its bright end.
    shades = colormaps["viridis"](np.linspace(0.0, 0.8, len(levels)))
    lines = axes.contour(panel.across, panel.up, values, levels, colors=shades, linewidths=1.3)
    for text in axes.clabel(lines, fmt=_short, fontsize=_LABEL_SIZE, inline_spacing=4):
        # Half a number at the border would be a wrong number.
        text.set(clip_on=False, zorder=5)


class _Room:
    """Where marks, lines and texts of a panel are, in points, and where a text would fit."""

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
        """Keep texts off the marks, and a little less strictly off the lines between them."""
        places = self._place(points) if len(points) else points
        for place in places:
            self._block(place, 3.0, 1.0)
        for start, end in itertools.pairwise(places):
            pieces = int(np.hypot(*(end - start)) / 4) if joined else 0
            for piece in range(1, pieces):
                self._block(start + (end - start) * piece / pieces, 2.0, 0.5)

    def write_beside(self, text: str, point: NDArray[Any], color: str) -> None:
        """Put a text on the free side of a mark."""
        half = self._half_size(text)
        sides = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1))
        # At a corner the gap is smaller: the marks are round.
        gaps = [_LABEL_GAP * (0.4 if all(side) else 1.0) for side in sides]
        place = self._place(point)
        spots = [
            place + (half + gap) * np.array(side) for gap, side in zip(gaps, sides, strict=True)
        ]
        self._write(text, self._best(spots, half), half, color=_darker(color))

    def write_along(self, text: str, value: float, color: str, *, level: bool) -> None:
        """Put the name of a dashed line at an end of it, or in its middle, on either side."""
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
        return np.array([0.31 * len(text), 0.5]) * _LABEL_SIZE

    def _best(self, spots: Sequence[NDArray[Any]], half: NDArray[Any]) -> NDArray[Any]:
        """The spot that covers least; the earlier one of two that are alike."""
        return min(spots, key=lambda spot: self._covered(spot, half))

    def _covered(self, spot: NDArray[Any], half: NDArray[Any]) -> float:
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
        self._axes.text(across, up, text, fontsize=_LABEL_SIZE, zorder=4, **where, **look)
        self._boxes.append((*(spot - half), *(spot + half), 2.0))


def _darker(color: str) -> str:
    """A colour in which small letters can be read on white."""
    parts = [int(color[start : start + 2], 16) for start in (1, 3, 5)]
    return "#" + "".join(f"{round(0.72 * part):02x}" for part in parts)


# The layout of a grid of rankings, in inches.
_CELL = 0.62
_MARGIN = 0.12
_GAP = 0.3
_HEADING = 0.7
_QUERY_SIDE = 1.4 * _CELL
_FIRST_RESULT = _MARGIN + _QUERY_SIDE + 1.1
_LEAST_WIDTH = 6.2


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

    Each query has two rows, the order by similarity above the order after diffusion. Right results
    have a green frame, wrong ones a dashed red frame and a cross.

    Parameters
    ----------
    images : array of shape (n, height, width) or (n, height, width, 3)
        Pictures of the database.
    query_images : array of shape (m, height, width) or (m, height, width, 3)
        Pictures of the queries; all of them are drawn, so pass a few.
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
    figure_class = _figure_class()
    pictures, questions = np.asarray(images), np.asarray(query_images)
    orders = [np.asarray(before_ids), np.asarray(after_ids)]
    classes, wanted = np.asarray(labels), np.asarray(query_labels)
    _check_queries(len(questions), before_ids=orders[0], after_ids=orders[1], query_labels=wanted)
    shown = min(check_count(results, "results"), *(order.shape[1] for order in orders))

    m = len(questions)
    width = max(_LEAST_WIDTH, _FIRST_RESULT + shown * _CELL + _MARGIN)
    block = 2 * _CELL + _GAP
    height = _HEADING + m * block - _GAP + _MARGIN
    ending = Path(path).suffix.lower().lstrip(".") or "png"
    with _own_settings():
        figure = figure_class(figsize=(width, height), dpi=150, facecolor="white")
        _write_heading(figure, title)
        for query in range(m):
            top = height - _HEADING - query * block
            _draw_query(figure, questions[query], wanted[query], top)
            for row, (name, order) in enumerate(
                zip(("similarity", "diffusion"), orders, strict=True)
            ):
                # -1 stands for "nothing found".
                ids = order[query, :shown][order[query, :shown] >= 0]
                right = classes[ids] == wanted[query]
                _draw_row(figure, name, pictures[ids], right, top - (row + 1) * _CELL)
        content = _encoded(figure, ending)
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
    _write(figure, _MARGIN, height - 0.22, title, fontsize=10, weight="bold")
    _write(figure, _MARGIN, height - 0.46, legend, fontsize=8, color=_FAINT)


def _draw_query(figure: Any, picture: NDArray[Any], label: Any, top: float) -> None:
    bottom = top - _QUERY_SIDE - 0.08
    _draw(_axes(figure, _MARGIN, bottom, _QUERY_SIDE), picture, _QUERY, "solid", 1.2)
    middle = _MARGIN + _QUERY_SIDE / 2
    _write(figure, middle, bottom - 0.08, f"query: {label}", fontsize=8, ha="center")


def _draw_row(
    figure: Any, name: str, pictures: NDArray[Any], right: NDArray[np.bool_], bottom: float
) -> None:
    text = f"{name}\n{int(right.sum())} of {right.size} right"
    _write(figure, _FIRST_RESULT - 0.1, bottom + _CELL / 2, text, fontsize=8, ha="right")
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


def _write(figure: Any, left: float, bottom: float, text: str, **style: Any) -> None:
    width, height = figure.get_size_inches()
    figure.text(left / width, bottom / height, text, va="center", linespacing=1.4, **style)


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
