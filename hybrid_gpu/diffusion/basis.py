"""What a solver deflates: a few vectors that span the slow part of diffusion.

Whatever the vectors Z are, deflated conjugate gradients converge to the exact solution; good ones
only make it faster. Two kinds are made. Eigenvectors of the adjacency (``eigen_basis``) stay in
place under diffusion, so that they are projected out once and never seen again. Any other vectors,
sparse or dense (``galerkin_basis``), are projected out in every step, through the small matrix
``E = Z^T (I - alpha W) Z``. Aggregates (``aggregate_basis``) are the cheapest of the latter: one
vector per group of items, one number per item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from hybrid_gpu.backends import Array, Backend, SparseMatrix
from hybrid_gpu.backends.protocol import CoarseInverse, Deflated, HostArray, Numbering
from hybrid_gpu.graph.affinity import Graph
from hybrid_gpu.graph.csr import array_bytes, matrix_bytes
from hybrid_gpu.validation import dtype_name, shown

Deflation: TypeAlias = Callable[[Array], Deflated]
"""Takes the span of a basis out of a signal (n, m)."""


@dataclass(frozen=True, slots=True, eq=False)
class SlowedWalk:
    """Diffusion among the groups of a basis, slowed down to the pace that it has on the items.

    Inside a group nothing takes time, so that the groups alone would spread too fast. With
    ``Z^T (I - W) Z`` divided by the slowdown, as much stays near a query as on the items.

    Attributes
    ----------
    slowdown : float
        1 or more.
    inverse : CoarseInverse
        Of ``(1 - alpha) I + alpha / slowdown Z^T (I - W) Z``.
    """

    slowdown: float
    inverse: CoarseInverse


class Basis(Protocol):
    """Vectors Z of shape (n, r) on a graph, as solvers use them and indexes keep them."""

    @property
    def kind(self) -> str:
        """What the vectors are, in a word or two; it names them in a file too."""

    @property
    def rank(self) -> int:
        """Number of vectors, r."""

    @property
    def memory(self) -> int:
        """Bytes."""

    @property
    def adjacency(self) -> SparseMatrix:
        """The normalized adjacency of the graph that they belong to."""

    @property
    def backend(self) -> Backend:
        """Where they are."""

    invariant: ClassVar[bool]
    """Whether diffusion maps the span of the vectors onto itself, as with eigenvectors."""

    crosses: ClassVar[bool]
    """Whether a vector may reach across components, where diffusion never goes."""

    def restrict(self, signal: Array) -> Array:
        """``Z^T v``: coefficients (r, m) of the columns of a signal (n, m)."""

    def prolong(self, coefficients: Array) -> Array:
        """``Z c``: the signal (n, m) of coefficients (r, m)."""

    def prolong_onto(self, signal: Array, coefficients: Array) -> Array:
        """``v + Z c``; may be written over the signal v."""

    def deflation(self, alpha: float) -> Deflation:
        """What takes ``A Z E^-1 Z^T v`` off a signal v (n, m), which may be overwritten.

        A is ``I - alpha W``, and ``E = Z^T A Z``.
        """

    def coarse_inverse(self, alpha: float) -> CoarseInverse:
        """The inverse of ``E = Z^T (I - alpha W) Z``; made once for an alpha and kept."""

    def kept_inverse(self, alpha: float) -> CoarseInverse | None:
        """The dense inverse that was made for an alpha, if there is one."""

    def keep_inverse(self, alpha: float, together: Array, norm: float) -> None:
        """Keep a dense inverse that was made for an alpha before."""

    def kept_walk(self, alpha: float) -> SlowedWalk | None:
        """The slowed walk on its groups that was made for an alpha, if there is one."""

    def keep_walk(self, alpha: float, slowdown: float, together: Array) -> None:
        """Keep the dense part of a slowed walk that was made for an alpha before."""

    def renumbered(self, graph: Graph, numbering: Numbering) -> Basis:
        """The same vectors with the item ``numbering.order[p]`` at place p, as ``graph`` has it."""

    def carried_over(self, graph: Graph, old_places: HostArray) -> Basis:
        """A basis of its kind for a changed graph.

        ``old_places`` (n,) tells where each item of the graph stood before; -1 for new ones.
        """

    def arrays(self) -> Mapping[str, Any]:
        """What it is made of, by name: arrays and sparse matrices. ``restored`` takes them back."""

    def facts(self) -> dict[str, Any]:
        """What else there is to know of it, as JSON can hold it."""


def host64(values: Array, backend: Backend) -> HostArray:
    """A small array on the host, in float64."""
    return backend.to_numpy(values).astype(np.float64)


def inverse_of(eigenvalues: Array, alpha: float, backend: Backend) -> Array:
    """``1 / (1 - alpha x)``, computed in float64."""
    # In float32, 1 - alpha has lost digits; and rounding may have put an eigenvalue above 1.
    exact = 1 / (1 - alpha * np.minimum(host64(eigenvalues, backend), 1.0))
    return backend.asarray(exact, dtype_name(eigenvalues.dtype))


def check_vectors_of(vectors: Any, what: str, n: int) -> None:
    """Refuse what is not a matrix of n rows of real numbers, sparse or dense."""
    shape = getattr(vectors, "shape", None)
    if shape is None or not dtype_name(vectors.dtype).startswith(("float", "int", "uint", "bool")):
        raise TypeError(f"{what} must be an array of real numbers; got {shown(vectors)}.")
    if len(shape) != 2 or shape[0] != n:
        raise ValueError(f"{what} must have shape (n, r) with n = {n}; got {tuple(shape)}.")


def part_bytes(part: Any) -> int:
    """Bytes of an array or a sparse matrix; 0 for None."""
    if part is None:
        return 0
    return matrix_bytes(part) if hasattr(part, "indptr") else array_bytes(part)
