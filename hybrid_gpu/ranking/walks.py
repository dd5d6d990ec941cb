"""Random walks that begin anew at a query's items: personalized PageRank as igraph means it.

A walk of damping alpha takes an edge with probability alpha, by weight, and else begins anew at one
of the items s, by weight. Where it is in the long run, p, solves ``p = (1 - alpha) s + alpha A D^-1
p``. With W = D^-1/2 A D^-1/2 that is ``D^1/2 h(W) D^-1/2 s``: the diffusion of this library between
two scalings by the roots of the degrees.
"""

from __future__ import annotations

from hybrid_gpu.backends import Array
from hybrid_gpu.diffusion.filters import Filter, gains
from hybrid_gpu.ranking.request import Request
from hybrid_gpu.ranking.state import IndexState


def check_walk(request: Request) -> None:
    """Refuse what scores of a random walk cannot be, with what to do instead."""
    method = request.method
    if not method.filters:
        raise ValueError(
            f"method {method.name!r} has no scores of a random walk on the whole graph. Use "
            "method='hybrid', 'temporal', 'local' or 'precomputed', or leave normalization out."
        )
    if request.degree_correction:
        raise ValueError(
            "degree_correction divides by the roots of the degrees that normalization="
            "'random-walk' multiplies with. Leave one of them out."
        )
    if request.signed:
        raise ValueError(
            "a random walk begins at items with positive weights; got negative ones. Use "
            "normalization='symmetric' for them."
        )
    if min(_kept(request.filter)) <= 0:
        raise ValueError(
            f"filter {request.filter!r} keeps nothing of a random walk, so that its scores cannot "
            "add up to 1. Use normalization='symmetric'."
        )


def restart_weights(state: IndexState, places: Array, weights: Array, filter: Filter) -> Array:
    """The weights (m, q) of observations whose scores are those of walks from these items.

    The scores of a query add up to 1. A walk at an item without an edge begins anew, as in igraph
    and networkx: such items keep the gain at frequency 0 of what they get, all others the gain at
    1, and what is lost goes to all of them alike.
    """
    xp, graph = state.backend.xp, state.graph
    known = xp.where(places < 0, xp.zeros_like(places), places)
    at = xp.reshape(known, (-1,))
    roots = xp.reshape(xp.take(state.roots()[:, 0], at), places.shape)
    joined = xp.reshape(xp.take(graph.degrees > 0, at), places.shape)
    values = xp.astype(weights, xp.float64)
    # The weights of all seeds may be beyond any sum of them, the largest is not.
    values = values / xp.max(values, axis=1, keepdims=True)
    alone, moving = _kept(filter)
    total = xp.sum(xp.where(joined, moving * values, alone * values), axis=1, keepdims=True)
    return values / total / xp.astype(roots, xp.float64)


def _kept(filter: Filter) -> tuple[float, float]:
    """The part of a walk's weight that a filter keeps: at items without an edge, and at others."""
    return float(gains(filter, 0.0)), float(gains(filter, 1.0))
