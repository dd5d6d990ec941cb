"""The tables of docs/gpu.md that tell what was executed: planted faults, suites on the stand-in."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from common import RESULTS, all_of

ROOT = Path(__file__).parent.parent
MODES = {
    "off": "as they are",
    "side": "copies late",
    "default": "the default stream late",
    "both": "all late",
}


def planted_faults() -> str:
    """Every kind of fault of ``tools/plant_faults.py``, and what became of them when last run."""
    tool = _plant_faults()
    last = {line["fault"]: line for line in _lines("planted_faults")}
    table = [
        "| kind | what goes wrong | planted | noticed | explained | not noticed | not run | by |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    totals = [0] * 5
    for kind, what in tool.KINDS.items():
        faults = [fault for fault in tool.FAULTS if fault.kind == kind]
        ran = [last[fault.name] for fault in faults if fault.name in last]
        noticed = sum(bool(line["noticed_by"]) for line in ran)
        explained = sum(bool(line["harmless"]) and not line["noticed_by"] for line in ran)
        numbers = [len(faults), noticed, explained, len(ran) - noticed - explained]
        numbers.append(len(faults) - len(ran))
        totals = [total + number for total, number in zip(totals, numbers, strict=True)]
        tests = " ".join(fault.tests.partition(" -k ")[0] for fault in faults)
        names = ", ".join(sorted({f"`{name}`" for name in re.findall(r"(test_\w+)\.py", tests)}))
        table.append(f"| {kind} | {what} | {' | '.join(map(str, numbers))} | {names} |")
    table.append(f"| all | | {' | '.join(map(str, totals))} | |")
    return "\n".join([*table, "", _source("tools/plant_faults.py", list(last.values())), ""])


def standin_suites() -> str:
    """The newest run of the test suite on the stand-in, in each mode of its streams."""
    last = {(line["mode"], line["tests"]): line for line in _lines("standin_suites")}
    table = [
        "| streams | tests | passed | failed | skipped | commit | date |",
        "|---|---|---:|---:|---:|---|---|",
    ]
    for (mode, tests), line in last.items():
        told = MODES.get(mode, f"late, in the order of `{mode}`")
        failed = line["failed"] + line["errors"]
        table.append(
            f"| {told} | {tests} | {line['passed']:,} | {failed} | {line['skipped']} "
            f"| {line['commit']} | {line['date'][:10]} |"
        )
    return "\n".join([*table, "", "<sub>`tools/standin_suite.py`.</sub>", ""])


def _source(script: str, lines: list[dict[str, Any]]) -> str:
    commits = ", ".join(dict.fromkeys(line["commit"] for line in lines))
    dates = sorted({line["date"][:10] for line in lines})
    minutes = sum(line["seconds"] for line in lines) / 60
    when = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "never"
    return f"<sub>`{script}` at {commits or 'no commit'}, {when}, {minutes:.0f} minutes.</sub>"


def _lines(question: str) -> list[dict[str, Any]]:
    return all_of(question) if (RESULTS / f"{question}.jsonl").is_file() else []


def _plant_faults() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plant_faults", ROOT / "tools/plant_faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module
