"""Files that are recognized by their first bytes, and refused with advice."""

from __future__ import annotations

import pytest

from hybrid_gpu.files.array_files import load_array
from hybrid_gpu.files.ground_truth import load_ground_truth


@pytest.mark.parametrize("start", [b"", b"MATLAB 7.3 MAT-file, Platform: GLNXA64", b"Octave"])
@pytest.mark.parametrize("load", [load_array, load_ground_truth])
def test_hdf5_is_refused_with_the_way_out(tmp_path, start, load):
    start = start.ljust(512) if start else b""
    (tmp_path / "a.mat").write_bytes(start + b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(ValueError, match=r"a\.mat: .*-v7, or, .*numpy\.save"):
        load(tmp_path / "a.mat")


@pytest.mark.parametrize("load", [load_array, load_ground_truth])
def test_web_page_in_place_of_a_download_is_recognized(tmp_path, load):
    (tmp_path / "gnd.pkl").write_bytes(b"\n<!DOCTYPE html><html>404 Not Found</html>")
    with pytest.raises(ValueError, match=r"gnd\.pkl: .*a web page, so the download went wrong"):
        load(tmp_path / "gnd.pkl")
