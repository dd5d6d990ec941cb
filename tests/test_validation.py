"""What users pass in: taken as it is meant, or refused with what to write."""

import numpy as np
import pytest
from conftest import path

import hybrid_gpu as hg
from hybrid_gpu.validation import shown

HUGE, WORD, PAIR = 10**400, "x", np.array([1, 2])
WRONG = {
    "k": (True, np.nan, 3.5, WORD, None, PAIR),
    "method": (None, 3, np.array("hybrid"), ["hybrid"], PAIR),
    "accuracy": (HUGE, -HUGE, 1e308, 1.5, 0, np.nan, 1 + 0j, WORD, PAIR),
    "rtol": (HUGE, 1e308, 1.5, 0, np.inf, WORD, PAIR),
    "steps": (HUGE, 10**9, -1, 2.5, WORD, PAIR),
    "filter": (3, WORD, PAIR, hg.PageRank),
    "sparsity": (HUGE, 1, None, WORD, PAIR),
    "expansion": (0, 3, WORD, [], PAIR),
    "batch": (0, 2.5, WORD, PAIR),
}


@pytest.mark.parametrize("name", WRONG)
def test_odd_arguments_of_a_search_are_refused_by_name(backend, name):
    index = hg.build_index_from_graph(path(9), backend=backend)
    graph, seen = index.graph, index.graph.degrees[:, None]
    for value in WRONG[name]:
        with pytest.raises((TypeError, ValueError), match=f"^{name} must "):
            index.search_items([1], **{"k": 3, name: value})
        if name in ("accuracy", "rtol", "steps", "filter"):
            with pytest.raises((TypeError, ValueError), match=f"^{name} must "):
                hg.diffuse(graph, seen, backend=backend, **{name: value})


LISTS = np.array([[1], [0]]), np.array([[0.5], [0.5]])


def spectrum():
    graph = hg.graph_from_affinity(path(9), backend="numpy")
    return hg.leading_eigenpairs(graph, rank=2, backend="numpy")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda graph: hg.PageRank(HUGE), "alpha must be finite"),
        (lambda graph: hg.PageRank(10**5000), "alpha must be finite.*got an integer of 16610 bits"),
        (lambda graph: hg.PageRank("0.9"), "alpha must be a number"),
        (lambda graph: hg.PageRank(1 + 0j), "alpha must be a number"),
        (lambda graph: hg.Polynomial(3), "coefficients must be a sequence"),
        (lambda graph: hg.Polynomial("a"), "coefficients must be a sequence"),
        (lambda graph: hg.condition_number(0.9, largest="x"), "largest must be a number"),
        (lambda graph: hg.error_bound(None, 3), "condition must be a number"),
        (lambda graph: hg.error_bounds(3), "eigenvalues must have shape"),
        (lambda graph: hg.error_bounds(WORD), "eigenvalues must be numbers"),
        (lambda graph: hg.error_bounds([1.0], steps=3), "steps must be a sequence"),
        (lambda graph: hg.select_backend(3), "backend must be 'auto'"),
        (lambda graph: hg.diffuse(3, graph.degrees), "graph must be of type Graph"),
        (lambda graph: hg.diffuse(graph, [1.0]), "observation must be an Observation"),
        (lambda graph: hg.diffuse(graph, graph.degrees, basis="eigen"), "basis must be a basis"),
        (lambda graph: hg.aggregate(3, groups=2), "graph must be of type Graph"),
        (lambda graph: hg.aggregate_basis(3, np.zeros(9, int)), "graph must be of type Graph"),
        (lambda graph: hg.given_basis(3, np.eye(9)), "graph must be of type Graph"),
        (lambda graph: hg.sparse_eigen_basis(np.eye(9), 3), "graph must be of type Graph"),
        (lambda graph: hg.eigen_basis(spectrum(), 3), "graph must be of type Graph"),
        (lambda graph: hg.build_index(np.eye(3), neighbors=2, basis="x"), "basis must be one of"),
        (lambda graph: hg.build_index_from_graph(path(9), basis="x"), "basis must be one of"),
        (lambda graph: hg.build_index_from_neighbors(*LISTS, basis="x"), "basis must be one of"),
        (lambda graph: hg.build_index_from_neighbors(*LISTS, keep_neighbors=3), "keep_neighbors"),
        (lambda graph: hg.given_basis(graph, [[1.0]]), "basis must be an array"),
        (lambda graph: hg.given_basis(graph, np.array([["a"]])), "basis must be an array"),
        (lambda graph: hg.sparse_eigen_basis(graph.degrees, graph), "eigenvectors must have shape"),
        (lambda graph: hg.eigen_basis(3, graph), "spectrum must be of type Spectrum"),
        (lambda graph: hg.leading_eigenpairs(graph, rank=1, seed=-1), "seed must be at least 0"),
        (lambda graph: hg.reciprocal_graph(3), "neighbors must be of type Neighbors"),
        (lambda graph: hg.with_basis(3, "none"), "index must be of type DiffusionIndex"),
        (lambda graph: hg.plan(3), "index must be of type DiffusionIndex or Graph"),
        (lambda graph: hg.plan(graph, memory=WORD), "memory must be an integer"),
        (lambda graph: hg.plan(graph, eigenvectors=100), "eigenvectors must be a sequence"),
        (lambda graph: hg.predicted_bytes(HUGE), "n must be at most"),
        (lambda graph: hg.predicted_bytes(9, cells=np.nan), "cells must be finite"),
        (lambda graph: hg.predicted_bytes(9, batch=WORD), "batch must be an integer"),
        (lambda graph: hg.top_items(graph.degrees, k=1), "scores must be an array of shape"),
        (lambda graph: hg.augment_database(np.eye(3), expansion=3), "expansion must be of type"),
        (lambda graph: hg.augment_database(np.eye(3), lists=3), "lists must be of type Neighbors"),
        (lambda graph: hg.build_index(np.eye(3), neighbors=10**30), "neighbors must be at most 2"),
        (lambda graph: hg.build_index(np.eye(3), neighbors=2, keep_neighbors=PAIR), "keep_neigh"),
        (lambda graph: hg.build_index(np.eye(3), dtype=PAIR), "dtype must be 'float32' or"),
    ],
)
def test_odd_arguments_are_refused_by_name(backend, call, told):
    with pytest.raises((TypeError, ValueError), match=f"^{told}"):
        call(hg.graph_from_affinity(path(9), backend=backend))


def test_ids_that_are_none_are_refused(backend):
    index = hg.build_index_from_graph(path(9), backend=backend)
    with pytest.raises(ValueError, match="ids must be non-empty"):
        index.search_items([])
    # As an int64 this is -1, which stands for 'nothing found'.
    largest = np.array([2**64 - 1], dtype="uint64")
    with pytest.raises(ValueError, match=r"ids must be below 2\*\*63.*astype"):
        index.search_items(largest)
    with pytest.raises(ValueError, match=r"ids must be below 2\*\*63.*astype"):
        index.rerank(largest[None, :] - 1, np.array([[0.5]]))


def test_a_bound_after_any_number_of_steps_is_a_number():
    assert hg.error_bound(100.0, HUGE) == 0


def test_values_in_messages_stay_on_a_short_line():
    assert shown([1, 2]) == "[1, 2]"
    assert shown("x" * 78) == repr("x" * 78)
    assert shown(np.zeros((2, 3))) == "array([[0., 0., 0.], [0., 0., 0.]])"
    assert shown("x" * 79) == "'" + "x" * 59 + "... (str)"
    assert shown(10**5000) == "an integer of 16610 bits"
