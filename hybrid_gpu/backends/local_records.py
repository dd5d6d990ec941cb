"""What a local search is given and what it gives: records that every backend knows."""

from __future__ import annotations

from dataclasses import dataclass

from hybrid_gpu.backends.protocol import Array, CoarseInverse, SparseMatrix


@dataclass(frozen=True, slots=True, eq=False)
class LocalProblem:
    """A graph, and groups of its items with a coarse model of diffusion on them.

    Attributes
    ----------
    adjacency : sparse matrix of shape (n, n)
        W.
    spread : sparse matrix of shape (n, 2 r)
        Z and ``W Z`` side by side: in each row the item's own group first, if it has one.
    inverse : CoarseInverse
        From what arrives in the groups to what stays there.
    roots : float array of shape (n,)
        Roots of the degrees, over their mean: below 1 for items that little arrives at.
    order : int64 array of shape (n,)
        The user's ids: ties go to the lower one.
    alpha : float
    """

    adjacency: SparseMatrix
    spread: SparseMatrix
    inverse: CoarseInverse
    roots: Array
    order: Array
    alpha: float


@dataclass(frozen=True, slots=True)
class LocalEffort:
    """How exact a local search shall be, and how far it may go.

    Attributes
    ----------
    tolerance : float
        Residual of the system on the visited items: relative to the observation, or to
        the last score watched times the root of their number, where that is less.
    push : float
        Residuals above this part of the largest observation (times the item's root) are pushed on.
    growth : float
        Growth of the visited items in a round: so many times their number join, those with the best
        predicted scores.
    drift : float
        How far scores around the last one watched may have moved against each other in the last
        round, if none of the best changed: a standard deviation, as a part of that score.
    calm : float
        The same, if no more than ``changes`` of the best changed, or more than ``spare`` of the
        best k may be wrong: the scores at the ranks ``k - spare`` and ``k + spare + 1`` are nearer
        than ``gap`` times the drift.
    gap : float
    spare : int
        How many of the best k may be wrong; below k.
    changes : int
    few : int
        Changes among the best that count as none: about as many will still come.
    watched : int
        How many of the best items the rule watches.
    fewest : int
        Items to visit before the rule may be met, where there are so many; not below ``watched``.
    steps, rounds : int
        Steps of a round, and rounds, at most.
    room : int
        Items to visit or to see at most, those beside the visited ones included.
    rooted : bool
        Whether items rank by their scores times their roots, which are then the scores.
    """

    tolerance: float
    push: float
    growth: float
    drift: float
    calm: float
    gap: float
    spare: int
    changes: int
    few: int
    watched: int
    fewest: int
    steps: int
    rounds: int
    room: int
    rooted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class LocalAnswer:
    """The best items of m queries, and how far each query had to go.

    Attributes
    ----------
    places : int64 array of shape (m, k)
        The best items in order; -1 beyond those that diffusion reaches.
    scores : float array of shape (m, k)
        Their scores; 0 beside -1.
    found : int64 array of shape (m,)
        How many of them there are.
    settled : bool array of shape (m,)
        Whether the rule was met.
    rounds, visited, steps : int64 arrays of shape (m,)
        Rounds, visited items, and steps of conjugate gradients in all rounds.
    residuals : float64 array of shape (m,)
        Relative residuals of the last systems.
    """

    places: Array
    scores: Array
    found: Array
    settled: Array
    rounds: Array
    visited: Array
    steps: Array
    residuals: Array
