"""Pages that are written to folders: all of it or nothing, and nothing of the user's is lost."""

import json
import os

import numpy as np
import pytest
from hostile import hostile_index, texts
from typer.testing import CliRunner

import hybrid_gpu as hg
from hybrid_gpu.cli import app
from hybrid_gpu.explore import export
from hybrid_gpu.explore.answers import PageQuestion
from hybrid_gpu.explore.collection import Collection
from hybrid_gpu.explore.export import MANIFEST, sample_of, write_page
from hybrid_gpu.explore.png import png

QUESTIONS = [PageQuestion(item=item, k=4) for item in (0, 3)]


@pytest.fixture(scope="module")
def collection():
    index, _ = hostile_index()
    return Collection(index, texts=texts())


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_page_is_written_whole(tmp_path, collection):
    written = write_page(collection, tmp_path / "new" / "page", QUESTIONS)
    files = contents(written.folder)
    assert {"index.html", "data/start.js", "data/0.js", "data/1.js", MANIFEST} <= files.keys()
    assert written.size == sum(map(len, files.values())) - len(files[MANIFEST])
    assert (written.queries, written.copied) == (2, ())
    start = json.loads(files["data/start.js"][len(b"explorer.start(") : -len(b");\n")])
    assert [query["item"] for query in start["queries"]] == [0, 3]
    assert os.listdir(tmp_path / "new") == ["page"]


def test_the_same_page_has_the_same_bytes(tmp_path, collection):
    for name in ("a", "b"):
        write_page(collection, tmp_path / name, QUESTIONS)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_an_empty_folder_and_a_page_of_ours_are_taken(tmp_path, collection):
    place = tmp_path / "page"
    place.mkdir()
    write_page(collection, place, QUESTIONS)
    write_page(collection, place, QUESTIONS[:1])
    assert "data/1.js" not in contents(place)
    assert os.listdir(tmp_path) == ["page"]


def test_a_file_that_is_called_like_a_folder_of_a_page_is_the_user_s(tmp_path, collection):
    place = tmp_path / "page"
    place.mkdir()
    (place / "data").write_text("mine")
    with pytest.raises(ValueError, match="not of an explorer page"):
        write_page(collection, place, QUESTIONS)
    assert contents(place) == {"data": b"mine"}


@pytest.mark.parametrize("name", ["mine.txt", "data/mine.js", "pictures/mine.png", ".hidden"])
def test_a_file_of_the_user_is_never_touched(tmp_path, collection, name):
    place = tmp_path / "page"
    write_page(collection, place, QUESTIONS)
    (place / name).write_text("mine")
    before = contents(place)
    with pytest.raises(ValueError, match="not of an explorer page"):
        write_page(collection, place, QUESTIONS)
    assert contents(place) == before
    assert os.listdir(tmp_path) == ["page"]


def test_a_page_that_was_changed_is_never_replaced(tmp_path, collection):
    place = tmp_path / "page"
    write_page(collection, place, QUESTIONS)
    (place / "style.css").write_text("body { color: red }")
    with pytest.raises(ValueError, match=r"style\.css was changed"):
        write_page(collection, place, QUESTIONS)
    assert (place / "style.css").read_text() == "body { color: red }"


@pytest.mark.parametrize("manifest", ["{}", "[" * 9999, "nonsense", '{"format": "x", "files": {}}'])
def test_a_folder_of_somebody_else_is_refused(tmp_path, collection, manifest):
    place = tmp_path / "page"
    place.mkdir()
    (place / MANIFEST).write_text(manifest)
    (place / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match="Nothing was written"):
        write_page(collection, place, QUESTIONS)
    assert (place / "thesis.tex").read_text() == "years of work"


def test_a_manifest_of_somebody_else_deletes_nothing_outside_its_folder(tmp_path, collection):
    place, outside = tmp_path / "page", tmp_path / "thesis.tex"
    write_page(collection, place, QUESTIONS)
    outside.write_text("years of work")
    told = json.loads((place / MANIFEST).read_text())
    for name in ("../thesis.tex", str(outside), "data/../../thesis.tex", "a\0b", "data", ".."):
        told["files"][name] = "00"
    (place / MANIFEST).write_text(json.dumps(told))
    write_page(collection, place, QUESTIONS)
    assert outside.read_text() == "years of work"
    assert sorted(os.listdir(tmp_path)) == ["page", "thesis.tex"]


def test_an_empty_folder_of_the_user_is_not_moved_away(tmp_path, collection):
    (tmp_path / "new" / "mine").mkdir(parents=True)
    write_page(collection, tmp_path / "page", QUESTIONS)
    (tmp_path / "page" / "data" / "mine").mkdir()
    for name in ("new", "page"):
        with pytest.raises(ValueError, match=r"not of an explorer page, such as .*mine"):
            write_page(collection, tmp_path / name, QUESTIONS)
    assert (tmp_path / "new" / "mine").is_dir()
    assert sorted(os.listdir(tmp_path)) == ["new", "page"]


def test_the_folder_in_which_one_stands_is_refused(tmp_path, collection, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (".", "", f"../{tmp_path.name}"):
        with pytest.raises(ValueError, match="name another folder"):
            write_page(collection, name, QUESTIONS)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_among_the_files_is_not_waited_for(tmp_path, collection):
    place = tmp_path / "page"
    write_page(collection, place, QUESTIONS)
    (place / "style.css").unlink()
    os.mkfifo(place / "style.css")
    with pytest.raises(ValueError, match=r"style\.css was changed"):
        write_page(collection, place, QUESTIONS)


def test_links_and_files_are_no_folders(tmp_path, collection):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("mine")
    for name in ("link", "file"):
        with pytest.raises(ValueError, match="not a folder"):
            write_page(collection, tmp_path / name, QUESTIONS)
    assert os.listdir(tmp_path / "real") == []


def test_a_fault_in_between_leaves_nothing_behind(tmp_path, collection, monkeypatch):
    place = tmp_path / "page"
    write_page(collection, place, QUESTIONS)
    before = contents(place)

    def broken(*args):
        raise OSError("the disk is full")

    monkeypatch.setattr(export, "page_file", broken)
    with pytest.raises(OSError, match="disk is full"):
        write_page(collection, place, QUESTIONS)
    assert contents(place) == before
    assert os.listdir(tmp_path) == ["page"]


def test_what_comes_in_while_a_page_is_made_is_seen(tmp_path, collection):
    place = tmp_path / "page"

    def meanwhile(stage, done, total):
        place.mkdir(exist_ok=True)
        (place / "mine.txt").write_text("mine")

    with pytest.raises(ValueError, match=r"mine\.txt"):
        write_page(collection, place, QUESTIONS, progress=meanwhile)
    assert contents(place) == {"mine.txt": b"mine"}


def test_queries_are_some(tmp_path, collection):
    for questions in ([], QUESTIONS * 1001):
        with pytest.raises(ValueError, match="1 to 2000"):
            write_page(collection, tmp_path / "page", questions)
    assert sample_of(5, 10) == [0, 1, 2, 3, 4]
    assert sample_of(101, 3) == [0, 50, 100]
    assert sample_of(1, 1) == [0]


def test_what_a_page_loads_first_does_not_grow_with_the_index(tmp_path, rng):
    sizes = []
    for n in (100, 4000):
        index = hg.build_index(rng.standard_normal((n, 6)), neighbors=5, backend="numpy")
        questions = [PageQuestion(item=item, k=5) for item in sample_of(100, 5)]
        written = write_page(Collection(index), tmp_path / str(n), questions)
        sizes.append(
            [(written.folder / "data" / name).stat().st_size for name in ("start.js", "0.js")]
        )
    assert sizes[1][0] < sizes[0][0] + 50
    assert sizes[1][1] < 2 * sizes[0][1]


def explore(*arguments):
    return CliRunner().invoke(app, ["explore", *map(str, arguments)])


@pytest.fixture
def saved(tmp_path, rng):
    index = hg.build_index(rng.standard_normal((30, 6)), neighbors=5, backend="numpy")
    index.save(tmp_path / "index")
    return tmp_path / "index"


def test_the_command_tells_which_files_it_copied(tmp_path, saved):
    (tmp_path / "photos").mkdir()
    for number in range(30):
        (tmp_path / "photos" / f"{number:02}.png").write_bytes(
            png(np.full((2, 2), number, np.uint8))
        )
    done = explore(saved, "-o", tmp_path / "page", "--images", tmp_path / "photos", "--count", 3)
    assert done.exit_code == 0, done.output
    assert "files of yours" in done.output
    assert str(tmp_path / "photos" / "00.png") in done.output
    again = explore(
        *(saved, "-o", tmp_path / "page", "--images", tmp_path / "photos", "--json", "-k", 3)
    )
    told = json.loads(again.output)
    names = {os.path.basename(path) for path in told["copied"]}
    assert len(names) == len(list((tmp_path / "page" / "pictures").iterdir())) == told["items"]


def test_the_command_takes_queries_and_items(tmp_path, saved, rng):
    np.save(tmp_path / "queries.npy", rng.standard_normal((4, 6)).astype(np.float32))
    (tmp_path / "items.txt").write_text("7\n2\n")
    (tmp_path / "texts.txt").write_text("\n".join(f"text {i}" for i in range(30)))
    texts = ("--texts", tmp_path / "texts.txt")
    one = explore(saved, "-o", tmp_path / "a", "--queries", tmp_path / "queries.npy", *texts)
    assert one.exit_code == 0, one.output
    assert "Wrote 4 queries" in one.output
    assert "query 3" in (tmp_path / "a" / "data" / "start.js").read_text()
    two = explore(saved, "-o", tmp_path / "b", "--items", tmp_path / "items.txt")
    assert "Wrote 2 queries" in two.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give --output"),
        (("--live", "-o", "page"), "give --output"),
        (("--live", "--items", "x"), "--items goes with --output"),
        (("--live", "--json"), "--json goes with --output"),
        (("-o", "page", "-k", "99"), "k must be"),
        (("-o", "page", "--count", "9999"), "count must be"),
        (("-o", "page", "--texts", "nowhere.txt"), "nowhere.txt"),
        (("-o", "page", "--images", "nowhere.npy"), "nowhere.npy"),
        (("-o", "page", "--alpha", "1.5"), "alpha"),
    ],
)
def test_a_wrong_command_writes_nothing(tmp_path, saved, options, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = explore(saved, *options)
    assert done.exit_code == 2
    assert message in done.output
    assert os.listdir(tmp_path) == ["index"]


def test_a_page_never_goes_into_an_index(tmp_path, saved):
    before = sorted(os.listdir(saved))
    for place in (saved, saved / "page"):
        assert explore(saved, "-o", place).exit_code == 2
    assert sorted(os.listdir(saved)) == before
