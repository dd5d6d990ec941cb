"""How the kernels of ``kernels/cuda`` are launched, as the model of a GPU needs it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gpu_devices import GAP, Device
from gpu_graphs import Csr
from gpu_limits import Load, RowShape, StreamShape, sparse_load, stream_load
from gpu_replay import Replay
from gpu_sass import Code, compiled

from hybrid_gpu import kernels  # type: ignore[attr-defined]  # stands beside, see pyproject

# As in hybrid_gpu/backends/cuda.py.
_ROW_BLOCKS = 1024
_FLOAT = 4
# Clocks of a turn of top-k in which a block counts or exchanges, with its barrier: an assumption.
_TURN = 150


def sparse_loads(
    matrices: Mapping[str, Csr], replays: Mapping[str, Replay], m: int, device: Device
) -> dict[str, Load]:
    """The products of a step: with W, with the groups by vectors, and that of both off a signal."""
    uses = {
        "laplacian_step": ("adjacency", True),
        "csr_spmm, restrict": ("transposed", False),
        "csr_spmm, subtract": ("spread", False),
    }
    loads = {}
    for kernel, (name, laplacian) in uses.items():
        code, shape = _product(matrices[name], m, device, laplacian=laplacian)
        loads[kernel] = sparse_load(
            code,
            matrices[name],
            replays[name],
            m,
            shape,
            device,
            own=laplacian,
            # Only the product of few columns with W has blocks that stay.
            one_visit=shape.chunk > 0 or not laplacian,
            read_result=name == "spread",
        )
    return loads


def _product(matrix: Csr, m: int, device: Device, *, laplacian: bool) -> tuple[Code, RowShape]:
    """The kernel that multiplies with m columns, and how it lies on threads."""
    wide = kernels.wide_shape(m, _FLOAT, n=matrix.rows)
    if wide is None:
        file = "laplacian_step" if laplacian else "csr_spmm"
        shape = _few_columns(matrix, m, most=_ROW_BLOCKS if laplacian else 2**31 - 1)
        return compiled(file, file, device.architecture), shape
    name = "wide_laplacian" if laplacian else "wide_spmm"
    blocks, tiles = wide.grid(matrix.rows, m)
    shape = RowShape(
        lanes=wide.lanes,
        pack=wide.pack,
        shares=1,
        rows=wide.rows,
        tiles=tiles,
        visit=wide.rows * wide.passes,
        grid=blocks,
        chunk=max(16, wide.lanes),
    )
    return compiled("wide_product", name, device.architecture, wide.defines), shape


def _few_columns(matrix: Csr, m: int, *, most: int) -> RowShape:
    x, y = kernels.row_block(m, matrix.entries / matrix.rows)
    width = 1 << (m - 1).bit_length() if m <= 16 else x
    return RowShape(
        lanes=x,
        pack=1,
        shares=x // min(width, x),
        rows=y,
        tiles=-(-m // x),
        visit=y,
        grid=min(-(-matrix.rows // y), most),
    )


def top_k_seconds(n: int, m: int, k: int, device: Device) -> float:
    """Seconds of both kernels of top-k, on the columns of (n, m) scores in any order."""
    shape = kernels.top_k_shape(m, n, k, columns=True, multiprocessors=device.sms)
    code = compiled("top_k", "top_k_part", device.architecture)
    grid = StreamShape(shape.threads, shape.parts * -(-m // shape.width))
    read = stream_load(code, n, m, grid, device, reads=1, writes=0)
    # Of L items, k (1 + ln(L / k)) come onto the list of a part, which is cut when it is full.
    coming = k * (1 + math.log(max(1.0, n / shape.parts / k)))
    cuts = 1 + coming // (shape.room - k)
    # The merge: a list of all parts, cut once or twice, and a sort of k by bitonic exchanges.
    size = max(1, (k - 1).bit_length())
    turns = 32 * (cuts + 2) + size * (size + 1) / 2
    waves = -(-m // (2 * device.sms))
    return read.seconds(device) + waves * turns * _TURN / device.clock + 2 * GAP


def dense_loads(n: int, m: int, device: Device) -> dict[str, Load]:
    """The passes over (n, m) arrays: of a step, and of a sum over the rows of one array."""
    tile = kernels.tile_shape(m, _FLOAT)
    x, y = tile.block
    rows, tiles = tile.grid(n, m)
    shape = StreamShape(x * y // 32 * 32, rows * tiles)
    uses = {
        "cg_residual": ("columns", 2, 1),
        "cg_solution": ("cg_direction", 3, 2),
        "cg_update": ("cg_update", 4, 2),
        "cg_direction": ("cg_direction", 2, 1),
        "column_dots": ("columns", 2, 0),
    }
    return {
        name: stream_load(
            compiled(file, name, device.architecture, tile.defines),
            n,
            m,
            shape,
            device,
            reads=reads,
            writes=writes,
        )
        for name, (file, reads, writes) in uses.items()
    }
