"""How long does a batch of weighted seeds take beside igraph, one question at a time?

    python bench/graph_and_seeds.py [--items 12000 --items 60000] [--questions 128] [--no-record]
    python bench/graph_and_seeds.py --quick --no-record

Personalized PageRank with damping 0.5, as HippoRAG asks for it, and 0.85, on graphs like those of
such pipelines: a third of the items are passages, joined to 8 phrases each, of which few are very
common; some phrases are joined as synonyms. A question seeds five phrases and four passages, and
wants the 100 best of all items.

igraph's ``personalized_pagerank`` (PRPACK) answers one question after another, from Python lists;
its time is that of the call alone, with as many OpenMP threads as it takes by itself, and with one,
which is faster on busy machines; "times faster" is beside the faster of both. Ours is the time of
``search_items`` for all questions in one call. "setup s" leads from arrays of edges to a graph, or
to an index that is warmed up. Beside every time: the part of igraph's 100 best that was found, the
part of the questions with the same items in the same order (scores that differ by less than 1e-9
may change places), and the largest difference of a score, relative to igraph's.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Annotated, Any

import igraph
import numpy as np
import typer
from common import best_of, record, show
from threadpoolctl import threadpool_limits

import hybrid_gpu as hg

DAMPINGS = (0.5, 0.85)
K = 100
WAYS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("auto", "float32", {}),
    ("hybrid", "float32", {"method": "hybrid"}),
    ("hybrid, 1e-9", "float64", {"method": "hybrid", "accuracy": 1e-9}),
)


def passages_and_phrases(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges (e, 2) and weights (e,) of a graph of n items, a third of them passages."""
    rng = np.random.default_rng(seed)
    passages = n // 3
    phrases = n - passages
    held = passages + (phrases * rng.random((passages, 8)) ** 3).astype(np.int64)
    edges = np.stack([np.repeat(np.arange(passages), 8), held.ravel()], axis=1)
    synonyms = passages + rng.integers(0, phrases, (phrases // 2, 2))
    synonyms = synonyms[synonyms[:, 0] != synonyms[:, 1]]
    weights = np.concatenate([np.ones(len(edges)), rng.uniform(0.8, 1, len(synonyms))])
    return np.concatenate([edges, synonyms]), weights


def questions_of(n: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Seeds (m, 9) and their weights: five phrases, and four passages with a twentieth of it."""
    rng = np.random.default_rng(seed)
    phrases = np.stack([rng.choice(np.arange(n // 3, n), 5, replace=False) for _ in range(count)])
    passages = np.stack([rng.choice(n // 3, 4, replace=False) for _ in range(count)])
    seeds = np.concatenate([phrases, passages], axis=1)
    return seeds, np.tile([1.0] * 5 + [0.05] * 4, (count, 1))


def by_igraph(
    graph: igraph.Graph, seeds: np.ndarray, weights: np.ndarray, damping: float
) -> tuple[np.ndarray, float]:
    """igraph's scores (m, n) of some questions, and the seconds of each."""
    scores, seconds = [], 0.0
    for items, values in zip(seeds, weights, strict=True):
        reset = np.bincount(items, weights=values, minlength=graph.vcount()).tolist()
        start = time.perf_counter()
        found = graph.personalized_pagerank(damping=damping, reset=reset, weights="weight")
        seconds += time.perf_counter() - start
        scores.append(np.array(found))
    return np.stack(scores), seconds / len(seeds)


def judged(ids: np.ndarray, scores: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """How near rankings are to those of igraph, whose scores are (m, n)."""
    best = np.argsort(-exact, axis=1, kind="stable")[:, :K]
    agreement = np.mean([len(set(a) & set(b)) / K for a, b in zip(ids, best, strict=True)])
    there, theirs = (np.take_along_axis(exact, some, axis=1) for some in (ids, best))
    same = np.all(np.abs(there - theirs) < 1e-9, axis=1)
    return {
        "agreement@100": float(agreement),
        "same order": float(np.mean(same)),
        "relative error": float(np.max(np.abs(scores - there) / there)),
    }


def rows_of(n: int, damping: float, questions: int, judges: int) -> list[dict[str, Any]]:
    """The ways on one graph."""
    edges, values = passages_and_phrases(n, seed=7)
    seeds, weights = questions_of(n, questions, seed=17)
    start = time.perf_counter()
    graph = igraph.Graph(n=n, edges=edges.tolist(), edge_attrs={"weight": values.tolist()})
    setup = time.perf_counter() - start
    facts = {"items": n, "edges": len(edges), "damping": damping}
    rows: list[dict[str, Any]] = []
    for threads in (None, 1):
        with threadpool_limits(threads, user_api="openmp"):
            exact, each = by_igraph(graph, seeds[:judges], weights[:judges], damping)
        own = "its own threads" if threads is None else "1 thread"
        times = {"setup s": setup, "ms per question": 1e3 * each, "times faster": None}
        right = {"agreement@100": 1.0, "same order": 1.0, "relative error": 0.0}
        rows.append({"way": f"igraph, one at a time, {own}", **facts, **times, **right})
    seconds = min(row["ms per question"] for row in rows) / 1e3
    for name, dtype, options in WAYS:
        start = time.perf_counter()
        index = hg.build_index_from_graph(edges, weights=values, n=n, alpha=damping, dtype=dtype)
        index.warm_up()
        setup = time.perf_counter() - start
        asked = {"k": K, "normalization": "random-walk", **options}

        def run(index: hg.DiffusionIndex = index, asked: dict[str, Any] = asked) -> hg.Ranking:
            return index.search_items(seeds, weights=weights, **asked)

        found = run()
        each = best_of(run, times=2) / questions
        rows.append(
            {
                "way": f"{name}, {dtype}",
                **facts,
                "setup s": setup,
                "ms per question": 1e3 * each,
                "times faster": seconds / each,
                **judged(found.ids[:judges], found.scores[:judges], exact),
            }
        )
    return rows


def main(
    items: Annotated[list[int] | None, typer.Option(help="Items of the graphs.")] = None,
    questions: Annotated[int, typer.Option(help="Questions of a call.")] = 128,
    judges: Annotated[int, typer.Option(help="Of these, igraph answers so many.")] = 32,
    quick: Annotated[bool, typer.Option("--quick", help="One small graph.")] = False,
    keep: Annotated[bool, typer.Option("--record/--no-record", help="Write a line.")] = True,
) -> None:
    sizes = items or ([1200] if quick else [12_000, 60_000])
    rows = [
        row
        for n in sizes
        for damping in (DAMPINGS[:1] if quick else DAMPINGS)
        for row in rows_of(n, damping, questions, min(judges, questions))
    ]
    show(f"{questions} questions of 9 seeds, the {K} best items", rows)
    settings = {"questions": questions, "judged": judges, "igraph": version("igraph")}
    if keep:
        print(record("graph_and_seeds", settings, rows))


if __name__ == "__main__":
    typer.run(main)
