"""The largest entries of one row on the host, ties settled as the library promises."""

from __future__ import annotations

import numpy as np

from hybrid_gpu.backends.protocol import HostArray, Numbering


def best_of_row(line: HostArray, k: int, numbering: Numbering | None) -> HostArray:
    """Indices of the ``k`` largest entries, best first, ties to the lower index or user's id."""
    n = line.size
    if k == n:
        return _all_of_row(line, numbering)
    threshold = np.partition(line, n - k)[n - k]
    above = np.flatnonzero(line > threshold)
    # argpartition would pick any of the entries that tie at the threshold: take the first ones.
    level = np.flatnonzero(line == threshold)
    wanted = k - above.size
    if level.size < wanted:  # NaN compares with nothing: first, as in other backends
        return _all_of_row(np.where(np.isnan(line), np.inf, line), numbering)[:k]
    if numbering is None:
        order, level = np.argsort(-line[above], kind="stable"), level[:wanted]
    else:
        order = np.lexsort((numbering.order[above], -line[above]))
        level = _lowest(level, numbering.order[level], wanted)
    return np.concatenate((above[order], level))


def _all_of_row(line: HostArray, numbering: Numbering | None) -> HostArray:
    """Indices of all entries, best first, ties to the lower index or user's id."""
    if numbering is None:
        return np.argsort(-line, kind="stable")
    return np.asarray(numbering.places[np.argsort(-line[numbering.places], kind="stable")])


def _lowest(items: HostArray, names: HostArray, count: int) -> HostArray:
    """The ``count`` items of the lowest names, in their order."""
    if items.size > count:
        chosen = np.argpartition(names, count - 1)[:count]
        items, names = items[chosen], names[chosen]
    return items[np.argsort(names)]
