"""Files are written whole or not at all."""

from __future__ import annotations

import os

import pytest

from hybrid_gpu.files import writing
from hybrid_gpu.files.writing import replace_files, replacing, reserve_space


def _contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files_are_written_and_replaced(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"old")
    replace_files({tmp_path / "a.txt": b"new", tmp_path / "b": b""})
    assert _contents(tmp_path) == {"a.txt": b"new", "b": b""}


def test_nothing_changes_unless_everything_could_be_written(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"old")
    with pytest.raises(FileNotFoundError):
        replace_files({tmp_path / "a.txt": b"new", tmp_path / "nowhere" / "b": b"new"})
    assert _contents(tmp_path) == {"a.txt": b"old"}


def test_failed_replacing_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(source, target):
        raise OSError("no room")

    (tmp_path / "a.txt").write_bytes(b"old")
    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="no room"):
        replace_files({tmp_path / "a.txt": b"new"})
    assert _contents(tmp_path) == {"a.txt": b"old"}


def test_files_take_their_places_in_order_and_only_when_all_are_whole(tmp_path, monkeypatch):
    # A page comes after the pictures that it links to.
    seen, replace = [], os.replace

    def watch(source, target):
        seen.append((target.name, sorted(map(len, _contents(tmp_path).values()))))
        replace(source, target)

    monkeypatch.setattr("os.replace", watch)
    replace_files({tmp_path / "z.png": b"12", tmp_path / "a.html": b"123"})
    assert seen == [("z.png", [2, 3]), ("a.html", [2, 3])]


@pytest.mark.parametrize("sync", [False, True])
def test_file_takes_its_place_when_the_block_ends(tmp_path, sync):
    path, temporary = tmp_path / "a.txt", tmp_path / "a.tmp"
    path.write_bytes(b"old")
    temporary.write_bytes(b"left by a process that was killed")
    with replacing(path, temporary=temporary, sync=sync) as file:
        file.write(b"new")
        file.flush()
        assert _contents(tmp_path) == {"a.txt": b"old", "a.tmp": b"new"}
    assert _contents(tmp_path) == {"a.txt": b"new"}


def test_failed_block_leaves_the_old_file_and_nothing_else(tmp_path):
    def interrupted():
        with replacing(tmp_path / "a.txt") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    (tmp_path / "a.txt").write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert _contents(tmp_path) == {"a.txt": b"old"}


def test_replacing_follows_no_link(tmp_path):
    (tmp_path / "mine").write_bytes(b"mine")
    for name in ("a.txt", "a.tmp"):
        (tmp_path / name).symlink_to(tmp_path / "mine")
    with replacing(tmp_path / "a.txt", temporary=tmp_path / "a.tmp") as file:
        file.write(b"new")
    assert _contents(tmp_path) == {"mine": b"mine", "a.txt": b"new"}


def test_content_is_on_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    calls, rename = [], os.replace
    monkeypatch.setattr(writing, "sync_file", lambda file: calls.append("content"))
    monkeypatch.setattr(os, "replace", lambda *names: calls.append("name") or rename(*names))
    monkeypatch.setattr(writing, "sync_folder", lambda folder: calls.append(folder))
    with replacing(tmp_path / "a.txt", sync=True):
        pass
    assert calls == ["content", "name", tmp_path]


@pytest.mark.parametrize("fallocate", [True, False])
def test_reserved_space_is_zeros_behind_what_is_there(tmp_path, monkeypatch, fallocate):
    if not fallocate:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    size = (1 << 20) + 5
    with open(tmp_path / "file", "xb") as file:
        file.write(b"head")
        file.flush()
        reserve_space(file, size)
    assert _contents(tmp_path) == {"file": b"head" + bytes(size - 4)}
