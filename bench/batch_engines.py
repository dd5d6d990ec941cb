"""What does an engine cost beside one process, and what do two workers gain?

    python bench/batch_engines.py [--queries 100000] [--only local] [--no-record]
    python bench/batch_engines.py --queries 2000 --items 5000 --no-record

60,000 pictures of Fashion-MNIST are the database; the queries are its 10,000 others, each several
times with seeded noise, in files of the same size. "one process" is ``index.search`` on an open
index, all queries from memory: no files, no engine. The others are
``hg.rerank_files``, which starts its processes, opens the index in each of them, reads files and
writes answers with checksums. "ratio" is queries per second over those of one process.
"overhead %" is the part of a run's time in which its workers were at no file: starting, waiting,
bookkeeping; to open the index is a part of each worker's first file. Two workers have half of the
cores each; "all cores each" is what that spares them. Beside every speed stands the agreement of
its top 100 with that of one process, and whether its files have the bits of those of "local 1".
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from common import record, show

import hybrid_gpu as hg
from hybrid_gpu import datasets
from hybrid_gpu.backends.threads import core_count

K, NOISE, SEED = 100, 0.02, 83
ENGINES = ("local", "dask", "ray")


def query_set(pictures: np.ndarray, count: int) -> np.ndarray:
    """So many pictures, in turns, each with noise of its own."""
    rng = np.random.default_rng(SEED)
    chosen = pictures[np.arange(count) % len(pictures)]
    scale = NOISE * np.linalg.norm(chosen, axis=1, keepdims=True) / chosen.shape[1] ** 0.5
    noise = rng.standard_normal(chosen.shape, dtype=np.float32)
    return (chosen + scale.astype(np.float32) * noise).astype(np.float32)


def measured(place: Path, name: str, files: list[Path], **options: Any) -> tuple[Any, float]:
    """One run over all files, and the part of its time in which workers were at none."""
    threads = options.pop("threads", None)
    rerank = hg.Reranker(place / "index", k=K, backend="numpy", threads=threads)
    report = hg.rerank_files(rerank, files, place / name, **options)
    if not report.complete:
        raise RuntimeError(str(report.failed))
    busy = sum(shard.seconds for shard in report.shards) / report.workers
    return report, 100 * max(0.0, 1 - busy / report.seconds)


def answers_of(folder: Path, files: list[Path]) -> tuple[np.ndarray, list[bytes]]:
    """The ids of all queries, and the bytes of every file."""
    paths = [folder / f"{file.stem}.npz" for file in files]
    ids = np.concatenate([np.load(path)["ids"] for path in paths])
    return ids, [path.read_bytes() for path in paths]


def agreement(found: np.ndarray, exact: np.ndarray) -> float:
    """The part of the top items that two rankings share."""
    pairs = zip(found, exact, strict=True)
    return float(np.mean([len(np.intersect1d(one, other)) for one, other in pairs]) / K)


def main(
    folder: Annotated[Path | None, typer.Option(help="Folder of Fashion-MNIST's files.")] = None,
    queries: Annotated[int, typer.Option(help="Queries in all.")] = 100_000,
    items: Annotated[int, typer.Option(help="Items of the database.")] = 60_000,
    files: Annotated[int, typer.Option(help="Files that the queries are in.")] = 20,
    only: Annotated[list[str] | None, typer.Option(help="Engines; all if none is named.")] = None,
    recorded: Annotated[bool, typer.Option("--record/--no-record")] = True,
) -> None:
    split = datasets.fashion_mnist(folder)
    vectors = query_set(split.queries.descriptors, queries)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        built = hg.build_index(split.database.descriptors[:items], backend="numpy")
        print(built)
        built.save(place / "index")
        parts = [place / f"part{number:03}.npy" for number in range(files)]
        for path, part in zip(parts, np.array_split(vectors, files), strict=True):
            np.save(path, part)
        index = hg.load_index(place / "index", backend="numpy")
        index.search(vectors[:128], k=K)
        start = time.perf_counter()
        exact = index.search(vectors, k=K)
        alone = time.perf_counter() - start
        rows = [
            {
                "way": "one process",
                "workers": 1,
                "threads each": core_count(),
                **speed(alone, queries, alone),
                "overhead %": 0.0,
                "agreement@100": 1.0,
                "same bits": None,
            }
        ]
        bits: list[bytes] = []
        for name, options in ways(only or list(ENGINES)):
            report, overhead = measured(place, name.replace(" ", "-"), parts, **dict(options))
            ids, content = answers_of(Path(report.folder), parts)
            bits = bits or content
            threads = options.get("threads", max(1, core_count() // report.workers))
            rows.append(
                {
                    "way": name,
                    "workers": report.workers,
                    "threads each": threads,
                    **speed(report.seconds, queries, alone),
                    "overhead %": overhead,
                    "agreement@100": agreement(ids, exact.ids),
                    "same bits": content == bits,
                }
            )
            show(name, rows[-1:])
    show(f"{queries:,} queries on {items:,} items of Fashion-MNIST", rows)
    settings = {"items": items, "queries": queries, "files": files, "k": K}
    settings |= {"method": exact.report.method}
    if recorded:
        print(record("batch_engines", settings, rows))


def ways(engines: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Every engine with 1 and 2 workers; local ones also with more threads than cores."""
    found: list[tuple[str, dict[str, Any]]] = []
    for engine in engines:
        found += [(f"{engine} {count}", {"engine": engine, "workers": count}) for count in (1, 2)]
        if engine == "local":
            crowded = {"engine": engine, "workers": 2, "threads": core_count()}
            found.append(("local 2, all cores each", crowded))
    return found


def speed(seconds: float, queries: int, alone: float) -> dict[str, float]:
    """The time of a run, and what it is beside that of one process."""
    return {"seconds": seconds, "queries/s": queries / seconds, "ratio": alone / seconds}


if __name__ == "__main__":
    typer.run(main)
