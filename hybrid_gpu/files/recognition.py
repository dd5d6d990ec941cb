"""What a file is, judged by its first bytes, before anything else of it is read."""

from __future__ import annotations

from pathlib import Path

NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGIC = b"PK"
MAT_MAGIC = b"MATLAB 5.0 MAT-file"
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
# MATLAB puts 512 bytes of its own before the HDF5 signature of a v7.3 file.
_START_BYTES = 512 + len(_HDF5_MAGIC)
# One byte that zlib packed never unpacks to more bytes than this.
LARGEST_PACKING = 1040


def read_start(file: Path, expected: str) -> bytes:
    """The first bytes of a file.

    Parameters
    ----------
    expected
        What the caller is looking for, such as ``"an array file"``; used in error messages.

    Raises
    ------
    ValueError
        If there is no such file, or it is an HDF5 file, which nothing here can read.
    """
    if not file.is_file():
        reason = f"a folder, not {expected}" if file.is_dir() else "no such file"
        raise ValueError(f"{file}: {reason}.")
    with open(file, "rb") as stream:
        start = stream.read(_START_BYTES)
    if start.startswith((_HDF5_MAGIC, b"MATLAB 7.3")) or start.endswith(_HDF5_MAGIC):
        raise ValueError(
            f"{file}: an HDF5 file, such as MATLAB's save -v7.3 writes, which is not read. Save it "
            "with -v7, or, where that is too large, write .npy with numpy.save."
        )
    return start


def web_page_note(start: bytes) -> str:
    """A note for an error message if a file is a web page; otherwise an empty text.

    A server sends a web page in place of a file that has moved.
    """
    is_page = start.lstrip()[:9].lower().startswith((b"<!doctype", b"<html"))
    return ": it is a web page, so the download went wrong" if is_page else ""
