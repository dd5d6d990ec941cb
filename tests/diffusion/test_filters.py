import numpy as np
import pytest

import hybrid_gpu as hg
from hybrid_gpu import reference
from hybrid_gpu.diffusion import filters
from hybrid_gpu.diffusion.chebyshev import chebyshev_series
from hybrid_gpu.diffusion.filters import as_filter, gains


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


GIVEN = {
    "heat": hg.HeatKernel(3.0),
    "polynomial": hg.Polynomial((1, -0.5, 0.25)),
    "pagerank": hg.PageRank(0.9),
    "callable": filters.as_filter(lambda x: np.cos(3 * x)),
}


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("interval", [(-1.0, 1.0), (-1.0, 0.6)])
def test_expansion_is_within_its_truncation_error(name, interval):
    points = np.linspace(*interval, 501)
    scaled = (2 * points - sum(interval)) / (interval[1] - interval[0])
    for degree in (0, 1, 5, 20, 200):
        series = chebyshev_series(GIVEN[name], low=interval[0], high=interval[1], degree=degree)
        values = np.polynomial.chebyshev.chebval(scaled, series.coefficients)
        error = np.abs(values - filters.gains(GIVEN[name], points)).max()
        assert series.degree == degree
        assert error <= series.truncation + 1e-13


def test_degree_is_the_smallest_that_is_accurate_enough():
    series = chebyshev_series(hg.HeatKernel(5.0), tolerance=1e-8)
    assert series.truncation <= 1e-8
    shorter = chebyshev_series(hg.HeatKernel(5.0), degree=series.degree - 1)
    assert shorter.truncation > 1e-8


def test_a_polynomial_is_its_own_expansion():
    series = chebyshev_series(hg.Polynomial((0, 0, 1.0)), tolerance=1e-12)
    assert series.degree == 2
    np.testing.assert_allclose(series.coefficients, [0.5, 0, 0.5], atol=1e-14)


def test_a_jump_cannot_be_expanded_without_a_degree():
    step = filters.as_filter(lambda x: (x > 0.3).astype(float))
    with pytest.raises(ValueError, match="not smooth enough"):
        chebyshev_series(step)
    assert chebyshev_series(step, degree=10).truncation > 0.01


def test_gains_are_those_of_the_formulas(backend, dtype, tolerance):
    frequencies = np.linspace(-1, 1, 7).astype(dtype)
    there = backend.asarray(frequencies)
    for given, formula in (
        (hg.HeatKernel(2.0), np.exp(2 * (frequencies - 1))),
        (hg.Polynomial((1, 2, 3)), 1 + 2 * frequencies + 3 * frequencies**2),
    ):
        np.testing.assert_allclose(
            backend.to_numpy(given.transfer(there)), formula, rtol=tolerance, atol=tolerance
        )


def test_long_heat_does_not_overflow():
    assert filters.gains(hg.HeatKernel(1e4), [1.0, 0.0, -1.0]).tolist() == [1, 0, 0]


def test_bounds_of_figure_one_fall_with_rank_and_steps():
    bounds = hg.error_bounds(np.array([1.0000001, 0.9, 0.7]), alpha=0.99, steps=(0, 5, 20))
    assert bounds.shape == (3, 3)
    assert np.all(bounds[:, 0] == 2)
    assert np.all(np.diff(bounds[:, 1:], axis=0) < 0)
    assert bounds[0, 2] == hg.error_bound(199, 20)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: hg.HeatKernel(0), ValueError, "time must be positive"),
        (lambda: hg.Polynomial(()), ValueError, "at least one"),
        (lambda: hg.Polynomial(("a",)), TypeError, "must be a number"),
        (lambda: filters.as_filter(3), TypeError, "filter must be"),
        (lambda: filters.as_filter(lambda x: x * np.nan), ValueError, "finite on"),
        (lambda: filters.as_filter(lambda x: np.where(x < 0, np.nan, x)), ValueError, "finite on"),
        (lambda: hg.error_bound(199, -1), ValueError, "steps must be at least 0"),
    ],
)
def test_bad_filters_are_refused(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_alpha_becomes_a_plain_float():
    # NumPy's own float64 would raise the scores of a float32 index to float64.
    assert type(hg.PageRank(np.float64(0.9)).alpha) is float


@pytest.mark.parametrize("degree", [63, 64, 65, 66, 129])
def test_nothing_is_left_out_at_a_degree_beyond_the_series(degree):
    series = chebyshev_series(hg.Polynomial((0, 0, 1.0)), degree=degree)
    assert series.coefficients.shape == (degree + 1,)
    assert series.truncation <= 1e-14


def test_a_kink_is_expanded_as_far_as_the_tolerance_asks():
    # Its coefficients never settle at rounding, but few of them are enough for three digits.
    kink = filters.as_filter(lambda x: np.abs(x) ** 3)
    series = chebyshev_series(kink, tolerance=1e-3)
    assert series.degree < 40
    points = np.linspace(-1, 1, 501)
    values = np.polynomial.chebyshev.chebval(points, series.coefficients)
    assert np.abs(values - np.abs(points) ** 3).max() <= series.truncation <= 1e-3


def test_coefficients_become_plain_floats():
    given = hg.Polynomial([np.float32(1), 2])
    assert given.coefficients == (1.0, 2.0)
    assert {type(one) for one in given.coefficients} == {float}


@pytest.mark.parametrize(
    "function",
    [
        hg.HeatKernel(1e7),
        hg.HeatKernel(1e9),
        lambda x: np.exp(-(((x - 0.3337) / 1e-3) ** 2)),
        lambda x: np.sign(x - 0.3),
    ],
    ids=["heat at one end", "hotter", "spike", "jump"],
)
def test_what_few_points_do_not_see_is_refused_or_told(function):
    filter = as_filter(function)
    with pytest.raises(ValueError, match="not smooth enough"):
        chebyshev_series(filter)
    for degree in (5, 64, 1024, 3000):
        series = chebyshev_series(filter, degree=degree)
        # Both ends, the spike and both sides of the jump are among the points.
        points = np.concatenate([[-1, 1, 0.3337, 0.3 - 1e-9, 0.3 + 1e-9], np.linspace(-1, 1, 997)])
        values = np.polynomial.chebyshev.chebval(points, series.coefficients)
        assert np.abs(values - gains(filter, points)).max() <= 1.2 * series.truncation
        assert series.degree <= 1024


def test_a_wave_that_the_first_points_cannot_tell_from_a_constant_is_followed():
    series = chebyshev_series(as_filter(lambda x: 1 + np.cos(65 * np.arccos(np.clip(x, -1, 1)))))
    assert series.degree == 65
    assert series.coefficients[65] == pytest.approx(1)


@pytest.mark.parametrize("function", [lambda x: x * 1j, lambda x: "h", lambda x: x[:3]])
def test_filters_give_as_many_real_numbers_as_they_are_asked_for(function):
    with pytest.raises(ValueError, match="as many real numbers; got"):
        as_filter(function)
