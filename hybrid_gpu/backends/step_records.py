"""Columns in steps of conjugate gradients: what backends are told of them, and tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Array: TypeAlias = Any


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """``A P`` (n, m), and the column dots of ``P`` with it, float64 (m,) or in parts (parts, m)."""

    values: Array
    curvature: Array


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """Solution and residual after one step, and the residual's squared column norms in float64.

    ``squared_norm`` is of shape (m,), or (parts, m) where it is left to ``cg_turn`` to add them up.
    """

    solution: Array
    residual: Array
    squared_norm: Array


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
    """How far each column goes, float64 of shape (m,), and which of them move at all.

    ``tickets`` are a backend's own, for the step that follows.
    """

    step: Array
    moving: Array
    tickets: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """The part of its old direction that each column keeps, float64 (m,), and where it is now."""

    ratio: Array
    standing: Standing


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """Columns on their way: solution, residual and next direction (n, m), and where they are."""

    solution: Array
    residual: Array
    direction: Array
    standing: Standing
