"""From the values of single queries to their mean, and back."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.validation import shown

Arguments = ParamSpec("Arguments")
# What each measure averages; filled by `averaged`.
_VALUES: dict[Any, Callable[..., NDArray[np.float64]]] = {}


def averaged(values: Callable[Arguments, NDArray[np.float64]]) -> Callable[Arguments, float]:
    """The measure that averages what a function gives for every query (decorator).

    The values are NaN for queries without a relevant item: the mean leaves them out.
    """

    @functools.wraps(values)
    def measure(*args: Arguments.args, **kwargs: Arguments.kwargs) -> float:
        return mean_of(values(*args, **kwargs))

    # help() shall show what a call of the measure returns, not what it is made of.
    measure.__annotations__ = {**values.__annotations__, "return": "float"}
    signature = inspect.signature(values).replace(return_annotation="float")
    measure.__signature__ = signature  # type: ignore[attr-defined]
    _VALUES[measure] = values
    return measure


def per_query(
    measure: Callable[Arguments, float], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> NDArray[np.float64]:
    """The value of a measure for every query: what `bootstrap` and `compare` take.

    Parameters
    ----------
    measure
        A measure of this package that is a mean over queries, such as `ndcg` or `recall`.
    *args, **kwargs
        What the measure takes.

    Returns
    -------
    float64 array of shape (m,)
        NaN for queries without a relevant item. The mean of the others is the measure.

    Raises
    ------
    ValueError
        If the measure is none, or does not like its arguments.

    Examples
    --------
    >>> from hybrid_gpu import evaluation
    >>> ids, labels, query_labels = [[0, 1], [0, 1]], ["cat", "dog"], ["cat", "dog"]
    >>> evaluation.per_query(evaluation.mean_reciprocal_rank, ids, labels, query_labels).tolist()
    [1.0, 0.5]
    """
    known: list[Any] = [mean for mean in _VALUES if mean is measure]
    if not known:
        names = ", ".join(sorted(mean.__name__ for mean in _VALUES))
        raise ValueError(
            f"measure must be a mean over queries: {names}; got "
            f"{getattr(measure, '__name__', shown(measure))}. For a curve, take success at each "
            "depth; revisited_protocol has average_precisions in its scores."
        )
    return _VALUES[known[0]](*args, **kwargs)


def mean_of(values: NDArray[np.float64]) -> float:
    """The mean over queries that have a value; an error if there is none to average."""
    known = values[~np.isnan(values)]
    if not known.size:
        raise ValueError("no query has a relevant item: there is nothing to average.")
    return float(np.mean(known))
