"""The user's own names of the items: strings, or integers of 64 bits, each once.

An index with keys takes keys wherever another one takes ids. Inside, items have numbers only: keys
are translated when they come in, and those of a ranking when somebody asks for them. They stay on
the host, in the order of the ids.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.backends.numpy_backend import host_copy
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.backends.threads import Kept
from hybrid_gpu.result_lists import evened, is_distance, is_filler, with_gaps
from hybrid_gpu.validation import refuse_masked, shown

# Keys that a message names; the others are counted.
_NAMED = 3
_EXAMPLE = "Pass strings or integers, such as ['a', 'b'] or np.arange(n)."


class Keys:
    """The keys of n items.

    Parameters
    ----------
    values : array of shape (n,)
        int64, uint64, or objects that are str; checked.

    Attributes
    ----------
    values : array of shape (n,)
        The key of each of the user's ids.
    nothing : int or None
        What stands for 'nothing found': None among strings; among integers -1, or the same bits in
        uint64, which therefore are no key.
    memory : int
        Bytes.
    """

    __slots__ = ("_sorted", "_table", "memory", "nothing", "values")

    def __init__(self, values: HostArray) -> None:
        self.values = values
        self.nothing = _nothing(values.dtype)
        self.memory = int(values.nbytes)
        if self.text:
            self.memory += sum(map(sys.getsizeof, values))
        self._table: Kept[None, dict[str, int]] = Kept(1)
        self._sorted: Kept[None, tuple[HostArray, HostArray]] = Kept(1)

    @property
    def text(self) -> bool:
        """Whether they are strings."""
        return self.values.dtype == object

    @property
    def kind(self) -> str:
        """``"strings"`` or ``"integers"``."""
        return "strings" if self.text else "integers"

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Keys({len(self)} {self.kind})"

    def check_count(self, n: int) -> None:
        """Refuse too few or too many keys for n items."""
        if len(self) != n:
            raise ValueError(f"keys must be one for each of the {n} items; got {len(self)}.")

    def of(self, ids: HostArray) -> HostArray:
        """The keys of ids of any shape; ``nothing`` for -1."""
        known = self.values[np.where(ids < 0, 0, ids)]
        known[ids < 0] = self.nothing
        return known

    def ids_of(
        self, keys: Any, what: str, *, gaps: bool = False, ignored: Any = False
    ) -> NDArray[np.int64]:
        """The ids of keys, in the same shape.

        With ``gaps``, what stands for 'nothing found' becomes -1, and is an error else; in uint32,
        that is its largest number. So does what is ``ignored``, whatever it is: a bool array of the
        same shape.

        Raises
        ------
        ValueError
            For keys that the index does not have; it names some of them.
        TypeError
            For what cannot be one of its keys.
        """
        given = _entries(keys, what, gaps=gaps)
        flat = given.reshape(-1)
        missing = (np.equal(flat, _nothing(given.dtype)) & gaps) | np.reshape(ignored, -1)
        if bool(np.all(missing)):
            return np.full(given.shape, -1)
        if (given.dtype == object) != self.text:
            (got,) = flat[:1].tolist()
            raise TypeError(
                f"{what} must be {self.kind}, as the keys of the index are; got {shown(got)}. "
                "An index with keys takes no ids: index.keys[ids] are the keys of some."
            )
        ids = self._ids_of_text(flat) if self.text else self._ids_of_integers(flat)
        unknown = (ids < 0) & ~missing
        if np.any(unknown):
            raise ValueError(
                f"{what} must be keys of the index, which has no {_some(flat[unknown].tolist())}."
            )
        return np.where(missing, -1, ids).reshape(given.shape)

    def ids_of_lists(self, keys: Any, similarities: Any, metric: str) -> tuple[Any, Any]:
        """The ids (m, q) of the results of an engine that knows the keys, and what is beside them.

        What an engine fills up its lists with need not be a key.
        """
        keys, similarities = evened(keys, similarities)
        ignored: Any = False
        if is_distance(metric):
            values, shape = np.asarray(host_copy(similarities)), np.shape(keys)
            if values.dtype.kind == "f" and values.ndim == 2 and values.shape == shape:
                ignored = is_filler(values, np.ones(shape, bool), np)
        return self.ids_of(keys, "ids", gaps=True, ignored=ignored), similarities

    def joined(self, others: Keys) -> Keys:
        """These, and others behind them."""
        if self.text != others.text:
            raise TypeError(
                f"keys must be {self.kind}, as those of the index are; got {others.kind}."
            )
        kind = self.values.dtype
        if others.values.dtype != kind:
            return as_keys([*self.values.tolist(), *others.values.tolist()], None)
        return as_keys(np.concatenate([self.values, others.values]), None)

    def chosen(self, rows: HostArray) -> Keys:
        """Some of them."""
        return Keys(self.values[rows])

    def _ids_of_text(self, keys: HostArray) -> NDArray[np.int64]:
        table = self._table.get(None, lambda: {key: i for i, key in enumerate(self.values)})
        found = (table.get(key, -1) for key in keys)
        return np.fromiter(found, np.int64, count=len(keys))

    def _ids_of_integers(self, keys: HostArray) -> NDArray[np.int64]:
        def ordered() -> tuple[HostArray, HostArray]:
            order = np.argsort(self.values, kind="stable")
            return order, self.values[order]

        order, ascending = self._sorted.get(None, ordered)
        # What is out of the range of the one type has another value in it, but not the same bits.
        same = keys.astype(ascending.dtype)
        place = np.minimum(np.searchsorted(ascending, same), len(ascending) - 1)
        hit = (ascending[place] == same) & ((same >= 0) == (keys >= 0))
        return np.where(hit, order[place], -1)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.values,)


def as_keys(keys: Any, n: int | None) -> Keys:
    """The keys that a user gives, one for each of n items; None: for as many as there are.

    Raises
    ------
    TypeError
        For anything but strings and integers.
    ValueError
        For too few or too many, for a key that stands twice, and for what cannot be stored.
    """
    if isinstance(keys, (set, frozenset, dict)):
        raise TypeError(f"keys must come in the order of the items; got a {type(keys).__name__}.")
    values = _entries(keys, "keys")
    if values.ndim != 1:
        raise ValueError(f"keys must be 1-D, one for each item; got shape {values.shape}.")
    if values.dtype == object:
        _check_text(values)
    elif np.any(values == _nothing(values.dtype)):
        raise ValueError(
            f"keys must not be {_nothing(values.dtype)}, which stands for 'nothing found'."
        )
    if repeated(values):
        counts = Counter(values.tolist())
        twice = [key for key, count in counts.items() if count > 1]
        raise ValueError(f"keys must be different; {_some(twice)} came more than once.")
    # Of our own: whatever the caller does with his.
    made = Keys(values.copy())
    if n is not None:
        made.check_count(n)
    return made


def optional_keys(keys: Any, n: int) -> Keys | None:
    """The keys of n items, if there are any."""
    return None if keys is None else as_keys(keys, n)


def repeated(values: HostArray) -> bool:
    """Whether a key comes twice."""
    if values.dtype == object:
        return len(set(values)) < len(values)
    return len(np.unique(values)) < len(values)


def _nothing(dtype: Any) -> Any:
    """What stands for 'nothing found' among keys of a dtype."""
    return {"O": None, "i": -1, "u": int(np.iinfo(np.uint64).max)}[np.dtype(dtype).kind]


def _entries(keys: Any, what: str, *, gaps: bool = False) -> HostArray:
    """What was given, as int64, uint64, or objects that are str (or None, with gaps)."""
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise TypeError(f"{what} must be a sequence; got {shown(keys)}. {_EXAMPLE}")
    refuse_masked(keys, what, "-1")
    if isinstance(keys, (set, frozenset)):
        keys = list(keys)
    # NumPy would make strings of the integers among them.
    plain = not hasattr(keys, "dtype") and not hasattr(keys, "__dlpack__")
    array = np.asarray(keys, dtype=object) if plain else np.asarray(host_copy(keys))
    if array.size == 0:
        return np.empty(array.shape, np.int64)
    if array.dtype.kind in "UT":
        array = array.astype(object)
    if gaps:
        array = with_gaps(array)
    if array.dtype.kind == "u":
        return array.astype(np.uint64 if array.dtype.itemsize == 8 else np.int64)
    if array.dtype.kind == "i":
        return array.astype(np.int64)
    if array.dtype != object:
        hint = " Decode bytes with np.char.decode(keys)." if array.dtype.kind == "S" else ""
        raise TypeError(
            f"{what} must be strings or integers; got dtype {array.dtype}.{hint or ' ' + _EXAMPLE}"
        )
    return _objects(array, what, gaps)


def _objects(array: HostArray, what: str, gaps: bool) -> HostArray:
    """Python's own strings or integers; all of them the same."""
    flat = [key for key in array.reshape(-1) if not (gaps and key is None)]
    if all(isinstance(key, str) for key in flat):
        return array
    strange = [key for key in flat if not isinstance(key, str) and not _is_integer(key)]
    if strange:
        raise TypeError(f"{what} must be strings or integers; got {shown(strange[0])}. {_EXAMPLE}")
    if any(isinstance(key, str) for key in flat):
        raise TypeError(f"{what} must be all strings or all integers; got both of them.")
    low, high = min(flat), max(flat)
    if low >= 0 and 2**63 <= high < 2**64:
        dtype: Any = np.uint64
    elif low >= -(2**63) and high < 2**63:
        dtype = np.int64
    else:
        raise ValueError(
            f"{what} must be integers of 64 bits; got values from {shown(low)} to {shown(high)}. "
            "Pass larger ones as strings."
        )
    known = [_nothing(dtype) if key is None else key for key in array.reshape(-1)]
    return np.array(known, dtype).reshape(array.shape)


def _is_integer(key: Any) -> bool:
    return isinstance(key, (int, np.integer)) and not isinstance(key, bool)


def _check_text(values: HostArray) -> None:
    """Refuse strings that no file can hold."""
    for key in values:
        try:
            key.encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"keys must be text that UTF-8 can hold; got {key!r}, with half a surrogate pair."
            ) from None


def _some(keys: Iterable[Any]) -> str:
    """A few of many keys, for a message."""
    known = list(dict.fromkeys(keys))
    names = ", ".join(shown(key) for key in known[:_NAMED])
    more = len(known) - _NAMED
    return f"{names} and {more} more" if more > 0 else names
