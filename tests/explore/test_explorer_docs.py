"""docs/explorer.md is run, and what it says of limits is so."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybrid_gpu.cli import app
from hybrid_gpu.cli.exploring import EXPLORER_LINE
from hybrid_gpu.explore.answers import MOST_RESULTS
from hybrid_gpu.explore.collection import LONGEST_LABEL, LONGEST_TEXT
from hybrid_gpu.explore.export import MOST_QUERIES

PAGE = (Path(__file__).parents[2] / "docs" / "explorer.md").read_text(encoding="utf-8")
PROSE = " ".join(PAGE.split())


def test_the_blocks_of_the_page_run(capsys):
    pytest.importorskip("starlette", reason="Starlette is not installed")
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, names)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 21
    assert sum(hit.share for hit in names["why"].hits) == pytest.approx(1)
    assert names["why"].paths[0].share > 0


def test_the_limits_are_those_of_the_code():
    assert f"At most {MOST_QUERIES:,}." in PROSE
    assert f"(20, at most {MOST_RESULTS})" in PROSE
    assert f"at most {LONGEST_LABEL} and {LONGEST_TEXT:,} characters" in PROSE


def test_the_options_of_the_page_exist():
    told = CliRunner().invoke(app, ["explore", "--help"], env={"COLUMNS": "200"}).output
    plain = re.sub(r"\x1b\[[0-9;]*m", "", told)
    for option in set(re.findall(r"`?(--[a-z-]+)", PAGE)):
        assert option in plain, option


def test_the_line_of_the_demo_opens_the_explorer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert EXPLORER_LINE in PAGE
    words = [*EXPLORER_LINE.split()[1:], "--count", "2"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert opened == [(tmp_path / "digits-explorer" / "index.html").as_uri()]
    assert "CC BY 4.0" in (tmp_path / "digits-explorer" / "data" / "start.js").read_text()
