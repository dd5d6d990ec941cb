"""What the numerical core asks of a backend: the seam between the algorithm and the device.

The core is written against the array API standard and reaches it as ``backend.xp``. A backend adds
only what the standard lacks: sparse matrices, an eigensolver, top-k, the fused steps of conjugate
gradients, streams and memory. If ``xp`` can express it, it does not belong here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.step_records import Course, Moves, Product, Standing, Turn, Update

Array: TypeAlias = Any
"""An array of the backend's namespace ``xp``, on the backend's device."""

HostArray: TypeAlias = NDArray[Any]
"""A NumPy array."""

# Entries of lists that are renumbered at a time.
_LIST_ENTRIES = 1 << 16


class SparseMatrix(Protocol):
    """A matrix in compressed sparse rows, with its arrays on the backend's device."""

    @property
    def data(self) -> Array: ...
    @property
    def indices(self) -> Array: ...
    @property
    def indptr(self) -> Array: ...
    @property
    def shape(self) -> tuple[int, int]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Numbering:
    """Two numberings of the same n items: the user's ids, and the places where they lie in memory.

    Attributes
    ----------
    order : int64 array of shape (n,)
        The user's id of the item at each place.
    places : int64 array of shape (n,)
        The place of each of the user's items.
    """

    order: Array
    places: Array

    @property
    def inverse(self) -> Numbering:
        """The way back: places are the ids, and ids the places."""
        return Numbering(order=self.places, places=self.order)

    def to_places(self, ids: Array, xp: Any) -> Array:
        """The places of items (m, q) that are given by the user's ids; -1 stays -1."""
        return _renamed(ids, self.places, xp)

    def to_ids(self, places: Array, xp: Any) -> Array:
        """The user's ids of items (m, q) that are given by their places; -1 stays -1."""
        return _renamed(places, self.order, xp)

    def moved_lists(self, ids: Array, backend: Backend) -> Array:
        """Lists (n, k) of all items: places for ids, those of the item ``order[p]`` at place p."""
        xp, (n, k) = backend.xp, ids.shape
        moved = xp.empty((n, k), dtype=ids.dtype, device=backend.device)
        # Some rows at a time: what lies between the lists is wider than they are.
        rows = max(1, _LIST_ENTRIES // max(1, k))
        for start in range(0, n, rows):
            stop = min(start + rows, n)
            some = xp.take(ids, self.order[start:stop], axis=0)
            moved[start:stop, :] = xp.astype(self.to_places(some, xp), ids.dtype)
        return moved


def _renamed(numbers: Array, names: Array, xp: Any) -> Array:
    known = xp.astype(xp.where(numbers < 0, xp.zeros_like(numbers), numbers), xp.int64, copy=False)
    found = xp.reshape(xp.take(names, xp.reshape(known, (-1,))), numbers.shape)
    return xp.where(numbers < 0, xp.astype(numbers, xp.int64, copy=False), found)


@dataclass(frozen=True, slots=True, eq=False)
class TopK:
    """The best entries of each row: ``scores`` and ``ids``, of shape (m, k), best first."""

    scores: Array
    ids: Array


@dataclass(frozen=True, slots=True, eq=False)
class Eigenpairs:
    """Eigenvalues (k,) in descending order and their eigenvectors (n, k)."""

    values: Array
    vectors: Array


class CoarseVectors(Protocol):
    """Vectors Z of shape (n, r) that are taken out of ``A = I - alpha W``."""

    @property
    def vectors(self) -> Any:
        """Z, a sparse matrix or an array."""

    @property
    def transposed(self) -> Any:
        """``Z^T``."""

    @property
    def spread(self) -> SparseMatrix | None:
        """Z and ``W Z`` side by side (n, 2 r); None: W is applied when it is needed."""

    @property
    def adjacency(self) -> SparseMatrix:
        """W."""


@dataclass(frozen=True, slots=True, eq=False)
class CoarseInverse:
    """The inverse of ``E = Z^T (I - alpha W) Z``.

    Attributes
    ----------
    together : float array of shape (s, s), or None
        The inverse for the first s vectors; None if there are none that couple.
    alone : float array of shape (r - s, 1)
        The inverses for the others, each by itself.
    norm : float
        Not less than the largest eigenvalue of the inverse: how far it raises rounding.
    """

    together: Array | None
    alone: Array
    norm: float


@dataclass(frozen=True, slots=True, eq=False)
class Deflated:
    """Values V (n, m) without ``A Z C``, where ``C = E^-1 Z^T V``.

    Attributes
    ----------
    values : float array of shape (n, m)
    coefficients, restricted : float arrays of shape (r, m)
        C and ``Z^T V``.
    norm : float
        That of the inverse of E.
    """

    values: Array
    coefficients: Array
    restricted: Array
    norm: float

    @property
    def share(self) -> Array:
        """What the span has of a curvature, float64 (m,)."""
        return _dots(self.restricted, self.coefficients)

    @property
    def rounding(self) -> Array:
        """How large the errors of ``share`` can be, in units of the dtype's precision."""
        return _dots(self.restricted, self.restricted, self.norm)


def _dots(left: Array, right: Array, times: float = 1.0) -> Array:
    """Column dots of two small arrays on the device where they are, which CuPy wants current."""
    xp, device = array_api_compat.array_namespace(left), left.device
    with device if hasattr(device, "__enter__") else nullcontext():
        return times * xp.sum(left * right, axis=0, dtype=xp.float64)


class Backend(Protocol):
    """One device and the operations on it that the array API does not name."""

    searches_locally: bool
    """Whether a local search is faster here than solving batches of queries."""

    runs_late: bool
    """Whether work is done after it was asked for, beside the host."""

    @property
    def name(self) -> str:
        """``"numpy"`` or ``"cupy:0"``: what the user writes to get this backend."""

    @property
    def xp(self) -> Any:
        """The array API namespace."""

    @property
    def device(self) -> Any:
        """The device, as ``xp`` functions take it in ``device=``."""

    def asarray(self, values: Any, dtype: str | None = None) -> Array:
        """Bring host values, or arrays of this device, onto this device: the door in.

        Raises ``DeviceMismatchError`` for arrays that live on another device than the host.
        """

    def to_numpy(self, values: Array) -> HostArray:
        """Bring an array to the host: the door out."""

    def csr(
        self, data: Array, indices: Array, indptr: Array, shape: tuple[int, int]
    ) -> SparseMatrix:
        """Make a sparse matrix of the backend from its three arrays, without copying them."""

    def matmul(self, left: Array, right: Array) -> Array:
        """Multiply a dense (n, p) matrix with a dense (p, m) one.

        ``xp.matmul`` can not be told how many threads to take: on the host, each of several callers
        would take them all.
        """

    def spmm(self, matrix: SparseMatrix, dense: Array) -> Array:
        """Multiply a sparse (n, p) matrix with a dense row-major (p, m) one."""

    def reordered(self, matrix: SparseMatrix, numbering: Numbering) -> SparseMatrix:
        """A matrix (n, n) with row and column ``order[p]`` at place p, each row by column.

        No row has two entries in the same column.
        """

    def subtract_spmm(self, values: Array, matrix: SparseMatrix, dense: Array) -> Array:
        """``V - A X`` for values V (n, m); may be written over V."""

    def add_spmm(self, values: Array, matrix: SparseMatrix, dense: Array) -> Array:
        """``V + A X`` for values V (n, m); may be written over V."""

    def eigsh(self, matrix: SparseMatrix, k: int, start: HostArray) -> Eigenpairs:
        """Largest ``k`` eigenpairs by Lanczos; may miss copies of a repeated eigenvalue."""

    def connected_components(self, matrix: SparseMatrix) -> NDArray[np.int32]:
        """Component label of every node of a symmetric matrix, on the host."""

    def mutual_edges(self, ids: Array, similarities: Array) -> SparseMatrix:
        """The edges between items that list each other, with the mean of their two similarities.

        Lists are (n, k): ids of 32 or 64 bits, -1 for none. An item's own id, repeated ids (after
        the first) and similarities that are not positive do not count. The matrix (n, n) is
        symmetric and in float64, the entries of a row by column.
        """

    def top_k(self, scores: Array, k: int, numbering: Numbering | None = None) -> TopK:
        """The ``k`` largest entries of each row of (m, n), best first, by their index in the row.

        Ties go to the lower index; with a numbering, to the lower id of the user. Where a row holds
        NaN, some of what is returned is NaN.
        """

    def largest_products(
        self,
        left: Array,
        right: Array,
        k: int,
        numbering: Numbering | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> TopK:
        """The ``k`` largest products of each row of (m, d) with the rows of (n, d): ``top_k`` of
        ``left right^T``, which is never there as a whole. ``advance`` is told how many are done.
        """

    def place(self, ids: Array, values: Array, n: int) -> Array:
        """Lists (m, q) of items and values as the columns of a row-major (n, m) array.

        Ids of -1 are skipped, values of a repeated id add up.
        """

    def laplacian_step(
        self,
        matrix: SparseMatrix,
        direction: Array,
        alpha: float,
        *,
        summed: bool = True,
        wanted: Array | None = None,
    ) -> Product:
        """``(I - alpha W) P`` for the columns of a direction (n, m), with its column dots.

        Not ``summed``: these may be given in parts. If none of the columns is ``wanted``, a bool
        array of shape (m,), all of it may be anything.
        """

    def cg_pace(
        self,
        product: Product,
        standing: Standing,
        least: float,
        taken: Deflated | None = None,
        noise: float = 0.0,
    ) -> Moves:
        """How far columns go that are not at their target yet.

        A column moves if its curvature is above ``least`` times its length. What was ``taken`` out
        of the product has no curvature, and what is left of it below ``noise`` times its rounding
        is none.
        """

    def cg_update(
        self,
        solution: Array,
        residual: Array,
        direction: Array,
        product: Array,
        step: Array,
        *,
        summed: bool = True,
    ) -> Update:
        """Move each column by its ``step`` (m,). The first two arrays may be overwritten.

        Not ``summed``: the squared norms may be given in parts.
        """

    def cg_turn(
        self, squared_norm: Array, standing: Standing, moving: Array, *, stop_early: bool
    ) -> Turn:
        """Where columns are after an update, and what they keep of their directions.

        A column that could not move begins anew, with its residual for a direction; one that could
        not even then has arrived, if columns may ``stop_early``.
        """

    def cg_advance(
        self, columns: Course, product: Array, moves: Moves, *, stop_early: bool
    ) -> Course:
        """``cg_update``, ``cg_turn`` and ``cg_direction`` in turn; columns may be overwritten."""

    def column_dots(self, left: Array, right: Array) -> Array:
        """Dot products of the columns of two (n, m) arrays, added up in float64."""

    def cg_direction(self, residual: Array, direction: Array, ratio: Array) -> Array:
        """``R + P * ratio``, the next search direction. ``direction`` may be overwritten."""

    def deflate(
        self, values: Array, vectors: CoarseVectors, inverse: CoarseInverse, alpha: float
    ) -> Deflated:
        """Take the span of some vectors out of (n, m) values, which may be overwritten."""

    def local_search(self, problem: Any, places: Array, weights: Array, k: int, effort: Any) -> Any:
        """The ``k`` best items of observations (m, q), found around them.

        From a ``LocalProblem`` and a ``LocalEffort`` to a ``LocalAnswer`` (``local_records``).
        """

    def uploads(
        self, arrays: Sequence[Array | HostArray], start: int, width: int
    ) -> Iterator[tuple[Array, ...]]:
        """Slices of ``width`` rows of all arrays, from row ``start`` on, on this device.

        Host arrays are copied a slice ahead, while the slice before is worked on.
        """

    def download(self, values: Array) -> Callable[[], HostArray]:
        """Start to bring an array to the host; the function that is returned waits for it.

        Until then, the array must not be written to.
        """

    def synchronize(self) -> None:
        """Wait until everything asked for so far is done."""

    def free_memory(self) -> None:
        """Give cached memory back to the device."""

    def available_bytes(self) -> int:
        """Bytes that can still be allocated here."""

    def stage(
        self, label: str, times: dict[str, list[Callable[[], float]]]
    ) -> AbstractContextManager[None]:
        """Mark a stage, and add a function to ``times[label]`` that tells its seconds.

        The function may wait for the stage's end; the stage itself does not.
        """

    def longest_row(self, matrix: SparseMatrix) -> int:
        """Entries of the longest row."""

    def annotate(self, label: str) -> AbstractContextManager[None]:
        """Mark a stage for a profiler (an NVTX range on CUDA, nothing elsewhere)."""
