"""How many neighbors an item shall have, chosen from the data; and how many an engine missed.

Few neighbors leave items without an edge, many join what does not belong together. The rule was
tried on 25 data sets with labels, and then on others that were held back; ``docs/choosing.md`` has
the figures.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hybrid_gpu.backends import Array, Backend, select_backend
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.errors import warn_caller
from hybrid_gpu.graph.neighbors import Neighbors, exact_neighbors
from hybrid_gpu.validation import check_count, shown

AUTO = "auto"

_FEWEST, _MOST = 15, 50
# In small databases, 15 neighbors would be a large part of all items.
_FEWEST_OF_SMALL = 10
# The part of the items that may stay without an edge.
_ISOLATED = 0.01
# Items that are looked at, drawn by a fixed seed: items may be stored in turns of some length. And
# those looked at together, for the sake of memory.
_SAMPLE, _SEED, _TILE = 16_384, 20180807, 256
# Lists that are put in order together, for the sake of memory.
_SORTED_TOGETHER = 32_768
# Items whose neighbors are searched again, exactly, and the recall below which a user is warned.
_PROBES, _LOW_RECALL = 256, 0.95
_PROBED_TOGETHER = 16
# Of cosines in float64.
_ROUNDING = 1e-12


def check_neighbors(neighbors: Any, most: int) -> int | None:
    """The number of neighbors that is asked for, at most ``most``; None for ``"auto"``."""
    if isinstance(neighbors, str):
        if neighbors != AUTO:
            raise ValueError(f"neighbors must be a number or 'auto'; got {shown(neighbors)}.")
        return None
    return check_count(neighbors, "neighbors", high=most)


def widest_choice(n: int) -> int:
    """The largest number of neighbors that may be chosen for n items: 50, or the root of n."""
    return min(n - 1, _MOST, max(_FEWEST_OF_SMALL, math.isqrt(n)))


def chosen_count(lists: Neighbors, backend: Backend) -> int:
    """The smallest number of neighbors from 15 up that leaves at most 1 % of items isolated.

    If no number does, the largest that may be: what the lists have, and ``widest_choice``.
    """
    n, width = (int(size) for size in lists.ids.shape)
    most = min(width, max(1, widest_choice(n)))
    fewest = min(_FEWEST, most)
    first = _first_edges(lists.cut(most), backend)
    allowed = _ISOLATED * first.size
    for count in range(fewest, most):
        if np.count_nonzero(first > count) <= allowed:
            return count
    return most


def best_first(lists: Neighbors, backend: Backend) -> Neighbors:
    """Lists of all items by similarity, ties to the lower id; each id once, and not its own."""
    xp, n = backend.xp, int(lists.ids.shape[0])
    tiles = [
        _best_first(lists, slice(start, min(start + _SORTED_TOGETHER, n)), backend)
        for start in range(0, n, _SORTED_TOGETHER)
    ]
    ids, similarities = (xp.concat(parts) for parts in zip(*tiles, strict=True))
    return Neighbors(ids, similarities)


def _best_first(lists: Neighbors, rows: slice, backend: Backend) -> tuple[Array, Array]:
    """Some lists by similarity; repeated ids and the item itself become -1 at the end."""
    xp, take = backend.xp, backend.xp.take_along_axis
    ids, values = lists.ids[rows, :], lists.similarities[rows, :]
    # By similarity, and then by id: a repeated one stands beside itself, its best entry first.
    order = xp.argsort(values, axis=1, descending=True, stable=True)
    ids, values = take(ids, order, axis=1), take(values, order, axis=1)
    order = xp.argsort(ids, axis=1, stable=True)
    ids, values = take(ids, order, axis=1), take(values, order, axis=1)
    own = xp.arange(rows.start, rows.stop, dtype=ids.dtype, device=backend.device)[:, None]
    before = xp.concat([xp.full_like(ids[:, :1], -1), ids[:, :-1]], axis=1)
    others = (ids >= 0) & (ids != own) & (ids != before)
    best = backend.top_k(xp.where(others, values, xp.full_like(values, -xp.inf)), ids.shape[1])
    found = best.scores > -xp.inf
    ids = take(ids, best.ids, axis=1)
    return (
        xp.where(found, ids, xp.full_like(ids, -1)),
        xp.where(found, best.scores, xp.zeros_like(best.scores)),
    )


def _first_edges(lists: Neighbors, backend: Backend) -> HostArray:
    """The number of neighbors at which each item of a sample gets its first edge.

    One more than the lists are wide for an item that has none. An edge joins two items once each
    is among the other's neighbors: at the later of the two places.
    """
    xp = backend.xp
    n, width = lists.ids.shape
    sample = _sample(n, _SAMPLE, backend)
    places = xp.arange(width, device=backend.device)[None, :]
    found = []
    for start in range(0, sample.shape[0], _TILE):
        items = sample[start : min(start + _TILE, sample.shape[0])]
        others = xp.astype(xp.take(lists.ids, items, axis=0), xp.int64, copy=False)
        similar = xp.take(lists.similarities, items, axis=0) > 0
        joinable = (others >= 0) & (others != items[:, None]) & similar
        known = xp.reshape(xp.where(joinable, others, xp.zeros_like(others)), (-1,))
        theirs = xp.reshape(xp.take(lists.ids, known, axis=0), (*others.shape, width))
        back = theirs == xp.astype(items, theirs.dtype)[:, None, None]
        mutual = joinable & xp.any(back, axis=2)
        later = xp.maximum(xp.argmax(xp.astype(back, xp.int8), axis=2), places)
        nowhere = xp.full_like(later, width)
        found.append(backend.to_numpy(xp.min(xp.where(mutual, later, nowhere), axis=1)))
    return np.concatenate(found) + 1


def _sample(n: int, most: int, backend: Backend) -> Array:
    """Some of n items, all if there are not more, in order."""
    items = np.arange(n)
    if n > most:
        items = np.sort(np.random.default_rng(_SEED).choice(n, most, replace=False))
    return backend.asarray(items)


def measured_recall(lists: Neighbors, units: Array, knn: str, backend: Backend) -> float:
    """The part of the true neighbors that an approximate engine found, on a sample of the items.

    A neighbor counts if it is as similar as the last true one, whichever of equal items it is.

    Warns
    -----
    UserWarning
        Below 0.95: an edge needs both of its ends found, so that misses count twice.
    """
    if isinstance(units, np.ndarray):  # too many for the device: looked at where they are
        ids, similarities = (backend.to_numpy(part) for part in (lists.ids, lists.similarities))
        lists, backend = Neighbors(ids, similarities), select_backend("numpy")
    xp = backend.xp
    n, k = (int(size) for size in lists.ids.shape)
    items = _sample(n, _PROBES, backend)
    probes = xp.take(units, items, axis=0)
    true = exact_neighbors(units, probes, k, own=items, backend=backend)

    def cosines(rows: slice, ids: Array) -> Array:
        # In float64, by the vectors: an engine's own are those of a code, and rounding in float32
        # is all that tells apart descriptors that lie in one direction.
        known = xp.reshape(xp.where(ids >= 0, ids, xp.zeros_like(ids)), (-1,))
        listed = xp.astype(xp.take(units, known, axis=0), xp.float64)
        listed = xp.reshape(listed, (*ids.shape, units.shape[1]))
        return xp.sum(listed * xp.astype(probes[rows, None, :], xp.float64), axis=2)

    hits = 0
    for start in range(0, items.shape[0], _PROBED_TOGETHER):
        rows = slice(start, min(start + _PROBED_TOGETHER, items.shape[0]))
        ids = xp.astype(xp.take(lists.ids, items[rows], axis=0), xp.int64, copy=False)
        last = xp.min(cosines(rows, true.ids[rows, :]), axis=1, keepdims=True) - _ROUNDING
        found = (ids >= 0) & (cosines(rows, ids) >= last)
        hits += int(xp.sum(xp.astype(found, xp.int64)))
    recall = hits / (int(items.shape[0]) * k)
    if recall < _LOW_RECALL:
        warn_caller(
            f"knn={knn!r} found {100 * recall:.1f} % of the true neighbors of a sample of the "
            "items. Rankings suffer: take a larger factory string, or knn='faiss' or 'exact'."
        )
    return recall
