"""How much time and memory does a database of ten million items take, and how long a query?

    python bench/large.py [--items 1000000 --items 10000000] [--folder FOLDER] [--no-record]
    python bench/large.py --quick --no-record

Fashion-MNIST and warps of its pictures in 64 dimensions; a million items are the first of ten
million. Every stage is a process of its own that reads what the one before left in the folder, and
is left out if its result is there already, unless it is one that is measured (build, load, search).
"peak MB" is the most memory of its own that the process had, sampled: pages of mapped files, which
the system may drop at any time, are not in it.

The lists of 50 neighbors are those of a simple engine: cells around centers, each joined with the
forty nearest cells by exact products; "recall" is measured on 200 items. The index is built from
the mapped lists without keeping them. A query is a seeded item of the largest component, seen
through its five nearest items; local search ranks the best 100, alone and in batches of 128.
"Exact" are long conjugate gradients in float64 on the same graph, to a residual of 1e-6, for the
judged queries.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from common import record, show
from latency import ALPHA, EXACT, accuracy, observed, waits
from peers import NEIGHBORS, descriptors_of

import hybrid_gpu as hg

CELL, NEAREST_CELLS, TRAINED_BY, ROUNDS = 500, 40, 24, 6
PROBED, BATCH, K, TILE, TOGETHER = 200, 128, 100, 4096, 8


def descriptors(folder: Path, items: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Write the descriptors (items, 64)."""
    made = descriptors_of("million", items, settings["data"])
    np.save(folder / "descriptors.npy", made)
    return {"disk MB": made.nbytes / 1e6}


def lists(folder: Path, items: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Write ids and similarities (items, 50), and the recall of a sample."""
    vectors = np.load(folder / "descriptors.npy", mmap_mode="r")
    cells, nearest = divided(vectors)
    order, starts = np.argsort(cells, kind="stable"), np.zeros(len(nearest) + 1, np.int64)
    np.cumsum(np.bincount(cells, minlength=len(nearest)), out=starts[1:])
    # In the order of the cells: each of them is read many times.
    units = unit_rows(vectors[order])
    shape = (items, NEIGHBORS)
    ids, similarities = (
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, shape)
        for name, dtype in (("ids", np.int32), ("similarities", np.float32))
    )
    for cell, others in enumerate(nearest):
        places = slice(starts[cell], starts[cell + 1])
        if places.stop == places.start:
            continue
        near = np.concatenate([np.arange(starts[one], starts[one + 1]) for one in (cell, *others)])
        found = hg.nearest_neighbors(
            units[near], units[places], k=NEIGHBORS + 1, knn="exact", backend="numpy"
        )
        # Every item finds itself, first or beside its equals: that entry goes last, and is cut off.
        itself = near[found.ids] == np.arange(places.start, places.stop)[:, None]
        kept = np.argsort(itself, axis=1, kind="stable")[:, :NEIGHBORS]
        rows = order[places]
        ids[rows] = order[near[np.take_along_axis(found.ids, kept, axis=1)]]
        similarities[rows] = np.take_along_axis(found.similarities, kept, axis=1)
    sample = np.random.default_rng(37).choice(items, PROBED, replace=False)
    exact = hg.nearest_neighbors(
        vectors, vectors[sample], k=NEIGHBORS + 1, knn="exact", backend="numpy"
    ).ids
    listed = [
        np.isin(true[true != item][:NEIGHBORS], ids[item]).mean()
        for item, true in zip(sample, exact, strict=True)
    ]
    return {"disk MB": (ids.nbytes + similarities.nbytes) / 1e6, "recall": float(np.mean(listed))}


def unit_rows(vectors: np.ndarray) -> np.ndarray:
    """The rows at unit length, in their own memory."""
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def divided(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cell of every item, and the cells that are nearest to each: spherical k-means."""
    n = len(vectors)
    count = max(2, n // CELL)
    rng = np.random.default_rng(53)
    sample = unit_rows(vectors[np.sort(rng.choice(n, min(n, TRAINED_BY * count), replace=False))])
    centers = sample[rng.choice(len(sample), count, replace=False)]
    for _ in range(ROUNDS):
        nearest = nearest_center(sample, centers)
        sums = np.zeros_like(centers)
        np.add.at(sums, nearest, sample)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centers = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centers)
    products = centers @ centers.T
    np.fill_diagonal(products, -2)
    near = np.argsort(-products, axis=1)[:, : min(NEAREST_CELLS, count - 1)]
    return nearest_center(vectors, centers), near


def nearest_center(vectors: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """The center with the largest product, for each vector; their lengths do not matter."""
    parts = [
        np.argmax(vectors[start : start + TILE] @ centers.T, axis=1)
        for start in range(0, len(vectors), TILE)
    ]
    return np.concatenate(parts)


def build(folder: Path, items: int, settings: dict[str, Any]) -> dict[str, Any]:
    """From mapped lists to a stored index."""
    index = hg.build_index_from_neighbors(
        *mapped(folder),
        neighbors=NEIGHBORS,
        alpha=ALPHA,
        basis="aggregate",
        keep_neighbors=False,
        backend="numpy",
    )
    start = time.perf_counter()
    target = folder / "index"
    if target.exists():
        shutil.rmtree(target)
    index.save(target)
    saving = time.perf_counter() - start
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    sizes = np.bincount(index.graph.components)
    return {
        "saving s": saving,
        "disk MB": size / 1e6,
        "entries": int(index.graph.adjacency.data.size),
        "isolated": int(np.sum(sizes == 1)),
        "largest component": int(sizes.max()),
    }


def load(folder: Path, items: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Open the stored index, mapped, and ask it for the first time."""
    start = time.perf_counter()
    index = hg.load_index(folder / "index", backend="numpy")
    opened = time.perf_counter() - start
    ids, similarities = mapped(folder)
    index.rerank(ids[:1, :5], similarities[:1, :5], k=K, method="local")
    return {"opening s": opened}


def search(folder: Path, items: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Times of queries, and how right some of them are."""
    index = hg.load_index(folder / "index", backend="numpy")
    ids, similarities = mapped(folder)
    seen = observed(index, {"ids": ids, "similarities": similarities}, settings["queries"])
    some = tuple(part[: settings["judged"]] for part in seen)
    request: dict[str, Any] = {"k": K, "method": "local"}
    row: dict[str, Any] = {}
    for batch in (1, min(BATCH, settings["queries"])):
        taken = waits(index, seen, batch, settings["seconds"], **request)
        if batch == 1:
            marks = 1e3 * np.percentile(taken, (50, 95, 99))
            row |= dict(zip(("p50 ms", "p95 ms", "p99 ms"), marks.tolist(), strict=True))
        row["ms per query, batches"] = float(1e3 * taken.mean() / batch)
    ranking = index.rerank(*some, **request)
    return row | accuracy(ranking, exact_ranking(index, *some))


def exact_ranking(index: hg.DiffusionIndex, ids: Any, similarities: Any) -> np.ndarray:
    """The best items of queries by long conjugate gradients in float64, without any basis."""
    graph, places = index.state.graph, index.state.numbering.places
    matrix = graph.adjacency
    wide = index.state.backend.csr(
        matrix.data.astype(np.float64), matrix.indices, matrix.indptr, matrix.shape
    )
    graph = hg.Graph(wide, graph.degrees.astype(np.float64), graph.components)
    best = []
    for query in range(0, len(ids), TOGETHER):
        some = slice(query, query + TOGETHER)
        seen = hg.observe(
            places[ids[some]], similarities[some], graph.n, gamma=index.gamma, dtype="float64"
        )
        scores = hg.diffuse(graph, seen, filter=hg.PageRank(ALPHA), rtol=EXACT).values
        best += [np.argpartition(-column, K)[:K] for column in np.asarray(scores).T]
    return np.asarray(index.state.numbering.order)[np.stack(best)]


def mapped(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The lists on the disk."""
    ids, similarities = (
        np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("ids", "similarities")
    )
    return ids, similarities


STAGES: dict[str, Callable[..., dict[str, Any]]] = {
    "descriptors": descriptors,
    "lists": lists,
    "build": build,
    "load": load,
    "search": search,
}
STAGE_FACTS = (
    *("items", "stage", "seconds", "saving s", "opening s", "peak MB", "disk MB", "recall"),
    *("entries", "isolated", "largest component"),
)
SEARCH_FACTS = (
    *("items", "p50 ms", "p95 ms", "p99 ms", "ms per query, batches", "visited", "most visited"),
    *("settled", "agreement", "settled, right"),
)
RESULTS = {"descriptors": "descriptors.npy", "lists": "similarities.npy"}


def own_bytes() -> int:
    """Memory of this process that is not mapped from files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    return 0


def measured(stage: str, folder: Path, items: int, settings: dict[str, Any], out: Any) -> None:
    """Run a stage in this process and send what it took."""
    before, done, peak = own_bytes(), threading.Event(), [0]

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], own_bytes())

    threading.Thread(target=watch, daemon=True).start()
    start = time.perf_counter()
    found = STAGES[stage](folder, items, settings)
    seconds = time.perf_counter() - start
    done.set()
    out.send(
        {
            "items": items,
            "stage": stage,
            "seconds": seconds,
            "peak MB": max(0, peak[0] - before) / 1e6,
            **found,
        }
    )


def run(stage: str, folder: Path, items: int, settings: dict[str, Any]) -> dict[str, Any]:
    """A stage in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=measured, args=(stage, folder, items, settings, sender))
    process.start()
    sender.close()
    try:
        row: dict[str, Any] = receiver.recv()
    except EOFError as fault:
        process.join()
        raise SystemExit(f"{stage} of {items:,} items ended with {process.exitcode}.") from fault
    process.join()
    print(row, flush=True)
    return row


def rows_of(folder: Path, items: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Every stage of one size; a file that is there already is not made again."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for stage in STAGES:
        made = folder / RESULTS.get(stage, "")
        if stage in RESULTS and made.with_suffix(".json").exists():
            rows.append(json.loads(made.with_suffix(".json").read_text()))
            continue
        rows.append(run(stage, folder, items, settings))
        if stage in RESULTS:
            made.with_suffix(".json").write_text(json.dumps(rows[-1]))
    return rows


def main(
    items: Annotated[list[int] | None, typer.Option(help="Sizes; 1M, 10M.")] = None,
    queries: Annotated[int | None, typer.Option(help="To time; 256.")] = None,
    judged: Annotated[int | None, typer.Option(help="To compare with the exact; 16.")] = None,
    seconds: Annotated[float, typer.Option(help="To time queries for, about.")] = 20,
    quick: Annotated[bool, typer.Option(help="80,000 items, 32 queries.")] = False,
    no_record: Annotated[bool, typer.Option(help="Only print.")] = False,
    folder: Annotated[Path | None, typer.Option(help="For what the stages make.")] = None,
    data_folder: Annotated[Path | None, typer.Option(help="Folder of the IDX files.")] = None,
) -> None:
    sizes = items or ([80_000] if quick else [1_000_000, 10_000_000])
    folder = folder or Path(tempfile.gettempdir()) / "hybrid-gpu-large"
    settings: dict[str, Any] = {
        "queries": queries or (32 if quick else 256),
        "judged": judged or 16,
        "seconds": 1 if quick else seconds,
        "data": data_folder,
    }
    made = [row for size in sizes for row in rows_of(folder / str(size), size, settings)]
    stages = [filled(row, STAGE_FACTS) for row in made if row["stage"] != "search"]
    searches = [filled(row, SEARCH_FACTS) for row in made if row["stage"] == "search"]
    show("Stages", stages)
    show("Searches", searches)
    told = {"neighbors": NEIGHBORS, "alpha": ALPHA, "k": K, "exact": EXACT} | {
        name: settings[name] for name in ("queries", "judged")
    }
    if not no_record:
        print(record("large_builds", told, stages))
        print(record("large_searches", told, searches))


def filled(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The named facts of a row, None where it has none."""
    return {name: row.get(name) for name in names}


if __name__ == "__main__":
    typer.run(main)
