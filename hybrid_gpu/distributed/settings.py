"""The options of a search that travel: checked where they are typed, and told in a manifest."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from hybrid_gpu.backends.numpy_backend import host_copy
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.choices import Accuracy, MethodName, MetricName
from hybrid_gpu.diffusion.filters import Filter, PageRank, as_filter
from hybrid_gpu.diffusion.solution import check_stopping
from hybrid_gpu.diffusion.sparsity import PAPER_SPARSITY, Sparsity
from hybrid_gpu.ranking.methods import METHODS
from hybrid_gpu.ranking.query_expansion import Expansion
from hybrid_gpu.validation import (
    METRICS,
    check_choice,
    check_count,
    check_flag,
    check_kind,
    check_number,
    shown,
)

# Options that only one of the two kinds of queries has.
_OF_DESCRIPTORS, _OF_LISTS = "shortlist", "metric"


@dataclass(frozen=True, slots=True, eq=False)
class SearchSettings:
    """The keywords of ``index.search`` and ``index.rerank``, as they were typed and checked.

    All that can be checked without an index is checked when they are made.
    """

    k: int = 100
    method: MethodName = "auto"
    accuracy: Accuracy | None = None
    steps: int | None = None
    rtol: float | None = None
    alpha: float | None = None
    filter: Filter | Callable[..., Any] | None = None
    degree_correction: bool = False
    query_neighbors: int | None = 5
    shortlist: int | None = None
    sparsity: float | Sparsity = PAPER_SPARSITY
    expansion: Expansion | None = None
    allowed: Any = None
    exclude: Any = None
    min_score: float | None = None
    batch: int | None = None
    metric: MetricName = "cosine"

    def __post_init__(self) -> None:
        check_choice(self.method, "method", ("auto", *METHODS))
        check_choice(self.metric, "metric", tuple(METRICS))
        check_count(self.k, "k")
        check_flag(self.degree_correction, "degree_correction")
        for name in ("query_neighbors", "shortlist", "batch"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name)
        if self.min_score is not None:
            check_number(self.min_score, "min_score")
        if self.expansion is not None:
            advice = "Pass Expansion(neighbors=10, alpha=3)."
            check_kind(self.expansion, "expansion", Expansion, advice)
        if not isinstance(self.sparsity, Sparsity):
            Sparsity(self.sparsity)
        self._check_solver()
        for name in ("allowed", "exclude"):
            object.__setattr__(self, name, _for_all_queries(getattr(self, name), name))

    def _check_solver(self) -> None:
        """The filter, and when the solver stops."""
        if self.alpha is not None and self.filter is not None:
            raise ValueError(
                f"alpha and filter exclude each other; got alpha={self.alpha} and "
                f"filter={self.filter!r}. alpha=0.9 is filter=PageRank(0.9)."
            )
        chosen: Filter = PageRank(0.5 if self.alpha is None else self.alpha)
        if self.filter is not None:
            chosen = as_filter(self.filter)
            _check_travels(self.filter)
        check_stopping(chosen, steps=self.steps, rtol=self.rtol, accuracy=self.accuracy)

    def keywords(self, *, lists: bool) -> dict[str, Any]:
        """The keywords of ``index.rerank``, for lists, or of ``index.search``."""
        left_out = _OF_DESCRIPTORS if lists else _OF_LISTS
        names = (field.name for field in fields(self))
        return {name: getattr(self, name) for name in names if name != left_out}

    def described(self) -> dict[str, Any]:
        """What they are, in words and numbers of JSON: two that differ are told apart."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        # Two ways to say the same.
        values["expansion"] = self.expansion or Expansion()
        if not isinstance(self.sparsity, Sparsity):
            values["sparsity"] = Sparsity(self.sparsity)
        return {name: _described(value) for name, value in values.items()}


def _check_travels(filter: Any) -> None:
    try:
        pickle.dumps(filter)
    except Exception as fault:
        raise TypeError(
            f"filter must reach other processes, and {shown(filter)} cannot ({fault}). Pass "
            "PageRank, HeatKernel or Polynomial, or a function that a module defines by name."
        ) from fault


def _for_all_queries(given: Any, what: str) -> HostArray | None:
    """Items for all queries as an array of their own; rows for single queries are refused."""
    if given is None:
        return None
    if isinstance(given, (set, frozenset)):
        given = sorted(given)
    if isinstance(given, (str, bytes, dict)) or not hasattr(given, "__iter__"):
        raise TypeError(f"{what} must be a mask or a list of items; got {shown(given)}.")
    plain = not hasattr(given, "dtype") and not hasattr(given, "__dlpack__")
    try:
        array = np.asarray(list(given) if plain else host_copy(given))
    except ValueError:
        array = np.empty((0, 0))  # lists of several lengths: a list for each query
    if array.ndim != 1:
        raise ValueError(
            f"{what} must be for all queries, a mask (n,) or a list of items: nobody knows which "
            f"queries a part of a query set holds. Got {shown(given)}."
        )
    if array.dtype.kind == "U":
        return array.astype(object)
    return np.array(array)


def _described(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        content = repr(value.tolist()).encode()
        return f"{value.dtype} {value.shape} {hashlib.sha256(content).hexdigest()[:16]}"
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    kind = type(value)
    if not kind.__module__.startswith("hybrid_gpu."):
        # A filter of the user's, whose repr may hide what it holds, or tell where in memory it is.
        told = hashlib.sha256(pickle.dumps(value)).hexdigest()[:16]
        return f"{kind.__module__}.{kind.__qualname__} {told}"
    return repr(value)
