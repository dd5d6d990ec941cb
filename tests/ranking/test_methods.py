"""Every method, through the index, against the paper as written."""

import numpy as np
import pytest
import scipy.sparse as sparse
from conftest import METHODS_OF_EIGENVECTORS, clustered_vectors, path, random_affinity, two_cliques

import hybrid_gpu as hg
from hybrid_gpu import reference

ALPHA, NEIGHBORS, RANK, SHORTLIST = 0.97, 6, 12, 40
# Only hybrid has no number of steps of its own.
STEPS = {"hybrid": 5}


def indexed(vectors, backend):
    """An index that every method can be asked of."""
    index = hg.build_index(
        vectors, neighbors=6, basis="eigen", rank=8, dtype="float64", backend=backend
    )
    return index.precompute(keep=len(vectors), rtol=1e-13)


class Case:
    """The same queries for the library and for the reference."""

    def __init__(self, backend, rng, dtype):
        self.backend = backend
        self.vectors = clustered_vectors(rng)
        self.queries = clustered_vectors(rng, n=5)
        self.index = hg.build_index(
            self.vectors,
            neighbors=NEIGHBORS,
            alpha=ALPHA,
            basis="eigen",
            rank=RANK,
            dtype=dtype,
            backend=backend,
        ).precompute(keep=120, rtol={"float32": 1e-5, "float64": 1e-12}[dtype])
        self.affinity = reference.affinity_matrix(self.vectors, NEIGHBORS)
        self.adjacency = reference.normalize(self.affinity)
        self.similarity = reference.unit(self.queries) @ reference.unit(self.vectors).T
        self.observations = [reference.observation(line) for line in self.similarity]
        # The reference's own eigenvectors, so that nothing is shared.
        self.values, self.eigenvectors = reference.leading_eigenpairs(self.adjacency, RANK)

    def reference_scores(self, method):
        def score(query):
            y, similarity = self.observations[query], self.similarity[query]
            spectrum = (self.values, self.eigenvectors)
            if method == "nn":
                return similarity
            if method == "alpha-qe":
                weights = reference.observation(similarity, neighbors=10, gamma=3.0)
                expanded = reference.unit(self.queries[query : query + 1]) + (
                    weights @ reference.unit(self.vectors)
                )
                return (reference.unit(expanded) @ reference.unit(self.vectors).T)[0]
            if method == "temporal":
                return reference.temporal(self.adjacency, y, ALPHA, 20)
            if method == "truncated":
                shortlist = np.sort(np.argsort(-similarity, kind="stable")[:SHORTLIST])
                return reference.truncated(self.affinity, y, shortlist, ALPHA, 20)
            if method == "fsr":
                return reference.spectral(*spectrum, y, ALPHA)
            if method == "fsrw":
                return reference.spectral_weighted(*spectrum, y, similarity, ALPHA)
            if method == "fsr-similarity":
                return reference.spectral_on_similarity(*spectrum, y, similarity, ALPHA)
            if method == "hybrid-paper":
                return reference.hybrid(self.adjacency, *spectrum, y, ALPHA, 5)
            if method == "hybrid":
                # Projected out once, then plain conjugate gradients.
                rest = y - self.eigenvectors @ (self.eigenvectors.T @ y)
                return reference.spectral(*spectrum, y, ALPHA) + reference.temporal(
                    self.adjacency, rest, ALPHA, STEPS[method]
                )
            if method == "precomputed":
                return reference.exact(self.adjacency, y, ALPHA)
            assert method == "shybrid", f"no reference for {method}"
            sparse_vectors = reference.sparsify(self.eigenvectors, 0.9)
            return reference.hybrid(self.adjacency, self.values, sparse_vectors, y, ALPHA, 5)

        return np.stack([score(query) for query in range(5)])


@pytest.mark.parametrize("method", METHODS_OF_EIGENVECTORS)
def test_method_scores_as_the_reference_does(backend, rng, dtype, method):
    case = Case(backend, rng, dtype)
    ranking = case.index.search(
        case.queries,
        k=120,
        method=method,
        steps=STEPS.get(method),
        shortlist=SHORTLIST,
        sparsity=0.9,
    )
    assert isinstance(ranking.ids, np.ndarray)
    assert ranking.ids.shape == ranking.scores.shape == (5, 120)
    assert all(sorted(line) == list(range(120)) for line in ranking.ids.tolist())
    expected = case.reference_scores(method)
    # 100 times the unit of rounding for a fifth of a hundred steps on values below 1.
    loose = {"float32": 2e-5, "float64": 1e-9}[dtype]
    np.testing.assert_allclose(
        ranking.scores, np.take_along_axis(expected, ranking.ids, axis=1), atol=loose
    )
    descending = -np.sort(-expected, axis=1)
    np.testing.assert_allclose(ranking.scores, descending, atol=loose)
    assert ranking.report.method == method
    assert ranking.report.steps == STEPS.get(method, hg.METHODS[method].steps)


@pytest.mark.parametrize("method", METHODS_OF_EIGENVECTORS)
def test_permuting_items_permutes_scores(backend, rng, method):
    vectors, queries = clustered_vectors(rng), clustered_vectors(rng, n=3)
    order = rng.permutation(120)

    def scores(rows):
        index = indexed(rows, backend)
        ranking = index.search(queries, k=120, method=method, shortlist=30, sparsity=0.5)
        by_item = np.empty((3, 120))
        np.put_along_axis(by_item, ranking.ids, ranking.scores, axis=1)
        return by_item

    np.testing.assert_allclose(scores(vectors[order]), scores(vectors)[:, order], atol=1e-9)


@pytest.mark.parametrize("method", METHODS_OF_EIGENVECTORS)
def test_batches_give_what_single_queries_give(backend, rng, method):
    vectors, queries = clustered_vectors(rng), clustered_vectors(rng, n=7)
    index = indexed(vectors, backend)
    whole = index.search(queries, k=20, method=method, shortlist=30)
    for batch in (1, 3):
        parts = index.search(queries, k=20, method=method, shortlist=30, batch=batch)
        np.testing.assert_allclose(parts.scores, whole.scores, atol=1e-9)
        assert parts.report.batch == batch


@pytest.mark.parametrize("method", METHODS_OF_EIGENVECTORS)
def test_items_as_queries(backend, rng, method):
    index = indexed(clustered_vectors(rng), backend)
    ranking = index.search_items(np.array([5, 80]), k=120, method=method, shortlist=30)
    assert all(sorted(line) == list(range(120)) for line in ranking.ids.tolist())
    if method == "nn":  # the others may well prefer a neighbor with more neighbors of its own
        assert ranking.ids[:, 0].tolist() == [5, 80]


def test_truncated_with_the_whole_database_is_temporal(backend, rng):
    vectors, queries = clustered_vectors(rng), clustered_vectors(rng, n=4)
    index = hg.build_index(vectors, neighbors=6, basis="none", dtype="float64", backend=backend)
    whole = index.search(queries, k=60, method="truncated", shortlist=120)
    plain = index.search(queries, k=60, method="temporal")
    np.testing.assert_allclose(whole.scores, plain.scores, atol=1e-12)


def test_hybrid_paper_at_rank_zero_is_temporal(backend, rng):
    vectors, queries = clustered_vectors(rng), clustered_vectors(rng, n=4)
    index = hg.build_index(vectors, neighbors=6, basis="eigen", rank=0, backend=backend)
    hybrid = index.search(queries, k=60, method="hybrid-paper", steps=7)
    plain = index.search(queries, k=60, method="temporal", steps=7)
    np.testing.assert_array_equal(hybrid.ids, plain.ids)
    np.testing.assert_array_equal(hybrid.scores, plain.scores)


def test_sparsity_zero_is_hybrid_paper(backend, rng):
    vectors, queries = clustered_vectors(rng), clustered_vectors(rng, n=4)
    index = hg.build_index(
        vectors, neighbors=6, basis="eigen", rank=9, dtype="float64", backend=backend
    )
    sparse = index.search(queries, k=60, method="shybrid", sparsity=0.0)
    dense = index.search(queries, k=60, method="hybrid-paper")
    np.testing.assert_allclose(sparse.scores, dense.scores, atol=1e-12)


@pytest.mark.parametrize("filter", [hg.PageRank(0.9), hg.HeatKernel(3.0)])
def test_filtered_threshold_is_that_of_the_spectral_part(backend, rng, filter):
    vectors, queries = clustered_vectors(rng), clustered_vectors(rng, n=4)
    index = hg.build_index(
        vectors, neighbors=6, alpha=0.97, basis="eigen", rank=9, dtype="float64", backend=backend
    )
    host, basis = backend.to_numpy, index.basis
    values, eigenvectors = host(basis.eigenvalues), host(basis.vectors)
    excess = filter.transfer(values) - filter.transfer(np.zeros(()))
    kept = reference.sparsify(eigenvectors, 0.95, np.sqrt(np.abs(excess))).toarray()
    plain = reference.sparsify(eigenvectors, 0.95).toarray()
    assert np.any((kept != 0) != (plain != 0))
    found = basis.sparsified_for(filter, hg.Sparsity(0.95, "filtered"))
    identity = backend.asarray(np.eye(9))
    np.testing.assert_allclose(host(found.prolong(identity)), kept, atol=1e-12)
    found = basis.sparsified_for(filter, hg.Sparsity(0.95))
    np.testing.assert_allclose(host(found.prolong(identity)), plain, atol=1e-12)
    if filter.resolvent is None:
        return
    ranking = index.search(
        queries, k=120, method="shybrid", sparsity=hg.Sparsity(0.95, "filtered"), alpha=0.9
    )
    adjacency = reference.normalize(reference.affinity_matrix(vectors, 6))
    similarity = reference.unit(queries) @ reference.unit(vectors).T
    for line, ids, scores in zip(similarity, ranking.ids, ranking.scores, strict=True):
        expected = reference.hybrid(adjacency, values, kept, reference.observation(line), 0.9, 5)
        np.testing.assert_allclose(scores, expected[ids], atol=1e-9)


def test_filtered_threshold_keeps_the_slowest_vector_that_a_common_one_empties(backend):
    # A graph where everything is close to everything, and ten cliques at its border: the vector of
    # eigenvalue 1 is spread over all items, those of the cliques stand on a few.
    n, rng = 400, np.random.default_rng(23)
    weights = np.triu(rng.random((n, n)) < 0.06, 1).astype(float)
    for start in range(0, 80, 8):
        weights[start : start + 8] = 0
        weights[start : start + 8, start : start + 8] = 1
        weights[start, 80 + start] = 1
    affinity = sparse.csr_array(np.triu(weights, 1) + np.triu(weights, 1).T)
    index = hg.build_index_from_graph(affinity, alpha=0.99, basis="eigen", rank=30, backend=backend)
    counts = {}
    for threshold in ("entries", "filtered"):
        found = index.basis.sparsified_for(hg.PageRank(0.99), hg.Sparsity(0.95, threshold))
        first = backend.asarray(np.eye(30, dtype="float32")[:, :1])
        counts[threshold] = np.count_nonzero(backend.to_numpy(found.prolong(first)))
    assert counts["entries"] < 0.1 * n < 0.5 * n < counts["filtered"]


def test_sparsity_is_a_number_or_a_record(backend, rng):
    vectors = clustered_vectors(rng, n=60)
    index = hg.build_index(vectors, neighbors=8, basis="eigen", rank=6, backend=backend)
    number = index.search(vectors[:3], k=9, method="shybrid", sparsity=0.9)
    record = index.search(vectors[:3], k=9, method="shybrid", sparsity=hg.Sparsity(0.9))
    np.testing.assert_array_equal(number.scores, record.scores)
    with pytest.raises(ValueError, match=r"threshold must be one of"):
        hg.Sparsity(0.9, "smallest")
    with pytest.raises(ValueError, match=r"sparsity must lie in \[0, 1\)"):
        hg.Sparsity(1.0)


def test_similarity_below_fsr_is_exact_where_nothing_else_is_left(backend):
    # All items that are similar are observed; then all eigenvectors, and then a flat filter.
    affinity = path(12)
    ids, similarities = np.array([[2, 7]]), np.array([[0.9, 0.4]])
    whole = hg.build_index_from_graph(
        affinity, alpha=0.9, basis="eigen", rank=12, dtype="float64", backend=backend
    )
    exact = whole.rerank(ids, similarities, k=12, method="temporal", rtol=1e-12)
    found = whole.rerank(ids, similarities, k=12, method="fsr-similarity")
    np.testing.assert_allclose(by_item(found), by_item(exact), atol=1e-9)
    few = hg.with_basis(whole, "eigen", rank=3)
    flat = few.rerank(ids, similarities, k=2, method="fsr-similarity", filter=hg.Polynomial((0.5,)))
    assert flat.ids.tolist() == [[2, 7]]
    np.testing.assert_allclose(flat.scores, [[0.5 * 0.9**3, 0.5 * 0.4**3]], atol=1e-12)


def test_similarity_below_fsr_scores_what_was_found_outside_the_largest_component(backend):
    affinity = sparse.block_diag([path(12), path(6)])
    index = hg.build_index_from_graph(
        sparse.csr_array(affinity), alpha=0.8, basis="eigen", rank=4, backend=backend
    )
    ids, similarities = np.array([[14, 3]]), np.array([[0.9, 0.5]])
    spectral = index.rerank(ids, similarities, k=18, method="fsr")
    below = index.rerank(ids, similarities, k=18, method="fsr-similarity")
    assert by_item(spectral)[0, 14] == 0
    assert by_item(below)[0, 14] == pytest.approx(0.2 * 0.9**3, rel=1e-5)


def test_similarities_must_keep_their_smooth_part():
    from hybrid_gpu import datasets, evaluation

    split = datasets.split_queries(datasets.digits(), 60, seed=5)
    vectors, queries = split.database.descriptors, split.queries.descriptors
    index = hg.build_index(
        vectors, neighbors=10, alpha=0.8, basis="eigen", rank=25, backend="numpy"
    )
    basis = index.basis
    similarity = reference.unit(queries) @ reference.unit(vectors).T
    values, eigenvectors = np.asarray(basis.eigenvalues), np.asarray(basis.vectors)

    def quality(scores):
        ids = np.argsort(-scores, axis=1, kind="stable")
        return evaluation.mean_average_precision(ids, split.database.labels, split.queries.labels)

    observed = np.stack([reference.observation(line) for line in similarity])
    powered = np.maximum(similarity, 0) ** 3
    spectral = (reference.transfer(values, 0.8) * (observed @ eigenvectors)) @ eigenvectors.T
    rough = powered - (powered @ eigenvectors) @ eigenvectors.T
    taken_away = quality(spectral + 0.2 * rough)
    kept = np.stack(
        [
            reference.spectral_on_similarity(values, eigenvectors, y, line, 0.8)
            for y, line in zip(observed, similarity, strict=True)
        ]
    )
    assert taken_away < quality(similarity) - 0.1 < quality(kept) - 0.1


def test_digits_rank_better_after_diffusion():
    from hybrid_gpu import datasets, evaluation

    split = datasets.split_queries(datasets.digits(), 150, seed=5)
    index = hg.build_index(split.database.descriptors, neighbors=10)

    def quality(method):
        ranking = index.search(split.queries.descriptors, k=index.n, method=method)
        return evaluation.mean_average_precision(
            ranking.ids, split.database.labels, split.queries.labels
        )

    plain = quality("nn")
    for method in ("temporal", "hybrid"):
        assert quality(method) > plain + 0.15


@pytest.mark.parametrize("kind", ["labels", "dense", "sparse"])
def test_a_basis_across_components_hands_nothing_to_those_that_were_not_observed(
    backend, rng, dtype, kind
):
    parts = sparse.block_diag([two_cliques(5), two_cliques(7)])
    vectors = rng.standard_normal((24, 3))
    basis = {
        "labels": rng.integers(0, 3, 24),
        "dense": vectors,
        "sparse": sparse.csr_array(vectors * (rng.random((24, 3)) < 0.5)),
    }[kind]
    index = hg.build_index_from_graph(
        sparse.csr_array(parts), basis=basis, dtype=dtype, backend=backend
    )
    ranking = index.rerank([[1, -1], [12, 6]], np.array([[0.9, 0.0], [0.8, 0.5]]), k=24)
    assert [sorted(line[line >= 0].tolist()) for line in ranking.ids] == [
        [0, 1, 2, 3, 4],
        [5, 6, 7, 8, 9, *range(10, 17)],
    ]


def test_alpha_of_a_search_is_short_for_its_filter(backend, rng):
    vectors = clustered_vectors(rng, n=60)
    index = hg.build_index(vectors, neighbors=8, backend=backend)
    ids, similarities = np.array([[3, 9]]), np.array([[0.9, 0.8]])
    for search in (
        lambda **options: index.search(vectors[:4], k=9, **options),
        lambda **options: index.search_items([5, 7], k=9, **options),
        lambda **options: index.rerank(ids, similarities, k=9, **options),
    ):
        short, long = search(alpha=0.7), search(filter=hg.PageRank(0.7))
        np.testing.assert_array_equal(short.scores, long.scores)
        assert not np.allclose(short.scores, search().scores, rtol=1e-3)
        with pytest.raises(ValueError, match="alpha and filter exclude each other"):
            search(alpha=0.7, filter=hg.PageRank(0.7))
        with pytest.raises(ValueError, match="alpha must"):
            search(alpha=1.0)


@pytest.mark.parametrize("method", ["temporal", "hybrid", "truncated", "precomputed"])
def test_degree_correction_divides_scores_by_the_root_of_the_degree(backend, rng, method):
    affinity = random_affinity(rng, n=60)
    index = hg.build_index_from_graph(affinity, dtype="float64", backend=backend)
    index = index.precompute(keep=60, rtol=1e-11)
    options = {"method": method} if method == "precomputed" else {"method": method, "rtol": 1e-11}
    items = [3, 11, 58]  # the last one is isolated
    plain = index.search_items(items, k=60, **options)
    corrected = index.search_items(items, k=60, degree_correction=True, **options)
    degrees = affinity.sum(axis=1)
    factor = np.where(
        degrees > 0, np.sqrt(degrees[degrees > 0].mean() / np.maximum(degrees, 1e-9)), 1
    )
    for before, after in zip(by_item(plain), by_item(corrected), strict=True):
        np.testing.assert_allclose(after, before * factor, atol=1e-12)
    assert np.all(np.diff(np.where(corrected.ids < 0, -1, corrected.scores), axis=1) <= 0)


def by_item(ranking):
    """Scores in the order of the items; 0 for those that are not there."""
    scores = np.zeros((len(ranking.ids), 61))
    np.put_along_axis(scores, ranking.ids, np.where(ranking.ids < 0, 0, ranking.scores), axis=1)
    return scores[:, :60]


@pytest.mark.parametrize("method", ["nn", "alpha-qe"])
def test_degree_correction_of_what_does_not_diffuse_is_refused(backend, rng, method):
    vectors = clustered_vectors(rng, n=30)
    index = hg.build_index(vectors, neighbors=5, backend=backend)
    with pytest.raises(ValueError, match="has no scores of diffusion to divide"):
        index.search(vectors[:2], method=method, degree_correction=True)
    with pytest.raises(TypeError, match="degree_correction"):
        index.search(vectors[:2], degree_correction="yes")
