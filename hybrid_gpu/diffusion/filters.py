"""Transfer functions of graph filters: what diffusion does to each graph frequency.

A graph frequency is an eigenvalue of the normalized adjacency: 1 is the slowest, -1 the fastest. A
filter h turns an observation y into ``h(W) y``; the paper's is ``PageRank``, and its second theorem
holds for any other with a convergent series.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends import Array
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.validation import (
    check_alpha,
    check_count,
    check_number,
    check_positive,
    check_sequence,
    shown,
)

DEFAULT_ALPHA = 0.9
"""The restart parameter where none is given; ``PAPER`` has that of the paper, 0.99."""


class Filter(Protocol):
    """A function of graph frequency, on [-1, 1]."""

    @property
    def resolvent(self) -> float | None:
        """The a of ``h(W) = (1 - a) (I - a W)^-1``, which is solved; None: h is expanded."""

    def transfer(self, frequency: Array) -> Array:
        """Gain at each frequency; h(x) in the paper."""


@dataclass(frozen=True, slots=True)
class PageRank:
    """The filter of the paper: a random walk that restarts with probability ``1 - alpha``.

    ``x = (1 - alpha) (I - alpha W)^-1 y``. The closer ``alpha`` is to 1, the further scores spread;
    the paper takes 0.99.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> round(hg.PageRank(0.9).transfer(0.5), 4)
    0.1818
    """

    alpha: float = DEFAULT_ALPHA
    resolvent: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A plain float: NumPy's own would raise float32 scores to float64.
        object.__setattr__(self, "alpha", check_alpha(self.alpha))
        object.__setattr__(self, "resolvent", self.alpha)

    def transfer(self, frequency: Array) -> Array:
        """Gain at a graph frequency.

        Written h_alpha(x) in the paper, eq. (transfer): 1 at frequency 1, ``1 - alpha`` at 0.
        """
        return (1 - self.alpha) / (1 - self.alpha * frequency)

    def excess_transfer(self, frequency: Array) -> Array:
        """Gain above the floor ``1 - alpha``; g_alpha(x) in the paper, eq. (aux).

        Zero at frequency 0, so eigenpairs left out of the spectrum contribute nothing.
        """
        # Same value as transfer(x) - transfer(0), without the cancellation near 0.
        return self.alpha * frequency * self.transfer(frequency)


@dataclass(frozen=True, slots=True)
class HeatKernel:
    """Heat that spreads for a time: ``h(x) = exp(-time (1 - x))``, 1 at frequency 1.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> round(hg.HeatKernel(time=2.0).transfer(0.5), 4)
    0.3679
    """

    resolvent: ClassVar[None] = None
    time: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "time", check_positive(self.time, "time"))

    def transfer(self, frequency: Array) -> Array:
        """Gain at a graph frequency."""
        # A power of a constant is the one exponential that arrays of every library have.
        return math.e ** (self.time * (frequency - 1))


@dataclass(frozen=True, slots=True)
class Polynomial:
    """A walk of given weights: ``h(x) = c_0 + c_1 x + c_2 x^2 + ...``.

    Examples
    --------
    Half of the walk stays, half goes one edge:

    >>> import hybrid_gpu as hg
    >>> hg.Polynomial((0.5, 0.5)).transfer(-1.0)
    0.0
    """

    resolvent: ClassVar[None] = None
    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        given = check_sequence(self.coefficients, "coefficients", "Polynomial((0.5, 0.5))")
        checked = tuple(check_number(value, "coefficients") for value in given)
        if not checked:
            raise ValueError("coefficients must hold at least one number; got none.")
        object.__setattr__(self, "coefficients", checked)

    def transfer(self, frequency: Array) -> Array:
        """Gain at a graph frequency."""
        gain = 0 * frequency
        for coefficient in reversed(self.coefficients):
            gain = gain * frequency + coefficient
        return gain


@dataclass(frozen=True, slots=True)
class Custom:
    """Any function that takes NumPy arrays of frequencies in [-1, 1] to gains."""

    resolvent: ClassVar[None] = None
    function: Callable[[HostArray], HostArray]

    def transfer(self, frequency: Array) -> Array:
        """Gain at a graph frequency."""
        return self.function(frequency)


def as_filter(given: Any) -> Filter:
    """A filter as it is, or a callable made into one.

    Raises
    ------
    TypeError, ValueError
        If it is neither, or not finite on [-1, 1].
    """
    if isinstance(given, type):
        raise TypeError(f"filter must be an object, not a class; pass {given.__name__}().")
    if hasattr(given, "transfer"):
        chosen: Filter = given if hasattr(given, "resolvent") else Custom(given.transfer)
    elif callable(given):
        chosen = Custom(given)
    else:
        raise TypeError(
            f"filter must be PageRank, HeatKernel, Polynomial or a function of frequencies; got "
            f"{given!r}."
        )
    if not np.all(np.isfinite(gains(chosen, np.linspace(-1, 1, 65)))):
        raise ValueError("filter must be finite on [-1, 1]; got NaN or infinity.")
    return chosen


def gains(filter: Filter, frequencies: Any) -> NDArray[np.float64]:
    """The transfer function on the host, in float64."""
    points = np.asarray(frequencies, dtype=np.float64)
    found = np.asarray(filter.transfer(points))
    if found.dtype.kind not in "fiub" or found.shape not in ((), points.shape):
        raise ValueError(
            f"filter must map an array of frequencies to as many real numbers; got {found.dtype} "
            f"of shape {found.shape} for shape {points.shape}."
        )
    return found.astype(np.float64) + np.zeros_like(points)


def condition_number(alpha: float, *, largest: float = 1.0, smallest: float = -1.0) -> float:
    """Condition number of the system that conjugate gradients solve; eq. (cond-r) of the paper.

    Parameters
    ----------
    alpha
        Restart parameter of diffusion.
    largest
        The largest eigenvalue of the adjacency that is left after the basis took its own out: 1
        for plain diffusion, the (r+1)-th for a basis of rank r.
    smallest
        The smallest eigenvalue of the adjacency. It is close to -1 on real graphs, which is also
        the safe choice.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> round(hg.condition_number(0.99)), round(hg.condition_number(0.99, largest=0.9))
    (199, 18)
    """
    alpha = check_alpha(alpha)
    largest, smallest = check_number(largest, "largest"), check_number(smallest, "smallest")
    if not -1 <= smallest <= largest <= 1:
        raise ValueError(
            f"eigenvalues must satisfy -1 <= smallest <= largest <= 1; got smallest {smallest}, "
            f"largest {largest}."
        )
    return (1 - alpha * smallest) / (1 - alpha * largest)


def error_bound(condition: float, steps: int) -> float:
    """Upper bound of the relative error after some steps; phi_i in eq. (bound) of the paper.

    The error is measured in the norm of the system's matrix, relative to that of a start at zero.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> round(hg.error_bound(199, steps=20), 4), round(hg.error_bound(18, steps=20), 4)
    (0.1168, 0.0001)
    """
    condition = check_number(condition, "condition")
    if condition < 1:
        raise ValueError(f"condition must be at least 1; got {condition}.")
    # Beyond this, the bound is 0 or 2 for every condition that a float can be.
    steps = min(check_count(steps, "steps", low=0), 10**300)
    root = condition**0.5
    return float(2 * ((root - 1) / (root + 1)) ** steps)


def error_bounds(
    eigenvalues: Any, *, alpha: float = 0.99, steps: Sequence[int] = tuple(range(21))
) -> NDArray[np.float64]:
    """The bound for every rank and number of steps: the contour plot of the paper's Figure 1.

    Parameters
    ----------
    eigenvalues : float array of shape (r,)
        Leading eigenvalues of the adjacency, descending.
    steps
        Numbers of steps.

    Returns
    -------
    float64 array of shape (r, len(steps))
        Row i is for a basis of the first i eigenvectors.

    Examples
    --------
    >>> import hybrid_gpu as hg
    >>> print(hg.error_bounds([1.0, 0.9], alpha=0.99, steps=(5, 10)).round(3))
    [[0.983 0.483]
     [0.184 0.017]]
    """
    # A computed eigenvalue may exceed 1 by rounding.
    try:
        values = np.minimum(np.asarray(eigenvalues, dtype=np.float64), 1.0)
    except (TypeError, ValueError, OverflowError) as fault:
        raise TypeError(f"eigenvalues must be numbers; got {shown(eigenvalues)}.") from fault
    if values.ndim != 1:
        raise ValueError(f"eigenvalues must have shape (r,); got shape {values.shape}.")
    steps = check_sequence(steps, "steps", "range(21)")
    conditions = [condition_number(alpha, largest=float(value)) for value in values]
    return np.array(
        [[error_bound(condition, count) for count in steps] for condition in conditions]
    )
