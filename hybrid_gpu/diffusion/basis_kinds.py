"""Every kind of basis by its name, so that files can bring them back."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hybrid_gpu.backends import Backend
from hybrid_gpu.diffusion.aggregate_basis import AggregateBasis
from hybrid_gpu.diffusion.basis import Basis
from hybrid_gpu.diffusion.eigen_basis import EigenBasis
from hybrid_gpu.diffusion.galerkin_basis import GalerkinBasis, SparseEigenBasis
from hybrid_gpu.graph.affinity import Graph

KINDS: Mapping[str, Any] = MappingProxyType(
    {
        "aggregates": AggregateBasis,
        "eigenvectors": EigenBasis,
        "sparse eigenvectors": SparseEigenBasis,
        "given, sparse": GalerkinBasis,
        "given, dense": GalerkinBasis,
    }
)
"""The class of each kind of basis."""


def check_kind_known(kind: str) -> None:
    """Refuse a kind that could not be brought back, before anything is written."""
    if kind not in KINDS:
        raise ValueError(
            f"a basis of the kind {kind!r} can be searched with, but not be saved or moved to "
            f"another backend, as can those of the kinds: {'; '.join(KINDS)}. Use "
            "hg.with_basis(index, vectors) with its vectors."
        )


def restored_basis(
    kind: str, arrays: Mapping[str, Any], facts: Mapping[str, Any], graph: Graph, backend: Backend
) -> Basis:
    """The basis of a kind, from what its ``arrays`` and ``facts`` gave."""
    made: Basis = KINDS[kind].restored(arrays, facts, graph.adjacency, backend)
    return made
