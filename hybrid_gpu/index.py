"""The diffusion index: a database's graph and eigenvectors, ready to rank queries in batches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import array_api_compat
import numpy as np

from hybrid_gpu.backends import Array, Backend, select_backend
from hybrid_gpu.basis import Basis, eigen_basis, sparse_eigen_basis
from hybrid_gpu.filters import PageRank
from hybrid_gpu.graph import (
    Graph,
    array_bytes,
    graph_from_affinity,
    largest_component,
    neighbors_from_lists,
    reciprocal_graph,
)
from hybrid_gpu.methods import METHODS, Batch, Method
from hybrid_gpu.neighbors import Progress, nearest_neighbors, unit_rows
from hybrid_gpu.observation import Observation, observe, scatter
from hybrid_gpu.ranking import Ranking, Report, top_items
from hybrid_gpu.solver import Solution, check_stopping, not_converged
from hybrid_gpu.spectrum import Spectrum, leading_eigenpairs
from hybrid_gpu.validation import (
    check_alpha,
    check_choice,
    check_count,
    check_dtype,
    check_item_ids,
    check_neighbor_lists,
    check_positive,
    check_vectors,
    dtype_name,
    item_bytes,
)

BASES = ("auto", "eigen", "none")

_DEFAULT_RANK = 100
_DEFAULT_SHORTLIST = 75_000
# The graph is read once per step for all columns; beyond this many, that saving is used up.
_LARGEST_BATCH = 128
# Arrays of (n, batch) that are alive at the same time during a search.
_ARRAYS_PER_BATCH = 10


@dataclass(frozen=True, slots=True, eq=False)
class _FirstStage:
    """What the first stage of search found for some queries."""

    observation: Observation
    queries: Array | None
    similarities: Callable[[], Array]
    shortlist: Callable[[], Array]


@dataclass(frozen=True, slots=True, eq=False)
class DiffusionIndex:
    """A database that answers queries by diffusion on its k-NN graph.

    Made by ``build_index`` and its siblings, or by ``load_index``.

    Attributes
    ----------
    graph : Graph
    descriptors : float array of shape (n, d), or None
        Unit descriptors; None if the index was built without them.
    spectrum : Spectrum or None
        Leading eigenpairs; None for ``basis="none"``.
    alpha, gamma : float
        Restart parameter of diffusion, exponent of the similarities.
    backend : Backend
        Where the arrays are and where queries are answered.
    """

    graph: Graph
    descriptors: Array | None
    spectrum: Spectrum | None
    alpha: float
    gamma: float
    backend: Backend
    _sparse_bases: dict[float, Basis] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Number of items."""
        return self.graph.n

    @property
    def dtype(self) -> str:
        """``"float32"`` or ``"float64"``."""
        return dtype_name(self.graph.adjacency.data.dtype)

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes of each part: ``graph``, ``descriptors``, ``eigenvectors``."""
        spectrum = self.spectrum
        return {
            "graph": self.graph.memory,
            "descriptors": 0 if self.descriptors is None else array_bytes(self.descriptors),
            "eigenvectors": 0 if spectrum is None else array_bytes(spectrum.eigenvectors),
        }

    def __repr__(self) -> str:
        rank = "no eigenvectors" if self.spectrum is None else f"rank {self.spectrum.rank}"
        size = sum(self.memory.values()) / 1e6
        return (
            f"DiffusionIndex({self.n} items, {self.graph.edges} edges, {rank}, "
            f"alpha {self.alpha}, {self.dtype}, {size:.1f} MB on {self.backend.name})"
        )

    def search(
        self,
        queries: Any,
        *,
        k: int = 100,
        method: str = "auto",
        steps: int | None = None,
        rtol: float | None = None,
        filter: PageRank | None = None,
        query_neighbors: int | None = 5,
        shortlist: int | None = None,
        sparsity: float = 0.99,
        batch: int | None = None,
        progress: Progress | None = None,
    ) -> Ranking:
        """Rank the database for query descriptors.

        Parameters
        ----------
        queries : float array of shape (m, d)
            They need not be in the database, nor of unit length.
        k
            Results per query.
        method
            One of ``hybrid_gpu.METHODS``, or ``"auto"``: ``hybrid-paper`` if the index has
            eigenvectors, else ``temporal``.
        steps
            Solver steps; None for the method's own number. With ``rtol``, the most steps.
        rtol
            Solve each query to this relative residual instead of a fixed number of steps.
        filter
            Another filter than ``PageRank(index.alpha)``.
        query_neighbors
            Items that diffusion starts from, 5 in the paper; None for all.
        shortlist
            Items that ``truncated`` keeps; 75,000, or all if there are fewer.
        sparsity
            The fraction of the eigenvectors' entries that ``shybrid`` drops.
        batch
            Queries solved side by side; None: as many as help and as memory allows.
        progress
            Called as ``progress("search", done, total)``.

        Returns
        -------
        Ranking
            ``ids`` and ``scores`` of shape (m, k), NumPy arrays if the queries came from the host,
            else arrays of the index's device.

        Raises
        ------
        ConvergenceError
            If ``rtol`` was given and a query missed it; its ``result`` is the ``Ranking``.
        """
        vectors = check_vectors(queries, "queries", dtype=self.dtype, backend=self.backend)
        items = self._descriptors("search")
        if vectors.shape[1] != items.shape[1]:
            raise ValueError(
                f"queries must have the index's {items.shape[1]} dimensions; got "
                f"{vectors.shape[1]}."
            )
        units = unit_rows(vectors, self.backend)
        found = self._neighbor_count(query_neighbors)
        kept = self._shortlist_size(shortlist)

        def first_stage(rows: slice) -> _FirstStage:
            similarities = self.backend.xp.matmul(units[rows, :], items.T)
            best = self.backend.top_k(similarities, found)
            weights = self.backend.xp.clip(best.scores, min=0) ** self.gamma
            return _FirstStage(
                Observation(best.ids, weights, self.n),
                units[rows, :],
                lambda: similarities,
                lambda: self.backend.top_k(similarities, kept).ids,
            )

        return self._rank(
            first_stage,
            count=vectors.shape[0],
            here=self._lives_here(queries),
            k=k,
            method=method,
            steps=steps,
            rtol=rtol,
            filter=filter,
            sparsity=sparsity,
            batch=batch,
            progress=progress,
        )

    def rerank(
        self,
        ids: Any,
        similarities: Any,
        *,
        k: int = 100,
        method: str = "auto",
        steps: int | None = None,
        rtol: float | None = None,
        filter: PageRank | None = None,
        query_neighbors: int | None = 5,
        sparsity: float = 0.99,
        batch: int | None = None,
        progress: Progress | None = None,
    ) -> Ranking:
        """Rank the database for the first-stage results of any search engine.

        Parameters
        ----------
        ids : int array of shape (m, q)
            Items found for each query, best first; -1 for 'nothing found'.
        similarities : float array of shape (m, q)
            Their cosine similarities to the query, as they are: the exponent is applied here.
            Similarities beside an id of -1 are not looked at.
        k
            Results per query; may be larger than q, because diffusion finds items that the first
            stage missed.

        The other parameters and the result are those of ``search``. ``truncated`` takes the given
        results as its shortlist; ``nn`` returns them in the order of their similarity.
        """
        lists, values = check_neighbor_lists(
            ids, similarities, self.n, dtype=self.dtype, backend=self.backend
        )

        def first_stage(rows: slice) -> _FirstStage:
            part_ids, part_values = lists[rows, :], values[rows, :]
            return _FirstStage(
                observe(
                    part_ids,
                    part_values,
                    self.n,
                    gamma=self.gamma,
                    query_neighbors=query_neighbors,
                    dtype=self.dtype,
                    backend=self.backend,
                ),
                None,
                lambda: scatter(part_ids, part_values, self.n, self.backend).T,
                lambda: part_ids,
            )

        return self._rank(
            first_stage,
            count=lists.shape[0],
            here=self._lives_here(ids),
            k=k,
            method=method,
            steps=steps,
            rtol=rtol,
            filter=filter,
            sparsity=sparsity,
            batch=batch,
            progress=progress,
        )

    def search_items(
        self,
        ids: Any,
        *,
        k: int = 100,
        method: str = "auto",
        steps: int | None = None,
        rtol: float | None = None,
        filter: PageRank | None = None,
        shortlist: int | None = None,
        sparsity: float = 0.99,
        batch: int | None = None,
        progress: Progress | None = None,
    ) -> Ranking:
        """Rank the database for some of its own items.

        Parameters
        ----------
        ids : int array of shape (m,)
            Items; the observation of each is the item itself.

        The other parameters and the result are those of ``search``. An index without descriptors
        knows similarities of an item only to itself.
        """
        xp = self.backend.xp
        items = check_item_ids(ids, self.n, backend=self.backend)
        kept = self._shortlist_size(shortlist)
        vectors = self.descriptors

        def first_stage(rows: slice) -> _FirstStage:
            part = items[rows]
            itself = part[:, None]
            ones = xp.ones(itself.shape, dtype=getattr(xp, self.dtype), device=self.backend.device)
            queries = None if vectors is None else xp.take(vectors, part, axis=0)
            products = _once(lambda: xp.matmul(queries, vectors.T))  # type: ignore[union-attr]
            if vectors is None:
                products = _once(lambda: scatter(itself, ones, self.n, self.backend).T)
            return _FirstStage(
                Observation(itself, ones, self.n),
                queries,
                products,
                lambda: self.backend.top_k(products(), kept).ids,
            )

        return self._rank(
            first_stage,
            count=items.shape[0],
            here=self._lives_here(ids),
            k=k,
            method=method,
            steps=steps,
            rtol=rtol,
            filter=filter,
            sparsity=sparsity,
            batch=batch,
            progress=progress,
        )

    def to(self, backend: str | Backend) -> DiffusionIndex:
        """The same index on another backend."""
        target = select_backend(backend)
        if target is self.backend:
            return self

        def move(array: Array) -> Array:
            return target.asarray(self.backend.to_numpy(array))

        old = self.graph.adjacency
        adjacency = target.csr(move(old.data), move(old.indices), move(old.indptr), old.shape)
        spectrum = self.spectrum
        if spectrum is not None:
            spectrum = replace(
                spectrum,
                eigenvalues=move(spectrum.eigenvalues),
                eigenvectors=move(spectrum.eigenvectors),
            )
        return DiffusionIndex(
            graph=Graph(adjacency, move(self.graph.degrees), self.graph.components),
            descriptors=None if self.descriptors is None else move(self.descriptors),
            spectrum=spectrum,
            alpha=self.alpha,
            gamma=self.gamma,
            backend=target,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a folder; an index that is there already is replaced in one step."""
        from hybrid_gpu.storage import save_index

        save_index(self, path)

    def _rank(
        self,
        first_stage: Callable[[slice], _FirstStage],
        *,
        count: int,
        here: bool,
        k: int,
        method: str,
        steps: int | None,
        rtol: float | None,
        filter: PageRank | None,
        sparsity: float,
        batch: int | None,
        progress: Progress | None,
    ) -> Ranking:
        """Run all batches through observe, solve and rank."""
        chosen = self._method(method)
        k = check_count(k, "k", high=self.n)
        most_steps, rtol = check_stopping(steps, rtol, default=chosen.steps)
        width = self._batch_width(batch, count)
        seconds = {"observe": 0.0, "solve": 0.0, "rank": 0.0}
        ids, scores, residuals = [], [], []
        worst: Solution | None = None
        taken = 0
        for start in range(0, count, width):
            if progress:
                progress("search", start, count)
            with self._stage("observe", seconds):
                found = first_stage(slice(start, min(start + width, count)))
            with self._stage("solve", seconds):
                solution = chosen.score(self._batch(found, filter, most_steps, rtol, sparsity))
            with self._stage("rank", seconds):
                best = top_items(
                    solution.values, k=k, similarities=found.similarities, backend=self.backend
                )
                out = (lambda array: array) if here else self.backend.to_numpy
                ids.append(out(best.ids))
                scores.append(out(best.scores))
                if solution.residuals is not None:
                    residuals.append(out(solution.residuals))
            taken = max(taken, solution.steps)
            worst = worst if solution.converged else solution
        if progress:
            progress("search", count, count)
        join = self.backend.xp.concat if here else np.concatenate
        ranking = Ranking(
            ids=join(ids),
            scores=join(scores),
            report=Report(
                method=chosen.name,
                steps=taken,
                residuals=join(residuals) if residuals else None,
                seconds=seconds,
                backend=self.backend.name,
                batch=width,
            ),
        )
        if worst is not None:
            raise not_converged(worst, rtol, result=ranking)
        return ranking

    def _batch(
        self,
        found: _FirstStage,
        filter: PageRank | None,
        steps: int,
        rtol: float | None,
        sparsity: float,
    ) -> Batch:
        return Batch(
            graph=self.graph,
            descriptors=self.descriptors,
            observation=found.observation,
            queries=found.queries,
            similarities=found.similarities,
            shortlist=found.shortlist,
            basis=lambda: eigen_basis(self._spectrum(), backend=self.backend),
            sparse_basis=lambda: self._sparse_basis(sparsity),
            row_norms=self._row_norms,
            gamma=self.gamma,
            filter=PageRank(self.alpha) if filter is None else filter,
            steps=steps,
            rtol=rtol,
            backend=self.backend,
        )

    def _method(self, name: str) -> Method:
        if name == "auto":
            name = "temporal" if self.spectrum is None else "hybrid-paper"
        method = METHODS[check_choice(name, "method", ("auto", *METHODS))]
        if method.needs_eigenvectors:
            self._spectrum()
        if method.needs_descriptors:
            self._descriptors(f"method {name!r}")
        return method

    def _spectrum(self) -> Spectrum:
        if self.spectrum is None:
            raise ValueError(
                "this method needs eigenvectors, and the index was built with basis='none'. "
                "Build it with basis='eigen', or use method='temporal'."
            )
        return self.spectrum

    def _descriptors(self, what: str) -> Array:
        if self.descriptors is None:
            raise ValueError(
                f"{what} needs descriptors, and the index was built without them. Pass "
                "descriptors= when building it, or use rerank with the results of your own engine."
            )
        return self.descriptors

    def _sparse_basis(self, sparsity: float) -> Basis:
        if sparsity not in self._sparse_bases:
            self._sparse_bases.clear()  # one at a time: each costs a sort of all entries to make
            self._sparse_bases[sparsity] = sparse_eigen_basis(
                self._spectrum(), sparsity=sparsity, backend=self.backend
            )
        return self._sparse_bases[sparsity]

    def _row_norms(self) -> Array:
        xp, vectors = self.backend.xp, self._spectrum().eigenvectors
        return xp.sqrt(xp.sum(vectors * vectors, axis=1))

    def _neighbor_count(self, query_neighbors: int | None) -> int:
        if query_neighbors is None:
            return self.n
        return min(check_count(query_neighbors, "query_neighbors"), self.n)

    def _shortlist_size(self, shortlist: int | None) -> int:
        if shortlist is None:
            return min(_DEFAULT_SHORTLIST, self.n)
        return check_count(shortlist, "shortlist", high=self.n)

    def _batch_width(self, batch: int | None, count: int) -> int:
        if batch is not None:
            return min(check_count(batch, "batch"), count)
        column = _ARRAYS_PER_BATCH * self.n * item_bytes(self.graph.degrees)
        return max(1, min(_LARGEST_BATCH, count, self.backend.available_bytes() // column))

    def _lives_here(self, values: Any) -> bool:
        """Whether an array is on this index's device, so that results stay there too."""
        if array_api_compat.is_array_api_obj(values):
            if array_api_compat.array_namespace(values) is self.backend.xp:
                return True
        kind = values.__dlpack_device__()[0] if hasattr(values, "__dlpack_device__") else 1
        return int(kind) != 1

    @contextmanager
    def _stage(self, label: str, seconds: dict[str, float]) -> Iterator[None]:
        start = time.perf_counter()
        with self.backend.annotate(label):
            yield
        self.backend.synchronize()
        seconds[label] += time.perf_counter() - start


def build_index(
    descriptors: Any,
    *,
    neighbors: int = 50,
    gamma: float = 3.0,
    alpha: float = 0.99,
    basis: str = "auto",
    rank: int | None = None,
    knn: str = "auto",
    dtype: str = "float32",
    seed: int = 0,
    progress: Progress | None = None,
    backend: str | Backend = "auto",
) -> DiffusionIndex:
    """Index a database of descriptors.

    Parameters
    ----------
    descriptors : float array of shape (n, d)
        NumPy, CuPy, or anything that speaks DLPack. Rows are scaled to unit length.
    neighbors
        Nearest neighbors of each item; an edge joins two items that list each other.
    gamma
        An edge weighs ``similarity ** gamma``.
    alpha
        Restart parameter of diffusion, in [0, 1).
    basis
        ``"eigen"`` keeps leading eigenvectors, ``"none"`` keeps nothing; ``"auto"`` is ``"eigen"``.
    rank
        Eigenvectors to keep; None: 100, or as many as the largest component has items.
    knn
        How neighbors are found, see ``nearest_neighbors``.
    dtype
        ``"float32"`` or ``"float64"``.
    seed
        Of the eigensolver's start.
    progress
        Called as ``progress(stage, done, total)``.
    backend
        ``"auto"``, ``"numpy"`` or ``"cupy"``.

    Raises
    ------
    ValueError, TypeError
        For input that cannot be indexed; the message says what to change.
    """
    device = select_backend(backend, like=descriptors)
    dtype = check_dtype(dtype)
    check = check_vectors(descriptors, "descriptors", dtype=dtype, backend=device)
    _check_settings(alpha, gamma, basis)
    check_count(neighbors, "neighbors", high=check.shape[0] - 1)
    units = unit_rows(check, device)
    found = nearest_neighbors(
        units, k=neighbors, knn=knn, dtype=dtype, progress=progress, backend=device
    )
    graph = reciprocal_graph(found, gamma=gamma, dtype=dtype, backend=device)
    return _finish(graph, units, alpha, gamma, basis, rank, seed, progress, device)


def build_index_from_neighbors(
    ids: Any,
    similarities: Any,
    *,
    descriptors: Any = None,
    gamma: float = 3.0,
    alpha: float = 0.99,
    basis: str = "auto",
    rank: int | None = None,
    dtype: str = "float32",
    seed: int = 0,
    progress: Progress | None = None,
    backend: str | Backend = "auto",
) -> DiffusionIndex:
    """Index a database by the k-NN lists of the user's own engine.

    Parameters
    ----------
    ids : int array of shape (n, k)
        Neighbors of every item, in order of the items; -1 for 'nothing found'. An item's own id is
        skipped.
    similarities : float array of shape (n, k)
        Their cosine similarities, as they are.
    descriptors : float array of shape (n, d), optional
        Needed for ``search`` with query descriptors; ``rerank`` does without.

    The other parameters are those of ``build_index``.
    """
    device = select_backend(backend, like=ids)
    dtype = check_dtype(dtype)
    _check_settings(alpha, gamma, basis)
    found = neighbors_from_lists(ids, similarities, dtype=dtype, backend=device)
    units = _optional_units(descriptors, found.ids.shape[0], dtype, device)
    graph = reciprocal_graph(found, gamma=gamma, dtype=dtype, backend=device)
    return _finish(graph, units, alpha, gamma, basis, rank, seed, progress, device)


def build_index_from_graph(
    affinity: Any,
    *,
    descriptors: Any = None,
    gamma: float = 3.0,
    alpha: float = 0.99,
    basis: str = "auto",
    rank: int | None = None,
    dtype: str = "float32",
    seed: int = 0,
    progress: Progress | None = None,
    backend: str | Backend = "auto",
) -> DiffusionIndex:
    """Index a database by the user's own affinity matrix.

    Parameters
    ----------
    affinity : sparse matrix of shape (n, n)
        Symmetric and non-negative, taken as it is: weights are powered already. It is normalized
        here.
    descriptors : float array of shape (n, d), optional
        Needed for ``search`` with query descriptors; ``rerank`` does without.
    gamma
        The exponent of the similarities of queries.

    The other parameters are those of ``build_index``.
    """
    device = select_backend(backend, like=getattr(affinity, "data", None))
    dtype = check_dtype(dtype)
    _check_settings(alpha, gamma, basis)
    graph = graph_from_affinity(affinity, dtype=dtype, backend=device)
    units = _optional_units(descriptors, graph.n, dtype, device)
    return _finish(graph, units, alpha, gamma, basis, rank, seed, progress, device)


def _check_settings(alpha: Any, gamma: Any, basis: Any) -> None:
    check_alpha(alpha)
    check_positive(gamma, "gamma")
    check_choice(basis, "basis", BASES)


def _optional_units(descriptors: Any, n: int, dtype: str, backend: Backend) -> Array | None:
    if descriptors is None:
        return None
    vectors = check_vectors(descriptors, "descriptors", dtype=dtype, backend=backend)
    if vectors.shape[0] != n:
        raise ValueError(
            f"descriptors must have one row for each of the {n} items; got {vectors.shape[0]}."
        )
    return unit_rows(vectors, backend)


def _finish(
    graph: Graph,
    units: Array | None,
    alpha: float,
    gamma: float,
    basis: str,
    rank: int | None,
    seed: int,
    progress: Progress | None,
    backend: Backend,
) -> DiffusionIndex:
    spectrum = None
    if basis != "none":
        if progress:
            progress("eigenvectors", 0, 1)
        if rank is None:
            rank = min(_DEFAULT_RANK, largest_component(graph).size)
        spectrum = leading_eigenpairs(graph, rank=rank, seed=seed, backend=backend)
        if progress:
            progress("eigenvectors", 1, 1)
    return DiffusionIndex(graph, units, spectrum, float(alpha), float(gamma), backend)


def _once(make: Callable[[], Array]) -> Callable[[], Array]:
    """The same value at every call, made at the first."""
    made: list[Array] = []

    def value() -> Array:
        if not made:
            made.append(make())
        return made[0]

    return value
