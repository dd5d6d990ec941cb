"""Do the tests notice the mistakes that a GPU punishes? Plants one at a time and runs them.

    python tools/plant_faults.py                  # all of them
    python tools/plant_faults.py --sample         # one of each kind, for every change
    python tools/plant_faults.py waits kernels    # some kinds
    python tools/plant_faults.py --record         # and put the outcomes into bench/results

``mutate_core.py`` and ``mutate_kernels.py`` change every operator there is. These faults are
written by hand, after what goes wrong on GPUs: an event before the work, a wait too few, memory
that goes back too early, another device, another dtype, half of the columns, ties, 2^31. The tests
named with a fault run on the stand-in (``tools/cupy_on_cpu``), whose streams run late in them, on a
copy of the library that has the fault. Exits with 1 if a fault is noticed by none of them and not
explained, or explained and noticed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY, KERNELS = "hybrid_gpu", "kernels"
RESULTS = ROOT / "bench" / "results"

TRANSFERS = "tests/backends/test_transfers.py"
CUPY = "tests/backends/test_cupy_backend.py"
HARD = "tests/backends/test_hard_cases.py"
DEVICES = "tests/backends/test_second_device.py"
LARGE = "tests/backends/test_large_arrays.py"
BACKENDS = "tests/backends/test_backends.py"
MEMORY = "tests/index/test_device_memory.py"

KINDS = {
    "orders": "an event that stands before the work it shall tell of",
    "waits": "a wait too few, or on the wrong stream",
    "lifetimes": "memory that goes back under a copy, results counted twice",
    "devices": "work on the device that happens to be current",
    "memory": "arrays held too long, or twice; a limit that is not looked at",
    "dtypes": "values read in another type or order than they have",
    "grids": "columns, rows or blocks left out",
    "kernels": "barriers, bounds, ties and zeros in the CUDA code",
    "overflow": "places counted in 32 bits",
}
"""What goes wrong in the faults of each kind."""


@dataclass(frozen=True)
class Fault:
    """One mistake: a text of a file and what stands in its place.

    Attributes
    ----------
    tests : str
        Files of tests, and after ``-k`` those of them that should notice.
    harmless : str
        Why no test can notice it; empty if one must.
    """

    kind: str
    name: str
    file: str
    before: str
    after: str
    tests: str
    harmless: str = ""
    sample: bool = False


T, C, U = "backends/transfers.py", "backends/cupy_backend.py", "backends/cuda.py"
L, S = "backends/cuda_launch.py", "backends/cuda_steps.py"
NO_WAIT = f"{TRANSFERS} -k 'arrive_whole or packed or under_way or asked_for'"

FAULTS = (
    # ---- orders: an event tells of what was asked for before it
    Fault(
        "orders",
        "the event of a download stands before the packing",
        T,
        """        self._packed: Array | None = cupy.ascontiguousarray(values)
        self._buffer: HostArray | None = pinned(values.shape, values.dtype)
        # After the packing, which is work of the current stream as well.
        copies.wait_event(cupy.cuda.get_current_stream().record())
""",
        """        copies.wait_event(cupy.cuda.get_current_stream().record())
        self._packed: Array | None = cupy.ascontiguousarray(values)
        self._buffer: HostArray | None = pinned(values.shape, values.dtype)
""",
        f"{TRANSFERS} -k 'packed or arrive_whole'",
        sample=True,
    ),
    Fault(
        "orders",
        "an upload waits before it allocates",
        T,
        """        parts = tuple(cupy.empty(buffer.shape, buffer.dtype) for buffer in buffers)
        # After the allocation: work that was asked for before it may still use this memory, and
        # another thread may have asked for it a moment ago.
        self.copies.wait_event(cupy.cuda.get_current_stream().record())
""",
        """        self.copies.wait_event(cupy.cuda.get_current_stream().record())
        parts = tuple(cupy.empty(buffer.shape, buffer.dtype) for buffer in buffers)
""",
        f"{TRANSFERS} -k 'arrive_whole or in_between'",
        sample=True,
    ),
    Fault(
        "orders",
        "the event of an upload stands before its copies",
        T,
        """        try:
            for part, buffer in zip(parts, buffers, strict=True):
                part.set(buffer, stream=self.copies)
        finally:
            self.sent[turn] = self.copies.record()
""",
        """        self.sent[turn] = self.copies.record()
        for part, buffer in zip(parts, buffers, strict=True):
            part.set(buffer, stream=self.copies)
""",
        f"{TRANSFERS} -k arrive_whole",
    ),
    Fault(
        "orders",
        "a buffer is filled before its last copy is done",
        T,
        """        if self.sent[turn] is not None:
            self.sent[turn].synchronize()  # two slices ago: done long since
        buffers = [buffer[:count] for buffer in self.buffers[turn]]
        for array, buffer in zip(self.arrays, buffers, strict=True):
            buffer[...] = array[first : first + count]
""",
        """        buffers = [buffer[:count] for buffer in self.buffers[turn]]
        for array, buffer in zip(self.arrays, buffers, strict=True):
            buffer[...] = array[first : first + count]
        if self.sent[turn] is not None:
            self.sent[turn].synchronize()  # two slices ago: done long since
""",
        f"{TRANSFERS} -k arrive_whole",
    ),
    # ---- waits
    Fault(
        "waits",
        "work on a slice does not wait for it",
        T,
        "                cupy.cuda.get_current_stream().wait_event(sent)\n",
        "                pass\n",
        NO_WAIT,
        sample=True,
    ),
    Fault(
        "waits",
        "an upload does not wait for its memory",
        T,
        "        self.copies.wait_event(cupy.cuda.get_current_stream().record())\n",
        "",
        NO_WAIT,
    ),
    Fault(
        "waits",
        "a download does not wait for its array",
        T,
        "        copies.wait_event(cupy.cuda.get_current_stream().record())\n        try:\n            self._packed",
        "        try:\n            self._packed",
        NO_WAIT,
    ),
    Fault(
        "waits",
        "the host does not wait for a download",
        T,
        "            self._arrived.synchronize()\n            self._result",
        "            self._result",
        NO_WAIT,
    ),
    Fault(
        "waits",
        "the work waits on the default stream, not on the current one",
        T,
        "                cupy.cuda.get_current_stream().wait_event(sent)\n",
        "                cupy.cuda.Stream.null.wait_event(sent)\n",
        f"{TRANSFERS} -k own_stream",
    ),
    Fault(
        "waits",
        "an upload waits for the default stream, not for the current one",
        T,
        "        self.copies.wait_event(cupy.cuda.get_current_stream().record())\n",
        "        self.copies.wait_event(cupy.cuda.Stream.null.record())\n",
        f"{TRANSFERS} -k own_stream",
    ),
    Fault(
        "waits",
        "a download waits for the default stream, not for the current one",
        T,
        "        copies.wait_event(cupy.cuda.get_current_stream().record())\n        try:\n            self._packed",
        "        copies.wait_event(cupy.cuda.Stream.null.record())\n        try:\n            self._packed",
        f"{TRANSFERS} -k own_stream",
    ),
    Fault(
        "waits",
        "synchronize waits for nothing",
        C,
        "            cupy.cuda.get_current_stream().synchronize()\n",
        "            pass\n",
        f"{CUPY} -k any_stream",
    ),
    Fault(
        "waits",
        "an index is given out before it is there",
        "index/views.py",
        "        state.backend.synchronize()  # whoever made it: it may be searched on any stream\n",
        "",
        f"{CUPY} -k any_stream",
        sample=True,
    ),
    Fault(
        "waits",
        "what is kept is given out before it is there",
        "backends/__init__.py",
        "    made = make()\n    backend.synchronize()\n",
        "    made = make()\n",
        f"{CUPY} -k any_stream",
    ),
    Fault(
        "waits",
        "the stream for copies waits for the default stream, and that one for it",
        C,
        "            return cupy.cuda.Stream(non_blocking=True)\n",
        "            return cupy.cuda.Stream()\n",
        f"{TRANSFERS} -k 'arrive_whole or packed or under_way'",
        harmless="right, but copies and work take turns: slower",
    ),
    Fault(
        "waits",
        "one buffer in the place of two",
        T,
        "        turn, self.turn = self.turn, 1 - self.turn\n",
        "        turn = self.turn\n",
        f"{TRANSFERS} -k 'arrive_whole or under_way'",
        harmless="right, but the host waits for each copy: slower",
    ),
    # ---- lifetimes
    Fault(
        "lifetimes",
        "an exception leaves copies of an upload under way",
        T,
        "        pipe.finish()\n",
        "        pass\n",
        f"{TRANSFERS} -k 'under_way or runs_out'",
        sample=True,
    ),
    Fault(
        "lifetimes",
        "a download that nobody asks for gives its memory back at once",
        T,
        "        if self._arrived is not None and not sys.is_finalizing() and not self._arrived.done:\n",
        "        if False:\n",
        f"{TRANSFERS} -k under_way",
    ),
    Fault(
        "lifetimes",
        "a download does not keep what it copies",
        T,
        "            self._packed.get(stream=copies, out=self._buffer, blocking=False)\n",
        "            self._packed.get(stream=copies, out=self._buffer, blocking=False)\n"
        "            del values\n            self._packed = None\n",
        f"{TRANSFERS} -k 'packed or asked_for'",
    ),
    Fault(
        "lifetimes",
        "a download does not keep where it copies to",
        T,
        "        self._buffer: HostArray | None = pinned(values.shape, values.dtype)\n",
        "        self._buffer: HostArray | None = pinned(values.shape, values.dtype)[...].copy()\n",
        f"{TRANSFERS} -k 'packed or asked_for'",
        harmless="right, but pageable memory: the copy blocks",
    ),
    Fault(
        "lifetimes",
        "a batch is counted twice if memory runs out in between",
        "index/search.py",
        """        if batch.residuals is not None:
            self._residuals.append(self._sent(batch.residuals))
        self._parts.append(parts)
""",
        """        self._parts.append(parts)
        if batch.residuals is not None:
            self._residuals.append(self._sent(batch.residuals))
""",
        f"{TRANSFERS} -k taken_again",
    ),
    Fault(
        "lifetimes",
        "no pinned memory is an error",
        T,
        "        if fault.status != _OUT_OF_MEMORY:\n            raise\n",
        "        raise\n",
        f"{TRANSFERS} -k pinned",
    ),
    # ---- devices
    Fault(
        "devices",
        "functions do not enter their device",
        "backends/__init__.py",
        "            with device.annotate(function.__name__):\n                return function(*args, **options)\n",
        "            return function(*args, **options)\n",
        DEVICES,
        sample=True,
    ),
    Fault(
        "devices",
        "methods do not enter their device",
        "backends/__init__.py",
        "        with backend.annotate(method.__name__):\n            return method(*args, **options)\n",
        "        return method(*args, **options)\n",
        DEVICES,
    ),
    Fault(
        "devices",
        "'auto' takes a graph of the host to the GPU, but not its arrays",
        "backends/__init__.py",
        'backend == "auto" and stays and array is not None:',
        'backend == "auto" and False:',
        DEVICES,
    ),
    Fault(
        "devices",
        "products do not enter the device",
        C,
        "        with self.device:\n            return super().matmul(left, right)\n",
        "        return super().matmul(left, right)\n",
        f"{DEVICES} -k 'operations and not host'",
    ),
    Fault(
        "devices",
        "the stream for copies belongs to the device that is current",
        C,
        '        """The second stream: copies run on it while the first one computes."""\n        with self.device:\n            return',
        '        """The second stream: copies run on it while the first one computes."""\n        if True:\n            return',
        DEVICES,
        harmless="every caller has entered the device",
    ),
    Fault(
        "devices",
        "slices are copied to the device that is current",
        T,
        "        with device:\n            coming = pipe.send(start)\n",
        "        coming = pipe.send(start)\n",
        f"{DEVICES} -k 'operations and not host'",
    ),
    Fault(
        "devices",
        "a kernel of one device is launched on another",
        L,
        "    return _function(file, name, *types, defines, cupy.cuda.Device().id)\n",
        "    return _function(file, name, *types, defines, 0)\n",
        f"{CUPY} {DEVICES} -k 'two_devices or (operations and not host) or moves'",
        harmless="CuPy's RawKernel loads itself for each device that it is launched on",
    ),
    Fault(
        "devices",
        "an array of another device is taken in by DLPack",
        C,
        "                self._check_device(int(values.__dlpack_device__()[1]))\n",
        "",
        f"{CUPY} -k dlpack",
    ),
    Fault(
        "devices",
        "pinned tensors count as device arrays",
        "backends/numpy_backend.py",
        "_HOST_DEVICES = (1, 3)",
        "_HOST_DEVICES = (1,)",
        f"{BACKENDS} {CUPY} -k pinned",
    ),
    Fault(
        "devices",
        "lists per inverted file are set after the index moved",
        "graph/neighbors.py",
        "        inverted.nprobe = min(_FAISS_PROBES, inverted.nlist)\n",
        "        inverted.nlist\n",
        f"{BACKENDS} -k inverted",
    ),
    # ---- memory: what is held, and what is thought to be left
    Fault(
        "memory",
        "the exception of a batch that did not fit is kept",
        "index/search.py",
        "        return False\n    return True\n",
        "        done.fault = fault\n        return False\n    return True\n",
        f"{MEMORY} -k smaller_batch",
        sample=True,
    ),
    Fault(
        "memory",
        "the last batch is held while the next one is made",
        "index/search.py",
        "        done.take(_good_enough(best, request, backend))\n",
        "        done.take(_good_enough(best, request, backend))\n"
        "        done.last = (found, solution)\n",
        f"{MEMORY} -k finished_batch",
    ),
    Fault(
        "memory",
        "results stay on the device until the end",
        "index/search.py",
        "            arrived()\n",
        "            pass\n",
        f"{MEMORY} -k finished_batch",
    ),
    Fault(
        "memory",
        "descriptors are put in order as a second copy",
        "graph/vectors.py",
        "    if n * d * item_bytes(units) <= _SMALL:\n",
        "    if True:\n",
        f"{MEMORY} -k a_build_stays",
    ),
    Fault(
        "memory",
        "all descriptors are scaled at once",
        "graph/vectors.py",
        "        return max(1, min(max(n // _TILES, _LEAST_TILE // row), _LARGEST_TILE // row))\n",
        "        return n\n",
        f"{MEMORY} -k a_build_stays",
    ),
    Fault(
        "memory",
        "CuPy's default pool counts, whoever gives the memory",
        "backends/device_memory.py",
        '    owner = getattr(cupy.cuda.get_allocator(), "__self__", None)\n',
        "    owner = cupy.get_default_memory_pool()\n",
        f"{MEMORY} -k 'come_from or any_pool or rmm'",
    ),
    Fault(
        "memory",
        "the limit of a pool does not count",
        "backends/device_memory.py",
        "        return max(0, min(free, limit - int(pool.used_bytes()))) if limit else free\n",
        "        return free\n",
        f"{MEMORY} -k 'come_from or pool_of_cuda'",
    ),
    Fault(
        "memory",
        "all rows are sorted at once",
        C,
        "_SORTED_TOGETHER = 4\n",
        "_SORTED_TOGETHER = 1 << 20\n",
        f"{MEMORY} -k little_memory",
    ),
    Fault(
        "memory",
        "a block is made as a whole before it is searched",
        "graph/streamed.py",
        "vectors.units(first, min(first + block, n), tile)",
        "vectors.units(first, min(first + block, n))",
        f"{MEMORY} -k need_not_fit",
    ),
    Fault(
        "memory",
        "an item finds itself where tiles and blocks begin apart",
        "graph/streamed.py",
        "found.ids + first], axis=1)",
        "found.ids + min(first, start)], axis=1)",
        f"{MEMORY} -k need_not_fit",
    ),
    Fault(
        "memory",
        "products of neighbors take memory that is not there",
        C,
        "            room, kind = self.available_bytes() // 4, left.dtype\n",
        "            room, kind = 1 << 40, left.dtype\n",
        f"{MEMORY} -k 'need_not_fit or build_stays'",
    ),
    # ---- dtypes and orders of memory
    Fault(
        "dtypes",
        "ids of 32 bits are read as 64",
        C,
        "            ids = cupy.ascontiguousarray(ids, cupy.int64)\n",
        "            ids = cupy.ascontiguousarray(ids)\n",
        f"{HARD} -k mutual",
        sample=True,
    ),
    Fault(
        "dtypes",
        "indices of 64 bits are read as 32",
        U,
        "    types, length = (dense.dtype, indices.dtype), matrix.data.size / n\n",
        '    types, length = (dense.dtype, np.dtype("int32")), matrix.data.size / n\n',
        f"{HARD} -k 'every_width'",
    ),
    Fault(
        "dtypes",
        "alpha is handed over as a double",
        U,
        "    kernel(grid, block, (*sizes, value(alpha), *arrays))\n",
        "    kernel(grid, block, (*sizes, float(alpha), *arrays))\n",
        f"{HARD} -k conjugate",
    ),
    Fault(
        "dtypes",
        "steps in float32 are read as float64",
        S,
        "    step = cupy.ascontiguousarray(step, cupy.float64)\n",
        "    step = cupy.ascontiguousarray(step)\n",
        f"{HARD} -k conjugate",
    ),
    Fault(
        "dtypes",
        "every other step is read",
        S,
        "    ratio = cupy.ascontiguousarray(ratio, cupy.float64)\n",
        "    ratio = ratio.astype(cupy.float64, copy=False)\n",
        f"{HARD} -k conjugate",
    ),
    Fault(
        "dtypes",
        "a column-major direction is read row by row",
        C,
        "            direction = cupy.ascontiguousarray(direction)\n",
        "",
        f"{HARD} -k conjugate",
    ),
    Fault(
        "dtypes",
        "a column-major array is subtracted from row by row",
        C,
        '            if self.engine == "own" and values.flags.c_contiguous:\n                return',
        '            if self.engine == "own":\n                return',
        f"{HARD} -k any_order",
    ),
    Fault(
        "dtypes",
        "the parts of a sparse matrix are read from their first entry on",
        C,
        "            data, indices = cupy.ascontiguousarray(data), cupy.ascontiguousarray(indices)\n",
        "",
        f"{HARD} -k any_order",
    ),
    Fault(
        "dtypes",
        "the number of columns is a Python integer",
        S,
        "    kernel(shape.grid(n, m), shape.block, (*sizes, ratio, *arrays))\n",
        "    kernel(shape.grid(n, m), shape.block, (sizes[0], m, sizes[2], ratio, *arrays))\n",
        f"{HARD} -k conjugate",
        harmless="8 bytes, of which a little-endian GPU reads the right four",
    ),
    Fault(
        "dtypes",
        "keys of float64 scores have 32 bits",
        U,
        "kind = cupy.uint32 if self.dtype.itemsize == 4 else cupy.uint64",
        "kind = cupy.uint32",
        f"{HARD} -k top_k_of_special",
    ),
    Fault(
        "dtypes",
        "top_k takes places for numbers",
        U,
        "cupy.ascontiguousarray(numbering.order, cupy.int64)",
        "cupy.ascontiguousarray(numbering.places, cupy.int64)",
        f"{HARD} -k top_k_by_a_numbering",
    ),
    # ---- grids and bounds
    Fault(
        "grids",
        "columns beyond the last whole block are left out",
        U,
        "2**31 - 1), -(-m // (32 if long else block[0])))\n",
        "2**31 - 1), max(1, m // (32 if long else block[0])))\n",
        f"{HARD} -k every_width",
    ),
    Fault(
        "grids",
        "long rows have 32 columns and no more",
        U,
        "-(-m // (32 if long else block[0]))",
        "-(-m // block[0])",
        f"{HARD} -k long_rows",
        sample=True,
    ),
    Fault(
        "grids",
        "a step has 128 columns and no more",
        U,
        "    kernel(grid, block, (*sizes, value(alpha), *arrays))\n    return Product(",
        "    kernel((grid[0], 1), block, (*sizes, value(alpha), *arrays))\n    return Product(",
        f"{HARD} -k conjugate",
    ),
    Fault(
        "grids",
        "one partial sum is left as it was",
        S,
        "    kernel(grid, shape.block, (*sizes, step, *arrays, partial))\n",
        "    kernel((max(1, grid[0] - 1), grid[1]), shape.block, (*sizes, step, *arrays, partial))\n",
        f"{HARD} -k conjugate",
    ),
    Fault(
        "grids",
        "fewer blocks add up the columns",
        S,
        "    kernel((-(-m // _SLICE),), (_SLICE, _LINES)",
        "    kernel((max(1, m // _SLICE),), (_SLICE, _LINES)",
        f"{HARD} -k conjugate",
    ),
    Fault(
        "grids",
        "the kernel of top-k gets more results than it has room for",
        C,
        "            small = k <= cuda.LARGEST_K and",
        "            small = k <= cuda.LARGEST_K + 1 and",
        f"{HARD} -k top_k",
    ),
    Fault(
        "grids",
        "rows and items of scores change places",
        U,
        "    row_stride, item_stride = (",
        "    item_stride, row_stride = (",
        f"{HARD} -k top_k",
    ),
    Fault(
        "grids",
        "the last rows of scores get no block",
        U,
        "        grid = (shape.parts * -(-m // shape.width),)\n",
        "        grid = (shape.parts * max(1, m // shape.width),)\n",
        f"{HARD} -k top_k",
    ),
    Fault(
        "grids",
        "a tile of products begins the lists anew",
        U,
        "shape.parts, first, self.begun)",
        "shape.parts, first, False)",
        f"{CUPY} -k products_of_tiles",
    ),
    Fault(
        "grids",
        "items of every tile of products have the places of the first",
        C,
        "best.read(cupy.dot(queries, others.T, out=tile), first)",
        "best.read(cupy.dot(queries, others.T, out=tile), 0)",
        f"{CUPY} -k products_of_tiles",
    ),
    # ---- kernels: bounds, barriers, ties
    Fault(
        "kernels",
        "more shared memory than a block may have",
        "kernels/cuda/top_k.cu",
        "#define HG_LIMIT 2048",
        "#define HG_LIMIT 8192",
        f"{HARD} -k top_k_of_special",
        sample=True,
    ),
    Fault(
        "kernels",
        "-0 comes after 0",
        "kernels/cuda/top_k.cu",
        "    if (bits == sign) bits = 0;  // -0 equals 0\n",
        "",
        f"{HARD} -k 'top_k and zeros'",
    ),
    Fault(
        "kernels",
        "a NaN with a sign comes last",
        "kernels/cuda/top_k.cu",
        "    if ((bits & ~sign) > infinity) return ~(Bits)0;\n",
        "",
        f"{HARD} -k top_k_finds_nan",
    ),
    Fault(
        "kernels",
        "ties go to the higher index",
        "kernels/cuda/top_k.cu",
        "number(number_of, at[left]) < number(number_of, at[right])",
        "number(number_of, at[left]) > number(number_of, at[right])",
        f"{HARD} -k 'top_k and equal'",
    ),
    Fault(
        "kernels",
        "one tie too few stays on a list",
        "kernels/cuda/top_k.cu",
        "            if (total < k) last = trial;\n",
        "            if (total < k - 1) last = trial;\n",
        f"{HARD} -k 'top_k and equal'",
    ),
    Fault(
        "kernels",
        "ties at the end of a list are settled by places",
        "kernels/cuda/top_k.cu",
        "number(lists.number_of, places[slot]) < trial)",
        "places[slot] < trial)",
        f"{HARD} -k top_k_by_a_numbering",
    ),
    Fault(
        "kernels",
        "sums of a turn are added to those of an earlier one",
        "kernels/cuda/top_k.cu",
        "    if (threadIdx.x < HG_ROWS) lists.totals[next * HG_ROWS + threadIdx.x] = 0;\n",
        "",
        f"{HARD} -k top_k_of_special",
    ),
    Fault(
        "kernels",
        "no barrier before the parts of a long row are added",
        "kernels/cuda/csr_spmm.cu",
        "        parts[thread] = sum;\n        __syncthreads();\n",
        "        parts[thread] = sum;\n",
        f"{HARD} -k long_rows",
    ),
    Fault(
        "kernels",
        "a thread writes one column too far",
        "kernels/cuda/cg_direction.cu",
        "    if (column >= m) return;\n    HG_VALUE by[HG_PACK];\n",
        "    if (column > m) return;\n    HG_VALUE by[HG_PACK];\n",
        f"{HARD} -k conjugate",
    ),
    Fault(
        "kernels",
        "the entries of a wide row are read before they are there",
        "kernels/cuda/wide_product.cu",
        "        __syncwarp();\n        const int all",
        "        const int all",
        f"{HARD} -k every_width",
    ),
    Fault(
        "kernels",
        "loads of several entries begin anywhere",
        L,
        "    return int(together & -together)\n",
        "    return 16\n",
        f"{HARD} -k between_the_others",
    ),
    Fault(
        "kernels",
        "the second result of a product is not looked at for its place",
        U,
        "    packed = (dense, result) if copy is None else (dense, result, copy)\n",
        "    packed = (result,)\n",
        f"{HARD} -k between_the_others",
    ),
    Fault(
        "kernels",
        "tickets of a step are not taken back",
        "kernels/cuda/columns.cu",
        "        tickets[mine] = 0;\n",
        "        ;\n",
        f"{BACKENDS} -k whole_step",
    ),
    Fault(
        "kernels",
        "a product that nobody wants any more is what the next step takes",
        "kernels/cuda/wide_product.cu",
        "        if (!__syncthreads_or(some)) return;\n",
        "        if (__syncthreads_or(some)) return;\n",
        f"{BACKENDS} -k wanted",
    ),
    # ---- overflow: places counted in 32 bits
    Fault(
        "overflow",
        "csr_spmm reads X by 32 bits",
        "kernels/cuda/csr_spmm.cu",
        "    return weight * dense[(long long)row * m];",
        "    return weight * dense[(int)(row * m)];",
        f"{LARGE} -k csr_spmm",
        sample=True,
    ),
    Fault(
        "overflow",
        "csr_spmm writes its result by 32 bits",
        "kernels/cuda/csr_spmm.cu",
        "            HG_VALUE* const place = result + row * m + column;\n            *place = subtract ? *place - sum : sum;",
        "            HG_VALUE* const place = result + (int)(row * m) + column;\n            *place = subtract ? *place - sum : sum;",
        f"{LARGE} -k csr_spmm",
    ),
    Fault(
        "overflow",
        "wide products find rows by 32 bits",
        "kernels/cuda/wide_product.cu",
        "            (unsigned long long)(Unsigned<HG_INDEX>::type)entry.row * (unsigned)stride;",
        "            (Unsigned<HG_INDEX>::type)entry.row * (unsigned)stride;",
        f"{LARGE} -k wide",
    ),
    Fault(
        "overflow",
        "column_dots counts places by 32 bits",
        "kernels/cuda/columns.cu",
        "*(const Pack*)(left + row * m + column);",
        "*(const Pack*)(left + (int)(row * m) + column);",
        f"{LARGE} -k column_dots",
    ),
    Fault(
        "overflow",
        "laplacian_step writes by 32 bits",
        "kernels/cuda/laplacian_step.cu",
        "            product[row * m + column] = value;",
        "            product[(int)(row * m) + column] = value;",
        f"{LARGE} -k laplacian",
    ),
    Fault(
        "overflow",
        "cg_update counts places by 32 bits",
        "kernels/cuda/cg_update.cu",
        "            const long long place = row * m + column;",
        "            const int place = row * m + column;",
        f"{LARGE} -k cg_update",
    ),
    Fault(
        "overflow",
        "cg_residual counts places by 32 bits",
        "kernels/cuda/columns.cu",
        "            const long long place = row * m + column;",
        "            const int place = row * m + column;",
        f"{LARGE} -k cg_residual",
    ),
    Fault(
        "overflow",
        "cg_solution counts places by 32 bits",
        "kernels/cuda/cg_direction.cu",
        "        const long long place = row * m + column;\n        // All loads",
        "        const int place = row * m + column;\n        // All loads",
        f"{LARGE} -k cg_solution",
    ),
    Fault(
        "overflow",
        "rows of a product that are written twice are found by 32 bits",
        "kernels/cuda/csr_spmm.cu",
        "            if (row >= alone) scaled[row * m + column] = scale[row - alone] * sum;",
        "            if (row >= alone) scaled[(int)(row * m) + column] = scale[row - alone] * sum;",
        f"{LARGE} -k csr_spmm",
    ),
    Fault(
        "overflow",
        "top_k reads items by 32 bits",
        "kernels/cuda/top_k.cu",
        "return values[item * stride];",
        "return values[(int)(item * stride)];",
        f"{LARGE} -k top_k_reads",
    ),
    Fault(
        "overflow",
        "top_k writes ids by 32 bits",
        "kernels/cuda/top_k.cu",
        "        ids[row * k + i] = at[i];",
        "        ids[(int)row * k + i] = at[i];",
        f"{LARGE} -k top_k_merges",
    ),
    Fault(
        "overflow",
        "top_k finds lists by 32 bits",
        "kernels/cuda/top_k.cu",
        "keys + list * room, places + list * room, parts * room,",
        "keys + (int)list * room, places + (int)list * room, parts * room,",
        f"{LARGE} -k top_k_keeps",
    ),
    Fault(
        "overflow",
        "mutual finds lists by 32 bits",
        "kernels/cuda/mutual.cu",
        "first_place(ids + id * k, k, row)",
        "first_place(ids + (int)(id * k), k, row)",
        f"{LARGE} -k mutual",
    ),
)

CANARY = Fault(
    "canary", "no import", T, "from __future__ import annotations\n", "1 / 0\n", f"{CUPY} -k auto"
)


def faulty(fault: Fault) -> str:
    """The source of the file with the fault in it."""
    place = ROOT if fault.file.startswith(KERNELS) else ROOT / LIBRARY
    source = (place / fault.file).read_text(encoding="utf-8")
    if source.count(fault.before) != 1:
        raise SystemExit(
            f"{fault.name!r}: its text stands {source.count(fault.before)} times in {fault.file}, "
            "not once. Bring the fault up to date."
        )
    return source.replace(fault.before, fault.after)


def plant(fault: Fault, folder: Path) -> None:
    """Make a copy of the library that has the fault, to be imported in the original's place."""
    shutil.copytree(ROOT / LIBRARY, folder / LIBRARY, ignore=shutil.ignore_patterns("__pycache__"))
    # Where an installed package has its kernels.
    shutil.copytree(ROOT / KERNELS, folder / LIBRARY / KERNELS)
    (folder / LIBRARY / fault.file).write_text(faulty(fault), encoding="utf-8")


def outcome(fault: Fault, timeout: float) -> str:
    """The first test that notices, or how the process ended; empty if all tests pass."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        plant(fault, folder)
        files, _, chosen = fault.tests.partition(" -k ")
        command = [sys.executable, str(ROOT / "tools" / "cupy_on_cpu" / "run.py"), "python"]
        command += ["-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider"]
        command += [
            "-c",
            str(ROOT / "pyproject.toml"),
            *(str(ROOT / file) for file in files.split()),
        ]
        command += ["-k", chosen.strip("'")] if chosen else []
        environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "HYBRID_GPU_TEST_BACKENDS": "cupy",
            "HYBRID_GPU_REQUIRE_CUDA": "1",
        }
        try:
            done = subprocess.run(
                # From the copy: the folder that Python starts in comes first.
                command,
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout,
                cwd=folder,
            )
        except subprocess.TimeoutExpired:
            return "hangs"
    if done.returncode == 0:
        return ""
    if done.returncode < 0 or done.returncode > 128:
        return f"crashes with {done.returncode}"
    failed = re.search(r"(?:FAILED|ERROR) \S+?::(\S+)", done.stdout)
    if failed is None:
        raise SystemExit(f"pytest could not run:\n{done.stdout}{done.stderr}")
    return failed[1]


def record(fault: Fault, result: str, seconds: float) -> None:
    """Put the outcome of a fault into a line of its own; ``bench/report.py`` makes the table."""
    line = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "kind": fault.kind,
        "fault": fault.name,
        "noticed_by": result,
        "harmless": fault.harmless,
        "seconds": round(seconds),
    }
    with open(RESULTS / "planted_faults.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def commit() -> str:
    """The commit that is looked at, marked if the code was changed since."""

    def git(*words: str) -> str:
        command = ["git", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", LIBRARY, KERNELS, "tests", "tools")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def chosen(kinds: Sequence[str], sample: bool) -> list[Fault]:
    """The faults of some kinds, or all."""
    return [
        fault
        for fault in FAULTS
        if (not kinds or fault.kind in kinds) and (fault.sample or not sample)
    ]


def main() -> int:
    """Plant the faults and print what became of each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    known = list(dict.fromkeys(fault.kind for fault in FAULTS))
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"of {', '.join(known)}")
    parser.add_argument("--sample", action="store_true", help="about one fault of each kind")
    parser.add_argument("--record", action="store_true", help="keep the outcomes")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one fault")
    options = parser.parse_args()
    if not outcome(CANARY, options.timeout):
        raise SystemExit("a library that cannot be imported is not noticed: the copy is not used.")
    began, wrong = time.monotonic(), []
    faults = chosen(options.kinds, options.sample)
    for number, fault in enumerate(faults, start=1):
        start = time.monotonic()
        result = outcome(fault, options.timeout)
        if bool(result) == bool(fault.harmless):
            wrong.append(fault)
        if options.record:
            record(fault, result, time.monotonic() - start)
        verdict = f"noticed by {result}" if result else fault.harmless or "NOT NOTICED"
        print(
            f"{number:2}/{len(faults)} {fault.kind}: {fault.name}\n"
            f"      {verdict} ({time.monotonic() - start:.0f} s)",
            flush=True,
        )
    explained = sum(bool(fault.harmless) for fault in faults)
    print(
        f"\n{len(faults)} faults: {len(faults) - explained} to be noticed, {explained} explained; "
        f"{len(wrong)} otherwise; {time.monotonic() - began:.0f} s"
    )
    for fault in wrong:
        what = "noticed, but explained as harmless" if fault.harmless else "NOT NOTICED"
        print(f"{what}: {fault.name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
