"""Figures of matplotlib, made with settings of our own and turned into bytes.

matplotlib is optional: ``pip install -e ".[plots]"``. Nothing here goes through ``pyplot``,
and matplotlib's settings are the user's own again when a function returns.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hybrid_gpu.errors import install_line

INSTALL = install_line("plots")
FAINT = "#555555"
# Settings that a user may have changed, and that must not change the pictures.
_SETTINGS = (
    *("axes", "contour", "figure", "font", "grid", "image", "legend", "lines", "markers"),
    *("patch", "path", "savefig", "svg", "text", "xaxis", "xtick", "yaxis", "ytick"),
)
_BASE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "svg.fonttype": "none",
    "svg.hashsalt": "hybrid-gpu",
    # A dollar sign in a name does not begin a formula.
    "text.parse_math": False,
}


@contextmanager
def figures_of_ours(**look: Any) -> Iterator[Any]:
    """Give matplotlib's class of figures, and replace the user's settings until the block ends.

    Parameters
    ----------
    **look
        Settings of matplotlib, with ``.`` in their names, that differ from its defaults.

    Raises
    ------
    ImportError
        If matplotlib is not installed; names the line that installs it.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError(f"pictures need matplotlib; {INSTALL}") from missing
    standard = matplotlib.rcParamsDefault
    chosen: dict[Any, Any] = {
        key: standard[key] for key in standard if key.partition(".")[0] in _SETTINGS
    }
    with matplotlib.rc_context(chosen | _BASE | look):
        yield Figure


def encoded(figure: Any, name: str) -> bytes:
    """The bytes of a figure's file, without date or version: the same figure, the same bytes.

    Parameters
    ----------
    name
        The format, such as ``"png"``.
    """
    # Notes to leave out. matplotlib warns about a note that a format does not have.
    silent = {"png": ("Software",), "svg": ("Creator", "Date", "Format", "Type")}.get(name, ())
    content = io.BytesIO()
    figure.savefig(content, format=name, metadata=dict.fromkeys(silent) or None)
    if name != "svg":
        return content.getvalue()
    # Readers without this font use another one; most are narrower, so texts still fit.
    return content.getvalue().replace(b"'DejaVu Sans'", b"sans-serif")


def write_at(figure: Any, left: float, bottom: float, text: str, **style: Any) -> None:
    """Write on a figure, at a place in inches from its lower left corner."""
    width, height = figure.get_size_inches()
    figure.text(left / width, bottom / height, text, va="center", linespacing=1.4, **style)
