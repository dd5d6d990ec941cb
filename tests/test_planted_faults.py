"""The faults of ``tools/plant_faults.py`` fit the code they are planted into."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def _tool():
    spec = importlib.util.spec_from_file_location("plant_faults", ROOT / "tools/plant_faults.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module


tool = _tool()


@pytest.mark.parametrize("fault", [tool.CANARY, *tool.FAULTS], ids=lambda fault: fault.name)
def test_a_fault_stands_in_one_place_and_names_tests_that_exist(fault):
    assert fault.after in tool.faulty(fault)
    files, _, chosen = fault.tests.partition(" -k ")
    names = [
        name
        for file in files.split()
        for name in re.findall(r"def (\w+)\(", (ROOT / file).read_text())
    ]
    for word in re.findall(r"\w+", chosen):
        if word not in {"and", "or", "not", "host", "equal", "zeros", "moves"}:
            assert any(word in name for name in names), word


def test_a_fault_of_another_text_is_told():
    with pytest.raises(SystemExit, match="stands 0 times"):
        tool.faulty(tool.Fault("waits", "gone", "errors.py", "no such text", "", "tests"))


def test_the_copy_has_the_fault_and_nothing_else(tmp_path):
    fault = tool.FAULTS[0]
    tool.plant(fault, tmp_path)
    for path in (ROOT / "hybrid_gpu").rglob("*.py"):
        copy = tmp_path / path.relative_to(ROOT)
        expected = tool.faulty(fault) if path.match(fault.file) else path.read_text()
        assert copy.read_text() == expected
    assert (tmp_path / "hybrid_gpu" / "kernels" / "cuda" / "top_k.cu").exists()


def test_the_sample_has_every_kind_but_the_slow_ones():
    sample = {fault.kind for fault in tool.chosen((), True)}
    assert sample == {fault.kind for fault in tool.FAULTS}
    assert [fault.kind for fault in tool.chosen(("grids",), True)] == ["grids"]


def test_every_kind_of_fault_is_told_of():
    assert set(tool.KINDS) == {fault.kind for fault in tool.FAULTS}
    page = (ROOT / "docs" / "gpu.md").read_text()
    for kind, what in tool.KINDS.items():
        planted = sum(fault.kind == kind for fault in tool.FAULTS)
        assert f"| {kind} | {what} | {planted} |" in page


def test_outcomes_are_recorded_by_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "RESULTS", tmp_path)
    for result in ("", "test_something"):
        tool.record(tool.FAULTS[0], result, 2.6)
    lines = (tmp_path / "planted_faults.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert len(lines) == 2
    assert (last["fault"], last["noticed_by"]) == (tool.FAULTS[0].name, "test_something")
    assert (last["seconds"], last["commit"]) == (3, tool.commit())


def test_outcomes_of_a_suite_are_read_from_its_last_line(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    suite = importlib.import_module("standin_suite")
    line = "1 failed, 3010 passed, 12 skipped, 4 deselected, 1 error in 921.05s (0:15:21)"
    assert suite.counts(line) == {"passed": 3010, "failed": 1, "errors": 1, "skipped": 12}
    assert suite.counts("7 passed in 0.1s")["errors"] == 0


def test_no_outcome_of_a_suite_is_recorded_while_another_runs(tmp_path, monkeypatch):
    # test_tables_are_the_newest_recorded_runs would fail in the second mode.
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    suite = importlib.import_module("standin_suite")
    record, there = tmp_path / "standin_suites.jsonl", []

    def run(mode, tests):
        there.append(record.exists())
        if mode == "side":
            raise SystemExit("the suite did not end")
        return {"mode": mode, "failed": int(mode == "both"), "errors": 0}

    monkeypatch.setattr(suite, "RESULTS", tmp_path)
    monkeypatch.setattr(suite, "run", run)
    monkeypatch.setattr(sys, "argv", ["standin_suite.py", "off", "both"])
    assert suite.main() == 1
    monkeypatch.setattr(sys, "argv", ["standin_suite.py", "off", "side"])
    with pytest.raises(SystemExit, match="did not end"):
        suite.main()
    assert there == [False, False, True, True]
    modes = [json.loads(line)["mode"] for line in record.read_text().splitlines()]
    assert modes == ["off", "both", "off"]


def test_the_page_on_gpus_tells_how_many_there_are():
    page = (ROOT / "docs" / "gpu.md").read_text()
    assert f"| planted faults | {len(tool.FAULTS)} mistakes put in by hand" in page
