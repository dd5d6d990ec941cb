"""Pictures of a ranking: what diffusion did to the first results of some queries."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.lab import plots
from hybrid_gpu.lab.benchmark import Benchmark

_QUERIES, _RESULTS = 4, 12


def draw_results(
    index: DiffusionIndex, benchmark: Benchmark, path: Path, *, queries: int = _QUERIES
) -> None:
    """Draw the first results of some queries, by similarity and after diffusion.

    Parameters
    ----------
    index
    benchmark
        With labels, and with pictures as descriptors.
    path
        File of the picture.
    queries
        How many queries it shows.
    """
    labels, query_labels = benchmark.labels, benchmark.query_labels
    assert labels is not None
    assert query_labels is not None
    depth = min(_RESULTS, index.n)
    before = index.search(benchmark.queries, k=depth, method="nn").ids
    after = index.search(benchmark.queries, k=depth).ids
    right = [(labels[ids] == query_labels[:, None]).sum(axis=1) for ids in (before, after)]
    # Those that changed most, for better or worse: a fair choice.
    change = np.abs(right[1] - right[0])
    chosen = np.argsort(-change, kind="stable")[:queries]
    name = benchmark.name[:1].upper() + benchmark.name[1:]
    plots.ranking_grid(
        benchmark.images,
        benchmark.query_images[chosen],
        before_ids=before[chosen],
        after_ids=after[chosen],
        labels=labels,
        query_labels=query_labels[chosen],
        path=path,
        results=depth,
        title=f"{name}: the first results of the queries that diffusion changed most",
    )
