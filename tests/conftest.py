"""One ``backend`` and one ``dtype`` for every test, and graphs whose answers are known.

``HYBRID_GPU_TEST_BACKENDS`` chooses the backends (default ``numpy,strict``); ``plain`` is NumPy
without the native core, as is ``numpy`` with ``HYBRID_GPU_NATIVE=0``. With
``HYBRID_GPU_REQUIRE_CUDA=1`` the CuPy backend is added and must work: no skip. With
``STANDIN_LATE`` the streams of the stand-in (``tools/cupy_on_cpu``) run late; pools are watched.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sparse
from strict_backend import StrictBackend

import hybrid_gpu as hg
from hybrid_gpu.backends.native import native_core
from hybrid_gpu.backends.numpy_backend import NumpyBackend

try:
    import standin as cuda_standin
except ImportError:
    cuda_standin = None

# How streams may run: as they are, and late, where the stand-in makes them so.
LATE_MODES = ("off", "side", "default", "both", "random:7")

SEEDS = (11, 23)

# Relative tolerances: what a few hundred roundings of a well-scaled sum may add up to.
TOLERANCE = {"float32": 2e-5, "float64": 1e-10}


# The extra "test" brings no FAISS; the extras that bring one are in pyproject.toml.
needs_faiss = pytest.mark.skipif(
    importlib.util.find_spec("faiss") is None, reason="FAISS is not installed"
)


# Python 3.10 has a pathlib that keeps calls of the system to itself, and no newer matplotlib.
needs_python_311 = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="the test replaces or measures what Python 3.11 has"
)


def _backend_names() -> list[str]:
    names = os.environ.get("HYBRID_GPU_TEST_BACKENDS", "numpy,strict").split(",")
    if os.environ.get("HYBRID_GPU_REQUIRE_CUDA") == "1" and "cupy" not in names:
        names.append("cupy")
    return names


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc):
    """The tests of backends run on NumPy alone, too, where "numpy" has the native core in it."""
    marks = metafunc.definition.iter_markers("parametrize")
    chosen = hasattr(metafunc.module, "backend") or any("backend" in mark.args[0] for mark in marks)
    if "backend" not in metafunc.fixturenames or chosen:
        return
    names = _backend_names()
    of_backends = metafunc.definition.path.parent.name == "backends"
    if of_backends and "numpy" in names and native_core() is not None:
        # A mark, which takes the place of the fixture's own parameters.
        mark = pytest.mark.parametrize("backend", [*names, "plain"], indirect=True, scope="session")
        metafunc.definition.add_marker(mark)


@pytest.fixture(params=_backend_names(), scope="session")
def backend(request):
    if request.param == "strict":
        return StrictBackend()
    if request.param == "plain":
        return NumpyBackend()
    return hg.select_backend(request.param)


@pytest.fixture
def gpu():
    """The CuPy backend; a device that is required must be there."""
    try:
        return hg.select_backend("cupy")
    except hg.BackendUnavailableError as missing:
        if os.environ.get("HYBRID_GPU_REQUIRE_CUDA") == "1":
            raise
        pytest.skip(str(missing))


@pytest.fixture
def standin():
    if cuda_standin is None:
        pytest.skip("counts, limits and late streams are the stand-in's")
    return cuda_standin


@pytest.fixture(params=LATE_MODES)
def late(request, gpu):
    """Every way for streams to run; late ones need the stand-in."""
    if request.param == "off":
        yield request.param
        return
    if cuda_standin is None:
        pytest.skip("late streams are the stand-in's")
    with cuda_standin.late_streams(request.param):
        yield request.param


@pytest.fixture(scope="session", autouse=True)
def watched_pools():
    """With ``STANDIN_LATE``: memory that goes back to a pool is poisoned, as its next owner may."""
    watched = cuda_standin is not None and cuda_standin.late_mode() != "off"
    with cuda_standin.watched_pools() if watched else nullcontext():
        yield


@pytest.fixture(autouse=True)
def no_memory_goes_back_too_early():
    """On the stand-in: no pinned memory goes back to its pool while a copy uses it."""
    if cuda_standin is None:
        yield
        return
    before = released_under_copies()
    yield
    assert released_under_copies() <= before


def released_under_copies():
    return cuda_standin.counters()["released_under_copies"]


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture
def tolerance(dtype):
    return TOLERANCE[dtype]


def _seeds():
    """Several backends have a seed each: both on all of them would show the same.

    The stand-in has one of them, and the other where its streams run late: it takes its time.
    """
    if len(_backend_names()) > 1:
        return ["own"]
    if cuda_standin is None:
        return SEEDS
    return SEEDS[:1] if cuda_standin.late_mode() == "off" else SEEDS[1:]


@pytest.fixture(params=_seeds())
def rng(request):
    """Random numbers by two seeds, one for each backend, or both for the only one."""
    seed = request.param
    if seed == "own":
        callspec = getattr(request.node, "callspec", None)
        name = callspec.params.get("backend") if callspec else None
        seed = SEEDS[1] if name == "strict" else SEEDS[0]
    return np.random.default_rng(seed)


@pytest.fixture
def figures(monkeypatch):
    """Every figure, kept in the place of being saved, so that a test can look at its parts."""
    import matplotlib.figure

    made = []

    def remember(self, *args, **options):
        made.append(self)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", remember)
    return made


# The methods for an index with eigenvectors; local search has tests of its own (tests/ranking).
METHODS_OF_EIGENVECTORS = [name for name, method in hg.METHODS.items() if not method.needs_groups]


def clustered_vectors(rng, n=120, d=8, clusters=6):
    """Points around a few centers: reciprocal graphs with several components and some strays."""
    centers = rng.standard_normal((clusters, d)) * 2
    return centers[rng.integers(0, clusters, n)] + rng.standard_normal((n, d))


def random_affinity(rng, n=60, degree=5):
    """A random sparse symmetric affinity, most of it connected, with some isolated items."""
    rows = rng.integers(0, n - 5, n * degree)
    columns = rng.integers(0, n - 5, n * degree)
    weights = rng.random(n * degree) + 0.1
    one = sparse.coo_array((weights, (rows, columns)), shape=(n, n)).tocsr()
    both = sparse.csr_array(one + one.T)
    both.setdiag(0)
    both.eliminate_zeros()
    return both


def two_cliques(size=4):
    """Two complete graphs that do not know each other."""
    block = np.ones((size, size)) - np.eye(size)
    return sparse.block_diag([sparse.csr_array(block)] * 2, format="csr")


def path(n=7):
    """A line of n items: bipartite, so that -1 is an eigenvalue."""
    ones = np.ones(n - 1)
    return sparse.csr_array(sparse.diags_array([ones, ones], offsets=[-1, 1]))


def changed(index, **parts):
    """An index with other parts in its state."""
    return hg.DiffusionIndex(replace(index.state, **parts))


def dense(backend, matrix):
    """A sparse matrix of the backend as a NumPy array."""
    parts = [backend.to_numpy(part) for part in (matrix.data, matrix.indices, matrix.indptr)]
    return sparse.csr_array(tuple(parts), shape=matrix.shape).toarray()
