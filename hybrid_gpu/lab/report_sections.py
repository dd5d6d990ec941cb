"""The sections that a report is made of."""

from __future__ import annotations

import numbers
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid_gpu.lab.chart_panels import Contours, Panel
from hybrid_gpu.validation import check_count


@dataclass(frozen=True, slots=True, eq=False)
class ReportSection:
    """One part of a report: some text, a chart, and a table.

    Attributes
    ----------
    name : str
        Stem of the section's files, such as ``figure-2``: letters, digits, ``-`` and ``_``.
    title : str
    text : str
        Plain paragraphs, with an empty line between them.
    rows : tuple of mappings
        The table; all rows have the same keys, which name its columns. Values are numbers, texts or
        booleans; None is an empty cell.
    panels : tuple of Panel or Contours
        The chart.
    shown : bool
        False keeps a long table out of the pages; the CSV file has it.
    columns : int
        Panels in a row, at most.
    image : str
        A PNG file in the folder of the report, shown below the table; empty for none.
    notes : str
        Plain paragraphs below the table.
    """

    name: str
    title: str
    text: str
    rows: tuple[Mapping[str, Any], ...]
    panels: tuple[Panel | Contours, ...] = ()
    shown: bool = True
    columns: int = 2
    image: str = ""
    notes: str = ""

    def __repr__(self) -> str:
        return f"ReportSection({self.name!r}, {len(self.rows)} rows, {len(self.panels)} panels)"


def check_sections(sections: Sequence[ReportSection]) -> None:
    """Refuse sections whose names cannot be names of files, or whose rows are no table."""
    names = {"report"}
    for section in sections:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", section.name):
            raise ValueError(
                f"the name of a section must be letters, digits, '-' and '_'; got "
                f"{section.name!r}. It becomes the name of files."
            )
        # File systems that ignore case would mix up two of them.
        if section.name.lower() in names:
            raise ValueError(
                f"each section must have files of its own; got the name {section.name!r} again. "
                "Rename one ('report' is taken)."
            )
        names.add(section.name.lower())
        check_count(section.columns, f"columns of section {section.name!r}")
        _check_rows(section)


def _check_rows(section: ReportSection) -> None:
    """Refuse rows with different keys, or with values that are not plain."""
    expected = list(section.rows[0]) if section.rows else ["a column"]
    if not expected or not all(isinstance(key, str) for key in expected):
        raise ValueError(
            f"rows of section {section.name!r} must have texts as keys, at least one; got "
            f"{expected}."
        )
    for place, row in enumerate(section.rows):
        if set(row) != set(expected):
            raise ValueError(
                f"rows of section {section.name!r} must all have the keys {expected}; row {place} "
                f"has {list(row)}. Write None where nothing was measured."
            )
        for key, value in row.items():
            if not isinstance(value, (str, bool, np.bool_, numbers.Real, type(None))):
                raise ValueError(
                    f"a cell must be a number, a text, a boolean or None; got {type(value)} in "
                    f"column {key!r} of section {section.name!r}. Convert it, e.g. with str()."
                )
