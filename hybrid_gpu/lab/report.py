"""Reports: measurements become tables, pictures, and one page that shows them.

Everything is made in memory first and then put in place whole. The same measurements give the same
bytes: no clock is read here, so what should be known of a run goes into ``facts``.
"""

from __future__ import annotations

import csv
import html
import io
import math
import numbers
import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_gpu.files.writing import replace_files
from hybrid_gpu.lab.charts import Contours, Panel, drawn, plain_line
from hybrid_gpu.validation import check_count

_MISSING = "–"  # noqa: RUF001
_FACTS = "The run"


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """One part of a report: some text, a chart, and a table.

    Attributes
    ----------
    name : str
        Stem of the section's files, such as ``figure-2``: letters, digits, ``-`` and ``_``.
    title : str
    text : str
        Plain paragraphs, with an empty line between them.
    rows : tuple of mappings
        The table; all rows have the same keys, which name its columns. Values are numbers, texts,
        booleans, or None for nothing.
    panels : tuple of Panel or Contours
        The chart.
    shown : bool
        False keeps a long table out of the report; it is in its CSV file anyway.
    columns : int
        Panels in a row, at most.
    """

    name: str
    title: str
    text: str
    rows: tuple[Mapping[str, Any], ...]
    panels: tuple[Panel | Contours, ...] = ()
    shown: bool = True
    columns: int = 2

    def __repr__(self) -> str:
        return f"Section({self.name!r}, {len(self.rows)} rows, {len(self.panels)} panels)"


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
    _check_sections(sections)
    tables = {part.name: _csv(part.rows) for part in sections if part.rows}
    pictures = {
        part.name: drawn(part.panels, columns=part.columns)
        for part in sections
        if draw and part.panels
    }
    words = {"title": title, "introduction": introduction}
    pages = {
        "report.md": _markdown(sections, facts, frozenset(pictures), **words),
        "report.html": _html(sections, facts, pictures, **words),
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


def cell_text(value: Any) -> str:
    """A value of a table as a reader wants it: four significant digits, thousands apart."""
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
    # Rounded first: 999.96 is 1,000 and no longer below it.
    size = abs(float(f"{value:.4g}"))
    if 1000 <= size < 1e12:
        return f"{value:,.0f}"
    if size != 0 and not 1e-4 <= size < 1e12:
        mantissa, _, exponent = f"{value:.3g}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    # Zero has no sign worth printing.
    return f"{value + 0.0:.4g}"


def _check_sections(sections: Sequence[Section]) -> None:
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


def _check_rows(section: Section) -> None:
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


def _is_numeric(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    known = [row[name] for row in rows if row[name] is not None]
    return bool(known) and all(
        isinstance(value, numbers.Real) and not isinstance(value, bool) for value in known
    )


def _paragraphs(text: str) -> list[str]:
    return [line for line in map(plain_line, re.split(r"\n\s*\n", text)) if line]


# ---- Markdown, as GitHub reads it.


def _markdown(
    sections: Sequence[Section],
    facts: Mapping[str, str],
    pictured: frozenset[str],
    *,
    title: str,
    introduction: str,
) -> str:
    blocks = [f"# {_quoted(title)}", *map(_quoted, _paragraphs(introduction))]
    for part in sections:
        blocks += [f"## {_quoted(part.title)}", *map(_quoted, _paragraphs(part.text))]
        if part.name in pictured:
            blocks.append(f"[![{_quoted(part.title)}]({part.name}.png)]({part.name}.svg)")
        if part.rows and part.shown:
            blocks.append(_markdown_table(part.rows))
        if part.rows:
            blocks.append(f"{_size(part)}: [{part.name}.csv]({part.name}.csv)")
    if facts:
        rows = [{"fact": name, "value": str(value)} for name, value in facts.items()]
        blocks += [f"## {_FACTS}", _markdown_table(rows)]
    return "\n\n".join(blocks) + "\n"


def _markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = list(rows[0])
    lines = [
        [_quoted(name) for name in columns],
        ["---:" if _is_numeric(rows, name) else "---" for name in columns],
        *([_quoted(cell_text(row[name])) for name in columns] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _quoted(text: str) -> str:
    """A text that Markdown shows as it is, on one line."""
    line = plain_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*\[\]|~$])", r"\\\1", line)
    # Inside of a word an underscore is an underscore already.
    line = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", line)
    # Only at the start of a line would these make a heading or a list.
    line = re.sub(r"^(#+|[-+=])(?=\s|$|[-=#])", r"\\\1", line)
    return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", line)


def _size(section: Section) -> str:
    rows = "1 row" if len(section.rows) == 1 else f"{len(section.rows):,} rows"
    return f"All digits, {rows}" if section.shown else f"The table, {rows}"


# ---- One HTML page with everything in it.

_CSS = """
:root { color-scheme: light dark; --ink: #1f2328; --paper: #ffffff; --faint: #59636e;
  --line: #d1d9e0; --band: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --paper: #15181c; --faint: #9aa4af;
  --line: #363c44; --band: #1d2127; } }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; color: var(--ink);
  background: var(--paper); font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.25; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
p { max-width: 45rem; }
a { color: inherit; }
nav ul { padding-left: 1.2rem; }
figure { margin: 1rem 0; padding: 0.25rem; background: #ffffff; border-radius: 6px; }
svg { display: block; width: 100%; height: auto; margin: 0 auto; }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { vertical-align: bottom; border-bottom-width: 2px; }
tbody tr:nth-child(even) { background: var(--band); }
.number { text-align: right; white-space: nowrap; }
.source { color: var(--faint); font-size: 0.85rem; }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } nav { display: none; }
  figure, tr { break-inside: avoid; } h2 { break-after: avoid; } .table { overflow: visible; } }
"""


def _html(
    sections: Sequence[Section],
    facts: Mapping[str, str],
    pictures: Mapping[str, Mapping[str, bytes]],
    *,
    title: str,
    introduction: str,
) -> str:
    name = html.escape(plain_line(title))
    blocks = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        '<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{name}</title>\n<style>{_CSS}</style>\n</head>",
        f"<body>\n<h1>{name}</h1>",
        *_html_paragraphs(introduction),
    ]
    if len(sections) > 1:
        entries = "\n".join(
            f'<li><a href="#{part.name}">{html.escape(plain_line(part.title))}</a></li>'
            for part in sections
        )
        blocks.append(f'<nav aria-label="Contents"><ul>\n{entries}\n</ul></nav>')
    for part in sections:
        blocks += _html_section(part, pictures.get(part.name))
    if facts:
        rows = [{"fact": fact, "value": str(value)} for fact, value in facts.items()]
        table = _html_table(rows, headed=False)
        blocks.append(f'<section class="facts">\n<h2>{_FACTS}</h2>\n{table}\n</section>')
    return "\n".join([*blocks, "</body>\n</html>\n"])


def _html_paragraphs(text: str) -> list[str]:
    return [f"<p>{html.escape(line)}</p>" for line in _paragraphs(text)]


def _html_section(section: Section, picture: Mapping[str, bytes] | None) -> list[str]:
    title = html.escape(plain_line(section.title))
    blocks = [f'<section id="{section.name}">\n<h2>{title}</h2>', *_html_paragraphs(section.text)]
    if picture is not None:
        inline = _inline_svg(picture["svg"], name=section.name, title=plain_line(section.title))
        blocks.append(f"<figure>{inline}</figure>")
    if section.rows and section.shown:
        blocks.append(_html_table(section.rows))
    if section.rows:
        link = f'<a href="{section.name}.csv">{section.name}.csv</a>'
        blocks.append(f'<p class="source">{_size(section)}: {link}</p>')
    return [*blocks, "</section>"]


def _html_table(rows: Sequence[Mapping[str, Any]], *, headed: bool = True) -> str:
    columns = {name: ' class="number"' if _is_numeric(rows, name) else "" for name in list(rows[0])}
    heads = "".join(
        f'<th scope="col"{look}>{html.escape(plain_line(name))}</th>'
        for name, look in columns.items()
    )
    head = f"<thead><tr>{heads}</tr></thead>\n" if headed else ""
    lines = []
    for row in rows:
        cells = (
            f"<td{look}>{html.escape(cell_text(row[name]))}</td>" for name, look in columns.items()
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    return f'<div class="table"><table>\n{head}<tbody>\n{body}\n</tbody>\n</table></div>'


def _inline_svg(content: bytes, *, name: str, title: str) -> str:
    """A picture of ours as an element of a page that holds several of them.

    Every ``id`` that something refers to is put behind the section's name; the others go.
    """
    root = ElementTree.fromstring(content)
    # An SVG file's style sheet would be one for the whole page.
    for parent in root.iter():
        for child in list(parent):
            if _local(child.tag) in ("style", "metadata"):
                parent.remove(child)
    text = " ".join(value for node in root.iter() for value in node.attrib.values())
    wanted = set(re.findall(r"#([\w.-]+)", text))
    for node in root.iter():
        node.tag = _local(node.tag)
        old = {_local(key): value for key, value in node.attrib.items()}
        node.attrib.clear()
        node.attrib.update(_renamed(old, wanted, name))
        # The indentation is half of the file. No text of ours is all blank.
        for side in ("text", "tail"):
            if not (getattr(node, side) or "").strip():
                setattr(node, side, None)
    width = float(root.attrib["viewBox"].split()[2])
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.attrib |= {"role": "img", "aria-label": title}
    # Points of the drawing are 1/72 inch, those of a page 1/96.
    look = f"max-width: {width * 96 / 72:.0f}px; stroke-linejoin: round; stroke-linecap: butt"
    root.set("style", look)
    return ElementTree.tostring(root, encoding="unicode")


def _local(name: str) -> str:
    """A name without its namespace: a page knows those of SVG by heart."""
    return name.rpartition("}")[2]


def _renamed(attributes: Mapping[str, str], wanted: set[str], name: str) -> dict[str, str]:
    kept = {}
    for key, value in attributes.items():
        if key == "id":
            # A section's name has no full stop, so this is the id of nothing else.
            if value in wanted:
                kept[key] = f"{name}.{value}"
        elif key == "href":
            kept[key] = re.sub(r"^#", f"#{name}.", value)
        else:
            kept[key] = value.replace("url(#", f"url(#{name}.")
    return kept
