"""Odd and hostile arguments to the public functions: a right answer, or an error that says so."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse  # noqa: TID251 - what a user may pass
from common import Failure, Kind, Tally

import hybrid_gpu as hg
from hybrid_gpu import evaluation

_CALLS_PER_TRIAL = 60
_PACKAGE = str(Path(hg.__file__).parent)
_OURS = (ValueError, TypeError, hg.HybridGpuError)

Value = Any
Twist = Callable[[Any, np.random.Generator], Value]


class _Foreign:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, values: Any) -> None:
        self._values = np.array(values)

    def __dlpack__(self, **options: Any) -> Any:
        return self._values.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._values.__dlpack_device__()


class _Subclass(np.ndarray):
    """A NumPy array of somebody's own."""


def _read_only(values: Any, rng: np.random.Generator) -> Value:
    copy = values.copy()
    copy.flags.writeable = False
    return copy


def _spread_out(values: Any, rng: np.random.Generator) -> Value:
    wide = np.zeros(tuple(2 * size for size in values.shape), values.dtype)
    part = wide[tuple(slice(None, None, 2) for _ in values.shape)]
    part[...] = values
    return part


def _spoiled(value: Any) -> Twist:
    def twist(values: Any, rng: np.random.Generator) -> Value:
        copy = values.copy()
        with np.errstate(all="ignore"):
            copy.reshape(-1)[rng.integers(0, copy.size)] = value
        return copy

    return twist


# Another form of the same values: the answer must be the same.
_SAME: tuple[Twist, ...] = (
    lambda values, rng: np.asfortranarray(values),
    lambda values, rng: values[::-1].copy()[::-1],
    lambda values, rng: values.astype(values.dtype.newbyteorder()),
    lambda values, rng: _Foreign(values),
    lambda values, rng: values.view(_Subclass),
    lambda values, rng: values.tolist(),
    lambda values, rng: tuple(map(tuple, values)) if values.ndim == 2 else tuple(values),
    _read_only,
    _spread_out,
)

# Something else: an error that tells, or an answer that is one.
_OTHER: tuple[Twist, ...] = (
    lambda values, rng: values[:0],
    lambda values, rng: values[..., :0],
    lambda values, rng: values[0],
    lambda values, rng: values[None],
    lambda values, rng: values[:-1],
    lambda values, rng: values[..., :-1],
    lambda values, rng: np.concatenate([values, values]),
    lambda values, rng: values[rng.integers(0, len(values), len(values))],
    lambda values, rng: values[::-1],
    lambda values, rng: values[..., ::-1],
    lambda values, rng: values.T,
    lambda values, rng: np.zeros_like(values),
    lambda values, rng: np.ones_like(values),
    lambda values, rng: -values,
    lambda values, rng: values * 1000,
    lambda values, rng: values.astype(object),
    lambda values, rng: values.astype(complex),
    lambda values, rng: values.astype(bool),
    lambda values, rng: values.astype(str),
    lambda values, rng: values.astype("float16"),
    lambda values, rng: values.astype("float32"),
    lambda values, rng: values.astype(np.longdouble),
    lambda values, rng: values.astype("int8"),
    lambda values, rng: values.astype("int32"),
    lambda values, rng: values.astype("uint64"),
    lambda values, rng: values.astype("datetime64[s]") if values.dtype.kind == "i" else values,
    lambda values, rng: np.full(values.shape, -1, values.dtype),
    lambda values, rng: np.broadcast_to(values[:1], values.shape),
    lambda values, rng: np.array(values.ravel()[0]),
    lambda values, rng: [[1.0, 2.0], [3.0]],
    lambda values, rng: rng.choice([None, "text", 3, 2.5, b"bytes"]),  # type: ignore[arg-type]
    lambda values, rng: {"values": values},
    lambda values, rng: [],
    lambda values, rng: iter(values),
    *(_spoiled(one) for one in (-1, -2, 0, 7, 10**6)),
)
# Something that must not be taken for an array of numbers.
_REFUSED: tuple[Twist, ...] = (
    lambda values, rng: np.ma.array(values, mask=rng.random(values.shape) < 0.5),
    lambda values, rng: sparse.csr_array(np.atleast_2d(values)),
    lambda values, rng: values.astype(complex),
    lambda values, rng: values.astype(object),
    lambda values, rng: _spoiled(np.nan)(values.astype("float64"), rng),
)
_CHECKED = ("queries", "ids", "exact_ids", "similarities", "descriptors")
_OTHER_FLOATS: tuple[Twist, ...] = (
    *(_spoiled(one) for one in (np.nan, np.inf, -np.inf, 1e300, 1e39, 1e-300, 1e-40, -0.0, 1.5)),
    lambda values, rng: values * 1e-30,
    lambda values, rng: values * 1e30,
    lambda values, rng: values * 1e-200,
)


def _gaps(values: Any, rng: np.random.Generator) -> Value:
    """Whole lists, or single entries, of 'nothing found'."""
    lines = rng.random(len(values)) < 0.5
    missing = rng.random(values.shape) < rng.choice([0.0, 0.5])
    return np.where(missing | np.expand_dims(lines, tuple(range(1, values.ndim))), -1, values)


# As often as all others together: -1 is what real engines return.
_OTHER_IDS: tuple[Twist, ...] = (_gaps,) * len(_OTHER)
_SCALARS: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2, 3.0, 0.5, -0.5, 1e-9, 1e9, 2**31, 2**70, float("nan"), float("inf"),
    "4", b"4", 1j, [], [3], (), {}, np.int8(3), np.uint64(3), np.float32(0.5), np.float64("nan"),
    np.array(3), np.array([3]), np.bool_(True), object, "auto", "exact", "cosine", "nn", "hybrid",
    "alpha-qe", "temporal", "truncated", "fsr", "l2", "float64", "float16", "aggregate", "eigen",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Call:
    """A public function with arguments that it takes: arrays that are twisted, and settings."""

    name: str
    function: Callable[..., Any]
    arrays: dict[str, Any]
    settings: dict[str, Any]


def _dtype(rng: np.random.Generator) -> str:
    return str(rng.choice(["float32", "float64"]))


def _world(rng: np.random.Generator) -> tuple[_Call, ...]:
    """A small database, and every door to it."""
    n, d, m, q = 24, 5, 3, 6
    centers = rng.standard_normal((3, d))
    vectors = centers[rng.integers(0, 3, n)] + 0.5 * rng.standard_normal((n, d))
    queries = vectors[rng.integers(0, n, m)] + 0.1
    basis, dtype = str(rng.choice(["aggregate", "eigen", "none"])), _dtype(rng)
    index = hg.build_index(vectors, neighbors=4, basis=basis, dtype=dtype, backend="numpy")
    bare = hg.DiffusionIndex(replace(index.state, descriptors=None))
    own = hg.nearest_neighbors(vectors, k=4, dtype="float64", backend="numpy")
    found = hg.nearest_neighbors(vectors, queries, k=q, dtype="float64", backend="numpy")
    results = {"ids": found.ids, "similarities": found.similarities}
    labels = rng.integers(0, 3, n)
    rankings = np.stack([rng.permutation(n) for _ in range(m)])
    stopping = {"k": 5, "method": "auto", "steps": 3, "rtol": None, "batch": None}
    graph = {"gamma": 3.0, "alpha": 0.9, "basis": "auto", "rank": 2, "seed": 3}
    return (
        _Call("search", index.search, {"queries": queries}, {**stopping, "query_neighbors": 3}),
        _Call(
            "rerank", index.rerank, results, {**stopping, "query_neighbors": 3, "metric": "cosine"}
        ),
        _Call("rerank", bare.rerank, results, {**stopping, "query_neighbors": 3}),
        _Call("search_items", index.search_items, {"ids": np.arange(m)}, stopping),
        _Call("add", index.add, {"descriptors": queries}, {}),
        _Call("remove", index.remove, {"ids": np.arange(m)}, {}),
        _Call(
            "build_index",
            lambda descriptors, **options: hg.build_index(descriptors, backend="numpy", **options),
            {"descriptors": vectors},
            {**graph, "neighbors": 4, "knn": "exact", "dtype": dtype, "precision": "float32"},
        ),
        _Call(
            "build_index_from_neighbors",
            lambda **options: hg.build_index_from_neighbors(backend="numpy", **options),
            {"ids": own.ids, "similarities": own.similarities, "descriptors": vectors},
            {**graph, "metric": "cosine", "dtype": dtype},
        ),
        _Call(
            "observe",
            lambda **options: hg.observe(backend="numpy", **options),
            results,
            {"n": n, "gamma": 3.0, "query_neighbors": 3, "dtype": dtype, "metric": "cosine"},
        ),
        _Call(
            "nearest_neighbors",
            lambda **options: hg.nearest_neighbors(backend="numpy", **options),
            {"descriptors": vectors, "queries": queries},
            {"k": 4, "knn": "exact", "dtype": dtype},
        ),
        _Call(
            "augment_database",
            lambda **options: hg.augment_database(
                expansion=hg.Expansion(neighbors=3), backend="numpy", **options
            ),
            {"descriptors": vectors},
            {"dtype": dtype},
        ),
        _Call("Expansion", hg.Expansion, {}, {"neighbors": 3, "alpha": 3.0}),
        _Call("agreement", evaluation.agreement, {"ids": rankings, "exact_ids": rankings}, {}),
        _Call(
            "mean_average_precision",
            evaluation.mean_average_precision,
            {"ids": rankings, "labels": labels, "query_labels": labels[:m]},
            {},
        ),
        _Call("ranked", evaluation.ranked, {"scores": queries @ vectors.T}, {"k": 4}),
    )


def _numbers(result: Any) -> list[Any]:
    """What two answers to the same question must have in common."""
    if isinstance(result, hg.DiffusionIndex):
        return [np.sort(np.asarray(result.graph.degrees))]
    if isinstance(result, hg.Ranking):
        return [result.ids, result.scores]
    if isinstance(result, hg.Neighbors):
        return [result.ids, result.similarities]
    if isinstance(result, hg.Observation):
        return [result.ids, result.weights]
    if isinstance(result, hg.Expansion):
        return [result.neighbors, result.alpha]
    return [np.asarray(result)]


def _senseless(result: Any, arguments: dict[str, Any]) -> str:
    """What is wrong with a result, whatever the question was; empty if nothing is."""
    if isinstance(result, hg.Ranking):
        given = arguments.get("ids")
        if isinstance(given, np.ndarray) and given.ndim == 2:
            if np.any(result.ids[np.all(given < 0, axis=1)] >= 0):
                return "items were found for a query without a result"
        ids, scores = result.ids, result.scores
        if np.any((ids < 0) != (scores == -np.inf)) or np.any(np.isnan(scores)):
            return "scores of -inf and ids of -1 do not go together"
        if np.any(scores[:, 1:] > scores[:, :-1]):
            return "scores are not in order"
        for line in ids.tolist():
            real = [item for item in line if item >= 0]
            if len(set(real)) != len(real):
                return "an item comes twice"
        return ""
    for values in _numbers(result):
        if not np.all(np.isfinite(np.asarray(values, np.float64))):
            return "not finite"
    return ""


@dataclass(frozen=True, slots=True)
class _Odd:
    """Arguments of which one or two are odd; what is to come of them; and what was done."""

    arguments: dict[str, Any]
    same: bool
    refused: bool
    told: str


def _twisted(call: _Call, rng: np.random.Generator) -> _Odd:
    arguments = {**call.arrays, **call.settings}
    same, refused, done = True, set(), []
    for _ in range(int(rng.integers(1, 3))):
        name = str(rng.choice(list(arguments)))
        if name in call.settings:
            scalar = _SCALARS[int(rng.integers(0, len(_SCALARS)))]
            # Billions of steps are an order that can be followed, some day.
            endless = name == "steps" and type(scalar) is int and scalar > 1000
            arguments[name] = 30 if endless else scalar
            same = False
            done.append(f"{name}={arguments[name]!r}")
            continue
        values = call.arrays[name]
        refused.discard(name)
        if name in _CHECKED and rng.random() < 0.2:
            number = int(rng.integers(0, len(_REFUSED)))
            arguments[name] = _REFUSED[number](values, rng)
            same = False
            refused.add(name)
            done.append(f"{name} of kind {number}")
            continue
        if rng.random() < 0.3:
            number = int(rng.integers(0, len(_SAME)))
            arguments[name] = _SAME[number](values, rng)
            done.append(f"{name} in form {number}")
            continue
        others = _OTHER + (_OTHER_FLOATS if values.dtype.kind == "f" else _OTHER_IDS)
        number = int(rng.integers(0, len(others)))
        same = False
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # the twist's own
            try:
                arguments[name] = others[number](values, rng)
            except (TypeError, ValueError, OverflowError):
                arguments[name] = None
        done.append(f"{name} twisted by {number}")
    # What stands beside an id of -1 is not looked at, and other ids may be all -1.
    untouched = arguments.get("ids") is call.arrays.get("ids")
    certain = "ids" in refused or (bool(refused) and untouched)
    return _Odd(arguments, same, certain, f"{call.name}({', '.join(done)})")


def _fault(call: _Call, expected: Any, rng: np.random.Generator) -> Failure | None:
    odd = _twisted(call, rng)
    told = odd.told
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # What an exponent beyond all measure leaves is told by a warning.
            warnings.filterwarnings("ignore", ".* items are left without an edge")
            result = call.function(**odd.arguments)
    except _OURS as error:
        frames = traceback.extract_tb(error.__traceback__)
        sentence = str(error)
        if odd.same:
            return Failure("wrong", f"{told}: refused: {sentence}")
        # Raised by NumPy deep inside, it tells nothing about the argument.
        own = frames[-1].filename.startswith(_PACKAGE) and "raise" in (frames[-1].line or "")
        if not own or not sentence.endswith("."):
            return Failure("foreign error", f"{told}: {error!r} in {frames[-1].filename}")
        return None
    except Exception as error:
        return Failure("foreign error", f"{told}: {error!r}")
    fault = "taken" if odd.refused else _senseless(result, odd.arguments)
    if not fault and odd.same:
        pairs = zip(_numbers(result), _numbers(expected), strict=True)
        if not all(np.allclose(one, other, rtol=1e-4, atol=1e-5) for one, other in pairs):
            fault = "another answer"
    return Failure("wrong", f"{told}: {fault}") if fault else None


def _trial(seed: int, folder: Path) -> Tally:
    rng = np.random.default_rng(seed)
    calls = _world(rng)
    answers = [call.function(**call.arrays, **call.settings) for call in calls]
    failures = []
    for _ in range(_CALLS_PER_TRIAL):
        number = int(rng.integers(0, len(calls)))
        fault = _fault(calls[number], answers[number], rng)
        if fault is not None:
            failures.append(fault)
    return Tally(_CALLS_PER_TRIAL, tuple(failures))


KINDS = (
    Kind(
        name="inputs",
        promise="Odd arguments get a right answer, or an error that says what to write.",
        unit="calls",
        short=5_000,
        long=50_000,
        trial=_trial,
    ),
)
