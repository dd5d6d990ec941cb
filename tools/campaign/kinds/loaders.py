"""Files of others, mutated, through every reader of the library and through its command line."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import shutil
import warnings
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from children import Child
from common import Failure, Kind, Tally
from typer.testing import CliRunner

import hybrid_gpu as hg
from hybrid_gpu.cli import app
from hybrid_gpu.datasets import load_folder
from hybrid_gpu.files.array_files import array_names, load_array
from hybrid_gpu.files.ground_truth import load_ground_truth
from hybrid_gpu.files.idx_files import read_idx

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_EDITS_PER_TRIAL = 200
# Every so many files are given to the command line too, which takes a hundred times as long.
_COMMAND_EVERY = 12
_ITEMS, _QUERIES = 30, 4
# A mutated file has a few kilobytes: one that takes this much memory to be read is an attack.
_ROOM = 1 << 30
# Numbers that lengths, types and shapes are replaced by.
_NUMBERS = (0, 1, 2, 7, 8, 14, 15, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1)
_WORDS = (b"(" * 300, b"[" * 99_999, b'{"a":' * 9_999, b"9" * 400, b"-1", b"NaN", b"1e999", b"\0",
          b"'<f8'", b"'|O'", b"'>c16'", b"(3,", b"99999999999", b"'", b"\\", b"\xff\xfe",
          b"None", b'"', b"gnd", b"\x80\x04", b".", b"cos\nsystem\n")  # fmt: skip

Content = bytes
Reader = Callable[[Path], Any]


@cache
def _originals() -> dict[str, tuple[tuple[Content, str], ...]]:
    """Whole files and the endings of their names, by what reads them."""
    rng = np.random.default_rng(11)
    vectors = rng.standard_normal((_ITEMS, 5))
    truth = _truth()
    arrays = [
        (_npy(array), ".npy")
        for array in (
            vectors.astype(np.float32), np.asfortranarray(vectors), vectors.astype(np.float16),
            rng.integers(0, 9, (_QUERIES, 6)), np.zeros((0, 4)), vectors.astype(">f8"),
            np.array(["a", "bc"]), np.array([{}, None], dtype=object), vectors + 1j,
        )
    ]  # fmt: skip
    for save in (np.savez, np.savez_compressed):
        several, one = io.BytesIO(), io.BytesIO()
        save(several, ids=rng.integers(0, 9, (_QUERIES, 6)), scores=vectors)
        save(one, vectors=vectors)
        arrays += [(several.getvalue(), ".npz"), (one.getvalue(), ".npz")]
    for packed in (False, True):
        arrays.append((_mat({"ids": vectors, "names": ["a", "b"]}, packed), ".mat"))
        arrays.append((_mat({"X": rng.integers(0, 9, (3, 4)).astype(np.uint8)}, packed), ".mat"))
    truths = [(json.dumps(truth).encode(), ".json")]
    truths += [(pickle.dumps(_with_arrays(truth), protocol), ".pkl") for protocol in range(6)]
    truths += [(_mat(_counted_from_one(truth), packed), ".mat") for packed in (False, True)]
    pictures = bytes([0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 4]) + bytes(range(48))
    lists = json.dumps([[1, 2], [3], [], [4, 5, 6]]).encode()
    return {
        "array": tuple(arrays),
        "truth": tuple(truths),
        "pictures": ((pictures, ""), (gzip.compress(pictures), ".gz")),
        "relevant": ((lists, ".json"),),
    }


def _truth() -> dict[str, Any]:
    images = [f"image{number}" for number in range(_ITEMS)]
    lists = [{"easy": [1, 2], "hard": [3], "junk": []}, {"easy": [], "hard": [5], "junk": [7]}]
    return {"imlist": images, "qimlist": ["q0", "q1", "q2", "q3"], "gnd": lists * 2}


def _with_arrays(truth: dict[str, Any]) -> dict[str, Any]:
    lists = [{name: np.array(ids, np.int64) for name, ids in one.items()} for one in truth["gnd"]]
    return {**truth, "gnd": lists}


def _counted_from_one(truth: dict[str, Any]) -> dict[str, Any]:
    kind = [(name, object) for name in ("easy", "hard", "junk")]
    lists = np.array(
        [tuple(np.array(one[name]) + 1.0 for name, _ in kind) for one in truth["gnd"]], dtype=kind
    )
    names = {key: np.array(truth[key], dtype=object) for key in ("imlist", "qimlist")}
    return {**names, "gnd": lists}


def _npy(array: np.ndarray) -> Content:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def _mat(values: dict[str, Any], packed: bool) -> Content:
    stream = io.BytesIO()
    scipy.io.savemat(stream, values, do_compression=packed)
    return stream.getvalue()


# -- mutations


def _mutated(content: Content, other: Content, rng: np.random.Generator) -> Content:
    """The content with one to four changes; behind its packing, if it has one, in half of them."""
    if rng.random() < 0.5:
        with suppress(Exception):
            return _inside(content, other, rng)
    for _ in range(int(rng.integers(1, 5))):
        content = _changed(content, other, rng)
    return content


def _inside(content: Content, other: Content, rng: np.random.Generator) -> Content:
    """Changed behind a compression or a checksum that holds."""
    if content[:2] == b"\x1f\x8b":
        return gzip.compress(_changed(gzip.decompress(content), other, rng))
    if content[:2] == b"PK":
        archive, stream = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as changed:
            for name in archive.namelist():
                changed.writestr(name, _changed(archive.read(name), other, rng))
        return stream.getvalue()
    if content[:6] == b"MATLAB" and content[128] == 15:
        size = int.from_bytes(content[132:136], "little")
        inner = _changed(zlib.decompress(content[136 : 136 + size]), other, rng)
        packed = zlib.compress(inner)
        return content[:132] + len(packed).to_bytes(4, "little") + packed + content[136 + size :]
    raise ValueError("it has no packing")


def _changed(content: Content, other: Content, rng: np.random.Generator) -> Content:
    """One change. Most fall on the start, where a file says what it is."""
    reach = len(content) if rng.random() < 0.5 else min(len(content), 320)
    at = int(rng.integers(0, max(1, reach)))
    width = int(rng.integers(1, 17))
    new = bytearray(content)
    match int(rng.integers(0, 8)):
        case 0 if new:
            new[at] ^= 1 << int(rng.integers(8))
        case 1:
            new[at : at + width] = rng.bytes(width)
        case 2:
            number = _NUMBERS[int(rng.integers(len(_NUMBERS)))]
            size = int(rng.choice([1, 2, 4, 8]))
            order = "little" if rng.random() < 0.7 else "big"
            at -= at % size
            new[at : at + size] = (number % 256**size).to_bytes(size, order)
        case 3:
            del new[at:]
        case 4:
            del new[at : at + width]
        case 5:
            new[at:at] = _WORDS[int(rng.integers(len(_WORDS)))]
        case 6:
            word = _WORDS[int(rng.integers(len(_WORDS)))]
            new[at : at + len(word)] = word
        case _:
            start = int(rng.integers(0, max(1, len(other))))
            new[at : at + width] = other[start : start + int(rng.integers(1, 200))]
    return bytes(new)


# -- what reads them


def _read_array(file: Path) -> None:
    names = array_names(file)
    for name in (None, *names[:3]):
        # The sum reads what is mapped.
        array = load_array(file, name=name)
        if array.dtype.kind in "fiub":
            np.asarray(array).sum()


def _read_folder(file: Path) -> None:
    place = file.parent / "folder"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    vectors = np.random.default_rng(5).standard_normal((_ITEMS, 5))
    np.save(place / "queries.npy", vectors[:_QUERIES])
    if file.suffix in (".json", ".pkl"):
        np.save(place / "descriptors.npy", vectors)
        shutil.copy(file, place / f"gnd_x{file.suffix}")
    else:
        (place / "gnd_x.json").write_text(json.dumps(_truth()))
        shutil.copy(file, place / f"descriptors{file.suffix}")
    load_folder(place)


_READERS: dict[str, tuple[Reader, ...]] = {
    "array": (_read_array, _read_folder),
    "truth": (load_ground_truth, _read_folder),
    "pictures": (lambda file: read_idx(file, dimensions=3),),
    "relevant": (),
}


def _commands(kind: str, file: Path, folder: Path) -> list[list[str]]:
    good = [str(folder / name) for name in ("index", "ranking.npy", "labels.npy", "built")]
    index, ranking, labels, built = good
    by_kind = {
        "array": [
            ["search", index, str(file), "--k", "3"],
            ["evaluate", str(file), "--exact", ranking, "--at", "3"],
            ["evaluate", ranking, "--labels", str(file), "--query-labels", labels],
            ["build", str(file), built, "--neighbors", "3"],
        ],
        "truth": [["evaluate", ranking, "--ground-truth", str(file)]],
        "pictures": [["info", str(file)]],
        "relevant": [["evaluate", ranking, "--relevant", str(file)]],
    }
    return by_kind[kind]


def _command_fault(words: list[str]) -> str:
    """What a command did that it should not; nothing, if it worked or was refused in one line."""
    ended = CliRunner().invoke(app, words)
    if ended.exit_code == 0 and ended.exception is None:
        return ""
    lines = ended.stderr.splitlines()
    # Warnings may come before it.
    plain = lines and lines[-1].startswith("error: ") and "Traceback" not in ended.output
    if ended.exit_code == 2 and isinstance(ended.exception, SystemExit) and plain:
        return ""
    return f"{words[0]}: exit code {ended.exit_code}, {ended.exception!r}, {lines[-1:]}"


def _reader_fault(reader: Reader, file: Path) -> str:
    try:
        reader(file)
    except (ValueError, hg.HybridGpuError) as fault:
        # The error of a folder may name the part instead of the file.
        named = reader is _read_folder or file.name in str(fault)
        if isinstance(fault, UnicodeError) or not named:
            return f"the error names no file: {fault!r}"
    except Exception as fault:
        return f"{type(fault).__name__}: {fault}"
    return ""


def _attack(seed: int, folder: Path) -> list[str]:
    """What went wrong; the file of it is told by its number."""
    warnings.simplefilter("ignore")
    if resource is not None and os.path.exists("/proc/self/statm"):
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + _ROOM,) * 2)
    rng, found, originals = np.random.default_rng(seed), [], _originals()
    kinds = list(originals)
    for number in range(_EDITS_PER_TRIAL):
        kind = kinds[int(rng.choice(4, p=[0.6, 0.25, 0.1, 0.05]))]
        content, ending = originals[kind][int(rng.integers(len(originals[kind])))]
        other = originals[kind][int(rng.integers(len(originals[kind])))][0]
        file = folder / f"given{ending}"
        file.write_bytes(_mutated(content, other, rng))
        # Where a crash would have to look.
        (folder / "number").write_text(f"{number} ({kind}{ending})")
        faults = [_reader_fault(reader, file) for reader in _READERS[kind]]
        if number % _COMMAND_EVERY == 0 or kind == "relevant":
            commands = _commands(kind, file, folder)
            faults.append(_command_fault(commands[int(rng.integers(len(commands)))]))
        found += [f"edit {number} ({kind}{ending}): {fault}" for fault in faults if fault]
    return found


@cache
def _index() -> hg.DiffusionIndex:
    vectors = np.random.default_rng(3).standard_normal((_ITEMS, 5))
    return hg.build_index(vectors, neighbors=4, rank=3, backend="numpy")


def _loaders(seed: int, folder: Path) -> Tally:
    _originals()
    _index().save(folder / "index")
    ranking = np.argsort(np.random.default_rng(7).random((_QUERIES, _ITEMS)), axis=1)
    np.save(folder / "ranking.npy", ranking)
    np.save(folder / "labels.npy", np.arange(_QUERIES))
    ended = Child(lambda: _attack(seed, folder)).wait(120)
    failures = [Failure("foreign error", one) for one in ended.value or ()]
    if ended.fault:
        number = (folder / "number").read_text() if (folder / "number").exists() else "0"
        failures.append(Failure(ended.fault, f"edit {number}: {ended.detail}"))
    return Tally(_EDITS_PER_TRIAL, tuple(failures))


KINDS = (
    Kind(
        name="loaders",
        promise="A damaged or hostile .npy, .npz, .mat, .json, .pkl or IDX file is read, or "
        "refused with one line that names it; it takes no memory beyond what it holds.",
        unit="files",
        short=1_000,
        long=100_000,
        trial=_loaders,
    ),
)
