"""Which items may be in a ranking: what is allowed and what is excluded, for all queries or each.

Diffusion runs on the whole graph all the same: limits hold for what is returned, not for the ways
that scores take.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends import Array
from hybrid_gpu.backends.numpy_backend import host_copy
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.ranking.state import IndexState
from hybrid_gpu.validation import is_bool, refuse_masked, shown

_FORMS = "a mask over the items, or a list of them; either for all queries, or a row for each"


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """What is said for each query: a mask (m, n) of items, or lists (m, q) of ids, -1 for none.

    ``allows`` tells whether these are all that a ranking may have, or what it may not have.
    """

    what: str
    values: HostArray
    allows: bool

    @property
    def is_mask(self) -> bool:
        return bool(self.values.dtype.kind == "b")

    def closed(self, n: int) -> int:
        """The most items that are closed to a query."""
        counts = np.sum(self.values if self.is_mask else self.values >= 0, axis=1)
        # Repeated ids: allowed ones may be fewer, excluded ones not more than this.
        return int(n - counts.min() if self.allows else counts.max())


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """The items that a ranking may have, by the user's ids, on the host.

    Attributes
    ----------
    shared : bool array of shape (n,), or None
        What every query may have; None: everything.
    rows : tuple of _Rows
        What is said for each query beside that.
    closed : int
        The most items that are closed to a query, at least: lists may repeat themselves.
    """

    shared: NDArray[np.bool_] | None
    rows: tuple[_Rows, ...]
    closed: int

    @property
    def arrays(self) -> tuple[HostArray, ...]:
        """The arrays with a row for each query."""
        return tuple(part.values for part in self.rows)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user may want to know: that there is nothing to find."""
        if self.shared is None or bool(np.any(self.shared)):
            return ()
        return ("allowed and exclude leave no item",)

    def check_rows(self, queries: int) -> None:
        """Refuse what does not have a row for each query."""
        for part in self.rows:
            if part.values.shape[0] != queries:
                raise ValueError(
                    f"{part.what} must have a row for each of the {queries} queries, or be 1-D for "
                    f"all of them; got {part.values.shape[0]} rows."
                )

    def permitted(self, state: IndexState, rows: Sequence[Array]) -> Array:
        """Whether each item may be in each ranking of a batch: (n, m), or (n, 1), by places.

        ``rows`` are those of the batch, of all ``arrays``, on the state's device.
        """
        backend, xp, numbering = state.backend, state.backend.xp, state.numbering
        shared = np.ones(state.n, bool) if self.shared is None else self.shared
        found = xp.take(backend.asarray(shared), numbering.order)[:, None]
        for part, values in zip(self.rows, rows, strict=True):
            if part.is_mask:
                one = xp.take(values, numbering.order, axis=1).T
            else:
                places = numbering.to_places(values, xp)
                ones = xp.ones(places.shape, dtype=xp.float32, device=backend.device)
                one = backend.place(places, ones, state.n) > 0
            found = found & (one if part.allows else ~one)
        return found


def limits_of(state: IndexState, allowed: Any, exclude: Any) -> Limits:
    """What users say of the items that they want, and None where they say nothing.

    Raises
    ------
    ValueError, TypeError
        For masks of another shape, and for ids or keys that the index does not have.
    """
    shared, rows = np.ones(state.n, bool), []
    for what, given, allows in (("allowed", allowed, True), ("exclude", exclude, False)):
        if given is None:
            continue
        values = _checked(state, given, what)
        if values.ndim == 2:
            rows.append(_Rows(what, values, allows))
            continue
        if values.dtype.kind != "b":
            listed = np.zeros(state.n, bool)
            listed[values[values >= 0]] = True
            values = listed
        shared &= values if allows else ~values
    closed = state.n - int(np.sum(shared)) + sum(part.closed(state.n) for part in rows)
    return Limits(None if shared.all() else shared, tuple(rows), min(closed, state.n))


def _checked(state: IndexState, given: Any, what: str) -> HostArray:
    """A mask (n,) or (m, n), or ids (q,) or (m, q) with -1 for none."""
    refuse_masked(given, what, "False")
    if isinstance(given, (str, bytes, dict)) or not isinstance(given, Iterable):
        raise TypeError(f"{what} must be {_FORMS}; got {shown(given)}.")
    if isinstance(given, (set, frozenset)):
        given = list(given)
    if hasattr(given, "__array__") and not hasattr(given, "dtype"):
        # Iterating a table of pandas or polars gives the names of its columns, not its rows.
        given = np.asarray(given)
    plain = not hasattr(given, "dtype") and not hasattr(given, "__dlpack__")
    if plain:
        given = list(given)
        if any(isinstance(one, Iterable) and not isinstance(one, (str, bytes)) for one in given):
            return _ragged(state, [list(one) for one in given], what)
    array = np.asarray(given, dtype=object) if plain else np.asarray(host_copy(given))
    if array.size and (array.dtype.kind == "b" or _all_bool(array)):
        return _mask(array.astype(bool), state.n, what)
    _refuse_counted_mask(np.asarray(given) if plain else array, state.n, what)
    ids = _ids(state, given, what)
    if ids.ndim not in (1, 2):
        raise ValueError(f"{what} must be {_FORMS}; got shape {ids.shape}.")
    return ids if ids.size or ids.ndim == 1 else np.full((ids.shape[0], 1), -1)


def _all_bool(array: HostArray) -> bool:
    return array.dtype.kind == "O" and all(map(is_bool, array.reshape(-1)))


def _refuse_counted_mask(array: HostArray, n: int, what: str) -> None:
    """Refuse a mask of integers: read as ids, it would name the first two items over and over."""
    if array.dtype.kind in "iu" and n > 2 and array.ndim in (1, 2) and array.shape[-1] == n:
        if array.size and int(array.min()) >= 0 and int(array.max()) <= 1:
            raise ValueError(
                f"{what} has {n} numbers that are all 0 or 1, as a mask has. Masks are of bool: "
                f"pass {what}.astype(bool)."
            )


def _mask(mask: HostArray, n: int, what: str) -> HostArray:
    if mask.ndim not in (1, 2) or mask.shape[-1] != n:
        raise ValueError(
            f"{what} must be a mask of shape ({n},), or (m, {n}) with a row for each query; got "
            f"shape {mask.shape}."
        )
    return mask


def _ragged(state: IndexState, rows: list[list[Any]], what: str) -> HostArray:
    """Lists of any lengths, one for each query, or the rows of a mask."""
    lengths = [len(row) for row in rows]
    flat = [one for row in rows for one in row]
    if flat and all(map(is_bool, flat)):
        if min(lengths) != max(lengths):
            raise ValueError(f"{what} must be a mask with rows of the same length, {state.n}.")
        return _mask(np.array(rows, bool), state.n, what)
    if set(lengths) == {state.n}:
        _refuse_counted_mask(np.asarray(rows), state.n, what)
    ids = np.full((len(rows), max(1, *lengths)), -1)
    place = np.arange(ids.shape[1])[None, :] < np.array(lengths)[:, None]
    ids[place] = _ids(state, flat, what)
    return ids


def _ids(state: IndexState, given: Any, what: str) -> NDArray[np.int64]:
    """The ids of items that are given by ids or keys; -1 for none."""
    if state.keys is not None:
        return state.keys.ids_of(given, what, gaps=True)
    array = np.asarray(host_copy(given))
    if array.size == 0:
        return np.full(array.shape, -1)
    if isinstance(given, list) and any(map(is_bool, given)):
        raise TypeError(f"{what} must be {_FORMS}; got both of them: {shown(given)}.")
    if array.dtype.kind not in "iu":
        raise TypeError(f"{what} must be {_FORMS}; got dtype {array.dtype}: {shown(given)}.")
    low, high = int(array.min()), int(array.max())
    if low < -1 or high >= state.n:
        raise ValueError(
            f"{what} must be ids in [0, {state.n - 1}], or -1 for none; got values from {low} to "
            f"{high}."
        )
    return array.astype(np.int64)
