"""Measures by labels and by lists: by hand, and against a second one that walks down each list."""

import inspect
import math
import sys
import types
from fractions import Fraction

import array_api_strict
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_gpu import evaluation

BY_LABELS = {
    "mean_average_precision": None,
    "precision": 3,
    "mean_reciprocal_rank": 3,
    "ndcg": 3,
    "success": 3,
}
BY_LISTS = {f"{name}_of_lists": at for name, at in BY_LABELS.items()} | {"recall": 3}


def value(name, *data, at, **options):
    """A measure by its name, with a depth if it has one."""
    return getattr(evaluation, name)(*data, **({"at": at} if at else {}), **options)


def values(name, *data, at, **options):
    depth = {"at": at} if at else {}
    return evaluation.per_query(getattr(evaluation, name), *data, **depth, **options)


# A second implementation: sets and lists of Python, one result after the other, in fractions.
# Only the logarithms of the discounted gain are floats.


def naive(name, line, relevant, *, at=None, junk=(), gains=None):
    gains = gains or dict.fromkeys(relevant, 1)
    wanted = {item: gains[item] for item in set(relevant) - set(junk) if gains[item] > 0}
    if not wanted:
        return None
    cleaned = [item for item in line if item not in set(junk)]
    cleaned = cleaned if at is None else cleaned[:at]
    ranks = [rank for rank, item in enumerate(cleaned, start=1) if item in wanted]
    kind = name.removesuffix("_of_lists")
    if kind == "ndcg":
        found = sum(wanted[cleaned[rank - 1]] / math.log2(rank + 1) for rank in ranks)
        order = sorted(wanted.values(), reverse=True)[:at]
        return found / sum(gain / math.log2(rank + 1) for rank, gain in enumerate(order, start=1))
    return {
        "mean_average_precision": sum(
            (Fraction(count, rank) for count, rank in enumerate(ranks, start=1)), Fraction(0)
        )
        / len(wanted),
        "precision": Fraction(len(ranks), len(cleaned) or 1),
        "recall": Fraction(len(ranks), len(wanted)),
        "mean_reciprocal_rank": Fraction(1, ranks[0]) if ranks else Fraction(0),
        "success": Fraction(bool(ranks)),
    }[kind]


def as_floats(expected):
    return pytest.approx([math.nan if one is None else float(one) for one in expected], nan_ok=True)


@st.composite
def problems(draw):
    """Rankings with gaps, labels, and junk of which enough is left for a depth of ``at``."""
    rng = np.random.default_rng(draw(st.integers(2, 2**32 - 1)))
    n, m = draw(st.integers(4, 30)), draw(st.integers(1, 6))
    k, classes = draw(st.integers(2, n)), draw(st.integers(1, 6))
    ids = np.array([rng.permutation(n)[:k] for _ in range(m)])
    ids[rng.random(ids.shape) < draw(st.sampled_from([0, 0.3]))] = -1
    labels, query_labels = rng.integers(0, classes, n), rng.integers(0, classes + 1, m)
    junk = [rng.integers(0, n, rng.integers(0, n)).tolist() for _ in range(m)]
    left = [sum(item not in lost for item in line) for line, lost in zip(ids, junk, strict=True)]
    junk = [lost if count >= 2 else [] for lost, count in zip(junk, left, strict=True)]
    at = draw(st.integers(1, min([k, *(count for count in left if count >= 2)])))
    return ids, labels, query_labels, junk, at


@settings(max_examples=60, deadline=None)
@given(problems())
def test_measures_agree_with_a_walk_down_the_list(problem):
    ids, labels, query_labels, junk, at = problem
    lists = [np.flatnonzero(labels == label) for label in query_labels]
    for names, data in ((BY_LABELS, (labels, query_labels)), (BY_LISTS, (lists,))):
        for name, depth in names.items():
            depth = depth and at
            rows = zip(ids.tolist(), lists, junk, strict=True)
            expected = [
                naive(name, line, items.tolist(), at=depth, junk=lost) for line, items, lost in rows
            ]
            found = values(name, ids, *data, at=depth, ignore=junk)
            assert found.dtype == np.float64
            assert found.tolist() == as_floats(expected), name
            known = [one for one in expected if one is not None]
            if known:
                mean = value(name, ids, *data, at=depth, ignore=junk)
                assert mean == pytest.approx(float(sum(known) / len(known)))


@pytest.mark.parametrize("seed", [7, 29, 101])
def test_graded_gain_agrees_with_a_walk_down_the_list(seed):
    rng = np.random.default_rng(seed)
    ids = np.array([rng.permutation(40)[:25] for _ in range(30)])
    lists = [rng.permutation(40)[: rng.integers(0, 15)].tolist() for _ in ids]
    lists[4] = []
    gains = [rng.integers(0, 4, len(items)).tolist() for items in lists]
    junk = [rng.permutation(40)[:6].tolist() for _ in ids]
    found = values("ndcg_of_lists", ids, lists, at=12, gains=gains, ignore=junk)
    expected = [
        naive("ndcg", line, items, at=12, junk=lost, gains=dict(zip(items, worth, strict=True)))
        for line, items, worth, lost in zip(ids.tolist(), lists, gains, junk, strict=True)
    ]
    assert found.tolist() == as_floats(expected)
    assert 0 < np.isnan(found).sum() < 15


def test_gain_of_a_case_by_hand():
    # Of label 0 are 0, 1 and 2; the list has two of them, at ranks 1 and 3.
    best = 1 + 1 / math.log2(3) + 1 / 2
    labels, ids = [0, 0, 0, 1, 1], [[0, 3, 1, 4]]
    assert evaluation.ndcg(ids, labels, [0], at=3) == pytest.approx((1 + 1 / 2) / best)
    assert evaluation.ndcg(ids, labels, [0], at=2) == pytest.approx(1 / (1 + 1 / math.log2(3)))
    # Gains 3 and 1, the better one second.
    found = evaluation.ndcg_of_lists([[5, 8]], [[8, 5]], gains=[[3, 1]], at=2)
    assert found == pytest.approx((1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3)))
    assert evaluation.ndcg_of_lists([[5, 8]], [[8, 5]], gains=[[3, 1]], at=1) == pytest.approx(
        1 / 3
    )


def test_first_relevant_result_of_a_case_by_hand():
    labels, ids = [0, 0, 1, 1, 2], [[2, 0, 1, 3], [2, 3, 0, 1], [0, 1, 2, 3], [0, 1, 2, 3]]
    wanted = [0, 1, 2, 7]  # found second, first, never; the last has no relevant item
    assert evaluation.mean_reciprocal_rank(ids, labels, wanted) == pytest.approx((1 / 2 + 1) / 3)
    assert evaluation.mean_reciprocal_rank(ids, labels, wanted, at=1) == pytest.approx(1 / 3)
    curve = evaluation.cumulative_match(ids, labels, wanted, at=(1, 2, 4))
    assert curve == pytest.approx({1: 1 / 3, 2: 2 / 3, 4: 2 / 3})
    lists = [[0, 1], [2, 3], [4], []]
    assert evaluation.cumulative_match_of_lists(ids, lists, at=(1, 2, 4)) == curve
    one = evaluation.per_query(evaluation.success, ids, labels, wanted, at=1)
    np.testing.assert_array_equal(one, [0, 1, 0, math.nan])


@pytest.mark.parametrize("seed", [13, 59])
def test_curve_is_success_at_each_depth_and_never_falls(seed):
    rng = np.random.default_rng(seed)
    ids = np.array([rng.permutation(60)[:30] for _ in range(20)])
    labels, wanted = rng.integers(0, 12, 60), rng.integers(0, 12, 20)
    junk = [rng.permutation(60)[:5] for _ in ids]
    curve = evaluation.cumulative_match(ids, labels, wanted, ignore=junk)
    assert list(curve) == [1, 5, 10, 20]
    for depth, found in curve.items():
        assert found == evaluation.success(ids, labels, wanted, at=depth, ignore=junk)
    assert sorted(curve.values()) == list(curve.values())


def test_same_person_by_the_same_camera_is_junk():
    # Person 1 by camera 1 asks: 0 is of the same camera, 2 is the one to be found.
    people, cameras = np.array([1, 2, 1, 2]), np.array([1, 1, 2, 2])
    junk = [np.flatnonzero((people == 1) & (cameras == 1))]
    assert evaluation.success([[0, 1, 2, 3]], people, [1], at=1) == 1
    assert evaluation.success([[0, 1, 2, 3]], people, [1], at=1, ignore=junk) == 0
    assert evaluation.mean_reciprocal_rank([[0, 1, 2, 3]], people, [1], ignore=junk) == 1 / 2
    # All images of the person are junk: nothing is left to be found.
    junk = [np.flatnonzero(people == 1)]
    found = evaluation.per_query(evaluation.success, [[0, 1]], people, [1], at=1, ignore=junk)
    assert np.isnan(found).all()


@pytest.mark.parametrize("name", [*BY_LABELS, *BY_LISTS])
def test_perfect_ranking_is_1_and_one_that_finds_nothing_is_0(name):
    labels = [4, 4, 4, 9, 9, 9, 9, 9]
    data = (labels, [4]) if name in BY_LABELS else ([[0, 1, 2]],)
    perfect, nothing = [[2, 0, 1, 3]], [[7, 6, -1, -1]]
    at = (BY_LABELS | BY_LISTS)[name]
    assert value(name, perfect, *data, at=at) == 1
    assert value(name, nothing, *data, at=at) == 0


@pytest.mark.parametrize("name", [*BY_LABELS, *BY_LISTS])
def test_junk_in_front_changes_nothing(name):
    labels = np.array([4, 9, 4, 9, 4, 4, 9, 9, 4])
    data = (labels, [4, 9]) if name in BY_LABELS else ([[0, 2, 4, 5, 8], [1, 3, 6, 7]],)
    at = (BY_LABELS | BY_LISTS)[name]
    junk = [[6, 5, 8], [8, 7, 0]]
    behind = [[0, 1, 2, 3, 4], [4, 3, 2, 1, 6]]
    before = np.hstack([junk, behind])
    found = value(name, before, *data, at=at, ignore=junk)
    assert found == value(name, behind, *data, at=at, ignore=junk)
    assert 0 < found < 1 or name.startswith("success")
    # Ids and arrays say the same as lists.
    assert found == value(name, before, *data, at=at, ignore=np.array(junk))
    assert found == value(name, before, *data, at=at, ignore=[set(lost) for lost in junk])
    assert value(name, before, *data, at=at, ignore=[[], []]) == value(name, before, *data, at=at)
    one = value(name, before, *data, at=at, ignore=[6, 8])
    assert one == value(name, before, *data, at=at, ignore=[[6], [8]])


@pytest.mark.parametrize("seed", [5, 83])
def test_reversed_ranking_has_its_items_at_mirrored_ranks(seed):
    rng = np.random.default_rng(seed)
    line, target = rng.permutation(50), int(rng.integers(50))
    place = int(np.flatnonzero(line == target)[0])
    found = evaluation.mean_reciprocal_rank_of_lists([line, line[::-1]], [[target], [target]])
    assert found == pytest.approx((1 / (place + 1) + 1 / (50 - place)) / 2)


def test_gains_of_any_scale_give_the_same():
    ids, lists = [[3, 1, 2, 0]], [[0, 1, 2]]
    expected = evaluation.ndcg_of_lists(ids, lists, gains=[[1, 2, 4]], at=4)
    for scale in (1e-300, 1e307):
        gains = [[scale, 2 * scale, 4 * scale]]
        found = evaluation.ndcg_of_lists(ids, lists, gains=gains, at=4)
        assert found == pytest.approx(expected)
    ones = evaluation.ndcg_of_lists(ids, lists, gains=[[1, 1, 1]], at=4)
    assert ones == evaluation.ndcg_of_lists(ids, lists, at=4)
    assert ones == evaluation.ndcg(ids, [5, 5, 5, 6], [5], at=4)
    # Next to equal, in the wrong order: no more than perfect, though the sums are rounded.
    line, steps = [0, 4, 2, 1, 5, 3, 6], [2, 1, 0, 2, 0, 1, 0]
    near = [[1 + step * 2**-52 for step in steps]]
    assert evaluation.ndcg_of_lists([line], [list(range(7))], gains=near, at=7) == 1
    # In half precision they are the numbers that they are, and the sums are not rounded to it.
    half = np.array([[0.1, 0.7, 0.3]], np.float16)
    found = evaluation.ndcg_of_lists(ids, lists, gains=half, at=4)
    exact = evaluation.ndcg_of_lists(ids, lists, gains=half.astype(float), at=4)
    assert found == exact
    twice = evaluation.ndcg_of_lists(ids, [[0, 1, 2, 2]], gains=[[1, 2, 4, 4]], at=4)
    assert twice == expected


@pytest.mark.parametrize(
    ("gains", "relevant", "reason"),
    [
        ([[1], [2]], [[0]], "gains must have one list for each of the 1 queries; got 2"),
        (3, [[0]], "one list for each of the 1 queries; got int"),
        ([[1]], [[0, 1]], "a number for each of the 2 relevant items of query 0; got 1 of int64"),
        ([["a"]], [[0]], "got 1 of <U1"),
        ([[-1.0]], [[0]], "finite and not negative; got .* for query 0"),
        ([[np.inf]], [[0]], "finite and not negative"),
        ([[np.nan]], [[0]], "finite and not negative"),
        ([[1, 2]], [[0, 0]], "query 0 lists one twice, with two gains"),
        ([[1, 2]], [{0, 1}], "in an order; got a set for query 0. Pass lists"),
    ],
)
def test_gains_that_do_not_fit_are_refused(gains, relevant, reason):
    with pytest.raises(ValueError, match=reason):
        evaluation.ndcg_of_lists([[0, 1]], relevant, gains=gains, at=1)


@pytest.mark.parametrize(
    ("ignore", "fault", "reason"),
    [
        ([[0], [1]], ValueError, "ignore must have one list for each of the 1 queries; got 2"),
        ([[0, -1]], ValueError, "from 0 up; got -1 for query 0. Leave padding out"),
        ([[2**63]], ValueError, "from 0 up; got 9223372036854775808"),
        (np.array([[0, 2**63]], np.uint64), ValueError, "from 0 up; got 9223372036854775808"),
        ([[0.5]], ValueError, "got float64 of shape .* for query 0"),
        ([[[0]]], ValueError, r"shape \(1, 1\) for query 0"),
        ([["a"]], ValueError, "got <U1"),
        ({0: [1]}, TypeError, "one list of ids for each of the 1 queries; got {0: "),
        ("a", TypeError, "got 'a'"),
        (3, TypeError, "got 3"),
        (np.ma.array([[0]]), TypeError, "masked"),
    ],
)
def test_junk_that_is_none_is_refused_by_every_measure(ignore, fault, reason):
    for name, at in (BY_LABELS | BY_LISTS).items():
        data = ([4, 5], [4]) if name in BY_LABELS else ([[0]],)
        with pytest.raises(fault, match=reason):
            value(name, [[0, 1]], *data, at=at and 1, ignore=ignore)


def test_junk_beyond_the_labels_is_refused_and_beyond_a_list_is_none_of_its_business():
    with pytest.raises(ValueError, match=r"ignore must hold ids in \[0, 1\]; got 2 for query 0"):
        evaluation.success([[0, 1]], [4, 5], [4], at=1, ignore=[[0, 2]])
    assert evaluation.success_of_lists([[0, 1]], [[0]], at=1, ignore=[[10**15]]) == 1


def test_lists_of_relevant_items_hold_ids():
    with pytest.raises(ValueError, match=r"relevant must be an integer array or list .* float64"):
        evaluation.recall([[0, 1]], [[0.5]])
    with pytest.raises(TypeError, match="relevant must be a sequence"):
        evaluation.recall([[0, 1]], {0: [1]})
    assert evaluation.recall([[0, 1], [2, 3]], [{0, 7}, {3: 1.0}]) == 3 / 4
    assert evaluation.recall([[0, 1], [2, 3]], np.array([0, 7])) == 1 / 2


@pytest.mark.parametrize("name", [name for name, at in (BY_LABELS | BY_LISTS).items() if at])
def test_depth_that_the_junk_does_not_leave_is_refused(name):
    data = ([4, 4, 5], [4]) if name in BY_LABELS else ([[0, 1]],)
    with pytest.raises(ValueError, match=r"at most 1, what a ranking .* query 0; got 2. Rank"):
        value(name, [[2, 1, 0]], *data, at=2, ignore=[[0, 2]])
    assert value(name, [[2, 1, 0]], *data, at=1, ignore=[[0, 2]]) == 1
    with pytest.raises(ValueError, match="at must be at most 3; got 4"):
        value(name, [[2, 1, 0]], *data, at=4)
    with pytest.raises(TypeError, match="at must be an integer"):
        value(name, [[2, 1, 0]], *data, at=1.5)


def test_labels_that_equal_nothing_are_of_no_query():
    labels = np.array([1.0, np.nan, 2.0])
    found = evaluation.per_query(evaluation.success, [[1, 0], [0, 1]], labels, [np.nan, 1.0], at=1)
    np.testing.assert_array_equal(found, [np.nan, 1])


def test_values_of_queries_have_the_mean_that_the_measure_tells():
    exact = [[0, 1, 2], [-1, -1, -1], [3, 4, 5]]
    found = evaluation.per_query(evaluation.agreement, [[0, 1, 9], [5, 4, 3], [0, 1, 2]], exact)
    assert found.tolist() == pytest.approx([2 / 3, 1, 0])
    with pytest.raises(ValueError, match=r"success_of_lists; got cumulative_match\. For a curve"):
        evaluation.per_query(evaluation.cumulative_match, [[0]], [1], [1])
    with pytest.raises(ValueError, match=r"mean over queries: agreement, .*; got \[\]"):
        evaluation.per_query([])
    nothing = evaluation.per_query(evaluation.recall, [[0], [0]], [[], []])
    assert np.isnan(nothing).all()


@pytest.mark.parametrize("name", [*BY_LABELS, *BY_LISTS, "agreement"])
def test_help_tells_a_number_and_the_one_order_of_arguments(name):
    measure = getattr(evaluation, name)
    signature = inspect.signature(measure)
    assert signature.return_annotation == "float" == measure.__annotations__["return"]
    data = ["labels", "query_labels"] if name in BY_LABELS else ["relevant"]
    data = ["exact_ids"] if name == "agreement" else data
    named = [
        argument.name
        for argument in signature.parameters.values()
        if argument.kind is argument.KEYWORD_ONLY
    ]
    assert list(signature.parameters) == ["ids", *data, *named]
    assert set(named) <= {"gains", "at", "ignore"}
    assert measure.__doc__


def test_arrays_of_other_libraries_are_taken():
    xp = array_api_strict
    ids, labels = xp.asarray([[0, 1, 2], [2, 1, 0]]), xp.asarray([4, 5, 4])
    wanted, junk = xp.asarray([4, 5]), xp.asarray([0, 2])
    found = evaluation.ndcg(ids, labels, wanted, at=2, ignore=junk)
    assert found == evaluation.ndcg([[0, 1, 2], [2, 1, 0]], [4, 5, 4], [4, 5], at=2, ignore=[0, 2])
    lists = evaluation.recall(ids, xp.asarray([[0, 1], [1, 2]]), ignore=xp.asarray([[0], [0]]))
    assert lists == evaluation.recall([[0, 1, 2], [2, 1, 0]], [[0, 1], [1, 2]], ignore=[0, 0])


def arrays_on_a_device():
    """A class that stands for CuPy's or torch's array, which NumPy cannot read where it is.

    A new one each time: what library a class belongs to is remembered.
    """

    class OnDevice:
        layout = "torch.strided"

        def __init__(self, values):
            self.values = np.asarray(values)
            self.ndim, self.dtype = self.values.ndim, self.values.dtype

        def get(self):
            return self.values

        def detach(self):
            return self

        resolve_conj = resolve_neg = detach

        def cpu(self):
            return self.values

    return OnDevice


@pytest.mark.parametrize(("library", "array"), [("cupy", "ndarray"), ("torch", "Tensor")])
def test_arrays_on_a_device_are_copied_to_the_host(monkeypatch, library, array):
    device = arrays_on_a_device()
    monkeypatch.setitem(sys.modules, library, types.SimpleNamespace(**{array: device}))
    ids, labels, wanted = device([[0, 1], [1, 0]]), device([4, 5]), device([4, 4])
    assert evaluation.mean_reciprocal_rank(ids, labels, wanted) == pytest.approx(3 / 4)
    assert evaluation.bootstrap(device([0.5, 0.5])).mean == 0.5
    assert evaluation.success_of_lists(ids, device([0, 0]), at=1, ignore=device([1, 1])) == 1
