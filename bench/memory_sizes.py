"""How much memory does an index take at a million and at ten million items?

    python bench/memory_sizes.py

By the formula of ``hybrid_gpu.predicted_bytes``, which tests compare with a real index
and, on the stand-in, with a limit of memory.
"""

from __future__ import annotations

import math

from common import record, show

import hybrid_gpu as hg


def row(n: int, dimensions: int, batch: int) -> dict[str, object]:
    groups = min(n // 32, math.isqrt(2 * 25 * n))
    parts = hg.predicted_bytes(
        n, entries=25, dimensions=dimensions, neighbors=50, groups=groups, batch=batch
    )
    build = parts.pop("build") / 1e9
    for name in ("local", "native build"):  # of CPUs, in the place of "search" and "build"
        del parts[name]
    gigabytes = {f"{name} GB": size / 1e9 for name, size in parts.items()}
    told = {"items": f"{n:,}", "dimensions": dimensions, "batch": batch, **gigabytes}
    return {**told, "to search GB": sum(parts.values()) / 1e9, "to build GB": build}


if __name__ == "__main__":
    rows = [
        row(n, dimensions, batch)
        for n in (1_000_000, 10_000_000)
        for dimensions, batch in ((0, 128), (128, 128), (2048, 128), (128, 16))
    ]
    show("memory", rows)
    print(record("memory_sizes", {"entries per item": 25, "k-NN lists": 50}, rows))
