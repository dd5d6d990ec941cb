"""Copies between host and device that run beside the work, on a stream of their own.

A stream runs its work in order; two streams run theirs in any order, unless an event tells one to
wait for the other. What has to be in order here:

- A copy onto the device starts when the work that used its memory before is done, and the work on
  it when it has arrived.
- A copy to the host starts when the work that makes the array is done, packing included.
- Memory on either side stays where it is until the copy is done, also when an exception ends
  everything: CuPy's pools give it to the next one at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import cupy
import cupyx
import numpy as np

from hybrid_gpu.backends.protocol import Array, HostArray

# cudaErrorMemoryAllocation, which CuPy knows and does not export.
_OUT_OF_MEMORY = 2


def uploads(
    arrays: Sequence[HostArray], start: int, width: int, device: Any, copies: Any
) -> Iterator[tuple[Array, ...]]:
    """Slices of ``width`` rows of all arrays, from row ``start`` on, each copied a slice ahead."""
    with device:
        pipe = _UploadPipe(arrays, width, copies)
    try:
        with device:
            coming = pipe.send(start)
        for first in range(start, arrays[0].shape[0], width):
            with device:
                here, coming = coming, pipe.send(first + width)
                assert here is not None
                parts, sent = here
                # The device waits, not the host: work on this slice starts once it is there.
                cupy.cuda.get_current_stream().wait_event(sent)
            yield parts
    finally:
        pipe.finish()


class _UploadPipe:
    """Two pinned buffers for each array: one is filled while the other is copied."""

    def __init__(self, arrays: Sequence[HostArray], width: int, copies: Any) -> None:
        self.arrays, self.width, self.copies = arrays, width, copies
        self.buffers = [
            [pinned((width, *array.shape[1:]), array.dtype) for array in arrays] for _ in range(2)
        ]
        self.sent: list[Any] = [None, None]
        self.turn = 0

    def send(self, first: int) -> tuple[tuple[Array, ...], Any] | None:
        """Start to copy the slice from row ``first`` on; None if there is none."""
        count = min(self.width, self.arrays[0].shape[0] - first)
        if count <= 0:
            return None
        turn, self.turn = self.turn, 1 - self.turn
        if self.sent[turn] is not None:
            self.sent[turn].synchronize()  # two slices ago: done long since
        buffers = [buffer[:count] for buffer in self.buffers[turn]]
        for array, buffer in zip(self.arrays, buffers, strict=True):
            buffer[...] = array[first : first + count]
        parts = tuple(cupy.empty(buffer.shape, buffer.dtype) for buffer in buffers)
        # After the allocation: work that was asked for before it may still use this memory, and
        # another thread may have asked for it a moment ago.
        self.copies.wait_event(cupy.cuda.get_current_stream().record())
        try:
            for part, buffer in zip(parts, buffers, strict=True):
                part.set(buffer, stream=self.copies)
        finally:
            self.sent[turn] = self.copies.record()
        return parts, self.sent[turn]

    def finish(self) -> None:
        """Wait for copies that are under way, which nobody may need any more."""
        for sent in self.sent:
            if sent is not None and not sent.done:
                sent.synchronize()


class Download:
    """An array on its way to the host; calling it waits for the copy and returns it."""

    def __init__(self, values: Array, copies: Any) -> None:
        self._arrived: Any = None
        self._result: HostArray | None = None
        self._packed: Array | None = cupy.ascontiguousarray(values)
        self._buffer: HostArray | None = pinned(values.shape, values.dtype)
        # After the packing, which is work of the current stream as well.
        copies.wait_event(cupy.cuda.get_current_stream().record())
        try:
            self._packed.get(stream=copies, out=self._buffer, blocking=False)
        finally:
            self._arrived = copies.record()

    def __call__(self) -> HostArray:
        if self._result is None:
            self._arrived.synchronize()
            self._result = np.array(self._buffer)
            self._packed = self._buffer = self._arrived = None
        return self._result

    def __del__(self) -> None:
        # Dropped before anybody asked for it: both ends of the copy go back to their pools.
        if self._arrived is not None and not sys.is_finalizing() and not self._arrived.done:
            self._arrived.synchronize()


def pinned(shape: tuple[int, ...], dtype: Any) -> HostArray:
    """Memory of the host that copies run beside; ordinary memory if there is no more of it.

    Copies of ordinary memory block, and are right all the same.
    """
    try:
        return np.asarray(cupyx.empty_pinned(shape, dtype))
    except cupy.cuda.runtime.CUDARuntimeError as fault:
        if fault.status != _OUT_OF_MEMORY:
            raise
        return np.empty(shape, dtype)
