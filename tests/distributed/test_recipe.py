"""The recipe for query sets is run, and prints what it says."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybrid_gpu.cli import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "recipes" / "query-sets.md").read_text(encoding="utf-8")
SECTIONS = {
    part.partition("\n")[0]: re.findall(
        r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", part, re.DOTALL
    )
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)
}
START = next(iter(SECTIONS))
ENGINES = {"Dask": ("distributed", "dask.dataframe", "pandas"), "Ray Data": ("ray", "ray.data")}


@pytest.fixture
def names(tmp_path, monkeypatch):
    """What the first block of the page leaves behind, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert run(SECTIONS[START][0], names)
    return names


def run(block, names):
    """Whether a block of the page prints what stands below it."""
    code, expected = block
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    assert printed.getvalue() == expected
    return True


@pytest.mark.parametrize("section", [name for name in SECTIONS if name not in (START, *ENGINES)])
def test_code_prints_what_the_recipe_says(names, section):
    for block in SECTIONS[section]:
        run(block, names)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("section", ENGINES)
def test_code_of_engines_prints_what_the_recipe_says(names, section):
    for module in ENGINES[section]:
        pytest.importorskip(module)
    assert SECTIONS[section]
    for block in SECTIONS[section]:
        run(block, names)


def test_commands_of_the_recipe_are_accepted(names, monkeypatch):
    commands = re.findall(r"^hybrid-gpu (batch .*)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    section = "Files, without an engine of your own"
    run(SECTIONS[section][0], names)
    done = CliRunner().invoke(app, commands[0].split())
    assert done.exit_code == 0, done.output
    assert "4 files had been answered before" in done.output
    dask = CliRunner().invoke(app, [*commands[1].split(), "--help"])
    assert dask.exit_code == 0


def test_the_table_is_the_newest_recorded_run(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    report = importlib.import_module("report")
    try:
        assert report.filled(PAGE) == PAGE, "run python bench/report.py"
    finally:
        for name in ("report", "common", "gpu_tables", "gpu_model_package"):
            sys.modules.pop(name, None)


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / "recipes" / link).exists(), link
    written = re.sub(r"<!-- table: .*?<!-- end -->", "", PAGE, flags=re.DOTALL)
    for line in written.splitlines():
        assert len(line) <= 120
