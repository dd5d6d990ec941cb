"""Nearest neighbors by NVIDIA's cuVS, on the GPU that has the vectors.

Never executed: the machines of this project have no GPU. Written after the sources of cuVS 26.10.
"""

from __future__ import annotations

import importlib.util

from hybrid_gpu.backends import Array, Backend
from hybrid_gpu.backends.protocol import TopK
from hybrid_gpu.errors import install_line
from hybrid_gpu.graph.streamed import others
from hybrid_gpu.progress import Progress

# More items than these are not all compared with each other, but by NN-descent.
MOST_BY_FORCE = 4_000_000
# Queries that cuVS is asked at a time, and entries of vectors that are multiplied at a time.
_QUERIES, _ENTRIES = 16_384, 1 << 24
# NN-descent works with lists that are longer than those it returns; its documentation says 1.5.
_LONGER = 2


def check_cuvs(backend: Backend) -> None:
    """Refuse a backend without a GPU, and a machine without cuVS.

    Raises
    ------
    ValueError
        If the backend is on the host.
    ImportError
        If cuVS is not installed.
    """
    if not isinstance(getattr(backend.device, "id", None), int):
        raise ValueError(
            f"knn='cuvs' searches on a GPU; the backend is {backend.name!r}. Use backend='cupy', "
            "or knn='exact' or 'faiss'."
        )
    if importlib.util.find_spec("cuvs") is None:
        raise ImportError(
            f"knn='cuvs' needs cuVS, Linux and Python 3.11. Use knn='exact', or "
            f"{install_line('cuda12,cuvs12')} (cuda13,cuvs13 for CUDA 13)"
        )


def cuvs_best(
    units: Array, queries: Array | None, k: int, *, progress: Progress | None, backend: Backend
) -> TopK:
    """The k most similar unit vectors of each query, or of each of them without itself.

    All are compared (``brute_force``), but for more than ``MOST_BY_FORCE`` of them with each other
    (``all_neighbors`` by NN-descent, which may miss some). cuVS chooses the items; how similar they
    are, and their order, is computed here, so that it is the same for every engine.
    """
    check_cuvs(backend)
    xp, m = backend.xp, units.shape[0] if queries is None else queries.shape[0]
    wanted, count = (units, k + 1) if queries is None else (queries, k)
    items = _rows(units, backend)
    asked = items if queries is None else _rows(queries, backend)
    if progress:
        progress("neighbors", 0, m)
    # cuVS has a stream of its own: what it reads must be there.
    backend.synchronize()
    if queries is None and m > MOST_BY_FORCE:
        ids = _by_descent(items, count, backend)
    else:
        ids = _by_force(items, asked, count, backend)
    best = _in_order(ids, units, wanted, backend)
    if queries is None:
        own = xp.arange(m, dtype=xp.int64, device=backend.device)
        best = others(best, own, backend)
    if progress:
        progress("neighbors", m, m)
    return best


def _rows(vectors: Array, backend: Backend) -> Array:
    """Vectors as cuVS takes them: float32, one after another in memory."""
    vectors = backend.xp.astype(vectors, backend.xp.float32, copy=False)
    return vectors if vectors.flags.c_contiguous else backend.xp.asarray(vectors, copy=True)


def _by_force(items: Array, asked: Array, count: int, backend: Backend) -> Array:
    """Ids (m, count) of the largest products, by comparing all."""
    from cuvs.common import Resources
    from cuvs.neighbors import brute_force

    xp, m, resources = backend.xp, asked.shape[0], Resources()
    ids = xp.empty((m, count), dtype=xp.int64, device=backend.device)
    index = brute_force.build(items, metric="inner_product", resources=resources)
    for start in range(0, m, _QUERIES):
        rows = slice(start, min(start + _QUERIES, m))
        # Written in place: slices of rows are contiguous.
        brute_force.search(
            index, asked[rows, :], count, neighbors=ids[rows, :], resources=resources
        )
    resources.sync()
    return ids


def _by_descent(items: Array, count: int, backend: Backend) -> Array:
    """Ids (n, count) of large products of items with each other, by NN-descent."""
    from cuvs.common import Resources
    from cuvs.neighbors import all_neighbors, nn_descent

    xp, resources = backend.xp, Resources()
    ids = xp.empty((items.shape[0], count), dtype=xp.int64, device=backend.device)
    descent = nn_descent.IndexParams(
        metric="inner_product", graph_degree=count, intermediate_graph_degree=_LONGER * count
    )
    parameters = all_neighbors.AllNeighborsParams(
        algo="nn_descent", metric="inner_product", nn_descent_params=descent
    )
    all_neighbors.build(items, count, parameters, indices=ids, resources=resources)
    resources.sync()
    return ids


def _in_order(ids: Array, units: Array, wanted: Array, backend: Backend) -> TopK:
    """Lists of items by how similar they are, and at the same similarity by their ids."""
    xp, (m, k), d = backend.xp, ids.shape, int(units.shape[1])
    scores = xp.empty((m, k), dtype=units.dtype, device=backend.device)
    places = xp.sort(ids, axis=1)
    # NN-descent may leave a place empty, and CuPy reads whatever stands at a wrong one.
    known = (places >= 0) & (places < units.shape[0])
    places = xp.where(known, places, xp.zeros_like(places))
    for start in range(0, m, max(1, _ENTRIES // (k * d))):
        rows = slice(start, min(start + max(1, _ENTRIES // (k * d)), m))
        listed = xp.take(units, xp.reshape(places[rows, :], (-1,)), axis=0)
        listed = xp.reshape(listed, (-1, k, d))
        scores[rows, :] = xp.sum(listed * wanted[rows, None, :], axis=2)
    best = backend.top_k(xp.where(known, scores, xp.full_like(scores, -xp.inf)), k)
    places = xp.take_along_axis(places, best.ids, axis=1)
    there = xp.isfinite(best.scores)
    return TopK(scores=best.scores, ids=xp.where(there, places, xp.full_like(places, -1)))
