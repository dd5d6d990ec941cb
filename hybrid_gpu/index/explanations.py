"""The record of why an item is ranked where it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hybrid_gpu.validation import shown


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """An item that diffusion started from.

    Attributes
    ----------
    id : int
    key : int or str
        The user's own name of it; the id if the index has no keys.
    similarity : float
        Of the query and the item; its own weight where no similarity is known.
    weight : float
        Its weight in the observation: the similarity to the power of ``index.gamma``.
    contribution, share : float
        What came from it, in units of the score, and as a part of the score.
    """

    id: int
    key: Any
    similarity: float
    weight: float
    contribution: float
    share: float

    def __repr__(self) -> str:
        return f"Hit({self.key!r}, {100 * self.share:.1f} % of the score)"


@dataclass(frozen=True, slots=True, eq=False)
class GraphPath:
    """A chain of edges from a hit to the item, and what came along it.

    Attributes
    ----------
    ids : tuple of int
        The items on it: the hit first, the item last. One item if it is a hit itself.
    keys : tuple
        The user's own names of them; the ids if the index has no keys.
    weights : tuple of float
        The weight of each edge in the normalized graph: what a step along it passes on.
    affinities : tuple of float
        The weight of each edge before that: the similarity to the power of ``index.gamma``, or
        what the user's own graph says.
    contribution, share : float
        ``(1 - alpha) * weight of the hit * product of alpha * weights``, and its part of the score.
        Longer walks that turn back on the way are not in it.
    """

    ids: tuple[int, ...]
    keys: tuple[Any, ...]
    weights: tuple[float, ...]
    affinities: tuple[float, ...]
    contribution: float
    share: float

    def __repr__(self) -> str:
        return f"GraphPath({_drawn(self.keys)}, {100 * self.share:.1f} % of the score)"


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """Why an item is ranked where it is.

    Attributes
    ----------
    id : int
        The item.
    key : int or str
        The user's own name of it; the id if the index has no keys.
    similarity : float or None
        Of the query and the item; None if it is not known.
    plain_rank : int or None
        Its place by similarity alone, from 1; None if it has none.
    score : float
        What diffusion gives it: the sum of ``contribution`` over the hits.
    rank : int or None
        Its place by diffusion, from 1, items that diffusion does not reach by their similarity;
        None if nothing is known of it.
    reached : bool
        Whether edges lead from a hit to the item.
    hits : tuple of Hit
        What diffusion started from, in the order of the first stage.
    paths : tuple of GraphPath
        The paths that carried most of the score, each from another hit, the best first.
    alpha : float
    error : float
        A bound on the error of the score: the solver stops at a residual.
    notes : tuple of str
        What a user may want to know: that the item is not reached, that the search for paths was
        cut, that the score is small beside its error.
    """

    id: int
    key: Any
    similarity: float | None
    plain_rank: int | None
    score: float
    rank: int | None
    reached: bool
    hits: tuple[Hit, ...]
    paths: tuple[GraphPath, ...]
    alpha: float
    error: float
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        ranks = f"{self.rank or 'no rank'} by diffusion, {self.plain_rank or 'none'} by similarity"
        why = "no path carried anything" if self.reached else "not reached by diffusion"
        if self.paths:
            best = self.paths[0]
            why = f"{100 * best.share:.0f} % of its score along {_drawn(best.keys)}"
        return f"Explanation({self.key!r}: {ranks}; {why})"


def _drawn(keys: Sequence[Any]) -> str:
    return " → ".join(shown(key) for key in keys)
