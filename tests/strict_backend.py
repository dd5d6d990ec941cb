"""The same backend operations on array-api-strict's second device, for tests only.

Its arrays refuse whatever the array API standard does not promise, and anything that would mix
them with host arrays: what passes here leans neither on NumPy nor on an implicit transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_strict as xp
import numpy as np

from hybrid_gpu.backends.generic import GenericBackend
from hybrid_gpu.backends.numpy_backend import NumpyBackend, host_view
from hybrid_gpu.backends.protocol import Eigenpairs, SparseMatrix

_HOST = xp.Device("CPU_DEVICE")
_NUMPY = NumpyBackend()


@dataclass(frozen=True, slots=True, eq=False)
class StrictCsr:
    data: Any
    indices: Any
    indptr: Any
    shape: tuple[int, int]


class StrictBackend(GenericBackend):
    name = "strict"
    xp = xp
    device = xp.Device("device1")

    def asarray(self, values, dtype=None):
        target = None if dtype is None else getattr(xp, dtype)
        if isinstance(values, xp._array_object.Array):
            if values.device != self.device:
                raise AssertionError("an array of the other device came in: it was not made here")
            return values if target is None else xp.astype(values, target, copy=False)
        return xp.asarray(np.asarray(host_view(values), dtype=dtype), device=self.device)

    def to_numpy(self, values):
        return np.asarray(values.to_device(_HOST))

    def csr(self, data, indices, indptr, shape):
        for part in (data, indices, indptr):
            assert part.device == self.device
        return StrictCsr(data, indices, indptr, shape)

    def spmm(self, matrix, dense):
        assert dense.device == self.device
        product = _NUMPY.spmm(self._on_host(matrix), self.to_numpy(dense))
        return self.asarray(product)

    def eigsh(self, matrix, k, start):
        pairs = _NUMPY.eigsh(self._on_host(matrix), k, start)
        return Eigenpairs(self.asarray(pairs.values), self.asarray(pairs.vectors))

    def connected_components(self, matrix):
        return _NUMPY.connected_components(self._on_host(matrix))

    def available_bytes(self):
        return _NUMPY.available_bytes()

    def _on_host(self, matrix) -> SparseMatrix:
        parts = (self.to_numpy(part) for part in (matrix.data, matrix.indices, matrix.indptr))
        return _NUMPY.csr(*parts, matrix.shape)
