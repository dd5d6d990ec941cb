from fractions import Fraction

import numpy as np
import pytest

import hybrid_gpu as hg
from hybrid_gpu import evaluation

NOTHING = {"easy": [], "hard": [], "junk": []}


def revisited(ids, *truths, at=(1, 5, 10)):
    return evaluation.revisited_protocol(ids, [NOTHING | truth for truth in truths], at)


def figures(score):
    """Average precision, then the precisions, as exact as floats are."""
    return pytest.approx([score.mean_average_precision, *score.precision_at.values()], abs=1e-14)


def test_average_precision_of_a_case_by_hand():
    # Relevant items 0, 1, 2 at ranks 1 and 3, the third not found: (1/1 + 2/3 + 0) / 3.
    ids = np.array([[0, 9, 1, 8]])
    value = evaluation.mean_average_precision_of_lists(ids, [[0, 1, 2]])
    assert value == pytest.approx((1 + 2 / 3) / 3)


def test_labels_and_lists_agree():
    labels = np.array([0, 1, 0, 1, 2])
    ids = np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
    by_label = evaluation.mean_average_precision(ids, labels, np.array([0, 1]))
    by_list = evaluation.mean_average_precision_of_lists(ids, [[0, 2], [1, 3]])
    assert by_label == pytest.approx(by_list)
    assert by_label == pytest.approx(((1 + 2 / 3) / 2 + (1 / 2 + 2 / 4) / 2) / 2)


def test_ignored_item_counts_neither_for_nor_against():
    labels = np.array([0, 0, 1])
    ids = np.array([[0, 2, 1]])
    plain = evaluation.mean_average_precision(ids, labels, np.array([0]))
    without = evaluation.mean_average_precision(ids, labels, np.array([0]), ignore=np.array([0]))
    assert plain == pytest.approx((1 + 2 / 3) / 2)
    assert without == pytest.approx(1 / 2)


def test_queries_without_relevant_items_are_left_out():
    ids = np.array([[0, 1], [1, 0]])
    assert evaluation.mean_average_precision_of_lists(ids, [[0], []]) == 1
    assert evaluation.recall(ids, [[0], []]) == 1
    with pytest.raises(ValueError, match="nothing to average"):
        evaluation.mean_average_precision_of_lists(ids, [[], []])


def test_recall_counts_the_found_part():
    ids = np.array([[5, 6, 7, 8]])
    assert evaluation.recall(ids, [[5, 8, 1, 2]]) == 0.5
    assert evaluation.recall(ids, [[5, 8, 1, 2]], at=2) == 0.25


def test_agreement_ignores_order():
    assert evaluation.agreement([[1, 2, 3]], [[3, 2, 9]]) == pytest.approx(2 / 3)
    assert evaluation.agreement([[1, 2, 3]], [[1, 9, 2]], at=1) == 1


def test_agreement_of_rankings_of_two_lengths_is_that_of_the_shorter():
    assert evaluation.agreement([[1, 2]], [[2, 9, 1]]) == 1 / 2
    assert evaluation.agreement([[2, 9, 1]], [[1, 2]]) == 1 / 2


def test_mismatched_input_is_refused():
    ids = np.array([[0, 1]])
    with pytest.raises(ValueError, match="query_labels"):
        evaluation.mean_average_precision(ids, np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match="below 1"):
        evaluation.mean_average_precision(ids, np.zeros(1), np.zeros(1))
    with pytest.raises(ValueError, match="one list for each"):
        evaluation.recall(ids, [[0], [1]])
    with pytest.raises(ValueError, match="ids of items, from 0 up; got -4 for query 0"):
        evaluation.recall(ids, [[0, -4]])
    with pytest.raises(ValueError, match="as many queries"):
        evaluation.agreement(ids, [[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="integer array"):
        evaluation.agreement([[0.5]], [[1]])
    with pytest.raises(ValueError, match="or -1 for 'nothing found'; got -2"):
        evaluation.mean_average_precision([[-2]], [0, 1], [1])
    with pytest.raises(ValueError, match="ids must be an array, all rows of the same length"):
        evaluation.agreement([[1, 2], [3]], [[1]])
    with pytest.raises(TypeError, match=r"masked array.*ids.filled\(-1\)"):
        evaluation.mean_average_precision(np.ma.array([[1]]), [0, 1], [1])
    with pytest.raises(ValueError, match="ignore must be ids of items, from 0 up; got -1 for"):
        evaluation.mean_average_precision(ids, [0, 1], [1], ignore=[-1])
    with pytest.raises(ValueError, match="ignore must be an integer array"):
        evaluation.precision(ids, [0, 1], [1], at=1, ignore=[0.5])
    with pytest.raises(ValueError, match="at must be at most 2"):
        evaluation.agreement(ids, ids, at=3)


@pytest.mark.parametrize("line", [[3, 1, 2, 3], [3, 10**15, 7, 10**15], [5, 5]])
def test_repeated_ids_are_refused_however_far_apart_ids_lie(line):
    fine = np.arange(len(line))
    with pytest.raises(ValueError, match="must not repeat"):
        evaluation.agreement([fine, line], [fine, fine])
    far = [fine, fine + 10**15]  # ids that no table of all items could hold
    assert evaluation.agreement(far, far) == 1


def test_labels_of_no_query_are_distractors():
    # Items 2 and 4 belong to nobody: the query's items stand at ranks 2 and 4.
    labels, ids = np.array([0, 1, -1, 0, -1]), np.array([[2, 0, 4, 3, 1]])
    assert evaluation.mean_average_precision(ids, labels, [0]) == pytest.approx((1 / 2 + 2 / 4) / 2)
    names = np.array(["cat", "dog", "", "cat", ""])
    assert evaluation.mean_average_precision(ids, names, ["cat"]) == pytest.approx(0.5)


def test_precision_counts_the_first_results():
    labels, ids = np.array([0, 1, 0, 1, 0]), np.array([[0, 2, 1, 3, 4], [0, 1, 3, 2, 4]])
    # Right results among the first three: 0 and 2 of the first query, 1 and 3 of the second.
    assert evaluation.precision(ids, labels, [0, 1], at=3) == pytest.approx(2 / 3)
    assert evaluation.precision(ids, labels, [0, 1], at=1) == 0.5
    # The second class has two items only: the fifth part of five results that it cannot fill.
    assert evaluation.precision(ids[1:], labels, [1], at=5) == pytest.approx(2 / 5)


def test_precision_takes_the_ignored_item_out_before_it_counts():
    labels, ids = np.array([0, 1, 0, 1]), np.array([[0, 1, 2, 3]])
    assert evaluation.precision(ids, labels, [0], at=2) == 0.5
    assert evaluation.precision(ids, labels, [0], at=2, ignore=[0]) == 0.5  # 1 and 2
    assert evaluation.precision(ids, labels, [0], at=2, ignore=[1]) == 1  # 0 and 2
    # Item 3 stands behind the two right ones: still one of one, not two of one.
    assert evaluation.precision([[0, 2, 1, 3]], labels, [0], at=1, ignore=[3]) == 1


def test_precision_leaves_out_queries_without_relevant_items():
    ids, labels = np.array([[0, 1], [0, 1]]), [0, 1]
    assert evaluation.precision(ids, labels, [0, 7], at=1) == 1
    with pytest.raises(ValueError, match="nothing to average"):
        evaluation.precision(ids, labels, [7, 8], at=1)


def test_precision_of_too_short_a_ranking_is_refused():
    with pytest.raises(ValueError, match="at must be at most 2; got 3"):
        evaluation.precision([[0, 1]], [0, 1], [0], at=3)
    with pytest.raises(ValueError, match="at must be at most 1, what a ranking holds beside"):
        evaluation.precision([[0, 1]], [0, 0], [0], at=2, ignore=[1])


def test_ties_go_to_the_lower_id():
    scores = np.array([[0.5, 1.0, 0.5, 1.0, 0.5], [0.0, -0.0, -1.0, 0.0, -0.0]])
    assert evaluation.ranked(scores).tolist() == [[1, 3, 0, 2, 4], [0, 1, 3, 4, 2]]
    # The cut goes through the items that tie.
    assert evaluation.ranked(scores, k=3).tolist() == [[1, 3, 0], [0, 1, 3]]
    assert evaluation.ranked(scores, k=3).dtype == np.int64


def test_infinite_scores_are_first_and_last():
    scores = np.array([[1.0, -np.inf, np.inf, -np.inf]], np.float32)
    assert evaluation.ranked(scores).tolist() == [[2, 0, 1, 3]]
    assert evaluation.ranked(scores, k=3).tolist() == [[2, 0, 1]]


def test_ranked_sorts_by_score_then_id(rng):
    scores = rng.integers(-3, 4, (6, 50)).astype(np.float32)  # seven values: ties everywhere
    for k in (1, 7, 49, 50):
        expected = [
            sorted(range(50), key=lambda item, row=row: (-row[item], item))[:k] for row in scores
        ]
        assert evaluation.ranked(scores, k=k).tolist() == expected
        assert hg.top_items(scores.T, k=k, backend="numpy").ids.tolist() == expected


@pytest.mark.parametrize(
    ("scores", "k", "reason"),
    [
        ([[1.0, np.nan, np.nan]], None, "must not be NaN, .* got 2"),
        ([1.0, 2.0], None, r"got float64 of shape \(2,\)"),
        ([[1, 2]], None, "float array .* got int64"),
        (np.empty((2, 0)), None, "non-empty"),
        ([[1.0, 2.0]], 3, "k must be at most 2"),
        ([[1.0, 2.0]], 0, "k must be at least 1"),
    ],
)
def test_scores_without_an_order_are_refused(scores, k, reason):
    with pytest.raises(ValueError, match=reason):
        evaluation.ranked(scores, k=k)


def test_junk_is_taken_out_before_ranks_are_counted():
    # Without the junk 9 and 7: 0, 8, 1. Positives at ranks 0 and 2 (from 0), of 2:
    #   0: the precision is 1 before it and 1/1 at it, 1 on average
    #   1: 1/2 before it and 2/3 at it, 7/12 on average
    # AP = (1 + 7/12) / 2 = 19/24. The last positive is third: P@5 = P@10 = 2/3.
    score = revisited([[9, 0, 8, 1, 7]], {"easy": [0, 1], "junk": [9, 7]}).easy
    assert figures(score) == [19 / 24, 1, 2 / 3, 2 / 3]
    # The same, where nothing is junk: positives at ranks 1 and 3, (1/4 + 5/12) / 2, P@5 = 2/4.
    score = revisited([[9, 0, 8, 1, 7]], {"easy": [0, 1]}).easy
    assert figures(score) == [1 / 3, 0, 1 / 2, 1 / 2]


def test_the_three_setups_ask_for_different_images():
    truth = {"easy": [1, 5], "hard": [3], "junk": [4]}
    found = revisited([[0, 1, 2, 3, 4, 5]], truth, at=(1, 2, 5))
    # Easy, of 0 1 2 5, ranks 1 and 3: (0/1 + 1/2) / 2 = 1/4 and (1/3 + 2/4) / 2 = 5/12.
    assert figures(found.easy) == [(1 / 4 + 5 / 12) / 2, 0, 1 / 2, 2 / 4]
    # Medium, of 0 1 2 3 5, ranks 1, 3 and 4: 1/4, 5/12 and (2/4 + 3/5) / 2 = 11/20.
    assert figures(found.medium) == [(1 / 4 + 5 / 12 + 11 / 20) / 3, 0, 1 / 2, 3 / 5]
    # Hard, of 0 2 3, rank 2: (0/2 + 1/3) / 2 = 1/6; the only positive is third.
    assert figures(found.hard) == [1 / 6, 0, 0, 1 / 3]


def test_distractors_are_wrong_results():
    # A benchmark of four images, and distractors from 4 on: 5, 0, 4, 2, positives at 1 and 3.
    score = revisited([[5, 0, 4, 2, 3, 1]], {"easy": [0, 2]}).medium
    assert figures(score) == [(1 / 4 + 5 / 12) / 2, 0, 2 / 4, 2 / 4]


def test_item_that_one_list_names_twice_counts_once():
    once, twice = ({"easy": items, "junk": [3]} for items in ([0, 2], [2, 0, 2]))
    assert figures(revisited([[0, 3, 1, 2]], twice).easy) == [19 / 24, 1, 2 / 3, 2 / 3]
    assert figures(revisited([[0, 3, 1, 2]], once).easy) == [19 / 24, 1, 2 / 3, 2 / 3]


def test_all_positives_first_are_worth_one_at_every_depth():
    found = revisited([[3, 1, 0, 2, 4]], {"easy": [1], "hard": [3]}, at=(1, 2, 10))
    assert figures(found.medium) == [1, 1, 1, 1]
    # The other positive is taken out, not counted as a wrong result in front.
    assert figures(found.easy) == [1, 1, 1, 1]
    assert figures(found.hard) == [1, 1, 1, 1]


def test_only_positive_in_the_last_place():
    # (0/4 + 1/5) / 2; depths 5 and 10 see it, at rank 5.
    assert figures(revisited([[0, 1, 2, 3, 4]], {"hard": [4]}).hard) == [1 / 10, 0, 1 / 5, 1 / 5]


def test_queries_without_positives_are_left_out_of_every_mean():
    found = revisited(
        [[0, 1, 2], [0, 1, 2], [0, 1, 2]],
        {"easy": [0], "junk": [1]},  # AP 1
        {"hard": [1]},  # (0/1 + 1/2) / 2 = 1/4
        {"junk": [0, 1, 2]},
    )
    assert (found.easy.queries, found.medium.queries, found.hard.queries) == (1, 2, 1)
    np.testing.assert_array_equal(found.easy.average_precisions, [1, np.nan, np.nan])
    np.testing.assert_array_equal(found.medium.average_precisions, [1, 1 / 4, np.nan])
    np.testing.assert_array_equal(found.hard.average_precisions, [np.nan, 1 / 4, np.nan])
    assert figures(found.easy) == [1, 1, 1, 1]
    assert figures(found.medium) == [5 / 8, 1 / 2, 3 / 4, 3 / 4]
    assert figures(found.hard) == [1 / 4, 0, 1 / 2, 1 / 2]


def test_setup_without_any_positive_has_no_score():
    found = revisited([[0, 1]], {"easy": [0]})
    assert found.hard.queries == 0
    assert np.isnan(found.hard.mean_average_precision)
    assert list(found.hard.precision_at) == [1, 5, 10]
    assert np.isnan(list(found.hard.precision_at.values())).all()
    assert figures(found.medium) == [1, 1, 1, 1]


def test_positives_behind_the_cut_count_as_never_found():
    # Of four positives one is in the list, at rank 1: (0/1 + 1/2) / 2 / 4. It is the last of
    # those that are known, so that precision looks at two results.
    score = revisited([[9, 0, 8]], {"easy": [0, 1, 2, 3]}).easy
    assert figures(score) == [1 / 16, 0, 1 / 2, 1 / 2]
    nothing = revisited([[9, 8]], {"easy": [0, 1]}).easy
    assert figures(nothing) == [0, 0, 0, 0]
    assert nothing.queries == 1


def test_protocol_on_ties_follows_the_ids():
    # All scores equal: the order is 0, 1, 2, with the positive last or first.
    ids = evaluation.ranked(np.zeros((2, 3)))
    values = revisited(ids, {"easy": [2]}, {"easy": [0]}).easy.average_precisions
    assert values.tolist() == pytest.approx([1 / 6, 1])


def integrated(line, positives, ignored, depths):
    """Average precision and precisions in fractions, walking down the curve result by result."""
    cleaned = [item for item in line if item not in ignored]
    area, right, precision, last = Fraction(0), 0, Fraction(1), 0
    for shown, item in enumerate(cleaned, start=1):
        before, recall = precision, Fraction(right, len(positives))
        right += item in positives
        last = shown if item in positives else last
        precision = Fraction(right, shown)
        area += (Fraction(right, len(positives)) - recall) * (before + precision) / 2
    tops = [cleaned[: min(last, depth)] for depth in depths]
    return area, [Fraction(len(positives & set(top)), max(len(top), 1)) for top in tops]


def test_protocol_agrees_with_the_integral_of_the_curve(rng):
    items, shown, depths = 30, 24, (1, 3, 10, 100)
    rankings = np.array([rng.permutation(items)[:shown] for _ in range(40)])
    truths = []
    for _ in rankings:
        kinds = rng.choice(["easy", "hard", "junk", "wrong"], items, p=[0.06, 0.06, 0.2, 0.68])
        truths.append({kind: np.flatnonzero(kinds == kind) for kind in NOTHING})
    found = revisited(rankings, *truths, at=depths)
    setups = {"easy": ("easy",), "medium": ("easy", "hard"), "hard": ("hard",)}
    for setup, wanted in setups.items():
        expected = []
        for line, truth in zip(rankings.tolist(), truths, strict=True):
            positives = {item for kind in wanted for item in truth[kind].tolist()}
            known = {item for items in truth.values() for item in items.tolist()}
            if positives:
                expected.append(integrated(line, positives, known - positives, depths))
        score = getattr(found, setup)
        assert 0 < len(expected) == score.queries < 40
        values = score.average_precisions[~np.isnan(score.average_precisions)]
        assert values.tolist() == pytest.approx([float(area) for area, _ in expected])
        columns = zip(*(precisions for _, precisions in expected), strict=True)
        means = [sum(column) / len(expected) for column in columns]
        assert list(score.precision_at) == list(depths)
        assert list(score.precision_at.values()) == pytest.approx([float(one) for one in means])
        mean = float(sum(area for area, _ in expected) / len(expected))
        assert score.mean_average_precision == pytest.approx(mean)


@pytest.mark.parametrize(
    ("truths", "reason"),
    [
        ([], "one mapping for each of the 1 queries; got 0"),
        ([{"easy": [0], "junk": []}], "query 0 has no hard"),
        ([[0, 1]], "query 0 has no easy, hard, junk"),
        ([NOTHING | {"easy": [0, 1], "junk": [1]}], "query 0 has item 1 twice"),
        ([NOTHING | {"easy": [2], "hard": [2]}], "query 0 has item 2 twice"),
        ([NOTHING | {"hard": [-1]}], "'hard' of query 0 is int64 of shape .* from -1"),
        ([NOTHING | {"hard": [0.5]}], "'hard' of query 0 is float64"),
        ([NOTHING | {"hard": [[1, 2]]}], r"shape \(1, 2\)"),
    ],
)
def test_wrong_ground_truth_is_refused(truths, reason):
    with pytest.raises(ValueError, match=reason):
        evaluation.revisited_protocol([[0, 1]], truths)


def test_nothing_found_counts_as_a_wrong_result():
    # The last item has the query's label: -1 must not be taken for it.
    labels, wanted = [1, 0, 1], [1]
    assert evaluation.mean_average_precision([[0, -1, -1]], labels, wanted) == 1 / 2
    assert evaluation.mean_average_precision([[-1, 0, 2]], labels, wanted) == pytest.approx(7 / 12)
    assert evaluation.precision([[0, -1]], labels, wanted, at=2) == 1 / 2
    assert evaluation.mean_average_precision_of_lists([[0, -1, -1]], [[0, 2]]) == 1 / 2
    assert evaluation.recall([[0, -1, -1]], [[0, 2]]) == 1 / 2
    assert revisited([[0, -1, -1]], {"easy": [0]}).easy.mean_average_precision == 1
    with pytest.raises(ValueError, match="must not repeat"):
        evaluation.recall([[-1, 0, -1, 0]], [[0]])
    with pytest.raises(ValueError, match="must not repeat"):
        evaluation.recall([[-1, 900, -1, 900]], [[0]])
    assert evaluation.recall([[-1, 900, -1, 901]], [[900]]) == 1


def test_agreement_counts_what_was_found():
    assert evaluation.agreement([[3, 4, -1]], [[4, -1, -1]]) == 1
    assert evaluation.agreement([[3, -1, -1]], [[3, 4, -1]]) == 1 / 2
    assert evaluation.agreement([[3, -1], [1, 2]], [[-1, -1], [1, 3]]) == 3 / 4


def test_wrong_rankings_and_depths_are_refused_by_the_protocol():
    with pytest.raises(ValueError, match="must not repeat"):
        revisited([[0, 0]], {"easy": [0]})
    with pytest.raises(ValueError, match="got -3"):
        revisited([[0, -3]], {"easy": [0]})
    with pytest.raises(ValueError, match=r"such as \(1, 5, 10\); got 5"):
        revisited([[0, 1]], {"easy": [0]}, at=5)
    with pytest.raises(ValueError, match="at must be at least 1; got 0"):
        revisited([[0, 1]], {"easy": [0]}, at=(0,))


def test_scores_are_shown_on_one_line():
    found = revisited([[9, 0, 8, 1, 7]], {"easy": [0, 1], "junk": [9, 7]}, at=(1, 5))
    assert repr(found) == "Revisited(mAP 79.17/79.17/nan easy/medium/hard)"
    assert repr(found.easy) == "Score(mAP 79.17, mP@1 100.00, mP@5 66.67, 1 queries)"


def test_relevant_items_count_once_however_often_they_are_listed():
    assert evaluation.recall([[0, 5]], [[0, 0, 0, 1]]) == 0.5
    assert evaluation.mean_average_precision_of_lists([[0, 1]], [[0, 0, 1]]) == 1


def test_lists_for_other_queries_and_depths_beyond_a_ranking_are_refused():
    for measure in (evaluation.recall, evaluation.mean_average_precision_of_lists):
        with pytest.raises(ValueError, match="one list for each"):
            measure([[0, 1]], [[0], [1]])
        with pytest.raises(ValueError, match="from 0 up"):
            measure([[0, 1]], [[0, -1]])
    with pytest.raises(ValueError, match="at must be at most 2"):
        evaluation.agreement([[0, 1]], [[0, 1, 2]], at=3)
    truth = [{"easy": [0], "hard": [1], "junk": []}]
    for at in ("15", {1: 1}, 5):
        with pytest.raises(ValueError, match="sequence of depths"):
            evaluation.revisited_protocol([[0, 1]], truth, at=at)


def test_a_query_of_which_nothing_is_known_is_left_out():
    both = revisited([[0, 1], [1, 0]], {}, {"easy": [1]})
    assert both.easy.mean_average_precision == 1


@pytest.mark.parametrize("ignore", [[0, -1], [0, 3]])
def test_one_ignored_item_that_is_none_is_refused(ignore):
    with pytest.raises(ValueError, match="ignore must"):
        evaluation.mean_average_precision([[0, 1, 2], [2, 1, 0]], [0, 0, 1], [0, 0], ignore=ignore)


def test_labels_of_no_items_are_refused():
    with pytest.raises(ValueError, match=r"labels must be \(n,\) with n at least 1"):
        evaluation.mean_average_precision(np.full((2, 3), -1), np.zeros(0, int), np.array([1, 2]))
