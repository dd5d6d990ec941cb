"""Reports: measurements become tables, pictures, and one page that shows them.

Everything is made in memory first, and then all files are put in place. The same measurements give
the same bytes: no clock is read here. Facts about a run, such as its date, are passed in as
``facts``.
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
from hybrid_gpu.lab.report_pages import render_pages
from hybrid_gpu.lab.report_sections import ReportSection, check_sections


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """The files of a report.

    Attributes
    ----------
    markdown, html : Path
        The same report twice: Markdown for GitHub, which needs the pictures beside it, and a web
        page with everything in it.
    tables, pictures : tuple of Path
        The CSV files; the PNG and SVG files.
    """

    markdown: Path
    html: Path
    tables: tuple[Path, ...]
    pictures: tuple[Path, ...]

    def __repr__(self) -> str:
        counts = f"{len(self.tables)} tables, {len(self.pictures)} pictures"
        return f"ReportFiles({str(self.html)!r}, {counts})"


def write_report(
    folder: str | os.PathLike[str],
    *,
    title: str,
    introduction: str,
    sections: Sequence[ReportSection],
    facts: Mapping[str, str],
    draw: bool = True,
) -> ReportFiles:
    """Write tables, pictures, ``report.md`` and ``report.html`` into a folder.

    A section with rows gets ``NAME.csv`` with all digits; a section with panels gets ``NAME.png``
    and ``NAME.svg``. Files of the same names are replaced. If a file cannot be made, none is.

    Parameters
    ----------
    folder
        It must exist.
    title, introduction
        The head of the report; the introduction is plain paragraphs.
    sections : sequence of ReportSection
    facts : mapping of str to str
        What the figures depend on: machine, versions, date, commit, settings.
    draw
        False leaves out the pictures; matplotlib is not needed then.

    Raises
    ------
    ImportError
        If Jinja2 is not installed, or if there are pictures to draw and matplotlib is not. Nothing
        is written then.
    ValueError
        If the folder does not exist, or a section's name, rows or image are not as described.
    """
    place = Path(folder)
    if not place.is_dir():
        raise ValueError(f"folder must be an existing folder; got {str(place)!r}. Create it first.")
    check_sections(sections)
    pictures = {
        section.name: drawn(section.panels, columns=section.columns)
        for section in sections
        if draw and section.panels
    }
    pages = render_pages(
        title=title,
        introduction=introduction,
        sections=sections,
        pictures={name: files["svg"] for name, files in pictures.items()},
        images=_images(place, sections),
        facts=facts,
    )
    table_files = {
        place / f"{section.name}.csv": _csv(section.rows).encode()
        for section in sections
        if section.rows
    }
    picture_files = {
        place / f"{name}.{ending}": content
        for name, files in pictures.items()
        for ending, content in files.items()
    }
    markdown, html = place / "report.md", place / "report.html"
    page_files = {markdown: pages.markdown.encode(), html: pages.html.encode()}
    # The pages last: what they link to is there before them.
    replace_files(table_files | picture_files | page_files)
    return ReportFiles(markdown, html, tables=tuple(table_files), pictures=tuple(picture_files))


def _images(folder: Path, sections: Sequence[ReportSection]) -> dict[str, bytes]:
    """The PNG files that sections show, by the names of the sections."""
    images = {}
    for section in sections:
        if not section.image:
            continue
        path = folder / section.image
        if path.name != section.image or not path.is_file():
            raise ValueError(
                f"image of section {section.name!r} must be a file in the folder of the report; "
                f"got {section.image!r}."
            )
        images[section.name] = path.read_bytes()
    return images


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table as CSV (RFC 4180), with all digits of every number."""
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
