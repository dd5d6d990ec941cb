"""How texts and numbers are written for readers, in charts, tables and pages."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np

_MISSING = "–"  # noqa: RUF001


def cell_text(value: Any) -> str:
    """A value as a cell of a table: four significant digits, and commas between thousands."""
    if value is None:
        return _MISSING
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, numbers.Integral):
        return f"{int(value):,}"
    if isinstance(value, numbers.Real):
        return _number(float(value))
    return plain_line(str(value))


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    # The rounded size decides: 999.96 is shown as 1,000.
    size = abs(float(f"{value:.4g}"))
    if 1000 <= size < 1e12:
        return f"{value:,.0f}"
    if size != 0 and not 1e-4 <= size < 1e12:
        mantissa, _, exponent = f"{value:.3g}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    # Adding zero turns -0.0 into 0.0.
    return f"{value + 0.0:.4g}"


def plain_line(text: str) -> str:
    """A text on one line, without control characters, for a heading or a cell."""
    return " ".join("".join(mark if mark.isprintable() else " " for mark in text).split())


def axis_number(value: float) -> str:
    """A number on an axis or a contour line, as plain text; powers of ten have raised digits."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    power = "10" + str(int(exponent)).translate(str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"))
    number = f"{float(mantissa):g}"
    return power if number == "1" else f"{number}·{power}"
