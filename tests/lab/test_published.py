"""The figures of the paper itself."""

import pytest

from hybrid_gpu.lab import published


@pytest.mark.parametrize(
    ("name", "distractors", "theirs"),
    [
        ("roxford5k", 0, "ROxford"),
        ("ROxford5k", 1_001_001, "ROxford + R1M"),
        ("rparis6k", 0, "RParis"),
        ("R-Paris 6k", 5, "RParis + R1M"),
        ("Fashion-MNIST", 0, None),
    ],
)
def test_benchmarks_of_the_paper_are_known_by_name(name, distractors, theirs):
    assert published.counterpart(name, distractors) == theirs
    assert theirs is None or theirs in published.TABLE_2
