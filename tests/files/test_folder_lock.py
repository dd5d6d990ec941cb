import os
import signal
import subprocess
import sys
import threading

import pytest
from conftest import needs_python_311

import hybrid_gpu as hg
from hybrid_gpu.files import folder_lock, lock_file
from hybrid_gpu.files.folder_lock import LOCK, own_folder

MARKED = "degrees.{}.npy"


def nothing(folder):
    return frozenset()


def own(folder, named=nothing, patience=0.0):
    return own_folder(folder, named, patience=patience)


def fails(path, work=nothing):
    """A writer that does some work and then finds no room for more."""
    with own(path) as folder:
        work(folder)
        raise OSError("no room")


def names(folder):
    return {one.name for one in folder.iterdir()}


def test_folder_is_made_and_holds_a_lock_file(tmp_path):
    with own(tmp_path / "a" / "b") as folder:
        assert folder.path.is_dir()
    assert (tmp_path / "a" / "b" / LOCK).read_bytes() == b""


def test_files_of_an_unfinished_save_are_removed_by_the_next_one(tmp_path):
    with own(tmp_path) as folder:
        mark = folder.begin()
        (tmp_path / MARKED.format(mark)).write_bytes(b"half")
        (tmp_path / f"header.json.{mark}.tmp").write_bytes(b"half")
    with own(tmp_path) as folder:
        assert folder.begin() != mark
        assert names(tmp_path) == {LOCK}


def test_files_that_the_header_names_stay_until_it_no_longer_does(tmp_path):
    with own(tmp_path) as folder:
        old = MARKED.format(folder.begin())
        (tmp_path / old).write_bytes(b"old")

    def named(_):
        return frozenset({old})

    with own(tmp_path, named) as folder:
        folder.begin()
        folder.sweep()
        assert old in names(tmp_path)
        assert (tmp_path / LOCK).read_bytes() == b""
        folder.begin()
    # The header is gone, as after a save that was killed between its header and the old files.
    with own(tmp_path) as folder:
        folder.sweep()
        assert names(tmp_path) == {LOCK}


def test_file_that_cannot_be_removed_yet_is_remembered(tmp_path, monkeypatch):
    with own(tmp_path) as folder:
        file = tmp_path / MARKED.format(folder.begin())
        file.write_bytes(b"mapped by a reader")

        def refuse(path):
            raise PermissionError

        monkeypatch.setattr(os, "unlink", refuse)
        folder.sweep()
        monkeypatch.undo()
        assert file.exists()
        folder.sweep()
        assert names(tmp_path) == {LOCK}


def test_torn_list_of_marks_is_read_as_far_as_it_goes(tmp_path):
    (tmp_path / LOCK).write_bytes(b"\n01234567\n89a\0\0")
    (tmp_path / MARKED.format("01234567")).write_bytes(b"ours")
    with own(tmp_path) as folder:
        file = tmp_path / MARKED.format(folder.begin())
        file.write_bytes(b"half")
        assert names(tmp_path) == {LOCK, file.name}
        folder.sweep()
    assert names(tmp_path) == {LOCK}


@pytest.mark.parametrize("content", [b"the user's own", b"a" * (1 << 21)])
def test_lock_file_of_somebody_else_is_left_alone(tmp_path, content):
    (tmp_path / LOCK).write_bytes(content)
    with pytest.raises(hg.IndexFileError, match="not a lock file of this library"), own(tmp_path):
        pass
    assert (tmp_path / LOCK).read_bytes() == content


@pytest.mark.parametrize("there", [True, False])
def test_link_in_the_place_of_the_lock_file_is_not_followed(tmp_path, there):
    target = tmp_path / "mine"
    if there:
        target.write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / LOCK).symlink_to(target)
    with pytest.raises(hg.IndexFileError, match="not a plain file"), own(tmp_path / "folder"):
        pass
    assert target.exists() == there


def test_lock_of_a_folder_that_was_removed_meanwhile_is_not_taken_for_the_new_ones(tmp_path):
    with own(tmp_path / "folder") as folder:
        folder.dissolve()
        assert not (tmp_path / "folder").exists()
        with own(tmp_path / "folder") as another:
            assert another.begin()


def test_lock_file_that_is_removed_while_its_lock_is_taken_is_made_anew(tmp_path, monkeypatch):
    real, removed = lock_file.try_lock, []

    def remove_once(descriptor):
        taken = real(descriptor)
        if not removed:
            removed.append(tmp_path / LOCK)
            removed[0].unlink()
        return taken

    monkeypatch.setattr(lock_file, "try_lock", remove_once)
    with own(tmp_path, patience=60.0):
        assert removed[0].exists()


def test_dissolving_removes_named_files_and_leaves_those_of_others(tmp_path):
    def named(path):
        return frozenset({"state", *(one for one in names(path) if one.startswith("array."))})

    with own(tmp_path / "folder", named) as folder:
        (folder.path / MARKED.format(folder.begin())).write_bytes(b"x")
        (folder.path / "state").write_bytes(b"x")
        (folder.path / "mine").write_bytes(b"mine")
        folder.dissolve()
        assert names(folder.path) == {"mine", LOCK}
        (folder.path / "mine").unlink()
        folder.dissolve()
    assert not (tmp_path / "folder").exists()


def test_file_system_without_locks_is_told(tmp_path, monkeypatch):
    def refuse(descriptor):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(lock_file, "try_lock", refuse)
    for folder in (tmp_path, tmp_path / "new" / "folder"):
        with pytest.raises(hg.IndexFileError, match=r"no locks.*local disk"), own(folder):
            pass
        assert not names(tmp_path)


def test_what_was_made_for_work_that_fails_goes_again(tmp_path):
    def half(folder):
        (folder.path / MARKED.format(folder.begin())).write_bytes(b"half")

    (tmp_path / "mine").mkdir()
    for path in ("mine", "mine/new/folder"):
        with pytest.raises(OSError, match="no room"):
            fails(tmp_path / path, half)
        assert names(tmp_path) == {"mine"}
        assert not names(tmp_path / "mine")


def test_folder_with_something_in_it_stays_when_work_fails(tmp_path):
    with pytest.raises(OSError, match="no room"):
        fails(tmp_path / "new", lambda folder: (folder.path / "mine").write_bytes(b"mine"))
    assert names(tmp_path / "new") == {"mine"}
    with own(tmp_path / "old"):
        pass
    with pytest.raises(OSError, match="no room"):
        fails(tmp_path / "old")
    assert names(tmp_path / "old") == {LOCK}


def test_writer_that_waits_for_one_that_fails_makes_the_folder_anew(tmp_path, monkeypatch):
    path, tried, real = tmp_path / "new" / "folder", threading.Event(), lock_file.try_lock
    monkeypatch.setattr(lock_file, "try_lock", lambda file: real(file) or bool(tried.set()))
    marks = []

    def wait():
        with own(path, patience=60.0) as folder:
            marks.append(folder.begin())

    def work(folder):
        thread.start()
        assert tried.wait(60.0)

    thread = threading.Thread(target=wait)
    with pytest.raises(OSError, match="no room"):
        fails(path, work)
    thread.join()
    assert marks
    assert names(path) == {LOCK}


@needs_python_311
def test_folder_that_cannot_be_made_is_an_error_soon(tmp_path, monkeypatch):
    def refuse(path, *mode):
        raise FileNotFoundError(2, "No such file or directory", str(path))

    # As below /proc.
    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(hg.IndexFileError, match="cannot be reached"), own(tmp_path / "new"):
        pass


def test_stranger_that_comes_and_goes_is_another_save(tmp_path, monkeypatch):
    (tmp_path / LOCK).write_bytes(b"")
    listings = iter([["array.01234567.npy", LOCK], ["array.89abcdef.npy", LOCK]])
    monkeypatch.setattr(os, "listdir", lambda path: next(listings))
    folder_lock.refuse_strangers(tmp_path, nothing)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_lock_dies_with_its_process_although_a_child_of_it_lives(tmp_path):
    script = """
import os, pathlib, signal, sys
from hybrid_gpu.files.folder_lock import own_folder
with own_folder(pathlib.Path(sys.argv[1]), lambda folder: frozenset(), patience=0.0):
    if os.fork() == 0:
        # Told by the child: its parent must not be killed before it runs.
        print(os.getpid(), flush=True)
        signal.pause()
    sys.stdin.read()
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        try:
            with pytest.raises(hg.IndexFileError, match="another process"), own(tmp_path):
                pass
            process.kill()
            process.wait()
            with own(tmp_path) as folder:
                assert folder.begin()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_copy_that_the_user_made_of_a_marked_file_is_his(tmp_path):
    with own(tmp_path) as folder:
        mark = folder.begin()
        (tmp_path / MARKED.format(mark)).write_bytes(b"half")
    for name in ("ids.backup.{}.npy", "thesis.{}.npy", "notes.json.{}.tmp"):
        copy = tmp_path / name.format(mark)
        copy.write_bytes(b"mine")
        with pytest.raises(hg.IndexFileError, match="other files"), own(tmp_path):
            pass
        assert copy.read_bytes() == b"mine"
        copy.unlink()


def test_every_name_of_a_saved_array_is_known(tmp_path):
    import numpy as np

    from hybrid_gpu.files.folder_lock import _marks_of

    vectors = np.random.default_rng(31).standard_normal((40, 5))
    bases = ("aggregate", "eigen", "sparse-eigen", np.ones((40, 2)))
    for number, basis in enumerate(bases):
        index = hg.build_index(vectors, neighbors=4, basis=basis, rank=3, backend="numpy")
        index = index.precompute(keep=5, folder=tmp_path / f"columns {number}")
        index.save(tmp_path / str(number))
        for folder in (tmp_path / f"columns {number}", tmp_path / str(number)):
            arrays = [name for name in names(folder) if name.endswith(".npy")]
            assert len(arrays) >= 2
            assert all(len(_marks_of([name])) == 1 for name in arrays)


def test_a_folder_that_comes_and_goes_meanwhile_is_no_stranger(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    # It is made right after it was looked for.
    before = type(folder).is_symlink
    monkeypatch.setattr(type(folder), "is_symlink", lambda path: path.mkdir() or before(path))
    folder_lock.refuse_strangers(folder, nothing)
    assert folder.is_dir()

    def dissolved(path):
        path.rmdir()
        raise FileNotFoundError(path)

    monkeypatch.setattr(folder_lock.os, "listdir", dissolved)
    folder_lock.refuse_strangers(folder, nothing)


def test_a_link_that_leads_nowhere_is_no_folder(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(hg.IndexFileError, match="leads nowhere"):
        folder_lock.refuse_strangers(tmp_path / "link", nothing)


def test_a_lock_file_that_two_folders_share_is_refused(tmp_path):
    first, copy = tmp_path / "first", tmp_path / "copy"
    with own(first):
        pass
    copy.mkdir()
    os.link(first / LOCK, copy / LOCK)
    for folder in (first, copy):
        with pytest.raises(hg.IndexFileError, match=r"hard link.*cp -l"), own(folder):
            pass
    (copy / LOCK).unlink()
    with own(first), own(copy):
        pass
