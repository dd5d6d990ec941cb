"""The README is run: its Python prints what it says, its tables are the recorded runs."""

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", README, re.DOTALL)


def without_times(text):
    """Seconds and devices differ from run to run; nothing else may."""
    return re.sub(r"\d+\.\d+ s\b", "TIME s", re.sub(r"on (numpy|cupy:\d)", "on X", text))


def test_code_prints_what_the_readme_says():
    names: dict[str, object] = {}
    assert len(BLOCKS) >= 2
    for code, expected in BLOCKS:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        assert without_times(printed.getvalue()) == without_times(expected)


def test_tables_are_the_newest_recorded_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import report

    try:
        for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
            text = path.read_text(encoding="utf-8")
            assert report.filled(text) == text, f"run python bench/report.py: {path.name}"
    finally:
        sys.modules.pop("report", None)
        sys.modules.pop("common", None)


@pytest.mark.parametrize("size", ["fashion", "million"])
def test_hybrid_leads_its_peers_at_equal_or_better_accuracy(monkeypatch, size):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import common

    try:
        run = common.newest(f"peers_{size}")
    finally:
        sys.modules.pop("common", None)
    rows = run["rows"]
    # Errors as small as this are those of the solution that all are compared with.
    floor = 10 * run["settings"]["residual of exact"]
    ours = [row for row in rows if row["way"].startswith("hybrid_gpu hybrid")]
    peers = [row for row in rows if not row["way"].startswith("hybrid_gpu")]
    assert len(peers) == 14
    for peer in peers:
        error = max(peer["relative error"], floor)
        as_exact = [row for row in ours if row["relative error"] <= error]
        fastest = min(row["ms per query"] for row in as_exact)
        assert fastest < peer["ms per query"], peer["way"]
    # The README tells from how many queries on the setup of hybrid has paid, beside SciPy's cg.
    paid = int(re.search(r"fewer than some (\d+) queries", README)[1])
    one = next(row for row in ours if "aggregates, 5 steps" in row["way"])
    other = next(row for row in peers if row["way"] == "SciPy cg, 20 steps, one per core")
    saved = (other["ms per query"] - one["ms per query"]) / 1e3
    assert one["setup s"] - other["setup s"] < paid * saved


FIGURES = ROOT / "docs" / "figures"


def test_every_figure_is_shown_and_every_shown_one_is_there():
    pages = [README, *(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))]
    shown = {Path(name).name for page in pages for name in re.findall(r"\(([\w/.-]+\.svg)\)", page)}
    assert shown == {path.name for path in FIGURES.iterdir()}
    assert len(shown) == 5


def drawing(text):
    """What a figure says and where its curves run; fonts and formats are left out."""
    words = re.findall(r"<text[^>]*>([^<]*)</text>", text)
    curves = re.findall(r'<path d="([^"]*)" clip-path', text)
    return words, [[float(one) for one in re.findall(r"-?[\d.]+", curve)] for curve in curves]


@pytest.mark.parametrize(
    "name",
    [
        "figure-4",
        *(pytest.param(f"figure-{number}", marks=pytest.mark.slow) for number in (1, 2, 3, 5)),
    ],
)
def test_figures_are_of_the_newest_recorded_run(monkeypatch, name):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import report

    try:
        run = report.newest("paper_experiments")
        every = report.sections(run)
        monkeypatch.setattr(report, "sections", lambda run: {name: every[name]})
        ((path, content),) = report.figures(run).items()
    finally:
        sys.modules.pop("report", None)
        sys.modules.pop("common", None)
    # Drawn again, from the numbers of the run: run python bench/report.py.
    words, curves = drawing(path.read_text(encoding="utf-8"))
    words_now, curves_now = drawing(content.decode())
    assert words == words_now
    assert any(run["commit"] in word for word in words)
    assert len(curves) == len(curves_now) > 4
    for one, other in zip(curves, curves_now, strict=True):
        assert one == pytest.approx(other, abs=0.5)


def test_methods_of_the_readme_are_those_of_the_library():
    import hybrid_gpu as hg

    listed = re.findall(r"^\| `([a-z-]+)` \|", README, re.MULTILINE)
    assert listed == list(hg.METHODS)
