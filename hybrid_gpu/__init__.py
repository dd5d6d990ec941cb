"""Re-rank the results of vector search by diffusion on a k-NN graph, on GPUs and on laptops."""

from hybrid_gpu import evaluation
from hybrid_gpu.aggregation import Aggregation, aggregate
from hybrid_gpu.backends import backend_of, select_backend
from hybrid_gpu.basis import (
    EigenBasis,
    GalerkinBasis,
    aggregate_basis,
    eigen_basis,
    given_basis,
    sparse_eigen_basis,
)
from hybrid_gpu.building import (
    build_index,
    build_index_from_graph,
    build_index_from_neighbors,
    with_basis,
)
from hybrid_gpu.errors import (
    BackendUnavailableError,
    ConvergenceError,
    DeviceMismatchError,
    HybridGpuError,
    IndexFileError,
)
from hybrid_gpu.expansion import Expansion, augment_database
from hybrid_gpu.filters import (
    HeatKernel,
    PageRank,
    Polynomial,
    condition_number,
    error_bound,
    error_bounds,
)
from hybrid_gpu.graph import Graph, graph_from_affinity, reciprocal_graph
from hybrid_gpu.index import DiffusionIndex
from hybrid_gpu.methods import METHODS
from hybrid_gpu.neighbors import Neighbors, nearest_neighbors
from hybrid_gpu.observation import Observation, observe
from hybrid_gpu.plan import Plan, plan, predicted_bytes
from hybrid_gpu.precompute import estimate_precompute
from hybrid_gpu.ranking import Ranking, top_items
from hybrid_gpu.solver import Solution, diffuse
from hybrid_gpu.spectrum import Spectrum, leading_eigenpairs
from hybrid_gpu.storage import load_index

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Aggregation",
    "BackendUnavailableError",
    "ConvergenceError",
    "DeviceMismatchError",
    "DiffusionIndex",
    "EigenBasis",
    "Expansion",
    "GalerkinBasis",
    "Graph",
    "HeatKernel",
    "HybridGpuError",
    "IndexFileError",
    "Neighbors",
    "Observation",
    "PageRank",
    "Plan",
    "Polynomial",
    "Ranking",
    "Solution",
    "Spectrum",
    "aggregate",
    "aggregate_basis",
    "augment_database",
    "backend_of",
    "build_index",
    "build_index_from_graph",
    "build_index_from_neighbors",
    "condition_number",
    "diffuse",
    "eigen_basis",
    "error_bound",
    "error_bounds",
    "estimate_precompute",
    "evaluation",
    "given_basis",
    "graph_from_affinity",
    "leading_eigenpairs",
    "load_index",
    "nearest_neighbors",
    "observe",
    "plan",
    "predicted_bytes",
    "reciprocal_graph",
    "select_backend",
    "sparse_eigen_basis",
    "top_items",
    "with_basis",
]
