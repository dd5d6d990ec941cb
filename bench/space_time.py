"""What does a basis cost, and how many steps does it save?

    python bench/space_time.py [--folder DIR] [--queries 100]

Fashion-MNIST, all 70,000 pictures as the database, 50 neighbors, alpha 0.99. Queries are a seeded
sample of the items, each observed through its five nearest neighbors. For every method and number
of steps, and as a search comes by default: top-100 agreement with the exact ranking, relative
error, time per query; for every basis: bytes and seconds to build. "Exact" is
conjugate gradients in float64 to a residual of 1e-10.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from common import record, scores_by_item, show

import hybrid_gpu as hg
from hybrid_gpu import datasets, evaluation

# "default" is what a user gets who names no steps: an accuracy for hybrid, steps for the others.
STEPS: tuple[int | str, ...] = ("default", 1, 2, 3, 5, 10, 20)


def neighbors_of(split: datasets.Split, k: int) -> hg.Neighbors:
    vectors = np.concatenate([split.database.descriptors, split.queries.descriptors])
    return hg.nearest_neighbors(vectors, k=k)


def measured(
    index: hg.DiffusionIndex,
    method: str,
    steps: int | str,
    seen: tuple[Any, Any],
    exact: hg.Ranking,
) -> dict[str, Any]:
    """One line of the table; every query is ranked in full, to know the error."""
    ids, similarities = seen
    options = {"method": method} if steps == "default" else {"method": method, "steps": steps}
    whole = index.rerank(ids, similarities, k=index.n, **options)
    scores = scores_by_item(whole, index.n)
    error = np.linalg.norm(scores - exact.scores, axis=1) / np.linalg.norm(exact.scores, axis=1)
    runs = [index.rerank(ids, similarities, k=100, **options) for _ in range(3)]
    ranking = min(runs, key=lambda run: run.report.total_seconds)
    return {
        "steps taken": ranking.report.steps,
        "agreement@100": evaluation.agreement(ranking.ids, exact.ids[:, :100]),
        "relative error": float(error.mean()),
        "ms per query": 1e3 * ranking.report.total_seconds / len(ids),
    }


def main(
    folder: Annotated[Path | None, typer.Option(help="Folder of the IDX files.")] = None,
    queries: Annotated[int, typer.Option(help="Items that serve as queries.")] = 100,
    ranks: Annotated[str, typer.Option(help="Ranks of eigenvector bases.")] = "100,400",
) -> None:
    lists = neighbors_of(datasets.fashion_mnist(folder), 50)
    ids, similarities = np.asarray(lists.ids), np.maximum(lists.similarities, 0)
    bare = hg.build_index_from_neighbors(
        ids, similarities, basis="none", keep_neighbors=False, **hg.PAPER
    )
    print(bare, bare.graph)
    # Items that have neighbors: an isolated one is its own answer.
    degrees = np.asarray(bare.graph.degrees)
    sample = np.random.default_rng(13).choice(np.flatnonzero(degrees > 0), queries, replace=False)
    seen = (ids[sample, :5], similarities[sample, :5])
    precise = hg.build_index_from_neighbors(
        ids, similarities, basis="none", keep_neighbors=False, dtype="float64", **hg.PAPER
    )
    exact = by_item(precise.rerank(*seen, k=bare.n, method="temporal", rtol=1e-10))
    rows = []

    def add(name: str, index: hg.DiffusionIndex, method: str, built: float) -> None:
        size = index.memory["basis"]
        if method == "shybrid":
            size = index.state.required_eigenvectors().sparsified(0.99).memory
        for steps in STEPS:
            line = measured(index, method, steps, seen, exact)
            rows.append(
                {
                    "method": name,
                    "steps": steps,
                    **line,
                    "basis MB": size / 1e6,
                    "build s": built,
                }
            )
        print(name, [round(row["agreement@100"], 4) for row in rows[-len(STEPS) :]], flush=True)

    add("temporal", bare, "temporal", 0.0)
    for items in (64, 32, 16):
        start = time.perf_counter()
        index = hg.with_basis(bare, "aggregate", rank=bare.n // items)
        add(f"hybrid, aggregates n/{items}", index, "hybrid", time.perf_counter() - start)
    for rank in (int(one) for one in ranks.split(",")):
        start = time.perf_counter()
        spectrum = hg.leading_eigenpairs(bare.graph, rank=rank)
        built = time.perf_counter() - start
        for precision in ("float32", "float16", "int8"):
            index = hg.with_basis(bare, hg.eigen_basis(spectrum, bare.graph, precision=precision))
            add(f"hybrid, eigen {rank}, {precision}", index, "hybrid", built)
            if precision == "float32":
                add(f"hybrid-paper {rank}", index, "hybrid-paper", built)
                add(f"shybrid {rank}, 99 %", index, "shybrid", built)
    show("Fashion-MNIST, 70,000 items", rows)
    settings = {"items": bare.n, "edges": bare.graph.edges, "queries": queries}
    print(record("space_time", settings, rows))


def by_item(ranking: hg.Ranking) -> hg.Ranking:
    """A full ranking whose scores are in the order of the items; ids stay in that of the ranks."""
    scores = scores_by_item(ranking, ranking.ids.shape[1])
    return hg.Ranking(ranking.ids, scores, ranking.report)


if __name__ == "__main__":
    typer.run(main)
