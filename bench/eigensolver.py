"""How long do leading eigenvectors take, by the block solver and by ARPACK?

    python bench/eigensolver.py [--folder DIR] [--rank 400] [--tolerance 1e-3]

Both on the same graph (Fashion-MNIST, 70,000 items, 50 neighbors, its largest component, in one
memory order), one after the other. Beside every time: the worst residual, the departure
from orthogonality, and for the block solver what its certificate says about missed eigenvalues.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import scipy.sparse as sparse
import typer
from common import record, show
from scipy.sparse.linalg import eigsh
from space_time import neighbors_of

import hybrid_gpu as hg
from hybrid_gpu import datasets
from hybrid_gpu.graph.affinity import largest_component


def main(
    folder: Annotated[Path | None, typer.Option(help="Folder of the IDX files.")] = None,
    rank: Annotated[int, typer.Option(help="Eigenpairs.")] = 400,
    tolerance: Annotated[float, typer.Option(help="Of both solvers.")] = 1e-3,
) -> None:
    lists = neighbors_of(datasets.fashion_mnist(folder), 50)
    index = hg.build_index_from_neighbors(
        lists.ids, np.maximum(lists.similarities, 0), basis="none", keep_neighbors=False, **hg.PAPER
    )
    graph = index.state.graph
    start = time.perf_counter()
    spectrum = hg.leading_eigenpairs(graph, rank=rank, tolerance=tolerance)
    block = time.perf_counter() - start
    rows = [
        {
            "solver": "block Chebyshev (this library)",
            "seconds": block,
            "worst residual": float(spectrum.residuals.max()),
            "orthogonality": spectrum.orthogonality,
            "missed": spectrum.missed,
            "times faster": 0.0,
        }
    ]
    show("so far", rows)
    old, items = graph.adjacency, largest_component(graph)
    matrix = sparse.csr_array((old.data.astype(float), old.indices, old.indptr), shape=old.shape)
    matrix = sparse.csr_array(matrix[items][:, items])
    vector = np.random.default_rng(19).standard_normal(items.size)
    start = time.perf_counter()
    values, vectors = eigsh(matrix, k=rank, which="LA", tol=tolerance, v0=vector)
    arpack = time.perf_counter() - start
    residuals = np.linalg.norm(matrix @ vectors - vectors * values, axis=0)
    rows.append(
        {
            "solver": "ARPACK (SciPy eigsh)",
            "seconds": arpack,
            "worst residual": float(residuals.max()),
            "orthogonality": float(np.abs(vectors.T @ vectors - np.eye(rank)).max()),
            "missed": None,
            "times faster": 1.0,
        }
    )
    rows[0]["times faster"] = arpack / block
    show(f"rank {rank}, {items.size} items", rows)
    settings = {"items": int(items.size), "edges": graph.edges, "rank": rank, "tol": tolerance}
    print(record("eigensolver", settings, rows))


if __name__ == "__main__":
    typer.run(main)
