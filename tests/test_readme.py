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


def test_figures_are_of_the_newest_recorded_run(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    import common

    try:
        run = common.newest("paper_experiments")
    finally:
        sys.modules.pop("common", None)
    pages = [README, *(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))]
    shown = {Path(name).name for page in pages for name in re.findall(r"\(([\w/.-]+\.svg)\)", page)}
    assert shown == {path.name for path in (ROOT / "docs" / "figures").iterdir()}
    for name in shown:
        # Each says below itself where it comes from: run python bench/report.py.
        assert run["commit"] in (ROOT / "docs" / "figures" / name).read_text(encoding="utf-8")


def test_methods_of_the_readme_are_those_of_the_library():
    import hybrid_gpu as hg

    listed = re.findall(r"^\| `([a-z-]+)` \|", README, re.MULTILINE)
    assert listed == list(hg.METHODS)
