"""Lists of items from files: text, arrays, and what is neither."""

import numpy as np
import pytest

from hybrid_gpu.files import item_lists
from hybrid_gpu.files.item_lists import load_items


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        ("\ufeffä\n\n日本".encode(), ["ä", "", "日本"]),
        (b"\n", [""]),
        (b"", []),
        (b"7,8\n", ["7,8"]),
    ],
)
def test_lines_are_strings(tmp_path, content, lines):
    path = tmp_path / "items.txt"
    path.write_bytes(content)
    assert load_items(path, text=True) == lines


def test_lines_are_integers_where_these_are_asked_for(tmp_path):
    path = tmp_path / "items.txt"
    path.write_text("3\n-1\n 18446744073709551614\n")
    assert load_items(path, text=False) == [3, -1, 2**64 - 2]
    path.write_text("3\nfour\n")
    with pytest.raises(ValueError, match=r"items.txt: line 2 must be an integer; got 'four'"):
        load_items(path, text=False)


def test_array_files_are_arrays(tmp_path):
    mask = np.array([True, False])
    np.save(tmp_path / "mask.npy", mask)
    np.testing.assert_array_equal(load_items(tmp_path / "mask.npy", text=True), mask)


def test_what_is_no_list_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "items.txt"
    with pytest.raises(ValueError, match="no such file"):
        load_items(path, text=True)
    path.write_bytes(b"ab\xff")
    with pytest.raises(ValueError, match=r"nor text in UTF-8 \(invalid start byte at byte 2\)"):
        load_items(path, text=True)
    path.write_text("<html>gone</html>")
    with pytest.raises(ValueError, match="it is a web page"):
        load_items(path, text=True)
    path.write_text("a\nb\n")
    monkeypatch.setattr(item_lists, "available_host_bytes", lambda: 100)
    with pytest.raises(MemoryError, match="too much for the memory"):
        load_items(path, text=True)
