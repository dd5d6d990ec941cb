"""The largest entries of one row on the host, ties settled as the library promises."""

from __future__ import annotations

import numpy as np

from hybrid_gpu.backends.protocol import HostArray, Numbering

# One in so many entries is few.
_FEW = 64


def best_of_row(line: HostArray, k: int, numbering: Numbering | None) -> HostArray:
    """Indices of the ``k`` largest entries, best first, ties to the lower index or user's id."""
    n = line.size
    if k == n:
        return _all_of_row(line, numbering)
    largest = np.partition(line, n - k)[n - k :]
    if np.isnan(largest.max()):  # NaN compares with nothing: first, as in other backends
        return _all_of_row(np.where(np.isnan(line), np.inf, line), numbering)[:k]
    threshold = largest[0]
    above = np.flatnonzero(line > threshold)
    # argpartition would pick any of the entries that tie at the threshold: take the first ones.
    level = np.flatnonzero(line == threshold)
    wanted = k - above.size
    if numbering is not None:
        above, level = _by_ids(above, numbering), _by_ids(level, numbering)
    above = above[np.argsort(-line[above], kind="stable")]
    return np.concatenate((above, level[:wanted]))


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
