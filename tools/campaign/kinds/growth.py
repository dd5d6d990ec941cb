"""Indexes that grew, beside such as were built at once: five steps must be as good."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from common import Failure, Kind, Tally
from numpy.typing import NDArray

import hybrid_gpu as hg
from hybrid_gpu.evaluation import agreement

_QUERIES = 40
# Groups that never grow lose 0.1 and more; other groups of the same number differ by 0.017.
_LOST_BY_GROWTH = 0.04


def _agreement(index: hg.DiffusionIndex, queries: NDArray[np.float64]) -> float:
    """What five steps have in common with the exact first hundred."""
    exact = index.search(queries, k=100, method="temporal", rtol=1e-4).ids
    return agreement(index.search(queries, k=100, method="hybrid", steps=5).ids, exact)


def _trial(seed: int, folder: Path) -> Tally:
    """An index that grew, and lost some items, beside one that was built of what is left."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(300, 700)), int(rng.integers(4, 9))
    centers = rng.standard_normal((20, d))
    vectors = centers[rng.integers(0, 20, n)] + 0.5 * rng.standard_normal((n, d))
    queries = vectors[rng.choice(n, _QUERIES, replace=False)] + 0.1 * rng.standard_normal(d)
    start = at = int(rng.integers(30, n // 2))
    grown = hg.build_index(vectors[:start], neighbors=10, backend="numpy")
    longest = int(rng.choice([20, 100, n]))
    while at < n:
        more = int(rng.integers(1, longest))
        grown = grown.add(vectors[at : at + more])
        at += more
    gone = rng.choice(n, int(rng.integers(1, n // 4)), replace=False)
    grown, rest = grown.remove(gone), np.delete(vectors, gone, axis=0)
    built = hg.build_index(rest, neighbors=10, backend="numpy")
    one, other = _agreement(grown, queries), _agreement(built, queries)
    failures = ()
    if one < other - _LOST_BY_GROWTH:
        told = f"agreement {one:.3f}, {other:.3f} if built at once: {start} to {n} items of {d}"
        failures = (Failure("wrong", f"{told}, up to {longest} at a time"),)
    return Tally(_QUERIES, failures)


KINDS = (
    Kind(
        name="growth",
        promise="Five steps are as good on an index that grew as on one that was built at once.",
        unit="answers",
        short=600,
        long=20_000,
        trial=_trial,
    ),
)
