"""Nearest neighbors of vectors that do not fit into the memory of the device: block by block."""

from __future__ import annotations

import numpy as np

from hybrid_gpu.backends import Array, Backend
from hybrid_gpu.backends.protocol import TopK
from hybrid_gpu.graph.vectors import Vectors
from hybrid_gpu.progress import Progress

# A tile of vectors takes so much of itself while it is made.
_VECTORS = 8
# Queries of a tile: with far fewer, a product only reads the block.
_QUERIES = 1024


def fits(vectors: Vectors) -> bool:
    """Whether all of them may be on the device, with some room to work beside them."""
    return 3 * vectors.unit_bytes <= 2 * vectors.backend.available_bytes()


def streamed_best(vectors: Vectors, k: int, *, progress: Progress | None) -> TopK:
    """The k most similar others of each of the vectors, as ``exact_neighbors`` finds them.

    A block of them stays on the device while all pass by, a tile at a time; then the next block.
    Only the results are there as a whole.
    """
    backend, xp, (n, _) = vectors.backend, vectors.backend.xp, vectors.shape
    values = getattr(xp, vectors.dtype)
    # One more, because an item finds itself.
    ids = xp.full((n, k + 1), -1, dtype=xp.int64, device=backend.device)
    scores = xp.full((n, k + 1), -xp.inf, dtype=values, device=backend.device)
    block, tile = _sizes(vectors)
    for first in range(0, n, block):
        if progress:
            progress("neighbors", first, n)
        items = vectors.units(first, min(first + block, n), tile)
        for start, queries in vectors.tiles(0, n, tile):
            rows = slice(start, start + queries.shape[0])
            found = backend.largest_products(queries, items, min(k + 1, int(items.shape[0])))
            # Lower ids stand first, so that ties stay theirs.
            both = xp.concat([scores[rows, :], found.scores], axis=1)
            best = backend.top_k(both, k + 1)
            listed = xp.concat([ids[rows, :], found.ids + first], axis=1)
            ids[rows, :] = xp.take_along_axis(listed, best.ids, axis=1)
            scores[rows, :] = best.scores
    if progress:
        progress("neighbors", n, n)
    own = xp.arange(n, dtype=xp.int64, device=backend.device)
    return others(TopK(scores=scores, ids=ids), own, backend)


def others(best: TopK, own: Array, backend: Backend) -> TopK:
    """The best but one: without the item itself, or the last if that is not among them.

    There it is not if more items than are asked for are as similar to it as it is to itself.
    """
    xp, k = backend.xp, best.ids.shape[1] - 1
    itself = xp.astype(best.ids == own[:, None], xp.int64)
    # From where an item finds itself on, the next one comes up.
    chosen = xp.arange(k, dtype=xp.int64, device=backend.device)
    chosen = chosen[None, :] + xp.cumulative_sum(itself, axis=1)[:, :k]
    scores = xp.take_along_axis(best.scores, chosen, axis=1)
    return TopK(scores=scores, ids=xp.take_along_axis(best.ids, chosen, axis=1))


def _sizes(vectors: Vectors) -> tuple[int, int]:
    """Items of a block and queries of a tile that take half of the memory together."""
    n, d = vectors.shape
    room = vectors.backend.available_bytes() // 4 // np.dtype(vectors.dtype).itemsize
    return max(1, min(n, room // d)), max(1, min(n, _QUERIES, room // (_VECTORS * d)))
