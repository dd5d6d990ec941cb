"""A report as one page: Markdown as GitHub reads it, and HTML with everything in it."""

from __future__ import annotations

import html
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_gpu.lab.inline_svg import inline_svg
from hybrid_gpu.lab.report_sections import Section
from hybrid_gpu.lab.wording import cell_text, plain_line

_FACTS = "The run"


def _is_numeric(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    known = [row[name] for row in rows if row[name] is not None]
    return bool(known) and all(
        isinstance(value, numbers.Real) and not isinstance(value, bool) for value in known
    )


def _paragraphs(text: str) -> list[str]:
    return [line for line in map(plain_line, re.split(r"\n\s*\n", text)) if line]


def markdown_page(
    sections: Sequence[Section],
    facts: Mapping[str, str],
    pictured: frozenset[str],
    *,
    title: str,
    introduction: str,
) -> str:
    """The report as Markdown, beside its pictures and tables."""
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


def html_page(
    sections: Sequence[Section],
    facts: Mapping[str, str],
    pictures: Mapping[str, Mapping[str, bytes]],
    *,
    title: str,
    introduction: str,
) -> str:
    """The report as one HTML page."""
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
        inline = inline_svg(picture["svg"], name=section.name, title=plain_line(section.title))
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
