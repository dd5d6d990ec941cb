"""Query sets in files under kills: of the run, and of its workers."""

from __future__ import annotations

import contextlib
import os
import time
from functools import cache
from pathlib import Path

import numpy as np
from children import Child
from common import Failure, Kind, Tally

import hybrid_gpu as hg

_SETS, _QUERIES, _ITEMS, _K = 6, 40, 200, 9
_KILLS_PER_TRIAL = 5
# Runs with processes of their own take seconds to start: one trial in so many.
_WITH_PROCESSES = 0.1
_OWN = {".hybrid-gpu.lock", "manifest.jsonl"}


@cache
def _vectors(count: int, seed: int) -> np.ndarray:
    centers = np.random.default_rng(3).standard_normal((5, 8)) * 2
    rng = np.random.default_rng(seed)
    return centers[rng.integers(0, 5, count)] + rng.standard_normal((count, 8))


@cache
def _index() -> hg.DiffusionIndex:
    return hg.build_index(_vectors(_ITEMS, 17), neighbors=6, backend="numpy")


class _Job:
    """Query sets, and the answers of a run that nobody disturbed."""

    def __init__(self, folder: Path, seed: int) -> None:
        _index().save(folder / "index")
        self.rerank = hg.Reranker(folder / "index", k=_K, backend="numpy")
        self.sets = [folder / f"set{number}.npy" for number in range(_SETS)]
        for number, path in enumerate(self.sets):
            np.save(path, _vectors(_QUERIES, seed % 1000 + 7 * number))
        start = time.perf_counter()
        self.run(folder / "undisturbed")
        self.seconds = time.perf_counter() - start
        self.expected = self.answers(folder / "undisturbed")

    def run(self, folder: Path, workers: int = 1) -> int:
        """Answer all sets; how many were left to do."""
        report = hg.rerank_files(self.rerank, self.sets, folder, workers=workers)
        if not report.complete:
            raise RuntimeError(str(report.failed))
        return len(report.of("done"))

    def answers(self, folder: Path) -> dict[str, bytes]:
        """The finished files of a folder."""
        found = sorted(folder.glob("*.npz")) if folder.is_dir() else []
        return {path.name: path.read_bytes() for path in found}


def _stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """What changes if a file is written again."""
    found = folder.glob("*.npz") if folder.is_dir() else []
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in found}


def _killed(job: _Job, place: Path, workers: int, wait: float, number: int) -> list[Failure]:
    """Kill a run after a while; what is wrong with what it leaves behind."""
    before = _stamps(place)
    worker = Child(lambda: job.run(place, workers))
    time.sleep(wait)
    with contextlib.suppress(ProcessLookupError):
        worker.kill()
    ended = worker.wait()
    told = f"kill {number} of a run with {workers} workers"
    failures = []
    if ended.fault not in ("", "crash"):
        failures.append(Failure(ended.fault, f"{told}: {ended.detail}"))
    found = job.answers(place)
    wrong = [name for name, content in found.items() if content != job.expected.get(name)]
    if wrong:
        failures.append(Failure("wrong", f"{told}: {wrong} differ"))
    after = _stamps(place)
    lost = [name for name, stamp in before.items() if after.get(name) != stamp]
    if lost:
        failures.append(Failure("lost", f"{told}: {lost} were written again, or are gone"))
    return failures


def _batch_kills(seed: int, folder: Path) -> Tally:
    rng = np.random.default_rng(seed)
    job, place = _Job(folder, seed), folder / "answers"
    workers = 2 if rng.random() < _WITH_PROCESSES else 1
    failures: list[Failure] = []
    for number in range(_KILLS_PER_TRIAL):
        # With processes, the time in which they start is a part of it.
        most = 1.5 * job.seconds if workers == 1 else 3.0
        failures += _killed(job, place, workers, float(rng.uniform(0.0, most)), number)
    before = _stamps(place)
    last = Child(lambda: job.run(place)).wait()
    if last.fault:
        failures.append(Failure(last.fault, f"the last run: {last.detail}"))
    elif last.value != _SETS - len(before):
        failures.append(Failure("wrong", f"{last.value} done where {len(before)} were there"))
    if job.answers(place) != job.expected:
        failures.append(Failure("wrong", "other answers after the kills"))
    if any(_stamps(place).get(name) != stamp for name, stamp in before.items()):
        failures.append(Failure("wrong", "a finished file was written again"))
    left = set(os.listdir(place)) - _OWN - set(job.expected)
    if left:
        failures.append(Failure("wrong", f"left behind: {sorted(left)}"))
    return Tally(_KILLS_PER_TRIAL, tuple(failures))


KINDS = (
    Kind(
        name="batch-kills",
        promise="A run over many files that is killed leaves only whole files of answers; the next "
        "run computes the others, each of them once, to the same bits.",
        unit="kills",
        short=20,
        long=2_000,
        trial=_batch_kills,
    ),
)
