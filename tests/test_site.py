"""The site: every public name and command is on it, and no page fetches from the network."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hybrid_gpu as hg
from hybrid_gpu import cli, datasets, evaluation

ROOT = Path(__file__).parent.parent
REFERENCE = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site_pages():
    path = ROOT / "docs" / "site_pages.py"
    spec = importlib.util.spec_from_file_location("site_pages", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def filled(site_pages, text):
    source = [text]
    site_pages.fill(None, "page", source)
    return source[0]


def public_names():
    for place in (hg, evaluation, datasets):
        yield from (f"{place.__name__}.{name}" for name in place.__all__ if name != "evaluation")


def test_every_public_name_is_in_the_reference_once(site_pages):
    page = filled(site_pages, REFERENCE)
    told = re.findall(r"^\.\. auto\w+:: (\S+)$", page, re.MULTILINE)
    assert sorted(told) == sorted(public_names())


def test_a_name_that_no_section_lists_is_shown_under_more(site_pages):
    page = filled(site_pages, REFERENCE.replace(" build_index ", " "))
    assert ".. autofunction:: hybrid_gpu.build_index\n" in page.partition("## More")[2]


def test_every_command_and_option_is_in_the_reference(site_pages):
    page = site_pages.commands()
    assert re.findall(r"^## (\S+)$", page, re.MULTILINE) == [
        (one.name or one.callback.__name__) for one in cli.app.registered_commands
    ]
    for one in ("`--method VALUE`", "| `200` |", "| required |", "`INDEX`", "| `0` |"):
        assert one in page
    # As many options as the commands have by themselves.
    for name in ("build", "search"):
        command = [sys.executable, "-m", "hybrid_gpu", name, "--help"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        options = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", done.stdout)) - {"--help"}
        part = page.split(f"## {name}\n")[1].split("\n## ")[0]
        assert options <= set(re.findall(r"--[a-z][a-z-]+", part))


def test_links_of_the_readme_are_turned_for_the_site(site_pages):
    page = site_pages.page("README.md")
    assert "](docs/" not in page
    for target in re.findall(r"\]\(([^)#]+)", page):
        there = ROOT / "docs" / target
        assert target.startswith("http") or there.exists(), target


def test_pages_that_are_not_written_yet_are_left_out_of_the_navigation(site_pages):
    assert site_pages.existing(["paper", "no-such-page", "local"]) == "paper\nlocal"


# What a page may take from the network: nothing. Links that a reader follows are another matter.
FETCHES = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)[^>]+src=["'](?:https?:)?//"""
    r"""|<link(?![^>]+rel=["'](?:canonical|next|prev|author)["'])[^>]+href=["'](?:https?:)?//"""
    r"""|@import\s+(?:url\()?["']?(?:https?:)?//|url\(["']?(?:https?:)?//"""
)


def test_what_a_page_fetches_is_noticed():
    for one in (
        '<script src="https://cdn.example/a.js">',
        "<img alt='' src='//a.example/b.png'>",
        '<link rel="stylesheet" href="https://a.example/b.css">',
        "@import url(https://a.example/font)",
        "src: url('https://a.example/b.woff2')",
    ):
        assert FETCHES.search(one), one
    for one in ('<a href="https://a.example">', '<script src="_static/a.js">', "url(#gradient)"):
        assert not FETCHES.search(one), one


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path):
    for name in ("sphinx", "myst_parser", "pydata_sphinx_theme"):
        pytest.importorskip(name)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d"]
    command += [str(tmp_path / "trees"), str(ROOT / "docs"), str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {path: path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")}
    assert len(pages) > 15
    for path, text in pages.items():
        assert not FETCHES.search(text), path
    for path in (tmp_path / "site").rglob("*.css"):
        assert not FETCHES.search(path.read_text(encoding="utf-8")), path
    reference = pages[tmp_path / "site" / "reference" / "python.html"]
    for name in public_names():
        assert f'id="{name}"' in reference, name
    # Search works from files, without a server.
    assert (tmp_path / "site" / "searchindex.js").is_file()
