"""Texts and numbers as readers see them."""

from __future__ import annotations

import numpy as np
import pytest

from hybrid_gpu.lab.wording import axis_number, cell_text, plain_line


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),  # noqa: RUF001
        (True, "yes"),
        (np.False_, "no"),
        (1004993, "1,004,993"),
        (np.int32(-20000), "-20,000"),
        (0.0, "0"),
        (-0.0, "0"),
        (61.58499, "61.58"),
        (np.float32(0.25), "0.25"),
        (0.99994, "0.9999"),
        (205.0, "205"),
        (999.96, "1,000"),
        (1000.0, "1,000"),
        (35606.4, "35,606"),
        (-1234567.8, "-1,234,568"),
        (0.00012344, "0.0001234"),
        (0.0000123456, "1.23e-5"),
        (6.02214e23, "6.02e23"),
        (float("nan"), "NaN"),
        (float("-inf"), "-∞"),
        ("two\nlines", "two lines"),
    ],
)
def test_values_are_written_as_readers_want_them(value, text):
    assert cell_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.5, "0.5"), (20000, "20,000"), (1e7, "10⁷"), (2.5e-5, "2.5·10⁻⁵")],
)
def test_axes_have_plain_numbers_and_powers_of_ten(value, text):
    assert axis_number(value) == text


def test_line_has_no_control_characters():
    assert plain_line("a\x00b\n\tc\ud800 \u202e") == "a b c"
