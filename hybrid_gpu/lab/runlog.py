"""The log of a run: one line per measurement, so that nothing is measured twice."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_gpu.backends.native import core_level
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.files.writing import replacing, sync_file
from hybrid_gpu.index.storage import remove_index
from hybrid_gpu.lab.benchmark import Benchmark
from hybrid_gpu.lab.comparison import Measurement, Trial

_HEADER, _LINES, WORK = "run.json", "measurements.jsonl", "work"
# What makes two runs the same run.
_SAME = ("benchmark", "settings", "backend")
# What is kept of a run in its working folder: indexes, and the exact ranking.
GRAPH, EIGENVECTORS, EXACT = "graph", "eigenvectors", "exact.npy"


class RunLog:
    """The measurements in the folder of a run; new ones are appended to its file.

    Attributes
    ----------
    header : mapping
        What ``header_of`` gave when the run began.
    measurements : dict of Trial to Measurement
    exact : Measurement or None
        The exact solution, once it is measured.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self.header = header
        self.measurements: dict[Trial, Measurement] = {}
        self.exact: Measurement | None = None
        self._path = path
        for line in _whole_lines(path):
            measurement = measurement_of(line["measurement"])
            if line["kind"] == "exact":
                self.exact = measurement
            else:
                self.measurements[measurement.trial] = measurement

    @classmethod
    def open(cls, folder: Path, header: Mapping[str, Any]) -> RunLog:
        """Begin a run in a folder, or continue the run that is there.

        Raises
        ------
        ValueError
            If the folder holds a run with another header, or other files.
        """
        path = folder / _HEADER
        if not path.is_file():
            _begin(folder, header)
            return cls(folder / _LINES, header)
        try:
            stored = json.loads(path.read_bytes())
            same = all(stored[part] == header[part] for part in _SAME)
        except (ValueError, KeyError, TypeError) as fault:
            raise ValueError(f"{path}: damaged ({fault!r}); delete the folder.") from fault
        if not same:
            raise ValueError(
                f"{folder}: holds a run on other data, with other settings or on another backend. "
                "Choose another folder, or restart it."
            )
        (folder / WORK).mkdir(exist_ok=True)
        return cls(folder / _LINES, stored)

    def put(self, measurement: Measurement) -> None:
        self._append("trial", measurement)
        self.measurements[measurement.trial] = measurement

    def put_exact(self, measurement: Measurement) -> None:
        self._append("exact", measurement)
        self.exact = measurement

    def _append(self, kind: str, measurement: Measurement) -> None:
        line = json.dumps({"kind": kind, "measurement": asdict(measurement)})
        with open(self._path, "ab") as file:
            file.write(f"{line}\n".encode())
            sync_file(file)


def _begin(folder: Path, header: Mapping[str, Any]) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: holds other things; choose a new or empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    _put_header(folder, header)
    (folder / WORK).mkdir()


def _put_header(folder: Path, header: Mapping[str, Any]) -> None:
    with replacing(folder / _HEADER, sync=True) as file:
        file.write(json.dumps(header, indent=1).encode())


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log; a last line that an interruption cut off is removed from the file."""
    if not path.is_file():
        return
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.truncate(path, end)
    for line in content[:end].splitlines():
        try:
            yield json.loads(line)
        except ValueError as fault:
            raise ValueError(f"{path}: damaged ({fault}); delete the folder.") from fault


def restart_run(folder: Path, header: Mapping[str, Any]) -> None:
    """Remove the files of a run from its folder; the report and files of the user stay.

    Raises
    ------
    ValueError
        If the folder holds something else than a run; nothing is removed then.
    """
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not _is_run(folder):
        raise ValueError(f"{folder}: holds other things than a run; nothing was removed.")
    for name in (GRAPH, EIGENVECTORS):
        remove_index(folder / WORK / name)
    (folder / WORK / EXACT).unlink(missing_ok=True)
    (folder / _LINES).unlink(missing_ok=True)
    # The header last: without it, the folder would no longer be recognized as a run.
    _put_header(folder, header)


def _is_run(folder: Path) -> bool:
    try:
        header = json.loads((folder / _HEADER).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(header, dict) and set(_SAME) <= header.keys()


def header_of(benchmark: Benchmark, settings: Mapping[str, Any], backend: str) -> dict[str, Any]:
    """The header of a run: benchmark, settings and backend, which identify it, and the machine."""
    header = {
        "benchmark": {
            "name": benchmark.name,
            "items": benchmark.n,
            "distractors": benchmark.distractors,
            "queries": benchmark.m,
            "dimensions": int(benchmark.descriptors.shape[1]),
            "fingerprint": _fingerprint(benchmark),
        },
        "settings": dict(settings),
        "backend": backend,
        "machine": _machine(),
    }
    return dict(json.loads(json.dumps(header)))  # tuples become lists, as in the file


def _fingerprint(benchmark: Benchmark) -> str:
    """A checksum of the queries, of their right answers, and of a thousand items."""
    rows = np.linspace(0, benchmark.n - 1, min(benchmark.n, 1000)).astype(np.int64)
    parts: list[HostArray] = [np.asarray(benchmark.descriptors[rows]), benchmark.queries]
    if benchmark.ground_truth is not None:
        for entry in benchmark.ground_truth:
            parts += [entry[name] for name in ("easy", "hard", "junk")]
    else:
        assert benchmark.labels is not None
        assert benchmark.query_labels is not None
        parts += [benchmark.labels, benchmark.query_labels]
    sums = hashlib.sha256()
    for part in parts:
        sums.update(f"{part.dtype}{part.shape}".encode())
        sums.update(np.ascontiguousarray(part).tobytes())
    return sums.hexdigest()[:16]


def _machine() -> dict[str, Any]:
    """Where the measurements were made."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "native": core_level(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "scipy", "hybrid-gpu")},
    }


def measurement_of(plain: Mapping[str, Any]) -> Measurement:
    """A measurement from its plain values."""
    return Measurement(**{**plain, "trial": Trial(**plain["trial"])})
