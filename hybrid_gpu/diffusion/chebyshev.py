"""Any filter as a Chebyshev series, and the series applied to a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.fft
from numpy.typing import NDArray

from hybrid_gpu.backends import Array, Backend, SparseMatrix
from hybrid_gpu.diffusion.filters import Filter, gains
from hybrid_gpu.diffusion.solution import Solution, Stopping

# A function that still has something to say at this degree is not smooth enough to expand.
_SMALLEST_SERIES, _DEGREE_AT_MOST = 64, 1024
# Points at which a series is compared with its function, both ends among them.
_GRID = 20_001
# Roundings that a term of a series leaves behind, with room for long rows.
_ROUNDINGS_PER_TERM = 8


@dataclass(frozen=True, slots=True, eq=False)
class ChebyshevSeries:
    """A filter as a short Chebyshev series on an interval of frequencies.

    Attributes
    ----------
    coefficients : float64 host array of shape (degree + 1,)
    low, high : float
        The interval.
    truncation : float
        Bound on the error of the series on the interval, and so on that of a filtered signal
        relative to the signal; as far as 20,001 points of the interval tell.
    """

    coefficients: NDArray[np.float64]
    low: float
    high: float
    truncation: float

    @property
    def degree(self) -> int:
        return int(self.coefficients.size) - 1

    @property
    def size(self) -> float:
        """The most that the terms can add up to, anywhere on the interval."""
        return float(np.sum(np.abs(self.coefficients)))


def chebyshev_series(
    filter: Filter,
    *,
    low: float = -1.0,
    high: float = 1.0,
    degree: int | None = None,
    tolerance: float = 1e-6,
    most: int | None = None,
) -> ChebyshevSeries:
    """The Chebyshev series of a filter on [low, high].

    Parameters
    ----------
    degree
        Its degree, 1024 at most; None: the smallest whose truncation error is within ``tolerance``.
    most
        With a tolerance: the largest degree, whether that is enough or not.

    Raises
    ------
    ValueError
        If no degree within reason meets the tolerance: the filter has a jump or a pole.
    """
    # Far finer than any series that is tried: what it misses between two points is not seen, as
    # with any function that can only be asked.
    center, radius = (low + high) / 2, max((high - low) / 2, 1e-12)
    grid = center + radius * np.cos(np.linspace(0, np.pi, _GRID))
    wanted = gains(filter, grid)
    size = _SMALLEST_SERIES
    while True:
        points = np.cos(np.pi * (np.arange(size + 1) + 0.5) / (size + 1))
        # Interpolation in the Chebyshev points is a cosine transform.
        series = scipy.fft.dct(gains(filter, center + radius * points)) / (size + 1)
        series[0] /= 2
        # What the whole series misses: a function that jumps or spikes is not told by few points.
        fitted = np.polynomial.chebyshev.chebval((grid - center) / radius, series)
        missed = float(np.max(np.abs(fitted - wanted)))
        largest = max(float(np.max(np.abs(wanted))), 1e-300)
        if missed <= 1e-13 * largest or size >= _DEGREE_AT_MOST:
            break
        size *= 2
    tails = missed + np.append(np.cumsum(np.abs(series)[::-1])[::-1][1:], 0.0)
    if degree is None:
        fine = np.flatnonzero(tails <= max(tolerance, 2e-13 * largest))
        if fine.size == 0 and most is None:
            raise ValueError(
                f"filter needs a degree above {size} to reach {tolerance:g}: it is not smooth "
                "enough. Pass steps= to choose the degree, or a smoother function."
            )
        degree = int(fine[0]) if fine.size else tails.size
        degree = degree if most is None else min(degree, most)
    kept = np.zeros(min(degree, _DEGREE_AT_MOST) + 1)
    kept[: series.size] = series[: kept.size]
    return ChebyshevSeries(kept, low, high, float(tails[min(degree, tails.size - 1)]))


def filtered_by_series(
    adjacency: SparseMatrix, observation: Array, filter: Filter, stop: Stopping, backend: Backend
) -> Solution:
    """``h(W) y`` by a Chebyshev series, with a bound on its error."""

    def step(signal: Array) -> Array:
        return backend.spmm(adjacency, signal)

    series = series_for(filter, stop)
    values = apply_series(step, observation, series)
    epsilon = float(backend.xp.finfo(observation.dtype).eps)
    # Every term is rounded, and the recurrence hands its errors on.
    rounding = _ROUNDINGS_PER_TERM * epsilon * (series.degree + 1) * series.size
    reached = stop.tolerance is None or series.truncation <= stop.tolerance
    return Solution(values, None, series.degree, reached, series.truncation + rounding)


def series_for(filter: Filter, stop: Stopping) -> ChebyshevSeries:
    """The series of as many terms as are asked for: a number, or what a tolerance takes."""
    if stop.tolerance is None:
        return chebyshev_series(filter, degree=stop.steps, tolerance=stop.truncation)
    return chebyshev_series(filter, tolerance=stop.tolerance, most=stop.steps)


def apply_series(step: Callable[[Array], Array], signal: Array, series: ChebyshevSeries) -> Array:
    """The series of the step's matrix, times a signal, by the three-term recurrence."""
    center, radius = (series.low + series.high) / 2, (series.high - series.low) / 2
    weights = series.coefficients.tolist()
    before, now = signal, (step(signal) - center * signal) / radius
    total = weights[0] * before
    for number, weight in enumerate(weights[1:], start=1):
        total = total + weight * now
        if number < series.degree:
            before, now = now, (2 / radius) * (step(now) - center * now) - before
    return total
