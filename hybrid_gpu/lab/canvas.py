"""Figures of matplotlib, made with settings of our own and turned into bytes.

matplotlib is optional: ``pip install 'hybrid-gpu[plots]'``. Nothing here goes through ``pyplot``,
and matplotlib's settings are the user's own again when a function returns.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

INSTALL = "pip install 'hybrid-gpu[plots]'"
FAINT = "#555555"
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
