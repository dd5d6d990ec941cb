"""A report as one page: Markdown as GitHub reads it, and HTML with everything in it.

The pages are Jinja2 templates in ``templates``. Jinja2 is optional:
``pip install -e ".[plots]"``.
"""

from __future__ import annotations

import base64
import numbers
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_gpu.lab.canvas import INSTALL
from hybrid_gpu.lab.inline_svg import inline_svg
from hybrid_gpu.lab.report_sections import ReportSection
from hybrid_gpu.lab.wording import cell_text, plain_line


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """The same report twice, as the texts of two files."""

    markdown: str
    html: str


def render_pages(
    *,
    title: str,
    introduction: str,
    sections: Sequence[ReportSection],
    pictures: Mapping[str, bytes],
    images: Mapping[str, bytes],
    facts: Mapping[str, str],
) -> Pages:
    """Fill the templates of a report.

    Parameters
    ----------
    title, introduction
        The head of the report; the introduction is plain paragraphs.
    sections : sequence of ReportSection
        They must have passed ``check_sections``.
    pictures : mapping of str to bytes
        The SVG file of each section that has one, by the section's name.
    images : mapping of str to bytes
        The PNG file of each section that shows one.
    facts : mapping of str to str
        Shown as a table at the end.

    Raises
    ------
    ImportError
        If Jinja2 is not installed.
    """
    templates = load_templates()
    titles = {section.name: plain_line(section.title) for section in sections}
    values = {
        "title": title,
        "introduction": introduction,
        "sections": sections,
        "pictures": {
            name: inline_svg(svg, name=name, title=titles[name]) for name, svg in pictures.items()
        },
        # In the page itself, which then needs no other file.
        "images": {
            name: f"data:image/png;base64,{base64.b64encode(content).decode()}"
            for name, content in images.items()
        },
        "facts": [{"fact": name, "value": str(value)} for name, value in facts.items()],
    }
    return Pages(
        markdown=templates.get_template("report.md.jinja").render(values),
        html=templates.get_template("report.html.jinja").render(values),
    )


def load_templates() -> Any:
    """Jinja2's environment with the templates of a report; ``ImportError`` without Jinja2."""
    try:
        import jinja2
    except ImportError as missing:
        raise ImportError(f"reports need Jinja2; {INSTALL}") from missing
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hybrid_gpu.lab"),
        autoescape=jinja2.select_autoescape(("html.jinja",), default=False),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "cell": cell_text,
        "line": plain_line,
        "paragraphs": _paragraphs,
        "quoted": _quoted,
        "table_size": _table_size,
    }
    environment.tests["number_column"] = _is_number_column
    return environment


def _is_number_column(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a column holds numbers and at least one of them; empty cells do not count."""
    values = [row[name] for row in rows if row[name] is not None]
    return bool(values) and all(
        isinstance(value, numbers.Real) and not isinstance(value, bool) for value in values
    )


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, each on one line; an empty line parts them."""
    return [line for line in map(plain_line, re.split(r"\n\s*\n", text)) if line]


def _table_size(section: ReportSection) -> str:
    """What stands before the link to a section's CSV file."""
    rows = "1 row" if len(section.rows) == 1 else f"{len(section.rows):,} rows"
    return f"All digits, {rows}" if section.shown else f"The table, {rows}"


def _quoted(text: str) -> str:
    """A text that Markdown shows as it is, on one line."""
    line = plain_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*\[\]|~$])", r"\\\1", line)
    # Inside a word an underscore has no meaning.
    line = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", line)
    # Only at the start of a line would these make a heading or a list.
    line = re.sub(r"^(#+|[-+=])(?=\s|$|[-=#])", r"\\\1", line)
    return re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", line)
