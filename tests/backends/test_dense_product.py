"""How products of dense matrices are cut; what they are is a test of every backend."""

import numpy as np
import pytest

from hybrid_gpu.backends import dense_product as module

LONG = (100, 20_000, 60)  # cut inside
TALL, WIDE = (9000, 90, 60), (60, 90, 9000)  # cut by rows, and by columns


def test_result_is_cut_across_its_longer_side_into_tiles_worth_a_call():
    tiles = module._tiles(*TALL)
    assert [columns for _, columns in tiles] == [slice(None)] * 3
    assert [(rows.start, rows.stop) for rows, _ in tiles] == [(0, 3000), (3000, 6000), (6000, 9000)]
    assert module._tiles(*WIDE) == [(columns, rows) for rows, columns in tiles]
    # Never into a few rows each, which take longer than all of them together.
    assert len(module._tiles(300, 2000, 300)) == 2
    assert len(module._tiles(100, 790, 100)) == 1


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        ((400, 70_000, 100), 32),
        ((400, 70_000, 1), 1),  # too few multiplications to be worth a thread
        (LONG, 7),
        ((400, 3200, 400), 8),  # together no larger than a factor
        ((400, 3199, 400), 1),
        ((0, 70_000, 0), 1),
        ((0, 0, 0), 1),
    ],
)
def test_product_that_is_far_longer_than_its_result_is_cut_inside(shape, parts):
    cuts = module._inner_tiles(*shape)
    assert len(cuts) == parts
    covered = [place for cut in cuts for place in range(cut.start, cut.stop)]
    assert covered == list(range(shape[1]))


@pytest.mark.parametrize(("shape", "inside"), [(LONG, True), (TALL, False), (WIDE, False)])
def test_only_long_products_are_sums_of_others(monkeypatch, shape, inside):
    n, p, m = shape
    summed, real = [], module._sum_of_products

    def noted(left, right, parts):
        summed.append(len(parts))
        return real(left, right, parts)

    monkeypatch.setattr(module, "_sum_of_products", noted)
    product = module.dense_product(np.ones((n, p)), np.ones((p, m)))
    assert np.all(product == p)
    assert bool(summed) == inside
