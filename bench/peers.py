"""Who answers queries fastest, how exactly, and in how much memory: this library or its peers?

    pip install -e ".[faiss,peers]"
    pip install torch torch-ppr torch-geometric numba   # if wanted: not in the extra for their size
    python bench/peers.py --data fashion [--queries 128] [--only NAME ...] [--no-record]
    python bench/peers.py --data million
    python bench/peers.py --quick --no-record

Everybody ranks the same items for the same queries: the largest component of the reciprocal graph
of 50 neighbors, alpha 0.99, and for each query the five nearest items of that component. "Exact" is
conjugate gradients in float64 to a residual of 1e-12, which plain SciPy checks on the matrix in its
own order. The time of a query ends with its 100 best items in order. Everybody may use all cores:
this library, PyGSP and torch solve queries side by side, peers that know no batches get one query
on each core where threads help them. scikit-network has no other setup than the query's own.
PyG's ``get_ppr`` knows no weights of edges, and therefore another ranking, which is judged by the
same exact one. A local search scores the best items only: it has no relative error of all scores.

Each way has a process of its own. "setup s" begins with the normalized graph (or the affinity, for
those that normalize it themselves) in memory. "index MB" is what is kept to answer queries, the
graph included; "peak MB" what the process grew by at most, from before it read the graph until the
queries were answered. Ways that are slow are timed, and judged, on the first few queries only.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import scipy.sparse as sparse
import typer
from common import record, scores_by_item, show
from peer_problem import CORES, TOP, Problem, Solver, Way
from peer_solvers import ways
from scipy.sparse.csgraph import connected_components

import hybrid_gpu as hg
from hybrid_gpu import datasets, evaluation
from hybrid_gpu.index.build import BasisChoice, Settings, state_from_graph

NEIGHBORS = 50
OBSERVED = 5
COLUMNS = (
    "agreement@100",
    "relative error",
    "ms per query",
    "queries per second",
    "setup s",
    "index MB",
    "peak MB",
    "queries",
)
PACKAGES = (
    *("scikit-network", "pygsp", "pyamg", "igraph", "threadpoolctl"),
    *("torch", "torch-ppr", "torch-geometric", "numba"),
)
# Peers without which the table is whole: torch from PyPI brings gigabytes of CUDA along.
OPTIONAL = frozenset({"torch", "torch_ppr", "torch_geometric"})


def descriptors_of(data: str, items: int, folder: Path | None) -> np.ndarray:
    split = datasets.fashion_mnist(folder)
    parts = (split.database, split.queries)
    vectors = np.concatenate([part.descriptors for part in parts])
    if data == "fashion":
        return vectors[:items]
    labels = np.concatenate([part.labels for part in parts])
    whole = datasets.Dataset(split.database.name, vectors, labels, split.database.image_shape)
    # A smaller set is the beginning of a larger one.
    return datasets.augmented(whole, max(items, whole.n), 31, dimensions=64).descriptors[:items]


def neighbors_of(data: str, items: int, cache: Path, folder: Path | None) -> dict[str, Any]:
    """k-NN lists and the recall of a sample of them, from the cache or made and put there."""
    path = cache / f"{data}-{items}-{NEIGHBORS}.npz"
    if not path.exists():
        vectors = descriptors_of(data, items, folder)
        # Inverted files beyond what an exhaustive search does in minutes. The library probes 32.
        knn = "auto" if items <= 100_000 else "IVF2048,Flat"
        lists = hg.nearest_neighbors(vectors, k=NEIGHBORS, knn=knn, backend="numpy")
        sample = np.random.default_rng(37).choice(items, 500, replace=False)
        exact = hg.nearest_neighbors(
            vectors, vectors[sample], k=NEIGHBORS + 1, knn="exact", backend="numpy"
        ).ids
        # An item finds itself too, which its own list leaves out.
        others = [row[row != item][:NEIGHBORS] for item, row in zip(sample, exact, strict=True)]
        recall = evaluation.agreement(lists.ids[sample], np.stack(others))
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(
            path,
            ids=lists.ids.astype(np.int32),
            similarities=lists.similarities,
            recall=recall,
        )
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def affinity_of(ids: np.ndarray, similarities: np.ndarray) -> Any:
    """A: the cubed mean similarity of items that list each other, by SciPy alone."""
    n, k = ids.shape
    indptr = np.arange(0, n * k + 1, k, dtype=np.int32)
    weights = np.maximum(similarities, 0).astype(np.float64)
    lists = sparse.csr_array((weights.ravel(), ids.astype(np.int32).ravel(), indptr), shape=(n, n))
    lists.eliminate_zeros()
    mutual = lists.multiply(sparse.csr_array(lists.T).astype(bool))
    affinity = sparse.csr_array((mutual + mutual.T) / 2)
    affinity.data **= 3
    return affinity


def posed(lists: dict[str, Any], queries: int, folder: Path) -> Problem:
    """The problem on the largest component: seeded items, seen through their nearest items."""
    ids, similarities = lists["ids"], np.maximum(lists["similarities"], 0)
    affinity = affinity_of(ids, similarities)
    labels = connected_components(affinity, directed=False)[1]
    items = np.flatnonzero(labels == np.argmax(np.bincount(labels)))
    place = np.full(len(ids), -1)
    place[items] = np.arange(items.size)
    near = place[ids[items]]
    enough = np.flatnonzero((near >= 0).sum(axis=1) >= OBSERVED)
    sample = np.random.default_rng(41).choice(enough, queries, replace=False)
    first = np.argsort(near[sample] < 0, axis=1, kind="stable")[:, :OBSERVED]
    return Problem.write(
        folder,
        affinity[items][:, items],
        np.take_along_axis(near[sample], first, axis=1).astype(np.int64),
        np.take_along_axis(similarities[items[sample]], first, axis=1).astype(np.float64),
    )


def solved(problem: Problem) -> float:
    """Write the exact scores of all queries to the problem's folder; the worst residual."""
    adjacency = problem.matrix("float64")
    ids, similarities = problem.read("ids"), problem.read("similarities")
    backend = hg.select_backend("numpy")
    parts = (adjacency.data, adjacency.indices, adjacency.indptr)
    graph = hg.Graph(
        backend.csr(*parts, adjacency.shape),
        problem.read("degrees"),
        np.zeros(problem.n, np.int32),
    )
    settings = Settings(problem.alpha, problem.gamma, graph.dtype)
    index = hg.DiffusionIndex(
        state_from_graph(graph, None, None, settings, BasisChoice("none"), backend)
    )
    shape = (len(ids), problem.n)
    exact = np.lib.format.open_memmap(problem.folder / "exact.npy", "w+", np.float64, shape)
    observation, worst = problem.observations(), 0.0
    for start in range(0, len(ids), 16):
        rows = slice(start, start + 16)
        found = index.rerank(
            ids[rows], similarities[rows], k=problem.n, method="temporal", rtol=1e-12
        )
        exact[rows] = scores_by_item(found, problem.n)
        for number in range(start, start + len(found.ids)):
            y, x = (1 - problem.alpha) * observation(number), exact[number]
            left = np.linalg.norm(y - x + problem.alpha * (adjacency @ x))
            worst = max(worst, float(left / np.linalg.norm(y)))
    if worst > 1e-11:
        raise RuntimeError(f"the exact solution leaves a residual of {worst:.1e}.")
    return worst


def measured(way: Way, problem: Problem, seconds: float) -> dict[str, Any]:
    """The columns of one way, measured in this process."""
    count = len(problem.read("ids"))
    gc.collect()
    before = _start_of_peak()
    loaded = way.load(problem)
    begin, resident = time.perf_counter(), _resident()
    solver = way.setup(problem, loaded)
    setup, grown = time.perf_counter() - begin, _resident() - resident
    rate, found = _timing(solver, count, seconds)
    peak = _peak() - before
    values = (
        *_accuracy(found, solver, problem),
        1e3 * rate,
        1 / rate,
        setup,
        (grown if solver.memory is None else solver.memory) / 1e6,
        peak / 1e6,
        len(found),
    )
    return dict(zip(COLUMNS, values, strict=True))


def _timing(solver: Solver, count: int, seconds: float) -> tuple[float, np.ndarray]:
    """Seconds per query, of the best run with the most queries, and the items that it found.

    A run on one query does not count: it only tells how many more there is time for.
    """
    start = time.perf_counter()
    solver.top(np.arange(1))
    rate = time.perf_counter() - start
    # Four at least, unless one alone takes all the time.
    queries, fewest, spent = 0, 4 if rate < seconds else 1, 0.0
    for _ in range(3):
        if queries and spent > seconds / 2:
            break
        size = min(count, max(fewest, queries, int(seconds / rate)))
        start = time.perf_counter()
        found = solver.top(np.arange(size))
        lasted = time.perf_counter() - start
        # Queries side by side are cheaper than the first one was: there may be time for more.
        rate = min(rate, lasted / size) if size == queries else lasted / size
        queries, spent = size, spent + lasted
    return rate, found


def _accuracy(found: np.ndarray, solver: Solver, problem: Problem) -> tuple[float, float | None]:
    """Mean agreement of the best items, and mean relative error of all scores if there are any."""
    exact = np.load(problem.folder / "exact.npy", mmap_mode="r")
    numbers = np.arange(len(found))
    best = np.stack([np.argsort(-exact[number], kind="stable")[:TOP] for number in numbers])
    agreement = evaluation.agreement(found, best)
    if solver.scores is None:
        return agreement, None
    width = max(1, int(256e6 / (8 * problem.n)))
    errors: list[float] = []
    for start in range(0, numbers.size, width):
        chosen = numbers[start : start + width]
        truth = exact[chosen]
        wrong = np.linalg.norm(solver.scores(chosen) - truth, axis=1)
        errors.extend(wrong / np.linalg.norm(truth, axis=1))
    return agreement, float(np.mean(errors))


def missing(way: Way) -> str:
    """Why an optional peer is left out; empty if it is there."""
    absent = [name for name in way.packages if importlib.util.find_spec(name) is None]
    return f"{way.name}: skipped, no {' and no '.join(absent)}" if absent else ""


def _start_of_peak() -> int:
    """Resident bytes now, from where the peak is counted if the system allows that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _resident()
    except OSError:
        return _peak()


def _resident() -> int:
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def work(number: int, rank: int, folder: Path, seconds: float, pipe: Connection) -> None:
    """What a process of its own does: the columns of one way, or why there are none."""
    way = ways(rank)[number]
    try:
        for package in way.packages:
            importlib.import_module(package)
        pipe.send(measured(way, Problem(folder), seconds))
    except Exception as fault:  # whatever a peer does wrong is its own line, not the end
        pipe.send(f"does not run: {type(fault).__name__}: {fault}"[:120])


def row_of(number: int, rank: int, folder: Path, seconds: float, limit: float) -> dict[str, Any]:
    """One line of the table; a way that fails or takes too long gets a line that says so."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    arguments = (number, rank, folder, seconds, sender)
    process = context.Process(target=work, args=arguments, daemon=True)
    process.start()
    sender.close()  # so that the end of the process ends the pipe
    try:
        result = receiver.recv() if receiver.poll(limit) else f"not done after {limit:.0f} s"
    except EOFError:
        process.join()
        result = f"crashed: exit code {process.exitcode}"
    if process.is_alive() and isinstance(result, str):
        process.kill()
    process.join()
    name = ways(rank)[number].name
    if isinstance(result, str):
        return {"way": f"{name} ({result})", **dict.fromkeys(COLUMNS)}
    return {"way": name, **result}


def settings_of(problem: Problem, data: str, items: int, recall: float) -> dict[str, Any]:
    told = {
        "data": data,
        "items": items,
        "in the largest component": problem.n,
        "edges": len(problem.read("indices")) // 2,
        "neighbors": NEIGHBORS,
        "recall of neighbors": float(recall),
        "alpha": problem.alpha,
        "threads": CORES,
    }
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        told[name] = os.environ.get(name, "not set")
    for name in PACKAGES:
        try:
            told[name] = version(name)
        except PackageNotFoundError:
            told[name] = "not installed"
    return told


def main(
    data: Annotated[str, typer.Option(help="fashion or million.")] = "fashion",
    items: Annotated[int | None, typer.Option(help="Fewer items than all.")] = None,
    queries: Annotated[int | None, typer.Option(help="128, or 64 of a million.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Ways with this in their name.")] = None,
    seconds: Annotated[float, typer.Option(help="To time each way for, about.")] = 20,
    limit: Annotated[float, typer.Option(help="Seconds after which a way is given up.")] = 300,
    rank: Annotated[
        int | None, typer.Option(help="Eigenvectors: 400, or 100 of a million.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="5,000 pictures, 16 queries.")] = False,
    no_record: Annotated[bool, typer.Option(help="Only print.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Folder for k-NN lists.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder of the IDX files.")] = None,
) -> None:
    if data not in ("fashion", "million"):
        raise typer.BadParameter(f"--data must be fashion or million; got {data!r}.")
    large = data == "million"
    items = items or (5_000 if quick else 1_000_000 if large else 70_000)
    queries = queries or (16 if quick else 64 if large else 128)
    rank = rank or (100 if quick or large else 400)
    seconds = min(seconds, 0.2) if quick else seconds
    cache = cache or Path(tempfile.gettempdir()) / "hybrid-gpu-bench"
    lists = neighbors_of(data, items, cache, folder)
    with tempfile.TemporaryDirectory() as place:
        problem = posed(lists, queries, Path(place))
        settings = settings_of(problem, data, items, lists.pop("recall"))
        lists.clear()
        settings |= {"queries": queries, "residual of exact": solved(problem)}
        print(settings, flush=True)
        rows = []
        for number, way in enumerate(ways(rank)):
            wanted = only is None or any(part in way.name for part in only)
            if wanted and OPTIONAL.intersection(way.packages) and missing(way):
                print(missing(way), flush=True)
            elif wanted:
                rows.append(row_of(number, rank, problem.folder, seconds, limit))
                print(list(rows[-1].values()), flush=True)
    show(f"{data}, {items:,} items", rows)
    if not no_record:
        print(record(f"peers_{data}", settings, rows))


if __name__ == "__main__":
    typer.run(main)
