"""How long does the grouping of a million items and 25 million edges take?

    python bench/aggregation_million.py

A shuffled torus with random weights, 50 neighbors for each item, in one component: synthetic.
"""

from __future__ import annotations

import time

import numpy as np
import scipy.sparse as sparse
from common import record, show

import hybrid_gpu as hg


def torus(side: int, seed: int) -> hg.Graph:
    rng = np.random.default_rng(seed)
    n = side * side
    x, y = np.divmod(np.arange(n), side)
    name = rng.permutation(n).astype(np.int32)
    offsets = [(a, b) for a in range(6) for b in range(-5, 6) if (a, b) > (0, 0)][:25]
    others = [name[((x + a) % side) * side + (y + b) % side] for a, b in offsets]
    rows, columns = np.tile(name, len(offsets)), np.concatenate(others)
    weights = rng.random(rows.size).astype(np.float32) + np.float32(0.1)
    one = sparse.coo_array((weights, (rows, columns)), shape=(n, n)).tocsr()
    both = sparse.csr_array(one + one.T)
    degrees = np.asarray(both.sum(axis=1))
    root = (1 / np.sqrt(degrees)).astype(np.float32)
    both.data *= np.repeat(root, np.diff(both.indptr)) * root[both.indices]
    adjacency = hg.select_backend("numpy").csr(both.data, both.indices, both.indptr, both.shape)
    return hg.Graph(adjacency, degrees.astype(np.float32), np.zeros(n, np.int32))


if __name__ == "__main__":
    graph = torus(1000, seed=29)
    start, cpu = time.perf_counter(), time.process_time()
    groups = hg.aggregate(graph, groups=graph.n // 32, seed=3, backend="numpy")
    row = {
        "groups": groups.count,
        "seconds": time.perf_counter() - start,
        "cpu seconds": time.process_time() - cpu,
        "largest group": int(groups.sizes.max()),
    }
    show("aggregation", [row])
    print(record("aggregation_million", {"items": graph.n, "edges": graph.edges}, [row]))
