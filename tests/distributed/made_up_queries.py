"""What the tests of distributed share: an index on disk, its answers, and functions for workers."""

from __future__ import annotations

import collections
import functools
import json
import os
import signal

import numpy as np

import hybrid_gpu as hg

ITEMS, DIMENSIONS, K = 90, 6, 7


def vectors(count, seed=31):
    """Points around a few centers that are the same for every seed."""
    centers = np.random.default_rng(5).standard_normal((4, DIMENSIONS)) * 2
    rng = np.random.default_rng(seed)
    return centers[rng.integers(0, 4, count)] + rng.standard_normal((count, DIMENSIONS))


def names(count=ITEMS):
    return [f"item {number}" for number in range(count)]


def save_index(folder, seed=31, **options):
    """An index in a folder."""
    keys = options.pop("keys", None)
    built(seed, None if keys is None else tuple(keys), **options).save(folder)


@functools.cache
def built(seed, keys, **options):
    own = None if keys is None else list(keys)
    return hg.build_index(vectors(ITEMS, seed), neighbors=6, keys=own, backend="numpy", **options)


def reranker(folder, **options):
    return hg.Reranker(folder, **{"k": K, "backend": "numpy", **options})


def same_answers(answers, ranking):
    """Whether answers in any form are a ranking, to the last bit."""
    named = "ids" if ranking.known is None else "keys"
    found = np.stack(list(answers[named])) if len(answers[named]) else np.empty((0, K))
    scores = np.stack(list(answers["scores"]))
    return np.array_equal(found, ranking.keys) and np.array_equal(scores, ranking.scores)


def ask_in_child(rerank, queries):
    """What a worker process does; its number tells that it was another one."""
    return os.getpid(), rerank(queries)


def write_sets(folder, count=4, size=5):
    """Files of queries, and their paths."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        np.save(folder / f"set{number}.npy", vectors(size, seed=100 + number))
    return [folder / f"set{number}.npy" for number in range(count)]


def contents(folder):
    """The bytes of all answers in a folder."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.suffix in (".npz", ".parquet")
    }


def computed(folder):
    """How often each file of answers was computed, by the manifest."""
    lines = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    return collections.Counter(line["done"]["output"] for line in lines if "done" in line)


def deadly(frequency):
    """A filter that kills a worker by signal 9 at its first use, as often as the folder says.

    It is called in the test's own process too, which is to live.
    """
    if os.getpid() != int(os.environ["TEST_SURVIVOR"]):
        for name in os.listdir(os.environ["TEST_DEATHS"]):
            try:
                os.unlink(os.path.join(os.environ["TEST_DEATHS"], name))
            except FileNotFoundError:
                continue  # another worker's
            os.kill(os.getpid(), signal.SIGKILL)
    return 0.1 / (1 - 0.9 * frequency)


def allow_deaths(monkeypatch, folder, count):
    """Let the next workers die, so many of them."""
    folder.mkdir()
    for number in range(count):
        (folder / str(number)).touch()
    monkeypatch.setenv("TEST_DEATHS", str(folder))
    monkeypatch.setenv("TEST_SURVIVOR", str(os.getpid()))
