"""The steps of conjugate gradients as CUDA kernels: how columns move, and where they are then."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from hybrid_gpu import kernels  # type: ignore[attr-defined]  # stands beside, see pyproject
from hybrid_gpu.backends.cuda_launch import alignment, compiled, same_types
from hybrid_gpu.backends.protocol import Array, Deflated
from hybrid_gpu.backends.step_records import Course, Moves, Product, Standing, Turn, Update

# Columns that a block of column_sums adds up, and threads for each.
_SLICE, _LINES = 4, 128
# HG_GROUP of columns.cu: row blocks whose sums are added up together.
_GROUP = 128


def cg_pace(
    product: Product, standing: Standing, least: float, taken: Deflated | None, noise: float
) -> Moves:
    """How far columns go: one kernel, which adds up the parts of their curvature as well."""
    parts = _in_parts(product.curvature)
    m = parts.shape[1]
    step, moving = cupy.empty((m,), cupy.float64), cupy.empty((m,), cupy.bool_)
    tickets = cupy.empty(_tickets_of(product.values), cupy.int32)
    rank, value = 0, product.values.dtype
    pair: tuple[Array, ...] = (None, None)
    if taken is not None:
        pair = tuple(map(cupy.ascontiguousarray, (taken.restricted, taken.coefficients)))
        same_types(*pair, product.values)
        rank, noise = taken.restricted.shape[0], noise * taken.norm
    state = _numbers(standing.squared, standing.length, standing.target)
    bounds = (np.float64(noise), np.float64(least))
    arguments = (np.int64(parts.shape[0]), np.int32(m), parts, np.int64(rank), *pair, *bounds)
    made = (step, moving, np.int32(tickets.size), tickets)
    _columns("cg_pace", value, m, (*arguments, *state, *made))
    return Moves(step, moving, tickets)


def cg_advance(columns: Course, product: Array, moves: Moves, *, stop_early: bool) -> Course:
    """A whole step in place by two kernels, the first of which also tells where columns are."""
    n, m = product.shape
    given = (product, columns.residual, columns.solution, columns.direction)
    arrays = same_types(*map(cupy.ascontiguousarray, given))
    product, residual, solution, direction = arrays
    shape = kernels.tile_shape(m, solution.dtype.itemsize, alignment(*arrays))
    grid = shape.grid(n, m)
    sizes = (np.int64(n), np.int32(m), np.int32(shape.passes))
    partial = cupy.empty((grid[0] + -(-grid[0] // _GROUP), m), cupy.float64)
    # Packs of another width would want other tickets.
    assert moves.tickets.size >= grid[1] * (-(-grid[0] // _GROUP) + 1)
    turn, state = _turn_of(m), _state_of(columns.standing, moves.moving)
    (step,) = _numbers(moves.step)
    kernel = compiled("columns", "cg_residual", solution.dtype, defines=shape.defines)
    places = (step, product, residual, partial, moves.tickets, np.int32(stop_early))
    kernel(grid, shape.block, (*sizes, *places, *state, *turn))
    kernel = compiled("cg_direction", "cg_solution", solution.dtype, defines=shape.defines)
    kernel(grid, shape.block, (*sizes, step, turn[0], residual, solution, direction))
    return Course(solution, residual, direction, Standing(*turn[1:]))


def _tickets_of(values: Array) -> int:
    """How many tickets ``cg_advance`` takes, whatever the address of its arrays."""
    (n, m), size = values.shape, values.dtype.itemsize
    shapes = (kernels.tile_shape(m, size, alignment) for alignment in (4, 8, 16))
    grids = (shape.grid(n, m) for shape in shapes)
    return int(max(grid[1] * (-(-grid[0] // _GROUP) + 1) for grid in grids))


def _turn_of(m: int) -> tuple[Array, ...]:
    """Room for the ratio and the standing of columns after a step."""
    return (*(cupy.empty((m,), cupy.float64) for _ in range(4)), cupy.empty((m,), cupy.bool_))


def _state_of(standing: Standing, moving: Array) -> tuple[Array, ...]:
    """What the kernels read of columns: who moves, who is fresh, and the numbers."""
    flags = (cupy.ascontiguousarray(moving), cupy.ascontiguousarray(standing.fresh))
    return (*flags, *_numbers(standing.squared, standing.length, standing.target))


def cg_turn(squared_norm: Array, standing: Standing, moving: Array, *, stop_early: bool) -> Turn:
    """Where columns are after an update: one kernel, which adds up the parts of their squares."""
    parts = _in_parts(squared_norm)
    m = parts.shape[1]
    turn, state = _turn_of(m), _state_of(standing, moving)
    sizes = (np.int64(parts.shape[0]), np.int32(m), parts, np.int32(stop_early))
    _columns("cg_turn", parts.dtype, m, (*sizes, *state, *turn))
    return Turn(turn[0], Standing(*turn[1:]))


def column_sums(partial: Array) -> Array:
    """Sums over the rows of partial sums (rows, m)."""
    rows, m = partial.shape
    sums = cupy.empty((m,), cupy.float64)
    _columns("column_sums", partial.dtype, m, (np.int64(rows), np.int32(m), partial, sums))
    return sums


def _columns(name: str, value: Any, m: int, arguments: tuple[Any, ...]) -> None:
    kernel = compiled("columns", name, value, defines=("HG_PACK=1",))
    kernel((-(-m // _SLICE),), (_SLICE, _LINES), arguments)


def _in_parts(sums: Array) -> Array:
    """Sums (m,) as one part of themselves."""
    (parts,) = _numbers(sums if sums.ndim == 2 else sums[None, :])
    return parts


def _numbers(*arrays: Array) -> tuple[Array, ...]:
    return tuple(cupy.ascontiguousarray(array, cupy.float64) for array in arrays)


def cg_update(
    solution: Array,
    residual: Array,
    direction: Array,
    product: Array,
    step: Array,
    *,
    summed: bool,
) -> Update:
    """Move solution and residual in place, and return the residual's squared column norms."""
    n, m = solution.shape
    arrays = same_types(direction, product, solution, residual)
    step = cupy.ascontiguousarray(step, cupy.float64)
    shape = kernels.tile_shape(m, solution.dtype.itemsize, alignment(*arrays))
    grid = shape.grid(n, m)
    partial = cupy.empty((grid[0], m), cupy.float64)
    sizes = (np.int64(n), np.int32(m), np.int32(shape.passes))
    kernel = compiled("cg_update", "cg_update", solution.dtype, defines=shape.defines)
    kernel(grid, shape.block, (*sizes, step, *arrays, partial))
    return Update(solution, residual, column_sums(partial) if summed else partial)


def cg_direction(residual: Array, direction: Array, ratio: Array) -> Array:
    """``R + P ratio``, in the place of P."""
    n, m = residual.shape
    arrays = same_types(residual, direction)
    ratio = cupy.ascontiguousarray(ratio, cupy.float64)
    shape = kernels.tile_shape(m, residual.dtype.itemsize, alignment(*arrays))
    sizes = (np.int64(n), np.int32(m), np.int32(shape.passes))
    kernel = compiled("cg_direction", "cg_direction", residual.dtype, defines=shape.defines)
    kernel(shape.grid(n, m), shape.block, (*sizes, ratio, *arrays))
    return direction


def column_dots(left: Array, right: Array) -> Array:
    """Dot products of the columns of two (n, m) arrays of one type."""
    n, m = left.shape
    arrays = same_types(left, right)
    shape = kernels.tile_shape(m, left.dtype.itemsize, alignment(*arrays))
    grid = shape.grid(n, m)
    partial = cupy.empty((grid[0], m), cupy.float64)
    sizes = (np.int64(n), np.int32(m), np.int32(shape.passes))
    kernel = compiled("columns", "column_dots", left.dtype, defines=shape.defines)
    kernel(grid, shape.block, (*sizes, *arrays, partial))
    return column_sums(partial)
