"""Intervals and comparisons: coverage where the truth is known, all flips where they are few."""

import itertools
import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_gpu import evaluation
from hybrid_gpu.evaluation import significance

SETS = {
    "even": (lambda rng: rng.random(60), 1 / 2),
    "skewed": (lambda rng: rng.beta(0.5, 2, 60), 1 / 5),
    "skewed the other way": (lambda rng: rng.beta(5, 1, 60), 5 / 6),
    "right or wrong": (lambda rng: (rng.random(60) < 0.7).astype(float), 0.7),
}


def bounds(interval):
    return interval.low, interval.mean, interval.high


@pytest.mark.parametrize("name", SETS)
def test_intervals_hold_the_true_mean_as_often_as_they_say(name):
    draw, mean = SETS[name]
    rng = np.random.default_rng(211)
    intervals = [evaluation.bootstrap(draw(rng), samples=1000, seed=3) for _ in range(200)]
    held = np.mean([one.low <= mean <= one.high for one in intervals])
    assert 0.9 <= held <= 0.99
    # Not because they are wide: as wide as the normal distribution says, about.
    width = np.mean([one.high - one.low for one in intervals])
    expected = 2 * 1.96 * np.mean([draw(rng).std() for _ in range(200)]) / math.sqrt(60)
    assert width == pytest.approx(expected, rel=0.1)


def test_skewed_values_are_missed_on_both_sides_as_often():
    # What plain quantiles do not do: they miss about three times as often above.
    rng, missed = np.random.default_rng(307), [0, 0]
    for _ in range(1000):
        one = evaluation.bootstrap(rng.beta(0.5, 2, 30), confidence=0.8, samples=400, seed=5)
        missed[0] += one.low > 1 / 5
        missed[1] += one.high < 1 / 5
    assert 70 < missed[0] < 140
    assert 70 < missed[1] < 140


@pytest.mark.parametrize("seed", [4, 77])
def test_interval_is_the_one_of_scipy(seed):
    from scipy import stats

    values = np.random.default_rng(seed).beta(0.5, 3, 40)
    ours = evaluation.bootstrap(values, samples=40_000, confidence=0.9, seed=seed)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=40_000, confidence_level=0.9, method="BCa",
        random_state=np.random.default_rng(seed + 2), batch=1000,
    ).confidence_interval  # fmt: skip
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.02 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.02 * width)


def levels_by_hand(values, means, confidence):
    """The quantiles of BCa as Efron and Tibshirani print them (14.9 to 14.15), in plain Python."""
    normal, n = NormalDist(), len(values)
    mean = sum(values) / n
    below = sum((one < mean) + (one == mean) / 2 for one in means)
    z0 = normal.inv_cdf(below / len(means))
    left_out = [(sum(values) - one) / (n - 1) for one in values]
    center = sum(left_out) / n
    cubes, squares = (sum((center - one) ** power for one in left_out) for power in (3, 2))
    a = cubes / (6 * squares**1.5)
    z = [z0 + normal.inv_cdf(level) for level in ((1 - confidence) / 2, (1 + confidence) / 2)]
    return [normal.cdf(z0 + one / (1 - a * one)) for one in z]


@pytest.mark.parametrize("confidence", [0.5, 0.95])
@pytest.mark.parametrize(
    ("values", "means"),
    [
        ([0.0, 0.0, 1.0, 1.0], [0.25, 0.5, 0.5, 0.5, 0.75, 0.0]),  # half of the ties count
        ([0.0, 0.0, 0.0, 1.0], [0.0, 0.25, 0.5, 0.25, 0.75]),
        ([-8.0, -0.5, -0.25, 0.75], [-3.0, -2.0, -1.0, 0.0, 2.0]),
        ([64.0, 8.0, 4.0, 4.0], [20.0, 30.0, 10.0, 12.0]),
    ],
)
def test_bounds_are_corrected_as_by_hand(values, means, confidence):
    found = significance._corrected_levels(np.array(values), np.array(means), confidence)
    assert found.tolist() == pytest.approx(levels_by_hand(values, means, confidence))


@pytest.mark.parametrize("values", [[0.0, 0.3, 0.6], [-0.3, -0.6, -0.9]])
def test_means_that_differ_by_rounding_only_are_ties(values):
    mean = np.mean(values)
    means = np.array([mean, 0.1, -0.8, mean, mean])
    rounded = np.array([np.nextafter(mean, -1), 0.1, -0.8, mean, np.nextafter(mean, -1)])
    expected = significance._corrected_levels(np.array(values), means, 0.95)
    found = significance._corrected_levels(np.array(values), rounded, 0.95)
    assert found.tolist() == expected.tolist()


def test_bias_is_finite_where_all_draws_lie_on_one_side():
    values = np.array([0.0, 1.0])
    for means in (np.full(100, 0.25), np.full(100, 0.75)):
        levels = significance._corrected_levels(values, means, 0.95)
        assert np.all((levels >= 0) & (levels <= 1))
        side = 0.0 if means[0] > 0.5 else 1.0
        # Half a draw on the other side: z0 is the quantile of 1 / 200.
        middle = NormalDist().cdf(2 * NormalDist().inv_cdf(0.995 if side else 0.005))
        assert levels.min() < middle < levels.max()


def test_intervals_scale_with_the_values():
    values = np.random.default_rng(15).beta(0.5, 2, 30)
    plain = evaluation.bootstrap(values, seed=4)
    for scale in (1e-200, 1e100, -1.0):
        scaled = sorted(bounds(evaluation.bootstrap(scale * values, seed=4)))
        expected = sorted(scale * bound for bound in bounds(plain))
        assert scaled == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.parametrize("m", [12, 30])  # by all flips, and by random ones
def test_p_values_do_not_depend_on_the_scale_of_the_values(m):
    rng = np.random.default_rng(6)
    a, b = rng.random(m), rng.random(m)
    plain = evaluation.compare(a, b).p_value
    assert 0.01 < plain < 1
    for scale in (2.0**-60, 2.0**60):
        assert evaluation.compare(scale * a, scale * b).p_value == plain


@pytest.mark.parametrize(("samples", "m"), [(100, 7), (2000, 3000), (101, 10**7)])
def test_rounds_add_up(samples, m):
    shapes = list(significance._rounds(samples, m))
    assert sum(rows for rows, _ in shapes) == samples
    assert {width for _, width in shapes} == {m}
    assert all(rows == 1 or rows * m <= 2**20 for rows, _ in shapes)


def test_draws_do_not_depend_on_how_many_are_made_at_once(monkeypatch):
    values = np.random.default_rng(8).random(50)
    whole = evaluation.compare(values, values**2, samples=500, seed=9)
    monkeypatch.setattr(significance, "_DRAWS_AT_ONCE", 700)
    parts = evaluation.compare(values, values**2, samples=500, seed=9)
    assert bounds(whole.difference) == bounds(parts.difference)
    # One query alone is more than is drawn at once.
    monkeypatch.setattr(significance, "_DRAWS_AT_ONCE", 10)
    one = evaluation.compare(values, values**2, samples=500, seed=9)
    assert bounds(one.difference) == bounds(whole.difference)


def test_same_seed_gives_the_same_interval_and_another_one_another():
    values = np.random.default_rng(6).random(30)
    one = evaluation.bootstrap(values, seed=11)
    assert bounds(one) == bounds(evaluation.bootstrap(values, seed=11))
    assert bounds(one) != bounds(evaluation.bootstrap(values, seed=12))
    assert one.mean == np.mean(values)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(0, 1) | st.just(math.nan), min_size=2, max_size=40),
    st.floats(0.01, 0.999999),
    st.integers(2, 2**64),
)
def test_interval_lies_within_the_values(values, confidence, seed):
    known = [value for value in values if not math.isnan(value)]
    if len(known) < 2:
        with pytest.raises(ValueError, match="at least two queries"):
            evaluation.bootstrap(values)
        return
    found = evaluation.bootstrap(values, confidence=confidence, samples=100, seed=seed)
    slack = 1e-12
    assert min(known) - slack <= found.low <= found.high <= max(known) + slack
    assert found.mean == pytest.approx(sum(known) / len(known))
    assert found.confidence == confidence
    same = evaluation.bootstrap(known, confidence=confidence, samples=100, seed=seed)
    assert bounds(found) == bounds(same)


def test_more_confidence_and_fewer_queries_make_wider_intervals():
    values = np.random.default_rng(14).random(400)
    widths = [
        one.high - one.low
        for one in (
            evaluation.bootstrap(values, confidence=0.5, seed=2),
            evaluation.bootstrap(values, seed=2),
            evaluation.bootstrap(values, confidence=0.999, seed=2),
            evaluation.bootstrap(values[:40], seed=2),
        )
    ]
    assert sorted(widths) == widths


def test_an_outlier_at_extreme_confidence_has_an_interval():
    values = np.zeros(50)
    values[7] = 1.0
    found = evaluation.bootstrap(values, confidence=1 - 1e-15, samples=300, seed=3)
    assert 0 <= found.low < 0.02 < found.high <= 0.2


def test_records_are_shown_on_one_line():
    assert repr(evaluation.Interval(0.81234, 0.79, 0.8325, 0.95)) == (
        "Interval(0.8123, 95 % from 0.7900 to 0.8325)"
    )
    difference = evaluation.Interval(0.0213, -0.01, 0.05, 0.9)
    assert repr(evaluation.Comparison(difference, 6, 3, 1, 0.01234)) == (
        "Comparison(difference +0.0213, 90 % from -0.0100 to +0.0500, 6 wins, 3 losses, 1 ties, "
        "p 0.012)"
    )
    with pytest.raises(AttributeError):
        difference.mean = 1.0


def test_a_ranking_does_not_differ_from_itself():
    values = np.random.default_rng(3).random(40)
    values[5] = np.nan
    same = evaluation.compare(values, values, seed=2)
    assert bounds(same.difference) == (0, 0, 0)
    assert (same.wins, same.losses, same.ties, same.p_value) == (0, 0, 39, 1)
    # Equal but for rounding.
    near = evaluation.compare([0.1 + 0.2, 1.0], [0.3, 1.0])
    assert (near.wins, near.losses, near.ties, near.p_value) == (0, 0, 2, 1)


def test_comparison_of_a_case_by_hand():
    # Differences 0.5, 0.25, -0.25, 0: sums of flips at least as far as 0.5 are, of 8,
    # 1, 0.5, 0.5, ... : with 0.5 positive {1, 0.5, 0.5, 0}, three of four.
    found = evaluation.compare([1, 0.5, 0.25, 0.75], [0.5, 0.25, 0.5, 0.75], seed=7)
    assert (found.wins, found.losses, found.ties) == (2, 1, 1)
    assert found.difference.mean == pytest.approx(0.125)
    assert found.p_value == 3 / 4
    # Better for each of six queries: two of the 64 flips are as far, all and none.
    assert evaluation.compare(np.arange(1, 7) / 6, np.zeros(6)).p_value == 2 / 64


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=2, max_size=9))
def test_p_value_counts_all_flips(steps):
    # Tenths are no binary fractions: sums that are equal differ by rounding.
    a, b = [max(step, 0) / 10 for step in steps], [max(-step, 0) / 10 for step in steps]
    sums = [
        abs(sum(sign * step for sign, step in zip(signs, steps, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(steps))
    ]
    expected = Fraction(sum(one >= abs(sum(steps)) for one in sums), len(sums))
    found = evaluation.compare(a, b, samples=100)
    assert found.p_value == float(expected)
    assert (found.wins, found.losses) == (
        sum(step > 0 for step in steps), sum(step < 0 for step in steps),
    )  # fmt: skip
    other = evaluation.compare(b, a, samples=100)
    assert other.p_value == found.p_value
    assert other.difference.mean == -found.difference.mean


@pytest.mark.parametrize("seed", [19, 64])
def test_sampled_p_value_is_near_the_exact_one(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    a, b = rng.random(20) + 0.1, rng.random(20)
    exact = evaluation.compare(a, b).p_value
    monkeypatch.setattr(significance, "_MOST_EXACT", 19)
    assert (exact * 2**19).is_integer()  # 20 queries: every flip was tried
    sampled = evaluation.compare(a, b, samples=40_000, seed=seed).p_value
    error = math.sqrt(exact * (1 - exact) / 40_000)
    assert sampled != exact
    assert abs(sampled - exact) < 4 * error


@pytest.mark.parametrize("queries", [12, 60])
def test_p_values_are_uniform_where_nothing_differs(queries):
    rng = np.random.default_rng(401)
    found = []
    for repetition in range(400):
        a, b = rng.beta(0.5, 2, (2, queries))
        found.append(evaluation.compare(a, b, samples=300, seed=repetition + 2).p_value)
    for level in (0.05, 0.25, 0.5, 0.75):
        # Four deviations of a count out of 400.
        slack = 4 * math.sqrt(level * (1 - level) / 400)
        assert np.mean(np.array(found) <= level) == pytest.approx(level, abs=slack)


def test_a_difference_in_every_query_is_never_of_no_chance():
    found = evaluation.compare(np.ones(200), np.linspace(0, 0.9, 200), samples=500, seed=3)
    assert found.p_value == 1 / 501
    assert (found.wins, found.losses, found.ties) == (200, 0, 0)
    assert found.difference.low > 0


def test_a_better_ranking_is_told_from_a_worse_one():
    rng = np.random.default_rng(37)
    labels, wanted = rng.integers(0, 10, 200), rng.integers(0, 10, 50)
    noise = rng.random((50, 200))
    near = evaluation.ranked((labels == wanted[:, None]) * 0.8 + noise)
    far = evaluation.ranked((labels == wanted[:, None]) * 0.2 + noise)
    values = [
        evaluation.per_query(evaluation.ndcg, ids, labels, wanted, at=10) for ids in (near, far)
    ]
    found = evaluation.compare(*values, seed=5)
    assert found.difference.low > 0
    assert found.p_value < 0.01
    means = [evaluation.ndcg(ids, labels, wanted, at=10) for ids in (near, far)]
    assert found.difference.mean == pytest.approx(means[0] - means[1])


@pytest.mark.parametrize(
    ("values", "options", "fault", "reason"),
    [
        ([[0.5, 1.0]], {}, ValueError, r"got float64 of shape \(1, 2\). Take them from"),
        (["a", "b"], {}, ValueError, "values must be .* got <U1"),
        ([0.5, np.inf], {}, ValueError, "values must be finite"),
        ([0.5, np.nan], {}, ValueError, "at least two queries .* got 1 of 2. Evaluate more"),
        (np.ma.array([0.5, 1]), {}, TypeError, "masked"),
        ([0.5, 1.0], {"confidence": 1.0}, ValueError, "confidence must lie between 0 and 1"),
        ([0.5, 1.0], {"confidence": 0}, ValueError, "confidence must lie between 0 and 1"),
        ([0.5, 1.0], {"confidence": "95"}, TypeError, "confidence must be a number"),
        ([0.5, 1.0], {"samples": 99}, ValueError, "samples must be at least 100"),
        ([0.5, 1.0], {"seed": -1}, ValueError, "seed must be at least 0"),
    ],
)
def test_values_without_an_interval_are_refused(values, options, fault, reason):
    with pytest.raises(fault, match=reason):
        evaluation.bootstrap(values, **options)
    with pytest.raises(fault, match=reason.replace("values must", "values_a must")):
        evaluation.compare(values, values, **options)


def test_values_of_other_queries_are_refused():
    with pytest.raises(ValueError, match="same queries; got 2 and 3 values"):
        evaluation.compare([0.5, 1.0], [0.5, 1.0, 0.25])
    with pytest.raises(ValueError, match="query 1 is NaN, without a relevant item, on one side"):
        evaluation.compare([0.5, np.nan, 1.0], [0.5, 1.0, 0.25])
