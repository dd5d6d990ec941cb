"""What a page shows: an index, and how its items look."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hybrid_gpu.explore.pictures import ArrayPictures, Pictures
from hybrid_gpu.index.diffusion_index import DiffusionIndex
from hybrid_gpu.index.factory import build_index
from hybrid_gpu.lab.benchmark import Dataset, Split, split_queries
from hybrid_gpu.lab.public_sets import digits

# Characters of a key and of a text that a page shows; more are cut off.
LONGEST_LABEL, LONGEST_TEXT = 300, 1200
DEMO_QUERIES, DEMO_SEED = 200, 7
"""The digits that ``hybrid-gpu demo`` holds out, and by which seed."""
_DIGITS_SOURCE = (
    "Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI Machine Learning "
    "Repository, 1998, https://doi.org/10.24432/C50P49, licensed under CC BY 4.0 "
    "(https://creativecommons.org/licenses/by/4.0/); re-encoded, no value changed."
)


@dataclass(frozen=True, slots=True, eq=False)
class Collection:
    """An index, and how its items look.

    Attributes
    ----------
    index : DiffusionIndex
    title : str
    texts : sequence of str, or None
        A text for each item.
    pictures : Pictures or None
        A picture for each item.
    attribution : str or None
        Whose data they are, if that has to be said.
    encode : callable or None
        Makes a query vector of a text, for the live form.
    """

    index: DiffusionIndex
    title: str = "Explorer"
    texts: Sequence[str] | None = None
    pictures: Pictures | None = None
    attribution: str | None = None
    encode: Callable[[str], Any] | None = None
    _keys: Any = field(init=False)

    def __post_init__(self) -> None:
        if self.texts is not None and len(self.texts) != self.index.n:
            raise ValueError(
                f"texts must be one for each of the {self.index.n} items; got {len(self.texts)}."
            )
        object.__setattr__(self, "_keys", self.index.keys)

    def label(self, item: int) -> str:
        """The key of an item, or its number."""
        return cut(self._whole_label(item), LONGEST_LABEL)

    def text(self, item: int) -> str | None:
        """The text of an item."""
        return None if self.texts is None else cut(str(self.texts[item]), LONGEST_TEXT)

    def key(self, item: int) -> Any:
        """What the index takes for an item."""
        return item if self._keys is None else self._keys[item]

    def containing(self, words: str) -> list[int]:
        """The items whose key or text contains some words, whatever their case."""
        wanted = words.casefold()
        return [
            item
            for item in range(self.index.n)
            if wanted in self._whole_label(item).casefold()
            or (self.texts is not None and wanted in str(self.texts[item]).casefold())
        ]

    def _whole_label(self, item: int) -> str:
        return f"#{item}" if self._keys is None else str(self._keys[item])


def cut(text: str, longest: int) -> str:
    """A text, shortened if it is long; what no file can hold is replaced."""
    sound = text.encode("utf-8", "replace").decode()
    return sound if len(sound) <= longest else f"{sound[: longest - 1]}…"


def demo_split() -> Split:
    """The digits of ``hybrid-gpu demo``: a database, and queries that are not in it."""
    return split_queries(digits(), DEMO_QUERIES, DEMO_SEED)


def digits_collection() -> Collection:
    """The handwritten digits that come with the package, as ``hybrid-gpu demo`` searches them."""
    database = demo_split().database
    return Collection(
        build_index(database.descriptors),
        title="Handwritten digits",
        texts=digit_names(database),
        pictures=digit_pictures(database),
        attribution=_DIGITS_SOURCE,
    )


def digit_names(data: Dataset) -> list[str]:
    """What each picture shows."""
    assert data.labels is not None
    return [f"a {label}" for label in data.labels]


def digit_pictures(data: Dataset) -> Pictures:
    """Black on white, as on paper."""
    return ArrayPictures((16 - data.descriptors).reshape(-1, 8, 8), data.n)
