"""Adding items to an index and removing them, without searching all of it anew.

The k-NN lists are brought up to date where something changed, and the graph follows from them in
one pass. The basis is carried over; what the steps converge to does not depend on it, but how fast
they do does. So groups are made anew once a quarter of the items are others than those that they
were made for, and eigenvectors are computed anew every time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hybrid_gpu.backends import Array, Backend
from hybrid_gpu.backends.protocol import HostArray, Numbering
from hybrid_gpu.errors import warn_caller
from hybrid_gpu.graph.affinity import numbering_of, reciprocal_graph
from hybrid_gpu.graph.neighbors import Neighbors, exact_neighbors
from hybrid_gpu.graph.vectors import unit_rows
from hybrid_gpu.index.build import BasisChoice, Settings, state_from_lists
from hybrid_gpu.ranking.keys import Keys, as_keys
from hybrid_gpu.ranking.state import Grouping, IndexState
from hybrid_gpu.validation import check_item_ids, check_vectors, item_bytes


def with_items(state: IndexState, descriptors: Any, keys: Any) -> IndexState:
    """The index with more items; see ``DiffusionIndex.add``."""
    backend, xp, n = state.backend, state.backend.xp, state.n
    with backend.annotate("add"):
        lists, old = _wide_lists(state), state.required_descriptors("add")
        vectors = check_vectors(descriptors, "descriptors", dtype=state.dtype, backend=backend)
        if vectors.shape[1] != old.shape[1]:
            raise ValueError(
                f"descriptors must have the index's {old.shape[1]} dimensions; got "
                f"{vectors.shape[1]}."
            )
        named = _joined_keys(state.keys, keys, vectors.shape[0])
        new = unit_rows(vectors, backend)
        units = xp.concat([old, new])
        # New items stand at the end, under the next ids, until groups are made anew.
        own = xp.arange(n, units.shape[0], dtype=xp.int64, device=backend.device)
        numbering = Numbering(
            order=xp.concat([state.numbering.order, own]),
            places=xp.concat([state.numbering.places, own]),
        )
        width = lists.ids.shape[1]
        # Fewer items than the lists are wide leave their ends empty.
        few = min(width, units.shape[0] - 1)
        fresh = exact_neighbors(units, new, few, own=own, numbering=numbering, backend=backend)
        kept = _with_candidates(lists, old, new, backend)
        changed = _Changed(
            lists=_joined(kept, _padded(fresh, width, backend), backend),
            units=units,
            numbering=numbering,
            old_places=np.concatenate([np.arange(n), np.full(new.shape[0], -1)]),
            count=new.shape[0],
        )
        _tell_of_columns(state, "add")
        return replace(_rebuilt(state, changed), keys=named)


def without_items(state: IndexState, ids: Any) -> IndexState:
    """The index without some items; see ``DiffusionIndex.remove``."""
    backend, xp, n = state.backend, state.backend.xp, state.n
    with backend.annotate("remove"):
        lists, keys = _wide_lists(state), state.keys
        if keys is not None:
            ids = keys.ids_of(ids, "ids")
        gone = np.unique(backend.to_numpy(check_item_ids(ids, n, backend=backend)))
        if gone.size == n:
            raise ValueError(f"ids name all {n} items: an index needs at least one.")
        remains = np.ones(n, bool)
        remains[gone] = False
        order = backend.to_numpy(state.numbering.order)
        stays = remains[order]  # the same, by places
        numbering = numbering_of((np.cumsum(remains) - 1)[order[stays]], backend)
        # New place of every item; the last entry is for places of -1.
        moved_to = np.append(np.where(stays, np.cumsum(stays) - 1, -1), -1)
        old_lists = backend.to_numpy(lists.ids)[stays]
        new_lists = moved_to[old_lists]
        similarities = np.where(new_lists < 0, 0, backend.to_numpy(lists.similarities)[stays])
        units = None
        if state.descriptors is not None:
            units = xp.take(state.descriptors, backend.asarray(np.flatnonzero(stays)), axis=0)
            short = np.flatnonzero(np.any((new_lists < 0) & (old_lists >= 0), axis=1))
            _search_again(new_lists, similarities, short, units, numbering, backend)
        changed = _Changed(
            lists=Neighbors(
                backend.asarray(new_lists.astype(np.int64)),
                backend.asarray(similarities, state.dtype),
            ),
            units=units,
            numbering=numbering,
            old_places=np.flatnonzero(stays),
            count=gone.size,
        )
        _tell_of_columns(state, "remove")
        named = None if keys is None else keys.chosen(remains)
        return replace(_rebuilt(state, changed), keys=named)


def _joined_keys(keys: Keys | None, new: Any, count: int) -> Keys | None:
    """The keys of the index with those of new items, which have some if and only if the old do."""
    if keys is None:
        if new is not None:
            raise ValueError(
                "the index has no keys, so that new items can have none. Leave keys out, or build "
                "the index with keys=."
            )
        return None
    if new is None:
        raise ValueError(f"the index has keys: pass keys= for the {count} new items too.")
    return keys.joined(as_keys(new, count))


@dataclass(frozen=True, slots=True, eq=False)
class _Changed:
    """What items came and went have left of an index, by its new places.

    ``old_places`` (n,) tells where each item stood before, -1 for new ones; ``count`` how many
    items came or went.
    """

    lists: Neighbors
    units: Array | None
    numbering: Numbering
    old_places: HostArray
    count: int


def _tell_of_columns(state: IndexState, change: str) -> None:
    if state.columns is not None:
        warn_caller(
            f"{change} drops the stored columns, which are those of the graph before it. Make them "
            f"anew with index = index.precompute(keep={state.columns.keep})."
        )


def _wide_lists(state: IndexState) -> Neighbors:
    """The kept lists, with ids of 64 bits."""
    lists, xp = state.required_neighbors(), state.backend.xp
    return Neighbors(xp.astype(lists.ids, xp.int64), lists.similarities)


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
    ids: HostArray,
    similarities: HostArray,
    rows: HostArray,
    units: Array,
    numbering: Numbering,
    backend: Backend,
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
            numbering=numbering,
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


def _joined(first: Neighbors, second: Neighbors, backend: Backend) -> Neighbors:
    xp = backend.xp
    return Neighbors(
        xp.concat([first.ids, second.ids]), xp.concat([first.similarities, second.similarities])
    )


def _rebuilt(state: IndexState, changed: _Changed) -> IndexState:
    """The index of updated lists: in the old memory order, or built anew if it has outgrown it."""
    backend, xp = state.backend, state.backend.xp
    grouping = replace(state.grouping, changed=state.grouping.changed + changed.count)
    if grouping.outgrown:
        return _built_anew(state, changed)
    lists, basis = changed.lists, state.basis
    graph = reciprocal_graph(lists, gamma=state.gamma, dtype=state.dtype, backend=backend)
    return replace(
        state,
        graph=graph,
        numbering=changed.numbering,
        descriptors=changed.units,
        neighbors=Neighbors(xp.astype(lists.ids, xp.int32), lists.similarities),
        basis=None if basis is None else basis.carried_over(graph, changed.old_places),
        columns=None,
        grouping=grouping,
    )


def _built_anew(state: IndexState, changed: _Changed) -> IndexState:
    """The index in a new memory order, with groups made anew, as a build makes them.

    From lists in the order of the user's ids: the same lists then give the same index.
    """
    backend, xp, share = state.backend, state.backend.xp, state.grouping.share
    places = changed.numbering.places
    fresh = state_from_lists(
        changed.lists.renumbered(changed.numbering.inverse, backend),
        state.origin,
        None if changed.units is None else xp.take(changed.units, places, axis=0),
        Settings(state.alpha, state.gamma, state.dtype, keep_neighbors=True),
        BasisChoice("none") if share is None else BasisChoice("aggregate", share=share),
        backend,
    )
    basis = fresh.basis
    if share is None and state.basis is not None:
        # Where the items of the new order stood before the change.
        stood = xp.take(places, fresh.numbering.order)
        old_places = changed.old_places[backend.to_numpy(stood)]
        basis = state.basis.carried_over(fresh.graph, old_places)
    return replace(fresh, basis=basis, grouping=Grouping(fresh.n, share=share))
