"""How long do exact neighbors take, beside FAISS and beside the bare matrix product?

    python bench/exact_neighbors.py [--items 30000] [--neighbors 50] [--no-record]
    python bench/exact_neighbors.py --quick --no-record

Clustered points, float32, as many threads as there are cores. Ours is ``knn="exact"``, FAISS its
``IndexFlatIP``, which is asked for one more, as every item finds itself. The product is the one of
all items with all of them by NumPy's BLAS, a tile of 1,024 rows after the other into the same
memory, with nothing picked from it. Ours may take less: half of the product is enough.
"""

from __future__ import annotations

from typing import Annotated, Any

import faiss
import numpy as np
import typer
from common import best_of, record, show
from numpy.typing import NDArray

import hybrid_gpu as hg
from hybrid_gpu import evaluation
from hybrid_gpu.backends.threads import thread_count
from hybrid_gpu.graph.neighbors import neighbors_of_units

TILE = 1024
Vectors = NDArray[np.float32]


def points(n: int, d: int, seed: int = 37) -> Vectors:
    """Unit vectors around a center for each hundred of them."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((n // 100, d), dtype=np.float32)
    vectors = centers[rng.integers(0, len(centers), n)]
    vectors += rng.standard_normal((n, d), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def multiply(vectors: Vectors) -> None:
    tile = np.empty((TILE, len(vectors)), np.float32)
    for start in range(0, len(vectors), TILE):
        rows = vectors[start : start + TILE]
        np.matmul(rows, vectors.T, out=tile[: len(rows)])


def ours(vectors: Vectors, k: int) -> NDArray[np.int64]:
    backend = hg.select_backend("numpy")
    found = neighbors_of_units(vectors, None, k, knn="exact", progress=None, backend=backend)
    return np.asarray(found.ids)


def by_faiss(vectors: Vectors, k: int) -> NDArray[np.int64]:
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    _, found = index.search(vectors, k + 1)
    others = found != np.arange(len(vectors))[:, None]
    # Among many equal items, one may not have found itself.
    others[others.all(axis=1), -1] = False
    return found[others].reshape(len(vectors), k)


def row(n: int, d: int, k: int, times: int) -> dict[str, Any]:
    vectors = points(n, d)
    return {
        "items": f"{n:,}",
        "dimensions": d,
        "exact s": best_of(lambda: ours(vectors, k), times),
        "FAISS flat s": best_of(lambda: by_faiss(vectors, k), times),
        "product s": best_of(lambda: multiply(vectors), times),
        # Of each other's: both are exact, to rounding.
        "recall": evaluation.agreement(ours(vectors, k), by_faiss(vectors, k)),
    }


def main(
    items: Annotated[int, typer.Option(help="Items.")] = 30_000,
    neighbors: Annotated[int, typer.Option(help="Neighbors of each.")] = 50,
    times: Annotated[int, typer.Option(help="Runs, of which the fastest counts.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few items, to see that it runs.")
    ] = False,
    keep: Annotated[bool, typer.Option("--record/--no-record", help="Record the run.")] = True,
) -> None:
    if quick:
        items, times = 3_000, 1
    threads = thread_count()
    faiss.omp_set_num_threads(threads)
    rows = [row(items, d, neighbors, times) for d in (128, 784)]
    show("exact neighbors", rows)
    if keep:
        settings = {"neighbors": neighbors, "threads": threads, "faiss": faiss.__version__}
        print(record("exact_neighbors", settings, rows))


if __name__ == "__main__":
    typer.run(main)
