"""How sure a figure is: intervals over queries, and paired comparisons of two rankings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from hybrid_gpu.evaluation.rankings import on_host
from hybrid_gpu.validation import check_count, check_number, refuse_masked

# Random numbers drawn at a time: what they take beside the values shall not matter.
_DRAWS_AT_ONCE = 1 << 20
# With fewer draws, the ends of an interval are a matter of chance.
_FEWEST_SAMPLES = 100
# Up to so many queries that differ, all 2^19 sign flips (half of them, by symmetry) are tried.
_MOST_EXACT = 20
# Values that differ by less are equal but for rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """A mean over queries, and where it may lie for other queries of the same kind.

    Attributes
    ----------
    mean : float
        The mean over the queries at hand.
    low, high : float
        Bounds that hold the true mean with a probability of about ``confidence``.
    confidence : float
        Such as 0.95.
    """

    mean: float
    low: float
    high: float
    confidence: float

    def __repr__(self) -> str:
        return f"Interval({_figure(self)})"


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Two rankings on the same queries, a against b.

    Attributes
    ----------
    difference : Interval
        Mean of a minus b, above 0 if a is better.
    wins, losses, ties : int
        Queries for which a is better, worse, and equal but for rounding.
    p_value : float
        How often a difference as large, in either direction, comes about if a and b are
        interchangeable: two-sided, by flipping the signs of the differences.
    """

    difference: Interval
    wins: int
    losses: int
    ties: int
    p_value: float

    def __repr__(self) -> str:
        return (
            f"Comparison(difference {_figure(self.difference, '+')}, {self.wins} wins, "
            f"{self.losses} losses, {self.ties} ties, p {self.p_value:.2g})"
        )


def _figure(interval: Interval, sign: str = "") -> str:
    mean, low, high = (
        format(value, f"{sign}.4f") for value in (interval.mean, interval.low, interval.high)
    )
    return f"{mean}, {100 * interval.confidence:g} % from {low} to {high}"


def bootstrap(
    values: Any, *, confidence: float = 0.95, samples: int = 2000, seed: int = 0
) -> Interval:
    """The mean over queries with its confidence interval.

    Queries are drawn again, with replacement. The bounds are quantiles of the means of such draws,
    corrected for bias and skewness (BCa; Efron, 1987): values of a measure are bounded and skewed,
    and plain quantiles miss the true mean on one side more often than on the other.

    Parameters
    ----------
    values : float array of shape (m,)
        A value for each query, from `per_query`; NaN is left out.
    confidence
        Between 0 and 1.
    samples
        How often all queries are drawn.
    seed
        The same seed gives the same interval.

    Returns
    -------
    Interval
        It tells of queries that could have been drawn in the place of these, from the same source.
        Where all values are equal it has no width, though others might differ: a success of 1 for
        each of ten queries does not prove that it is always 1.

    Raises
    ------
    ValueError
        If values are not (m,), infinite, or fewer than two queries have one.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> evaluation.bootstrap([0.5, 0.5, 0.5])
    Interval(0.5000, 95 % from 0.5000 to 0.5000)
    """
    numbers = _checked_values(values, "values")
    return _interval(_known(numbers), confidence, samples, seed)


def compare(
    values_a: Any,
    values_b: Any,
    *,
    confidence: float = 0.95,
    samples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Whether one ranking is better than another on the same queries.

    Parameters
    ----------
    values_a, values_b : float arrays of shape (m,)
        A value for each query, from `per_query` with the same measure and the same ground truth.
        Queries that are NaN, without a relevant item, are left out.
    confidence
        Of the interval of the mean difference, by `bootstrap`.
    samples
        How many draws of the bootstrap, and how many random flips for the p-value. It is exact
        where at most 20 queries differ; else the smallest that can come out is 1 / (samples + 1).
    seed
        The same seed gives the same comparison.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        If the lengths differ, a query is NaN on one side only, or fewer than two have values.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> evaluation.compare([1.0, 0.5, 1.0], [1.0, 0.5, 1.0])
    Comparison(difference +0.0000, 95 % from +0.0000 to +0.0000, 0 wins, 0 losses, 3 ties, p 1)
    """
    a, b = _checked_values(values_a, "values_a"), _checked_values(values_b, "values_b")
    if a.shape != b.shape:
        raise ValueError(
            f"values_a and values_b must be of the same queries; got {a.size} and {b.size} values."
        )
    apart = np.flatnonzero(np.isnan(a) != np.isnan(b))
    if apart.size:
        raise ValueError(
            f"values_a and values_b must be of the same queries and ground truth; query "
            f"{apart[0]} is NaN, without a relevant item, on one side only."
        )
    a, b = _known(a), _known(b)
    differences = a - b
    differences[np.abs(differences) <= _ROUNDING * np.maximum(np.abs(a), np.abs(b))] = 0
    return Comparison(
        difference=_interval(differences, confidence, samples, seed),
        wins=int(np.count_nonzero(differences > 0)),
        losses=int(np.count_nonzero(differences < 0)),
        ties=int(np.count_nonzero(differences == 0)),
        p_value=_sign_flip_p_value(differences, samples, seed),
    )


def _checked_values(values: Any, what: str) -> NDArray[np.float64]:
    refuse_masked(values, what, "numpy.nan")
    numbers = on_host(values, what)
    if numbers.ndim != 1 or numbers.dtype.kind not in "biuf":
        raise ValueError(
            f"{what} must be (m,) numbers, one for each query; got {numbers.dtype} of shape "
            f"{numbers.shape}. Take them from evaluation.per_query(measure, ...)."
        )
    if np.isinf(numbers).any():
        raise ValueError(f"{what} must be finite, or NaN for queries that do not count; got inf.")
    return numbers.astype(np.float64)


def _known(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    known = numbers[~np.isnan(numbers)]
    if known.size < 2:
        raise ValueError(
            f"at least two queries must have a value, to tell how values vary; got {known.size} of "
            f"{numbers.size}. Evaluate more queries."
        )
    return known


def _interval(values: NDArray[np.float64], confidence: float, samples: int, seed: int) -> Interval:
    """The mean of the values and its interval, by drawing queries again and again."""
    level = check_number(confidence, "confidence")
    if not 0 < level < 1:
        raise ValueError(f"confidence must lie between 0 and 1; got {level}. 0.95 is usual.")
    samples = check_count(samples, "samples", low=_FEWEST_SAMPLES)
    rng = np.random.default_rng(check_count(seed, "seed", low=0))
    mean = float(np.mean(values))
    if np.all(values == values[0]):
        return Interval(mean, mean, mean, level)
    rounds = _rounds(samples, values.size)
    means = np.concatenate(
        [np.mean(values[rng.integers(0, values.size, shape)], axis=1) for shape in rounds]
    )
    low, high = np.quantile(means, _corrected_levels(values, means, level)).tolist()
    return Interval(mean, low, high, level)


def _corrected_levels(
    values: NDArray[np.float64], means: NDArray[np.float64], confidence: float
) -> NDArray[np.float64]:
    """The quantiles of the bootstrap that bound the interval: BCa (Efron, 1987)."""
    mean, levels = np.mean(values), np.array([(1 - confidence) / 2, (1 + confidence) / 2])
    # Means of 0 and 1 often hit the mean itself: half of them count as below it.
    near = np.abs(means - mean) <= _ROUNDING * np.max(np.abs(values))
    below = np.count_nonzero((means < mean) & ~near) + np.count_nonzero(near) / 2
    # Few samples may all lie on one side, where the bias would be infinite.
    bias = ndtri(np.clip(below, 0.5, means.size - 0.5) / means.size)
    # As parts of the largest: the squares of tiny ones would vanish.
    deviations = (values - mean) / np.max(np.abs(values - mean))
    # The jackknife's estimate, which for a mean is the skewness of the values.
    acceleration = np.sum(deviations**3) / (6 * np.sum(deviations**2) ** 1.5)
    shifted = bias + ndtri(levels)
    # Beyond the pole of the correction, which only extreme confidence reaches, nothing is left out.
    slope = np.maximum(1 - acceleration * shifted, np.finfo(np.float64).tiny)
    with np.errstate(over="ignore"):
        return np.asarray(ndtr(bias + shifted / slope), np.float64)


def _sign_flip_p_value(differences: NDArray[np.float64], samples: int, seed: int) -> float:
    """How often flipped signs give a sum at least as far from 0."""
    moved = differences[differences != 0]  # a flip of 0 changes nothing
    if not moved.size:
        return 1.0
    # Sums that are equal but for rounding are as far from 0 as each other.
    bound = np.abs(np.sum(moved)) - _ROUNDING * np.sum(np.abs(moved))
    if moved.size <= _MOST_EXACT:
        sums = moved[:1]  # the first keeps its sign: the other half are the same sums, negated
        for amount in moved[1:]:
            sums = np.concatenate([sums + amount, sums - amount])
        return float(np.mean(np.abs(sums) >= bound))
    # Other random numbers than those of the interval.
    rng = np.random.default_rng([seed, 1])
    farther = 0
    for shape in _rounds(samples, moved.size):
        signs = rng.integers(0, 2, shape, dtype=np.int8) * 2.0 - 1
        farther += int(np.count_nonzero(np.abs(signs @ moved) >= bound))
    # The signs as they came are one of the samples: no p-value is 0 (Phipson and Smyth, 2010).
    return (farther + 1) / (samples + 1)


def _rounds(samples: int, m: int) -> Iterator[tuple[int, int]]:
    """Shapes that add up to ``samples`` draws of m queries, a bounded number at a time."""
    rows = max(1, _DRAWS_AT_ONCE // m)
    for start in range(0, samples, rows):
        yield min(rows, samples - start), m
