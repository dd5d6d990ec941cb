"""Tuning: what it measures is what a search gives, and what it chooses is not chosen by luck."""

import numpy as np
import pytest
from conftest import dense

import hybrid_gpu as hg
from hybrid_gpu import datasets, evaluation
from hybrid_gpu.graph.vectors import unit_rows
from hybrid_gpu.lab.examples import halved_examples
from hybrid_gpu.lab.tuning import _chosen, _tuning

LABELS = np.repeat([0, 1], 40)
FOUR = np.where(np.arange(80) < 4, np.arange(80) % 2, -1)
FEW = {"neighbors": (4, 8), "gammas": (3.0,), "alphas": (0.9, 0.99)}


def moons(rng, count=60, d=6, curves=4):
    """Curves that wind about each other: neighbors along a curve lead on, similarity does not."""
    angles = rng.uniform(0, 4, (curves, count))
    plane = rng.standard_normal((curves, 2, d))
    points = np.stack([np.cos(angles), np.sin(angles)], axis=2) @ plane
    vectors = points.reshape(-1, d) + 0.02 * rng.standard_normal((curves * count, d))
    return vectors, np.repeat(np.arange(curves), count)


def own_mean(index, items, labels, judged, alpha, corrected=False):
    """The mean average precision of items as queries from outside: dense, and by hand."""
    units = np.asarray(index.descriptors, np.float64)
    adjacency, root = dense(index.backend, index.graph.adjacency), np.ones(index.n)
    diffusion = (1 - alpha) * np.linalg.inv(np.eye(index.n) - alpha * adjacency)
    if corrected:
        degrees = np.asarray(index.graph.degrees, np.float64)
        root = np.sqrt(np.where(degrees > 0, degrees / degrees[degrees > 0].mean(), 1))
    values = []
    for item in items:
        cosines = units @ units[item]
        cosines[item] = -np.inf
        hits = np.argsort(-cosines, kind="stable")[:5]
        scores = diffusion[:, hits] @ np.maximum(cosines[hits], 0) ** index.gamma
        scores[scores < 1e-14] = 0  # not reached: by similarity
        order = np.lexsort((-cosines, -scores / root))
        order = order[judged[order] & (order != item)]
        right = labels[order] == labels[item]
        values.append(np.mean(np.cumsum(right)[right] / (np.flatnonzero(right) + 1)))
    return np.mean(values)


@pytest.mark.parametrize("part", [1.0, 0.4])
@pytest.mark.parametrize("corrected", [False, True])
def test_a_row_is_what_a_search_gives(rng, part, corrected):
    vectors, labels = moons(rng, count=45)
    judged = rng.random(len(labels)) < part
    given = np.where(judged, labels, -1)
    tuning = hg.tune(vectors, given, **FEW, backend="numpy", dtype="float64")
    wanted = hg.Setting("hybrid", 8, 3.0, 0.99, corrected)
    index = hg.build_index(vectors, neighbors=8, dtype="float64", backend="numpy", alpha=0.99)
    every = [item for item in np.flatnonzero(judged) if (given == labels[item]).sum() > 1]
    expected = own_mean(index, every, labels, judged, 0.99, corrected)
    assert f"{len(every)} queries among {judged.sum()} labeled" in tuning.source
    assert tuning.row(wanted).value == pytest.approx(expected, abs=4e-3)


def test_plain_search_is_measured_without_the_query_itself(rng):
    vectors, labels = moons(rng)
    tuning = hg.tune(vectors, labels, **FEW, sample=240, backend="numpy", dtype="float64")
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    products = units @ units.T
    np.fill_diagonal(products, -np.inf)
    expected = evaluation.mean_average_precision(
        evaluation.ranked(products), labels, labels, ignore=np.arange(len(labels))
    )
    assert tuning.row(hg.Setting("nn")).value == pytest.approx(expected, abs=1e-9)


def test_the_choice_is_the_same_on_every_backend_and_for_a_seed(backend, rng):
    vectors, labels = moons(rng, count=30)
    host = hg.tune(vectors, labels, **FEW, seed=5, backend="numpy")
    same = hg.tune(vectors, labels, **FEW, seed=5, backend=backend)
    assert [row.setting for row in same.rows] == [row.setting for row in host.rows]
    np.testing.assert_allclose(
        [row.value for row in same.rows], [row.value for row in host.rows], atol=1e-6
    )
    assert (same.best, same.default, same.source) == (host.best, host.default, host.source)
    again = hg.tune(vectors, labels, **FEW, seed=5, backend="numpy")
    assert again.rows == host.rows
    assert repr(again.expected) == repr(host.expected)


def test_lists_of_relevant_items_are_the_same_as_labels(rng):
    vectors, labels = moons(rng)
    items = np.arange(0, len(labels), 3)
    relevant = [np.flatnonzero(labels == labels[item]) for item in items]
    options = {**FEW, "backend": "numpy", "gammas": (1.0,)}
    listed = hg.tune(vectors, queries=items, relevant=relevant, **options)
    index = hg.build_index(vectors, neighbors=8, gamma=1.0, backend="numpy")
    judged = np.ones(len(labels), bool)
    expected = own_mean(index, items, labels, judged, 0.9)
    found = listed.row(hg.Setting("hybrid", 8, 1.0, 0.9, False)).value
    assert found == pytest.approx(expected, abs=1e-2)
    # So many of them as are wanted, drawn by the seed, and not the first ones.
    some = hg.tune(vectors, queries=items, relevant=relevant, sample=20, **options)
    assert some.source.startswith("20 queries")
    first = hg.tune(vectors, queries=items[:20], relevant=relevant[:20], **options)
    assert some.row(hg.Setting("nn")).value != first.row(hg.Setting("nn")).value


def test_queries_from_outside_are_searched(rng):
    vectors, labels = moons(rng)
    outside = np.arange(0, len(labels), 4)
    inside = np.setdiff1d(np.arange(len(labels)), outside)
    relevant = [np.flatnonzero(labels[inside] == labels[item]) for item in outside]
    tuning = hg.tune(
        vectors[inside], queries=vectors[outside], relevant=relevant, **FEW, backend="numpy"
    )
    setting = hg.Setting("hybrid", 8, 3.0, 0.9, True)
    index = hg.build_index(vectors[inside], backend="numpy", **setting.build)
    ranking = index.search(vectors[outside], k=index.n, **setting.search)
    expected = evaluation.mean_average_precision_of_lists(ranking.ids, relevant)
    assert tuning.row(setting).value == pytest.approx(expected, abs=2e-3)
    plain = index.search(vectors[outside], k=index.n, method="nn")
    expected = evaluation.mean_average_precision_of_lists(plain.ids, relevant)
    assert tuning.row(hg.Setting("nn")).value == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("measure", ["P@10", "nDCG@10", "MRR"])
def test_other_measures(rng, measure):
    vectors, labels = moons(rng)
    tuning = hg.tune(vectors, labels, measure=measure, **FEW, sample=240, backend="numpy")
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    products = units @ units.T
    ids = evaluation.ranked(products)
    functions = {
        "P@10": lambda *data, **more: evaluation.precision(*data, at=10, **more),
        "nDCG@10": lambda *data, **more: evaluation.ndcg(*data, at=10, **more),
        "MRR": evaluation.mean_reciprocal_rank,
    }
    expected = functions[measure](ids, labels, labels, ignore=np.arange(len(labels)))
    assert tuning.row(hg.Setting("nn")).value == pytest.approx(expected, abs=1e-3)
    assert measure in repr(tuning)


def test_where_diffusion_helps_it_is_chosen_and_where_labels_mean_nothing_it_is_not(rng):
    vectors, labels = moons(rng)
    tuning = hg.tune(vectors, labels, backend="numpy", gammas=(), neighbors=(5, 30))
    assert tuning.best.method == "hybrid"
    assert tuning.row(tuning.best).value > tuning.row(hg.Setting("nn")).value + 0.05
    # Labels by lot: no setting is better than another but by luck.
    lots = rng.integers(0, 4, len(labels))
    lucky = hg.tune(vectors, lots, backend="numpy", sample=100, gammas=(), neighbors=(5, 30))
    assert lucky.row(lucky.best).gain < 0.01


def test_luck_is_not_a_gain():
    rng = np.random.default_rng(83)
    # Settings of one family move together, as neighboring numbers of neighbors do, or each on its
    # own; and most queries are indifferent.
    for together, alone, part in ((0.1, 0.01, 1.0), (0.0, 0.1, 1.0), (0.05, 0.1, 0.3)):
        taken = 0
        for trial in range(50):
            common = together * rng.standard_normal((1, 40))
            gains = (common + alone * rng.standard_normal((60, 40))) * (rng.random(40) < part)
            gains[4] = 0
            taken += _chosen(gains, 4, trial) != 4
            gains[7] += 0.25  # and now one is better
            assert _chosen(gains, 4, trial) == 7
        assert taken <= 7  # 5 of 100, and what 50 trials may add to that


def test_what_is_expected_is_what_others_chose():
    rng = np.random.default_rng(47)
    default = hg.Setting("hybrid", 15, 3.0, 0.9, False)
    other = hg.Setting("hybrid", 10, 3.0, 0.9, False)
    values = {default: np.full(40, 0.5), other: 0.5 + 0.02 * rng.standard_normal(40)}
    values[other][:12] += 0.3
    found = _tuning(values, default, "mAP", "40 queries", 5, seed=3)
    assert found.best == other
    turn = np.random.default_rng(3).permutation(40) % 5
    honest = np.empty(40)
    table = np.stack(list(values.values()))
    for fold in range(5):
        inside = turn == fold
        gains = table[:, ~inside] - table[0, ~inside]
        honest[inside] = table[_chosen(gains, 0, 3), inside]
    assert found.expected.mean == pytest.approx(honest.mean())
    assert found.by_default.mean == 0.5
    # Five of ten queries gain, and all ten choose the other setting. Without one of the five, the
    # rest does not: what they gained is not expected of others.
    few = {default: np.full(10, 0.5), other: np.full(10, 0.5)}
    few[other][:5] += 0.4
    tight = _tuning(few, default, "mAP", "10 queries", 10, seed=3)
    assert tight.best == other
    assert tight.expected.mean < tight.row(other).value - 0.1


def test_the_largest_of_the_sure_gains_is_taken():
    rng = np.random.default_rng(61)
    gains = np.zeros((3, 60))
    gains[1] = 0.02 + 0.001 * rng.standard_normal(60)
    gains[2] = 0.2 + 0.1 * rng.standard_normal(60)
    assert _chosen(gains, 0, 5) == 2


def test_without_labels_the_answers_come_from_the_other_half(backend, rng):
    units = unit_rows(backend.asarray(rng.standard_normal((40, 6))), backend)
    first, examples = halved_examples(units, 12, 7, backend)
    host = backend.to_numpy(units)
    rotation, _ = np.linalg.qr(np.random.default_rng(7).standard_normal((6, 6)))
    halves = np.split(host @ rotation, 2, axis=1)
    halves = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in halves]
    np.testing.assert_allclose(backend.to_numpy(first), halves[0], atol=1e-12)
    products = halves[1] @ halves[1].T
    np.fill_diagonal(products, -np.inf)
    assert len(examples.items) == 12
    for item, relevant in zip(examples.items, examples.relevant, strict=True):
        assert set(relevant) == set(np.argsort(-products[item])[:10])


def test_the_default_is_what_a_build_does_with_and_without_labels():
    data = datasets.digits()
    for count in (400, 900):
        x, labels = data.descriptors[:count], data.labels[:count]
        expected = hg.build_index(x, backend="numpy").state.origin.neighbors
        options = {"neighbors": (10,), "gammas": (), "alphas": (), "backend": "numpy"}
        assert hg.tune(x, labels, **options).default.neighbors == expected
        assert hg.tune(x, **options).default.neighbors == expected


def test_items_without_a_positive_neighbor_come_by_similarity():
    labels = np.repeat(np.arange(4), 20)
    tuning = hg.tune(np.eye(80), labels, **FEW, backend="numpy")
    values = {row.setting.method: row.value for row in tuning.rows}
    assert values["hybrid"] == pytest.approx(values["nn"])
    vectors, _ = moons(np.random.default_rng(5), count=20)
    vectors[::7] = 0
    some = np.where(np.arange(80) % 3 == 0, -1, labels)
    assert 0 < hg.tune(vectors, some, **FEW, backend="numpy").expected.mean < 1


def test_engines_that_estimate_similarities_are_taken(rng):
    pytest.importorskip("faiss")
    vectors, labels = moons(rng)
    with pytest.warns(UserWarning, match="of the true neighbors"):
        tuning = hg.tune(vectors, labels, **FEW, knn="PQ3x4", backend="numpy")
    assert "knn='PQ3x4'" in tuning.code


def test_without_labels_only_the_number_of_neighbors_is_chosen(rng):
    vectors, _ = moons(rng)
    tuning = hg.tune(vectors, backend="numpy", **FEW)
    ways = {(row.setting.gamma, row.setting.alpha) for row in tuning.rows}
    assert ways == {(3.0, 0.9)}
    assert {row.setting.neighbors for row in tuning.rows} >= {4, 8}
    assert all(row.setting.degree_correction is False for row in tuning.rows)
    assert "other half" in tuning.source
    assert hg.tune(vectors, backend="numpy", **FEW).rows == tuning.rows


def test_the_code_that_is_printed_runs(rng):
    vectors, labels = moons(rng)
    tuning = hg.tune(vectors, labels, backend="numpy", **FEW)
    assert repr(tuning).endswith(tuning.code)
    names = {"hg": hg, "descriptors": vectors, "queries": vectors[:5]}
    exec(tuning.code, names)
    assert names["ranking"].ids.shape == (5, 100)
    if tuning.best != tuning.default:
        assert names["index"].state.origin.neighbors == tuning.best.neighbors
        assert names["index"].alpha == tuning.best.alpha


def test_labels_of_every_kind(rng):
    vectors, labels = moons(rng, count=20)
    words = np.array(["a", "b", "c", "d"])[labels]
    expected = hg.tune(vectors, labels, **FEW, backend="numpy").rows
    some = labels.astype(float)
    some[::3] = np.nan
    part = [None if i % 3 == 0 else str(word) for i, word in enumerate(words)]
    blank = ["" if word is None else word for word in part]
    gone = np.where(np.arange(80) % 3 == 0, -1, labels)
    mixed = [(np.nan, None, "", -1)[i % 4] if i % 3 == 0 else str(w) for i, w in enumerate(words)]
    objects = np.array(gone.tolist(), dtype=object)
    objects[:2] = np.int64(-1), np.int64(objects[1])
    assert hg.tune(vectors, words, **FEW, backend="numpy").rows == expected
    assert hg.tune(vectors, list(words), **FEW, backend="numpy").rows == expected
    kinds = [
        hg.tune(vectors, kind, **FEW, backend="numpy").rows
        for kind in (some, part, blank, gone, mixed, objects)
    ]
    assert kinds[1:] == kinds[:-1]


def test_a_picture_is_drawn(rng, tmp_path):
    pytest.importorskip("matplotlib")
    vectors, labels = moons(rng, count=20)
    tuning = hg.tune(vectors, labels, **FEW, backend="numpy")
    tuning.plot(tmp_path / "tuning.svg")
    text = (tmp_path / "tuning.svg").read_text()
    assert "neighbors" in text
    assert "alpha 0.99" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": np.arange(80)}, "at least two items a label that another item has"),
        ({"labels": np.zeros(80)}, "of two classes at least"),
        ({"labels": [[1]] * 80}, "labels must be one for each"),
        ({"labels": LABELS, "dtype": "int32"}, "dtype"),
        ({"queries": np.ones(6), "relevant": [[0]] * 6}, "Reshape one descriptor"),
        ({"queries": [3, 3], "relevant": [[0], [1]]}, "each item once"),
        ({"labels": FOUR, "measure": "P@10"}, "looks at 10 results, and only 3 items"),
        ({"labels": LABELS, "alphas": (1 - 1e-9,)}, "alpha"),
        ({"labels": np.arange(7)}, "labels must be one for each of the 80 items"),
        ({"queries": np.arange(3)}, "queries and relevant go together"),
        ({"relevant": [[1]]}, "queries and relevant go together"),
        ({"labels": np.zeros(80), "queries": [1], "relevant": [[1]]}, "not both"),
        ({"queries": [0, 1], "relevant": [[1], [99]]}, "relevant must be ids of the 80 items"),
        ({"queries": [0, 1], "relevant": [[0], [1]]}, "known for at least two queries; got 0"),
        ({"queries": np.ones((2, 3)), "relevant": [[0], [1]]}, "the database's 6 dimensions"),
        ({"labels": LABELS, "measure": "mAp"}, "measure must be one of"),
        ({"labels": LABELS, "folds": 1}, "folds must be at least 2"),
        ({"labels": LABELS, "alphas": (1.0,)}, "alpha must lie in"),
        ({"labels": LABELS, "neighbors": (0,)}, "neighbors must be at least 1"),
    ],
)
def test_bad_input_is_refused(options, message):
    vectors, _ = moons(np.random.default_rng(3), count=20)
    with pytest.raises(ValueError, match=message):
        hg.tune(vectors, backend="numpy", **options)


def test_progress_is_told(rng):
    vectors, labels = moons(rng, count=20)
    told = []
    hg.tune(vectors, labels, **FEW, backend="numpy", progress=lambda *line: told.append(line))
    tuning = [line[1:] for line in told if line[0] == "tuning"]
    assert tuning[0][0] == 0
    assert tuning[-1] == (tuning[-1][1], tuning[-1][1])
    assert [done for done, _ in tuning] == list(range(len(tuning)))


def test_digits_gain_by_forty_labels():
    data = datasets.digits()
    rng = np.random.default_rng(29)
    shuffled = rng.permutation(data.n)
    outside, inside = shuffled[:150], shuffled[150:]
    labels = np.full(inside.size, -1)
    known = rng.choice(inside.size, 60, replace=False)
    labels[known] = data.labels[inside][known]
    grid = {"neighbors": (5, 20, 50), "gammas": ()}
    tuning = hg.tune(data.descriptors[inside], labels, backend="numpy", **grid)

    def value(setting):
        index = hg.build_index(data.descriptors[inside], backend="numpy", **setting.build)
        ids = index.search(data.descriptors[outside], k=index.n, **setting.search).ids
        return evaluation.mean_average_precision(ids, data.labels[inside], data.labels[outside])

    assert value(tuning.best) > value(tuning.default) - 0.01
    assert value(tuning.default) > value(hg.Setting("nn")) + 0.15
