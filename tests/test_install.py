"""What pages, messages and files say about installing agrees with pyproject.toml."""

import importlib.util
import re
from pathlib import Path

import pytest

from hybrid_gpu.errors import install_line

tomllib = pytest.importorskip("tomllib")  # comes with Python 3.11

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
ENVIRONMENT = (ROOT / "environment.yml").read_text(encoding="utf-8")
CHOICES = {"faiss", "cuda12", "cuda13"}
PLACES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "environment.yml")),
    *(ROOT / name for name in (".ci/run", ".ci/long", ".pre-commit-config.yaml")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(
        path
        for folder in ("hybrid_gpu", "bench", "tools", "tests")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".md") and path != Path(__file__)
    ),
]
TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in PLACES}


def named_extras(text):
    """The extras of every ``.[a,b]``, as the sets that are installed together."""
    lines = re.findall(r"""["'`]\.\[([a-z][a-z0-9,]+)\]""", text.replace("\\", ""))
    lines += re.findall(r"""install_line\(["']([\w-]+)["']\)""", text)
    return [set(names.split(",")) for names in lines]


@pytest.fixture(scope="module")
def check_extras():
    path = ROOT / "tools" / "check_extras.py"
    spec = importlib.util.spec_from_file_location("check_extras", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packages(requirements):
    """Names and bounds, without extras and markers."""
    plain = [re.sub(r"\[.*?\]", "", one.partition(";")[0]).strip() for one in requirements]
    return dict(re.fullmatch(r"([\w-]+)(.*)", one).groups() for one in plain)


def closure(extra):
    """The requirements of an extra and of the extras that it names."""
    found = []
    for one in EXTRAS[extra]:
        own = re.match(r"hybrid-gpu\[(.*?)\]", one)
        if own is None:
            found.append(one)
        else:
            found += [each for name in own[1].split(",") for each in closure(name)]
    return found


def test_every_install_line_names_extras_that_exist_and_one_choice_at_most():
    seen = set()
    for place, text in TEXTS.items():
        for names in named_extras(text):
            assert names <= set(EXTRAS), place
            assert len(names & CHOICES) <= 1, place
            seen |= names
    assert seen >= {"cuda12", "demo", "dev", "faiss", "peers", "plots", "test"}
    for extra in CHOICES:
        assert f"| `{extra}` |" in TEXTS["docs/gpu.md"]


def test_install_lines_are_for_a_clone():
    assert install_line("plots") == 'in a clone of hybrid-gpu: pip install -e ".[plots]"'
    for place, text in TEXTS.items():
        assert not re.search(r"""pip install (-\S+ )*["']?hybrid-gpu\b""", text), place
    assert "not on PyPI" in " ".join(TEXTS["README.md"].split())


def test_only_the_three_choices_bring_a_faiss_or_a_cupy():
    for extra in EXTRAS:
        builds = [one for one in packages(closure(extra)) if one.startswith(("faiss", "cupy"))]
        assert bool(builds) == (extra in CHOICES), extra
    assert not any(one.startswith(("faiss", "cupy")) for one in packages(PROJECT["dependencies"]))


@pytest.mark.parametrize("system", ["linux", "win32"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("extra", sorted(CHOICES))
def test_each_choice_brings_one_faiss(check_extras, extra, machine, system):
    place = {"sys_platform": system, "platform_machine": machine}
    taken = []
    for requirement in EXTRAS[extra]:
        name, _, marker = requirement.partition(";")
        # Markers of this project are Python, but for the names.
        if name.startswith("faiss") and (not marker or eval(marker.strip(), {}, place)):
            taken.append(re.match(r"[\w-]+", name)[0])
    assert len(taken) == 1
    if system == "linux":
        assert set(taken) <= check_extras.CHOICES[extra, machine]


def test_the_cupy_that_is_refused_is_refused_everywhere():
    assert ">=14,!=14.1.0" in packages(EXTRAS["cuda12"])["cupy-cuda12x"]
    assert ">=14,!=14.1.0" in packages(EXTRAS["cuda13"])["cupy-cuda13x"]
    assert "  - cupy>=14,!=14.1.0\n" in ENVIRONMENT


def test_the_sets_that_ci_resolves_are_judged(check_extras):
    expected = {"faiss-cpu", "cupy-cuda12x"}
    good = {"faiss-cpu": "1.15.1", "cupy-cuda12x": "14.2.0", "numpy": "2.2.6"}
    assert check_extras.faults_of(good, expected) == []
    assert check_extras.faults_of(good | {"faiss-gpu": "1.15.1"}, expected)
    assert check_extras.faults_of(good | {"cupy-cuda12x": "14.1.0"}, expected)
    assert {name for name, _ in check_extras.CHOICES} == CHOICES


def test_conda_installs_what_the_package_needs_so_that_pip_adds_nothing():
    head, _, listed = ENVIRONMENT.partition("dependencies:\n")
    assert re.search(r"^name: hybrid-gpu\nchannels:\n  - conda-forge\n$", head, re.MULTILINE)
    plain, _, _ = listed.partition("  - pip:\n")
    assert all(re.fullmatch(r"  - [\w-]+[\w.,<>=!]*", line) for line in plain.splitlines())
    found = packages(line.removeprefix("  - ") for line in plain.splitlines())
    needed = packages(PROJECT["dependencies"]) | packages(closure("test"))
    assert {name: found.get(name) for name in needed} == needed
    assert {"cupy", "faiss-gpu", "nvtx", "pip"} <= set(found)
    assert not {"faiss", "faiss-cpu"} & set(found)


def test_pip_gets_from_conda_one_option_a_line(check_extras):
    assert check_extras.pip_lines(ENVIRONMENT) == ["--editable ."]
