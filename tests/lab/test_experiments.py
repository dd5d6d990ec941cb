"""The paper's experiments on a small benchmark: nothing is measured twice, nothing is lost."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from conftest import clustered_vectors, needs_faiss

import hybrid_gpu as hg
from hybrid_gpu import evaluation, reference
from hybrid_gpu.lab import comparison, experiments
from hybrid_gpu.lab.benchmark import Benchmark
from hybrid_gpu.lab.comparison import Trial, kept_bytes, with_leading
from hybrid_gpu.lab.experiments import Run, run_experiments
from hybrid_gpu.lab.trials import ExperimentSettings, trials_of

SMALL = ExperimentSettings(
    neighbors=8,
    rank=6,
    spectral_rank=9,
    ranks=(3, 6),
    steps=(1, 5),
    sparsities=(0.5, 0.9),
    shortlists=(0.3, 0.5),
    items_per_group=(30,),
)


def benchmark(seed=31):
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((3, 6)) * 3
    labels = rng.integers(0, 3, 130)
    vectors = (centers[labels] + rng.standard_normal((130, 6))).astype(np.float32)
    return Benchmark(
        name="three clouds",
        descriptors=vectors[:120],
        queries=vectors[120:],
        labels=labels[:120],
        query_labels=labels[120:],
    )


@pytest.fixture(scope="module", autouse=True)
def one_run_each():
    """Times do not matter here: a measurement is one run, not the best of several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "_MOST_RUNS", 1)
        patch.setattr(comparison, "_FEWEST_RUNS", 1)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run that was made once, and the folder that it left."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return run_experiments(benchmark(), folder, settings=SMALL, backend="numpy"), folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of that folder, to do something to."""
    return shutil.copytree(finished[1], tmp_path / "run")


class Counted:
    """``measure``, counted, and interrupted after some calls."""

    def __init__(self, monkeypatch, stop_after=None):
        self.trials, self._stop = [], stop_after
        self._measure = experiments.measure
        monkeypatch.setattr(experiments, "measure", self)

    def __call__(self, trial, *others):
        if len(self.trials) == self._stop:
            raise KeyboardInterrupt
        self.trials.append(trial)
        return self._measure(trial, *others)


def same_answers(one, other):
    assert one.measurements.keys() == other.measurements.keys()
    for trial, measured in one.measurements.items():
        assert measured.quality == other.measurements[trial].quality
        assert measured.agreement == other.measurements[trial].agreement


@pytest.mark.slow
def test_a_finished_run_is_not_measured_again(backend, tmp_path, monkeypatch):
    first = run_experiments(benchmark(), tmp_path / "run", settings=SMALL, backend=backend)
    counted = Counted(monkeypatch)
    again = run_experiments(benchmark(), tmp_path / "run", settings=SMALL, backend=backend)
    assert counted.trials == []
    assert again.to_json() == first.to_json()


def test_every_trial_of_every_figure_is_measured_once(tmp_path, monkeypatch):
    counted = Counted(monkeypatch)
    run = run_experiments(benchmark(), tmp_path / "run", settings=SMALL, backend="numpy")
    index = hg.build_index(benchmark().descriptors, neighbors=8, basis="none", backend="numpy")
    wanted = {one for part in trials_of(SMALL, index).values() for one in part}
    assert set(counted.trials) == set(run.measurements) == wanted
    assert len(counted.trials) == len(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("calls", [0, 4])
def test_an_interrupted_run_goes_on_where_it_was(finished, tmp_path, monkeypatch, calls):
    whole = finished[0]
    with monkeypatch.context() as patch:
        Counted(patch, stop_after=calls)
        with pytest.raises(KeyboardInterrupt):
            run_experiments(benchmark(), tmp_path / "run", settings=SMALL, backend="numpy")
    counted = Counted(monkeypatch)
    resumed = run_experiments(benchmark(), tmp_path / "run", settings=SMALL, backend="numpy")
    assert len(counted.trials) == len(whole.measurements) - calls
    same_answers(resumed, whole)


def test_a_line_that_was_cut_off_is_measured_again(finished, folder, monkeypatch):
    log = folder / "measurements.jsonl"
    log.write_bytes(log.read_bytes()[:-30])
    counted = Counted(monkeypatch)
    resumed = run_experiments(benchmark(), folder, settings=SMALL, backend="numpy")
    assert len(counted.trials) == 1
    same_answers(resumed, finished[0])
    assert all(json.loads(line) for line in log.read_text().splitlines())


def test_other_data_and_other_settings_are_refused(folder):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="a run on other data"):
        run_experiments(benchmark(seed=32), folder, settings=SMALL, backend="numpy")
    with pytest.raises(ValueError, match="with other settings"):
        run_experiments(benchmark(), folder, settings=SMALL.quick(), backend="numpy")
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    for restart in (False, True):
        with pytest.raises(ValueError, match="holds other things"):
            run_experiments(benchmark(), tmp_path, settings=SMALL, restart=restart, backend="numpy")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("part", ["descriptors", "queries"])
def test_input_that_cannot_be_ranked_leaves_no_folder(tmp_path, part):
    data = benchmark()
    getattr(data, part)[3, 2] = np.nan
    with pytest.raises(ValueError, match=f"{part} must be finite"):
        run_experiments(data, tmp_path / "a" / "run", settings=SMALL, backend="numpy")
    with pytest.raises(ValueError, match="neighbors must be at most 119"):
        run_experiments(
            benchmark(),
            tmp_path / "a" / "run",
            settings=ExperimentSettings(neighbors=120),
            backend="numpy",
        )
    strange = replace(benchmark(), query_labels=np.full(benchmark().m, 99))
    with pytest.raises(ValueError, match="no query has a relevant item"):
        run_experiments(strange, tmp_path / "a" / "run", settings=SMALL, backend="numpy")
    assert not list(tmp_path.iterdir())


@needs_faiss
def test_an_unknown_engine_leaves_no_folder(tmp_path):
    unknown = replace(SMALL, knn="fast")
    with pytest.raises(ValueError, match="knn must be 'auto', 'exact', 'faiss', 'cuvs' or a FAISS"):
        run_experiments(benchmark(), tmp_path / "a" / "run", settings=unknown, backend="numpy")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["neighbors", "rank", "spectral_rank"])
def test_settings_of_nothing_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1; got 0"):
        ExperimentSettings(**{name: 0})


def test_restarting_measures_everything_anew(folder, monkeypatch):
    counted = Counted(monkeypatch)
    run = run_experiments(benchmark(seed=32), folder, settings=SMALL, restart=True, backend="numpy")
    assert len(counted.trials) == len(run.measurements)


def test_restarting_leaves_files_of_the_users_alone(folder):
    own = {"thesis.txt": b"years of work", "labels.npy": b"mine", "work/notes.txt": b"mine too"}
    for name, content in own.items():
        (folder / name).write_bytes(content)
    run_experiments(benchmark(seed=32), folder, settings=SMALL, restart=True, backend="numpy")
    assert own == {name: (folder / name).read_bytes() for name in own}


def test_header_of_another_program_is_not_taken_for_a_run(tmp_path):
    (tmp_path / "run.json").write_text('{"settings": {}}')
    (tmp_path / "measurements.jsonl").write_text("mine")
    with pytest.raises(ValueError, match="holds other things than a run"):
        run_experiments(benchmark(), tmp_path, settings=SMALL, restart=True, backend="numpy")
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "measurements.jsonl"}


@pytest.mark.parametrize("part", ["graph", "eigenvectors"])
def test_a_run_that_was_killed_in_its_first_save_goes_on(finished, folder, part):
    (folder / "work" / part / "header.json").unlink()
    for path in (folder / "work" / part).glob("*.npy"):
        path.unlink()
    resumed = run_experiments(benchmark(), folder, settings=SMALL, backend="numpy")
    same_answers(resumed, finished[0])


def test_what_looks_like_a_header_on_its_way_is_not_written_over(tmp_path):
    (tmp_path / "run.json.tmp").write_text("mine")
    with pytest.raises(ValueError, match="holds other things"):
        run_experiments(benchmark(), tmp_path, settings=SMALL, backend="numpy")
    assert (tmp_path / "run.json.tmp").read_text() == "mine"


def test_a_damaged_header_is_told(folder):
    (folder / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json: damaged"):
        run_experiments(benchmark(), folder, settings=SMALL, backend="numpy")


def test_measurements_say_what_an_index_says(finished):
    data, run = benchmark(), finished[0]
    index = hg.build_index(data.descriptors, neighbors=8, alpha=0.99, backend="numpy")
    for trial in (Trial("nn"), Trial("temporal", steps=5)):
        ranking = index.search(data.queries, k=120, **trial.options)
        measured = run.measurements[trial]
        value = evaluation.mean_average_precision(ranking.ids, data.labels, data.query_labels)
        assert measured.quality["mAP"] == pytest.approx(100 * value)
        assert measured.quality["P@100"] == pytest.approx(
            100 * evaluation.precision(ranking.ids, data.labels, data.query_labels, at=100)
        )
        best = ranking.ids[:, :100]
        assert measured.agreement == pytest.approx(evaluation.agreement(best, exact_ids(data)))
        assert measured.bytes == kept_bytes(index, trial)
    assert run.exact.agreement == 1


def exact_ids(data):
    """The top 100 by a dense solve, ties at zero in the order of similarity."""
    affinity = reference.affinity_matrix(data.descriptors, 8)
    system = np.eye(120) - 0.99 * reference.normalize(affinity).toarray()
    similarity = reference.unit(data.queries) @ reference.unit(data.descriptors).T
    observed = np.stack([reference.observation(line) for line in similarity])
    scores = np.linalg.solve(system, observed.T).T
    scores[np.abs(scores) < 1e-12] = 0  # components that the query does not reach
    return np.lexsort((-similarity, -scores), axis=1)[:, :100]


@pytest.mark.parametrize("small", [True, False])
def test_ranks_are_cut_to_what_the_graph_has(tmp_path, monkeypatch, small):
    monkeypatch.setattr(experiments, "_DENSE_ITEMS", 200 if small else 20)
    large = ExperimentSettings(
        neighbors=8, rank=80, spectral_rank=5000, ranks=(30, 90), steps=(1, 5)
    )
    with monkeypatch.context() as patch:
        Counted(patch, stop_after=0)
        with pytest.raises(KeyboardInterrupt):
            run_experiments(benchmark(), tmp_path / "run", settings=large, backend="numpy")
    index = hg.load_index(tmp_path / "run" / "work" / "eigenvectors", backend="numpy")
    size = np.bincount(index.state.graph.components).max()
    most = size - 1 if small else size // 3
    assert index.basis.rank == most
    used = experiments._fitting(large, index)
    assert (used.rank, used.spectral_rank) == (min(80, most), most)
    assert used.ranks == tuple(dict.fromkeys((min(30, most), min(90, most))))


def test_plain_values_make_the_same_run(finished):
    run = finished[0]
    again = Run.from_json(json.loads(json.dumps(run.to_json(), allow_nan=False)))
    assert again.to_json() == run.to_json()
    assert again.settings == run.settings
    assert again.measurements.keys() == run.measurements.keys()


def test_leading_eigenvectors_are_the_first_columns(backend, rng):
    index = hg.build_index(
        clustered_vectors(rng), neighbors=6, basis="eigen", rank=12, backend=backend
    )
    few = with_leading(index, 5)
    assert few.basis.rank == 5
    whole = backend.to_numpy(index.basis.vectors)
    np.testing.assert_array_equal(backend.to_numpy(few.basis.vectors), whole[:, :5])
    assert few.basis.memory < index.basis.memory
    assert few.basis.missed <= 0
    assert with_leading(index, 12).state.basis is index.state.basis


def test_augmentation_is_measured_on_an_augmented_database(finished):
    data, run = benchmark(), finished[0]
    index = hg.build_index(
        hg.augment_database(data.descriptors, backend="numpy"), neighbors=8, backend="numpy"
    )
    ranking = index.search(data.queries, k=120, method="nn")
    value = evaluation.mean_average_precision(ranking.ids, data.labels, data.query_labels)
    measured = run.measurements[Trial("nn", augmented=True)]
    assert measured.quality["mAP"] == pytest.approx(100 * value)
