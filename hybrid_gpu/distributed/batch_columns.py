"""Which columns of a batch are the queries: descriptors, or ids with their similarities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from hybrid_gpu.validation import shown

IDS, KEYS, SCORES = "ids", "keys", "scores"
DESCRIPTORS, SIMILARITIES = "descriptors", "similarities"


@dataclass(frozen=True, slots=True)
class ChosenColumns:
    """The columns of queries: of descriptors (one of vectors, or one for each dimension), or lists.

    Attributes
    ----------
    descriptors : tuple of str
        Empty if the queries are lists.
    lists : tuple of str
        The column of ids and the column of similarities; empty if the queries are descriptors.
    """

    descriptors: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read, and not handed on."""
        return self.descriptors or self.lists


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """What the user says of the columns of his batches.

    Attributes
    ----------
    descriptors : str, tuple of str, or None
        A column of vectors, or the columns of all dimensions; ``"x*"`` is every column whose name
        fits.
    lists : tuple of two str, or None
        The column of ids (or keys) and the column of similarities.
    """

    descriptors: str | tuple[str, ...] | None = None
    lists: tuple[str, str] | None = None

    @classmethod
    def of(cls, descriptors: Any, lists: Any) -> ColumnOptions:
        """Options as they are typed, checked."""
        if descriptors is not None and lists is not None:
            raise ValueError(
                f"descriptors and lists exclude each other: they name the columns of queries; got "
                f"{shown(descriptors)} and {shown(lists)}."
            )
        if descriptors is not None and not isinstance(descriptors, str):
            descriptors = _names(descriptors, "descriptors", "a name, or a sequence of names")
        if lists is not None:
            lists = _names(lists, "lists", "the names of two columns, ('ids', 'similarities')")
            if len(lists) != 2:
                raise ValueError(
                    f"lists must be two columns, ids and similarities; got {shown(lists)}."
                )
        return cls(descriptors, lists)

    def chosen(self, vectors: Mapping[str, bool]) -> ChosenColumns:
        """The columns of queries among those of a batch.

        Parameters
        ----------
        vectors
            The name of every column, and whether its entries are vectors of floats.

        Raises
        ------
        ValueError
            If there are none, or more than one way to choose; it lists the columns.
        """
        names = list(vectors)
        if self.lists is not None:
            return ChosenColumns(lists=_present(self.lists, names))
        if isinstance(self.descriptors, tuple):
            return ChosenColumns(_present(self.descriptors, names))
        if self.descriptors is not None:
            fitting = tuple(name for name in names if fnmatchcase(name, self.descriptors))
            exact = (self.descriptors,) if self.descriptors in vectors else fitting
            return ChosenColumns(exact or _present((self.descriptors,), names))
        for similarities in (SIMILARITIES, SCORES):
            if IDS in vectors and similarities in vectors:
                return ChosenColumns(lists=(IDS, similarities))
        if DESCRIPTORS in vectors:
            return ChosenColumns((DESCRIPTORS,))
        found = [name for name, is_vector in vectors.items() if is_vector]
        if len(found) == 1:
            return ChosenColumns((found[0],))
        raise ValueError(
            f"queries must be in a column 'descriptors', in 'ids' and 'similarities', or in the "
            f"only column of vectors; got the columns {shown(names)}. Name them: "
            "descriptors='column', descriptors='x*' for a column of each dimension, or "
            "lists=('ids', 'similarities')."
        )


def check_free(kept: Sequence[str], answers: Sequence[str]) -> None:
    """Refuse columns that are handed on under the names of the answers."""
    taken = [name for name in kept if name in answers]
    if taken:
        raise ValueError(
            f"the batch has a column {taken[0]!r} beside its queries, which is the name of a "
            "column of the answers. Rename it."
        )


def _names(given: Any, what: str, expected: str) -> tuple[str, ...]:
    try:
        names = tuple(given)
    except TypeError:
        names = ()
    if not names or isinstance(given, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{what} must be {expected}; got {shown(given)}.")
    return names


def _present(wanted: tuple[str, ...], names: list[str]) -> tuple[str, ...]:
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ValueError(f"the batch has no column {missing[0]!r}; it has {shown(names)}.")
    return wanted
