"""How does one build, and one search, walk through the code?

    python bench/trace.py [--before PYTHON] [--items 20000] [--queries 64]

Calls of our own functions (an operation of a backend is one call, whatever it does inside), how
many different ones, in how many modules, how often the walk goes from one module to another; for a
search of five steps also how many arrays of (n, m) the array library was asked for, how many are
alive at the same time; for a build the peak of its arrays (what the process grows by tells more of
what ran before it); and seconds, warm. With ``--before``, the Python of an environment
that has another version of the package does the same, in turn with this one, run by run, so that
both versions are measured in one run on the same data.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import typer

import hybrid_gpu as hg
from hybrid_gpu import datasets

TIMES = 5
PACKAGE = hg.__file__.removesuffix("__init__.py")


def main(
    before: Annotated[str | None, typer.Option(help="Python with another version.")] = None,
    items: Annotated[int, typer.Option(help="Items of the database.")] = 20_000,
    queries: Annotated[int, typer.Option(help="Queries of the search.")] = 64,
    alone: Annotated[bool, typer.Option(help="Print one measurement as JSON, no more.")] = False,
) -> None:
    if alone:
        print(json.dumps(measured(items, queries)))
        return
    # Only the recording side needs it: another version may come with none.
    from common import record, show

    pythons = {"after": sys.executable, **({"before": before} if before else {})}
    runs: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in pythons}
    for _ in range(3):
        for name, python in sorted(pythons.items(), reverse=True):
            command = [python, __file__, "--alone", f"--items={items}", f"--queries={queries}"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            runs[name].append(json.loads(done.stdout))
    columns = dict.fromkeys(key for row in runs["after"][0].values() for key in row)
    rows = [
        {
            "what": what,
            "version": name,
            **dict.fromkeys(columns),
            **runs[name][0][what],
            # The fastest of all runs: other work on the machine only adds to it.
            "seconds": min(run[what]["seconds"] for run in runs[name]),
        }
        for what in runs["after"][0]
        for name in sorted(pythons, reverse=True)
    ]
    show("one build, one search", rows)
    print(record("trace", {"items": items, "queries": queries, "dimensions": 32}, rows))


def measured(items: int, queries: int) -> dict[str, dict[str, float]]:
    """What a build and a search take, and how they walk."""
    rng = np.random.default_rng(29)
    centers = rng.standard_normal((items // 100, 32))
    vectors = centers[rng.integers(0, len(centers), items + queries)]
    vectors = (vectors + 0.7 * rng.standard_normal(vectors.shape)).astype(np.float32)
    database, wanted = vectors[:items], vectors[items:]
    # Neighbors are found by FAISS or BLAS, whose time would hide that of everything else.
    lists = hg.nearest_neighbors(database, k=20, backend="numpy")

    # All of the lists, which a version before the choice of neighbors takes anyway.
    whole = {"neighbors": 20} if hasattr(hg, "PAPER") else {}

    def build() -> Any:
        return hg.build_index_from_neighbors(
            lists.ids,
            lists.similarities,
            descriptors=database,
            alpha=0.99,
            backend="numpy",
            **whole,
        )

    index = build()

    def search() -> Any:
        # Five steps: the walk shall not depend on how far a version's default goes.
        return index.search(wanted, k=100, steps=5)

    search()
    size = items * queries * 4
    rows: dict[str, dict[str, float]] = {
        "build": {**walk(build), "peak MB": peak(build) / 1e6, "seconds": fastest(build)},
        "search, five steps": {
            **walk(search),
            "arrays (n, m) asked for": asked_for(search, index.backend.xp, items * queries),
            "alive together": peak(search) / size,
            "seconds": fastest(search),
        },
    }
    split = datasets.split_queries(datasets.digits(), queries, seed=7)
    digits = hg.build_index(split.database.descriptors, neighbors=10, alpha=0.99, backend="numpy")
    ask = partial(digits.search, split.queries.descriptors, k=100, steps=5)
    ask()
    # A graph in one piece: no query wants more items than diffusion reaches.
    rows["search of digits, five steps"] = {**walk(ask), "seconds": fastest(ask)}
    many = np.tile(wanted, (2, 1))
    for count, options in (
        (1, {}),
        (128, {}),
        (1, {"method": "temporal"}),
        (128, {"method": "temporal"}),
        (128, {"k": items}),
    ):
        some = many[:count]
        name = f"search, {options.get('method', 'hybrid')}, {count} queries"
        if "k" in options:
            name += ", all items"
        work = partial(index.search, some, **options)
        work()
        rows[name] = {"seconds": fastest(work)}
    return rows


def walk(work: Callable[[], Any]) -> dict[str, float]:
    """Calls, functions, modules and changes of module; what a backend does inside is not seen."""
    seen: list[tuple[str, str]] = []
    depth = 0  # below an operation of a backend

    def note(frame: Any, event: str, _: Any) -> None:
        nonlocal depth
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or event not in ("call", "return"):
            return
        if event == "return":
            depth -= depth > 0
            return
        if depth == 0 and code.co_name[0] != "<":
            seen.append((code.co_filename, code.co_qualname))
        if depth or f"{os.sep}backends{os.sep}" in code.co_filename:
            depth += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    files = [file for file, _ in seen]
    return {
        "calls": len(seen),
        "functions": len(set(seen)),
        "modules": len(set(files)),
        "changes of module": sum(a != b for a, b in pairwise(files)),
    }


def asked_for(work: Callable[[], Any], xp: Any, size: int) -> int:
    """Calls of the array library that gave a new array of so many entries."""
    count = 0
    names = [name for name in dir(xp) if not name.startswith("_") and callable(getattr(xp, name))]
    before = {name: getattr(xp, name) for name in names if not isinstance(getattr(xp, name), type)}

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            nonlocal count
            result = function(*given, **named)
            new = isinstance(result, np.ndarray) and result.base is None
            count += new and result.size == size and all(result is not one for one in given)
            return result

        return call

    for name, function in before.items():
        setattr(xp, name, counted(function))
    try:
        work()
    finally:
        for name, function in before.items():
            setattr(xp, name, function)
    return count


def peak(work: Callable[[], Any]) -> int:
    """Bytes that were alive at the same time, beyond those of before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def fastest(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of a few runs."""
    seconds = []
    for _ in range(TIMES):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


if __name__ == "__main__":
    typer.run(main)
