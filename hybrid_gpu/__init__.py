"""Re-rank the results of vector search by diffusion on a k-NN graph, on GPUs and on laptops."""

from hybrid_gpu import evaluation
from hybrid_gpu.backends import Backend, backend_of, select_backend
from hybrid_gpu.diffusion.aggregate_basis import AggregateBasis, aggregate_basis
from hybrid_gpu.diffusion.basis import Basis
from hybrid_gpu.diffusion.diffuse import diffuse
from hybrid_gpu.diffusion.eigen_basis import EigenBasis, eigen_basis
from hybrid_gpu.diffusion.filters import (
    Filter,
    HeatKernel,
    PageRank,
    Polynomial,
    condition_number,
    error_bound,
    error_bounds,
)
from hybrid_gpu.diffusion.galerkin_basis import GalerkinBasis, given_basis, sparse_eigen_basis
from hybrid_gpu.diffusion.observation import Observation, observe
from hybrid_gpu.diffusion.solution import Solution
from hybrid_gpu.diffusion.sparsity import Sparsity
from hybrid_gpu.diffusion.spectrum import Spectrum, leading_eigenpairs
from hybrid_gpu.distributed.files_job import rerank_files
from hybrid_gpu.distributed.reranker import Reranker
from hybrid_gpu.distributed.summary import FilesReport, ShardReport
from hybrid_gpu.errors import (
    BackendUnavailableError,
    ConvergenceError,
    DeviceMismatchError,
    HybridGpuError,
    IndexFileError,
    ReplicaError,
)
from hybrid_gpu.graph.affinity import Graph, graph_from_affinity, reciprocal_graph
from hybrid_gpu.graph.aggregation import Aggregation, aggregate
from hybrid_gpu.graph.neighbors import Neighbors, nearest_neighbors
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.explain import explain
from hybrid_gpu.index.explanations import Explanation, GraphPath, Hit
from hybrid_gpu.index.factory import (
    PAPER,
    build_index,
    build_index_from_graph,
    build_index_from_neighbors,
    load_index,
    with_basis,
)
from hybrid_gpu.index.plan import Candidate, Plan, estimate_precompute, plan, predicted_bytes
from hybrid_gpu.index.replicas import Replicas
from hybrid_gpu.lab.tuning import Setting, Tuning, tune
from hybrid_gpu.ranking.columns import Columns
from hybrid_gpu.ranking.methods import METHODS
from hybrid_gpu.ranking.query_expansion import Expansion, augment_database
from hybrid_gpu.ranking.request import Method
from hybrid_gpu.ranking.top_items import Ranking, Report, top_items

__version__ = "0.2.0"

__all__ = [
    "METHODS",
    "PAPER",
    "AggregateBasis",
    "Aggregation",
    "Backend",
    "BackendUnavailableError",
    "Basis",
    "Candidate",
    "Columns",
    "ConvergenceError",
    "DeviceMismatchError",
    "DiffusionIndex",
    "EigenBasis",
    "Expansion",
    "Explanation",
    "FilesReport",
    "Filter",
    "GalerkinBasis",
    "Graph",
    "GraphPath",
    "HeatKernel",
    "Hit",
    "HybridGpuError",
    "IndexFileError",
    "Method",
    "Neighbors",
    "Observation",
    "PageRank",
    "Plan",
    "Polynomial",
    "Ranking",
    "ReplicaError",
    "Replicas",
    "Report",
    "Reranker",
    "Setting",
    "ShardReport",
    "Solution",
    "Sparsity",
    "Spectrum",
    "Tuning",
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
    "explain",
    "given_basis",
    "graph_from_affinity",
    "leading_eigenpairs",
    "load_index",
    "nearest_neighbors",
    "observe",
    "plan",
    "predicted_bytes",
    "reciprocal_graph",
    "rerank_files",
    "select_backend",
    "sparse_eigen_basis",
    "top_items",
    "tune",
    "with_basis",
]
