"""The loops of heavy-edge matching over all edges of a level, in NumPy; native code has the same.

Edges are two int32 arrays of the nodes at their ends, ``low < high``.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.native import native_core
from hybrid_gpu.backends.native_groups import NativeEdgeLoops
from hybrid_gpu.backends.protocol import HostArray


class EdgeLoops(Protocol):
    """What both ways of going over edges can do, with the same results."""

    def priorities(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        weights: NDArray[np.float32],
        roots: NDArray[np.float32],
        names: NDArray[np.uint32],
    ) -> NDArray[np.uint64]:
        """One number for each edge, by which it is compared with others.

        First the bits of its strength, its weight times the ``roots`` of its ends; then their
        ``names``, in which any two edges of a node differ.
        """

    def fitting(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        priority: NDArray[np.uint64],
        sizes: NDArray[np.int64],
        bound: int,
    ) -> tuple[HostArray, HostArray, HostArray]:
        """Copies of the edges whose ends together are no larger than a bound."""

    def free(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        priority: NDArray[np.uint64],
        free: NDArray[np.bool_],
    ) -> tuple[HostArray, HostArray, HostArray]:
        """The edges between free nodes; may be written over what is given."""

    def best_pairs(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        priority: NDArray[np.uint64],
        nodes: int,
    ) -> NDArray[np.int64]:
        """The numbers of the edges that no edge beside them is above."""

    def loose(
        self, low: NDArray[np.int32], high: NDArray[np.int32], paired: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """The numbers of the edges with one end in a pair, and one that is not."""

    def added_up(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        weights: NDArray[np.float32],
        parent: NDArray[np.int64],
        width: int,
        spare: int,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        """The edges between parents, numbered in ``width`` bits, parallel ones added up.

        Weights keep their first ``spare`` digits. They are added in float64, where the order makes
        no difference as long as the largest is within 2**20 or so of the smallest.
        """


class NumpyEdgeLoops:
    """The loops in NumPy."""

    def priorities(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        weights: NDArray[np.float32],
        roots: NDArray[np.float32],
        names: NDArray[np.uint32],
    ) -> NDArray[np.uint64]:
        strength = weights * (np.take(roots, low) * np.take(roots, high))
        priority = strength.view(np.uint32).astype(np.uint64) << np.uint64(32)
        priority |= np.take(names, low) ^ np.take(names, high)
        return priority

    def fitting(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        priority: NDArray[np.uint64],
        sizes: NDArray[np.int64],
        bound: int,
    ) -> tuple[HostArray, HostArray, HostArray]:
        kept = sizes[low] + sizes[high] <= bound
        return low[kept], high[kept], priority[kept]

    def free(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        priority: NDArray[np.uint64],
        free: NDArray[np.bool_],
    ) -> tuple[HostArray, HostArray, HostArray]:
        kept = np.take(free, low) & np.take(free, high)
        return low[kept], high[kept], priority[kept]

    def best_pairs(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        priority: NDArray[np.uint64],
        nodes: int,
    ) -> NDArray[np.int64]:
        best = np.zeros(nodes, np.uint64)
        np.maximum.at(best, low, priority)
        np.maximum.at(best, high, priority)
        pairs = np.flatnonzero(np.take(best, low) == priority)
        return np.asarray(pairs[best[high[pairs]] == priority[pairs]])

    def loose(
        self, low: NDArray[np.int32], high: NDArray[np.int32], paired: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        return np.flatnonzero(np.take(paired, low) != np.take(paired, high))

    def added_up(
        self,
        low: NDArray[np.int32],
        high: NDArray[np.int32],
        weights: NDArray[np.float32],
        parent: NDArray[np.int64],
        width: int,
        spare: int,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        short = parent.astype(np.uint32)
        left, right = np.take(short, low), np.take(short, high)
        apart = left != right
        left, right = left[apart], right[apart]
        # A sort is eight times as fast as an argsort: the weight rides in the bits that the two
        # nodes leave free. It loses digits only, because the exponent comes first.
        packed = np.minimum(left, right).astype(np.uint64) << np.uint64(width)
        packed |= np.maximum(left, right)
        packed <<= np.uint64(spare)
        packed |= weights[apart].view(np.uint32) >> np.uint32(31 - spare)
        packed.sort()
        ends = packed >> np.uint64(spare)
        first = np.flatnonzero(np.concatenate(([True], ends[1:] != ends[:-1]))[: ends.size])
        digits = (packed & np.uint64((1 << spare) - 1)).astype(np.uint32) << np.uint32(31 - spare)
        kept, ends = digits.view(np.float32), ends[first]
        sums = np.add.reduceat(kept, first, dtype=np.float64) if first.size else kept
        return (
            (ends >> np.uint64(width)).astype(np.int32),
            (ends & np.uint64((1 << width) - 1)).astype(np.int32),
            sums.astype(np.float32),
        )


def edge_loops() -> EdgeLoops:
    """The native loops where there is a native core."""
    core = native_core()
    return NumpyEdgeLoops() if core is None else NativeEdgeLoops(core)
