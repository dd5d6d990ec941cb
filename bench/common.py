"""What benchmark scripts share: one JSON line a run, with the machine and the commit in it."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from hybrid_gpu import Ranking, select_backend
from hybrid_gpu.backends.native import core_level

RESULTS = Path(__file__).parent / "results"


def record(
    question: str, settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], **more: Any
) -> Path:
    """Append one run to ``results/<question>.jsonl``."""
    line = {
        "question": question,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "settings": dict(settings),
        "rows": [dict(row) for row in rows],
        **more,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{question}.jsonl"
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return path


def all_of(question: str) -> list[dict[str, Any]]:
    """Every recorded run of a question, oldest first."""
    lines = (RESULTS / f"{question}.jsonl").read_text(encoding="utf-8").splitlines()
    return [dict(json.loads(line)) for line in lines]


def scores_by_item(ranking: Ranking, n: int) -> NDArray[np.float64]:
    """The scores of rankings of all items, (m, n) in the order of the items; 0 if not reached."""
    # An id of -1 names the last column, which no item has.
    scores = np.zeros((len(ranking.ids), n + 1))
    np.put_along_axis(scores, ranking.ids, ranking.scores, axis=1)
    return scores[:, :n]


def newest(question: str) -> dict[str, Any]:
    """The last recorded run of a question."""
    return all_of(question)[-1]


def show(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows as a table."""
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name, justify="right" if name != next(iter(rows[0])) else "left")
    for row in rows:
        table.add_row(*(cell(value) for value in row.values()))
    Console().print(table)


def cell(value: Any) -> str:
    """A number as a reader wants it: three significant digits or so."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value)


def best_of(run: Callable[[], Any], times: int = 3) -> float:
    """Seconds of the fastest of a few runs, after one that does not count."""
    run()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def commit() -> str:
    """The commit that was measured, marked if the tree was changed since."""
    root = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=root, capture_output=True, text=True, check=False
        ).stdout.strip()

    # A run writes its own result file: that alone does not make the tree a changed one.
    changed = git("status", "--porcelain", "--", "..", ":!results", ":!../README.md")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def machine() -> dict[str, Any]:
    """CPU, cores, GPUs, Python and the packages that do the work."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "native": core_level(),
        "gpu": _gpu_names(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "scipy", "hybrid-gpu")},
    }


def _gpu_names() -> str:
    """The GPUs that ``backend="auto"`` would take."""
    if select_backend("auto").name == "numpy":
        return "no GPU"
    from hybrid_gpu.backends.devices import describe_devices

    return "; ".join(value for name, value in describe_devices() if name.startswith("gpu"))


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
