"""Entry points of the native core for heavy-edge matching: loops over the edges of one level.

They are the loops of ``graph/edge_loops.py``, which tells what each does, and give the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.native import INTEGER, POINTER, Core, address, written
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.backends.threads import for_each

# Edges of a tile, where they are done side by side.
_TILE = 1 << 17

_PRIORITIES = (INTEGER, INTEGER, *(POINTER,) * 6)
_FITTING = (INTEGER, POINTER, POINTER, POINTER, POINTER, INTEGER, POINTER, POINTER, POINTER)
_FREE = (INTEGER, POINTER, POINTER, POINTER, POINTER)
_BEST = (INTEGER, POINTER, POINTER, POINTER, POINTER)
_PAIRS = (INTEGER, POINTER, POINTER, POINTER, POINTER, INTEGER, POINTER)
_LOOSE = (INTEGER, POINTER, POINTER, POINTER, POINTER)
_PACK = (INTEGER, POINTER, POINTER, POINTER, POINTER, INTEGER, INTEGER, POINTER)
_UNPACK = (INTEGER, POINTER, INTEGER, INTEGER, POINTER, POINTER, POINTER)


@dataclass(frozen=True, slots=True, eq=False)
class NativeEdgeLoops:
    """The loops over edges ``low < high`` (int32) of nodes below ``nodes``, in native code."""

    core: Core

    def priorities(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        weights: NDArray[np.float32],
        roots: NDArray[np.float32],
        names: NDArray[np.uint32],
    ) -> NDArray[np.uint64]:
        ends, count = _ends(low, high, roots.size), low.size
        priority = np.empty(count, np.uint64)
        parts = (
            address(weights, "weights", "float32", (count,)),
            address(roots, "roots", "float32", (roots.size,)),
            address(names, "names", "uint32", (roots.size,)),
            priority.ctypes.data,
        )
        call = self.core.function("hg_priorities", _PRIORITIES)
        tiles = [(first, min(first + _TILE, count)) for first in range(0, count, _TILE)]
        for_each(lambda tile: call(*tile, *ends, *parts), tiles)
        return priority

    def fitting(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        priority: NDArray[np.uint64],
        sizes: NDArray[np.int64],
        bound: int,
    ) -> tuple[HostArray, HostArray, HostArray]:
        ends, count = _ends(low, high, sizes.size), low.size
        kept = np.empty_like(low), np.empty_like(high), np.empty_like(priority)
        call = self.core.function("hg_fitting_edges", _FITTING)
        number = call(
            count,
            *ends,
            address(priority, "priority", "uint64", (count,)),
            address(sizes, "sizes", "int64", (sizes.size,)),
            bound,
            *(part.ctypes.data for part in kept),
        )
        return kept[0][:number], kept[1][:number], kept[2][:number]

    def free(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        priority: NDArray[np.uint64],
        free: NDArray[np.bool_],
    ) -> tuple[HostArray, HostArray, HostArray]:
        count = low.size
        _ends(low, high, free.size)
        number = self.core.function("hg_free_edges", _FREE)(
            count,
            written(low, "low", "int32", (count,)),
            written(high, "high", "int32", (count,)),
            written(priority, "priority", "uint64", (count,)),
            address(free, "free", "bool", (free.size,)),
        )
        return low[:number], high[:number], priority[:number]

    def best_pairs(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        priority: NDArray[np.uint64],
        nodes: int,
    ) -> NDArray[np.int64]:
        ends, best = _ends(low, high, nodes), np.zeros(nodes, np.uint64)
        parts = *ends, address(priority, "priority", "uint64", (low.size,)), best.ctypes.data
        self.core.function("hg_best_edges", _BEST)(low.size, *parts)
        # A node is in no more than one pair, unless two of its edges tie.
        pairs = np.empty(low.size, np.int64)
        call = self.core.function("hg_best_pairs", _PAIRS)
        return pairs[: call(low.size, *parts, pairs.size, pairs.ctypes.data)].copy()

    def loose(
        self, low: NDArray[np.int32], high: NDArray[np.int32], paired: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        ends, edges = _ends(low, high, paired.size), np.empty(low.size, np.int64)
        marked = address(paired, "paired", "bool", (paired.size,))
        call = self.core.function("hg_loose_edges", _LOOSE)
        return edges[: call(low.size, *ends, marked, edges.ctypes.data)].copy()

    def added_up(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        weights: NDArray[np.float32],
        parent: NDArray[np.int64],
        width: int,
        spare: int,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        short, count = parent.astype(np.uint32), low.size
        ends, packed = _ends(low, high, short.size), np.empty(count, np.uint64)
        total = self.core.function("hg_pack_edges", _PACK)(
            count,
            *ends,
            address(weights, "weights", "float32", (count,)),
            short.ctypes.data,
            width,
            spare,
            packed.ctypes.data,
        )
        packed = packed[:total]
        packed.sort()
        made = np.empty(total, np.int32), np.empty(total, np.int32), np.empty(total, np.float32)
        number = self.core.function("hg_unpack_edges", _UNPACK)(
            total, packed.ctypes.data, width, spare, *(part.ctypes.data for part in made)
        )
        # Copies: the arrays have room for all edges, of which few are left at the top.
        return made[0][:number].copy(), made[1][:number].copy(), made[2][:number].copy()


def _ends(low: NDArray[np.int32], high: NDArray[np.int32], nodes: int) -> tuple[int, int]:
    """Where the ends of edges begin, which are nodes below a number."""
    if low.size and (int(low.min()) < 0 or int(high.max()) >= nodes):
        raise ValueError(f"edges must join nodes from 0 to {nodes - 1}; got others.")
    return (
        address(low, "low", "int32", low.shape),
        address(high, "high", "int32", low.shape),
    )
