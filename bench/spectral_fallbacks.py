"""What should fast spectral ranking (FSR) fall back to where its eigenvectors end?

    python bench/spectral_fallbacks.py              # the digits, and Fashion-MNIST if it is there
    python bench/spectral_fallbacks.py --folder F   # Fashion-MNIST from its four IDX files
    python bench/spectral_fallbacks.py --sets S     # NAME.npz in a folder: descriptors x, labels y

The same eigenvectors, alone (``fsr``), mixed with similarity by the norms of their rows (``fsrw``,
our reading of the paper), and with similarity at the gain of frequency 0 below them
(``fsr-similarity``, from the paper's theorems), at several ranks and alphas.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from common import record, show

import hybrid_gpu as hg
from hybrid_gpu import datasets
from hybrid_gpu.graph.affinity import largest_component
from hybrid_gpu.lab.benchmark import Benchmark, Dataset
from hybrid_gpu.lab.comparison import quality, with_leading

METHODS = ("fsr", "fsrw", "fsr-similarity")
RANKS, ALPHAS = (25, 100, 400), (0.8, 0.9, 0.99)


def benchmarks(folder: Path | None, queries: int, seed: int) -> list[Benchmark]:
    """The data sets that this machine has."""
    digits = datasets.split_queries(datasets.digits(), min(queries, 200), seed)
    found = [datasets.benchmark_of(digits, queries=digits.queries.n, seed=seed)]
    try:
        fashion = datasets.fashion_mnist(folder)
    except FileNotFoundError as missing:
        print(f"without Fashion-MNIST: {missing}")
        return found
    return [*found, datasets.benchmark_of(fashion, queries=queries, seed=seed)]


def own_benchmarks(folder: Path, queries: int, seed: int) -> list[Benchmark]:
    """A sample of the items of every ``.npz`` file in a folder are its queries."""
    made = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as arrays:
            vectors, labels = arrays["x"].astype(np.float32), arrays["y"]
        count = min(queries, len(vectors) // 4)
        split = datasets.split_queries(Dataset(path.stem, vectors, labels), count, seed)
        made.append(datasets.benchmark_of(split, queries=count, seed=seed))
    return made


def measured(benchmark: Benchmark, neighbors: int) -> Iterator[dict[str, Any]]:
    """A row of mAP for each rank and alpha."""
    widest = hg.build_index(benchmark.descriptors, neighbors=neighbors, alpha=0.99, basis="none")
    # A graph of small components has not so many eigenvectors that matter.
    most = largest_component(widest.state.graph).size // 3
    ranks = [rank for rank in RANKS if rank <= most]
    widest = hg.with_basis(widest, "eigen", rank=max(ranks))

    def score(index: hg.DiffusionIndex, method: str, alpha: float | None = None) -> float:
        found = index.search(benchmark.queries, k=index.n, method=method, alpha=alpha)
        return quality(benchmark, found.ids)["mAP"]

    # These do not depend on the rank.
    plain = score(widest, "nn")
    exact = {alpha: score(widest, "hybrid", alpha) for alpha in ALPHAS}
    for rank in ranks:
        index = with_leading(widest, rank)
        for alpha in ALPHAS:
            spectral = {method: score(index, method, alpha) for method in METHODS}
            told = {"data": benchmark.name, "rank": rank, "alpha": alpha, "nn": plain}
            yield {**told, **spectral, "hybrid": exact[alpha]}


def main(
    folder: Annotated[Path | None, typer.Option(help="Folder of the four IDX files.")] = None,
    sets: Annotated[Path | None, typer.Option(help="Folder of .npz files with x and y.")] = None,
    neighbors: Annotated[int, typer.Option(help="Nearest neighbors of each item.")] = 50,
    queries: Annotated[int, typer.Option(help="Queries at most.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the sample of queries.")] = 5,
) -> None:
    rows: list[dict[str, Any]] = []
    own = sets is not None
    chosen = own_benchmarks(sets, queries, seed) if own else benchmarks(folder, queries, seed)
    for benchmark in chosen:
        for row in measured(benchmark, neighbors):
            print(row, flush=True)
            rows.append(row)
    show("mAP", rows)
    settings = {"figures": "mAP", "neighbors": neighbors, "queries": f"up to {queries}"}
    question = "spectral_fallbacks_sets" if own else "spectral_fallbacks"
    print(record(question, settings, rows))


if __name__ == "__main__":
    typer.run(main)
