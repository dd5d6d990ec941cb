"""How close is a step to what memory allows? The bytes of a step, and the bandwidth of the machine.

    python bench/roofline.py million-1000000-50.npz            # k-NN lists: ids, similarities
    python bench/roofline.py --record lists.npz more_lists.npz

One plain step of conjugate gradients (product with its dots, update with its norms, direction) for
64 right-hand sides, by the native core and by SciPy's products on tiles, in turn. The bytes are the
least that a step has to move: every array once for each pass over it. Both must agree in their
values, or nothing is recorded. The last rows are what deflation by the default groups adds to a
step: the sums of the groups, the small dense product, and what comes off the product again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import record, show

import hybrid_gpu as hg
from hybrid_gpu.backends.native import native_core
from hybrid_gpu.backends.native_backend import NativeBackend
from hybrid_gpu.backends.numpy_backend import NumpyBackend
from hybrid_gpu.backends.threads import for_each
from hybrid_gpu.graph.affinity import largest_component
from hybrid_gpu.graph.csr import matrix_bytes, submatrix

ALPHA = 0.99
# Passes over (n, m) arrays: product 2, update 6, direction 3.
PASSES = {"product": 2, "update": 6, "direction": 3}


def component_in_order(path: Path) -> tuple[Any, Any]:
    """The adjacency of the largest component of a file's lists, and the default groups on it.

    In the order of an index.
    """
    with np.load(path) as file:
        index = hg.build_index_from_neighbors(
            file["ids"], file["similarities"], neighbors=50, basis="aggregate", backend="numpy"
        )
    backend, graph = index.state.backend, index.state.graph
    matrix = submatrix(graph.adjacency, largest_component(graph), backend)
    return matrix, index.state.basis


def bandwidth(megabytes: int, repeats: int) -> dict[str, float]:
    """Bytes per second of a copy by NumPy and of ``a = b + a * s`` by the native core."""
    size = megabytes * 1_000_000 // 4
    source, target = np.ones(size, np.float32), np.zeros(size, np.float32)
    tiles = [slice(start, start + (1 << 18)) for start in range(0, size, 1 << 18)]
    found = {
        "NumPy copy": 8
        * size
        / best(lambda: for_each(lambda part: np.copyto(target[part], source[part]), tiles), repeats)
    }
    core = native_core()
    if core is not None:
        native, ratio = NativeBackend(core), np.full(64, 0.5)
        rows = size // 64
        one, other = (array[: rows * 64].reshape(rows, 64) for array in (source, target))
        seconds = best(lambda: native.cg_direction(one, other, ratio), repeats)
        found["native triad"] = 12 * 64 * rows / seconds
    return found


def best(function: Callable[[], Any], repeats: int) -> float:
    """The shortest of several times, in seconds: others may be at work."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


class Step:
    """One plain step, over and over, with a step and a ratio that keep all numbers in range."""

    def __init__(self, backend: NumpyBackend, matrix: Any, m: int) -> None:
        self.backend, self.seconds = backend, {name: [] for name in PASSES}
        self.matrix = backend.csr(matrix.data, matrix.indices, matrix.indptr, matrix.shape)
        start = np.random.default_rng(7).random((matrix.shape[0], m), np.float32)
        self.solution, self.residual, self.direction = np.zeros_like(start), start, start.copy()
        self.size = np.full(m, 0.1)

    def take(self) -> None:
        """Take it, and keep the time of each of its passes."""
        clock = [time.perf_counter()]
        product = self.backend.laplacian_step(self.matrix, self.direction, ALPHA)
        clock.append(time.perf_counter())
        self.backend.cg_update(
            self.solution, self.residual, self.direction, product.values, self.size
        )
        clock.append(time.perf_counter())
        self.backend.cg_direction(self.residual, self.direction, self.size)
        clock.append(time.perf_counter())
        for name, seconds in zip(PASSES, np.diff(clock), strict=True):
            self.seconds[name].append(float(seconds))


def measured(matrix: Any, m: int, repeats: int, speed: float) -> list[dict[str, Any]]:
    """Times of a step and its passes, beside the time that their bytes take."""
    steps = {"SciPy tiles": Step(NumpyBackend(), matrix, m)}
    core = native_core()
    if core is not None:
        steps[f"native, {core.level}"] = Step(NativeBackend(core), matrix, m)
    for _ in range(repeats):
        for step in steps.values():
            step.take()
    solutions = [step.solution for step in steps.values()]
    np.testing.assert_allclose(solutions[0], solutions[-1], rtol=1e-3, atol=1e-3)
    unit = matrix.shape[0] * m * 4
    rows = []
    for name, passes in (*PASSES.items(), ("step", sum(PASSES.values()))):
        reads_matrix = name in ("product", "step")
        count = passes * unit + (matrix_bytes(matrix) if reads_matrix else 0)
        row: dict[str, Any] = {"pass": name, "bytes": count, "at bandwidth ms": 1e3 * count / speed}
        for who, step in steps.items():
            times = np.sum(list(step.seconds.values()), axis=0)
            seconds = np.min(times if name == "step" else step.seconds[name])
            row |= {f"{who} ms": 1e3 * seconds, f"{who}, of bandwidth": count / speed / seconds}
        rows.append(row)
    return rows


def deflation(basis: Any, m: int, repeats: int, speed: float) -> list[dict[str, Any]]:
    """Times of the three parts of a deflation, beside the time that their bytes take."""
    backend, (n, r) = basis.backend, basis.vectors.shape
    inverse = basis.coarse_inverse(ALPHA).together
    values = np.random.default_rng(9).random((n, m), np.float32)
    sums = backend.spmm(basis.transposed, values)
    coupled = sums[: inverse.shape[0], :]
    both = np.concatenate([sums, -ALPHA * sums])
    parts = {
        "deflation: sums of groups": (
            lambda: backend.spmm(basis.transposed, values),
            4 * m * (n + r) + matrix_bytes(basis.transposed),
        ),
        "deflation: dense product": (
            lambda: backend.matmul(inverse, coupled),
            4 * (inverse.size + 2 * coupled.size),
        ),
        "deflation: off the product": (
            lambda: backend.subtract_spmm(values, basis.spread, both),
            4 * m * (2 * n + 2 * r) + matrix_bytes(basis.spread),
        ),
    }
    rows = []
    for name, (run, count) in parts.items():
        seconds = best(run, repeats)
        core = native_core()
        who = "SciPy tiles" if core is None else f"native, {core.level}"
        row = {"pass": name, "bytes": count, "at bandwidth ms": 1e3 * count / speed}
        rows.append(
            row | {f"{who} ms": 1e3 * seconds, f"{who}, of bandwidth": count / speed / seconds}
        )
    return rows


def main() -> None:
    """Measure, show, and record if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lists", type=Path, nargs="+", help=".npz of ids and similarities (n, k)")
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    speeds = bandwidth(400, options.repeats)
    print(", ".join(f"{name}: {speed / 1e9:.1f} GB/s" for name, speed in speeds.items()))
    rows: list[dict[str, Any]] = []
    for path in options.lists:
        matrix, basis = component_in_order(path)
        sizes = {"items": matrix.shape[0], "entries": int(matrix.data.size)}
        given = options.columns, options.repeats, max(speeds.values())
        found = [*measured(matrix, *given), *deflation(basis, *given)]
        rows += [dict.fromkeys((*sizes, *found[0])) | sizes | row for row in found]
    show(f"One step, {options.columns} right-hand sides", rows)
    if options.record:
        told = {f"{name} GB/s": speed / 1e9 for name, speed in speeds.items()}
        print(record("roofline", {"columns": options.columns, "alpha": ALPHA, **told}, rows))


if __name__ == "__main__":
    main()
