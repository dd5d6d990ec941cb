"""The lock on one file, between descriptors of one process."""

from __future__ import annotations

import os

import pytest

import hybrid_gpu as hg
from hybrid_gpu.files import lock_file


@pytest.fixture
def lock(tmp_path):
    (tmp_path / "lock").touch()
    return tmp_path / "lock"


def opened(path):
    descriptor = lock_file.open_plain(path, os.O_RDWR)
    lock_file.hold(descriptor)
    return descriptor


def test_second_descriptor_waits_for_the_first(lock):
    first, second = opened(lock), opened(lock)
    assert lock_file.try_lock(first)
    assert not lock_file.try_lock(second)
    lock_file.release(first)
    assert not lock_file.is_held(first)
    assert lock_file.try_lock(second)
    lock_file.release(second)


def test_released_descriptor_is_closed_once(lock):
    descriptor = opened(lock)
    lock_file.release(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    lock_file.release(descriptor)  # not held any more: nothing to close


def test_file_that_was_removed_and_made_anew_is_another_one(lock):
    descriptor = opened(lock)
    assert lock_file.is_at(descriptor, lock)
    lock.unlink()
    assert not lock_file.is_at(descriptor, lock)
    lock.touch()
    assert not lock_file.is_at(descriptor, lock)
    lock_file.release(descriptor)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes here")
def test_only_plain_files_are_opened(tmp_path, lock):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(lock)
    for name in ("pipe", "link", "."):
        with pytest.raises(hg.IndexFileError, match="not a plain file"):
            lock_file.open_plain(tmp_path / name, os.O_RDWR)
