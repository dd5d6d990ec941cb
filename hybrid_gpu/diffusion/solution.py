"""What is asked of a solver, and what it gives: when to stop, and the scores it stopped at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hybrid_gpu.backends import Array
from hybrid_gpu.diffusion.filters import Filter
from hybrid_gpu.errors import ConvergenceError
from hybrid_gpu.validation import check_count, check_positive

RANKING_ACCURACY = 3e-3
"""The relative residual below which rankings hardly change."""

# A truncation error that no ranking notices.
_TRUNCATION = 1e-5
# What a user may ask for: far beyond what rounding leaves anything to do for.
_STEPS_ALLOWED = 100_000
# The smallest 1 - alpha: beyond it, rounded weights may have an eigenvalue above 1 / alpha.
_LEAST_RESTART = {"float32": 1e-6, "float64": 1e-13}


@dataclass(frozen=True, slots=True)
class Stopping:
    """When a solver stops.

    Attributes
    ----------
    steps : int or None
        Steps: exactly so many, or with a tolerance at most. None: what the tolerance takes.
    tolerance : float or None
        The relative residual at which a column stops.
    insists : bool
        Whether to miss the tolerance is an error.
    best : int or None
        So many of the best items shall be the right ones: a column goes on beyond the tolerance
        until its residual is small beside the last of their scores, or at the level of rounding.
    """

    steps: int | None
    tolerance: float | None
    insists: bool = False
    best: int | None = None

    @property
    def at_ranking(self) -> bool:
        """Whether it stops when the ranking is right, and not before."""
        return self.best is not None and self.steps is None

    @property
    def truncation(self) -> float:
        """The truncation error that an expansion may have."""
        return _TRUNCATION if self.tolerance is None else self.tolerance


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """Diffused scores of m observations.

    Attributes
    ----------
    values : float array of shape (n, m)
        One column per observation; x in the paper.
    residuals : float64 array of shape (m,), or None
        Norm of the residual relative to the observation's, computed anew from the values; None
        where no system was solved.
    steps : int
        Steps taken, or degree of the expansion.
    converged : bool
        Whether every column reached the tolerance that was asked for; True if none was.
    scale : float64 array of shape (m, 1), or None
        What the values of each column have to be multiplied with; None: nothing.
    truncation : float or None
        Bound on the error of an expansion, rounding included, relative to the observation; None
        where none was used, or none is known.
    filled : int
        So many scores of each column, or more, are known to be positive, and none to be NaN.
    resolved : bool
        Whether what is left is small beside the last of the best scores that were asked for; True
        if none were.
    """

    values: Array
    residuals: Array | None
    steps: int
    converged: bool
    truncation: float | None = None
    scale: Array | None = None
    filled: int = 0
    resolved: bool = True

    def __repr__(self) -> str:
        n, m = self.values.shape
        return f"Solution({m} columns of {n} items, {self.steps} steps)"


def check_stopping(
    filter: Filter,
    *,
    steps: int | None,
    rtol: float | None,
    accuracy: str | float | None,
    default: int | None = None,
    best: int | None = None,
) -> Stopping:
    """When to stop, from what a user says.

    If he says nothing: after ``default`` steps, or at the accuracy of a ranking of the ``best``
    items if there is none.
    """
    if rtol is not None and accuracy is not None:
        raise ValueError(
            f"rtol and accuracy exclude each other; got rtol={rtol} and accuracy={accuracy!r}. "
            "Both are relative residuals: rtol raises an error if it is missed, accuracy does not."
        )
    if steps is not None:
        steps = check_count(steps, "steps", low=0, high=_STEPS_ALLOWED)
    if rtol is not None:
        return Stopping(steps, _check_residual(rtol, "rtol"), insists=True)
    solves = filter.resolvent is not None
    if accuracy is None and (steps is not None or (solves and default is not None)):
        return Stopping(default if steps is None else steps, None)
    if accuracy is None or (isinstance(accuracy, str) and accuracy == "ranking"):
        if not solves:
            return Stopping(steps, _TRUNCATION)
        return Stopping(steps, RANKING_ACCURACY, best=best)
    if isinstance(accuracy, str):
        raise ValueError(
            f"accuracy must be 'ranking' or a relative residual such as 1e-3; got {accuracy!r}."
        )
    return Stopping(steps, _check_residual(accuracy, "accuracy"))


def _check_residual(value: Any, what: str) -> float:
    residual = check_positive(value, what)
    if residual > 1:
        raise ValueError(
            f"{what} must be at most 1, the relative residual of scores of zero; got {residual}. "
            "1e-3 is precise enough for rankings."
        )
    return residual


def check_alpha_resolved(filter: Filter, dtype: str) -> None:
    """Refuse a restart so rare that the precision cannot tell it from none."""
    alpha, least = filter.resolvent, _LEAST_RESTART[dtype]
    if alpha is not None and 1 - alpha < least:
        advice = " Build the index with dtype='float64'." if dtype == "float32" else ""
        raise ValueError(
            f"alpha must be at most {1 - least:.15g} in {dtype}, whose rounding hides a smaller "
            f"1 - alpha; got {alpha!r}.{advice}"
        )


def not_converged(steps: int, rtol: float | None, *, result: object) -> ConvergenceError:
    """The error for a solution that missed its tolerance after so many steps."""
    return ConvergenceError(
        f"the relative residual did not reach rtol={rtol} in {steps} steps. Allow more "
        "steps, ask for a larger rtol, or build the index with dtype='float64' if rtol is below "
        "1e-4. With accuracy= in the place of rtol=, a miss is reported and no error.",
        result=result,
    )
