import numpy as np
import pytest

import hybrid_gpu as hg
from hybrid_gpu import reference


def test_gain_is_one_at_frequency_one_and_excess_zero_at_zero(backend, dtype):
    ends = backend.asarray(np.array([1.0, 0.0], dtype=dtype))
    for alpha in (0.0, 0.5, 0.99):
        kernel = hg.PageRank(alpha)
        gain = backend.to_numpy(kernel.transfer(ends))
        np.testing.assert_allclose(gain, [1, 1 - alpha], rtol=1e-5)
        assert backend.to_numpy(kernel.excess_transfer(ends))[1] == 0


def test_excess_keeps_its_digits_near_frequency_zero(backend):
    # h(t) - h(0) in float32 would lose four digits at t = 1e-4.
    kernel, small = hg.PageRank(0.99), 1e-4
    excess = kernel.excess_transfer(backend.asarray(np.array([small], dtype="float32")))
    truth = reference.transfer(np.array([small]), 0.99)[0] - 0.01
    assert float(excess[0]) == pytest.approx(truth, rel=1e-6)


def test_condition_number_of_the_paper_s_example():
    plain = hg.condition_number(0.99)
    deflated = hg.condition_number(0.99, largest=0.7)
    assert plain == pytest.approx(199)
    assert deflated / plain == pytest.approx(0.0326, abs=5e-5)


def test_error_bound_falls_with_steps_and_starts_at_two():
    assert hg.error_bound(199, 0) == 2
    assert hg.error_bound(1, 3) == 0
    assert hg.error_bound(199, 20) == pytest.approx(2 * ((199**0.5 - 1) / (199**0.5 + 1)) ** 20)


@pytest.mark.parametrize("alpha", [1.0, -0.1, 2.0, float("nan")])
def test_alpha_outside_its_range_is_refused(alpha):
    with pytest.raises(ValueError, match="alpha must"):
        hg.PageRank(alpha)


def test_impossible_eigenvalues_and_conditions_are_refused():
    with pytest.raises(ValueError, match="eigenvalues must satisfy"):
        hg.condition_number(0.9, largest=1.2)
    with pytest.raises(ValueError, match="at least 1"):
        hg.error_bound(0.5, 3)
