"""What the pages name is there: functions, tests, files, and every equation of the paper."""

import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest

import hybrid_gpu as hg

ROOT = Path(__file__).parent.parent
PATHS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAGES = {
    path.relative_to(ROOT).as_posix().removeprefix("docs/"): path.read_text(encoding="utf-8")
    for path in PATHS
}
FOLDERS = dict(zip(PAGES, (path.parent for path in PATHS), strict=True))
PAPER = PAGES["paper.md"]
MODULES = [one.name for one in pkgutil.walk_packages(hg.__path__, "hybrid_gpu.")]
# Names that stand for something in every example.
KNOWN = {"hg": [hg], "index": [hg.DiffusionIndex], "ranking": [hg.Ranking]}
FILES = (".py", ".md", ".cu", ".html", ".png", ".npy", ".npz", ".mat", ".json", ".yml", ".pkl")

EQUATIONS = re.findall(
    r"\S+",
    """laplacian temporal transfer spectral ortho w-decomp h-decomp-1 h-decomp-2 error-1 error-5
    inversion main aux hybrid h-spectral h-temporal box bound cond cond-r series 2-h-decomp
    2-error-1 2-error-4 term-pos term-zero 2-main 2-aux""",
)
FIGURES = ("analysis", "mainexp", "tradeoff", "sparse", "large_trunc")
TABLES = ("ptm", "soa")


def homes(name):
    """The modules and classes that a first word may stand for."""
    if name in KNOWN:
        return KNOWN[name]
    return [importlib.import_module(one) for one in MODULES if one.split(".")[-1] == name]


def found(dotted):
    """Whether a dotted name such as ``hg.PageRank.transfer`` or ``figures.sections_of`` exists."""
    first, *rest = dotted.split(".")
    for home in homes(first):
        value = home
        for name in rest:
            value = getattr(value, name, None)
            if value is None:
                break
        else:
            return True
    return False


def spans(page):
    """What stands in backticks, without blocks of code."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL))


def test_every_function_of_the_paper_s_page_exists():
    names = set()
    for span in spans(PAPER):
        name = span.removeprefix("import ").split("(")[0].split("[")[0]
        if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", name) and not name.endswith(FILES):
            names.add(name)
    assert len(names) > 40
    names.discard("hybrid_gpu.reference")
    assert [name for name in sorted(names) if not found(name)] == []


def test_every_method_of_the_library_is_on_the_paper_s_page():
    named = re.findall(r'hg\.METHODS\["([^"]+)"\]', PAPER)
    assert set(named) == set(hg.METHODS)


@pytest.mark.parametrize("page", PAGES)
def test_public_names_exist(page):
    for name in re.findall(r"\bhg\.[A-Za-z_]\w*", PAGES[page]):
        assert found(name), name
    for name in re.findall(r"`(index\.\w+)\(", PAGES[page]):
        assert found(name), name


def test_every_test_of_the_paper_s_page_exists():
    named = set(re.findall(r"`(tests[/\w]*)::(test_\w+)`", PAPER))
    assert len(named) > 50
    # By folder: tests may move from file to file within it.
    there = {
        (path.parent.relative_to(ROOT).as_posix(), name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    named.discard(("tests/diffusion", "test_name"))  # the page's explanation
    assert sorted(named - there) == []


def test_every_equation_figure_and_table_of_the_paper_is_on_its_page():
    for name in EQUATIONS:
        assert f"({name})" in PAPER, name
    for kind, names in (("Figure", FIGURES), ("Table", TABLES)):
        for number, name in enumerate(names, start=1):
            assert f"{kind} {number} ({name})" in PAPER


def anchors(page):
    """The names by which GitHub lets a link lead to the sections of a page."""
    titles = re.findall(r"^#+ (.+)$", PAGES[page], re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_to_sections_lead_to_one(page):
    for target, anchor in re.findall(r"\]\(([\w./-]*)#([^)]+)\)", PAGES[page]):
        there = (FOLDERS[page] / target).resolve().relative_to(ROOT).as_posix()
        assert anchor in anchors(there.removeprefix("docs/") if target else page), anchor


def test_every_departure_is_linked_from_where_the_paper_says_otherwise():
    departures = re.findall(r"^### (.+)$", PAPER, re.MULTILINE)
    linked = re.findall(r"\]\(#([^)]+)\)", PAPER.split("## Departures")[0])
    assert len(departures) > 8
    # Two have no place in the paper: it says nothing of them.
    assert len(set(linked) & anchors("paper.md")) >= len(departures) - 2


def test_the_largest_component_has_the_size_that_the_page_tells():
    lines = (ROOT / "bench" / "results" / "peers_fashion.jsonl").read_text().splitlines()
    told = json.loads(lines[-1])["settings"]
    sentence = f"{told['in the largest component']:,} of the {told['items']:,} items"
    assert sentence in " ".join(PAPER.split())


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_lead_somewhere(page):
    here = FOLDERS[page]
    text = re.sub(r"<!-- table.*?<!-- end -->", "", PAGES[page], flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not link.startswith("http"):
            assert (here / link).exists(), link
    roots = r"hybrid_gpu|kernels|tests|bench|tools|docs|\.ci"
    for path in re.findall(rf"(?<![\w./-])((?:{roots})/[\w./-]*\w)", text):
        assert (ROOT / path).exists(), path
