"""Reports: exact tables, pages that show any text as it is, and files that come whole or not."""

from __future__ import annotations

import base64
import csv
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from hybrid_gpu.lab.chart_panels import Contours, Panel, Series
from hybrid_gpu.lab.report import write_report
from hybrid_gpu.lab.report_sections import ReportSection

HOSTILE = (
    '<script>alert("1")</script> a|b \\| `c` *d* [e](f) <!-- & &amp;\n\n# g\r\n| - | $h$ ~i~ _j_'
)
ROWS = (
    {"method": "temporal", "mAP": 61.584999999999994, "items": 1004993, "note": None},
    {"method": "hybrid", "mAP": np.float64(0.1) + 0.2, "items": np.int64(7), "note": "sparse"},
    {"method": "fsr", "mAP": None, "items": 0, "note": 'a "quoted", text\nof two lines'},
)


def _panel(title="by time"):
    line = Series("temporal", ((1.0, 2.0), (3.0, 4.0)), labels=("a", "b"))
    return Panel(title, "time (s)", "mAP", (line,))


def _section(name="table-1", rows=ROWS, **options):
    values = {"title": f"Title of {name}", "text": "One.\n\nTwo\nlines."}
    return ReportSection(name, rows=rows, **(values | options))


def _write(folder, *sections, **options):
    values = {"title": "Report", "introduction": "Hello.", "facts": {"commit": "abc"}}
    return write_report(folder, sections=sections, **(values | options))


class _Page(HTMLParser):
    """The tags of a page, in order, its ids, its texts; open tags must close in turn."""

    VOID = ("meta", "img")

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.references, self.texts, self._open = [], [], [], [], []
        self.cells = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self._note(tag, attrs)
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self._note(tag, attrs)

    def _note(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name == "id":
                self.ids.append(value)
            if name == "href":
                self.references.append(value)
            self.references += re.findall(r"url\((#[^)]*)\)", value or "")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)
        if self._open and self._open[-1] == "td":
            self.cells.append(data)


def _page(folder):
    return _Page((folder / "report.html").read_text(encoding="utf-8"))


def _tables(markdown):
    """The cells of the tables of a Markdown page: lists of lines, split at bare pipes."""
    blocks = [block.splitlines() for block in markdown.split("\n\n") if block.startswith("| ")]
    return [[re.split(r"(?<!\\)\|", line)[1:-1] for line in block] for block in blocks]


# ---- Tables.


def test_csv_gives_every_value_back(tmp_path):
    _write(tmp_path, _section())
    with open(tmp_path / "table-1.csv", newline="", encoding="utf-8") as file:
        back = list(csv.DictReader(file))
    assert [row["method"] for row in back] == ["temporal", "hybrid", "fsr"]
    assert [row["mAP"] and float(row["mAP"]) for row in back] == [61.584999999999994, 0.1 + 0.2, ""]
    assert [int(row["items"]) for row in back] == [1004993, 7, 0]
    assert [row["note"] for row in back] == ["", "sparse", 'a "quoted", text\nof two lines']


def test_csv_is_what_rfc_4180_says(tmp_path):
    _write(tmp_path, _section(rows=({"a": 1, "b, c": 'x"y'}, {"a": True, "b, c": np.float32(0.5)})))
    assert (tmp_path / "table-1.csv").read_bytes() == b'a,"b, c"\r\n1,"x""y"\r\nTrue,0.5\r\n'


def test_columns_stand_in_the_order_of_the_first_row(tmp_path):
    _write(tmp_path, _section(rows=({"a": 1, "b": 2}, {"b": 4, "a": 3})))
    assert (tmp_path / "table-1.csv").read_text().split() == ["a,b", "1,2", "3,4"]


def test_markdown_and_page_show_the_same_cells(tmp_path):
    _write(tmp_path, _section(), facts={})
    (table,) = _tables((tmp_path / "report.md").read_text())
    cells = [cell.strip() for line in table[2:] for cell in line]
    assert cells == _page(tmp_path).cells
    assert cells[:4] == ["temporal", "61.58", "1,004,993", "–"]  # noqa: RUF001


def test_numbers_are_aligned_to_the_right_and_texts_are_not(tmp_path):
    _write(tmp_path, _section(), facts={})
    (table,) = _tables((tmp_path / "report.md").read_text())
    assert [cell.strip() for cell in table[1]] == ["---", "---:", "---:", "---"]
    html = (tmp_path / "report.html").read_text()
    assert html.count('<th scope="col" class="number">') == 2
    assert html.count('<td class="number">') == 6


def test_long_tables_stay_in_their_files(tmp_path):
    _write(tmp_path, _section(shown=False), facts={})
    markdown = (tmp_path / "report.md").read_text()
    assert _tables(markdown) == []
    assert "[table-1.csv](table-1.csv)" in markdown
    page = _page(tmp_path)
    assert "table" not in page.tags
    assert "table-1.csv" in page.references
    assert (tmp_path / "table-1.csv").exists()


# ---- Pages.


def test_report_holds_everything_in_order(tmp_path):
    sections = (_section("figure-1", rows=(), panels=(_panel(),)), _section())
    report = _write(tmp_path, *sections)
    assert report.markdown.read_text().startswith("# Report\n\nHello.\n\n## Title of figure-1\n")
    assert "\n\nOne.\n\nTwo lines.\n\n" in report.markdown.read_text()
    assert "[![Title of figure-1](figure-1.png)](figure-1.svg)" in report.markdown.read_text()
    text = report.html.read_text()
    places = [text.index(part) for part in ("<h1>", "<svg", "Title of table-1</h2>", "abc")]
    assert places == sorted(places)
    assert [path.name for path in report.tables] == ["table-1.csv"]
    assert [path.name for path in report.pictures] == ["figure-1.png", "figure-1.svg"]
    written = {report.markdown, report.html, *report.tables, *report.pictures}
    assert set(tmp_path.iterdir()) == written
    assert repr(report).endswith("report.html', 1 tables, 2 pictures)")
    assert repr(sections[0]) == "ReportSection('figure-1', 0 rows, 1 panels)"


def test_pages_show_hostile_text_as_text(tmp_path):
    section = _section(
        rows=({HOSTILE: HOSTILE, "b": 1},),
        title=HOSTILE,
        text=HOSTILE,
        panels=(
            Panel(HOSTILE, HOSTILE, HOSTILE, (Series(HOSTILE, ((1, 2),), labels=(HOSTILE,)),)),
        ),
    )
    _write(tmp_path, section, title=HOSTILE, introduction=HOSTILE, facts={HOSTILE: HOSTILE})
    page, markdown = _page(tmp_path), (tmp_path / "report.md").read_text()
    assert "script" not in page.tags
    # The tags of a report without any hostile text: nothing was added to them.
    _write(tmp_path, _section(panels=(_panel(),)))
    assert set(page.tags) <= set(_page(tmp_path).tags)
    line = " ".join(HOSTILE.split())
    assert page.cells == [line, "1", line, line]
    assert line in page.texts

    assert "<" not in markdown
    tables = _tables(markdown)
    assert [{len(cells) for cells in table} for table in tables] == [{2}, {2}]
    assert all("\\`c\\` \\*d\\* \\[e\\](f)" in table[2][0] for table in tables)
    # Three headings of ours, none of the text's own.
    assert len(re.findall(r"^#", markdown, re.MULTILINE)) == 3


@pytest.mark.parametrize("text", ["# a", "- a", "+ a", "1. a", "12) a", "---", "===", "> a"])
def test_paragraphs_stay_paragraphs(tmp_path, text):
    _write(tmp_path, introduction=text, facts={})
    line = (tmp_path / "report.md").read_text().splitlines()[2]
    # As a reader of Markdown sees it: a backslash, or an entity, takes the meaning away.
    assert not re.match(r"(#+ |[-+] |\d+[.)] |-{3}|={3}|>)", line)
    assert line.replace("\\", "").replace("&gt;", ">") == text


def test_words_with_underscores_stay_readable(tmp_path):
    _write(tmp_path, introduction="hybrid_gpu and _private_", facts={})
    assert "hybrid_gpu and \\_private\\_" in (tmp_path / "report.md").read_text()


def test_pictures_of_one_page_do_not_share_ids(tmp_path):
    bound = Contours("c", "x", "y", (0.0, 1.0), (0.0, 1.0), np.eye(2), (0.5,))
    panels = (_panel("url(#p1)"), bound)
    _write(tmp_path, *(_section(f"figure-{place}", panels=panels) for place in (1, 2)))
    page = _page(tmp_path)
    assert page.tags.count("svg") == 2
    assert len(page.ids) == len(set(page.ids))
    inner = {reference for reference in page.references if reference.startswith("#")}
    assert inner == {f"#{name}" for name in page.ids}
    assert any(reference.startswith("#figure-2.") for reference in inner)
    # What is text stays as it is, even if it looks like a reference.
    assert page.texts.count("url(#p1)") == 2


def test_page_needs_nothing_from_elsewhere(tmp_path):
    _write(tmp_path, _section(panels=(_panel(),)))
    text = (tmp_path / "report.html").read_text()
    assert "http" not in text
    assert "@import" not in text
    assert text.count("<style") == 1


def test_same_measurements_give_the_same_bytes(tmp_path):
    contents = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        _write(folder, _section(panels=(_panel(),)))
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert len(contents[0]) == 5
    assert contents[0] == contents[1]


def test_report_without_pictures_needs_no_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    report = _write(tmp_path, _section(panels=(_panel(),)), draw=False)
    assert report.pictures == ()
    assert ".png" not in report.markdown.read_text()
    assert "svg" not in _page(tmp_path).tags


# ---- What is refused, and what a failure leaves.


def test_missing_matplotlib_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install -e \"\.\[plots\]\""):
        _write(tmp_path, _section(), _section("figure-1", panels=(_panel(),)))
    assert not list(tmp_path.iterdir())


def test_missing_jinja_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"reports need Jinja2; .*pip install -e \"\.\[plots\]\""):
        _write(tmp_path, _section())
    assert not list(tmp_path.iterdir())


def test_failed_drawing_leaves_the_old_report(tmp_path, monkeypatch):
    import matplotlib.figure

    def half(self, file, **options):
        file.write(b"half")
        raise OSError("disk full")

    _write(tmp_path, _section(), draw=False)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", half)
    with pytest.raises(OSError, match="disk full"):
        _write(tmp_path, _section(rows=({"a": 1},)), _section("figure-1", panels=(_panel(),)))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_failed_writing_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(source, target):
        raise OSError("no room")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="no room"):
        _write(tmp_path, _section())
    assert not list(tmp_path.iterdir())


def test_missing_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must be an existing folder; got .*nowhere"):
        _write(tmp_path / "nowhere", _section())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ([_section(rows=({"a": 1}, {"b": 1}))], r"must all have the keys \['a'\]; row 1 has"),
        ([_section(rows=({"a": 1}, {"a": 1, "b": 1}))], "row 1 has"),
        ([_section(rows=({},))], "at least one"),
        ([_section(rows=({3: 1},))], "texts as keys"),
        ([_section(rows=({"a": [1]},))], "a cell must be a number, .* got <class 'list'>"),
        ([_section("../up")], "letters, digits, '-' and '_'; got '../up'"),
        ([_section("")], "letters, digits"),
        ([_section("a"), _section("A")], "files of its own; got the name 'A' again"),
        ([_section("report")], "'report' is taken"),
        ([_section(columns=0)], "columns of section 'table-1' must be at least 1"),
    ],
)
def test_sections_that_make_no_report_are_refused(tmp_path, sections, message):
    with pytest.raises(ValueError, match=message):
        _write(tmp_path, *sections)
    assert not list(tmp_path.iterdir())


def test_an_image_of_a_section_is_in_the_page_and_beside_the_text(tmp_path):
    content = b"\x89PNG\r\n\x1a\n" + bytes(range(40))
    (tmp_path / "seen.png").write_bytes(content)
    files = _write(tmp_path, _section(image="seen.png", notes="Below.\n\nTwice."))
    page = files.html.read_text()
    assert f'src="data:image/png;base64,{base64.b64encode(content).decode()}"' in page
    assert page.index("temporal") < page.index("<img") < page.index("<p>Below.</p>")
    text = files.markdown.read_text()
    assert text.index("temporal") < text.index("](seen.png)") < text.index("Below.")


@pytest.mark.parametrize("image", ["gone.png", "../seen.png", "/etc/hostname"])
def test_an_image_that_is_not_in_the_folder_is_refused(tmp_path, image):
    (tmp_path / "seen.png").write_bytes(b"")
    (tmp_path / "inner").mkdir()
    with pytest.raises(ValueError, match="must be a file in the folder of the report"):
        _write(tmp_path / "inner", _section(image=image))
    assert not list((tmp_path / "inner").iterdir())
