"""What users do with a ranking: take it apart, look at one query, convert it."""

import sys

import numpy as np
import pytest
from conftest import clustered_vectors, two_cliques

import hybrid_gpu as hg


@pytest.fixture
def ranking(backend):
    """Two queries on two cliques of four: diffusion reaches four items, and five are asked for."""
    index = hg.build_index_from_graph(two_cliques(4), alpha=0.9, backend=backend)
    return index.search_items([0, 5], k=5)


def test_ranking_comes_apart(ranking):
    ids, scores = ranking
    np.testing.assert_array_equal(ids, ranking.ids)
    np.testing.assert_array_equal(scores, ranking.scores)


def test_result_of_one_query_has_what_was_found(ranking):
    assert ranking.ids[1].tolist() == [5, 4, 6, 7, -1]
    found = ranking[1]
    assert list(found) == [5, 4, 6, 7]
    assert list(found.values()) == ranking.scores[1, :4].tolist()
    assert ranking[-1] == found
    assert ranking.to_dicts() == [ranking[0], found]


def test_result_of_no_query_is_refused(ranking):
    with pytest.raises(IndexError):
        ranking[2]
    with pytest.raises(TypeError, match=r"ranking.ids and ranking.scores"):
        ranking[0:2]


def test_data_frame_has_a_line_for_each_result(ranking):
    pytest.importorskip("pandas")
    frame = ranking.to_pandas()
    assert list(frame.columns) == ["query", "place", "id", "score"]
    assert frame["query"].tolist() == [0] * 4 + [1] * 4
    assert frame["place"].tolist() == [1, 2, 3, 4] * 2
    assert frame["id"].tolist() == ranking.ids[:, :4].reshape(-1).tolist()
    assert frame["score"].tolist() == ranking.scores[:, :4].reshape(-1).tolist()


def test_data_frame_without_pandas_names_the_line_to_type(ranking, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        ranking.to_pandas()


def test_index_has_a_length(backend, rng):
    index = hg.build_index(clustered_vectors(rng, n=40), neighbors=5, backend=backend)
    assert len(index) == len(hg.Replicas(index, [backend])) == 40
