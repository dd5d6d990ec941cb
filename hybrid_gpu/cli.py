"""The command ``hybrid-gpu``: the only module that prints."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import secrets
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import numpy as np
import rich.filesize
import rich.progress
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

import hybrid_gpu
from hybrid_gpu import evaluation, plots
from hybrid_gpu.backends import select_backend
from hybrid_gpu.basis import EigenBasis
from hybrid_gpu.building import BASES, build_index
from hybrid_gpu.comparison import Line, compare_methods
from hybrid_gpu.datasets import Split, digits, load_array, split_queries
from hybrid_gpu.diagnosis import diagnose
from hybrid_gpu.errors import HybridGpuError
from hybrid_gpu.index import DiffusionIndex
from hybrid_gpu.methods import METHODS
from hybrid_gpu.plan import plan as make_plan
from hybrid_gpu.precompute import estimate_precompute
from hybrid_gpu.progress import Progress
from hybrid_gpu.ranking import Ranking
from hybrid_gpu.selfcheck import Check
from hybrid_gpu.selfcheck import selfcheck as run_selfcheck
from hybrid_gpu.storage import check_target, load_index
from hybrid_gpu.validation import check_count

_USER_FAULTS = (ValueError, TypeError, HybridGpuError, OSError, ImportError, MemoryError)
# The parent of BadParameter is every kind of wrong usage; typer gives it no public name.
_USAGE_FAULT: Any = typer.BadParameter.__base__
_DEMO_SEED = 7
_DEMO_PICTURE = Path("hybrid-gpu-demo.png")
_PICTURE_QUERIES, _PICTURE_RESULTS = 4, 12
_DEFAULT_K = 100
_OPTIONAL_PACKAGES = ("faiss-cpu", "faiss-gpu", "cupy-cuda12x", "matplotlib")


class _Commands(TyperGroup):
    """The one place where faults become a line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # The reader of our output went away: typer ends quietly.
        except _USAGE_FAULT as fault:
            message = fault.format_message().rstrip(".")
            self._refuse(f"{message}. See hybrid-gpu {ctx.invoked_subcommand} --help.", fault)
        except _USER_FAULTS as fault:
            self._refuse(" ".join(str(fault).split()) or type(fault).__name__, fault)
        except KeyboardInterrupt as stop:
            raise typer.Exit(130) from stop

    def _refuse(self, message: str, fault: Exception) -> NoReturn:
        typer.echo(f"error: {message}", err=True)
        raise typer.Exit(2) from fault


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


def main() -> None:
    """Run the command."""
    app(prog_name="hybrid-gpu")


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"hybrid-gpu {hybrid_gpu.__version__}")
        raise typer.Exit


def _check_target(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written before the work that would fill it."""
    if path is not None and path.is_dir():
        raise ValueError(f"{path}: a folder; name a file.")
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}.")
    return path


IndexFolder = Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of the index.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Device = Annotated[str, typer.Option("--backend", help="auto, numpy or cupy.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", callback=_check_target, help="Write ids and scores, .npz."),
]
Results = Annotated[
    int | None, typer.Option("--k", "-k", help="Results per query; 100, or all if fewer.")
]
MethodName = Annotated[str, typer.Option("--method", help=f"auto, {', '.join(METHODS)}.")]
Steps = Annotated[int | None, typer.Option(help="Solver steps; with --rtol, the most.")]
Tolerance = Annotated[float | None, typer.Option("--rtol", help="Solve to this residual.")]
Observed = Annotated[
    int, typer.Option("--query-neighbors", help="Items that diffusion starts from; 0: all.")
]
Width = Annotated[int | None, typer.Option("--batch", help="Queries solved side by side.")]


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Version.")
    ] = False,
) -> None:
    """Re-rank vector search by diffusion on a k-NN graph."""


@app.command()
def demo(
    queries: Annotated[int, typer.Option(help="Digits held out as queries.")] = 200,
    neighbors: Annotated[int, typer.Option(help="Nearest neighbors of each item.")] = 10,
    rank: Annotated[int, typer.Option(help="Eigenvectors to keep.")] = 100,
    plot: Annotated[
        Path | None,
        typer.Option(callback=_check_target, help=f"Picture to draw; {_DEMO_PICTURE}."),
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Draw no picture.")] = False,
    as_json: Json = False,
) -> None:
    """Compare every method on handwritten digits; takes seconds."""
    if plot is not None and no_plot:
        raise ValueError("give --plot or --no-plot, not both.")
    data = digits()
    split = split_queries(data, check_count(queries, "queries", high=data.n - 1), _DEMO_SEED)
    with _progress() as progress:
        compared = compare_methods(split, neighbors=neighbors, rank=rank, progress=progress)
    index, lines = compared.index, compared.lines
    if not as_json:
        _print_comparison(index, split, lines)
    # Without a wish of the user's, a missing matplotlib is no fault.
    picture = None if no_plot else _draw(index, split, plot or _DEMO_PICTURE, insist=bool(plot))
    if as_json:
        _print_json(
            items=index.n,
            queries=queries,
            methods=[asdict(line) for line in lines],
            picture=None if picture is None else str(picture),
        )
    elif picture is not None:
        typer.echo(f"Picture: {picture}")


@app.command()
def build(
    descriptors: Annotated[
        Path, typer.Argument(metavar="DESCRIPTORS", help="Array of shape (n, d), .npy or .npz.")
    ],
    index: IndexFolder,
    neighbors: Annotated[int, typer.Option(help="Nearest neighbors of each item.")] = 50,
    gamma: Annotated[float, typer.Option(help="Exponent of the similarities.")] = 3.0,
    alpha: Annotated[float, typer.Option(help="Restart parameter, in [0, 1).")] = 0.99,
    basis: Annotated[str, typer.Option(help=f"{', '.join(BASES)}.")] = "auto",
    rank: Annotated[int | None, typer.Option(help="Groups or eigenvectors to keep.")] = None,
    precision: Annotated[
        str, typer.Option(help="Of eigenvectors: float32, float16 or int8.")
    ] = "float32",
    knn: Annotated[str, typer.Option(help="auto, exact, faiss or a FAISS factory.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "float32",
    backend: Device = "auto",
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    as_json: Json = False,
) -> None:
    """Index a database of descriptors."""
    check_target(index)
    start = time.perf_counter()
    with _progress() as progress:
        built = build_index(
            load_array(descriptors),
            neighbors=neighbors,
            gamma=gamma,
            alpha=alpha,
            basis=basis,
            rank=rank,
            precision=precision,
            knn=knn,
            dtype=dtype,
            seed=seed,
            progress=progress,
            backend=backend,
        )
        progress("saving", 0, 1)
        built.save(index)
    seconds = time.perf_counter() - start
    if as_json:
        _print_json(index=str(index), seconds=seconds, **_describe(built))
        return
    typer.echo(f"{built}\nSaved to {index} after {seconds:.1f} s.")


@app.command()
def search(
    index: IndexFolder,
    queries: Annotated[
        Path, typer.Argument(metavar="QUERIES", help="Array of shape (m, d), .npy or .npz.")
    ],
    output: Output = None,
    k: Results = None,
    method: MethodName = "auto",
    steps: Steps = None,
    rtol: Tolerance = None,
    query_neighbors: Observed = 5,
    batch: Width = None,
    backend: Device = "auto",
    as_json: Json = False,
) -> None:
    """Rank the database for query descriptors."""
    vectors = load_array(queries)
    with _progress() as progress:
        opened = _open(index, backend, progress)
        settings = _settings(opened, k, method, steps, rtol, query_neighbors, batch)
        ranking = opened.search(vectors, **settings, progress=progress)
    _deliver(ranking, output, as_json)


@app.command()
def rerank(
    index: IndexFolder,
    ids: Annotated[
        Path, typer.Argument(metavar="IDS", help="Found items of each query, shape (m, q).")
    ],
    similarities: Annotated[
        Path, typer.Argument(metavar="SIMILARITIES", help="Their cosines, shape (m, q).")
    ],
    output: Output = None,
    k: Results = None,
    method: MethodName = "auto",
    steps: Steps = None,
    rtol: Tolerance = None,
    query_neighbors: Observed = 5,
    batch: Width = None,
    backend: Device = "auto",
    as_json: Json = False,
) -> None:
    """Rank the database for the results of another search engine.

    The output of search --method nn serves as both arguments too.
    """
    lists, values = load_array(ids, name="ids"), load_array(similarities, name="scores")
    with _progress() as progress:
        opened = _open(index, backend, progress)
        settings = _settings(opened, k, method, steps, rtol, query_neighbors, batch)
        ranking = opened.rerank(lists, values, **settings, progress=progress)
    _deliver(ranking, output, as_json)


@app.command()
def precompute(
    index: IndexFolder,
    keep: Annotated[int, typer.Option(help="Entries to store for each item.")] = 1000,
    rtol: Annotated[float, typer.Option(help="Relative residual of each column.")] = 1e-3,
    batch: Width = None,
    backend: Device = "auto",
    as_json: Json = False,
) -> None:
    """Diffuse every item once, for search --method precomputed.

    An interrupted run goes on where it was when it is called again.
    """
    work = index.with_name(index.name + ".columns")
    with _progress() as progress:
        opened = _open(index, backend, progress)
        expected = estimate_precompute(opened, keep=keep, rtol=rtol, batch=batch)
        if not as_json:
            typer.echo(
                f"About {expected.seconds / 60:.1f} minutes and "
                f"{rich.filesize.decimal(expected.bytes)}."
            )
        start = time.perf_counter()
        stored = opened.precompute(
            keep=keep, rtol=rtol, folder=work, batch=batch, progress=progress
        )
        progress("saving", 0, 1)
        stored.save(index)
    shutil.rmtree(work)
    seconds = time.perf_counter() - start
    if as_json:
        _print_json(index=str(index), seconds=seconds, **_describe(stored))
        return
    typer.echo(f"{stored}\nSaved to {index} after {seconds:.1f} s.")


@app.command()
def plan(
    index: IndexFolder,
    target: Annotated[float, typer.Option(help="Agreement with the exact ranking.")] = 0.99,
    k: Annotated[int, typer.Option("--k", "-k", help="Results that are compared.")] = 100,
    queries: Annotated[int, typer.Option(help="Items that serve as queries.")] = 64,
    eigenvectors: Annotated[
        list[int] | None, typer.Option(help="Rank of an eigenvector basis to try; repeatable.")
    ] = None,
    backend: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure which basis, rank and number of steps reach a target at the least cost."""
    with _progress() as progress:
        opened = _open(index, backend, progress)
        made = make_plan(
            opened,
            target=target,
            k=min(k, opened.n),
            queries=queries,
            eigenvectors=eigenvectors or (),
            progress=progress,
        )
    if as_json:
        best = None if made.best is None else asdict(made.best)
        _print_json(target=target, best=best, candidates=[asdict(one) for one in made.candidates])
        return
    typer.echo(repr(made))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Tell what this machine has, what is missing, and which backend auto will choose."""
    findings = diagnose()
    if as_json:
        _print_json(findings=[asdict(one) for one in findings])
        return
    for one in findings:
        typer.echo(f"{one.name:<12}{one.value}")
        if one.advice:
            typer.echo(f"{'':<12}-> {one.advice}")


@app.command()
def selfcheck(
    backend: Device = "auto",
    size: Annotated[int, typer.Option(help="Items of the test graph.")] = 20_000,
    as_json: Json = False,
) -> None:
    """Compare every operation between CPU and GPU; exit code 1 if they disagree."""
    device = select_backend(backend)
    with _progress() as progress:
        checks = run_selfcheck(device, size=check_count(size, "size", low=100), progress=progress)
    failed = [one for one in checks if not one.agrees]
    gpu = device.name != "numpy"
    if as_json:
        lines = [{**asdict(one), "agrees": one.agrees} for one in checks]
        _print_json(backend=device.name, gpu_checked=gpu, checks=lines)
    else:
        _print_checks(checks, device.name)
        if not gpu:
            typer.echo(
                "No GPU was checked: none answers here, and NumPy agreed with itself. On a "
                "GPU server, the same lines compare the GPU with NumPy."
            )
        typer.echo(f"{len(checks) - len(failed)} of {len(checks)} agree.")
    if failed:
        raise typer.Exit(1)


@app.command()
def evaluate(
    ranking: Annotated[
        Path, typer.Argument(metavar="RANKING", help="Output of search, or ids as .npy.")
    ],
    labels: Annotated[Path | None, typer.Option(help="Class of every item.")] = None,
    query_labels: Annotated[Path | None, typer.Option(help="Class of every query.")] = None,
    relevant: Annotated[
        Path | None, typer.Option(help="JSON: a list of relevant ids for each query.")
    ] = None,
    exact: Annotated[Path | None, typer.Option(help="The ranking to agree with.")] = None,
    at: Annotated[
        list[int] | None, typer.Option(help="Depth of recall and agreement; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a ranking by labels, by lists of relevant items, or against an exact ranking."""
    if (labels is None) != (query_labels is None):
        raise ValueError("--labels and --query-labels go together.")
    if labels is not None and relevant is not None:
        raise ValueError("give --labels or --relevant, not both.")
    if labels is None and relevant is None and exact is None:
        raise ValueError("nothing to compare with: give --labels and --query-labels, "
                         "--relevant, or --exact.")  # fmt: skip
    ids = load_array(ranking, name="ids")
    figures: dict[str, float] = {}
    with _progress() as progress:
        progress("evaluating", 0, 1)
        if labels is not None and query_labels is not None:
            classes, wanted = load_array(labels), load_array(query_labels)
            figures["mAP"] = evaluation.mean_average_precision(ids, classes, wanted)
            figures |= _recalls(ids, _items_of_classes(classes, wanted), at)
        if relevant is not None:
            lists = _relevant_lists(relevant)
            figures["mAP"] = evaluation.mean_average_precision_of_lists(ids, lists)
            figures |= _recalls(ids, lists, at)
        if exact is not None:
            figures |= _agreements(ids, load_array(exact, name="ids"), at)
    if as_json:
        _print_json(queries=ids.shape[0], k=ids.shape[1], **figures)
        return
    typer.echo(f"{ids.shape[0]} queries, top {ids.shape[1]}")
    _print_pairs({name: f"{100 * value:.2f} %" for name, value in figures.items()})


@app.command()
def info(
    index: Annotated[
        Path | None, typer.Argument(metavar="INDEX", help="Folder of an index.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell about an index; without one, about this installation."""
    if index is None:
        facts = _installation()
        if as_json:
            _print_json(**facts)
        else:
            _print_pairs({name: value or "not installed" for name, value in facts.items()})
        return
    # Told without a GPU, and without reading all of a large index.
    opened = load_index(index, verify=False, backend="numpy")
    if as_json:
        _print_json(**_describe(opened))
        return
    typer.echo(repr(opened))
    _print_pairs({name: _readable(name, value) for name, value in _describe(opened).items()})


def _print_checks(checks: Sequence[Check], name: str) -> None:
    table = _table("operation", "dtype", "difference", "", "numpy ms", f"{name} ms")
    for one in checks:
        table.add_row(
            one.operation,
            one.dtype,
            f"{one.difference:.1e}",
            "ok" if one.agrees else "WRONG",
            f"{one.host_ms:.2f}",
            f"{one.device_ms:.2f}",
        )
    Console().print(table)


def _print_comparison(index: DiffusionIndex, split: Split, lines: Sequence[Line]) -> None:
    typer.echo(
        f"Handwritten digits: {split.database.n} images, {split.queries.n} held-out queries, "
        f"{index.backend.name}."
    )
    table = _table("method", "mAP %", "ms/query", "memory", "agreement@100")
    for line in lines:
        if line.method == "exact":
            table.add_section()
        table.add_row(
            line.method,
            f"{100 * line.mean_average_precision:.1f}",
            f"{line.milliseconds_per_query:.2f}",
            rich.filesize.decimal(line.memory_bytes),
            f"{line.agreement_at_100:.3f}",
        )
    Console().print(table)
    typer.echo("Next, your own data: hybrid-gpu build descriptors.npy my-index")


def _draw(index: DiffusionIndex, split: Split, path: Path, *, insist: bool) -> Path | None:
    database, queries = split.database, split.queries
    depth = min(_PICTURE_RESULTS, index.n)
    before = index.search(queries.descriptors, k=depth, method="nn").ids
    after = index.search(queries.descriptors, k=depth).ids
    right = [(database.labels[ids] == queries.labels[:, None]).sum(1) for ids in (before, after)]
    # Changed for better or for worse: the picture shall not choose what flatters.
    change = np.abs(right[1] - right[0])
    chosen = np.argsort(-change, kind="stable")[:_PICTURE_QUERIES]
    try:
        with _replacing(path) as temporary:
            plots.ranking_grid(
                database.images,
                queries.images[chosen],
                before_ids=before[chosen],
                after_ids=after[chosen],
                labels=database.labels,
                query_labels=queries.labels[chosen],
                path=temporary,
                results=depth,
                title="Digits: the first results of the queries that diffusion changed most",
            )
    except ImportError:
        if insist:
            raise
        typer.echo(f"For a picture of it: {plots.INSTALL}", err=True)
        return None
    return path


def _open(path: Path, backend: str, progress: Progress) -> DiffusionIndex:
    progress("opening", 0, 1)
    opened = load_index(path, backend=backend)
    progress("opening", 1, 1)
    return opened


def _settings(
    index: DiffusionIndex,
    k: int | None,
    method: str,
    steps: int | None,
    rtol: float | None,
    query_neighbors: int,
    batch: int | None,
) -> dict[str, Any]:
    return {
        "k": min(_DEFAULT_K, index.n) if k is None else k,
        "method": method,
        "steps": steps,
        "rtol": rtol,
        "query_neighbors": None if query_neighbors == 0 else query_neighbors,
        "batch": batch,
    }


def _deliver(ranking: Ranking, output: Path | None, as_json: bool) -> None:
    """Write a ranking to its file, or show it."""
    if output is not None:
        with _replacing(output) as temporary, open(temporary, "wb") as file:
            np.savez(file, ids=ranking.ids, scores=ranking.scores)
    m, k = ranking.ids.shape
    if as_json:
        where: dict[str, Any] = {"output": str(output)}
        if output is None:
            where = {"ids": ranking.ids.tolist(), "scores": ranking.scores.tolist()}
        _print_json(queries=m, k=k, report=_report(ranking), **where)
        return
    if output is None:
        _print_first_results(ranking)
    report = ranking.report
    typer.echo(
        f"{m} queries, top {k} by {report.method}: {report.steps} steps, "
        f"{ranking.report.total_seconds:.3f} s on {report.backend}."
    )
    typer.echo("Keep all of it with --output FILE.npz." if output is None else f"Wrote {output}.")


def _report(ranking: Ranking) -> dict[str, Any]:
    report = ranking.report
    return {
        "method": report.method,
        "steps": report.steps,
        "worst_residual": None if report.residuals is None else float(np.max(report.residuals)),
        "seconds": dict(report.seconds),
        "backend": report.backend,
        "batch": report.batch,
    }


def _print_first_results(ranking: Ranking, *, queries: int = 5, results: int = 5) -> None:
    ids, scores = ranking.ids[:queries, :results], ranking.scores[:queries, :results]
    table = _table("query", *(f"{place + 1}." for place in range(ids.shape[1])))
    for query, (items, values) in enumerate(zip(ids, scores, strict=True)):
        cells = [f"{item}\n{value:.4g}" for item, value in zip(items, values, strict=True)]
        table.add_row(str(query), *cells)
    table.caption = "id, and its score below"
    Console().print(table)


def _items_of_classes(labels: NDArray[Any], query_labels: NDArray[Any]) -> list[NDArray[Any]]:
    # One array for each class, shared by its queries: lists of their own could fill the memory.
    items = {label: np.flatnonzero(labels == label) for label in np.unique(query_labels)}
    return [items[label] for label in query_labels]


def _relevant_lists(path: Path) -> list[list[int]]:
    try:
        lists = json.loads(path.read_bytes())
    except ValueError as fault:
        raise ValueError(f"{path}: not JSON ({fault}).") from fault
    if not isinstance(lists, list) or not all(_is_id_list(line) for line in lists):
        raise ValueError(f"{path}: expected a list of lists of ids, one for each query.")
    return lists


def _is_id_list(line: Any) -> bool:
    return isinstance(line, list) and all(type(item) is int for item in line)


def _recalls(ids: NDArray[Any], relevant: Sequence[Any], at: list[int] | None) -> dict[str, float]:
    depths = _depths(at, ids.shape[1])
    return {f"recall@{depth}": evaluation.recall(ids, relevant, at=depth) for depth in depths}


def _agreements(ids: NDArray[Any], exact: NDArray[Any], at: list[int] | None) -> dict[str, float]:
    shorter = min(lists.shape[-1] for lists in (ids, exact))
    return {
        f"agreement@{depth}": evaluation.agreement(ids, exact, at=depth)
        for depth in _depths(at, shorter)
    }


def _depths(at: list[int] | None, longest: int) -> Iterable[int]:
    return at or sorted({min(depth, longest) for depth in (1, 10, 100)})


def _describe(index: DiffusionIndex) -> dict[str, Any]:
    graph, basis = index.layout.graph, index.basis
    sizes = np.bincount(graph.components)
    facts: dict[str, Any] = {
        "items": index.n,
        "dimensions": None if index.descriptors is None else int(index.descriptors.shape[1]),
        "edges": graph.edges,
        "components": sizes.size,
        "largest component": int(sizes.max()),
        "isolated items": graph.isolated,
        "alpha": index.alpha,
        "gamma": index.gamma,
        "dtype": index.dtype,
        "basis": None if basis is None else basis.kind,
        "rank": 0 if basis is None else basis.rank,
        "stored columns": 0 if index.columns is None else index.columns.keep,
    }
    if isinstance(basis, EigenBasis) and basis.rank:
        facts |= {
            "largest eigenvalue": float(basis.eigenvalues[0]),
            "smallest eigenvalue": float(basis.eigenvalues[-1]),
            "worst residual": float(np.max(basis.residuals)),
            "orthogonality": basis.orthogonality,
        }
    facts |= {f"{part} bytes": size for part, size in index.memory.items()}
    return {name.replace(" ", "_"): value for name, value in facts.items()}


def _readable(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return rich.filesize.decimal(value)
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _installation() -> dict[str, str | None]:
    facts: dict[str, str | None] = {
        "hybrid-gpu": hybrid_gpu.__version__,
        "python": platform.python_version(),
    }
    packages = ("numpy", "scipy", "array-api-compat", *_OPTIONAL_PACKAGES)
    facts |= {package: _version_of(package) for package in packages}
    return facts | {"auto_backend": select_backend().name}


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _table(*headings: str) -> Table:
    table = Table()
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    return table


def _print_pairs(pairs: Mapping[str, str]) -> None:
    table = _table("", "")
    table.show_header = False
    for name, value in pairs.items():
        table.add_row(name.replace("_", " "), value)
    Console().print(table)


def _print_json(**values: Any) -> None:
    typer.echo(json.dumps(values))


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary name to write to, that takes the place of ``path`` when all went well."""
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A callback that draws bars on stderr, or one that does nothing if nobody looks at it."""
    if not sys.stderr.isatty():
        yield lambda stage, done, total: None
        return
    tasks: dict[str, rich.progress.TaskID] = {}
    with rich.progress.Progress(console=Console(stderr=True), transient=True) as bars:

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=None)
            # A stage of one step says nothing until it ends: without a total, its bar pulses.
            known = total if total > 1 or done == total else None
            bars.update(tasks[stage], completed=done, total=known)

        yield show


if __name__ == "__main__":
    main()
