"""Which entries of eigenvectors can be dropped?

    python bench/sparse_thresholds.py              # the digits, and Fashion-MNIST if it is there
    python bench/sparse_thresholds.py --folder F   # Fashion-MNIST from its four IDX files

``shybrid`` as in the paper, and ``hybrid``, deflated by the same vectors; five steps each. The
smallest entries of all are dropped, or the smallest of U_1 sqrt(g(Lambda_1)), and it is told how
many entries of the slowest vector are left.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from common import record, show
from spectral_fallbacks import benchmarks

import hybrid_gpu as hg
from hybrid_gpu import evaluation
from hybrid_gpu.diffusion.sparsity import THRESHOLDS
from hybrid_gpu.lab.benchmark import Benchmark
from hybrid_gpu.lab.comparison import quality


def measured(
    benchmark: Benchmark, neighbors: int, alpha: float, rank: int
) -> Iterator[dict[str, Any]]:
    """A row for the exact diffusion, for whole eigenvectors, and for each way to drop entries."""
    whole = hg.build_index(
        benchmark.descriptors, neighbors=neighbors, alpha=alpha, basis="eigen", rank=rank
    )
    exact = whole.search(benchmark.queries, k=whole.n, rtol=1e-5).ids

    def row(way: str, sparsity: hg.Sparsity | None, ids: Any, kept: int) -> dict[str, Any]:
        return {
            "data": benchmark.name,
            "way": way,
            "sparsity": None if sparsity is None else sparsity.fraction,
            "threshold": None if sparsity is None else sparsity.threshold,
            **quality(benchmark, ids),
            "agreement@100": evaluation.agreement(ids[:, :100], exact[:, :100]),
            "entries of the slowest vector": kept,
        }

    vectors = whole.state.required_eigenvectors()
    slowest = int(np.count_nonzero(vectors.dense()[:, 0]))
    yield row("exact diffusion", None, exact, slowest)
    for method in ("hybrid-paper", "hybrid"):
        found = whole.search(benchmark.queries, k=whole.n, method=method, steps=5)
        yield row(method, None, found.ids, slowest)
    for fraction, threshold in itertools.product((0.9, 0.99), THRESHOLDS):
        sparsity = hg.Sparsity(fraction, threshold)
        basis = vectors.sparsified_for(whole.state.filter, sparsity)
        kept = int(np.diff(basis.transposed.indptr)[0])
        options: dict[str, Any] = {"k": whole.n, "steps": 5}
        found = whole.search(benchmark.queries, method="shybrid", sparsity=sparsity, **options)
        yield row("shybrid", sparsity, found.ids, kept)
        index = hg.DiffusionIndex(replace(whole.state, basis=basis))
        found = index.search(benchmark.queries, method="hybrid", **options)
        yield row("hybrid", sparsity, found.ids, kept)


def main(
    folder: Annotated[Path | None, typer.Option(help="Folder of the four IDX files.")] = None,
    neighbors: Annotated[int, typer.Option(help="Nearest neighbors of each item.")] = 50,
    alpha: Annotated[float, typer.Option(help="Restart parameter.")] = 0.99,
    rank: Annotated[int, typer.Option(help="Eigenvectors.")] = 400,
    queries: Annotated[int, typer.Option(help="Queries at most.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of the sample of queries.")] = 5,
) -> None:
    rows = []
    for benchmark in benchmarks(folder, queries, seed):
        for row in measured(benchmark, neighbors, alpha, rank):
            print(row, flush=True)
            rows.append(row)
    show("sparse eigenvectors", rows)
    settings = {"neighbors": neighbors, "alpha": alpha, "rank": rank, "queries": f"up to {queries}"}
    print(record("sparse_thresholds", settings, rows))


if __name__ == "__main__":
    typer.run(main)
