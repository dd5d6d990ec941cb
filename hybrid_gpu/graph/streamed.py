"""Nearest neighbors of vectors that do not fit into the memory of the device: block by block."""

from __future__ import annotations

import numpy as np

from hybrid_gpu.backends import Array
from hybrid_gpu.backends.protocol import TopK
from hybrid_gpu.graph.vectors import Vectors
from hybrid_gpu.progress import Progress

# Queries that a block of items is multiplied with: with far fewer, a product only reads the block.
_QUERIES = 256
# Similarities of a tile, with themselves masked, and the mask; a tile of vectors, while it is made.
_PRODUCTS, _VECTORS = 3, 8


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
    ids = xp.full((n, k), -1, dtype=xp.int64, device=backend.device)
    scores = xp.full((n, k), -xp.inf, dtype=values, device=backend.device)
    block, tile = _sizes(vectors)
    for first in range(0, n, block):
        if progress:
            progress("neighbors", first, n)
        items = vectors.units(first, min(first + block, n), tile)
        for start, queries in vectors.tiles(0, n, tile):
            rows = slice(start, start + queries.shape[0])
            found = _best_of_block(queries, start, items, first, k, vectors)
            # Lower ids stand first, so that ties stay theirs.
            both = xp.concat([scores[rows, :], found.scores], axis=1)
            best = backend.top_k(both, k)
            listed = xp.concat([ids[rows, :], found.ids], axis=1)
            ids[rows, :] = xp.take_along_axis(listed, best.ids, axis=1)
            scores[rows, :] = best.scores
    if progress:
        progress("neighbors", n, n)
    return TopK(scores=scores, ids=ids)


def _best_of_block(
    queries: Array, start: int, items: Array, first: int, k: int, vectors: Vectors
) -> TopK:
    """The most similar items of a block, for queries that are items themselves."""
    backend, xp = vectors.backend, vectors.backend.xp
    m, count = queries.shape[0], items.shape[0]
    products = backend.matmul(queries, items.T)
    if start < first + count and first < start + m:
        own = xp.arange(start, start + m, dtype=xp.int64, device=backend.device)
        block = xp.arange(first, first + count, dtype=xp.int64, device=backend.device)
        products = xp.where(block[None, :] == own[:, None], -xp.inf, products)
    best = backend.top_k(products, min(k, count))
    return TopK(scores=best.scores, ids=best.ids + first)


def _sizes(vectors: Vectors) -> tuple[int, int]:
    """Items of a block and queries of a tile that take half of the memory together."""
    n, d = vectors.shape
    room = vectors.backend.available_bytes() // 4 // np.dtype(vectors.dtype).itemsize
    block = max(1, min(n, room // d, room // (_PRODUCTS * _QUERIES)))
    tile = max(1, min(n, 4 * _QUERIES, room // (_PRODUCTS * block + _VECTORS * d)))
    return block, tile
