"""The largest entries of one row on the host, ties settled as the library promises."""

from __future__ import annotations

import numpy as np

from hybrid_gpu.backends.protocol import HostArray, Numbering

# One in so many entries is few.
_FEW = 64
# One entry in so many is looked at to guess how large the best are.
_SAMPLED = 16
# Ids that are looked at together, from the lowest on.
_TRIED = 2048


def best_of_row(line: HostArray, k: int, numbering: Numbering | None) -> HostArray:
    """Indices of the ``k`` largest entries, best first, ties to the lower index or user's id."""
    n = line.size
    if k == n:
        return _all_of_row(line, numbering)
    if np.isnan(line.max()):  # NaN compares with nothing: first, as in other backends
        return _all_of_row(np.where(np.isnan(line), np.inf, line), numbering)[:k]
    high = _high_entries(line, k)
    values = line if high is None else line[high]
    threshold = np.partition(values, values.size - k)[values.size - k]
    above = np.flatnonzero(values > threshold)
    # argpartition would pick any of the entries that tie at the threshold: take the first ones.
    level = np.flatnonzero(values == threshold)
    if high is not None:
        above, level = high[above], high[level]
    wanted = k - above.size
    if numbering is not None:
        above = _by_ids(above, numbering)
        if _FEW * wanted < level.size:
            level = _first_by_ids(line, threshold, wanted, numbering)
        else:
            level = _by_ids(level, numbering)
    above = above[np.argsort(-line[above], kind="stable")]
    return np.concatenate((above, level[:wanted]))


def _high_entries(line: HostArray, k: int) -> HostArray | None:
    """Indices, ascending, that the k largest entries and all that tie with them are among.

    A sample tells a value that about three times k entries reach. None: not to be told so.
    """
    n = line.size
    if k * _SAMPLED < n // 4:
        sample = line[::_SAMPLED]
        rank = min(sample.size, 3 * k // _SAMPLED + 8)
        enough = np.partition(sample, sample.size - rank)[sample.size - rank]
        high = np.flatnonzero(line >= enough)
        if k <= high.size < n // 2:
            return high
    return None


def _all_of_row(line: HostArray, numbering: Numbering | None) -> HostArray:
    """Indices of all entries, best first, ties to the lower index or user's id."""
    if numbering is None:
        return np.argsort(-line, kind="stable")
    return np.asarray(numbering.places[np.argsort(-line[numbering.places], kind="stable")])


def _by_ids(places: HostArray, numbering: Numbering) -> HostArray:
    """Some places in the order of the user's ids."""
    n = numbering.order.size
    if places.size < n // _FEW:
        return places[np.argsort(numbering.order[places])]
    # Many: to mark them among all ids takes less time than to sort them.
    marked = np.zeros(n, bool)
    marked[numbering.order[places]] = True
    return np.asarray(numbering.places[np.flatnonzero(marked)])


def _first_by_ids(line: HostArray, value: float, count: int, numbering: Numbering) -> HostArray:
    """The places of a value with the lowest ids, where there are many more than are wanted."""
    found: list[HostArray] = []
    for start in range(0, line.size, _TRIED):
        places = numbering.places[start : start + _TRIED]
        found.append(places[line[places] == value])
        count -= found[-1].size
        if count <= 0:
            break
    return np.concatenate(found)
