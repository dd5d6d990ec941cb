"""Charts of measurements: lines, clouds of points and contours, side by side with one legend.

Drawn with matplotlib, which is optional: ``pip install 'hybrid-gpu[plots]'``. Nothing here goes
through ``pyplot``, and matplotlib's settings are the user's own again when a function returns.
"""

from __future__ import annotations

import io
import math
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.files.writing import replace_files
from hybrid_gpu.lab.chart_labels import LABEL_SIZE, LabelRoom
from hybrid_gpu.validation import check_count

INSTALL = "pip install 'hybrid-gpu[plots]'"
FAINT = "#555555"


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
    "hybrid, eigenvectors": _Style("#7b3294", "p"),
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
_SIZES = {
    "D": 5.6,
    "s": 5.8,
    "o": 6.4,
    "h": 7.0,
    "p": 7.2,
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
    with figures_of_ours(**_CHART_LOOK) as make_figure:
        figure = _lay_out(make_figure, panels, title=title, columns=columns, note=note)
        return {name: encoded(figure, name) for name in formats}


def plain_line(text: str) -> str:
    """A text on one line, without control characters: what a heading or a cell can show."""
    return " ".join("".join(mark if mark.isprintable() else " " for mark in text).split())


@contextmanager
def figures_of_ours(**look: Any) -> Iterator[Any]:
    """matplotlib's class of figures, and its own settings with a few of ours while it is in use."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError(f"pictures need matplotlib: {INSTALL}") from missing
    standard = matplotlib.rcParamsDefault
    chosen: dict[Any, Any] = {
        key: standard[key] for key in standard if key.partition(".")[0] in _SETTINGS
    }
    with matplotlib.rc_context(chosen | _BASE | look):
        yield Figure


def encoded(figure: Any, name: str) -> bytes:
    """The file of a figure. Neither the date nor matplotlib's version is in it."""
    # Formats differ in the notes that they carry, and an unknown one is a warning.
    silent = {"png": ("Software",), "svg": ("Creator", "Date", "Format", "Type")}.get(name, ())
    content = io.BytesIO()
    figure.savefig(content, format=name, metadata=dict.fromkeys(silent) or None)
    if name != "svg":
        return content.getvalue()
    # Readers without our font take their own; ours is wider than most, so texts fit.
    return content.getvalue().replace(b"'DejaVu Sans'", b"sans-serif")


def write_at(figure: Any, left: float, bottom: float, text: str, **style: Any) -> None:
    """Write on a figure, at a place in inches from its lower left corner."""
    width, height = figure.get_size_inches()
    figure.text(left / width, bottom / height, text, va="center", linespacing=1.4, **style)


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
    make_figure: Any,
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

    figure = make_figure((width, height), dpi=150, facecolor="white", layout="constrained")
    inside = (0, sum(below) / height, 1, rows * _PANEL_HEIGHT / height)
    figure.get_layout_engine().set(rect=inside, w_pad=0.09, h_pad=0.07)
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(places, panels, strict=False):
        _draw_panel(axes, panel, styles)
    write_at(figure, 0.12, height - 0.22, plain_line(title), fontsize=11, weight="bold")
    write_at(figure, 0.12, below[0] / 2, "\n".join(small), fontsize=7.5, color=FAINT)
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
        markersize=_SIZES[style.marker],
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
    color = FAINT if known is None else known.color
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
    room = LabelRoom(axes)
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
    axes.text(0.5, 0.5, "nothing to draw", color=FAINT, **spot)


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
    for text in axes.clabel(lines, fmt=_short, fontsize=LABEL_SIZE, inline_spacing=4):
        # Half a number at the border would be a wrong number.
        text.set(clip_on=False, zorder=5)
