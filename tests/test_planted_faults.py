"""The faults of ``tools/plant_faults.py`` fit the code they are planted into."""

from __future__ import annotations

import importlib.util
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


def test_the_page_on_gpus_tells_how_many_there_are():
    page = (ROOT / "docs" / "gpu.md").read_text()
    assert f"| planted faults | {len(tool.FAULTS)} mistakes put in by hand" in page
