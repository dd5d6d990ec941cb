"""Edits of the files of an index: bit rot, cut files, and hostile ones with the right checksums."""

from __future__ import annotations

import contextlib
import io
import json
import mmap
import resource
import shutil
import tempfile
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from children import Child
from common import Failure, Kind, Tally

import hybrid_gpu as hg

_EDITS_PER_TRIAL = 250
# What a child may allocate beyond what it has: an index of a few kilobytes needs none of it.
_ALLOWANCE = 1 << 28
_OLD = Path(__file__).resolve().parents[3] / "tests" / "data"
_NUMBERS = {
    "i": (-1, -2, 0, 1, 23, 24, 25, 2**31 - 1, -(2**31)),
    "f": (np.nan, np.inf, -np.inf, 1e30, -1e30, -1.0, 0.0, 1.0, 1e-40, 65504.0),
}
_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2, 23, 25, 2**31, 2**63, 10**30, 10**400, 0.5, 0.999999, 1.5, 1e308),
    *("", "x", "../x", "/dev/zero", "8", "<f4", [], {}, [[]], [2**62, 2**62], {"a": 1}),
    json.loads("[" * 60 + "]" * 60),
)

Edit = dict[str, bytes | None]


@dataclass(frozen=True, slots=True)
class _Target:
    """An index as it is on disk, file by file, and what it answers with and without its lists."""

    files: dict[str, bytes]
    answers: dict[bool, bytes]

    @property
    def header(self) -> dict[str, Any]:
        return dict(json.loads(self.files["header.json"]))

    def array(self, name: str) -> np.ndarray[Any, Any]:
        content = self.files[_entries(self.header)[name]["file"]]
        return np.array(np.load(io.BytesIO(content)))


def _vectors() -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(77)
    centers = rng.standard_normal((3, 4)) * 2
    return centers[rng.integers(0, 3, 24)] + rng.standard_normal((24, 4))


def _built(flavor: str) -> hg.DiffusionIndex:
    vectors = _vectors()
    given = np.random.default_rng(7).standard_normal((24, 3))
    options: dict[str, dict[str, Any]] = {
        "eigen": {"basis": "eigen", "rank": 3},
        "int8": {"basis": "eigen", "rank": 3, "precision": "int8"},
        "sparse": {"basis": "sparse-eigen", "rank": 3, "sparsity": 0.5},
        "aggregate": {"basis": "aggregate", "rank": 4, "dtype": "float64"},
        "given": {"basis": given},
        "none": {"basis": "none"},
    }
    index = hg.build_index(vectors, neighbors=5, backend="numpy", **options[flavor])
    return index.precompute(keep=6) if flavor in ("int8", "aggregate") else index


@cache
def _target(flavor: str) -> _Target:
    with tempfile.TemporaryDirectory(prefix="campaign-target-") as place:
        folder = _OLD / flavor
        if not flavor.startswith("version"):
            folder = Path(place) / "index"
            _built(flavor).save(folder)
        files = {one.name: one.read_bytes() for one in folder.iterdir()}
        index = hg.load_index(folder, backend="numpy")
        return _Target(files, {lists: _answers(index, lists) for lists in (False, True)})


_FLAVORS = (
    *("eigen", "int8", "sparse", "aggregate", "given", "none"),
    *("version_1_eigen", "version_1_aggregates"),
    *("version_2_eigen", "version_2_aggregates"),
)


def _answers(index: hg.DiffusionIndex, lists: bool) -> bytes:
    """Everything that the index can be asked, cheaply; or, with its lists, a little more."""
    queries = np.array([[1.0, -2.0, 0.5, 3.0]])
    found = [index.search_items([1, 5], k=5), index.search(queries, k=5)]
    if index.columns is not None:
        found.append(index.search(queries, k=5, method="precomputed"))
    if lists:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that stored columns are dropped
            found.append(index.remove([0]).search_items([1], k=5))
    return b"".join(np.asarray(part).tobytes() for one in found for part in (one.ids, one.scores))


def _flipped(target: _Target, rng: np.random.Generator) -> Edit:
    name = str(rng.choice(sorted(name for name in target.files if target.files[name])))
    content = bytearray(target.files[name])
    place = int(rng.integers(8 * len(content)))
    content[place // 8] ^= 1 << place % 8
    return {name: bytes(content)}


def _bytes_changed(target: _Target, rng: np.random.Generator) -> Edit:
    name = str(rng.choice(sorted(name for name in target.files if target.files[name])))
    content = bytearray(target.files[name])
    dtype = content.find(b"'descr': '") + 10
    if dtype >= 10 and rng.random() < 0.2:
        # One of the three characters that say what all numbers are.
        content[dtype + int(rng.integers(3))] = int(rng.choice([*b"<>|=fiub1248"]))
        return {name: bytes(content)}
    # Half of them in the head, where a few bytes decide how all others are read.
    reach = min(len(content), 128) if rng.random() < 0.5 else len(content)
    for place in rng.integers(0, reach, int(rng.integers(1, 9))):
        content[place] = int(rng.choice([*b"0123456789<>|=fiubOSV,(){}'\"", rng.integers(256)]))
    return {name: bytes(content)}


def _cut_or_moved(target: _Target, rng: np.random.Generator) -> Edit:
    name, other = (str(one) for one in rng.choice(sorted(target.files), 2, replace=False))
    content = target.files[name]
    choices: tuple[Callable[[], Edit], ...] = (
        lambda: {name: content[: int(rng.integers(len(content) + 1))]},
        lambda: {name: content + bytes(int(rng.integers(1, 200)))},
        lambda: {name: None},
        lambda: {name: target.files[other], other: content},
        lambda: {name: rng.bytes(len(content))},
        lambda: {name: bytes(len(content))},
    )
    return choices[int(rng.integers(len(choices)))]()


def _array_replaced(target: _Target, rng: np.random.Generator) -> Edit:
    """Another array, with dtype, shape, size and checksums as they should be."""
    header = target.header
    name = str(rng.choice(sorted(_entries(header))))
    array = _hostile(target.array(name), rng)
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=False)
    content = stream.getvalue()
    if rng.random() < 0.1:  # a shape that the file has no room for
        content = content.replace(b"'shape': (", b"'shape': (99999999, ", 1)
    sealed = _sealed(header, name, array, content)
    return {**sealed, _entries(header)[name]["file"]: content}


def _entries(header: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a header says of its files, those of sections included."""
    entries = dict(header["arrays"])
    for section, part in header.get("sections", {}).items():
        entries |= {f"{section}/{name}": entry for name, entry in part["arrays"].items()}
    return entries


def _sealed(header: dict[str, Any], name: str, array: np.ndarray[Any, Any], content: bytes) -> Edit:
    entry = _entries(header)[name]
    entry["bytes"] = len(content)
    entry["checksum"] = f"{zlib.crc32(content[len(content) - array.nbytes :]):08x}"
    if header["version"] != 1:
        entry |= {"dtype": array.dtype.str, "shape": list(array.shape)}
    return {"header.json": _header(header)}


def _header(header: dict[str, Any]) -> bytes:
    parts = ("parameters", "arrays")
    covered = parts if header.get("version") == 1 else ("format", "version", *parts)
    if header.get("version") == 3:
        covered = (*covered, "sections")
    body = {part: header.get(part) for part in covered}
    sums = f"{zlib.crc32(json.dumps(body, sort_keys=True).encode()):08x}"
    return json.dumps({**header, "checksum": sums}).encode()


def _hostile(array: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    flat = array.reshape(-1)
    numbers = _NUMBERS[array.dtype.kind]
    count = int(rng.integers(1, max(2, flat.size)))
    some = rng.integers(0, max(1, flat.size), 1 if rng.random() < 0.5 else count)
    other = str(rng.choice(["<f4", "<f8", "<i4", "<i8", "|i1", "<f2", ">f4", ">i4", "<u4", "?"]))
    choices: tuple[Callable[[], Any], ...] = (
        lambda: np.put(flat, some, rng.choice(numbers, some.size).astype(array.dtype)),
        lambda: np.put(flat, some, rng.choice(numbers, some.size).astype(array.dtype)),
        lambda: rng.shuffle(flat),
        lambda: np.copyto(flat, flat[::-1].copy()),
        lambda: array[:-1],
        lambda: np.concatenate([array, array[:1]]),
        lambda: array[:0],
        lambda: array[..., None],
        lambda: np.asfortranarray(np.stack([array, array], axis=-1)),
        lambda: array.T if array.ndim > 1 else array[None, :],
        lambda: array.astype(other),
        lambda: array.view(np.uint8).astype(np.int8),
    )
    made = choices[int(rng.integers(len(choices)))]() if array.size else array[..., None]
    return array if made is None else np.asarray(made)


def _header_changed(target: _Target, rng: np.random.Generator) -> Edit:
    """A value of the header replaced, removed, written twice or put deep inside of another."""
    header = target.header
    header.pop("checksum")
    place: Any = header
    while True:
        key = list(place)[int(rng.integers(len(place)))] if isinstance(place, dict) else 0
        if not isinstance(place[key], dict) or not place[key] or rng.random() < 0.1:
            break
        place = place[key]
    chance = rng.random()
    if chance < 0.8:
        place[key] = _VALUES[int(rng.integers(len(_VALUES)))]
        return {"header.json": _header(header)}
    if chance < 0.9:
        del place[key]
        return {"header.json": _header(header)}
    whole = target.files["header.json"]
    twice = json.dumps(str(key)).encode()
    if chance < 0.95:
        depth = int(rng.choice([50, 900, 20_000, 400_000]))
        opened, closed = ((b"[", b"]"), (b'{"a": ', b"0}"))[int(rng.integers(2))]
        inside = opened * depth + closed[:-1] + closed[-1:] * depth
        return {"header.json": whole.replace(twice, b'"deep": ' + inside + b", " + twice, 1)}
    return {"header.json": whole.replace(twice, twice + b": NaN, " + twice, 1)}


_WITHOUT_CHECKSUMS = (_flipped, _bytes_changed, _cut_or_moved)
_ALL = (*_WITHOUT_CHECKSUMS, _array_replaced, _array_replaced, _header_changed)


def _edit_and_ask(
    target: _Target, flavor: str, folder: Path, rng: np.random.Generator
) -> tuple[str, str] | None:
    """One edit; the fault that it led to, and what it was."""
    make = _ALL[int(rng.integers(len(_ALL)))]
    edit, verify = make(target, rng), bool(rng.random() < 0.6)
    told = f"{make.__name__[1:]} of {', '.join(edit)} in {flavor}, verify={verify}"
    for name, content in edit.items():
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)
    try:
        index = hg.load_index(folder, verify=verify, backend="numpy")
    except hg.IndexFileError as fault:
        return None if str(folder) in str(fault) else ("foreign error", f"no file named: {told}")
    except Exception as fault:
        return "foreign error", f"{type(fault).__name__} at load: {fault}; {told}"
    finally:
        for name in edit:
            # A new file: the old one may be mapped.
            (folder / name).unlink(missing_ok=True)
            (folder / name).write_bytes(target.files[name])
    strict = verify and make in _WITHOUT_CHECKSUMS
    try:
        lists = any("neighbor" in name for name in edit)
        answers = _answers(index, lists)
    except (hg.HybridGpuError, ValueError) as fault:
        # Values that were not verified, or were sealed by whoever changed them, may be anything.
        return ("foreign error", f"{fault}; {told}") if strict else None
    except Exception as fault:
        return "foreign error", f"{type(fault).__name__} in search: {fault}; {told}"
    if strict and answers != target.answers[lists]:
        return "wrong", f"another answer after {told}"
    return None


def _some(target: _Target, flavor: str, folder: Path, seed: int, done: mmap.mmap) -> Any:
    """All edits of a trial from a number on; the number is noted before each."""
    warnings.simplefilter("ignore")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _ALLOWANCE, used + _ALLOWANCE))
    found = []
    for number in range(int.from_bytes(done[:4], "little"), _EDITS_PER_TRIAL):
        done[:4] = number.to_bytes(4, "little")
        fault = _edit_and_ask(target, flavor, folder, np.random.default_rng([seed, number]))
        if fault:
            found.append([fault[0], f"edit {number}: {fault[1]}"])
    return found


def _trial(seed: int, folder: Path) -> Tally:
    flavor = _FLAVORS[seed % len(_FLAVORS)]
    target, place, failures = _target(flavor), folder / "index", []
    done = mmap.mmap(-1, 4)
    while int.from_bytes(done[:4], "little") < _EDITS_PER_TRIAL:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name, content in target.files.items():
            (place / name).write_bytes(content)
        ended = Child(lambda: _some(target, flavor, place, seed, done)).wait(120)
        number = int.from_bytes(done[:4], "little")
        if ended.fault:
            failures.append(Failure(ended.fault, f"edit {number} of {flavor}: {ended.detail}"))
        failures += [Failure(fault, detail) for fault, detail in ended.value or ()]
        # After a crash, the next child goes on behind the edit that did it.
        done[:4] = ((number + 1) if ended.fault else _EDITS_PER_TRIAL).to_bytes(4, "little")
    with contextlib.suppress(OSError):
        shutil.rmtree(place)
    return Tally(_EDITS_PER_TRIAL, tuple(failures))


KINDS = (
    Kind(
        name="edits",
        promise="A damaged or hostile index is an IndexFileError that names the file: no crash, "
        "no hang, no allocation beyond its size, and no wrong answer that a checksum can tell.",
        unit="edits",
        short=2_000,
        long=100_000,
        trial=_trial,
    ),
)
