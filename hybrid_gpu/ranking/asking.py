"""From the keywords of a search to a request that is checked once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hybrid_gpu.choices import Accuracy, MethodName, NormalizationName
from hybrid_gpu.diffusion.filters import Filter, PageRank, as_filter
from hybrid_gpu.diffusion.solution import check_alpha_resolved, check_stopping
from hybrid_gpu.diffusion.sparsity import PAPER_SPARSITY, Sparsity
from hybrid_gpu.progress import ProgressOption, as_progress
from hybrid_gpu.ranking.limits import limits_of
from hybrid_gpu.ranking.local_ranking import worth_local
from hybrid_gpu.ranking.methods import METHODS
from hybrid_gpu.ranking.query_expansion import Expansion
from hybrid_gpu.ranking.request import Request
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.ranking.walks import check_walk
from hybrid_gpu.validation import check_choice, check_count, check_flag, check_kind, check_number

_DEFAULT_METHOD, _LOCAL = "hybrid", "local"
_DEFAULT_SHORTLIST = 75_000
_EXPANSION = Expansion()
_RANDOM_WALK = "random-walk"
_NORMALIZATIONS = ("symmetric", _RANDOM_WALK)


def requested(
    state: IndexState,
    *,
    k: int,
    method: MethodName = "auto",
    accuracy: Accuracy | None = None,
    steps: int | None = None,
    rtol: float | None = None,
    alpha: float | None = None,
    filter: Filter | Callable[..., Any] | None = None,
    degree_correction: bool = False,
    query_neighbors: int | None = None,
    shortlist: int | None = None,
    sparsity: float | Sparsity = PAPER_SPARSITY,
    expansion: Expansion | None = None,
    batch: int | None = None,
    progress: ProgressOption = None,
    fill: bool = True,
    allowed: Any = None,
    exclude: Any = None,
    min_score: float | None = None,
    signed: bool = False,
    normalization: NormalizationName = "symmetric",
) -> Request:
    """What the keywords of a search ask of an index; what it lacks is told now, not after hours."""
    chosen = METHODS[_DEFAULT_METHOD]
    if not isinstance(method, str) or method != "auto":
        chosen = METHODS[check_choice(method, "method", ("auto", *METHODS))]
    if expansion is not None:
        check_kind(expansion, "expansion", Expansion, "Pass Expansion(neighbors=10, alpha=3).")
    chosen_filter: Filter = state.filter
    if alpha is not None or filter is not None:
        chosen_filter = _chosen_filter(alpha, filter)
    check_alpha_resolved(chosen_filter, state.dtype)
    stop = check_stopping(
        chosen_filter, steps=steps, rtol=rtol, accuracy=accuracy, default=chosen.steps, best=k
    )
    size = min(_DEFAULT_SHORTLIST, state.n)
    if shortlist is not None:
        size = check_count(shortlist, "shortlist", high=state.n)
    request = Request(
        k=min(check_count(k, "k"), state.n),
        method=chosen,
        filter=chosen_filter,
        stop=stop,
        query_neighbors=None
        if query_neighbors is None
        else check_count(query_neighbors, "query_neighbors"),
        shortlist=size,
        sparsity=sparsity if isinstance(sparsity, Sparsity) else Sparsity(sparsity),
        expansion=_EXPANSION if expansion is None else expansion,
        batch=None if batch is None else check_count(batch, "batch"),
        progress=None if progress is None else as_progress(progress),
        degree_correction=check_flag(degree_correction, "degree_correction"),
        fill=fill,
        limits=None if allowed is None and exclude is None else limits_of(state, allowed, exclude),
        min_score=None if min_score is None else check_number(min_score, "min_score"),
        signed=signed,
        random_walk=check_choice(normalization, "normalization", _NORMALIZATIONS) == _RANDOM_WALK,
    )
    if request.random_walk:
        check_walk(request)
    if state.local and method == "auto" and worth_local(state, request):
        return replace(request, method=METHODS[_LOCAL])
    if stop.tolerance is not None and not chosen.exact and chosen_filter.resolvent is not None:
        raise ValueError(
            f"method {chosen.name!r} takes steps={chosen.steps} or another number, and neither "
            "rtol nor accuracy: its steps solve a system of the paper's own, whose solution is the "
            "diffusion only if the eigenvectors are exact. Use method='hybrid' for an accuracy."
        )
    if degree_correction and not chosen.diffuses:
        raise ValueError(
            f"method {chosen.name!r} has no scores of diffusion to divide by degrees. Leave "
            "degree_correction out, or use method='hybrid'."
        )
    if chosen.check is not None:
        chosen.check(state, request)
    return request


def _chosen_filter(alpha: float | None, filter: Filter | Callable[..., Any] | None) -> Filter:
    if alpha is None:
        return as_filter(filter)
    if filter is not None:
        raise ValueError(
            f"alpha and filter exclude each other; got alpha={alpha} and filter={filter!r}. "
            "alpha=0.9 is filter=PageRank(0.9)."
        )
    return PageRank(alpha)
