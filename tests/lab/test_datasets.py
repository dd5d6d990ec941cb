"""The public door to the data sets."""

from __future__ import annotations

import hybrid_gpu.datasets
from hybrid_gpu import datasets


def test_public_door_has_every_name():
    assert hybrid_gpu.datasets.__all__ == datasets.__all__
    for name in datasets.__all__:
        assert getattr(hybrid_gpu.datasets, name) is getattr(datasets, name)
