"""How long does a query take, alone and in a batch, and does that grow with the database?

    python bench/latency.py [--items 10000 --items 100000 --items 1000000] [--no-record]
    python bench/latency.py --quick --no-record

Fashion-MNIST and warps of its pictures; 10,000 items are the first of 100,000, and those the first
of a million. The index holds all items. A query is a seeded item of the largest component, seen
through its five nearest items. "Exact" is ``hybrid`` on a float64 index to a residual of 1e-6.

A query waits for its whole batch: p50, p95 and p99 are the times until an answer comes, "ms per
query" is the time of all queries divided by their number. "settled" is the part of the queries
whose local search came to rest; ``hybrid`` solved the others. "settled, right" is the part of the
settled ones with an agreement of 0.99 or more. "setup s" leads from k-NN lists to an index that is
warmed up. Slow rows are timed on fewer queries, as "timed" says; all "judged" ones are compared
with the exact ranking. Beside them stands SciPy's ``cg`` in float64, one query on each core.
"""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import scipy.sparse as sparse
import typer
from common import record, show
from peers import NEIGHBORS, OBSERVED, neighbors_of
from scipy.sparse.linalg import cg
from threadpoolctl import threadpool_limits

import hybrid_gpu as hg
from hybrid_gpu.graph.affinity import largest_component

ALPHA = 0.99
EXACT = 1e-6
RIGHT = 0.99
BATCHES = (1, 128)
RANKINGS = (10, 100, 1000)
METHODS = ("local", "hybrid")
FEWEST = 16


def built(
    lists: dict[str, Any], dtype: str, *, warm: bool = False
) -> tuple[hg.DiffusionIndex, float]:
    """The index of k-NN lists, with all that a search needs if it is warm; and the seconds."""
    start = time.perf_counter()
    index = hg.build_index_from_neighbors(
        lists["ids"],
        lists["similarities"],
        neighbors=NEIGHBORS,
        alpha=ALPHA,
        basis="aggregate",
        keep_neighbors=False,
        dtype=dtype,
        backend="numpy",
    )
    if warm:
        index.warm_up()
    return index, time.perf_counter() - start


def observed(
    index: hg.DiffusionIndex, lists: dict[str, Any], queries: int
) -> tuple[np.ndarray, np.ndarray]:
    """Seeded items of the largest component, seen through their nearest items: ids, cosines."""
    sample = np.random.default_rng(43).choice(
        largest_component(index.graph), queries, replace=False
    )
    first = np.argsort(-lists["similarities"][sample], axis=1, kind="stable")[:, :OBSERVED]
    return tuple(
        np.take_along_axis(lists[name][sample], first, axis=1) for name in ("ids", "similarities")
    )


def exact_ranking(lists: dict[str, Any], seen: tuple[Any, Any], k: int) -> np.ndarray:
    """The best ``k`` items of every query, by an index in float64."""
    index = built(lists, "float64")[0]
    return np.asarray(index.rerank(*seen, k=k, method="hybrid", rtol=EXACT).ids)


def agreements(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The part of each query's exact items that was found, (m,)."""
    # -1 where the exact ranking is shorter.
    pairs = [(one, other[other >= 0]) for one, other in zip(found, exact, strict=True)]
    return np.array([np.isin(other, one).mean() for one, other in pairs])


def waits(
    index: hg.DiffusionIndex, seen: tuple[Any, Any], batch: int, seconds: float, **request: Any
) -> np.ndarray:
    """Seconds of every batch, (batches,), of as many as there is time for."""
    ids, similarities = seen
    index.rerank(ids[:batch], similarities[:batch], **request)
    taken: list[float] = []
    fewest = max(1, FEWEST // batch)
    for start in range(0, len(ids) - batch + 1, batch):
        if len(taken) >= fewest and sum(taken) > seconds:
            break
        rows = slice(start, start + batch)
        begin = time.perf_counter()
        index.rerank(ids[rows], similarities[rows], batch=batch, **request)
        taken.append(time.perf_counter() - begin)
    return np.array(taken)


def accuracy(ranking: hg.Ranking, exact: np.ndarray) -> dict[str, Any]:
    """How far the queries went, and how right their answers are."""
    right = agreements(np.asarray(ranking.ids), exact)
    facts = dict.fromkeys(("visited", "most visited", "settled"))
    told = {"agreement": float(right.mean()), "settled, right": None}
    local = ranking.report.local
    if local is not None:
        settled, visited = np.asarray(local.settled), np.asarray(local.visited)
        facts = {
            "visited": float(visited.mean()),
            "most visited": int(visited.max()),
            "settled": float(settled.mean()),
        }
        if settled.any():
            told["settled, right"] = float((right[settled] >= RIGHT).mean())
    return facts | told


def scipy_row(
    index: hg.DiffusionIndex, seen: tuple[Any, Any], exact: np.ndarray, seconds: float
) -> dict[str, Any]:
    """The peer that everybody has: the same observations, the 100 best, one query on each core."""
    graph, k = index.graph, 100
    parts = (np.asarray(getattr(graph.adjacency, name)) for name in ("data", "indices", "indptr"))
    weights = sparse.csr_array(tuple(parts), shape=(graph.n, graph.n)).astype(np.float64)
    system = sparse.csr_array(sparse.eye_array(graph.n, format="csr") - ALPHA * weights)
    ids, similarities = seen

    def best(query: int) -> np.ndarray:
        right_side = np.zeros(graph.n)
        right_side[ids[query]] = (1 - ALPHA) * np.maximum(similarities[query], 0) ** index.gamma
        scores = cg(system, right_side, rtol=0, maxiter=20)[0]
        found = np.argpartition(-scores, k)[:k]
        return found[np.argsort(-scores[found], kind="stable")]

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with threadpool_limits(1), ThreadPoolExecutor(cores) as pool:
        start = time.perf_counter()
        list(pool.map(best, range(cores or 1)))
        first = time.perf_counter() - start
        count = int(np.clip(cores * seconds / first, 2 * cores, len(exact)))
        start = time.perf_counter()
        found = list(pool.map(best, range(count)))
        taken = time.perf_counter() - start
    agreement = float(agreements(np.stack(found), exact[:count, :k]).mean())
    row: dict[str, Any] = {
        "k": k,
        "method": "SciPy cg, 20 steps",
        "ms per query": 1e3 * taken / count,
    }
    return row | {"agreement": agreement, "timed": count}


def rows_of(
    items: int, lists: dict[str, Any], queries: int, judged: int, seconds: float
) -> list[dict[str, Any]]:
    """The rows of one size of the database."""
    index, setup = built(lists, "float32", warm=True)
    seen = observed(index, lists, queries)
    some = tuple(part[:judged] for part in seen)
    exact = exact_ranking(lists, some, max(RANKINGS))
    rows = []
    for k in RANKINGS:
        for method in METHODS:
            request = {"k": k, "method": method}
            # An answer does not depend on its batch: judged once.
            facts = accuracy(index.rerank(*some, **request), exact[:, :k])
            for batch in sorted({min(batch, queries) for batch in BATCHES}):
                taken = waits(index, seen, batch, seconds, **request)
                p50, p95, p99 = 1e3 * np.percentile(taken, (50, 95, 99))
                rows.append(
                    {
                        "items": items,
                        "k": k,
                        "method": method,
                        "batch": batch,
                        "p50 ms": float(p50),
                        # Of a few batches, these would say nothing.
                        "p95 ms": float(p95) if taken.size >= FEWEST else None,
                        "p99 ms": float(p99) if taken.size >= FEWEST else None,
                        "ms per query": float(1e3 * taken.mean() / batch),
                        **facts,
                        "setup s": setup,
                        "timed": taken.size * batch,
                    }
                )
                print(list(rows[-1].values()), flush=True)
    peer = scipy_row(index, some, exact, seconds)
    rows.append(dict.fromkeys(rows[0]) | {"items": items} | peer)
    print(list(rows[-1].values()), flush=True)
    return rows


def main(
    items: Annotated[list[int] | None, typer.Option(help="Sizes; 10k, 100k, 1M.")] = None,
    queries: Annotated[int | None, typer.Option(help="To time; 512.")] = None,
    judged: Annotated[int | None, typer.Option(help="To compare with the exact; 256.")] = None,
    seconds: Annotated[float, typer.Option(help="To time each row for, about.")] = 20,
    quick: Annotated[bool, typer.Option(help="5,000 items, 32 queries.")] = False,
    no_record: Annotated[bool, typer.Option(help="Only print.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Folder for k-NN lists.")] = None,
    data_folder: Annotated[Path | None, typer.Option(help="Folder of the IDX files.")] = None,
) -> None:
    sizes = items or ([5_000] if quick else [10_000, 100_000, 1_000_000])
    queries = queries or (32 if quick else 512)
    judged = min(queries, judged or 256)
    seconds = min(seconds, 0.2) if quick else seconds
    cache = cache or Path(tempfile.gettempdir()) / "hybrid-gpu-bench"
    rows: list[dict[str, Any]] = []
    recalls = {}
    for size in sizes:
        lists = neighbors_of("million", size, cache, data_folder)
        recalls[f"recall of neighbors, {size:,} items"] = float(lists.pop("recall"))
        rows += rows_of(size, lists, queries, judged, seconds)
    settings = {
        "neighbors": NEIGHBORS,
        "observed": OBSERVED,
        "alpha": ALPHA,
        "queries": queries,
        "judged": judged,
        "exact": f"hybrid in float64 to a residual of {EXACT}",
        **recalls,
    }
    show("Latency", rows)
    if not no_record:
        print(record("latency", settings, rows))


if __name__ == "__main__":
    typer.run(main)
