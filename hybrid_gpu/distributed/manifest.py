"""The manifest of a folder of answers: which answers are to which queries, and which are there.

``manifest.jsonl`` only grows, by a line at a time that is on disk before anything else goes on; a
line that an interruption cut short is dropped. The first line has the index and the options. Then
come *runs*, whose marks stand in the names of all unfinished files; *planned* answers, each with
its query set; and *done* ones with their checksums, which are told just before the file gets its
name. So whatever is in the folder is known to be ours, or is somebody else's and never touched.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from hybrid_gpu.errors import IndexFileError
from hybrid_gpu.files.folder_lock import OwnFolder
from hybrid_gpu.files.stored_arrays import checksum, open_plain_file
from hybrid_gpu.files.writing import replacing, write_all

MANIFEST = "manifest.jsonl"
_FORMAT, _VERSION = "hybrid-gpu answers", 1
_LONGEST_LINE = 1 << 20
_MARK = re.compile("[0-9a-f]{8}")
# A file on its way to a finished one, and what its arrays are kept in until then.
_UNFINISHED = re.compile(r"shard_\d+\.([0-9a-f]{8})\.[0-9a-f]{8}\.(?:[a-z0-9_]+\.)?tmp")


@dataclass(frozen=True, slots=True)
class DoneShard:
    """A finished file of answers, and what it was made of.

    Attributes
    ----------
    output, input_bytes, input_sha256, bytes, sha256
        The name of the file, and the sizes and checksums of its query set and of itself.
    queries, seconds
        Their number, and the time that they took.
    method, backend, steps
        How they were answered, as in ``Report``.
    worst_residual, missed
        The largest residual of all queries, and how many missed their accuracy; None and 0 where
        no system was solved.
    notes
        What a user may want to know.
    worker
        Machine and process.
    """

    output: str
    input_bytes: int
    input_sha256: str
    bytes: int
    sha256: str
    queries: int
    seconds: float
    method: str = ""
    backend: str = ""
    steps: int = 0
    worst_residual: float | None = None
    missed: int = 0
    notes: tuple[str, ...] = ()
    worker: str = ""


@dataclass(slots=True, eq=False)
class Manifest:
    """What a manifest says.

    Attributes
    ----------
    job : mapping
        Index and options.
    outputs : dict
        The file of answers of each query set that is planned.
    taken : set
        Every name that was ever planned; no two query sets share one.
    done : dict
        By the names of the files.
    marks : set
        Of all runs.
    length : int
        Bytes that are whole lines.
    """

    job: Mapping[str, Any]
    outputs: dict[str, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    done: dict[str, DoneShard] = field(default_factory=dict)
    marks: set[str] = field(default_factory=set)
    length: int = 0

    def take(self, line: Mapping[str, Any]) -> bool:
        """Take what a line says; False if no manifest of ours says such a thing."""
        if "run" in line:
            mark = str(line["run"])
            self.marks.add(mark)
            return bool(_MARK.fullmatch(mark))
        if "planned" in line and isinstance(line["planned"], dict):
            name, output = (line["planned"].get(part) for part in ("input", "output"))
            if not isinstance(name, str) or not _is_name(output) or output in self.taken:
                return False
            self.outputs[name] = str(output)
            self.taken.add(str(output))
            return True
        if "done" in line and isinstance(line["done"], dict):
            shard = _done_shard(line["done"])
            if shard is not None:
                self.done[shard.output] = shard
            return shard is not None
        return False


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a folder; None if it has none.

    Raises
    ------
    IndexFileError
        If it is damaged, or not of this library.
    """
    path = folder / MANIFEST
    if not os.path.lexists(path):
        return None
    manifest = None
    for number, (line, length) in enumerate(_whole_lines(path), start=1):
        if manifest is None:
            if line.get("format") != _FORMAT or line.get("version") != _VERSION:
                raise IndexFileError(f"{path}: not a manifest of this version of hybrid-gpu.")
            manifest = Manifest(line["job"] if isinstance(line.get("job"), dict) else {})
        elif not manifest.take(line):
            raise _damaged(path, f"line {number} is none of ours")
        manifest.length = length
    if manifest is None:
        raise _damaged(path, "it has no whole line")
    return manifest


def own_files(folder: Path) -> frozenset[str]:
    """Files of a folder that its manifest knows for ours, finished or not."""
    manifest = read_manifest(folder)
    if manifest is None:
        return frozenset()
    return frozenset({MANIFEST, *manifest.taken, *unfinished(folder, manifest.marks)})


def unfinished(folder: Path, marks: set[str]) -> Iterator[str]:
    """Files that runs with these marks have not finished."""
    for name in os.listdir(folder):
        match = _UNFINISHED.fullmatch(name)
        if match and match[1] in marks:
            yield name


class ManifestWriter:
    """Adds to the manifest of a folder that is locked."""

    def __init__(self, own: OwnFolder, manifest: Manifest, mark: str) -> None:
        self.folder, self.manifest, self.mark = own.path, manifest, mark
        self._file = os.open(own.path / MANIFEST, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))

    @classmethod
    def begun(cls, own: OwnFolder, job: Mapping[str, Any]) -> ManifestWriter:
        """A new run: the manifest is made if there is none, and what was left over is removed.

        Raises
        ------
        IndexFileError
            If the folder holds answers of another index, or with other options; it says which.
        """
        mark = own.begin()
        try:
            return cls._begun(own, job, mark)
        finally:
            own.sweep()

    @classmethod
    def _begun(cls, own: OwnFolder, job: Mapping[str, Any], mark: str) -> ManifestWriter:
        if not os.path.lexists(own.path / MANIFEST):
            first = _line({"format": _FORMAT, "version": _VERSION, "job": job})
            temporary = own.path / f"{MANIFEST}.{mark}.tmp"
            with replacing(own.path / MANIFEST, temporary=temporary, sync=True) as file:
                file.write(first)
        manifest = read_manifest(own.path)
        assert manifest is not None
        _check_same(own.path, manifest.job, json.loads(json.dumps(job)))
        for name in list(unfinished(own.path, manifest.marks)):
            os.unlink(own.path / name)
        writer = cls(own, manifest, mark)
        os.ftruncate(writer._file, manifest.length)  # half a line of a run that was killed
        writer.add({"run": mark})
        return writer

    def plan(self, name: str, output: str) -> None:
        """Tell that the answers to a query set will have this name."""
        self.add({"planned": {"input": name, "output": output}})

    def finish(self, shard: DoneShard) -> None:
        """Tell that answers are there; the file gets its name right after that."""
        self.add({"done": asdict(shard)})

    def add(self, line: dict[str, Any]) -> None:
        """Add a line, and wait until it is on disk; all of it, or nothing."""
        content = _line(line)
        end = os.lseek(self._file, 0, os.SEEK_END)
        try:
            with os.fdopen(self._file, "wb", buffering=0, closefd=False) as file:
                write_all(file, memoryview(content))
            os.fsync(self._file)
        except BaseException as fault:
            os.ftruncate(self._file, end)
            if isinstance(fault, OSError):  # that of a descriptor names no file
                fault.filename = str(self.folder / MANIFEST)
            raise
        self.manifest.take(json.loads(content))

    def close(self) -> None:
        """Remove what this run left unfinished, and close the file."""
        os.close(self._file)
        for name in list(unfinished(self.folder, {self.mark})):
            (self.folder / name).unlink(missing_ok=True)


def _check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to mix answers of two indexes, or with two sets of options."""
    if before == now:
        return

    def flat(job: Mapping[str, Any]) -> dict[str, Any]:
        options = job.get("options")
        index = job.get("index")
        named = {"index": index.get("identity") if isinstance(index, dict) else index}
        return {**named, **(options if isinstance(options, dict) else {})}

    old, new = flat(before), flat(now)
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if not names:  # the same index at another path
        return
    told = ", ".join(f"{name} was {old.get(name)!r} and is {new.get(name)!r}" for name in names)
    raise IndexFileError(
        f"{folder}: holds answers that were made otherwise ({told}), and answers are not mixed. "
        "Name another folder, or go on with the same index and options. Nothing was changed."
    )


def _line(content: Mapping[str, Any]) -> bytes:
    told = json.dumps(content, sort_keys=True, allow_nan=False)
    whole = {**content, "checksum": checksum(told.encode())}
    return json.dumps(whole, allow_nan=False).encode() + b"\n"


def _whole_lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """The lines of a manifest, and where each ends; a last one that was cut short is left out."""
    with open_plain_file(path) as raw, open(raw.fileno(), "rb", closefd=False) as file:
        end = 0
        while content := file.readline(_LONGEST_LINE + 1):
            line = _checked(content)
            if line is None:
                if file.read(1):
                    raise _damaged(path, f"what begins at byte {end} is no line of ours")
                return
            end += len(content)
            yield line, end


def _checked(content: bytes) -> dict[str, Any] | None:
    """What a line says, if it is whole."""
    try:
        line = json.loads(content) if content.endswith(b"\n") else None
        expected = line.pop("checksum", None) if isinstance(line, dict) else None
        told = json.dumps(line, sort_keys=True, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and expected == checksum(told.encode()) else None


def _done_shard(values: Mapping[str, Any]) -> DoneShard | None:
    names = {one.name for one in fields(DoneShard)}
    if set(values) != names or not _is_name(values["output"]):
        return None
    texts = ("input_sha256", "sha256", "method", "backend", "worker")
    numbers = ("input_bytes", "bytes", "queries", "seconds", "steps", "missed")
    if not all(isinstance(values[name], str) for name in texts) or not all(
        isinstance(values[name], (int, float)) for name in numbers
    ):
        return None
    notes = values["notes"] if isinstance(values["notes"], list) else []
    return DoneShard(**{**values, "notes": tuple(map(str, notes))})


def _is_name(value: Any) -> bool:
    """Whether a value is the name of a file in the folder itself, and not one of the manifest."""
    if not isinstance(value, str) or value in ("", ".", "..", MANIFEST):
        return False
    return "/" not in value and "\\" not in value and "\0" not in value and value[0] != "."


def _damaged(path: Path, reason: str) -> IndexFileError:
    return IndexFileError(f"{path}: damaged ({reason}). Name another folder to begin anew.")


def no_room(fault: OSError) -> bool:
    """Whether a disk is full, or nobody may write more to it."""
    return fault.errno in (errno.ENOSPC, errno.EDQUOT)
