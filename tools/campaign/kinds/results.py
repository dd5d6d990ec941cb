"""Results of other engines, said in other ways, or not being what they seem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from common import Failure, Kind, Tally
from numpy.typing import NDArray

import hybrid_gpu as hg

_CALLS_PER_TRIAL = 60

Twist = Callable[[Any, Any, np.random.Generator], dict[str, Any]]


def _with_gaps(ids: Any, cosines: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Entries of -1 between the results, and beside them what engines leave there."""
    m, q = ids.shape
    wide = np.full((m, q + 2), -1, ids.dtype)
    beside = rng.choice([np.nan, 3.4e38, -3.4e38, 0.99], (m, q + 2))
    places = np.sort(np.argsort(rng.random((m, q + 2)), axis=1)[:, :q], axis=1)
    np.put_along_axis(wide, places, ids, axis=1)
    np.put_along_axis(beside, places, cosines, axis=1)
    return {"ids": wide, "similarities": beside}


def _with(cosines: Any, value: float, rng: np.random.Generator) -> Any:
    changed = cosines.copy()
    changed.flat[rng.integers(0, changed.size)] = value
    return changed


# Other ways to say the same: the answer must be the same.
_SAME: tuple[Twist, ...] = (
    _with_gaps,
    lambda ids, cosines, rng: {"similarities": 1 - cosines, "metric": "cosine-distance"},
    lambda ids, cosines, rng: {"similarities": 2 - 2 * cosines, "metric": "squared-l2"},
    lambda ids, cosines, rng: {
        "similarities": np.sqrt(np.maximum(2 - 2 * cosines, 0)),
        "metric": "l2",
    },
)

# What cannot be results best first with their cosines: an answer would be a wrong one.
_NONE: tuple[Twist, ...] = (
    lambda ids, cosines, rng: {"ids": ids[:, ::-1], "similarities": cosines[:, ::-1]},
    lambda ids, cosines, rng: {"similarities": 1 - cosines},
    lambda ids, cosines, rng: {"similarities": 2 - 2 * cosines},
    lambda ids, cosines, rng: {"similarities": cosines * 30},
    lambda ids, cosines, rng: {"metric": str(rng.choice(["cosine-distance", "l2", "squared-l2"]))},
    lambda ids, cosines, rng: {"similarities": _with(cosines, np.nan, rng)},
    lambda ids, cosines, rng: {"similarities": _with(cosines, np.inf, rng)},
    lambda ids, cosines, rng: {"ids": np.ma.array(ids, mask=False)},
    lambda ids, cosines, rng: {"similarities": np.ma.array(cosines, mask=False)},
)


@dataclass(frozen=True, slots=True)
class _Door:
    """A function that takes results, results for it, and the numbers of its answer."""

    name: str
    function: Callable[..., Any]
    results: dict[str, Any]
    numbers: Callable[[Any], NDArray[np.float64]]


def _doors(rng: np.random.Generator) -> tuple[_Door, ...]:
    n, d, m, q = 24, 5, 3, 6
    centers = rng.standard_normal((3, d))
    vectors = centers[rng.integers(0, 3, n)] + 0.5 * rng.standard_normal((n, d))
    queries = vectors[rng.integers(0, n, m)] + 0.1
    basis = str(rng.choice(["aggregate", "eigen", "none"]))
    index = hg.build_index(vectors, neighbors=4, basis=basis, dtype="float64", backend="numpy")
    bare = hg.DiffusionIndex(replace(index.state, descriptors=None))
    own = hg.nearest_neighbors(vectors, k=4, dtype="float64", backend="numpy")
    found = hg.nearest_neighbors(vectors, queries, k=q, dtype="float64", backend="numpy")
    lists = {"ids": own.ids, "similarities": own.similarities}
    results = {"ids": found.ids, "similarities": found.similarities}
    count = int(rng.integers(1, q + 1))

    def observed(**results: Any) -> Any:
        options = {"query_neighbors": count, "dtype": "float64", "backend": "numpy"}
        return hg.observe(n=n, **options, **results)

    def reranked(index: hg.DiffusionIndex) -> Callable[..., Any]:
        return lambda **results: index.rerank(k=n, steps=4, query_neighbors=count, **results)

    return (
        _Door("rerank", reranked(index), results, lambda ranking: ranking.scores),
        _Door("rerank, no descriptors", reranked(bare), results, lambda ranking: ranking.scores),
        _Door("observe", observed, results, lambda seen: seen.weights),
        _Door(
            "build_index_from_neighbors",
            lambda **lists: hg.build_index_from_neighbors(
                basis="none", dtype="float64", backend="numpy", **lists
            ),
            lists,
            lambda built: np.asarray(built.graph.degrees),
        ),
    )


def _fault(door: _Door, expected: Any, rng: np.random.Generator) -> str:
    """What went wrong with results said in another way; empty if nothing did."""
    same = bool(rng.random() < 0.5)
    twists = _SAME if same else _NONE
    number = int(rng.integers(0, len(twists)))
    told = f"{door.name}, {'the same' if same else 'no'} results {number}"
    changed = twists[number](door.results["ids"], door.results["similarities"], rng)
    try:
        answer = door.numbers(door.function(**{**door.results, **changed}))
    except (ValueError, TypeError) as error:
        return f"{told}: refused: {error}" if same else ""
    if not same:
        return f"{told}: taken"
    right = np.allclose(answer, door.numbers(expected), rtol=1e-6, atol=1e-9)
    return "" if right else f"{told}: another answer"


def _nothing_fault(door: _Door, expected: hg.Ranking) -> str:
    """A query without results, before the others: nothing for it, the same for them."""
    ids, cosines = door.results["ids"], door.results["similarities"]
    ranking = door.function(
        ids=np.concatenate([np.full_like(ids[:1], -1), ids]),
        similarities=np.concatenate([np.full_like(cosines[:1], np.nan), cosines]),
    )
    if np.any(ranking.ids[0] != -1) or np.any(ranking.scores[0] != -np.inf):
        return f"{door.name}: {ranking.ids[0].tolist()} for a query without results"
    if not np.allclose(ranking.scores[1:], expected.scores, rtol=1e-6, atol=1e-9):
        return f"{door.name}: another answer beside a query without results"
    return ""


def _trial(seed: int, folder: Path) -> Tally:
    rng = np.random.default_rng(seed)
    doors = _doors(rng)
    answers = [door.function(**door.results) for door in doors]
    faults = [_nothing_fault(doors[number], answers[number]) for number in (0, 1)]
    for _ in range(_CALLS_PER_TRIAL - len(faults)):
        number = int(rng.integers(0, len(doors)))
        faults.append(_fault(doors[number], answers[number], rng))
    return Tally(_CALLS_PER_TRIAL, tuple(Failure("wrong", fault) for fault in faults if fault))


KINDS = (
    Kind(
        name="results",
        promise="Results of other engines are taken as they are meant, or refused.",
        unit="calls",
        short=3_000,
        long=50_000,
        trial=_trial,
    ),
)
