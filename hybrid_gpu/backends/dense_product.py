"""Products of dense matrices on the host: BLAS on one thread for each of several tiles.

How a product is cut depends on its shape alone, because its last bits depend on that: they are the
same however many threads there are, and whoever else is at work.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.backends.threads import for_each, single_threaded_blas

# Multiplications that are worth a thread's while, and rows: with a few of them, BLAS takes as long
# to arrange the other factor as to multiply.
_TILE, _TILE_ROWS = 16_000_000, 128
# A product is cut inside if that is so many times longer than the result, into so many parts.
_LEAST_INNER, _MOST_INNER = 8, 32


def dense_product(left: HostArray, right: HostArray) -> HostArray:
    """The product (n, m) of matrices (n, p) and (p, m)."""
    (n, p), m = left.shape, right.shape[1]
    inner = _inner_tiles(n, p, m)
    if len(inner) > 1:
        return _sum_of_products(left, right, inner)
    result = np.empty((n, m), np.result_type(left, right))

    def multiply(tile: tuple[slice, slice]) -> None:
        rows, columns = tile
        with single_threaded_blas():
            np.matmul(left[rows], right[:, columns], out=result[rows, columns])

    tiles = _tiles(n, p, m)
    if len(tiles) == 1:
        multiply(tiles[0])
    else:
        for_each(multiply, tiles)
    return result


def _tiles(n: int, p: int, m: int) -> list[tuple[slice, slice]]:
    """Rows and columns of the result, cut across its longer side."""
    longer, whole = max(n, m), slice(None)
    cuts = _cuts(longer, min(longer // _TILE_ROWS, n * p * m // _TILE))
    return [(cut, whole) for cut in cuts] if n >= m else [(whole, cut) for cut in cuts]


def _inner_tiles(n: int, p: int, m: int) -> list[slice]:
    """Parts of the inner side if that is far longer than the result; else all of it."""
    ratio = p // max(n, m, 1)
    if ratio < _LEAST_INNER:
        return [slice(0, p)]
    # No more than the ratio: their products together are not larger than the smaller factor.
    return _cuts(p, min(ratio, _MOST_INNER, n * p * m // _TILE))


def _sum_of_products(left: HostArray, right: HostArray, parts: list[slice]) -> HostArray:
    """A product whose inner parts are multiplied side by side, and added up in their order."""
    shape = (len(parts), left.shape[0], right.shape[1])
    products = np.empty(shape, np.result_type(left, right))

    def multiply(number: int) -> None:
        part = parts[number]
        with single_threaded_blas():
            np.matmul(left[:, part], right[part], out=products[number])

    for_each(multiply, range(len(parts)))
    return np.asarray(np.sum(products, axis=0))


def _cuts(length: int, count: int) -> list[slice]:
    """A length in so many parts of about the same size, but in one at least."""
    count = max(1, count)
    bounds = [length * number // count for number in range(count + 1)]
    return [slice(*ends) for ends in pairwise(bounds)]
