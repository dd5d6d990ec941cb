"""Run the whole test suite with backend=cupy on the stand-in, and keep how many tests passed.

    python tools/standin_suite.py                     # streams as they are
    python tools/standin_suite.py both random:7       # streams that run late, in these modes
    python tools/standin_suite.py both -- tests/index # some of the tests

Each mode is a line of ``bench/results/standin_suites.jsonl``, written when all modes have run, or
at the first that does not end; ``bench/report.py`` makes the table of docs/gpu.md from the newest
of each mode. Exits with 1 if a test failed.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from plant_faults import RESULTS, ROOT, commit

OUTCOMES = ("passed", "failed", "errors", "skipped")


def counts(summary: str) -> dict[str, int]:
    """How many tests ended how, from pytest's last line."""
    found = {name.rstrip("s"): int(number) for number, name in re.findall(r"(\d+) (\w+)", summary)}
    return {name: found.get(name.rstrip("s"), 0) for name in OUTCOMES}


def run(mode: str, tests: Sequence[str]) -> dict[str, Any]:
    """Run the suite in a mode; the line to be recorded."""
    environment = {**os.environ, "HYBRID_GPU_TEST_BACKENDS": "cupy", "HYBRID_GPU_REQUIRE_CUDA": "1"}
    if mode != "off":
        environment["STANDIN_LATE"] = mode
    command = [sys.executable, str(ROOT / "tools" / "cupy_on_cpu" / "run.py"), "python"]
    command += ["-m", "pytest", "-q", "--tb=short", *tests]
    start, last = time.monotonic(), ""
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line if line.strip() else last
    ended = counts(last)
    if process.returncode not in (0, 1) or not ended["passed"]:
        raise SystemExit(f"the suite did not end: exit code {process.returncode}")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "mode": mode,
        "tests": " ".join(tests) or "all",
        **ended,
        "seconds": round(time.monotonic() - start),
    }


def main() -> int:
    """Run the modes one after another."""
    modes, _, tests = " ".join(sys.argv[1:]).partition("--")
    lines: list[dict[str, Any]] = []
    try:
        for mode in modes.split() or ["off"]:
            lines.append(run(mode, tests.split()))  # noqa: PERF401
    finally:
        # Not before: a test compares the tables of the docs with the lines that are there.
        with open(RESULTS / "standin_suites.jsonl", "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    return int(any(line["failed"] or line["errors"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
