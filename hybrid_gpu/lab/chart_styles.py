"""Colours, marks and lines of the series of a chart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_gpu.lab.canvas import FAINT
from hybrid_gpu.lab.chart_panels import Contours, Panel


@dataclass(frozen=True, slots=True)
class Style:
    """Colour, mark and line of a series, as matplotlib names them."""

    color: str
    marker: str
    line: str = "-"


# The colours are those of Okabe and Ito, which colour-blind readers can tell apart, without their
# yellow, which cannot be seen on white. No two methods share a mark, so a grey print can be read.
METHOD_STYLES = {
    "temporal": Style("#d55e00", "o"),
    "truncated": Style("#e69f00", "D"),
    "fsr": Style("#000000", "s"),
    "fsrw": Style("#cc79a7", "^"),
    "fsr-similarity": Style("#a50f15", "<"),
    "hybrid-paper": Style("#56b4e9", "P"),
    "shybrid": Style("#009e73", "v"),
    "shybrid, filtered": Style("#66a61e", ">"),
    "hybrid": Style("#0072b2", "X"),
    "hybrid, eigenvectors": Style("#7b3294", "p"),
    "nn": Style("#808080", "h"),
    "alpha-qe": Style("#8c6510", "*"),
}
_OTHER_STYLES = (
    Style("#0072b2", "o"),
    Style("#d55e00", "s"),
    Style("#009e73", "^"),
    Style("#cc79a7", "D"),
    Style("#e69f00", "v"),
    Style("#56b4e9", "P"),
    Style("#000000", "X"),
    Style("#808080", "h"),
    Style("#8c6510", "*"),
)
_LINES = ("-", "--", ":", "-.")
# Sizes at which the marks look equally large.
MARK_SIZES = {
    "D": 5.6,
    "s": 5.8,
    "o": 6.4,
    "h": 7.0,
    "p": 7.2,
    "^": 7.2,
    "<": 7.2,
    ">": 7.2,
    "v": 7.2,
    "P": 7.8,
    "X": 7.6,
    "*": 9.6,
}


def styles_of(panels: Sequence[Panel | Contours]) -> dict[str, Style]:
    """The style of every series of a chart, by its name.

    A ranking method always has the same style; a series whose name begins with that of a method
    has it too, if no other series of the chart does.
    """
    lines = [panel for panel in panels if isinstance(panel, Panel)]
    names = dict.fromkeys(series.name for panel in lines for series in panel.series)
    styles = {name: METHOD_STYLES[name] for name in names if name in METHOD_STYLES}
    for name in names:
        # "hybrid, r = 400" gets the style of "hybrid", unless another series has it.
        family = METHOD_STYLES.get(re.split(r"[ ,(:]", name.lower(), maxsplit=1)[0])
        if name not in styles and family is not None and family not in styles.values():
            styles[name] = family
    taken = {style.color for style in styles.values()}
    free = [style for style in _OTHER_STYLES if style.color not in taken] or list(_OTHER_STYLES)
    rest = [name for name in names if name not in styles]
    for place, name in enumerate(rest):
        turn, entry = divmod(place, len(free))
        # Each round through the colours shifts the marks by one: no two series look alike.
        mark = free[(entry + turn) % len(free)].marker
        styles[name] = Style(free[entry].color, mark, _LINES[turn % len(_LINES)])
    return {name: styles[name] for name in names}


def dashed_look(name: str, styles: Mapping[str, Style]) -> dict[str, Any]:
    """How a dashed line looks; one with the name of a series or a method has its colour."""
    style = styles.get(name) or METHOD_STYLES.get(name)
    color = FAINT if style is None else style.color
    return {"color": color, "linestyle": (0, (5, 3)), "linewidth": 1.1, "zorder": 2}
