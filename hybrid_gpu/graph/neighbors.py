"""Nearest neighbors by cosine similarity: exactly, in tiles on the backend, or through FAISS."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybrid_gpu.backends import Array, Backend, on_device, on_own_device, select_backend
from hybrid_gpu.backends.host_memory import address_room
from hybrid_gpu.backends.protocol import HostArray, Numbering
from hybrid_gpu.choices import ArrayInput, BackendName, DtypeName
from hybrid_gpu.errors import install_line
from hybrid_gpu.graph.cuvs_neighbors import check_cuvs, cuvs_best
from hybrid_gpu.graph.streamed import fits, others, streamed_best
from hybrid_gpu.graph.vectors import Vectors, vectors_of
from hybrid_gpu.progress import Progress, ProgressOption, as_progress
from hybrid_gpu.validation import check_count, check_dtype, dtype_name

# An inverted-file index that probes one list, FAISS's default, misses most reciprocal edges.
_FAISS_PROBES = 32
# Queries that FAISS is asked at a time.
_FAISS_QUERIES = 16_384
# Addresses that FAISS takes beside its arrays, and for each thread (its stack, an arena of malloc,
# buffers of BLAS): above what 1 to 8 threads took on Linux for flat and inverted files.
_FAISS_ADDRESSES, _THREAD_ADDRESSES = 64 << 20, 176 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Neighbors:
    """The k most similar items of each query, best first.

    Attributes
    ----------
    ids : int64 array of shape (m, k)
        Items; -1 where there was nothing to find.
    similarities : float array of shape (m, k)
        Cosine similarities; 0 beside an id of -1.
    """

    ids: Array
    similarities: Array

    def cut(self, count: int) -> Neighbors:
        """The first ``count`` neighbors of each list."""
        if count >= self.ids.shape[1]:
            return self
        return Neighbors(self.ids[:, :count], self.similarities[:, :count])

    @on_own_device
    def renumbered(self, numbering: Numbering, backend: Backend) -> Neighbors:
        """Lists of all items, with those of the item ``numbering.order[p]`` at place p."""
        similarities = backend.xp.take(self.similarities, numbering.order, axis=0)
        return Neighbors(numbering.moved_lists(self.ids, backend), similarities)

    def __repr__(self) -> str:
        m, k = self.ids.shape
        return f"Neighbors({m} lists of {k})"


@on_device(lambda descriptors: descriptors, stays=False)
def nearest_neighbors(
    descriptors: ArrayInput,
    queries: Any = None,
    *,
    k: int,
    knn: str = "auto",
    dtype: DtypeName = "float32",
    progress: ProgressOption = None,
    backend: BackendName | Backend = "auto",
) -> Neighbors:
    """The ``k`` most similar items of every query.

    Parameters
    ----------
    descriptors : float array of shape (n, d)
        The database; rows are scaled to unit length here, so that products are cosines.
    queries : float array of shape (m, d), optional
        Without them, the items themselves are the queries and no item is its own neighbor.
    k
        Neighbors per query.
    knn
        ``"exact"``: matrix products and top-k on the backend, ties to the lower id. ``"faiss"``:
        FAISS's exhaustive index. ``"cuvs"``: NVIDIA's cuVS on a GPU, exhaustive up to 4 million
        items and NN-descent beyond; never executed by its authors, so ``"auto"`` never takes it.
        Any other string is a FAISS factory string such as ``"IVF4096,Flat"``, for approximate
        neighbors of large databases. ``"auto"``: FAISS if it is installed for where the backend
        runs and there are at least 20,000 items, else exact; exact also for the items themselves
        where the native core runs.

    Raises
    ------
    ValueError
        For wrong shapes, NaN, a ``k`` that the database cannot give, a FAISS index that cannot be
        made of so few items, or ``"cuvs"`` without a GPU.
    ImportError
        If the engine is not installed.
    MemoryError
        If a limit of addresses (``ulimit -v``) is too low for FAISS and its threads.

    Notes
    -----
    In a process that was forked after FAISS had been imported, FAISS gets one thread: the threads
    of its OpenMP stay behind in the parent, and the child would wait for them for ever.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> items = [[5.0, 0], [5, 1], [0, 5], [1, 5]]
    >>> hg.nearest_neighbors(items, k=1).ids.tolist()
    [[1], [0], [3], [2]]
    >>> hg.nearest_neighbors(items, [[5.0, 2]], k=2).ids.tolist()
    [[1, 0]]
    """
    progress = as_progress(progress)
    device = select_backend(backend, like=descriptors)
    dtype = check_dtype(dtype)
    check_engine(knn, device)
    items = vectors_of(descriptors, "descriptors", dtype=dtype, backend=device)
    n, d = items.shape
    if queries is None:
        k = check_count(k, "k", high=n - 1)
        units = units_for(knn, items)
        if units is None:
            return streamed_neighbors(items, k, progress=progress)
        lists = neighbors_of_units(units, None, k, knn=knn, progress=progress, backend=device)
        wide = device.xp.astype(lists.ids, device.xp.int64, copy=False)
        return Neighbors(wide, lists.similarities)
    k = check_count(k, "k", high=n)
    wanted = vectors_of(queries, "queries", dtype=dtype, backend=device)
    if wanted.shape[1] != d:
        raise ValueError(f"queries must have the database's {d} dimensions; got {wanted.shape[1]}.")
    return neighbors_of_units(
        items.units(), wanted.units(), k, knn=knn, progress=progress, backend=device
    )


def check_engine(knn: Any, backend: Backend) -> None:
    """Refuse what cannot name a way to find neighbors on a backend."""
    if not isinstance(knn, str):
        raise TypeError(
            f"knn must be 'auto', 'exact', 'faiss', 'cuvs' or a FAISS factory string; got {knn!r}."
        )
    if knn == "cuvs":
        check_cuvs(backend)


def units_for(knn: str, vectors: Vectors) -> Array | HostArray | None:
    """What an engine searches: on the device if it fits there, else on the host; None for tiles."""
    if fits(vectors):
        return vectors.units()
    if knn == "cuvs":
        raise MemoryError(
            "knn='cuvs' needs all descriptors in the memory of the GPU, and these leave no room "
            "there. Use knn='exact', which reads them tile by tile."
        )
    # FAISS takes what it is given from the host.
    return None if knn in ("auto", "exact") else vectors.on_host().units()


def neighbors_of_units(
    units: Array,
    queries: Array | None,
    k: int,
    *,
    knn: str,
    progress: Progress | None,
    backend: Backend,
) -> Neighbors:
    """``nearest_neighbors`` of what is checked and of unit length already."""
    check_engine(knn, backend)
    if knn == "auto":
        # Of items with each other, the native core needs half of the products
        # (``bench/exact_neighbors.py``).
        halved = queries is None and backend.searches_locally
        suits = units.shape[0] >= 20_000 and not halved and _faiss_suits(backend)
        knn = "faiss" if suits and not _faiss_lacks(units, queries, k) else "exact"
    if knn == "exact":
        own = None
        if queries is None:
            own = backend.xp.arange(units.shape[0], dtype=backend.xp.int64, device=backend.device)
            queries = units
        return exact_neighbors(units, queries, k, own=own, progress=progress, backend=backend)
    if knn == "cuvs":
        best = cuvs_best(units, queries, k, progress=progress, backend=backend)
        return Neighbors(ids=best.ids, similarities=best.scores)
    factory = "Flat" if knn == "faiss" else knn
    return _through_faiss(units, queries, k, factory=factory, progress=progress, backend=backend)


def _faiss_suits(backend: Backend) -> bool:
    """Whether FAISS runs where the backend does: beside a GPU, a FAISS for CPUs is the slow way."""
    if importlib.util.find_spec("faiss") is None:
        return False
    if _gpu_number(backend) is None:
        return True
    import faiss

    return hasattr(faiss, "StandardGpuResources")


def _faiss_lacks(units: Array, queries: Array | None, k: int) -> int:
    """Bytes by which a limit of addresses is too low for FAISS, which would end the process."""
    room = address_room()
    if room is None:
        return 0
    import faiss

    n, d = units.shape
    m = n if queries is None else queries.shape[0]
    # The index, copies of both sets of vectors, the lists, and those of some queries twice.
    arrays = 4 * d * (2 * n + m) + 12 * (k + 1) * (m + 2 * min(m, _FAISS_QUERIES))
    threads = int(faiss.omp_get_max_threads())
    return max(0, int(arrays) + _FAISS_ADDRESSES + threads * _THREAD_ADDRESSES - room)


def _gpu_number(backend: Backend) -> int | None:
    """The CUDA device of a backend; None on the host."""
    number = getattr(backend.device, "id", None)
    return int(number) if isinstance(number, int) else None


def exact_neighbors(
    units: Array,
    queries: Array,
    k: int,
    *,
    own: Array | None = None,
    numbering: Numbering | None = None,
    progress: Progress | None = None,
    backend: Backend,
) -> Neighbors:
    """Neighbors of unit vectors by matrix products and top-k, a tile of queries at a time.

    ``own`` (m,) names an item for each query that does not count as its neighbor: itself. Ties go
    to the lower row of ``units``, or to the lower id of a numbering.
    """
    m = queries.shape[0]

    def advance(done: int) -> None:
        if progress:
            progress("neighbors", done, m)

    # One more where an item may find itself.
    wanted = k if own is None else k + 1
    best = backend.largest_products(queries, units, wanted, numbering, advance)
    advance(m)
    if own is not None:
        best = others(best, own, backend)
    return Neighbors(ids=best.ids, similarities=best.scores)


def streamed_neighbors(vectors: Vectors, k: int, *, progress: Progress | None) -> Neighbors:
    """Exact neighbors of vectors that do not fit into the memory of their backend."""
    best = streamed_best(vectors, k, progress=progress)
    return Neighbors(best.ids, best.scores)


def is_approximate(knn: str) -> bool:
    """Whether an engine may miss neighbors."""
    return knn not in ("auto", "exact", "faiss", "Flat")


def check_knn(knn: str, dimensions: int, backend: Backend) -> None:
    """Refuse what ``nearest_neighbors`` would, before there is anything to search."""
    check_engine(knn, backend)
    if knn not in ("auto", "exact", "cuvs"):
        _made_by_faiss("Flat" if knn == "faiss" else knn, dimensions)


def _import_faiss(factory: str) -> Any:
    try:
        import faiss
    except ImportError as missing:
        raise ImportError(
            f"knn={factory!r} needs FAISS. Use knn='exact', or {install_line('faiss')}"
        ) from missing
    return faiss


def _made_by_faiss(factory: str, dimensions: int) -> Any:
    """An empty FAISS index."""
    faiss = _import_faiss(factory)
    try:
        return faiss.index_factory(dimensions, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as fault:
        raise ValueError(
            f"knn must be 'auto', 'exact', 'faiss', 'cuvs' or a FAISS factory string; got "
            f"{factory!r}."
        ) from fault


def _through_faiss(
    units: Array,
    queries: Array | None,
    k: int,
    *,
    factory: str,
    progress: Progress | None,
    backend: Backend,
) -> Neighbors:
    """Neighbors by an index of FAISS, on the CPU or on the GPU of the backend.

    Raises ``ValueError`` for what FAISS cannot do, and ``MemoryError`` before it would end the
    process for lack of addresses.
    """
    faiss = _import_faiss(factory)
    if _forked_with_faiss:
        faiss.omp_set_num_threads(1)
    lacking = _faiss_lacks(units, queries, k)
    if lacking:
        raise MemoryError(
            f"FAISS needs about {lacking / 1e6:.0f} MB of addresses more than the process's limit "
            "leaves (ulimit -v or -d). Use knn='exact', or raise the limit."
        )
    index = _made_by_faiss(factory, units.shape[1])
    if "IVF" in factory:
        # Before it moves: FAISS finds the inverted file inside of an index of the host only.
        inverted = faiss.extract_index_ivf(index)
        inverted.nprobe = min(_FAISS_PROBES, inverted.nlist)
    given = units if isinstance(units, np.ndarray) else backend.to_numpy(units)
    items = np.ascontiguousarray(given, dtype=np.float32)
    wanted = items
    if queries is not None:
        wanted = np.ascontiguousarray(backend.to_numpy(queries), dtype=np.float32)
    gpu = _gpu_number(backend)
    if gpu is not None and hasattr(faiss, "StandardGpuResources"):
        index = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), gpu, index)
    try:
        index.train(items)
        index.add(items)
        found = _ask_faiss(index, wanted, k, queries is None, progress)
    except RuntimeError as fault:
        # FAISS names the place in its source first, and what is wrong last.
        reason = " ".join(str(fault).split()).rpartition("failed: ")[2].rstrip(".")
        raise ValueError(
            f"FAISS cannot search {len(items)} items by knn={factory!r}: {reason}. Use 'faiss' or "
            "'exact', or a factory string for fewer items."
        ) from fault
    return Neighbors(
        ids=backend.asarray(found.ids),
        similarities=backend.asarray(found.similarities, dtype_name(units.dtype)),
    )


def _ask_faiss(
    index: Any, wanted: Any, k: int, skip_itself: bool, progress: Progress | None
) -> Neighbors:
    """The k best of a filled FAISS index for vectors (m, d), some thousand at a time."""
    m = wanted.shape[0]
    # The lists of all items are large: they get ids of 32 bits where these are enough.
    kind = np.int32 if skip_itself and m < 2**31 else np.int64
    ids, similarities = np.empty((m, k), kind), np.empty((m, k), np.float32)
    for start in range(0, m, _FAISS_QUERIES):
        if progress:
            progress("neighbors", start, m)
        rows = slice(start, min(start + _FAISS_QUERIES, m))
        if not skip_itself:
            similarities[rows], ids[rows] = index.search(wanted[rows], k)
            continue
        # One more than asked for, because an item finds itself. It goes last and is cut off; among
        # many equal items it may not have found itself.
        more, found = index.search(wanted[rows], k + 1)
        itself = found == np.arange(rows.start, rows.stop)[:, None]
        order = np.argsort(itself, axis=1, kind="stable")[:, :k]
        ids[rows] = np.take_along_axis(found, order, axis=1)
        similarities[rows] = np.take_along_axis(more, order, axis=1)
    if progress:
        progress("neighbors", m, m)
    similarities[ids < 0] = 0
    return Neighbors(ids, similarities)


_forked_with_faiss = False


def _note_the_fork() -> None:
    global _forked_with_faiss
    _forked_with_faiss = "faiss" in sys.modules


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_note_the_fork)
