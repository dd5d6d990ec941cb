"""How much cheaper is a query in a batch than alone?

    python bench/batch_throughput.py [--items 50000] [--queries 256]

A graph of clustered random vectors; the same 256 queries in batches of 1 to 256, by the library,
and one by one by the reference (SciPy's conjugate gradients in float64). Beside every speed: the
top-100 agreement with the exact ranking.
"""

from __future__ import annotations

import time
from typing import Annotated

import numpy as np
import typer
from common import best_of, record, show

import hybrid_gpu as hg
from hybrid_gpu import evaluation, reference


def clustered(n: int, d: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((n // 100, d)).astype(np.float32)
    noise = rng.standard_normal((n, d)).astype(np.float32)
    return centers[rng.integers(0, len(centers), n)] + 0.7 * noise


def main(
    items: Annotated[int, typer.Option(help="Items of the database.")] = 50_000,
    queries: Annotated[int, typer.Option(help="Queries.")] = 256,
    steps: Annotated[int, typer.Option(help="Steps of conjugate gradients.")] = 20,
) -> None:
    vectors = clustered(items, 32, seed=17)
    index = hg.build_index(vectors, basis="none", **hg.PAPER)
    print(index.graph)
    first = index.search(
        vectors[:queries] + np.float32(0.1) * clustered(queries * 100, 32, seed=19)[:queries],
        k=5,
        method="nn",
    )
    ids, similarities = first.ids, np.maximum(first.scores, 0)
    exact = index.rerank(ids, similarities, k=100, method="temporal", rtol=1e-5).ids
    rows = []
    for batch in (1, 4, 16, 64, 128, 256):
        found = []

        def run(batch: int = batch, found: list[hg.Ranking] = found) -> None:
            ranking = index.rerank(
                ids, similarities, k=100, method="temporal", steps=steps, batch=batch
            )
            found[:] = [ranking]

        seconds = best_of(run, times=2)
        rows.append(
            {
                "way": "hybrid_gpu, float32",
                "batch": batch,
                "ms per query": 1e3 * seconds / queries,
                "agreement@100": evaluation.agreement(found[0].ids, exact),
            }
        )
    rows.append(one_by_one(index, ids, similarities, exact, steps, count=min(queries, 32)))
    alone = rows[0]["ms per query"]
    for row in rows:
        row["times faster than alone"] = alone / row["ms per query"]
    show(f"{items} items, {index.graph.edges} edges, {queries} queries, {steps} steps", rows)
    settings = {"items": items, "edges": index.graph.edges, "queries": queries, "steps": steps}
    print(record("batch_throughput", settings, rows))


def one_by_one(index, ids, similarities, exact, steps, count):
    """The reference, one query after the other on one thread."""
    old = index.graph.adjacency
    adjacency = reference.sparse.csr_array(
        (old.data.astype(np.float64), old.indices, old.indptr), shape=old.shape
    )
    observations = np.zeros((count, index.n))
    np.put_along_axis(observations, ids[:count], similarities[:count].astype(float) ** 3, axis=1)
    start = time.perf_counter()
    scores = [reference.temporal(adjacency, y, index.alpha, steps) for y in observations]
    best = np.stack([np.argsort(-x, kind="stable")[:100] for x in scores])
    seconds = time.perf_counter() - start
    return {
        "way": "reference (SciPy cg, float64)",
        "batch": 1,
        "ms per query": 1e3 * seconds / count,
        "agreement@100": evaluation.agreement(best, exact[:count]),
    }


if __name__ == "__main__":
    typer.run(main)
