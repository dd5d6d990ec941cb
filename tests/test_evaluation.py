import numpy as np
import pytest

from hybrid_gpu import evaluation


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


def test_mismatched_input_is_refused():
    ids = np.array([[0, 1]])
    with pytest.raises(ValueError, match="query_labels"):
        evaluation.mean_average_precision(ids, np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match="below 1"):
        evaluation.mean_average_precision(ids, np.zeros(1), np.zeros(1))
    with pytest.raises(ValueError, match="one list for each"):
        evaluation.recall(ids, [[0], [1]])
    with pytest.raises(ValueError, match="as many queries"):
        evaluation.agreement(ids, [[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="integer array"):
        evaluation.agreement([[0.5]], [[1]])
    with pytest.raises(ValueError, match="must not be negative; got -1"):
        evaluation.mean_average_precision([[-1]], [0, 1], [1])
    with pytest.raises(ValueError, match="must not repeat"):
        evaluation.mean_average_precision([[1, 1]], [0, 1], [1])
    with pytest.raises(ValueError, match="at must be at most 2"):
        evaluation.agreement(ids, ids, at=3)
