"""What a batch of queries consists of on a GPU, and what the parts take that are not ours."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_devices import GAP, STREAM, Device

_FLOAT = 4
# Of CuPy's own reductions over the first axis: threads of a block, columns of a block, and the
# seconds of a load that nothing hides. Fitted to one published time, see the checks of the model.
_SUM_THREADS, _SUM_COLUMNS, _SUM_LOAD = 512, 32, 0.509e-6
# Of a dense product by cuBLAS: the part of the float32 peak.
_PRODUCT = 0.6


@dataclass(frozen=True)
class Program:
    """A batch: how often each part runs, and launches and waits in all.

    ``small_launches`` are those of kernels on a few numbers, whose time is that of the launch.
    """

    launches: int
    waits: int
    small_launches: int
    counts: dict[str, int] = field(default_factory=dict)


# A batch of ``rerank`` to an accuracy, ten steps with aggregates, one of them with a projection.
# Passes over (n, m) arrays by CuPy itself: place 1, right-hand side 2, zeros 1, its copy 2,
# directions 2, what is left 3, columns told apart 2. Corrections are part of their products. "Sum
# of parts" has those at the end of ``cg_residual`` as well, which are shorter.
PROGRAM = Program(
    launches=220,
    waits=2,
    small_launches=114,
    counts={
        "laplacian_step": 11,
        "cg_residual": 9,
        "cg_solution": 9,
        "cg_update": 1,
        "cg_direction": 1,
        "csr_spmm, restrict": 13,
        "csr_spmm, subtract": 13 + 3,
        "coarse solve": 13,
        "pass over an array": 13,
        "column_dots": 6,
        "sum of parts": 26,
        "top-k": 1,
    },
)


def cupy_pass(n: int, m: int, device: Device) -> float:
    """Seconds to read or write an array (n, m) once."""
    return _FLOAT * n * m / (STREAM * device.bandwidth)


def cupy_sum(n: int, m: int) -> float:
    """Seconds of CuPy's sum over the first axis of (n, m): ceil(m / 32) blocks, load after load."""
    return n / (_SUM_THREADS / min(_SUM_COLUMNS, m)) * _SUM_LOAD


def sum_of_parts(rows: int, device: Device) -> float:
    """Seconds to add up partial sums: 4 columns for a block of 512 threads, 4 loads under way."""
    under_way = 512 * 4 * 8
    return 32 * rows / (under_way / (device.latency[2] / device.clock)) + GAP


def dense_product(size: int, m: int, device: Device) -> float:
    """Seconds of a dense (size, size) matrix times (size, m)."""
    by_memory = _FLOAT * size * (size + 2 * m) / (STREAM * device.bandwidth)
    return max(by_memory, 2 * size**2 * m / (_PRODUCT * device.flops)) + GAP
