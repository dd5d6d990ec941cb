"""Tensors of torch and tables of pandas and polars: taken as they are, refused in their words."""

import sys
from datetime import date, datetime
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import TOLERANCE, clustered_vectors

import hybrid_gpu as hg
from hybrid_gpu.backends.numpy_backend import host_copy
from hybrid_gpu.other_arrays import readable
from hybrid_gpu.ranking.conversions import as_tensor

N, M = 40, 3


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def vectors(rng):
    """Short enough for bfloat16, so that its answers are those of float32, bit by bit."""
    return np.round(clustered_vectors(rng, N) * 4).astype(np.float32) / 4


@pytest.fixture
def index(vectors, backend):
    return hg.build_index(vectors, neighbors=5, backend=backend)


def assert_same(ranking, expected):
    np.testing.assert_array_equal(ranking.ids, expected.ids)
    # Products of arrays that lie by columns are rounded in another way.
    np.testing.assert_allclose(ranking.scores, expected.scores, rtol=TOLERANCE["float32"])


# Tensors ------------------------------------------------------------------------------------------


def tensor_of(torch, kind, vectors):
    tensor = torch.from_numpy(vectors.copy())
    return {
        "float32": lambda: tensor,
        "bfloat16": tensor.bfloat16,
        "float64": tensor.double,
        "with gradients": lambda: tensor.requires_grad_(),
        "a result": lambda: tensor.requires_grad_() * 1,
        "a parameter": lambda: torch.nn.Parameter(tensor.bfloat16()),
        "by columns": lambda: tensor.T.contiguous().T,
        "negated": lambda: torch._neg_view(-tensor),
    }[kind]()


@pytest.mark.parametrize(
    "kind",
    [
        *("float32", "bfloat16", "float64", "with gradients", "a result", "a parameter"),
        *("by columns", "negated"),
    ],
)
def test_tensors_are_taken_as_they_are(torch, backend, vectors, index, kind):
    tensor = tensor_of(torch, kind, vectors)
    expected = index.search(vectors[:M], k=5)
    assert_same(index.search(tensor[:M], k=5), expected)
    assert_same(index.search(list(tensor[:M]), k=5), expected)
    assert_same(index.search(tuple(tensor[:M]), k=5), expected)
    built = hg.build_index(tensor, neighbors=5, backend=backend)
    assert_same(built.search(vectors[:M], k=5), expected)
    lists = hg.nearest_neighbors(tensor, tensor[:M], k=5, backend="numpy")
    np.testing.assert_array_equal(
        lists.ids, hg.nearest_neighbors(vectors, vectors[:M], k=5, backend="numpy").ids
    )


def test_tensors_of_results_and_weights_are_taken_as_they_are(torch, index, rng):
    ids = np.stack([rng.permutation(N)[:4] for _ in range(M)])
    cosines = np.tile([0.875, 0.75, 0.5, 0.25], (M, 1)).astype(np.float32)  # exact in bfloat16
    items, values = torch.from_numpy(ids), torch.from_numpy(cosines).bfloat16().requires_grad_()
    assert_same(index.rerank(items, values, k=5), index.rerank(ids, cosines, k=5))
    assert_same(index.rerank(list(items), list(values), k=5), index.rerank(ids, cosines, k=5))
    assert_same(index.rerank(items[0], values[0], k=5), index.rerank(ids[:1], cosines[:1], k=5))
    assert_same(
        index.search_items(items, weights=values, k=5),
        index.search_items(ids, weights=cosines, k=5),
    )
    assert_same(index.search_items(items[:, 0], k=5), index.search_items(ids[:, 0], k=5))
    allowed = torch.arange(N) % 2 == 0
    assert_same(
        index.search_items(items[:, 0], k=5, allowed=allowed, exclude=items[:, :1]),
        index.search_items(ids[:, 0], k=5, allowed=np.arange(N) % 2 == 0, exclude=ids[:, :1]),
    )


def test_ragged_tensors_are_taken(torch, index):
    lists = [[3, 1], [7]], [[0.5, 0.25], [0.75]]
    ids, values = ([torch.tensor(row) for row in rows] for rows in lists)
    values = [row.bfloat16().requires_grad_() for row in values]
    assert_same(index.rerank(ids, values, k=5), index.rerank(*lists, k=5))


def test_float8_is_widened(torch):
    given = torch.tensor([[0.5, -2.0]]).to(torch.float8_e4m3fn)
    assert readable(given).dtype == torch.float32
    assert host_copy(given).tolist() == [[0.5, -2.0]]


def test_what_a_tensor_is_not_is_told_in_the_words_of_torch(torch, backend, index, vectors):
    tensor = torch.from_numpy(vectors[:M])
    with pytest.raises(TypeError, match=r"Cast them with queries\.float\(\)\.$"):
        index.search(tensor.int())
    with pytest.raises(TypeError, match=r"Cast them with descriptors\.float\(\)\.$"):
        hg.build_index(tensor.int(), backend=backend)
    with pytest.raises(TypeError, match=r"Cast them with ids\.long\(\)\.$"):
        index.rerank(torch.zeros((1, 1)), torch.zeros((1, 1)))
    with pytest.raises(ValueError, match=r"~torch\.isfinite\(queries\)\.all\(dim=1\)\.$"):
        index.search(tensor * torch.nan)
    with pytest.raises(ValueError, match=r"~torch\.isfinite\(descriptors\)\.all\(dim=1\)\.$"):
        hg.build_index(tensor * torch.nan, neighbors=1, backend=backend)
    with pytest.raises(ValueError, match=r"x = torch\.nn\.functional\.normalize\(x\)"):
        index.rerank(torch.tensor([[1]]), torch.tensor([[57.0]]))
    with pytest.raises(TypeError, match=r"Pass tensor\.to_dense\(\)"):
        index.search(tensor.to_sparse())
    with pytest.raises(ValueError, match=r"queries\[None, :\]"):
        index.search(tensor[0])


def test_lists_are_told_to_become_arrays(index):
    with pytest.raises(TypeError, match=r"Cast them with np\.asarray\(queries, 'float32'\)\.$"):
        index.search([[1] * 8])
    with pytest.raises(TypeError, match=r"Cast them with np\.asarray\(ids, 'int64'\)\.$"):
        index.search_items([1.5])


def test_rankings_become_tensors(torch, index, vectors):
    ranking = index.search(torch.from_numpy(vectors[:M]), k=5)
    ids, scores = ranking.to_torch()
    assert (ids.dtype, scores.dtype) == (torch.int64, torch.float32)
    assert (ids.device.type, scores.device.type) == ("cpu", "cpu")
    np.testing.assert_array_equal(ids.numpy(), ranking.ids)
    np.testing.assert_array_equal(scores.numpy(), ranking.scores)
    assert np.shares_memory(ids.numpy(), ranking.ids)
    assert ranking.to_torch(device="meta")[0].device.type == "meta"


def test_rankings_of_the_device_become_tensors_of_the_host_where_asked(torch, index, backend):
    given = backend.asarray(np.array([3, 5]))
    ranking = index.search_items(given, k=4)
    ids, scores = ranking.to_torch(device="cpu")
    np.testing.assert_array_equal(ids.numpy(), backend.to_numpy(ranking.ids))
    np.testing.assert_array_equal(scores.numpy(), backend.to_numpy(ranking.scores))


def test_a_ranking_that_may_not_be_written_to_is_copied(torch, index, vectors):
    ranking = index.search(vectors[:M], k=5)
    ranking.ids.flags.writeable = False
    ids, _ = ranking.to_torch()
    assert not np.shares_memory(ids.numpy(), ranking.ids)


class OnGpu:
    """What an array of CuPy tells of itself; its values are those of a host array."""

    def __init__(self, values, kind):
        self._values, self._kind, self.device = values, kind, SimpleNamespace(id=1)

    def get(self):
        return self._values

    def __dlpack_device__(self):
        return self._kind, 0

    def __dlpack__(self, **options):
        return self._values.__dlpack__(**options)


def test_arrays_of_a_gpu_are_handed_on_where_they_are(torch, monkeypatch):
    monkeypatch.setattr("array_api_compat.is_cupy_array", lambda array: isinstance(array, OnGpu))
    values = np.arange(3)
    tensor = as_tensor(OnGpu(values, 1))  # by DLPack; 1 is the CPU, the only device there is
    assert np.shares_memory(tensor.numpy(), values)
    copied = as_tensor(OnGpu(values, 2), "cpu")
    assert copied.tolist() == [0, 1, 2]


def test_a_gpu_that_torch_does_not_reach_is_named(torch, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("this torch reaches GPUs")
    monkeypatch.setattr("array_api_compat.is_cupy_array", lambda array: isinstance(array, OnGpu))
    with pytest.raises(hg.DeviceMismatchError, match=r"on the GPU 1, .*to_torch\(device='cpu'\)"):
        as_tensor(OnGpu(np.arange(3), 2))


def test_rankings_of_a_gpu_become_tensors(torch, gpu):
    index = hg.build_index(np.eye(6), neighbors=3, backend=gpu)
    ranking = index.search(gpu.asarray(np.eye(6)), k=2)
    if torch.cuda.is_available():
        assert ranking.to_torch()[0].device.type == "cuda"
    assert ranking.to_torch(device="cpu")[0].tolist() == gpu.to_numpy(ranking.ids).tolist()


def test_without_torch_the_line_to_type_is_named(index, monkeypatch):
    ranking = index.search_items([1], k=2)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="to_torch needs torch: pip install torch"):
        ranking.to_torch()


@pytest.mark.parametrize(("count", "expected"), [(2, "the GPU 1"), (1, "numpy"), (0, "numpy")])
def test_a_tensor_of_a_gpu_leads_to_that_gpu(torch, monkeypatch, count, expected):
    class OnGpu(torch.Tensor):
        """As far as anybody can tell, a tensor of the second GPU."""

        device = torch.device("cuda:1")

    tensor = torch.zeros(2).as_subclass(OnGpu)
    monkeypatch.setenv("HYBRID_GPU_BACKEND", "numpy")
    monkeypatch.setattr("hybrid_gpu.backends._gpu_count", lambda: count)
    monkeypatch.setattr("hybrid_gpu.backends._cupy", lambda number: f"the GPU {number}")
    found = hg.select_backend("auto", like=tensor)
    assert getattr(found, "name", found) == expected
    assert hg.select_backend("auto", like=torch.zeros(2)).name == "numpy"


# Tables -------------------------------------------------------------------------------------------

TABLES = [
    "pandas",
    "pandas, nullable",
    "pandas, mixed",
    "pandas, column",
    "polars",
    "polars, column",
]


def table_of(kind, values):
    library = pytest.importorskip(kind.split(",")[0])
    if kind == "pandas":
        return library.DataFrame(values, index=range(7, 7 + len(values)))
    if kind == "pandas, nullable":
        return library.DataFrame(values).astype("Float32")
    if kind == "pandas, mixed":
        frame = library.DataFrame(values)
        frame[0] = frame[0].astype("float64")
        return frame
    if kind == "pandas, column":
        return library.Series(list(values), index=range(7, 7 + len(values)))
    if kind == "polars":
        return library.DataFrame(values)
    return library.Series("vector", values.tolist())


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_numbers_are_descriptors_and_queries(backend, vectors, index, kind):
    expected = index.search(vectors[:M], k=5)
    assert_same(index.search(table_of(kind, vectors[:M]), k=5), expected)
    built = hg.build_index(table_of(kind, vectors), neighbors=5, backend=backend)
    assert_same(built.search(vectors[:M], k=5), expected)
    more = built.add(table_of(kind, vectors[:M]))
    assert more.n == N + M


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("keys", [[f"item-{n}" for n in range(N)], list(range(100, 100 + N))])
def test_columns_are_keys(backend, vectors, index, library, keys):
    column = pytest.importorskip(library).Series
    named = hg.build_index(vectors, neighbors=5, keys=column(keys), backend=backend)
    assert named.keys.tolist() == keys
    expected = index.search_items([4, 2], k=5)
    found = named.search_items(column([keys[4], keys[2]]), k=5, exclude=column([keys[9]]))
    np.testing.assert_array_equal(found.ids[:, 0], expected.ids[:, 0])
    assert named.remove(column(keys[:3])).keys.tolist() == keys[3:]
    assert named.add(vectors[:1], keys=column([keys[0] * 100])).n == N + 1


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_tables_of_results_are_taken(index, rng, library):
    frames = pytest.importorskip(library)
    ids = np.stack([rng.permutation(N)[:4] for _ in range(M)])
    cosines = np.sort(rng.uniform(0.3, 0.9, (M, 4)))[:, ::-1].copy()
    expected = index.rerank(ids, cosines, k=5)
    assert_same(index.rerank(frames.DataFrame(ids), frames.DataFrame(cosines), k=5), expected)
    # A column with a list for each query, all as long as each other, or not.
    both = frames.Series(ids.tolist()), frames.Series(cosines.tolist())
    assert_same(index.rerank(*both, k=5), expected)
    ragged = [ids[0].tolist(), ids[1, :2].tolist(), []]
    values = [cosines[0].tolist(), cosines[1, :2].tolist(), []]
    assert_same(
        index.rerank(frames.Series(ragged), frames.Series(values), k=5),
        index.rerank(ragged, values, k=5),
    )
    # One query: a column of ids, a column of similarities.
    one = frames.Series(ids[0]), frames.Series(cosines[0])
    assert_same(index.rerank(*one, k=5), index.rerank(ids[:1], cosines[:1], k=5))


def test_columns_of_arrow_are_taken(backend, vectors, index):
    arrow = pytest.importorskip("pyarrow")
    column = arrow.array(vectors.tolist())
    keys = arrow.array([f"item-{n}" for n in range(N)])
    built = hg.build_index(column, neighbors=5, keys=keys, backend=backend)
    assert built.keys.tolist() == keys.to_pylist()
    assert_same(built.search(column[:M], k=5), index.search(vectors[:M], k=5))


def test_what_a_table_of_pandas_is_not_is_told_in_its_words(index, vectors):
    frame = pytest.importorskip("pandas").DataFrame(vectors[:M])
    with pytest.raises(TypeError, match=r"every column; name does.*queries\.select_dtypes\('numb"):
        index.search(frame.assign(name="a"))
    with pytest.raises(TypeError, match="every column; text does"):  # text of numbers is text
        index.search(frame.assign(text="1.5"))
    with pytest.raises(TypeError, match=r"queries\.astype\('float32'\)"):
        index.search(frame.astype("int64"))
    missing = frame.astype("Float32")
    missing.iloc[0, 0] = None
    with pytest.raises(ValueError, match="queries must be finite"):
        index.search(missing)


def test_what_a_table_of_polars_is_not_is_told_in_its_words(index, vectors):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(vectors[:M])
    with pytest.raises(TypeError, match=r"queries\.select\(polars\.selectors\.numeric\(\)\)"):
        index.search(frame.with_columns(name=polars.lit("a")))
    with pytest.raises(TypeError, match=r"queries\.cast\(polars\.Float32\)"):
        index.search(frame.cast(polars.Int64))
    with pytest.raises(TypeError, match=r"Pass table\.collect\(\)"):
        index.search(frame.lazy())
    with pytest.raises(ValueError, match="queries must be finite"):
        index.search(frame.with_columns(polars.lit(None).alias("column_0").cast(polars.Float32)))
    with pytest.raises(ValueError, match="dimensions"):
        index.search(polars.Series([[1.0, 2.0]]))
    with pytest.raises(TypeError, match="queries must be floating point"):
        index.search(polars.Series([[1.0, 2.0], [1.0]]))


ODD = {
    "truth": [True, False, True],
    "date": [date(2024, 1, day) for day in (1, 2, 3)],
    "time": [datetime(2024, 1, day) for day in (1, 2, 3)],
    "text": ["1.5", "2.5", "3.5"],
    "vector": [[0.5], [0.25], [0.75]],
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    ("library", "table", "advice"),
    [
        ("pandas", "DataFrame", r"\.select_dtypes\('number'\)"),
        ("polars", "DataFrame", r"\.select\(polars\.selectors\.numeric\(\)\)"),
        ("pyarrow", "table", r"\.drop_columns\(names\)"),
    ],
)
def test_columns_of_no_numbers_are_refused_by_name(index, backend, library, table, advice, odd):
    made = getattr(pytest.importorskip(library), table)
    for columns in ({"width": [0.5, 0.25, 0.75], odd: ODD[odd]}, {odd: ODD[odd]}):
        told = f"numbers in every column; {odd} does not.*"
        with pytest.raises(TypeError, match=f"queries must have {told}queries{advice}"):
            index.search(made(columns))
        with pytest.raises(TypeError, match=f"descriptors must have {told}descriptors{advice}"):
            hg.build_index(made(columns), neighbors=1, backend=backend)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int64"])
def test_tables_of_arrow_are_taken(backend, vectors, index, kind):
    arrow = pytest.importorskip("pyarrow")
    columns = [vectors[:M, 0].round().astype(kind), *vectors[:M, 1:].T]
    table = arrow.table({f"column {i}": column for i, column in enumerate(columns)})
    assert_same(index.search(table, k=5), index.search(np.stack(columns, axis=1), k=5))


def test_names_in_a_table_of_arrow_are_edges():
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"from": ["x", "z"], "to": ["y", "x"]})
    graph = hg.build_index_from_graph(table, keys=["x", "y", "z"], backend="numpy").graph
    assert graph.degrees.tolist() == [2, 1, 1]


def test_bfloat16_of_other_libraries_is_widened(index, vectors):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    expected = index.search(vectors[:M], k=5)
    assert_same(index.search(vectors[:M].astype(ml_dtypes.bfloat16), k=5), expected)
