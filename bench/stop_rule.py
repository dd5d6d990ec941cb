"""When a local search stops, how many of its best items are still wrong?

    python bench/stop_rule.py [--items 100000 --items 1000000] [--no-record]

Searches for the best 100 and 1,000 items that never stop by themselves, cut after each of their
rounds: the items visited so far, the best ones that changed in the round, and those that are still
wrong. "wrong / changes" is what the rule of local search counts on for long rankings. Means over
the queries, of rounds in which the visited items grew; the same data, queries and exact rankings as
in ``bench/latency.py``.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from common import record, show
from latency import ALPHA, built, exact_ranking, observed
from peers import neighbors_of

import hybrid_gpu as hg
from hybrid_gpu.diffusion.local import effort_for, most_room

RANKINGS = (100, 1000)
ROUNDS = 12
ROOM = 1 << 18


def rows_of(index: hg.DiffusionIndex, seen: tuple[Any, Any], exact: np.ndarray) -> list[Any]:
    """What each round changed, and what it left wrong, for every length of a ranking."""
    state = index.state
    places = np.asarray(state.numbering.to_places(np.asarray(seen[0], np.int64), np))
    weights = np.maximum(seen[1], 0).astype(np.float32) ** index.gamma
    problem = state.local_problem(ALPHA)
    rows = []
    for k in RANKINGS:
        endless = replace(
            effort_for(k, ALPHA, min(ROOM, most_room(index.n))), drift=-1.0, calm=-1.0
        )
        before = None
        for number in range(1, ROUNDS + 1):
            effort = replace(endless, rounds=number)
            answer = state.backend.local_search(problem, places, weights, k, effort)
            ids = np.asarray(state.numbering.to_ids(answer.places, np))
            if before is not None:
                grew = answer.visited > before[1]
                if not grew.any():
                    break
                new = [
                    k - np.isin(one, other).sum() for one, other in zip(ids, before[0], strict=True)
                ]
                wrong = [
                    k - np.isin(one[:k], other).sum() for one, other in zip(exact, ids, strict=True)
                ]
                changes, left = np.asarray(new)[grew], np.asarray(wrong)[grew]
                rows.append(
                    {
                        "items": index.n,
                        "k": k,
                        "round": number,
                        "queries": int(grew.sum()),
                        "visited": float(answer.visited[grew].mean()),
                        "changes": float(changes.mean()),
                        "wrong": float(left.mean()),
                        "most wrong": int(left.max()),
                        "wrong / changes": float(left.sum() / max(1, changes.sum())),
                    }
                )
                print(list(rows[-1].values()), flush=True)
            before = ids, answer.visited
    return rows


def main(
    items: Annotated[list[int] | None, typer.Option(help="Sizes; 100k, 1M.")] = None,
    queries: Annotated[int, typer.Option(help="To follow.")] = 96,
    no_record: Annotated[bool, typer.Option(help="Only print.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Folder for k-NN lists.")] = None,
    data_folder: Annotated[Path | None, typer.Option(help="Folder of the IDX files.")] = None,
) -> None:
    cache = cache or Path(tempfile.gettempdir()) / "hybrid-gpu-bench"
    rows: list[dict[str, Any]] = []
    for size in items or [100_000, 1_000_000]:
        lists = neighbors_of("million", size, cache, data_folder)
        index = built(lists, "float32", warm=True)[0]
        seen = observed(index, lists, queries)
        rows += rows_of(index, seen, exact_ranking(lists, seen, max(RANKINGS)))
    show("Rounds of local searches", rows)
    if not no_record:
        print(record("stop_rule", {"alpha": ALPHA, "queries": queries}, rows))


if __name__ == "__main__":
    typer.run(main)
