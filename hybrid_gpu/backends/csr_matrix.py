"""Sparse matrices of the host in compressed rows, and their rows in blocks for SciPy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse

from hybrid_gpu.backends.csr_checks import check_parts
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.backends.threads import thread_count

# Matrices are cut into tiles of so many rows, which pay from so many columns on.
_TILE_ROWS, _TILE_COLUMNS = 2048, 64


# No slots: what is found out when it is first asked for is kept in the instance's own dictionary.
@dataclass(frozen=True, eq=False)
class CsrMatrix:
    """A matrix in compressed sparse rows."""

    data: HostArray
    indices: HostArray
    indptr: HostArray
    shape: tuple[int, int]

    @cached_property
    def blocks(self) -> tuple[tuple[int, Any], ...]:
        """Rows for SciPy, one block for each thread, behind the number of its first row."""
        return self._cut(thread_count())

    @cached_property
    def tiles(self) -> tuple[tuple[int, Any], ...]:
        """Smaller ones: a product is still in the cache when the next operation wants it."""
        tiles = -(-self.shape[0] // _TILE_ROWS)
        return self._cut(tiles) if tiles > len(self.blocks) else self.blocks

    @cached_property
    def sound(self) -> bool:
        """True: native code may read it; what it could not read is refused with a ValueError."""
        check_parts(self)
        return True

    def parts(self, columns: int) -> tuple[tuple[int, Any], ...]:
        """Rows whose products stay in the cache until they are used."""
        # With few columns, the calls would cost more than the products.
        return self.tiles if columns >= _TILE_COLUMNS else self.blocks

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process cuts its own blocks: theirs would hold every entry once more.
        return CsrMatrix, (self.data, self.indices, self.indptr, self.shape)

    def _cut(self, parts: int) -> tuple[tuple[int, Any], ...]:
        bounds = _balanced_bounds(self.indptr, parts)
        return tuple((start, _rows_of(self, start, stop)) for start, stop in pairwise(bounds))


def _rows_of(matrix: CsrMatrix, start: int, stop: int) -> Any:
    """Some rows of a CSR matrix, without a copy of their entries."""
    data, indices, indptr = matrix.data, matrix.indices, matrix.indptr
    entries = slice(int(indptr[start]), int(indptr[stop]))
    block = scipy.sparse.csr_array((stop - start, matrix.shape[1]), dtype=data.dtype)
    # One by one: made of all three, SciPy copies what is less than half of a larger array.
    block.data, block.indices = data[entries], indices[entries]
    block.indptr = indptr[start : stop + 1] - indptr[start]
    return block


def _balanced_bounds(indptr: HostArray, parts: int) -> tuple[int, ...]:
    """Row numbers that cut a matrix into at most ``parts`` blocks of about equal work."""
    rows = indptr.size - 1
    wanted = np.linspace(0, int(indptr[-1]), parts + 1)[1:-1]
    inner = np.searchsorted(indptr, wanted).tolist()
    return (0, *sorted({row for row in inner if 0 < row < rows}), rows)
