"""Indexes that grow and shrink, against lists, graphs and solutions written out densely."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import Failure, Kind, Tally
from numpy.typing import NDArray

import hybrid_gpu as hg

_ANSWERS_PER_CHANGE = 12
# What a solve is asked for; the error of its scores is at most so much of the observation's norm.
_RTOL = {"float32": 1e-4, "float64": 1e-9}
_ROUNDING = {"float32": 1e-5, "float64": 1e-11}


@dataclass(slots=True)
class _World:
    """An index, and the vectors that it should be the index of."""

    index: hg.DiffusionIndex
    vectors: NDArray[np.float64]
    done: list[str]


def _vectors(rng: np.random.Generator, count: int, d: int) -> NDArray[np.float64]:
    """Clusters, strays, copies, zeros, and lengths from tiny to huge."""
    centers = np.random.default_rng(d).standard_normal((4, d))
    vectors = centers[rng.integers(0, 4, count)] + rng.standard_normal((count, d)) * 0.4
    if rng.random() < 0.3:
        vectors[rng.integers(0, count, count // 4)] = vectors[0]
    if rng.random() < 0.2:
        vectors[rng.integers(0, count)] = 0
    if rng.random() < 0.2:
        vectors *= 10.0 ** rng.integers(-15, 15, (count, 1))
    return vectors


def _born(rng: np.random.Generator) -> _World:
    d, n = int(rng.integers(2, 9)), int(rng.integers(2, 90))
    vectors = _vectors(rng, n, d)
    basis = str(rng.choice(["aggregate", "aggregate", "none", "eigen", "sparse-eigen", "labels"]))
    settings: dict[str, Any] = {
        "neighbors": int(rng.integers(1, min(n, 13))),
        "alpha": float(rng.choice([0.5, 0.9, 0.95, 0.99])),
        "gamma": float(rng.choice([1.0, 3.0])),
        "dtype": str(rng.choice(["float32", "float64"])),
        "basis": rng.integers(-1, 4, n) if basis == "labels" else basis,
    }
    if basis in ("aggregate", "eigen", "sparse-eigen"):
        settings["rank"] = [None, 1][int(rng.integers(0, 2))]
    index = hg.build_index(vectors, knn="exact", backend="numpy", **settings)
    return _World(index, vectors, [f"build {basis} {settings['neighbors']} of {n}x{d}"])


def _change(world: _World, rng: np.random.Generator) -> None:
    n, d = world.vectors.shape
    if n > 1 and rng.random() < 0.45:
        gone = rng.choice(n, int(rng.integers(1, n)) if rng.random() < 0.3 else 1, replace=False)
        world.done.append(f"remove {gone.size} of {n}")
        world.index = world.index.remove(gone)
        world.vectors = np.delete(world.vectors, gone, axis=0)
        return
    more = _vectors(rng, int(rng.integers(1, 40)) if rng.random() < 0.6 else 1, d)
    world.done.append(f"add {len(more)} to {n}")
    world.index = world.index.add(more)
    world.vectors = np.concatenate([world.vectors, more])


def _list_fault(world: _World) -> str:
    """What is wrong with the lists; empty if nothing is."""
    lists, slack = world.index.neighbors, _ROUNDING[world.index.dtype]
    assert lists is not None
    ids, similarities = np.asarray(lists.ids), np.asarray(lists.similarities)
    n, k = len(world.vectors), ids.shape[1]
    largest = np.abs(world.vectors).max(axis=1, keepdims=True)
    units = world.vectors / np.where(largest > 0, largest, 1)
    lengths = np.linalg.norm(units, axis=1, keepdims=True)
    units /= np.where(lengths > 0, lengths, 1)
    cosines = units @ units.T
    np.fill_diagonal(cosines, -np.inf)
    found = min(k, n - 1)
    if ids.shape[0] != n or np.any(ids[:, found:] != -1) or np.any(similarities[:, found:] != 0):
        return f"lists of {ids.shape} do not end with -1 behind {found} neighbors"
    ids, similarities = ids[:, :found], similarities[:, :found]
    if found and (ids.min() < 0 or any(len(set(line)) != found for line in ids.tolist())):
        return "a list has a gap or an item twice"
    # Among equals any may be listed: the similarities tell.
    best = -np.sort(-cosines, axis=1)[:, :found]
    if not np.allclose(similarities, best, atol=slack):
        return f"similarities are off by {np.abs(similarities - best).max():.1e}"
    if not np.allclose(np.take_along_axis(cosines, ids, axis=1), similarities, atol=slack):
        return "a listed item has another similarity"
    return ""


def _adjacency(world: _World) -> NDArray[np.float64]:
    """The normalized adjacency of the index's own lists, by the definition."""
    lists = world.index.neighbors
    assert lists is not None
    ids = np.asarray(lists.ids).astype(np.int64)
    n = len(ids)
    listed = np.zeros((n, n + 1))
    np.put_along_axis(listed, ids, np.maximum(np.asarray(lists.similarities, np.float64), 0), 1)
    one = listed[:, :n]
    affinity = np.where((one > 0) & (one.T > 0), (one + one.T) / 2, 0) ** world.index.gamma
    root = np.sqrt(affinity.sum(axis=1))
    root = np.where(root > 0, root, 1)
    return affinity / np.outer(root, root)


def _answer_faults(world: _World, rng: np.random.Generator) -> list[str]:
    """Answers to some items, by the index and by a dense solve."""
    index, n = world.index, len(world.vectors)
    exact = _adjacency(world)
    items = rng.integers(0, n, _ANSWERS_PER_CHANGE)
    solution = np.linalg.solve(np.eye(n) - index.alpha * exact, np.eye(n)[:, items])
    solution = (1 - index.alpha) * solution.T
    ranking = index.search_items(items, k=n, method="hybrid", rtol=_RTOL[index.dtype])
    faults = []
    for item, line, scores, right in zip(items, ranking.ids, ranking.scores, solution, strict=True):
        if sorted(line.tolist()) != list(range(n)):
            faults.append(f"item {item}: not every item once")
        elif not np.abs(scores - right[line]).max() <= 2 * _RTOL[index.dtype]:
            faults.append(f"item {item}: off by {np.abs(scores - right[line]).max():.1e}")
    return faults


def _trial(seed: int, folder: Path) -> Tally:
    rng = np.random.default_rng(seed)
    tried, failures = 0, []
    world: _World | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            world = _born(rng)
            for _ in range(int(rng.integers(2, 7))):
                _change(world, rng)
                fault = _list_fault(world)
                faults = [fault] if fault else _answer_faults(world, rng)
                tried += _ANSWERS_PER_CHANGE
                failures += [Failure("wrong", f"{one}, after {world.done}") for one in faults]
                if faults:
                    break
    except Exception as error:
        told = "" if world is None else f", after {world.done}"
        failures.append(Failure("foreign error", f"{error!r}{told}"))
    return Tally(max(tried, 1), tuple(failures))


KINDS = (
    Kind(
        name="updates",
        promise="After any additions and removals, lists and answers are those of a new index.",
        unit="answers",
        short=2_400,
        long=20_000,
        trial=_trial,
    ),
)
