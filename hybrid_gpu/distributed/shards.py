"""One query set in one file: read, answered and written by whichever process gets it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_gpu.distributed.answer_files import answer_file
from hybrid_gpu.distributed.manifest import DoneShard, no_room
from hybrid_gpu.distributed.query_files import is_parquet, query_parts
from hybrid_gpu.distributed.reranker import Reranker
from hybrid_gpu.files.stored_arrays import open_plain_file
from hybrid_gpu.files.writing import sync_file
from hybrid_gpu.ranking.top_items import Report

# Queries that are read and answered at a time: by the file alone, so that the same file has the
# same answers everywhere. A multiple of the largest batch.
PART = 1024
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """A query set to answer.

    Attributes
    ----------
    number : int
        In this run.
    input, output, folder : str
        The path of the query set, the name of the answers, and their folder.
    mark : str
        Of the run; it stands in the name that the file has until it is finished.
    reranker : Reranker
    """

    number: int
    input: str
    output: str
    folder: str
    mark: str
    reranker: Reranker


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of a shard: a finished file under a name for the time being, or an error.

    Attributes
    ----------
    number : int
    done : DoneShard or None
    temporary : str
        The name of the finished file, until it gets its own.
    error : str
        What went wrong; empty if nothing did.
    no_room : bool
        Whether the disk was full.
    """

    number: int
    done: DoneShard | None = None
    temporary: str = ""
    error: str = ""
    no_room: bool = False


def answer_shard(shard: Shard, told: Callable[[int], None] | None = None) -> Outcome:
    """Answer a query set; whatever is wrong with it is an outcome, not an exception.

    ``told`` is called with the number of queries that are answered, from time to time.
    """
    # Each try has a name of its own: engines may start a task twice.
    name = f"shard_{shard.number}.{shard.mark}.{secrets.token_hex(4)}.tmp"
    temporary = Path(shard.folder) / name
    try:
        done = _answered(shard, temporary, told)
    except Exception as fault:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        return Outcome(
            shard.number,
            error=error_line(fault),
            no_room=isinstance(fault, OSError) and no_room(fault),
        )
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return Outcome(shard.number, done, name)


def error_line(fault: BaseException) -> str:
    """An exception as one line."""
    text = " ".join(str(fault).split()) or type(fault).__name__
    if isinstance(fault, OSError) and fault.filename is not None and fault.strerror:
        return f"{os.fsdecode(fault.filename)}: {fault.strerror}."
    known = isinstance(fault, (ValueError, TypeError, OSError, MemoryError))
    ours = type(fault).__module__.startswith("hybrid_gpu.")
    return text if known or ours else f"{type(fault).__name__}: {text}"


def file_digest(path: Path) -> tuple[int, str]:
    """Bytes and SHA-256 of a plain file; a pipe in its place is an error, not a wait."""
    sums, size = hashlib.sha256(), 0
    buffer = memoryview(bytearray(_PIECE))
    with open_plain_file(path) as file:
        while count := file.readinto(buffer):
            sums.update(buffer[:count])
            size += count
    return size, sums.hexdigest()


def _answered(shard: Shard, temporary: Path, told: Callable[[int], None] | None) -> DoneShard:
    start, source = time.perf_counter(), Path(shard.input)
    parquet = is_parquet(source)
    before = _signature(source)
    input_bytes, input_sum = file_digest(source)
    tally = _Tally()
    scratch = temporary.with_name(temporary.name.removesuffix("tmp"))
    with open(temporary, "xb") as file:
        with answer_file(file, scratch, parquet=parquet) as answers:
            for part in query_parts(source, PART):
                answered, report = shard.reranker.with_report(part)
                answers.put(answered)
                tally.take(part, report)
                if told is not None:
                    told(tally.queries)
        sync_file(file)
    if _signature(source) != before:
        raise ValueError(f"{source}: changed while it was read. Run again when it is finished.")
    size, digest = file_digest(temporary)
    return DoneShard(
        output=shard.output,
        input_bytes=input_bytes,
        input_sha256=input_sum,
        bytes=size,
        sha256=digest,
        queries=tally.queries,
        seconds=round(time.perf_counter() - start, 4),
        worker=f"{socket.gethostname()}:{os.getpid()}",
        **tally.facts,
    )


def _signature(path: Path) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


class _Tally:
    """What the reports of all parts say together."""

    def __init__(self) -> None:
        self.queries = 0
        self.facts: dict[str, Any] = {}

    def take(self, part: Any, report: Report | None) -> None:
        if report is None:
            return
        self.queries += len(next(iter(part.values()))) if isinstance(part, dict) else len(part)
        facts = self.facts
        # Parts differ in the numbers of their notes only: those of the first are enough.
        facts.setdefault("method", report.method)
        facts.setdefault("backend", report.backend)
        facts.setdefault("notes", report.notes[:5])
        facts["steps"] = max(facts.get("steps", 0), report.steps)
        facts.setdefault("missed", 0)
        if report.residuals is not None and len(report.residuals):
            residuals = np.asarray(report.residuals)
            worst = float(np.max(residuals))
            facts["worst_residual"] = max(facts.get("worst_residual", 0.0), worst)
            if report.accuracy is not None:
                facts["missed"] += int(np.sum(residuals > report.accuracy))
