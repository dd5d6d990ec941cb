"""Counters for a monitor, in the text format of Prometheus.

Every counter has its place in one array of numbers. Several processes keep theirs in files of one
folder, mapped into memory: whoever is asked adds them up.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.serve.questions import FIELDS
from hybrid_gpu.serve.refusals import MEANINGS

PAGES = (*FIELDS, "other")
# 499: the client went away before its answer.
STATUSES = ("200", *map(str, MEANINGS), "499", "other")
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Counters:
    """What a server has done so far.

    Parameters
    ----------
    folder
        Where several processes keep their counters; None: this one is alone.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._places = {name: place for place, name in enumerate(_names())}
        self._values = _array(folder, len(self._places))

    def add(self, name: str, amount: float = 1.0) -> None:
        """Count something."""
        self._values[self._places[name]] += amount

    def set(self, name: str, value: float) -> None:
        """Tell how much there is of something now."""
        self._values[self._places[name]] = value

    def request(self, page: str, status: int, seconds: float) -> None:
        """Count a request and its time."""
        word = str(status) if str(status) in STATUSES else "other"
        self.add(_series("requests_total", page=page, status=word))
        self._measure("request_seconds", SECONDS, seconds, page=page)

    def batch(self, queries: int, seconds: float) -> None:
        """Count a batch and its queries."""
        self.add("search_seconds_total", seconds)
        self._measure("batch_queries", SIZES, queries)

    def text(self) -> str:
        """All counters, as Prometheus reads them."""
        total = self._total()
        lines, last = [], ""
        for name, place in self._places.items():
            family = name.partition("{")[0]
            for ending in ("_bucket", "_sum", "_count"):
                family = family.removesuffix(ending)
            if family != last:
                kind, meaning = _FAMILIES[family]
                lines.append(f"# HELP hybrid_gpu_{family} {meaning}")
                lines.append(f"# TYPE hybrid_gpu_{family} {kind}")
                last = family
            lines.append(f"hybrid_gpu_{name} {float(total[place]):.10g}")
        return "\n".join(lines) + "\n"

    def _measure(self, name: str, bounds: Sequence[float], value: float, **labels: str) -> None:
        """Put a value into a histogram, whose buckets count what is at most their bound."""
        for bound in (*map(_bound, bounds[bisect_left(bounds, value) :]), "+Inf"):
            self.add(_series(f"{name}_bucket", **labels, le=bound))
        self.add(_series(f"{name}_sum", **labels), value)
        self.add(_series(f"{name}_count", **labels))

    def _total(self) -> NDArray[np.float64]:
        if self._folder is None:
            return self._values
        total = np.zeros(len(self._places))
        gauges = [place for name, place in self._places.items() if name in _GAUGES]
        for path in sorted(self._folder.glob("*.counters")):
            one = np.fromfile(path)
            if len(one) != len(total):
                continue  # just being made
            if not _alive(int(path.stem)):
                one[gauges] = 0  # what it counted stays; what it held is gone
            total += one
        return total


# Each family of counters: its kind, and what it means.
_FAMILIES = {
    "requests_total": ("counter", "Requests, by page and status."),
    "request_seconds": ("histogram", "Seconds from a request to its answer."),
    "batch_queries": ("histogram", "Queries that were solved together."),
    "queries_total": ("counter", "Queries that were answered."),
    "search_seconds_total": ("counter", "Seconds of solving."),
    "waiting_requests": ("gauge", "Requests that wait for an answer."),
    "body_bytes": ("gauge", "Bytes of the bodies that are held."),
    "ready": ("gauge", "Processes that are warm."),
    "start_time_seconds": ("gauge", "When each process began, added up."),
    "processes": ("gauge", "Processes that answer."),
}
_GAUGES = tuple(name for name, (kind, _) in _FAMILIES.items() if kind == "gauge")


def _names() -> Iterator[str]:
    """Every series, in the order of the page."""
    for page in PAGES:
        for status in STATUSES:
            yield _series("requests_total", page=page, status=status)
    for page in PAGES:
        yield from _histogram("request_seconds", SECONDS, page=page)
    yield from _histogram("batch_queries", SIZES)
    yield "queries_total"
    yield "search_seconds_total"
    yield from _GAUGES


def _histogram(name: str, bounds: Sequence[float], **labels: str) -> Iterator[str]:
    for bound in (*map(_bound, bounds), "+Inf"):
        yield _series(f"{name}_bucket", **labels, le=bound)
    yield _series(f"{name}_sum", **labels)
    yield _series(f"{name}_count", **labels)


def _bound(value: float) -> str:
    return f"{value:g}"


def _series(name: str, **labels: str) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inside}}}" if inside else name


def _array(folder: Path | None, size: int) -> NDArray[Any]:
    if folder is None:
        return np.zeros(size)
    path = folder / f"{os.getpid()}.counters"
    return np.memmap(path, np.float64, "w+", shape=(size,))


def _alive(process: int) -> bool:
    if os.name == "nt":
        return True  # there, the signal 0 is Ctrl-C
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
