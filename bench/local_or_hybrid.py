"""Where is a local search faster than solving batches? What ``method="auto"`` goes by.

    python bench/local_or_hybrid.py [--items 20000 --items 80000] [--no-record]

Fashion-MNIST and warps of its pictures. 128 of the items are queries, in one batch; of the times,
the shortest of three counts. "ratio" is the time of ``hybrid`` over that of ``local``, "auto" what
a search takes by itself. Agreements are with ``hybrid`` at a residual of 1e-5.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from common import best_of, record, show
from peers import descriptors_of

import hybrid_gpu as hg
from hybrid_gpu import evaluation

QUERIES = 128
RANKINGS = (10, 100, 1000)
# Graphs as the paper has them, denser ones, and the default.
GRAPHS: tuple[dict[str, Any], ...] = (
    {"neighbors": 50, "alpha": 0.99},
    {"neighbors": 150, "alpha": 0.99},
    {"neighbors": 300, "alpha": 0.99},
    {"neighbors": "auto", "alpha": 0.9},
)


def rows_of(descriptors: np.ndarray, graph: dict[str, Any]) -> list[dict[str, Any]]:
    """Times and agreements of one index, for every length of a ranking."""
    n = len(descriptors)
    index = hg.build_index(descriptors, **graph, basis="aggregate", keep_descriptors=False)
    index.warm_up()
    sample = np.random.default_rng(53).choice(n, QUERIES, replace=False)
    exact = index.search_items(sample, k=max(RANKINGS), method="hybrid", rtol=1e-5).ids
    rows = []
    for k in RANKINGS:
        found, seconds = {}, {}
        for method in ("local", "hybrid"):

            def search(method: str = method, k: int = k) -> hg.Ranking:
                return index.search_items(sample, k=k, method=method)

            found[method], seconds[method] = search(), best_of(search)
        facts = found["local"].report.local
        assert facts is not None
        rows.append(
            {
                "items": n,
                "neighbors": index.neighbors.ids.shape[1],
                "alpha": graph["alpha"],
                "entries per item": index.graph.adjacency.data.size / n,
                "k": k,
                "local ms": 1e3 * seconds["local"] / QUERIES,
                "hybrid ms": 1e3 * seconds["hybrid"] / QUERIES,
                "ratio": seconds["hybrid"] / seconds["local"],
                "auto": index.search_items(sample[:1], k=k).report.method,
                "visited": float(np.mean(facts.visited)),
                "settled": float(np.mean(facts.settled)),
                **{
                    f"{method}, agreement": evaluation.agreement(ranking.ids, exact[:, :k])
                    for method, ranking in found.items()
                },
            }
        )
        print(list(rows[-1].values()), flush=True)
    return rows


def main(
    items: Annotated[list[int] | None, typer.Option(help="Sizes; 10k, 20k, 40k, 80k.")] = None,
    no_record: Annotated[bool, typer.Option(help="Only print.")] = False,
    data_folder: Annotated[Path | None, typer.Option(help="Folder of the IDX files.")] = None,
) -> None:
    sizes = items or [10_000, 20_000, 40_000, 80_000]
    descriptors = descriptors_of("million", max(sizes), data_folder)
    rows = [row for size in sizes for graph in GRAPHS for row in rows_of(descriptors[:size], graph)]
    show("Local search or batches", rows)
    if not no_record:
        print(record("local_or_hybrid", {"queries": QUERIES, "seed": 53}, rows))


if __name__ == "__main__":
    typer.run(main)
