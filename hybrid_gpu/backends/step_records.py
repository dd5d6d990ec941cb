"""The numbers of columns in steps of conjugate gradients: what backends are told, and tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Array: TypeAlias = Any


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Where columns are on their way; arrays of shape (m,).

    ``squared`` and ``length`` are the squares of residual and direction, ``target`` that of a
    residual which is small enough, all in float64; ``fresh`` tells whose direction is the residual
    itself.
    """

    squared: Array
    length: Array
    target: Array
    fresh: Array


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """How far each column goes, float64 of shape (m,), and which of them move at all."""

    step: Array
    moving: Array


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """The part of its old direction that each column keeps, float64 (m,), and where it is now."""

    ratio: Array
    standing: Standing
