"""Adding items to an index and removing them, without searching or grouping anew.

The k-NN lists are brought up to date, the graph follows from them in one pass, and the basis is
carried over. It no longer fits the graph perfectly, which costs a little speed and no accuracy:
what the steps converge to does not depend on the basis.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hybrid_gpu.backends import Array, Backend
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.basis import EigenBasis, GalerkinBasis, aggregate_basis, given_basis
from hybrid_gpu.graph import Graph, Layout, arranged, reciprocal_graph, row_numbers
from hybrid_gpu.index import DiffusionIndex
from hybrid_gpu.neighbors import Neighbors, exact_neighbors, unit_rows
from hybrid_gpu.validation import check_item_ids, check_vectors, item_bytes


def add(index: DiffusionIndex, descriptors: Any) -> DiffusionIndex:
    """The index with more items; see ``DiffusionIndex.add``."""
    backend, xp = index.backend, index.backend.xp
    with backend.annotate("add"):
        lists, old = _kept_lists(index), index.required_descriptors("add")
        vectors = check_vectors(descriptors, "descriptors", dtype=index.dtype, backend=backend)
        if vectors.shape[1] != old.shape[1]:
            raise ValueError(
                f"descriptors must have the index's {old.shape[1]} dimensions; got "
                f"{vectors.shape[1]}."
            )
        new = unit_rows(vectors, backend)
        units = xp.concat([old, new])
        own = xp.arange(index.n, units.shape[0], dtype=xp.int64, device=backend.device)
        width = lists.ids.shape[1]
        # Fewer items than the lists are wide leave their ends empty.
        few = min(width, units.shape[0] - 1)
        fresh = _padded(exact_neighbors(units, new, few, own=own, backend=backend), width, backend)
        updated = _joined(_with_candidates(lists, old, new, backend), fresh, backend)
        # New items stand at the end: the next full build finds them a better place.
        order = xp.concat([index.layout.order, own])
        rows = np.concatenate([backend.to_numpy(index.layout.order), np.full(new.shape[0], -1)])
        return _rebuilt(index, updated, units, order, rows)


def remove(index: DiffusionIndex, ids: Any) -> DiffusionIndex:
    """The index without some items; see ``DiffusionIndex.remove``."""
    backend, xp = index.backend, index.backend.xp
    with backend.annotate("remove"):
        lists = _kept_lists(index)
        gone = np.unique(backend.to_numpy(check_item_ids(ids, index.n, backend=backend)))
        if gone.size == index.n:
            raise ValueError(f"ids name all {index.n} items: an index needs at least one.")
        stays = np.ones(index.n, bool)
        stays[gone] = False
        # New id of every item; the last entry is for ids of -1.
        renumber = np.append(np.where(stays, np.cumsum(stays) - 1, -1), -1)
        old_ids = backend.to_numpy(lists.ids)[stays]
        new_ids = renumber[old_ids]
        similarities = np.where(new_ids < 0, 0, backend.to_numpy(lists.similarities)[stays])
        units = None
        if index.descriptors is not None:
            units = xp.take(index.descriptors, backend.asarray(np.flatnonzero(stays)), axis=0)
            short = np.flatnonzero(np.any((new_ids < 0) & (old_ids >= 0), axis=1))
            _search_again(new_ids, similarities, short, units, backend)
        updated = Neighbors(
            backend.asarray(new_ids.astype(np.int64)), backend.asarray(similarities, index.dtype)
        )
        old_order = backend.to_numpy(index.layout.order)
        order = backend.asarray(renumber[old_order[stays[old_order]]])
        return _rebuilt(index, updated, units, order, old_order[stays[old_order]])


def _kept_lists(index: DiffusionIndex) -> Neighbors:
    if index.neighbors is None:
        raise ValueError(
            "the index has no k-NN lists to bring up to date. Build it with keep_neighbors=True "
            "from descriptors or from lists."
        )
    xp = index.backend.xp
    return Neighbors(xp.astype(index.neighbors.ids, xp.int64), index.neighbors.similarities)


def _with_candidates(lists: Neighbors, old: Array, new: Array, backend: Backend) -> Neighbors:
    """The lists of the old items after the new ones had their chance, a tile at a time."""
    xp = backend.xp
    n, k = lists.ids.shape
    count = new.shape[0]
    own = xp.arange(n, n + count, dtype=xp.int64, device=backend.device)[None, :]
    nothing = xp.asarray(-xp.inf, dtype=old.dtype, device=backend.device)
    tile = max(1, min(n, backend.available_bytes() // (6 * (k + count) * item_bytes(old))))
    ids, similarities = [], []
    for start in range(0, n, tile):
        stop = min(start + tile, n)
        known = lists.ids[start:stop, :]
        values = xp.where(known < 0, nothing, lists.similarities[start:stop, :])
        # The old ones first: among equals the lower id stays.
        together = xp.concat([values, backend.matmul(old[start:stop, :], new.T)], axis=1)
        names = xp.concat([known, xp.broadcast_to(own, (stop - start, count))], axis=1)
        best = backend.top_k(together, k)
        chosen = xp.take_along_axis(names, best.ids, axis=1)
        ids.append(chosen)
        similarities.append(xp.where(chosen < 0, xp.zeros_like(best.scores), best.scores))
    return Neighbors(xp.concat(ids), xp.concat(similarities))


def _search_again(
    ids: HostArray, similarities: HostArray, rows: HostArray, units: Array, backend: Backend
) -> None:
    """Fill the lists that lost an item, in place, by an exact search."""
    if rows.size == 0 or units.shape[0] < 2:
        return
    places = backend.asarray(rows)
    found = _padded(
        exact_neighbors(
            units,
            backend.xp.take(units, places, axis=0),
            min(ids.shape[1], units.shape[0] - 1),
            own=places,
            backend=backend,
        ),
        ids.shape[1],
        backend,
    )
    ids[rows] = backend.to_numpy(found.ids)
    similarities[rows] = backend.to_numpy(found.similarities)


def _padded(lists: Neighbors, width: int, backend: Backend) -> Neighbors:
    xp = backend.xp
    m, k = lists.ids.shape
    missing = xp.zeros((m, width - k), dtype=xp.int64, device=backend.device)
    return Neighbors(
        xp.concat([lists.ids, missing - 1], axis=1),
        xp.concat([lists.similarities, xp.astype(missing, lists.similarities.dtype)], axis=1),
    )


def _joined(one: Neighbors, other: Neighbors, backend: Backend) -> Neighbors:
    xp = backend.xp
    return Neighbors(
        xp.concat([one.ids, other.ids]), xp.concat([one.similarities, other.similarities])
    )


def _rebuilt(
    index: DiffusionIndex, lists: Neighbors, units: Array | None, order: Array, rows: HostArray
) -> DiffusionIndex:
    """The index of updated lists.

    ``rows`` (n,) are the old items at the places of the new order; -1 for a new item.
    """
    backend, xp = index.backend, index.backend.xp
    graph = reciprocal_graph(lists, gamma=index.gamma, dtype=index.dtype, backend=backend)
    layout = arranged(graph, order, backend)
    # Where the old layout kept each item; the last entry is for new ones.
    old_places = np.append(backend.to_numpy(index.layout.places), -1)
    return replace(
        index,
        layout=layout,
        descriptors=units,
        neighbors=Neighbors(xp.astype(lists.ids, xp.int32), lists.similarities),
        basis=_carried_over(index, layout, old_places[rows]),
        columns=None,
        _sparse={},
    )


def _carried_over(
    index: DiffusionIndex, layout: Layout, old_places: HostArray
) -> GalerkinBasis | None:
    """The basis on the new graph; ``old_places`` (n,) is -1 for new items."""
    backend, basis = index.backend, index.basis
    if basis is None:
        return None
    if isinstance(basis, GalerkinBasis) and basis.kind == "aggregates":
        # Every row of an aggregate basis has its one entry in the column of its group.
        indptr = backend.to_numpy(basis.vectors.indptr)
        groups = np.full(indptr.size, -1)
        groups[:-1][np.diff(indptr) > 0] = backend.to_numpy(basis.vectors.indices)
        labels = groups[old_places]  # the last entry, -1, is for new items
        return aggregate_basis(
            layout.graph, _grouped(labels, layout.graph, backend), backend=backend
        )
    dense = (
        basis.dense()
        if isinstance(basis, EigenBasis)
        else basis.prolong(
            backend.xp.eye(basis.rank, dtype=layout.graph.degrees.dtype, device=backend.device)
        )
    )
    vectors = np.concatenate([backend.to_numpy(dense), np.zeros((1, basis.rank))])[old_places]
    # A new item takes what one step of diffusion would give it.
    fresh = old_places < 0
    moved = backend.spmm(layout.graph.adjacency, backend.asarray(vectors, index.dtype))
    vectors[fresh] = backend.to_numpy(moved)[fresh]
    return given_basis(layout.graph, vectors, backend=backend)


def _grouped(labels: HostArray, graph: Graph, backend: Backend) -> HostArray:
    """Labels in which connected items without a group joined that of their heaviest neighbor."""
    host, matrix = backend.to_numpy, graph.adjacency
    rows, columns = host(row_numbers(matrix, backend)), host(matrix.indices)
    weights = host(matrix.data)
    labels = labels.copy()
    for _ in range(4):
        usable = (labels[rows] < 0) & (labels[columns] >= 0)
        if not usable.any():
            break
        row, column, weight = rows[usable], columns[usable], weights[usable]
        best = np.lexsort((weight, row))  # the heaviest of each row comes last
        labels[row[best]] = labels[column[best]]
    # What is still out of reach becomes a group with what it is joined to.
    lonely = (labels < 0) & (np.diff(host(matrix.indptr)) > 0)
    components = graph.components[lonely]
    labels[lonely] = labels.max(initial=-1) + 1 + np.unique(components, return_inverse=True)[1]
    return labels
