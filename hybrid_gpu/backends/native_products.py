"""The largest products of rows with each other, picked while a tile of them is in the cache.

Half of the products say all: a tile is gone through by its rows and by its columns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np

from hybrid_gpu.backends.native import INTEGER, POINTER, Core, address
from hybrid_gpu.backends.protocol import HostArray, Numbering, TopK
from hybrid_gpu.backends.threads import for_each, single_threaded_blas

# Rows of a block: a tile of two blocks stays in the cache of a core, and BLAS is at its speed.
# Fixed, because the last bits of a product depend on it.
_BLOCK = 512
# A heap keeps the best: of more than one entry in so many, to sort them all is faster.
_FEW = 16
# Fewer blocks than these are not worth the rounds.
_LEAST_BLOCKS = 4

_MORE = (INTEGER,) * 4 + (POINTER, POINTER) + (INTEGER,) * 2 + (POINTER, POINTER)
_SORTED = (INTEGER, POINTER, INTEGER, POINTER, POINTER)


def suits(rows: HostArray, k: int) -> bool:
    """Whether it is done here: for few products of each of many rows that lie side by side."""
    known = rows.dtype.name in ("float32", "float64") and rows.flags.aligned
    many = rows.shape[0] >= _LEAST_BLOCKS * _BLOCK
    return known and many and rows.flags.c_contiguous and 0 < k <= rows.shape[0] // _FEW


def nearest_rows(
    core: Core,
    rows: HostArray,
    k: int,
    numbering: Numbering | None,
    advance: Callable[[int], None] | None,
) -> TopK:
    """The ``k`` largest products of each row of (n, d) with all of them, ties to the lower id."""
    heaps = _Heaps(core, rows, k, numbering)
    blocks = _blocks(rows.shape[0])
    rounds = list(_rounds(len(blocks)))
    for number, pairs in enumerate(rounds):
        if advance:
            advance(rows.shape[0] * number // len(rounds))
        for_each(heaps.pick, [(blocks[one], blocks[other]) for one, other in pairs])
    for_each(heaps.sort, blocks)
    return TopK(scores=heaps.values, ids=heaps.places)


class _Heaps:
    """The best products of every row so far, with the worst of them first."""

    def __init__(self, core: Core, rows: HostArray, k: int, numbering: Numbering | None) -> None:
        (n, _), like = rows.shape, rows.dtype.name
        address(rows, "rows", like, rows.shape)
        self.values, self.places = np.full((n, k), -np.inf, like), np.full((n, k), -1, np.int64)
        self._rows, self._k, self._tiles = rows, k, threading.local()
        order = None if numbering is None else address(numbering.order, "order", "int64", (n,))
        self._order = order
        self._more = core.function("hg_top_k_more", _MORE, rows)
        self._sorted = core.function("hg_top_k_sorted", _SORTED, rows)

    def pick(self, pair: tuple[slice, slice]) -> None:
        """The products of two blocks, for the heaps of both."""
        one, other = pair
        if not hasattr(self._tiles, "whole"):
            self._tiles.whole = np.empty(_BLOCK * _BLOCK, self._rows.dtype)
        shape = one.stop - one.start, other.stop - other.start
        tile = self._tiles.whole[: shape[0] * shape[1]].reshape(shape)
        with single_threaded_blas():
            np.matmul(self._rows[one], self._rows[other].T, out=tile)
        self._go_through(tile, heaps=one, entries=other, across=False)
        if one != other:
            self._go_through(tile, heaps=other, entries=one, across=True)

    def sort(self, block: slice) -> None:
        """Put the entries of some heaps in order, best first."""
        count = block.stop - block.start
        self._sorted(count, self._order, self._k, *self._addresses(block))

    def _go_through(self, tile: HostArray, heaps: slice, entries: slice, across: bool) -> None:
        self._more(
            *tile.shape,
            tile.shape[1],
            int(across),
            tile.ctypes.data,
            self._order,
            entries.start,
            self._k,
            *self._addresses(heaps),
        )

    def _addresses(self, block: slice) -> tuple[int, int]:
        """Where the values and the places of a block's heaps begin."""
        return self.values[block].ctypes.data, self.places[block].ctypes.data


def _blocks(length: int) -> list[slice]:
    return [slice(start, min(start + _BLOCK, length)) for start in range(0, length, _BLOCK)]


def _rounds(count: int) -> Iterator[list[tuple[int, int]]]:
    """All pairs of so many blocks, in rounds in which none is twice: nobody waits for a heap."""
    yield [(block, block) for block in range(count)]
    # A tournament: all but the first move on by one; with an odd number, one rests.
    even = count + count % 2
    around = list(range(even))
    for _ in range(even - 1):
        pairs = zip(around[: even // 2], reversed(around[even // 2 :]), strict=True)
        yield [pair for pair in pairs if max(pair) < count]
        around = [around[0], around[-1], *around[1:-1]]
