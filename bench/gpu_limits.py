"""What bounds a kernel on a GPU: memory, L2, L1, instructions, float64 and waiting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gpu_devices import CACHED, GAP, STREAM, Device, l1_left, resident_blocks
from gpu_graphs import Csr
from gpu_replay import Replay, Schedule
from gpu_sass import Code, Loop

LINE = 128
_FLOAT = 4
_SCHEDULERS = 4
# How limits that are near each other add up: by the cube, so that two equal ones cost a quarter.
_POWER = 3


@dataclass(frozen=True)
class Load:
    """What a kernel asks of a device, over all of its warps.

    ``waits`` are clocks in which a warp waits for its loads, ``doubles`` clocks of the float64
    units of one multiprocessor.
    """

    least_bytes: float
    memory_bytes: float
    l2_bytes: float
    wavefronts: float
    instructions: float
    doubles: float
    waits: float
    blocks: int
    resident: int
    warps: int
    registers: int
    spills: int

    def limits(self, device: Device) -> dict[str, float]:
        """Seconds by each limit alone."""
        clocks = device.sms * device.clock
        held = min(self.resident, -(-self.blocks // device.sms)) * self.warps
        return {
            "memory": self.memory_bytes / (STREAM * device.bandwidth),
            "L2": self.l2_bytes / device.l2_bandwidth,
            "L1": self.wavefronts / clocks,
            "issue": self.instructions / _SCHEDULERS / clocks,
            "float64": self.doubles / clocks,
            "latency": self.waits / held / clocks,
        }

    def waves(self, device: Device) -> float:
        """How often the blocks fill the device."""
        return self.blocks / (device.sms * self.resident)

    def seconds(self, device: Device) -> float:
        """All limits together, with the last blocks that run alone and the way to the kernel."""
        together = sum(one**_POWER for one in self.limits(device).values()) ** (1 / _POWER)
        per_sm = self.blocks / device.sms
        uneven = -(-self.blocks // device.sms) / per_sm if per_sm < self.resident else 1.0
        tail = max(uneven, 1 + 0.5 / max(self.waves(device), 0.5) if uneven == 1.0 else 1.0)
        return together * tail + GAP

    def row(self, device: Device) -> dict[str, float | int | str]:
        """What a reader wants to know of it."""
        limits, seconds = self.limits(device), self.seconds(device)
        worst = max(limits, key=lambda name: limits[name])
        return {
            "registers": self.registers,
            "spills": self.spills,
            "occupancy": min(1.0, self.resident * self.warps * 32 / device.threads),
            "waves": self.waves(device),
            "MB": self.memory_bytes / 1e6,
            "least MB": self.least_bytes / 1e6,
            **{f"{name} ms": 1e3 * limit for name, limit in limits.items()},
            "worst": worst,
            "of bandwidth, worst": self.least_bytes / device.bandwidth / limits[worst],
            "ms": 1e3 * seconds,
            "of bandwidth": self.least_bytes / device.bandwidth / seconds,
        }


@dataclass(frozen=True)
class RowShape:
    """How a sparse product lies on threads.

    Attributes
    ----------
    lanes, pack : int
        Threads that work on one row of the result, and columns of each.
    shares : int
        Threads with the same columns, which share the entries of a row.
    rows : int
        Rows of a block side by side.
    tiles : int
        Blocks next to each other for all columns.
    visit : int
        Rows of a block until it ends or strides on.
    grid : int
        Blocks over the rows.
    chunk : int
        Entries that are loaded together; 0: one by one.
    """

    lanes: int
    pack: int
    shares: int
    rows: int
    tiles: int
    visit: int
    grid: int
    chunk: int = 0

    @property
    def threads(self) -> int:
        return self.lanes * self.rows


def _row_loops(code: Code, shape: RowShape) -> tuple[Loop, list[Loop], list[Loop]]:
    """The loop over rows, loops over chunks of entries in it, and those that gather, fast first."""
    rows = [loop for loop in code.loops.inside if any(map(_gathers, loop.all()))]
    if len(rows) > 1:
        rows = [one for one in rows if _shuffles(one) == (shape.shares > 1)]
    row = rows[0]
    gathers = sorted((one for one in row.all() if _gathers(one)), key=lambda one: one.size)
    chunks = [one for one in row.all() if one is not row and one.inside]
    return row, chunks, gathers


def _shuffles(loop: Loop) -> bool:
    return any(one.count("SHFL") for one in loop.all())


def _gathers(loop: Loop) -> bool:
    return not loop.inside and loop.count("LDG") > 0 and loop.count("FFMA", "DFMA") > 0


def sparse_load(
    code: Code,
    matrix: Csr,
    replay: Replay,
    m: int,
    shape: RowShape,
    device: Device,
    *,
    own: bool,
    one_visit: bool,
    read_result: bool = False,
) -> Load:
    """A product of a sparse matrix with m columns, float32 and 32-bit indices."""
    row, chunks, gathers = _row_loops(code, shape)
    resident = resident_blocks(device, shape.threads, code.registers, code.shared)
    turn = max(1, gathers[0].count("FFMA", "DFMA") // shape.pack)
    found = replay.run(
        Schedule(resident, shape.rows, shape.visit, turn * shape.shares, one_visit, own),
        _FLOAT * m,
        sms=device.sms,
        l1_bytes=int(CACHED * l1_left(device, resident, code.shared)),
        l2_bytes=int(CACHED * device.l2_bytes),
    )

    # Turns of the loops, over all warps. Rows of one warp go side by side, as long as the longest.
    together = max(1, 32 // shape.lanes)
    lengths = np.concatenate([matrix.lengths, np.zeros(-matrix.rows % together, int)])
    groups = (-(-lengths // shape.shares)).reshape(-1, together)
    low, high = groups.min(axis=1), groups.max(axis=1)
    fast = low // turn if len(gathers) > 1 or together == 1 else high // turn
    slow = -(-(high - fast * turn) // turn) if len(gathers) > 1 else np.zeros_like(high)
    pieces = max(1, shape.lanes // 32) * shape.tiles
    turns: list[tuple[Loop, float]] = [(row, pieces * len(groups))]
    turns.append((gathers[0], pieces * float(fast.sum())))
    if len(gathers) > 1:
        turns.append((gathers[-1], pieces * float(slow.sum())))
    chunk_turns = 0.0
    if chunks:
        chunk_turns = pieces * float((-(-high // shape.chunk)).sum())
        turns.append((chunks[-1], chunk_turns))
    shuffles = [one for one in row.inside if one.count("SHFL") and not one.count("LDG")]
    turns += [(one, len(groups) * np.log2(shape.shares)) for one in shuffles if shape.shares > 1]
    warps = -(-shape.threads // 32)
    turns.append((code.loops, shape.grid * shape.tiles * warps))
    adding = [one for one in code.loops.all() if one.count("DADD") and not one.count("LDG")]
    adding = [one for one in adding if one is not code.loops and not one.inside]
    if adding:
        # A thread for each column adds up those of the other rows.
        columns = shape.lanes // shape.shares * shape.pack
        active = -(-columns // 32) * shape.grid * shape.tiles
        largest = max(adding, key=lambda one: one.size)
        turns.append((largest, active * (shape.rows - 1) / largest.count("DADD")))

    gather_turns = sum(times for loop, times in turns if loop in gathers)
    wavefronts = sum(times * _wavefronts(loop) for loop, times in turns)
    # Gathers are counted by their width there: as the lines that they touch instead.
    lines = _lines_of_gather(matrix, m, shape)
    wavefronts += gather_turns * turn * (lines - shape.pack)

    l1, l2, memory = device.latency
    # The last of the gathers that are under way together decides.
    all_l1 = found.in_l1**turn
    all_l2 = (found.in_l1 + found.in_l2) ** turn
    gathered = all_l1 * l1 + (all_l2 - all_l1) * l2 + (1 - all_l2) * memory
    # Entries that are loaded one by one come from a line of 32 of them.
    listed = l1 + min(1.0, turn * shape.shares / 32) * (memory - l1)
    waits = gather_turns * (gathered + (gathers[0].waits() - 1) * listed)
    waits += turns[0][1] * (2 * l2) + chunk_turns * memory

    n, dense, result = matrix.rows, matrix.columns * m * _FLOAT, matrix.rows * m * _FLOAT
    listed_bytes = 8 * matrix.entries + 4 * n
    partial = 8.0 * m * shape.grid if own else 0.0
    writes = result * (2 if read_result else 1) + partial
    touched = min(dense, found.gathers * found.unit_bytes)
    return Load(
        least_bytes=listed_bytes + min(dense, touched) + result * (2 if read_result else 1),
        memory_bytes=listed_bytes + found.memory_bytes + writes,
        l2_bytes=listed_bytes * shape.tiles + found.l2_bytes + writes,
        wavefronts=wavefronts,
        instructions=sum(times * loop.size for loop, times in turns),
        doubles=sum(times * _double_clocks(loop, device) for loop, times in turns),
        waits=waits,
        blocks=shape.grid * shape.tiles,
        resident=resident,
        warps=warps,
        registers=code.registers,
        spills=code.spills,
    )


def _lines_of_gather(matrix: Csr, m: int, shape: RowShape) -> float:
    """Lines of 128 bytes that a warp touches when it gathers from an entry for each of its rows."""
    together, lanes = max(1, 32 // shape.lanes), min(32, shape.lanes) // shape.shares
    piece = min(lanes * shape.pack, m) * _FLOAT
    if piece >= LINE:
        return together * shape.shares * piece / LINE
    if shape.shares == 1:
        return together
    # Neighboring entries of a row may lie in the same line.
    lines = matrix.indices[: 1 << 20].astype(np.int64) * (_FLOAT * m) // LINE
    groups = lines[: lines.size // shape.shares * shape.shares].reshape(-1, shape.shares)
    others = np.diff(np.sort(groups, axis=1), axis=1) > 0
    return together * float(np.mean(1 + others.sum(axis=1)))


def _wavefronts(loop: Loop) -> float:
    """Passes of a warp through L1 and shared memory in one turn, each of 128 bytes."""
    return loop.words("LDG", "STG", "STS") + loop.count("LDS", "SHFL")


def _double_clocks(loop: Loop, device: Device) -> float:
    sums, conversions = loop.count("DADD", "DFMA", "DMUL"), loop.count("F2F.F64", "F2F.F32.F64")
    return 32 * (sums / device.doubles + conversions / device.conversions)


@dataclass(frozen=True)
class StreamShape:
    """How a pass over row-major arrays (n, m) lies on threads: blocks, and threads of each."""

    threads: int
    grid: int


def stream_load(
    code: Code, n: int, m: int, shape: StreamShape, device: Device, *, reads: int, writes: int
) -> Load:
    """A kernel that reads and writes arrays (n, m) in float32 once each."""
    loops = [one for one in code.loops.all() if one.count("LDG") and one is not code.loops]
    # Not those that add up partial sums: they store nothing.
    loops = [one for one in loops if one.count("STG")] if writes else loops
    main = max(loops, key=lambda one: one.words("LDG"))
    values = main.words("LDG") / reads
    warps = shape.threads // 32
    turns = n * m / 32 / values
    every = shape.grid * warps
    counted = ((main, turns), (code.loops, every))
    resident = resident_blocks(device, shape.threads, code.registers, code.shared)
    moved = (reads + writes) * _FLOAT * n * m
    return Load(
        least_bytes=moved,
        memory_bytes=moved,
        l2_bytes=moved,
        wavefronts=sum(times * _wavefronts(loop) for loop, times in counted),
        instructions=sum(times * loop.size for loop, times in counted),
        doubles=sum(times * _double_clocks(loop, device) for loop, times in counted),
        waits=turns * main.waits() * device.latency[2] + every * device.latency[1],
        blocks=shape.grid,
        resident=resident,
        warps=warps,
        registers=code.registers,
        spills=code.spills,
    )
