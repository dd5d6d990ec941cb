"""Query sets in many files, answered by many processes: each once, whatever happens on the way."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from hybrid_gpu.backends.threads import core_count, told_threads
from hybrid_gpu.distributed.engines import ENGINES, Engine, engine_of
from hybrid_gpu.distributed.manifest import DoneShard, ManifestWriter, no_room, own_files
from hybrid_gpu.distributed.query_files import SUFFIXES, count_queries, is_parquet
from hybrid_gpu.distributed.reranker import Reranker
from hybrid_gpu.distributed.shards import Outcome, Shard, error_line, file_digest
from hybrid_gpu.distributed.summary import FilesReport, ShardReport
from hybrid_gpu.errors import IndexFileError
from hybrid_gpu.files.folder_lock import own_folder
from hybrid_gpu.files.writing import take_name
from hybrid_gpu.index.storage import is_ours
from hybrid_gpu.progress import Progress, ProgressOption, as_progress
from hybrid_gpu.validation import check_choice, check_count, check_positive, shown

EngineName: TypeAlias = Literal["local", "dask", "ray"]
_LONGEST_NAME = 255  # in bytes, on nearly all file systems


def rerank_files(
    reranker: Reranker | str | os.PathLike[str],
    queries: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    engine: EngineName = "local",
    workers: int = 1,
    scheduler: str | None = None,
    patience: float = 60.0,
    progress: ProgressOption = None,
) -> FilesReport:
    """Answer query sets in many files, by many processes; go on where an earlier run stopped.

    Each file of queries gets a file of answers: ``.npz`` for ``.npy`` and ``.npz``, with arrays
    ``ids`` (or ``keys``) and ``scores``; Parquet for Parquet, with columns of these names. It is
    written whole or not at all. ``manifest.jsonl`` beside them has the checksums of all of them,
    of their queries, of the index and the options. A file that is finished is not computed again;
    one whose queries have changed since then is an error of that file. Another index or other
    options are refused. Nothing that is not of an earlier run is ever overwritten.

    Parameters
    ----------
    reranker
        What to do, or the folder of an index.
    queries
        Files or folders of files: ``.npy`` and ``.npz`` files of descriptors (m, d); ``.npz`` and
        Parquet files with the columns that a ``Reranker`` takes, all others of which are handed
        on. ``.npy`` and Parquet files may be larger than memory.
    output
        The folder of the answers: a new or an empty one, or that of an earlier run. Workers on
        other machines must see it, the queries and the index under the same paths.
    engine
        ``"local"``, ``"dask"`` or ``"ray"``.
    workers
        Processes; each takes its share of the cores, unless the re-ranker says how many threads. A
        local one works in this process.
    scheduler
        The address of a Dask scheduler or of a Ray cluster. None: one on this machine, for this
        run.
    patience
        Seconds to wait for a Dask scheduler that is not there yet.
    progress
        As in ``index.search``; called as ``progress("batch", queries, all_queries)``.

    Returns
    -------
    FilesReport
        What became of every file. A file that fails does not keep the others from being answered;
        a full disk ends the run.

    Raises
    ------
    IndexFileError
        If the folder holds other files, or answers of another index or with other options, or
        another run is at work there.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> import hybrid_gpu as hg
    >>> here = pathlib.Path(tempfile.mkdtemp())
    >>> hg.build_index([[5.0, 0], [5, 1], [0, 5], [1, 5]], neighbors=1).save(here / "index")
    >>> for name in ("monday", "tuesday"):
    ...     np.save(here / f"{name}.npy", np.array([[5.0, 0.2], [0.2, 5.0]]))
    >>> rerank = hg.Reranker(here / "index", k=2)
    >>> report = hg.rerank_files(rerank, sorted(here.glob("*.npy")), here / "answers")
    >>> len(report.of("done")), report.queries
    (2, 4)
    >>> np.load(here / "answers" / "monday.npz")["ids"].tolist()
    [[0, 1], [2, 3]]
    >>> again = hg.rerank_files(rerank, sorted(here.glob("*.npy")), here / "answers")
    >>> len(again.of("done")), len(again.of("kept"))
    (0, 2)
    """
    start = time.perf_counter()
    workers = check_count(workers, "workers")
    check_choice(engine, "engine", ENGINES)
    if scheduler is not None and engine == "local":
        raise ValueError("scheduler is for engine='dask' and engine='ray'; leave it out for local.")
    chosen = engine_of(engine, workers, scheduler, check_positive(patience, "patience"))
    reranker = (reranker if isinstance(reranker, Reranker) else Reranker(reranker)).pinned()
    sources, folder = _sources(queries), _target(output)
    if scheduler is None and (engine != "local" or workers > 1):
        cores = told_threads() or core_count()
        reranker = reranker.with_threads(max(1, cores // workers))
    with own_folder(folder, own_files, patience=0.0) as own:
        writer = ManifestWriter.begun(own, _job(reranker))
        with contextlib.closing(writer):
            run = _FilesRun(writer, reranker, sources, _Bar(as_progress(progress), sources))
            run.answer(chosen)
    seconds = time.perf_counter() - start
    return FilesReport(str(folder), run.reports(), seconds, engine, workers)


def _job(reranker: Reranker) -> dict[str, object]:
    """What all answers of a folder have in common."""
    return {
        "index": {"path": reranker.path, "identity": reranker.identity},
        "options": reranker.described(),
    }


def _sources(queries: object) -> list[Path]:
    """The files of queries, each once; those of folders by name."""
    given = [queries] if isinstance(queries, (str, os.PathLike)) else queries
    if not isinstance(given, Iterable):
        raise TypeError(f"queries must be files; got {shown(queries)}.")
    found: list[Path] = []
    for one in given:
        path = Path(os.path.abspath(one))
        if path.is_dir():
            inside = sorted(part for part in path.iterdir() if part.suffix.lower() in SUFFIXES)
            if not inside:
                raise ValueError(f"{path}: a folder without {', '.join(SUFFIXES)} files.")
            found.extend(inside)
        else:
            found.append(path)
    if not found:
        raise ValueError("queries must be at least one file; got none.")
    return list(dict.fromkeys(found))


def _target(output: str | os.PathLike[str]) -> Path:
    """The folder of the answers, if it can be one."""
    folder = Path(output).absolute()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: a file; answers go to a folder.")
    for above in Path(os.path.realpath(folder)).parents:
        if is_ours(above):
            raise ValueError(f"{folder}: {above} holds its own files only; name another folder.")
    return folder


@dataclass(slots=True)
class _Source:
    """A file of queries, and what became of it."""

    path: Path
    output: str = ""
    state: str = "left"
    done: DoneShard | None = None
    error: str = ""

    def fail(self, error: str) -> None:
        self.state, self.error = "failed", error


class _FilesRun:
    """One run over the files: what is to do, and what became of it."""

    def __init__(
        self, writer: ManifestWriter, reranker: Reranker, sources: Sequence[Path], bar: _Bar
    ) -> None:
        self._writer, self._reranker, self._bar = writer, reranker, bar
        self._sources = [_Source(path) for path in sources]
        self._numbers: dict[tuple[str, str], int] = {}  # where to look for a free name

    def answer(self, engine: Engine) -> None:
        """Have all files answered that have no answers yet."""
        waiting = [number for number, source in enumerate(self._sources) if self._begin(source)]
        mark, folder = self._writer.mark, self._writer.folder
        shards = [
            Shard(number, str(source.path), source.output, str(folder), mark, self._reranker)
            for number, source in ((number, self._sources[number]) for number in waiting)
        ]
        if not shards:
            return
        with contextlib.closing(engine.answer(shards, self._bar.tell)) as outcomes:
            for outcome in outcomes:
                if not self._take(outcome):
                    break  # the next one would not fit either

    def reports(self) -> tuple[ShardReport, ...]:
        """What became of every file."""
        return tuple(
            ShardReport(
                str(source.path),
                source.output,
                source.state,
                queries=source.done.queries if source.done else 0,
                seconds=source.done.seconds if source.done else 0.0,
                missed=source.done.missed if source.done else 0,
                error=source.error,
            )
            for source in self._sources
        )

    def _begin(self, source: _Source) -> bool:
        """Plan a file, or find that it is done, or cannot be; whether there is anything to do."""
        manifest, name = self._writer.manifest, str(source.path)
        source.output = manifest.outputs.get(name, "")
        try:
            place = self._writer.folder / source.output
            if source.output and os.path.lexists(place):
                source.done = manifest.done.get(source.output)
                self._check_kept(source, place)
                source.state = "kept"
                self._bar.finish(source.path)
                return False
            # By its content, which may be another than when it was planned: of a file that was
            # empty then, say.
            suffix = ".parquet" if is_parquet(source.path) else ".npz"
        except (ValueError, OSError, IndexFileError) as fault:
            source.fail(error_line(fault))
            return False
        if not source.output.endswith(suffix):
            source.output = self._free_name(source.path, suffix)
            self._writer.plan(name, source.output)  # it ends the run if the disk is full, or gone
        return True

    def _check_kept(self, source: _Source, place: Path) -> None:
        """Refuse answers that are not those of the query set as it is."""
        done = source.done
        if done is None or file_digest(place) != (done.bytes, done.sha256):
            raise ValueError(
                f"{place}: not the answers that were written there. Move the file away, and run "
                "again. Nothing was changed."
            )
        if file_digest(source.path) != (done.input_bytes, done.input_sha256):
            raise ValueError(
                f"{source.path}: has changed since it was answered. Move {place} away to have it "
                "answered anew, or name another folder. Nothing was changed."
            )

    def _free_name(self, path: Path, suffix: str) -> str:
        """A name for answers that no other query set has: ``x.npz``, ``x-2.npz`` and so on."""
        stem = path.stem.lstrip(".").replace("\\", "_") or "queries"
        taken, number = self._writer.manifest.taken, self._numbers.get((stem, suffix), 1)
        while (name := _name(stem, "" if number == 1 else f"-{number}", suffix)) in taken:
            number += 1
        self._numbers[stem, suffix] = number
        return name

    def _take(self, outcome: Outcome) -> bool:
        """Put a finished file in its place, or note the error; whether there is room for more."""
        source = self._sources[outcome.number]
        if outcome.done is None:
            source.fail(outcome.error)
            return not outcome.no_room
        place = self._writer.folder / source.output
        try:
            self._writer.finish(outcome.done)
            take_name(self._writer.folder / outcome.temporary, place)
        except FileExistsError:
            source.fail(f"{place}: somebody else has put a file there. Nothing was changed.")
            return True
        except OSError as fault:
            source.fail(error_line(fault))
            return not no_room(fault)
        source.state, source.done = "done", outcome.done
        self._bar.finish(source.path)
        return True


def _name(stem: str, number: str, suffix: str) -> str:
    """The name of a file, its stem cut to what file systems take."""
    room = _LONGEST_NAME - len(number) - len(suffix)
    while len(os.fsencode(stem)) > room:
        stem = stem[:-1]
    return f"{stem}{number}{suffix}"


class _Bar:
    """One progress for all files, in queries."""

    def __init__(self, progress: Progress | None, sources: Sequence[Path]) -> None:
        self._progress = progress
        self._sources = sources
        self._counts: dict[Path, int] = {}
        self._finished: dict[Path, int] = {}
        self._done = self._total = 0
        self._lock = threading.Lock()  # threads that listen to workers tell, too
        if self._progress is not None:
            for path in sources:
                try:
                    self._counts[path] = count_queries(path)
                except (ValueError, OSError, ImportError, MemoryError):
                    self._counts[path] = 0  # which will be told when it is its turn
            self._total = sum(self._counts.values())
            self._progress("batch", 0, self._total)

    def tell(self, number: int, done: int) -> None:
        """So many queries of a file are answered."""
        self._show(self._sources[number], done)

    def finish(self, path: Path) -> None:
        """All queries of a file are answered."""
        self._show(path, self._counts.get(path, 0))

    def _show(self, path: Path, done: int) -> None:
        if self._progress is None:
            return
        with self._lock:  # the sum is kept, not made anew: there may be very many files
            self._done += done - self._finished.get(path, 0)
            self._finished[path] = done
            now = min(self._done, self._total)
        self._progress("batch", now, self._total)
