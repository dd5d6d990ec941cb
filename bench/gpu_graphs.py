"""The graphs that GPU kernels are modelled on: real ones, in the memory order of an index."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from latency import built
from peers import neighbors_of

# What the model needs of an index: W, and the matrices of its groups by vectors and side by side.
MATRICES = ("adjacency", "transposed", "spread")


@dataclass(frozen=True)
class Csr:
    """A sparse matrix on the host: where rows begin, and the columns of their entries."""

    indptr: np.ndarray
    indices: np.ndarray
    columns: int

    @property
    def rows(self) -> int:
        return int(self.indptr.size) - 1

    @property
    def entries(self) -> int:
        return int(self.indices.size)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.indptr)


@dataclass(frozen=True)
class Problem:
    """The matrices of one index, and how many of its groups couple to each other."""

    adjacency: Csr
    transposed: Csr
    spread: Csr
    coupled: int

    @property
    def n(self) -> int:
        return self.adjacency.rows

    @property
    def rank(self) -> int:
        return self.transposed.rows


def problem_of(data: str, items: int, cache: Path, folder: Path | None) -> Problem:
    """The problem of a set of ``peers.py``, from the cache or made and put there."""
    path = cache / f"{data}-{items}-matrices.npz"
    if not path.exists():
        state = built(neighbors_of(data, items, cache, folder), "float32")[0].state
        found: dict[str, Any] = {"coupled": state.basis.coupling.shape[0]}
        parts = (state.graph.adjacency, state.basis.transposed, state.basis.spread)
        for name, part in zip(MATRICES, parts, strict=True):
            found |= {
                f"{name} indptr": np.asarray(part.indptr, np.int64),
                f"{name} indices": np.asarray(part.indices, np.int32),
                f"{name} columns": part.shape[1],
            }
        np.savez(path, **found)
    with np.load(path, allow_pickle=False) as archive:
        matrices = [
            Csr(
                archive[f"{name} indptr"],
                archive[f"{name} indices"],
                int(archive[f"{name} columns"]),
            )
            for name in MATRICES
        ]
        return Problem(*matrices, coupled=int(archive["coupled"]))
