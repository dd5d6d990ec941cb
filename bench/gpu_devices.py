"""The GPUs of the model: what their makers state, and what others have measured on them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A GPU, by the figures that bound a kernel.

    Attributes
    ----------
    architecture : int
        For the compiler.
    sms : int
        Multiprocessors, each with four schedulers.
    clock : float
        Hz that it keeps up under load.
    bandwidth : float
        Of the memory, bytes per second, as stated by the maker.
    l2_bandwidth : float
        Bytes per second from L2 to all L1.
    l2_bytes, l1_bytes : int
        Sizes: L2 as one multiprocessor sees it; L1 with shared memory in it.
    threads, blocks, shared : int
        The most of a multiprocessor.
    doubles, conversions : int
        Results per clock and multiprocessor: sums and products in float64, and conversions to it.
    latency : (L1, L2, memory)
        Clocks until a load is there.
    """

    name: str
    architecture: int
    sms: int
    clock: float
    bandwidth: float
    l2_bandwidth: float
    l2_bytes: int
    l1_bytes: int
    threads: int
    blocks: int
    shared: int
    doubles: int
    conversions: int
    flops: float
    latency: tuple[float, float, float]


# Sizes, multiprocessors and bandwidths are NVIDIA's. The two halves of the L2 of A100 and H100 each
# keep what their own multiprocessors read: counted once. Bandwidths of L2, latencies and clocks
# under load are assumptions near what microbenchmarks report; those of the L4 are a guess.
L4 = Device(
    "L4", 89, 58, 1.6e9, 300e9, 1.7e12, 48 << 20, 128 << 10, 1536, 24, 100 << 10, 2, 2, 23e12,
    (35, 280, 600),
)  # fmt: skip
A100 = Device(
    "A100", 80, 108, 1.41e9, 1555e9, 4.0e12, 20 << 20, 192 << 10, 2048, 32, 164 << 10, 32, 16,
    19.5e12, (35, 260, 560),
)  # fmt: skip
H100 = Device(
    "H100", 90, 132, 1.7e9, 3350e9, 5.5e12, 25 << 20, 256 << 10, 2048, 32, 228 << 10, 64, 16,
    60e12, (35, 270, 650),
)  # fmt: skip
DEVICES = (L4, A100, H100)

# The part of the bandwidth that a plain stream reaches, and of the caches that gathers have to
# themselves: the other part is for what streams through.
STREAM, CACHED = 0.9, 0.7
# Seconds: between two kernels on the device, of a kernel on a few numbers, until the host has given
# out a kernel by CuPy, and from the end of the device's work until the host's next kernel runs.
GAP, SMALL, LAUNCH, WAIT = 1.5e-6, 3e-6, 8e-6, 30e-6
REGISTERS = 65_536


def resident_blocks(device: Device, threads: int, registers: int, shared: int) -> int:
    """Blocks of a kernel that a multiprocessor holds at a time."""
    warps = -(-threads // 32)
    # Registers are handed out to warps, 256 at a time; every block takes 1 KiB of shared memory.
    by_registers = REGISTERS // (warps * (-(-registers * 32 // 256) * 256))
    by_shared = device.shared // (shared + 1024)
    return max(1, min(device.blocks, device.threads // threads, by_registers, by_shared))


def l1_left(device: Device, blocks: int, shared: int) -> int:
    """Bytes of L1 that are left beside the shared memory of the blocks."""
    taken = blocks * (shared + 1024 if shared else 0)
    # The carve-out knows few sizes.
    step = next((s for s in (0, 8, 16, 32, 64, 100, 132, 164, 196, 228) if s << 10 >= taken), 228)
    return max(8 << 10, device.l1_bytes - (step << 10))
