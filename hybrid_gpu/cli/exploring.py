"""The command ``explore``."""

from __future__ import annotations

import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hybrid_gpu.backends import select_backend
from hybrid_gpu.cli.common import (
    Device,
    Json,
    open_index,
    print_json,
    progress_bars,
    refuse_inside_index,
)
from hybrid_gpu.errors import install_line
from hybrid_gpu.explore.answers import MOST_RESULTS, PageQuestion
from hybrid_gpu.explore.collection import (
    Collection,
    demo_split,
    digit_names,
    digit_pictures,
    digits_collection,
)
from hybrid_gpu.explore.export import (
    MOST_QUERIES,
    WrittenPage,
    check_folder,
    sample_of,
    write_page,
)
from hybrid_gpu.explore.pictures import load_pictures
from hybrid_gpu.files.array_files import load_array
from hybrid_gpu.files.item_lists import load_items
from hybrid_gpu.progress import Progress
from hybrid_gpu.validation import check_count, check_vectors

DIGITS = "digits"
EXPLORER_LINE = f"hybrid-gpu explore {DIGITS} -o digits-explorer --open"
"""What opens the explorer on the index of the demo."""
# The user's files that are named one by one; more are counted.
_NAMED = 10

Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Folder of the page; a new one.")
]
Images = Annotated[
    Path | None,
    typer.Option(help="Pictures: a folder of files, or an array (n, height, width[, channels])."),
]
Texts = Annotated[
    Path | None, typer.Option(help="Texts of the items: a file with one in each line.")
]
Queries = Annotated[
    Path | None, typer.Option(help="Query vectors to export, an array (m, d); none: items.")
]
QueryImages = Annotated[
    Path | None, typer.Option(help="Pictures of --queries, in the forms of --images.")
]
Items = Annotated[
    Path | None, typer.Option(help="Items to export as queries: ids or keys, one in each line.")
]
Count = Annotated[
    int, typer.Option(help="Items to export as queries, spread evenly; without --items.")
]


def explore(
    index: Annotated[
        Path, typer.Argument(metavar="INDEX", help="Folder of the index; or the word digits.")
    ],
    *,
    output: Output = None,
    images: Images = None,
    texts: Texts = None,
    queries: Queries = None,
    query_images: QueryImages = None,
    items: Items = None,
    count: Count = 60,
    k: Annotated[int, typer.Option("--k", "-k", help="Results per query.")] = 20,
    alpha: Annotated[float | None, typer.Option(help="Another restart parameter.")] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Serve it, with sliders.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of --live.")] = 8000,
    opened: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    backend: Device = "auto",
    as_json: Json = False,
) -> None:
    """Look at rankings: what diffusion moved up, and along which path (docs/explorer.md)."""
    if live == (output is not None):
        raise ValueError(
            "give --output FOLDER for a page of files, or --live for one with sliders."
        )
    if live:
        _refuse_beside_live(
            queries=queries, query_images=query_images, items=items, as_json=as_json
        )
    if output is not None:
        refuse_inside_index(output)
        check_folder(output)
    check_count(k, "k", high=MOST_RESULTS)
    check_count(count, "count", high=MOST_QUERIES)
    with progress_bars() as progress:
        collection = _collection(index, images, texts, title, backend, progress)
        if output is not None:
            if collection.attribution is not None and queries is None and items is None:
                questions = _held_out_digits(count)
            else:
                questions = _questions(collection, queries, query_images, items, count)
            questions = [replace(one, k=k, alpha=alpha) for one in questions]
            page = write_page(collection, output, questions, progress=progress)
    if output is None:
        _serve(collection, port, opened)
        return
    _tell(page, as_json)
    if opened:
        webbrowser.open(page.start.resolve().as_uri())


def _refuse_beside_live(**given: Any) -> None:
    for name, value in given.items():
        if value:
            option = name.removeprefix("as_").replace("_", "-")
            raise ValueError(f"--{option} goes with --output; a live page takes any query.")


def _collection(
    path: Path,
    images: Path | None,
    texts: Path | None,
    title: str | None,
    backend: str,
    progress: Progress,
) -> Collection:
    """The index of a folder, or the digits, with what shows its items."""
    if str(path) == DIGITS and not path.exists():
        if images is not None or texts is not None:
            raise ValueError("the digits have pictures and texts of their own.")
        return digits_collection()
    index = open_index(path, backend, progress)
    keys = None if index.keys is None else index.keys.tolist()
    return Collection(
        index,
        title=path.resolve().name if title is None else title,
        texts=None if texts is None else load_items(texts, text=True),
        pictures=None if images is None else load_pictures(images, index.n, keys),
    )


def _held_out_digits(count: int) -> list[PageQuestion]:
    """The queries of the demo."""
    queries = demo_split().queries
    names, pictures = digit_names(queries), digit_pictures(queries)
    return [
        PageQuestion(
            vector=queries.descriptors[number],
            label=f"query {number}",
            text=names[number],
            picture=pictures.picture(number),
        )
        for number in range(min(count, queries.n))
    ]


def _questions(
    collection: Collection,
    queries: Path | None,
    query_images: Path | None,
    items: Path | None,
    count: int,
) -> list[PageQuestion]:
    """The queries to export."""
    if queries is not None and items is not None:
        raise ValueError("give --queries or --items, not both.")
    if queries is None and query_images is not None:
        raise ValueError("--query-images goes with --queries.")
    index = collection.index
    if queries is not None:
        vectors = check_vectors(
            load_array(queries), "queries", dtype=index.dtype, backend=select_backend("numpy")
        )
        shown = None
        if query_images is not None:
            shown = load_pictures(query_images, len(vectors), None)
        return [
            PageQuestion(
                vector=vector,
                label=f"query {number}",
                picture=None if shown is None else shown.picture(number),
            )
            for number, vector in enumerate(vectors)
        ]
    chosen = sample_of(index.n, count) if items is None else _ids(collection, items)
    return [PageQuestion(item=item) for item in chosen]


def _ids(collection: Collection, path: Path) -> list[int]:
    """The ids of the items of a file."""
    keys = collection.index.state.keys
    given = load_items(path, text=keys is not None and keys.text)
    if keys is not None:
        return [int(item) for item in keys.ids_of(given, "items").tolist()]
    ids = [int(item) for item in given]
    if ids and not 0 <= min(ids) <= max(ids) < collection.index.n:
        raise ValueError(f"{path}: items must lie in [0, {collection.index.n - 1}].")
    return ids


def _tell(page: WrittenPage, as_json: bool) -> None:
    copied = [str(path) for path in page.copied]
    if as_json:
        print_json(
            page=str(page.start),
            queries=page.queries,
            items=page.items,
            bytes=page.size,
            copied=copied,
        )
        return
    typer.echo(
        f"Wrote {page.queries} queries, {page.items} items, {page.size / 1e6:.1f} MB to "
        f"{page.folder}."
    )
    if copied:
        typer.echo(f"Copied {len(copied)} files of yours into it:")
        for name in copied[:_NAMED]:
            typer.echo(f"  {name}")
        if len(copied) > _NAMED:
            typer.echo(f"  and {len(copied) - _NAMED} more; --json lists all of them.")
    typer.echo(f"Open {page.start} in a browser.")


def _serve(collection: Collection, port: int, opened: bool) -> None:
    """Serve the live form on this machine until it is interrupted."""
    try:
        from hybrid_gpu.serve import live_explorer
    except ModuleNotFoundError as missing:
        raise ImportError(
            f"--live needs Starlette and uvicorn; {install_line('serve')}"
        ) from missing
    server = live_explorer.LiveExplorer(collection, port)
    typer.echo(f"Look at {server.address}; stop with Ctrl-C.", err=True)
    if opened:
        webbrowser.open(server.address)
    server.run()
