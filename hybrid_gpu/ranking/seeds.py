"""Sets of items as queries: what a user names, each with a weight, for every query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.numpy_backend import host_copy
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.validation import dtype_name, is_bool, shown

_EXAMPLE = "Pass a list for each query, [[3, 5], [8]], or a dict, [{3: 1.0, 5: -0.5}, {8: 1.0}]."


@dataclass(frozen=True, slots=True, eq=False)
class Seeds:
    """Weighted items of m queries, on the host.

    Attributes
    ----------
    ids : int64 array of shape (m, q)
        The user's ids; -1 for none.
    weights : float64 array of shape (m, q)
        Their weights; 0 beside -1. Negative ones push scores down.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.float64]

    @property
    def signed(self) -> bool:
        """Whether a weight is negative."""
        return bool(np.any(self.weights < 0))


def seeds_of(state: IndexState, ids: Any, weights: Any) -> Seeds | None:
    """The sets of items that a user names; None if it is an item for each query.

    Raises
    ------
    ValueError, TypeError
        For items that the index does not have, weights that are not finite or do not fit the items,
        and queries without any item or weight.
    """
    rows = _rows(ids)
    if rows is None:
        if weights is not None:
            raise ValueError(f"weights go with lists of items; got one item a query. {_EXAMPLE}")
        return None
    dicts = [isinstance(row, Mapping) for row in rows]
    if any(dicts):
        # A list beside a dict would lose the weights of one of them.
        if not all(dicts):
            raise TypeError(f"ids must be lists, or dicts of weights; got both. {_EXAMPLE}")
        if weights is not None:
            raise ValueError("weights stand in the dicts already; leave weights out.")
        rows, weights = [list(row) for row in rows], [list(row.values()) for row in rows]
    lengths = np.array([len(row) for row in rows])
    place = np.arange(max(1, lengths.max()))[None, :] < lengths[:, None]
    items, values = np.full(place.shape, -1), np.zeros(place.shape)
    items[place] = _items(state, [one for row in rows for one in row])
    values[place] = (
        1 if weights is None else _weights(weights, lengths, dtype_name(state.graph.degrees.dtype))
    )
    values[items < 0] = 0
    for query, row in enumerate(values):
        if not np.any(row):
            raise ValueError(
                f"ids must name an item of some weight for each query; {query} has none."
            )
    return Seeds(items, values)


def _rows(ids: Any) -> list[Any] | None:
    """The set of each query; None for anything else."""
    # Sparse and masked arrays are refused by whoever takes one item a query.
    if hasattr(ids, "toarray") or isinstance(ids, np.ma.MaskedArray):
        return None
    if hasattr(ids, "dtype") or hasattr(ids, "__dlpack__"):
        # Some speak DLPack and nothing else: their shape is known when they are here.
        array = np.asarray(host_copy(ids))
        return None if array.ndim != 2 or array.size == 0 else list(array.tolist())
    if isinstance(ids, (str, bytes, Mapping)) or not isinstance(ids, Iterable):
        return None
    rows = list(ids)
    grouped = [isinstance(row, Iterable) and not isinstance(row, (str, bytes)) for row in rows]
    if not any(grouped):
        return None
    if not all(grouped):
        raise TypeError(f"ids must be items, or lists of items; got both. {_EXAMPLE}")
    return [row if isinstance(row, Mapping) else list(row) for row in rows]


def _items(state: IndexState, flat: list[Any]) -> NDArray[np.int64]:
    """The ids of items; -1 for none."""
    if state.keys is not None:
        return state.keys.ids_of(flat, "ids", gaps=True)
    array = np.asarray(flat)
    if array.size == 0:
        return np.empty(0, np.int64)
    # NumPy takes True among integers for a 1.
    if array.dtype.kind not in "iu" or array.ndim != 1 or any(map(is_bool, flat)):
        raise TypeError(f"ids must be lists of integers; got {shown(flat)}. {_EXAMPLE}")
    low, high = int(array.min()), int(array.max())
    if low < -1 or high >= state.n:
        raise ValueError(
            f"ids must lie in [0, {state.n - 1}], or be -1 for none; got values from {low} to "
            f"{high}."
        )
    return array.astype(np.int64)


def _weights(weights: Any, lengths: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """A finite number for each item, of all queries in a row."""
    if hasattr(weights, "dtype") or hasattr(weights, "__dlpack__"):
        weights = np.asarray(host_copy(weights)).tolist()
    given = list(weights) if isinstance(weights, Iterable) else []
    # Iterating a dict gives its keys, and a set has no order.
    unfit = (str, bytes, Mapping, Set)
    listed = all(isinstance(row, Iterable) and not isinstance(row, unfit) for row in given)
    if isinstance(weights, unfit) or len(given) != len(lengths) or not listed:
        raise ValueError(f"weights must be a list for each query, as ids are. {_EXAMPLE}")
    given = [list(row) for row in given]
    if [len(row) for row in given] != lengths.tolist():
        raise ValueError("weights must be as many for each query as it has ids.")
    values = np.array([one for row in given for one in row])
    largest = float(np.finfo(dtype).max)
    if values.dtype.kind not in "fiu" or not np.all(np.abs(values.astype(np.float64)) <= largest):
        raise ValueError(f"weights must be finite numbers in {dtype}; got {shown(values)}.")
    return values.astype(np.float64)
