"""Adding items to an index and removing them, without searching all of it anew.

The k-NN lists are brought up to date where something changed, and the graph follows from them in
one pass. The basis is carried over; what the steps converge to does not depend on it, but how fast
they do does. So groups are made anew once a quarter of the items are others than those that they
were made for, and eigenvectors are computed anew every time.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from hybrid_gpu.backends import Array, Backend
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.diffusion.basis import (
    EigenBasis,
    GalerkinBasis,
    aggregate_basis,
    eigen_basis,
    given_basis,
    sparse_eigen_basis,
)
from hybrid_gpu.diffusion.spectrum import Spectrum, leading_eigenpairs
from hybrid_gpu.graph.affinity import (
    Graph,
    Layout,
    arranged,
    largest_component,
    reciprocal_graph,
    row_numbers,
)
from hybrid_gpu.graph.aggregation import aggregate
from hybrid_gpu.graph.neighbors import Neighbors, exact_neighbors, unit_rows
from hybrid_gpu.index.build import default_groups
from hybrid_gpu.index.diffusion_index import DiffusionIndex, Grouping
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
        # New items stand at the end, until groups are made anew.
        order = np.concatenate([backend.to_numpy(index.layout.order), backend.to_numpy(own)])
        old_ids = np.concatenate([np.arange(index.n), np.full(new.shape[0], -1)])
        _tell_of_columns(index, "add")
        return _rebuilt(index, updated, units, order, old_ids, new.shape[0])


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
        order = renumber[backend.to_numpy(index.layout.order)]
        _tell_of_columns(index, "remove")
        return _rebuilt(index, updated, units, order[order >= 0], np.flatnonzero(stays), gone.size)


def _tell_of_columns(index: DiffusionIndex, change: str) -> None:
    if index.columns is not None:
        warnings.warn(
            f"{change} drops the stored columns, which are those of the graph before it. Make them "
            f"anew with index = index.precompute(keep={index.columns.keep}).",
            stacklevel=4,  # the line that called the index's method
        )


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
    nothing = xp.asarray(-xp.inf, dtype=old.dtype, device=backend.device)
    tile = max(1, min(n, backend.available_bytes() // (6 * (k + count) * item_bytes(old))))
    ids, similarities = [], []
    for start in range(0, n, tile):
        rows = slice(start, min(start + tile, n))
        known = lists.ids[rows, :]
        values = xp.where(known < 0, nothing, lists.similarities[rows, :])
        products = backend.matmul(old[rows, :], new.T)
        # Most lists stay as they are: only those with a worse entry than the best candidate change.
        better = xp.max(products, axis=1) > xp.min(values, axis=1)
        (places,) = xp.nonzero(better)
        if places.shape[0]:
            changed = _merged(
                xp.take(known, places, axis=0),
                xp.take(values, places, axis=0),
                xp.take(products, places, axis=0),
                n,
                backend,
            )
            line = xp.cumulative_sum(xp.astype(better, xp.int64)) - 1
            line = xp.where(better, line, xp.zeros_like(line))
            chosen = better[:, None]
            known = xp.where(chosen, xp.take(changed.ids, line, axis=0), known)
            values = xp.where(chosen, xp.take(changed.similarities, line, axis=0), values)
        ids.append(known)
        similarities.append(xp.where(known < 0, xp.zeros_like(values), values))
    return Neighbors(xp.concat(ids), xp.concat(similarities))


def _merged(ids: Array, values: Array, products: Array, n: int, backend: Backend) -> Neighbors:
    """The best of lists (t, k) and of candidates (t, c), which have the ids from n up."""
    xp = backend.xp
    own = xp.arange(n, n + products.shape[1], dtype=xp.int64, device=backend.device)[None, :]
    # The old ones first: among equals the lower id stays.
    names = xp.concat([ids, xp.broadcast_to(own, products.shape)], axis=1)
    best = backend.top_k(xp.concat([values, products], axis=1), ids.shape[1])
    return Neighbors(xp.take_along_axis(names, best.ids, axis=1), best.scores)


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
    index: DiffusionIndex,
    lists: Neighbors,
    units: Array | None,
    order: HostArray,
    old_ids: HostArray,
    changed: int,
) -> DiffusionIndex:
    """The index of updated lists.

    ``order`` (n,) are the items at each place; ``old_ids`` (n,) what the items were called before,
    -1 for new ones; ``changed`` the number of items that came or went.
    """
    backend, xp = index.backend, index.backend.xp
    graph = reciprocal_graph(lists, gamma=index.gamma, dtype=index.dtype, backend=backend)
    grouping = _grouping_of(index)
    grouping = replace(grouping, changed=grouping.changed + changed)
    if grouping.outgrown:
        # As a build does it: the same lists then give the same index.
        order = aggregate(graph, groups=default_groups(graph), backend=backend).order
    layout = arranged(graph, order, backend)
    # Where the old layout kept each item; the last entry is for new ones.
    old_places = np.append(backend.to_numpy(index.layout.places), -1)[old_ids[order]]
    if grouping.outgrown and grouping.share is not None:
        basis: EigenBasis | GalerkinBasis | None = _regrouped(layout.graph, grouping.share, backend)
    else:
        basis = _carried_over(index, layout, old_places)
    return replace(
        index,
        layout=layout,
        descriptors=units,
        neighbors=Neighbors(xp.astype(lists.ids, xp.int32), lists.similarities),
        basis=basis,
        columns=None,
        grouping=Grouping(graph.n, share=grouping.share) if grouping.outgrown else grouping,
        _sparse={},
    )


def _grouping_of(index: DiffusionIndex) -> Grouping:
    if index.grouping is not None:
        return index.grouping
    # A file of an earlier version does not tell: groups are taken for those of the library.
    grouped = index.basis is not None and index.basis.kind == "aggregates"
    return Grouping(index.n, share=1.0 if grouped else None)


def _regrouped(graph: Graph, share: float, backend: Backend) -> GalerkinBasis:
    count = max(1, min(graph.n, round(share * default_groups(graph))))
    return aggregate_basis(graph, aggregate(graph, groups=count, backend=backend), backend=backend)


def _carried_over(
    index: DiffusionIndex, layout: Layout, old_places: HostArray
) -> EigenBasis | GalerkinBasis | None:
    """The basis on the new graph; ``old_places`` (n,) is -1 for new items."""
    backend, basis, graph = index.backend, index.basis, layout.graph
    if basis is None:
        return None
    if isinstance(basis, GalerkinBasis) and basis.kind == "aggregates":
        # Every row of an aggregate basis has its one entry in the column of its group.
        indptr = backend.to_numpy(basis.vectors.indptr)
        groups = np.full(indptr.size, -1)
        groups[:-1][np.diff(indptr) > 0] = backend.to_numpy(basis.vectors.indices)
        labels = groups[old_places]  # the last entry, -1, is for new items
        return aggregate_basis(graph, _grouped(labels, graph, backend), backend=backend)
    vectors = _moved_vectors(basis, graph, old_places, backend)
    if isinstance(basis, EigenBasis):
        spectrum = _eigenpairs(graph, vectors, backend)
        precision = basis.precision if basis.precision in ("float16", "int8") else "float32"
        return eigen_basis(spectrum, graph, precision=precision, backend=backend)
    if basis.kind == "sparse eigenvectors":
        kept = int(basis.vectors.data.shape[0]) / max(1, basis.vectors.shape[0] * basis.rank)
        return sparse_eigen_basis(
            _eigenpairs(graph, vectors, backend).eigenvectors,
            graph,
            sparsity=1 - kept,
            backend=backend,
        )
    return given_basis(graph, vectors, backend=backend)


def _moved_vectors(
    basis: EigenBasis | GalerkinBasis, graph: Graph, old_places: HostArray, backend: Backend
) -> HostArray:
    """The vectors (n, r) in the new order; new items take what one step of diffusion gives them."""
    xp = backend.xp
    if isinstance(basis, EigenBasis):
        dense = basis.dense()
    else:
        dense = basis.prolong(xp.eye(basis.rank, dtype=graph.degrees.dtype, device=backend.device))
    dense = backend.to_numpy(dense)
    vectors = np.concatenate([dense, np.zeros((1, basis.rank), dense.dtype)])[old_places]
    fresh = old_places < 0
    vectors[fresh] = backend.to_numpy(backend.spmm(graph.adjacency, backend.asarray(vectors)))[
        fresh
    ]
    return vectors


def _eigenpairs(graph: Graph, vectors: HostArray, backend: Backend) -> Spectrum:
    """As many eigenpairs as there are vectors, which they begin with."""
    rank = min(vectors.shape[1], largest_component(graph).size)
    nothing = np.zeros(0)
    start = Spectrum(nothing, backend.asarray(vectors), nothing, 0.0, 0.0, graph.n)
    return leading_eigenpairs(graph, rank=rank, start=start, backend=backend)


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
