"""The recipe for graphs and seeds is run: its Python prints what it says."""

import contextlib
import importlib
import io
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "recipes" / "graph-and-seeds.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE, re.DOTALL)


def test_code_prints_what_the_recipe_says():
    pytest.importorskip("igraph")
    pytest.importorskip("networkx")
    names: dict[str, object] = {}
    assert len(BLOCKS) == 3
    for code, expected in BLOCKS:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        assert printed.getvalue() == expected


def test_the_table_is_the_newest_recorded_run(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    try:
        filled = importlib.import_module("report").filled
        assert filled(PAGE) == PAGE, "fill the table from bench/results/graph_and_seeds.jsonl"
    finally:
        for name in ("report", "common", "gpu_tables", "gpu_model_package", "gpu_model_tables"):
            sys.modules.pop(name, None)
