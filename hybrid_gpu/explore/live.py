"""The live form of the page: what a server answers to it, in types of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import numpy as np

from hybrid_gpu.explore.answers import MOST_RESULTS, PageQuestion, answer, described
from hybrid_gpu.explore.collection import Collection
from hybrid_gpu.explore.export import start_of
from hybrid_gpu.explore.pictures import Picture
from hybrid_gpu.ranking.asking import requested
from hybrid_gpu.ranking.methods import METHODS
from hybrid_gpu.validation import check_choice, check_count, check_number, is_bool, shown

# Items that the list of queries shows, and characters of what a user types.
_LISTED, LONGEST_WORDS = 60, 2000
_FIELDS = ("item", "vector", "words", "label", "alpha", "k", "method", "contains")


class LiveForm:
    """The answers to what a live page asks; whatever is wrong with a question is a ValueError."""

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._state = collection.index.state
        self.methods = ("auto", *(name for name in METHODS if self._can(name)))

    def start(self) -> dict[str, Any]:
        """What the page knows before any query."""
        return {
            **start_of(self._collection, self.items("")["items"]),
            "count": self._state.n,
            "n": self._state.n,
            "methods": list(self.methods),
            "vectors": self._state.descriptors is not None,
            "encodes": self._collection.encode is not None,
        }

    def items(self, words: str) -> dict[str, Any]:
        """The first of the items whose key or text contains some words, and how many there are."""
        if words:
            found = self._collection.containing(_short_text(words, "words"))
            return {"items": [self._entry(item) for item in found[:_LISTED]], "count": len(found)}
        first = islice(range(self._state.n), _LISTED)
        return {"items": [self._entry(item) for item in first], "count": self._state.n}

    def answer(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a question of the page."""
        question = self._question(fields)
        found = answer(self._collection, question)
        for item, about in found["items"].items():
            self._with_picture(int(item), about)
        if question.item is not None:
            self._with_picture(question.item, found["query"])
        return found

    def picture(self, item: int) -> Picture | None:
        """The picture of an item; None if there is none."""
        pictures = self._collection.pictures
        if pictures is None or not 0 <= item < self._state.n:
            return None
        return pictures.picture(item)

    def _can(self, method: str) -> bool:
        if method == "nn":
            return False  # the other list has it already
        try:
            requested(self._state, k=1, method=method)  # type: ignore[arg-type]
        except ValueError:
            return False
        return True

    def _entry(self, item: int) -> dict[str, Any]:
        return self._with_picture(item, {"item": item, **described(self._collection, item)})

    def _with_picture(self, item: int, about: dict[str, Any]) -> dict[str, Any]:
        if self._collection.pictures is not None:
            about["picture"] = f"../api/pictures/{item}"
        return about

    def _question(self, fields: Mapping[str, Any]) -> PageQuestion:
        strange = [name for name in fields if name not in _FIELDS]
        if strange:
            raise ValueError(f"a question has no field {strange[0][:40]!r}.")
        kinds = [name for name in ("item", "vector", "words") if name in fields]
        if len(kinds) != 1:
            raise ValueError("a question must have one of item, vector and words.")
        contains = fields.get("contains")
        return PageQuestion(
            **getattr(self, f"_by_{kinds[0]}")(fields[kinds[0]]),
            label=_short_text(fields.get("label", fields.get("words", "a vector")), "label"),
            k=check_count(fields.get("k", 20), "k", high=MOST_RESULTS),
            method=check_choice(fields.get("method", "auto"), "method", self.methods),
            alpha=check_number(fields["alpha"], "alpha") if "alpha" in fields else None,
            allowed=None
            if contains is None
            else self._collection.containing(_short_text(contains, "contains")),
        )

    def _by_item(self, item: Any) -> dict[str, Any]:
        if not isinstance(item, int) or is_bool(item) or not 0 <= item < self._state.n:
            raise ValueError(
                f"item must be a number of 0 to {self._state.n - 1}; got {shown(item)}."
            )
        return {"item": item}

    def _by_vector(self, vector: Any) -> dict[str, Any]:
        numbers = isinstance(vector, list) and all(
            isinstance(one, (int, float)) and not is_bool(one) for one in vector
        )
        if not numbers:
            raise ValueError(f"vector must be a list of numbers; got {shown(vector)}.")
        self._state.required_descriptors("a query vector")
        try:
            return {"vector": np.array(vector, np.float64)}
        except OverflowError:
            raise ValueError("vector must be finite; got hundreds of digits.") from None

    def _by_words(self, words: Any) -> dict[str, Any]:
        if self._collection.encode is None:
            raise ValueError("this page has no encoder for texts. Query it by an item.")
        vector = self._collection.encode(_short_text(words, "words"))
        return {"vector": np.asarray(vector, np.float64).reshape(-1)}


def _short_text(text: Any, what: str) -> str:
    if not isinstance(text, str) or len(text) > LONGEST_WORDS:
        raise ValueError(f"{what} must be a text of at most {LONGEST_WORDS} characters.")
    return text
