"""Index folders under kills, second writers, full disks, and files of the user's in their way."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from children import Child, Ended
from common import Failure, Kind, Tally

import hybrid_gpu as hg

_KEEP = 40
_PRECOMPUTE: dict[str, Any] = {"keep": _KEEP, "batch": 9}
_KILLS_PER_TRIAL = 10
# Both arrays of the columns of an index, the state, its temporary name, the lock file.
_COLUMN_FILES = 5


@cache
def _index(items: int) -> hg.DiffusionIndex:
    """An index that is known by its number of items."""
    rng = np.random.default_rng(items)
    centers = rng.standard_normal((4, 6)) * 2
    vectors = centers[rng.integers(0, 4, items)] + rng.standard_normal((items, 6))
    return hg.build_index(vectors, neighbors=6, rank=5, backend="numpy")


@cache
def _answer(items: int) -> bytes:
    return _asked(_index(items))


@cache
def _columns(items: int) -> bytes:
    return _stored(_index(items).precompute(**_PRECOMPUTE))


def _asked(index: hg.DiffusionIndex) -> bytes:
    found = index.search_items(np.arange(0, index.n, 7), k=6)
    return np.asarray(found.ids).tobytes() + np.asarray(found.scores).tobytes()


def _stored(index: hg.DiffusionIndex) -> bytes:
    assert index.columns is not None
    return np.asarray(index.columns.ids).tobytes() + np.asarray(index.columns.scores).tobytes()


_SIZES = (40, 70)


def _warm() -> None:
    """Everything that children need, made before they are forked."""
    for items in _SIZES:
        _answer(items)
        _columns(items)


def _looked_at(folder: Path) -> list[tuple[str, str]]:
    """What is wrong with an index that should be one of the known ones."""
    try:
        index = hg.load_index(folder, backend="numpy")
    except hg.IndexFileError as fault:
        return [("lost", str(fault))]
    except Exception as fault:
        return [("foreign error", f"{type(fault).__name__}: {fault}")]
    if index.n not in _SIZES or _asked(index) != _answer(index.n):
        return [("wrong", f"an index of {index.n} items that answers otherwise")]
    return []


def _failures(found: list[tuple[str, str]], told: str) -> list[Failure]:
    return [Failure(fault, f"{told}: {detail}") for fault, detail in found]


def _count(folder: Path) -> int:
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def _fault(ended: Ended, told: str) -> list[Failure]:
    return [Failure(ended.fault, f"{told}: {ended.detail}")] if ended.fault else []


# -- kills


def _save_forever(folder: Path) -> None:
    while True:
        for items in _SIZES:
            _index(items).save(folder)


def _read_until(stop: Path, folder: Path) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    while not stop.exists() and not found:
        found = _looked_at(folder)
    return found


def _killed_saves(rng: np.random.Generator, folder: Path) -> list[Failure]:
    target, stop = folder / "index", folder / "stop"
    start = time.perf_counter()
    _index(_SIZES[0]).save(target)
    once = time.perf_counter() - start
    files = _count(target)
    reader = Child(lambda: _read_until(stop, target))
    failures = []
    for number in range(_KILLS_PER_TRIAL):
        writer = Child(lambda: _save_forever(target))
        time.sleep(float(rng.uniform(0.0, 2 * once)))
        writer.kill()
        if writer.wait().fault != "crash":
            failures.append(Failure("foreign error", f"save ended before its kill {number}"))
        failures += _failures(_looked_at(target), f"after the kill {number} of a save")
        # The old index and half of a new one, or the new one and what is left of the old.
        if _count(target) > 2 * files:
            failures.append(Failure("wrong", f"{_count(target)} files after the kill {number}"))
    stop.touch()
    ended = reader.wait()
    failures += _fault(ended, "reader beside a save")
    failures += _failures(ended.value or [], "reader beside a save")
    try:
        _index(_SIZES[0]).save(target)
    except Exception as fault:
        failures.append(Failure("foreign error", f"save after the kills: {fault}"))
    if _count(target) != files:
        failures.append(Failure("wrong", f"{_count(target)} files after a good save"))
    return failures


def _killed_columns(rng: np.random.Generator, folder: Path) -> list[Failure]:
    failures, items = [], _SIZES[int(rng.integers(2))]
    start = time.perf_counter()
    _precomputed(items, folder / "undisturbed")
    once = time.perf_counter() - start
    for number in range(_KILLS_PER_TRIAL):
        place = folder / f"columns-{number // 4}"  # some are killed once, some four times
        worker = Child(lambda place=place: _precomputed(items, place))
        time.sleep(float(rng.uniform(0.0, 0.8 * once)))
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        ended = worker.wait()
        if ended.fault not in ("", "crash"):
            failures += _fault(ended, f"columns, before the kill {number}")
        if _count(place) > _COLUMN_FILES:
            failures.append(Failure("wrong", f"{_count(place)} files after the kill {number}"))
    for place in sorted(folder.glob("columns-*")):
        ended = Child(lambda place=place: _precomputed(items, place)).wait()
        failures += _fault(ended, "columns after the kills")
        if not ended.fault and not ended.value:
            failures.append(Failure("wrong", "other columns after the kills"))
    return failures


def _precomputed(items: int, folder: Path) -> bool:
    """Whether the columns are those that an undisturbed run makes."""
    return _stored(_index(items).precompute(folder=folder, **_PRECOMPUTE)) == _columns(items)


def _kills(seed: int, folder: Path) -> Tally:
    _warm()
    rng = np.random.default_rng(seed)
    attack = _killed_columns if rng.random() < 0.3 else _killed_saves
    return Tally(_KILLS_PER_TRIAL, tuple(attack(rng, folder)))


# -- writers


def _saved_often(items: int, folder: Path, times: int) -> list[str]:
    """What went wrong in some saves; nothing, if all is as it should be."""
    try:
        for _ in range(times):
            _index(items).save(folder)
    except Exception as fault:
        return [f"{type(fault).__name__}: {fault}"]
    return []


def _pair_of_processes(folder: Path, times: int) -> list[str]:
    children = [Child(lambda items=items: _saved_often(items, folder, times)) for items in _SIZES]
    ended = [child.wait() for child in children]
    return [one.detail for one in ended if one.fault] + [
        fault for one in ended for fault in one.value or ()
    ]


def _pair_of_threads(folder: Path, times: int) -> list[str]:
    found: list[str] = []
    threads = [
        threading.Thread(
            target=lambda items=items: found.extend(_saved_often(items, folder, times))
        )
        for items in _SIZES
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found + ["a thread hangs" for thread in threads if thread.is_alive()]


def _pair_of_columns(folder: Path) -> list[Failure]:
    """Two runs on one folder: each has the right columns, or is told that the other is at work."""

    def run() -> str:
        try:
            return "right" if _precomputed(_SIZES[0], folder) else "wrong"
        except hg.IndexFileError as fault:
            return "told" if "another process" in str(fault) else str(fault)

    children = [Child(run), Child(run)]
    ended = [child.wait() for child in children]
    failures = [one for each in ended for one in _fault(each, "two runs of precompute")]
    told = [each.value for each in ended]
    if not failures and ("right" not in told or set(told) - {"right", "told"}):
        failures.append(Failure("wrong", f"two runs of precompute: {told}"))
    return failures


def _writers(seed: int, folder: Path) -> Tally:
    _warm()
    rng = np.random.default_rng(seed)
    target = folder / "index"
    if rng.random() < 0.2:
        return Tally(1, tuple(_pair_of_columns(target)))
    if rng.random() < 0.5:
        _index(_SIZES[0]).save(target)
    pair = _pair_of_threads if rng.random() < 0.5 else _pair_of_processes
    failures = [Failure("foreign error", one) for one in pair(target, int(rng.integers(1, 4)))]
    failures += _failures(_looked_at(target), f"after a {pair.__name__[1:]}")
    before = _count(target)
    again = _saved_often(_SIZES[1], target, 1)
    failures += [Failure("foreign error", f"save after the pair: {one}") for one in again]
    if not again and _count(target) != before:  # both sizes have the same arrays
        failures.append(Failure("wrong", f"{before} files after a {pair.__name__[1:]}"))
    return Tally(1, tuple(failures))


# -- full disk


@contextlib.contextmanager
def _small_disk(folder: Path, kilobytes: int) -> Any:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PermissionError(done.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def _on_a_full_disk(work: Callable[[], Any]) -> str:
    """How some work ended that the disk may have no room for."""
    try:
        work()
    except OSError as fault:
        return "full" if fault.errno == errno.ENOSPC else f"{type(fault).__name__}: {fault}"
    return "done"


def _save_on(disk: Path) -> list[Failure]:
    index = disk / "index"
    first = Child(lambda: _on_a_full_disk(lambda: _index(_SIZES[0]).save(index))).wait()
    second = Child(lambda: _on_a_full_disk(lambda: _index(_SIZES[1]).save(index))).wait()
    failures = _fault(first, "save") + _fault(second, "save")
    ended = (first.value, second.value)
    if not failures and set(ended) - {"full", "done"}:
        failures.append(Failure("foreign error", f"save: {ended}"))
    if "done" in ended:
        failures += _failures(_looked_at(index), f"index on a disk where two saves were {ended}")
    elif _count(index) > 1:
        failures.append(Failure("wrong", f"{_count(index)} files of saves that did not fit"))
    return failures


def _columns_on(disk: Path, rng: np.random.Generator) -> list[Failure]:
    """The disk is too small from the start, or becomes so while the work goes on."""
    filler, place = disk / "filler", disk / "columns"
    moment = int(rng.integers(1, 60))

    def fill(stage: str, done: int, total: int) -> None:
        if done >= moment and not filler.exists():
            with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(1024))

    def work() -> None:
        _index(_SIZES[1]).precompute(folder=place, progress=fill, **_PRECOMPUTE)

    ended = Child(lambda: _on_a_full_disk(work)).wait()
    failures = _fault(ended, "precompute")
    if not failures and ended.value not in ("full", "done"):
        failures.append(Failure("foreign error", f"precompute: {ended.value}"))
    filler.unlink(missing_ok=True)
    subprocess.run(["mount", "-o", "remount,size=4096k", str(disk)], check=True)
    again = Child(lambda: _precomputed(_SIZES[1], place)).wait()
    failures += _fault(again, "precompute, when there is room again")
    if not again.fault and not again.value:
        failures.append(Failure("wrong", "other columns after a full disk"))
    return failures


def _full_disk(seed: int, folder: Path) -> Tally:
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return Tally(0, skipped="mounting a small disk needs root")
    _warm()
    rng = np.random.default_rng(seed)
    disk, saving = folder / "disk", bool(rng.random() < 0.5)
    # From no room for anything to room for all but the last files.
    kilobytes = int(rng.integers(4, 250 if saving else 36))
    try:
        with _small_disk(disk, kilobytes):
            failures = _save_on(disk) if saving else _columns_on(disk, rng)
    except PermissionError as fault:
        return Tally(0, skipped=f"mounting a small disk failed: {fault}")
    return Tally(1, tuple(failures))


# -- users' files

_NAMES = (
    *("descriptors.npy", "labels.npy", "ids.npy", "scores.npy", "order.npy", "a.npz", "cat.jpg"),
    *("degrees.deadbeef.npy", "ids.0badcafe.npy", "scores.01234567.npy", "x.npy.tmp", ".hidden"),
    *("header.json", "header.json.deadbeef.tmp", "progress.json", "progress.json.tmp"),
    *(".hybrid-gpu.lock", ".hybrid-gpu.lock.tmp", "README", "sub/descriptors.npy", "sub/empty/"),
)
_CONTENTS = (
    *(b"the user's own", b"{}", b"[]", b'{"done": 3}', b"\x93NUMPY\x01\x00", b"01234567 x\n"),
    *(b'{"format": "hybrid-gpu index", "version": 1}', b'{"format": "hybrid-gpu columns"}'),
)


def _state_of(folder: Path) -> dict[str, Any]:
    """Everything below a folder: contents of files, targets of links."""
    return {
        str(one.relative_to(folder)): os.readlink(one)
        if one.is_symlink()
        else one.read_bytes()
        if one.is_file()
        else None
        for one in sorted(folder.rglob("*"))
    }


def _users_folder(place: Path, outside: Path, rng: np.random.Generator) -> set[str]:
    """Put files of a user's into a folder; their names."""
    place.mkdir(exist_ok=True)
    before = set(_state_of(place))
    for name in rng.choice(_NAMES, int(rng.integers(1, 4)), replace=False):
        one = place / str(name)
        if one.exists() or one.is_symlink():
            continue
        one.parent.mkdir(exist_ok=True)
        if str(name).endswith("/"):
            one.mkdir()
        elif rng.random() < 0.15:
            one.symlink_to(outside)
        else:
            one.write_bytes(_CONTENTS[int(rng.integers(len(_CONTENTS)))])
    return set(_state_of(place)) - before


def _command(*words: Any) -> None:
    from typer.testing import CliRunner

    from hybrid_gpu.cli import app

    ended = CliRunner().invoke(app, [str(word) for word in words])
    if ended.exit_code == 2:
        raise hg.IndexFileError(ended.output)
    if ended.exit_code:
        raise RuntimeError(f"exit code {ended.exit_code}: {ended.output} {ended.exception!r}")


def _users_files(seed: int, folder: Path) -> Tally:
    rng = np.random.default_rng(seed)
    index, place, outside = _index(_SIZES[0]), folder / "index", folder / "outside"
    outside.write_bytes(b"the user's own, elsewhere")
    vectors = folder / "vectors.npy"
    np.save(vectors, np.asarray(index.descriptors))
    action = int(rng.integers(20))
    saving: Callable[[], Any] = lambda: index.save(place)  # noqa: E731
    if action >= 8:
        saving = lambda: index.precompute(folder=place, **_PRECOMPUTE)  # noqa: E731
    if action == 18:
        saving = lambda: _command("build", vectors, place, "--neighbors", 5)  # noqa: E731
    if action == 19:
        index.save(folder / "mine")
        place = folder / "mine.columns"
        saving = lambda: _command("precompute", folder / "mine", "--keep", 9)  # noqa: E731
    if rng.random() < 0.4 and action < 18:
        saving()  # beside an index, or columns, of ours
    own = _users_folder(place, outside, rng)
    before = _state_of(folder)
    failures, refused = [], False
    try:
        saving()
    except hg.IndexFileError:
        refused = True
    except Exception as fault:
        failures.append(Failure("foreign error", f"{type(fault).__name__}: {fault}; {own}"))
    after = _state_of(folder)
    lost = {name for name, content in before.items() if after.get(name, b"") != content}
    users = {f"{place.name}/{name}" for name in own} | {"outside", "vectors.npy"}
    if lost & users:
        failures.append(Failure("lost", f"action {action}: {sorted(lost & users)}"))
    if refused and after != before:
        changed = sorted(lost | (set(after) - set(before)))
        failures.append(Failure("wrong", f"action {action} was refused, and changed {changed}"))
    if not refused and own and not failures:
        failures.append(Failure("wrong", f"action {action} went on beside {sorted(own)}"))
    return Tally(1, tuple(failures))


KINDS = (
    Kind(
        name="kills",
        promise="A process that is killed in save or precompute leaves the old index or the new "
        "one, readers beside it never notice, and what is left behind does not pile up.",
        unit="kills",
        short=60,
        long=2_000,
        trial=_kills,
    ),
    Kind(
        name="writers",
        promise="Two writers of one folder take turns, or one is told that the other is at work.",
        unit="pairs",
        short=12,
        long=200,
        trial=_writers,
    ),
    Kind(
        name="full-disk",
        promise="A full disk is an OSError; the index that was there is still there, and "
        "precompute goes on when there is room again.",
        unit="disks",
        short=25,
        long=50,
        trial=_full_disk,
    ),
    Kind(
        name="users-files",
        promise="Nothing of the user's is ever changed or removed: a folder with anything that is "
        "not the library's own is refused.",
        unit="folders",
        short=100,
        long=2_000,
        trial=_users_files,
    ),
)
