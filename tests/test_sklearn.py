"""The estimator for scikit-learn: its checks, and what it makes of vectors and of graphs."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import clustered_vectors

import hybrid_gpu as hg

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.cluster import DBSCAN
from sklearn.manifold import Isomap
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsTransformer,
    NearestNeighbors,
    kneighbors_graph,
    radius_neighbors_graph,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from hybrid_gpu.sklearn import DiffusionNeighbors

N, M = 90, 12
# Both ways to give samples. scikit-learn skips its check of other array libraries unless it is
# asked to dispatch to them; none of its checks is expected to fail.
ESTIMATORS = [
    DiffusionNeighbors(backend="numpy"),
    DiffusionNeighbors(metric="precomputed", backend="numpy"),
]


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda estimator: {})
def test_the_checks_of_scikit_learn_pass(estimator, check):
    check(estimator)


@pytest.fixture
def vectors(rng):
    return clustered_vectors(rng, N + M)


@pytest.fixture
def samples(vectors):
    return vectors[:N], vectors[N:]


def on(backend, **options):
    return DiffusionNeighbors(backend=backend, **options)


def units(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# Vectors ------------------------------------------------------------------------------------------


def test_neighbors_are_those_of_a_search(backend, samples):
    X, queries = samples
    index = hg.build_index(X, neighbors=8, alpha=0.8, gamma=2.0, dtype="float64", backend=backend)
    options = {"graph_neighbors": 8, "alpha": 0.8, "gamma": 2.0, "dtype": "float64"}
    estimator = on(backend, n_neighbors=7, method="temporal", query_neighbors=3, **options).fit(X)
    expected = index.search(queries, k=7, method="temporal", query_neighbors=3)
    distances, ids = estimator.kneighbors(queries)
    np.testing.assert_array_equal(ids, expected.ids)
    np.testing.assert_allclose(distances, 1 - expected.scores / expected.scores[:, :1], atol=1e-12)
    assert distances.dtype == np.float64
    assert np.all(np.diff(distances, axis=1) >= 0)
    assert np.all(distances[:, 0] == 0)
    np.testing.assert_array_equal(
        estimator.kneighbors(queries, 3, return_distance=False), ids[:, :3]
    )


def test_a_fitted_sample_is_not_its_own_neighbor(backend, samples):
    X, _ = samples
    estimator = on(backend, n_neighbors=4).fit(X)
    ids = estimator.kneighbors(return_distance=False)
    assert ids.shape == (N, 4)
    assert not np.any(ids == np.arange(N)[:, None])
    exact = estimator.index_.search_items(np.arange(N), k=N, rtol=1e-6)
    for own, (row, ranked, scores) in enumerate(zip(ids, exact.ids, exact.scores, strict=True)):
        others = dict(zip(ranked[ranked != own], scores[ranked != own], strict=True))
        # To the accuracy of a ranking: near the last, two may have changed places.
        last = sorted(others.values())[-4]
        assert all(others[item] >= 0.98 * last for item in row if item >= 0), own
    assert estimator.kneighbors_graph().diagonal().sum() == 0


@pytest.mark.parametrize("mode", ["distance", "connectivity", "score"])
def test_the_graph_holds_what_kneighbors_says(backend, samples, mode):
    X, queries = samples
    estimator = on(backend, n_neighbors=6, mode=mode).fit(X)
    graph = estimator.transform(queries)
    count = 7 if mode == "distance" else 6
    distances, ids = estimator.kneighbors(queries, count)
    scores = estimator.index_.search(queries, k=count).scores
    values = {"distance": distances, "connectivity": np.ones(ids.shape), "score": scores}[mode]
    assert graph.shape == (M, N)
    # The nearest first in each row, zeros stored: what scikit-learn asks of a graph.
    np.testing.assert_array_equal(graph.indices.reshape(M, count), ids)
    np.testing.assert_array_equal(graph.data.reshape(M, count), values)
    assert estimator.get_feature_names_out().tolist()[:2] == [
        "diffusionneighbors0",
        "diffusionneighbors1",
    ]
    assert len(estimator.get_feature_names_out()) == N


def test_samples_that_diffusion_does_not_reach_are_at_distance_one(backend):
    X = np.array([[5.0, 0, 0], [5, 1, 0], [0, 5, 0.1], [0, 5, 1], [0.1, 0, 5], [0, 1, 5]])
    estimator = on(backend, n_neighbors=6, graph_neighbors=1, query_neighbors=2).fit(X)
    distances, ids = estimator.kneighbors([[5.0, 0.4, 0]])
    assert sorted(ids[0, :2]) == [0, 1]
    assert np.all(distances[0, 2:] == 1)


def test_a_query_without_any_score_is_far_from_everything(backend):
    estimator = on(backend, n_neighbors=3).fit(np.eye(4))
    distances, ids = estimator.kneighbors([[0.0] * 4])
    assert np.all(distances == 1)
    assert np.all(ids >= 0)


def test_more_neighbors_than_samples_are_refused(backend, samples):
    estimator = on(backend, n_neighbors=N).fit(samples[0])
    assert estimator.transform(samples[1]).shape == (M, N)  # all of them, itself included
    with pytest.raises(ValueError, match=f"n_neighbors must be at most {N - 1}"):
        estimator.kneighbors()
    with pytest.raises(ValueError, match=f"at most {N}, the samples there are; got {N + 1}"):
        estimator.kneighbors(samples[1], N + 1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"n_neighbors": 0}, "n_neighbors must be at least 1"),
        ({"mode": "distances"}, "mode must be one of distance, connectivity, score"),
        ({"metric": "euclidean"}, "metric must be one of cosine, precomputed"),
        ({"kernel": "rbf"}, "kernel must be one of gaussian, cosine-distance, l2, squared-l2"),
        ({"alpha": 1.5}, "alpha must lie in"),
    ],
)
def test_parameters_are_refused_by_name_and_nothing_is_fitted(samples, options, told):
    estimator = on("numpy", **options)
    with pytest.raises(ValueError, match=told):
        estimator.fit(samples[0])
    assert not hasattr(estimator, "index_")


@pytest.mark.parametrize("metric", ["cosine", "precomputed"])
@pytest.mark.parametrize("count", ["many", None, 0, -3, 2.5])
def test_a_number_of_graph_neighbors_that_is_none_is_refused(samples, metric, count):
    given = samples[0] if metric == "cosine" else kneighbors_graph(samples[0], 5, mode="distance")
    with pytest.raises((TypeError, ValueError), match=r"^graph_neighbors must be"):
        on("numpy", metric=metric, graph_neighbors=count).fit(given)


# Graphs of distances ------------------------------------------------------------------------------

KERNELS = {"cosine-distance": "cosine", "l2": "euclidean", "squared-l2": "sqeuclidean"}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("form", ["sparse", "dense"])
def test_distances_of_unit_vectors_are_their_cosines(backend, samples, kernel, form):
    X, queries = (units(part) for part in samples)
    options = {"dtype": "float64", "graph_neighbors": 6, "method": "hybrid"}
    expected = on(backend, n_neighbors=4, **options).fit(X)
    metric = KERNELS[kernel]
    if form == "sparse":
        graph = KNeighborsTransformer(n_neighbors=6, metric=metric).fit(X)
        given, asked = graph.transform(X), graph.transform(queries)
    else:
        given, asked = (distances(part, X, metric) for part in (X, queries))
    own = on(backend, n_neighbors=4, metric="precomputed", kernel=kernel, **options).fit(given)
    assert own.n_features_in_ == own.n_samples_fit_ == N
    np.testing.assert_allclose(
        dense_graph(own.index_, backend), dense_graph(expected.index_, backend), atol=1e-6
    )
    # What diffusion reaches; behind it, an index of vectors knows more.
    one, other = (
        estimator.kneighbors_graph(part, mode="score").toarray()
        for estimator, part in ((own, asked), (expected, queries))
    )
    reached = np.sum(other > 0, axis=1) == 4
    assert reached.sum() > M / 2
    np.testing.assert_allclose(one[reached], other[reached], atol=1e-5)
    wanted, scores = expected.index_.search(queries, k=N, method="hybrid")
    found, values = own.index_.rerank(*as_lists(asked, kernel), k=N, method="hybrid")
    np.testing.assert_allclose(spread(found, values), spread(wanted, scores), atol=1e-5)


def distances(left, right, metric):
    squared = np.maximum(2 - 2 * left @ right.T, 0)
    return {"cosine": squared / 2, "euclidean": np.sqrt(squared), "sqeuclidean": squared}[metric]


def dense_graph(index, backend):
    from conftest import dense

    return dense(backend, index.graph.adjacency)


def as_lists(graph, kernel):
    dense = graph.toarray() if sparse.issparse(graph) else graph
    stored = dense > 0
    rows = [
        np.flatnonzero(row)[np.argsort(line[row])] for row, line in zip(stored, dense, strict=True)
    ]
    cosines = {"cosine-distance": lambda d: 1 - d, "l2": lambda d: 1 - d**2 / 2}.get(
        kernel, lambda d: 1 - d / 2
    )
    return rows, [cosines(line[row]) for row, line in zip(rows, dense, strict=True)]


def spread(ids, scores):
    """Scores (m, n) by item, 0 for what was not found."""
    result = np.zeros((len(ids), N))
    for row, (items, values) in enumerate(zip(ids, scores, strict=True)):
        result[row, items[items >= 0]] = values[items >= 0]
    return result


def test_a_graph_may_lie_in_any_order(backend, samples):
    X, queries = samples
    graph = KNeighborsTransformer(n_neighbors=8).fit(X)
    given, asked = graph.transform(X), graph.transform(queries)
    options = {"n_neighbors": 5, "metric": "precomputed", "method": "hybrid"}
    expected = on(backend, **options).fit(given)
    wanted = expected.transform(asked).toarray()
    assert not given.has_sorted_indices  # by distance, as scikit-learn has it
    by_column, columns = given.copy(), asked.copy()
    by_column.sort_indices()
    columns.sort_indices()
    for kind in (sparse.csr_matrix, sparse.csr_array):
        other = on(backend, **options).fit(kind(by_column))
        assert other.scale_ == expected.scale_
        np.testing.assert_array_equal(other.transform(kind(columns)).toarray(), wanted)


def test_self_loops_are_left_out_and_stored_zeros_are_neighbors(backend, rng):
    X = units(clustered_vectors(rng, 30))
    X[1::2] = X[::2]  # everything twice: neighbors at a distance of 0
    with_self = KNeighborsTransformer(n_neighbors=5, metric="cosine").fit_transform(X)
    without = kneighbors_graph(X, 5, mode="distance", metric="cosine", include_self=False)
    assert np.sum(without.data < 1e-12) >= 30
    without.data[without.data < 1e-12] = 0
    with_self.data[with_self.data < 1e-12] = 0
    options = {"metric": "precomputed", "kernel": "cosine-distance", "graph_neighbors": 5}
    one, other = (on(backend, **options).fit(graph) for graph in (with_self, without))
    for estimator in (one, other):
        adjacency = dense_graph(estimator.index_, backend)
        assert np.all(np.diag(adjacency) == 0)
        pairs = adjacency[np.arange(0, 30, 2), np.arange(1, 30, 2)]
        assert np.all(pairs > 0)  # twins are joined, and most strongly
        assert np.all(pairs >= adjacency[::2].max(axis=1) * 0.5)


def test_distances_are_not_taken_for_affinities(backend):
    # A path 0 - 1 - 2 - 3 of two close pairs: what is nearer is joined by the heavier edge.
    graph = np.full((4, 4), 9.0)
    for left, right, distance in ((0, 1, 0.1), (1, 2, 1.0), (2, 3, 0.1)):
        graph[left, right] = graph[right, left] = distance
    stored = sparse.csr_matrix(np.where(graph < 9, graph, 0))
    estimator = on(backend, n_neighbors=1, metric="precomputed", graph_neighbors=2).fit(stored)
    assert estimator.kneighbors(return_distance=False)[:, 0].tolist() == [1, 0, 3, 2]


def test_radius_graphs_and_hubs_are_cut_to_what_is_asked_for(backend, samples):
    X, _ = samples
    graph = radius_neighbors_graph(X, 6.0, mode="distance")
    assert np.diff(graph.indptr).max() > 20
    estimator = on(backend, metric="precomputed", graph_neighbors=7, n_neighbors=3).fit(graph)
    nearest = on(backend, metric="precomputed", graph_neighbors=7, n_neighbors=3).fit(
        kneighbors_graph(X, 7, mode="distance")
    )
    cut = np.diff(graph.indptr) >= 7
    assert cut.mean() > 0.8
    assert np.mean(dense_graph(estimator.index_, backend)[cut] > 0) == pytest.approx(
        np.mean(dense_graph(nearest.index_, backend)[cut] > 0), rel=0.05
    )


def test_samples_without_neighbors_have_shorter_rows_and_no_made_up_ids(backend):
    pairs = sparse.csr_matrix((np.full(4, 0.5), ([0, 1, 2, 3], [1, 0, 3, 2])), shape=(5, 5))
    estimator = on(backend, n_neighbors=2, metric="precomputed").fit(pairs)
    asked = sparse.csr_matrix(([0.2], ([0], [3])), shape=(2, 5))
    rows = estimator.transform(asked)
    assert sorted(rows[0].indices) == [2, 3]
    assert rows[1].nnz == 0
    with pytest.raises(ValueError, match=r"reaches only 0 samples.*or transform"):
        estimator.kneighbors(asked)
    assert np.diff(estimator.kneighbors_graph(n_neighbors=1).indptr).tolist() == [1, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("graph", "told"),
    [
        (np.ones((3, 4)), "square"),
        (-np.ones((3, 3)), "Negative values in data: a precomputed graph must hold distances"),
        (sparse.csr_matrix(np.full((3, 3), np.nan)), "NaN"),
        (sparse.csr_matrix(([1.0, 2], [1, 1], [0, 2, 2, 2]), shape=(3, 3)), "twice"),
    ],
)
def test_graphs_of_something_else_are_refused(graph, told):
    with pytest.raises(ValueError, match=told):
        on("numpy", metric="precomputed").fit(graph)


def test_distances_of_long_vectors_are_refused_by_a_kernel_of_cosines(samples):
    graph = kneighbors_graph(samples[0] * 10, 5, mode="distance")
    with pytest.raises(ValueError, match="distances must be those of unit vectors"):
        on("numpy", metric="precomputed", kernel="l2").fit(graph)
    estimator = on("numpy", metric="precomputed").fit(graph)
    assert estimator.scale_ == pytest.approx(np.median(graph.max(axis=1).toarray()))
    # Fitted anew with another kernel, nothing of the old one is left.
    short = kneighbors_graph(units(samples[0]), 5, mode="distance")
    again = estimator.set_params(kernel="l2").fit(short)
    fresh = on("numpy", metric="precomputed", kernel="l2").fit(short)
    assert (again.transform(short) != fresh.transform(short)).nnz == 0


def test_the_gaussian_does_not_depend_on_the_unit_of_the_distances(backend, samples):
    X, queries = samples
    found = []
    for unit in (1.0, 1000.0):
        graph = KNeighborsTransformer(n_neighbors=8).fit(X * unit)
        estimator = on(backend, metric="precomputed", dtype="float64").fit(
            graph.transform(X * unit)
        )
        found.append(estimator.transform(graph.transform(queries * unit)).toarray())
    np.testing.assert_allclose(*found, atol=1e-6)


@pytest.mark.parametrize("far", [5.0, 40.0, 1e6, 1e200])
def test_a_query_far_from_all_samples_has_neighbors(backend, far):
    # A path of five samples, and a query beyond its last one: nearest first along the path.
    distances = np.abs(np.arange(5.0)[:, None] - np.arange(5.0))
    graph = sparse.csr_matrix(np.where(distances == 1, distances, 0))
    estimator = on(backend, n_neighbors=5, metric="precomputed", graph_neighbors=2).fit(graph)
    query = far + np.arange(5.0)[::-1]
    found, ids = estimator.kneighbors(query[None, :])
    if far < 1e200:  # there, all five are as near as each other
        assert ids[0].tolist() == [4, 3, 2, 1, 0]
    assert np.all(found < 1)


def test_the_gaussian_of_a_query_is_divided_by_that_of_its_nearest_sample(backend, samples):
    X, queries = samples
    graph = KNeighborsTransformer(n_neighbors=8).fit(X)
    estimator = on(backend, metric="precomputed", dtype="float64", mode="score")
    estimator.fit(graph.transform(X))
    rows = list(graph.transform(queries).toarray())
    ids = [np.flatnonzero(row)[np.argsort(row[row > 0])] for row in rows]
    gaussians = [
        np.exp(-((row[near] / estimator.scale_) ** 2) / 2)
        for row, near in zip(rows, ids, strict=True)
    ]
    ratios = [values / values[0] for values in gaussians]
    expected = estimator.index_.rerank(ids, ratios, k=5, query_neighbors=5)
    found = estimator.transform(graph.transform(queries))
    np.testing.assert_allclose(found.data.reshape(M, 5), expected.scores, rtol=1e-6)


def test_the_scale_is_that_of_samples_with_neighbors(backend):
    # Three twins at no distance say nothing of how far neighbors are; the other pair is 2 apart.
    twins = ([0, 1, 2, 3, 4], [1, 0, 1, 4, 3])
    graph = sparse.csr_matrix(([0.0, 0, 0, 2, 2], twins), shape=(5, 5))
    assert on(backend, metric="precomputed").fit(graph).scale_ == 2
    assert on(backend, metric="precomputed").fit(graph * 0).scale_ == 1


# In the company of others -------------------------------------------------------------------------


def test_it_stands_where_a_transformer_of_neighbors_stands(samples):
    X, queries = samples
    y = (X[:, 0] > 0).astype(int)
    pipeline = make_pipeline(
        StandardScaler(),
        DiffusionNeighbors(n_neighbors=6, backend="numpy"),
        KNeighborsClassifier(n_neighbors=5, metric="precomputed"),
    )
    assert pipeline.fit(X, y).predict(queries).shape == (M,)
    assert pipeline.score(X, y) > 0.8
    pipeline.set_params(diffusionneighbors__alpha=0.5)
    assert clone(pipeline)[1].alpha == 0.5
    # From distances to distances, and to those who ask for a graph of distances.
    chain = make_pipeline(
        KNeighborsTransformer(n_neighbors=15),
        DiffusionNeighbors(n_neighbors=5, metric="precomputed", backend="numpy"),
    )
    graph = chain.fit_transform(X)
    assert graph.shape == (N, N)
    assert len(DBSCAN(eps=0.9, metric="precomputed").fit_predict(graph)) == N


def test_isomap_takes_the_distances(rng):
    X = units(clustered_vectors(rng, 40, clusters=1))
    graph = DiffusionNeighbors(n_neighbors=12, backend="numpy").fit_transform(X)
    flat = Isomap(n_neighbors=11, metric="precomputed", n_components=1).fit_transform(graph)
    assert flat.shape == (40, 1)


def test_neighbors_of_its_graph_are_its_neighbors(samples):
    X, queries = samples
    estimator = DiffusionNeighbors(n_neighbors=5, backend="numpy").fit(X)
    found = NearestNeighbors(n_neighbors=5, metric="precomputed").fit(estimator.transform(X))
    np.testing.assert_array_equal(
        found.kneighbors(estimator.transform(queries), return_distance=False),
        estimator.kneighbors(queries, return_distance=False),
    )


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_names_of_columns_are_kept(samples, library):
    frames = pytest.importorskip(library)
    names = [f"feature {number}" for number in range(samples[0].shape[1])]
    X, queries = (
        frames.DataFrame({name: part[:, i] for i, name in enumerate(names)}) for part in samples
    )
    estimator = DiffusionNeighbors(n_neighbors=3, backend="numpy").fit(X)
    assert estimator.feature_names_in_.tolist() == names
    np.testing.assert_array_equal(
        estimator.kneighbors(queries)[1],
        DiffusionNeighbors(n_neighbors=3, backend="numpy")
        .fit(samples[0])
        .kneighbors(samples[1])[1],
    )
    with pytest.raises(ValueError, match="feature names"):
        estimator.kneighbors(queries[names[::-1]])


def test_copies_and_pickles_answer_alike(backend, samples):
    X, queries = samples
    estimator = on(backend, n_neighbors=3).fit(X)
    assert pickle.loads(pickle.dumps(DiffusionNeighbors(7))).n_neighbors == 7
    assert not hasattr(clone(estimator), "index_")
    wanted = estimator.kneighbors(queries)
    for other in (copy.deepcopy(on("numpy", n_neighbors=3).fit(X)), back(estimator)):
        assert other.index_.backend.name == "numpy"
        np.testing.assert_allclose(other.kneighbors(queries)[0], wanted[0], atol=1e-4)
        np.testing.assert_array_equal(other.kneighbors(queries)[1], wanted[1])
    assert estimator.index_.backend.name == backend.name


def back(estimator):
    """What comes back of an estimator that travels without its test backend."""
    return pickle.loads(pickle.dumps(estimator.set_params(backend="auto")))


def test_without_scikit_learn_the_line_to_type_is_named():
    code = "import sys; sys.modules['sklearn'] = None; import hybrid_gpu.sklearn"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert 'pip install -e ".[sklearn]"' in done.stderr
