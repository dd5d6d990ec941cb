"""The page as a folder of its own, which a browser opens without a server or a network."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hybrid_gpu.explore.answers import PageQuestion, answer, described_query, moved_up
from hybrid_gpu.explore.collection import Collection
from hybrid_gpu.explore.page_files import PAGE, as_script, page_file
from hybrid_gpu.explore.pictures import Picture
from hybrid_gpu.progress import Progress

MANIFEST = "explorer.json"
_FORMAT = "hybrid-gpu explorer"
MOST_QUERIES = 2000
# The most of a manifest that is read: that of the largest page is far below.
_LARGEST_MANIFEST = 1 << 25
_PICTURES, _DATA = "pictures", "data"


@dataclass(frozen=True, slots=True, eq=False)
class WrittenPage:
    """A page that was written.

    Attributes
    ----------
    folder, start : Path
        Its folder, and the file to open.
    queries, items : int
        Queries that can be looked at, and items that occur in their answers.
    size : int
        Bytes of all files.
    copied : tuple of Path
        The user's files that were copied into it.
    """

    folder: Path
    start: Path
    queries: int
    items: int
    size: int
    copied: tuple[Path, ...]

    def __repr__(self) -> str:
        return f"WrittenPage({str(self.start)!r}, {self.queries} queries, {self.items} items)"


def sample_of(n: int, count: int) -> list[int]:
    """Items as queries, evenly spread over n of them."""
    places = np.linspace(0, n - 1, min(n, count)).round().astype(int)
    return sorted(set(map(int, places)))


def write_page(
    collection: Collection,
    folder: str | os.PathLike[str],
    questions: Sequence[PageQuestion],
    *,
    progress: Progress | None = None,
) -> WrittenPage:
    """Write a page that shows the answers to some queries.

    All of it is made beside the folder first, and put in place in one step.

    Parameters
    ----------
    folder
        One that does not exist, is empty, or is a page of ours as it was written, which is
        replaced. Anything else is refused, and nothing has changed then.
    questions
        The queries, at most MOST_QUERIES.

    Raises
    ------
    ValueError
        For a folder with files that are not ours, or that were changed since.
    """
    place = _named(Path(folder))
    if not 0 < len(questions) <= MOST_QUERIES:
        raise ValueError(f"queries must be 1 to {MOST_QUERIES} for a page; got {len(questions)}.")
    check_folder(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f".{place.name[:40]}.{secrets.token_hex(4)}")
    fresh.mkdir()
    try:
        written = _Writing(collection, fresh).write(questions, progress)
        check_folder(place)  # again: making the page took its time
        _put_in_place(fresh, place)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return WrittenPage(place, place / "index.html", len(questions), *written)


def _named(place: Path) -> Path:
    """A path that ends in the folder's own name: a page is made beside it, and takes its place."""
    return place if place.name not in ("", "..") else place.resolve()


class _Writing:
    """The files of a page on their way into a folder."""

    def __init__(self, collection: Collection, folder: Path) -> None:
        self._collection, self._folder = collection, folder
        self._sums: dict[str, str] = {}
        self._size = 0
        self._copied: list[Path] = []
        self._pictures: dict[int, str] = {}

    def write(
        self, questions: Sequence[PageQuestion], progress: Progress | None
    ) -> tuple[int, int, tuple[Path, ...]]:
        """Write everything; the items, bytes and copied files of it."""
        items: set[int] = set()
        for name in ("", _DATA, _PICTURES):
            (self._folder / name).mkdir(exist_ok=True)
        queries, most, first = [], -1.0, 0
        for number, question in enumerate(questions):
            if progress:
                progress("answering", number, len(questions))
            found = answer(self._collection, question)
            self._with_pictures(found["items"])
            about = self._query(question, number)
            found["query"].update(about)
            items.update(map(int, found["items"]))
            self._file(f"{_DATA}/{number}.js", as_script("answered", number, found))
            queries.append(about)
            change = moved_up(found)
            if change > most:
                most, first = change, number
        if progress:
            progress("answering", len(questions), len(questions))
        start = {**start_of(self._collection, queries), "first": first}
        self._file(f"{_DATA}/start.js", as_script("start", start))
        for name in PAGE:
            self._file(name, page_file(name))
        manifest = {"format": _FORMAT, "files": self._sums}
        (self._folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="ascii")
        return len(items), self._size, tuple(self._copied)

    def _query(self, question: PageQuestion, number: int) -> dict[str, Any]:
        about = {"item": question.item, **described_query(self._collection, question)}
        if question.item is not None:
            self._with_pictures({str(question.item): about})
        elif question.picture is not None:
            about["picture"] = self._picture(f"query-{number}", question.picture)
        return about

    def _with_pictures(self, items: dict[str, dict[str, Any]]) -> None:
        pictures = self._collection.pictures
        if pictures is None:
            return
        for item in map(int, items):
            if item not in self._pictures:
                self._pictures[item] = self._picture(str(item), pictures.picture(item))
            items[str(item)]["picture"] = self._pictures[item]

    def _picture(self, stem: str, picture: Picture) -> str:
        """Write a picture, and give its name in the page."""
        # Numbers, never the user's own names: a name may mean something to a browser.
        name = f"{_PICTURES}/{stem}{picture.ending}"
        self._file(name, picture.content)
        if picture.source is not None:
            self._copied.append(picture.source)
        return name

    def _file(self, name: str, content: bytes) -> None:
        with open(self._folder / name, "xb") as file:
            file.write(content)
        self._sums[name] = hashlib.sha256(content).hexdigest()
        self._size += len(content)


def start_of(collection: Collection, queries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a page knows before any query."""
    state = collection.index.state
    return {
        "title": collection.title,
        "facts": [f"{state.n:,} items", str(state.origin), f"{state.graph.edges:,} edges"],
        "alpha": state.alpha,
        "attribution": collection.attribution,
        "pixelated": collection.pictures is not None and collection.pictures.pixelated,
        "queries": list(queries),
    }


def check_folder(place: Path) -> None:
    """Refuse a folder that is neither empty nor a page of ours as it was written."""
    if not os.path.lexists(place):
        return
    if place.is_symlink() or not place.is_dir():
        raise ValueError(f"{place}: not a folder; name one that does not exist yet.")
    if place.is_mount() or place.resolve() == Path.cwd():
        raise ValueError(f"{place}: cannot be replaced while it is in use; name another folder.")
    present = {path.relative_to(place).as_posix() for path in _files(place)}
    if not present:
        return
    sums = _manifest(place)
    strange = sorted(present - sums.keys() - {MANIFEST})
    if strange:
        raise ValueError(
            f"{place}: holds files that are not of an explorer page, such as {strange[0][:80]}. "
            "Nothing was written; name another folder."
        )
    for name in sorted(present & sums.keys()):
        # Only files are read: a pipe would be waited for.
        if not (place / name).is_file() or _checksum(place / name) != sums[name]:
            raise ValueError(
                f"{place}: {name} was changed since the page was written. Nothing was written; "
                "name another folder."
            )


def _checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _manifest(place: Path) -> dict[str, str]:
    """The checksums of the files of a page; empty if it is none."""
    try:
        with open(place / MANIFEST, "rb") as file:
            read = json.loads(file.read(_LARGEST_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return {}
    files = read.get("files") if isinstance(read, dict) and read.get("format") == _FORMAT else None
    return files if isinstance(files, dict) else {}


def _files(place: Path) -> Iterator[Path]:
    """Everything below a folder but its own folders, and those that hold more; follows no links."""
    own = (place, place / _DATA, place / _PICTURES)
    for above, folders, names in os.walk(place):
        yield from (Path(above, name) for name in names)
        yield from (Path(above, name) for name in folders if Path(above, name).is_symlink())
        if not folders and not names and Path(above) not in own:
            yield Path(above)


def _put_in_place(fresh: Path, place: Path) -> None:
    """Let a new folder take the place of an old page, or of nothing."""
    if not place.exists():
        os.rename(fresh, place)
        return
    old = place.with_name(f".{place.name[:40]}.{secrets.token_hex(4)}")
    os.rename(place, old)
    try:
        os.rename(fresh, place)
    except OSError:
        os.rename(old, place)
        raise
    _remove(old)


def _remove(old: Path) -> None:
    """Remove the files of a page, and its folders; what somebody put beside them stays."""
    # Found in the folder, and named by its manifest, which may name files of any other place.
    known = {*_manifest(old), MANIFEST}
    for path in list(_files(old)):
        if path.relative_to(old).as_posix() in known and not path.is_dir():
            path.unlink()
    for name in (_DATA, _PICTURES, ""):
        with suppress(OSError):
            (old / name).rmdir()
