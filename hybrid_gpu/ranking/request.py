"""What was asked of a search, and what a method is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hybrid_gpu.backends import Array
from hybrid_gpu.diffusion.filters import Filter
from hybrid_gpu.diffusion.solution import Solution, Stopping
from hybrid_gpu.diffusion.sparsity import Sparsity
from hybrid_gpu.progress import Progress
from hybrid_gpu.ranking.first_stage import FirstStage
from hybrid_gpu.ranking.limits import Limits
from hybrid_gpu.ranking.query_expansion import Expansion
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.ranking.top_items import Ranked


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """What the keywords of a search say, checked against the index once.

    Attributes
    ----------
    k : int
        Results per query.
    method : Method
    filter : Filter
    stop : Stopping
        When the solver stops.
    query_neighbors : int or None
        First-stage results that diffusion starts from; None for all.
    shortlist : int
        Items that ``truncated`` keeps.
    sparsity : Sparsity
        Which of the eigenvectors' entries ``shybrid`` drops.
    expansion : Expansion
        The neighbors that ``alpha-qe`` adds to a query.
    batch : int or None
        Queries solved side by side; None: as many as help and as memory allows.
    progress : Progress or None
    degree_correction : bool
        Whether scores are divided by the root of the items' degrees.
    fill : bool
        Whether items that diffusion did not reach are ranked by their similarity.
    limits : Limits or None
        The items that rankings may have; None for all.
    min_score : float or None
        Results with a lower score are left out.
    signed : bool
        Whether observations have negative weights.
    random_walk : bool
        Whether scores are those of a random walk, and seeds where it begins anew.
    permitted : bool array of shape (n, m) or (n, 1), or None
        What the limits are for the batch at hand, by places.
    """

    k: int
    method: Method
    filter: Filter
    stop: Stopping
    query_neighbors: int | None
    shortlist: int
    sparsity: Sparsity
    expansion: Expansion
    batch: int | None
    progress: Progress | None
    degree_correction: bool
    fill: bool
    limits: Limits | None = None
    min_score: float | None = None
    signed: bool = False
    random_walk: bool = False
    permitted: Array | None = None


def nothing_kept(state: IndexState, sparsity: Sparsity) -> int:
    """A method that keeps no more than the descriptors."""
    return 0


@dataclass(frozen=True, slots=True)
class Method:
    """One way to score the items of the database for a batch of queries.

    Attributes
    ----------
    score : callable
        Scores (n, m) for what a first stage found.
    rank : callable or None
        The best items of a batch, for a method that needs no scores of all others.
    steps : int or None
        Steps that it takes if nobody says otherwise; None: those that its accuracy takes.
    diffuses : bool
        Whether its scores come along the edges of the graph.
    filters : bool
        Whether its scores are a filter of the whole graph, and nothing else: what a change of the
        normalization only scales.
    exact : bool
        Whether its steps converge to the diffusion, so that an accuracy can be asked for.
    needs_eigenvectors, needs_columns, needs_groups : bool
        What its index must have.
    check : callable or None
        Raises an error if the index lacks what the method needs, before any work.
    kept_bytes : callable
        Bytes that it keeps beyond the descriptors, for a sparsity.
    uses_shortlist : bool
        Whether it cuts a graph of its own out for each query.
    uses_sparsity : bool
        Whether it drops entries of the eigenvectors.
    """

    name: str
    summary: str
    score: Callable[[IndexState, FirstStage, Request], Solution]
    rank: Callable[[IndexState, FirstStage, Request], Ranked] | None = None
    steps: int | None = 0
    diffuses: bool = True
    filters: bool = True
    exact: bool = True
    needs_eigenvectors: bool = False
    needs_columns: bool = False
    needs_groups: bool = False
    check: Callable[[IndexState, Request], None] | None = None
    kept_bytes: Callable[[IndexState, Sparsity], int] = nothing_kept
    uses_shortlist: bool = False
    uses_sparsity: bool = False
