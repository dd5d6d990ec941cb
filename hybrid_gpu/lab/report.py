"""Reports: measurements become tables, pictures, and one page that shows them.

Everything is made in memory first and then put in place whole. The same measurements give the same
bytes: no clock is read here, so what should be known of a run goes into ``facts``.
"""

from __future__ import annotations

import csv
import io
import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_gpu.files.writing import replace_files
from hybrid_gpu.lab.charts import drawn
from hybrid_gpu.lab.report_pages import html_page, markdown_page
from hybrid_gpu.lab.report_sections import Section, check_sections


@dataclass(frozen=True, slots=True)
class Report:
    """The files of a report.

    Attributes
    ----------
    markdown, html : Path
        The same report twice: for GitHub, beside its pictures, and as one page of its own.
    tables, pictures : tuple of Path
        CSV files, and PNG and SVG files.
    """

    markdown: Path
    html: Path
    tables: tuple[Path, ...]
    pictures: tuple[Path, ...]

    def __repr__(self) -> str:
        return (
            f"Report({str(self.html)!r}, {len(self.tables)} tables, {len(self.pictures)} pictures)"
        )


def write_report(
    folder: str | os.PathLike[str],
    *,
    title: str,
    introduction: str,
    sections: Sequence[Section],
    facts: Mapping[str, str],
    draw: bool = True,
) -> Report:
    """Write tables, pictures, ``report.md`` and ``report.html`` into a folder.

    Each section with rows gets ``NAME.csv`` with all digits, each one with panels ``NAME.png`` and
    ``NAME.svg``. Files of the same names are replaced, all of them or none.

    Parameters
    ----------
    folder
        It must exist.
    title, introduction
        The head of the report; the introduction is plain paragraphs.
    sections : sequence of Section
    facts : mapping of str to str
        What the figures depend on: machine, versions, date, commit, settings.
    draw
        False leaves out the pictures, and needs no matplotlib.

    Raises
    ------
    ImportError
        If there are pictures to draw and matplotlib is not installed; nothing is written then.
    ValueError
        If the folder does not exist, or a section's name or rows are not as described.
    """
    place = Path(folder)
    if not place.is_dir():
        raise ValueError(f"folder must be an existing folder; got {str(place)!r}. Create it first.")
    check_sections(sections)
    tables = {part.name: _csv(part.rows) for part in sections if part.rows}
    pictures = {
        part.name: drawn(part.panels, columns=part.columns)
        for part in sections
        if draw and part.panels
    }
    words = {"title": title, "introduction": introduction}
    pages = {
        "report.md": markdown_page(sections, facts, frozenset(pictures), **words),
        "report.html": html_page(sections, facts, pictures, **words),
    }
    csv_files = {place / f"{name}.csv": content.encode() for name, content in tables.items()}
    picture_files = {
        place / f"{name}.{ending}": content
        for name, files in pictures.items()
        for ending, content in files.items()
    }
    page_files = {place / name: page.encode() for name, page in pages.items()}
    # The pages last: what they link to is there before them.
    replace_files(csv_files | picture_files | page_files)
    markdown, page = page_files
    return Report(markdown, page, tables=tuple(csv_files), pictures=tuple(picture_files))


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table as RFC 4180 has it, from which every number comes back as it was."""
    columns = list(rows[0])
    content = io.StringIO(newline="")
    writer = csv.writer(content, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_exact(row[name]) for name in columns] for row in rows)
    return content.getvalue()


def _exact(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (str, bool, np.bool_)):
        return str(value)
    # NumPy's scalars print their type, too.
    return repr(int(value) if isinstance(value, numbers.Integral) else float(value))


# ---- Markdown, as GitHub reads it.


# ---- One HTML page with everything in it.
