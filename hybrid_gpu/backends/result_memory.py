"""Memory of large results, used again for the next result that is made from the same array.

A step of conjugate gradients multiplies the same direction array by the graph again and again, and
needs the product until the next one. New memory for each of them is memory that the system has to
clear, page by page: at a million items an eighth to a quarter of the product's time.
"""

from __future__ import annotations

import weakref

import numpy as np

from hybrid_gpu.backends.protocol import HostArray

# Smaller arrays come from memory that the process has already.
_WORTH_KEEPING = 1 << 22
# Rows of whole lines of the cache.
_LINE = 64


class ResultMemory:
    """Arrays like a source. Their memory is used again once nobody has them any more.

    At most one piece of memory waits for each source, and no longer than that lives: then it goes
    back to the system. So two arrays that somebody can see never share memory.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[weakref.ref[HostArray], HostArray]] = {}

    def empty_like(self, source: HostArray) -> HostArray:
        """An array of the source's shape and type, row-major, with anything in it."""
        if source.nbytes < _WORTH_KEEPING:
            return np.empty(source.shape, source.dtype)
        waiting = self._waiting.pop(id(source), None)
        if waiting is not None and waiting[0]() is source:
            memory = waiting[1]
        else:
            memory = np.empty(source.nbytes + _LINE, np.uint8)
        first = -memory.ctypes.data % _LINE
        # All views of the result lead to this array: when it goes, nobody has any of them.
        lent = np.frombuffer(memory.data, np.uint8, source.nbytes, first)
        back = weakref.finalize(lent, self._take_back, weakref.ref(source), memory)
        back.atexit = False
        return lent.view(source.dtype).reshape(source.shape)

    def _take_back(self, source: weakref.ref[HostArray], memory: HostArray) -> None:
        made_from = source()
        if made_from is None:
            return
        number = id(made_from)
        # Another array may get the same number later: it finds nothing here then.
        ended = weakref.ref(made_from, lambda _: self._waiting.pop(number, None))
        self._waiting[number] = ended, memory
