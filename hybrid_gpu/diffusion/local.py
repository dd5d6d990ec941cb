"""Local search: diffusion on the few items around a query, with the groups for all the rest.

The answer of a query lies on a few thousand items, wherever they are. Only these need the graph
itself; what the rest of it hands back is small, and the groups of the basis tell it well enough. A
backend does the search (``kernels/cpu/local_query.h`` tells how); here is what it needs: the
groups' own walk at the right pace, and how much effort is enough.
"""

from __future__ import annotations

import math

import numpy as np

from hybrid_gpu.backends import Array, Backend, settled
from hybrid_gpu.backends.local_records import LocalEffort, LocalProblem
from hybrid_gpu.diffusion.aggregate_basis import AggregateBasis, slowed
from hybrid_gpu.diffusion.basis import SlowedWalk, inverse_of
from hybrid_gpu.diffusion.conjugate_gradients import conjugate_gradients
from hybrid_gpu.diffusion.descent import system_of
from hybrid_gpu.diffusion.solution import Stopping
from hybrid_gpu.graph.affinity import Graph

# The pace is measured on so many items, at the scores of these ranks: where the items that a query
# visits end. On fewer items than the first number nothing is far away.
_SAMPLE, _RANKS = 16, (200, 8000)
# Paces that are tried: each is so much slower than the one before.
_SLOWER, _SLOWEST = 2**0.5, 64.0
# What a pace is measured to, and the part of an item's largest score below which others count as
# none.
_ACCURACY, _LEAST_PART = 1e-3, 1e-4
# Items that a query may see: in the end, and in array operations before that, until it settles.
ROOMS = (1 << 16, 1 << 17, 1 << 18, 1 << 19)
# Graphs of so many items may be seen whole.
_SMALL = 20_000
# The rule watches at least so many of the best items: with fewer, a round without a change says
# little.
_WATCHED = 100
# And it is met by no fewer visited items, or this part of those that may be seen: what a few
# hundred agree on may still be wrong. The oftener diffusion restarts, the fewer are enough.
_FEWEST, _FEWEST_PART = 3000, 10
# Items to visit for each edge of the largest hub, where scores are those of a walk: much of a hub's
# score comes from its neighbors, whether they were visited or not.
_HUB_TIMES = 8


def most_room(n: int) -> int:
    """Items that a query of n may see: a search that sees nearly all of a large graph is not local.

    Graphs with hubs are like that; to solve them whole is faster, and right more often.
    """
    return min(n, max(_SMALL, 3 * n // 4))


def items_around(hub: int) -> int:
    """Items to visit before scores of walks are known, if the largest hub has so many edges."""
    return _HUB_TIMES * hub


def effort_for(
    k: int, alpha: float, room: int, *, kept: int | None = None, hub: int | None = None
) -> LocalEffort:
    """The effort for the best ``k`` items to be right.

    If only some of them, ``kept`` at least, are the answer, what is wrong may be among these: it is
    counted by their number. With the edges of the largest ``hub``, those are the best by their
    scores times their roots.
    """
    kept = k if kept is None else kept
    # The rarer the restart, the more of a score comes from far away, and the slower it arrives.
    patience = min(1.0, (1 - alpha) / 0.01)
    # Of fewer than a hundred, not one may be wrong.
    strict = 2.0 if kept < _WATCHED else 1.0
    few, spare = _few(kept), kept // 100
    fewest = int(_FEWEST * min(1.0, 0.01 / (1 - alpha)) ** 0.5)
    around = 0 if hub is None else items_around(hub)
    return LocalEffort(
        tolerance=5e-4 * patience**0.5 / strict,
        push=0.01,
        growth=0.5,
        drift=0.0025 * patience * math.sqrt(1 + few),
        calm=0.0005 * patience,
        gap=3.0 if spare and not few else 2.0,
        spare=spare,
        changes=max(1, kept // 100),
        few=few,
        watched=max(k, _WATCHED),
        fewest=max(k, _WATCHED, min(fewest, room // _FEWEST_PART), around),
        steps=100,
        rounds=24,
        room=room,
        rooted=hub is not None,
    )


def _few(k: int) -> int:
    """Changes in a round after which no more than one in a hundred of the best k is wrong.

    About as many as changed in a round are still wrong after it (``bench/stop_rule.py``). Chance
    makes of that mean three roots more at most: the largest c with ``c + 3 sqrt(c)`` within one
    percent of k. None below 400 items.
    """
    return int(((math.sqrt(9 + k / 25) - 3) / 2) ** 2)


def local_problem(
    graph: Graph, basis: AggregateBasis, order: Array, alpha: float, backend: Backend
) -> LocalProblem:
    """What a local search for an alpha needs of an index; ``order`` (n,) are the user's ids."""
    assert basis.spread is not None
    walk = basis.walks.get(
        alpha, lambda: settled(lambda: _paced_walk(graph, basis, alpha, backend), backend)
    )
    roots = 1 / graph.degree_correction(backend)[:, 0]
    return LocalProblem(graph.adjacency, basis.spread, walk.inverse, roots, order, alpha)


def _paced_walk(graph: Graph, basis: AggregateBasis, alpha: float, backend: Backend) -> SlowedWalk:
    """The walk on the groups at the pace that suits the graph best."""
    connected = np.flatnonzero(np.diff(backend.to_numpy(graph.adjacency.indptr)) > 0)
    low, high = _RANKS
    if connected.size <= 4 * low or alpha == 0:
        return basis.slowed_walk(alpha, 1.0)
    high = min(high, connected.size // 2)
    # The same items on every backend.
    sample = np.random.default_rng(_SAMPLE).choice(connected, _SAMPLE, replace=False)
    return basis.slowed_walk(alpha, _pace(graph, basis, alpha, np.sort(sample), (low, high)))


def _pace(
    graph: Graph, basis: AggregateBasis, alpha: float, sample: Array, ranks: tuple[int, int]
) -> float:
    """The slowdown with which the groups tell best what arrives at some ranks of a sample."""
    backend, xp, (low, high), spread = basis.backend, basis.backend.xp, ranks, basis.spread
    assert spread is not None
    places = backend.asarray(sample)[:, None]
    ones = xp.ones(places.shape, dtype=graph.degrees.dtype, device=backend.device)
    observed = backend.place(places, ones, graph.n)
    system = system_of(graph.adjacency, observed, alpha, backend, tolerance=_ACCURACY)
    exact = conjugate_gradients(system, Stopping(None, _ACCURACY), basis).values
    best = backend.top_k(exact.T, high)
    far, scores = best.ids[:, low:], xp.astype(best.scores[:, low:], xp.float64)
    least = _LEAST_PART * xp.astype(best.scores[:, :1], xp.float64)
    reached = scores > least
    restricted = basis.restrict(observed)

    def error(slowdown: float) -> float:
        coefficients = (1 - alpha) * _coarse_solution(basis, restricted, alpha, slowdown)
        both = xp.concat([xp.zeros_like(coefficients), alpha * coefficients])
        guess = xp.astype(backend.spmm(spread, both), xp.float64)
        guess = xp.take_along_axis(guess.T, far, axis=1)
        guess = xp.where(guess > least, guess, least + xp.zeros_like(guess))
        ratio = guess / xp.where(reached, scores, xp.ones_like(scores))
        # By logarithms: squares would be those of the few items that get the most.
        return float(xp.sum(xp.where(reached, xp.abs(xp.log(ratio)), xp.zeros_like(ratio))))

    slowdown, smallest = 1.0, error(1.0)
    while slowdown < _SLOWEST:
        slower = error(slowdown * _SLOWER)
        if not slower < smallest:
            break
        slowdown, smallest = slowdown * _SLOWER, slower
    return slowdown


def _coarse_solution(
    basis: AggregateBasis, restricted: Array, alpha: float, slowdown: float
) -> Array:
    """What stays in the groups of what arrives there (r, m), at a pace."""
    backend, xp = basis.backend, basis.backend.xp
    resolvent, scale = slowed(alpha, slowdown)
    coupled = basis.coupling.shape[0]
    alone = inverse_of(basis.alone, resolvent, backend) * restricted[coupled:, :]
    if coupled == 0:
        return scale * alone
    # Not by its inverse: to make that takes longer than to solve for a few columns.
    right_side = xp.asarray(restricted[:coupled, :], copy=True)
    system = system_of(basis.coupling, right_side, resolvent, backend)
    together = conjugate_gradients(system, Stopping(None, _ACCURACY)).values
    return scale * xp.concat([together / (1 - resolvent), alone])
