"""Pictures of items, read back by another library where there is one."""

import io
import struct
import zlib

import numpy as np
import pytest

from hybrid_gpu.explore.pictures import ArrayPictures, FolderPictures, load_pictures
from hybrid_gpu.explore.png import png


def decoded(content):
    """The pixels of a PNG file of ours, by the letter of its format."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        kind, body = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        (checksum,) = struct.unpack(">I", content[place + 8 + length : place + 12 + length])
        assert checksum == zlib.crc32(kind + body)
        chunks[kind] = body
        place += 12 + length
    width, height, depth, color = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert depth == 8
    channels = {0: 1, 2: 3, 6: 4}[color]
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, channels)


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 1), (4, 2, 3), (2, 7, 4), (1, 1)])
def test_a_picture_keeps_its_pixels(rng, shape):
    pixels = rng.integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(decoded(png(pixels)).reshape(shape), pixels)


def test_another_library_reads_the_same(rng):
    image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")
    pixels = rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)
    read = image.imread(io.BytesIO(png(pixels)), format="png")
    np.testing.assert_array_equal(np.round(read * 255), pixels)


def test_numbers_are_spread_from_black_to_white(rng):
    values = np.array([[[-2.0, 0.0], [1.0, 2.0]], [[-1.0, 0.5], [0.0, 0.0]]])
    pictures = ArrayPictures(values, 2)
    assert decoded(pictures.picture(0).content)[:, :, 0].tolist() == [[0, 128], [191, 255]]
    assert pictures.pixelated
    flat = ArrayPictures(np.full((1, 2, 2), 7.0), 1)
    assert decoded(flat.picture(0).content).max() == 0


def test_rows_of_a_square_number_are_square_pictures():
    pictures = ArrayPictures(np.arange(18, dtype=np.uint8).reshape(2, 9), 2)
    assert decoded(pictures.picture(1).content).shape == (3, 3, 1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((3, 2, 2)), "one for each of the 2 items; got 3"),
        (np.zeros((2, 5)), "square number"),
        (np.zeros((2, 2, 2, 2)), "must be of shape"),
        (np.zeros((2, 0, 4)), "must be of shape"),
        (np.zeros((2, 3000, 3000), np.uint8), "must be of shape"),
        (np.array([["a"], ["b"]]), "numbers"),
        (np.full((2, 2, 2), np.nan), "finite"),
    ],
)
def test_what_is_no_array_of_pictures_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        ArrayPictures(values, 2)


def test_files_are_taken_in_the_order_of_their_names(tmp_path):
    for number, name in enumerate(["b.png", "a.png", "c.PNG"]):
        (tmp_path / name).write_bytes(png(np.full((2, 2), number, np.uint8)))
    (tmp_path / "notes.txt").write_text("not a picture")
    pictures = FolderPictures(tmp_path, 3, None)
    assert [decoded(pictures.picture(i).content).max() for i in range(3)] == [1, 0, 2]
    assert pictures.picture(0).source == tmp_path / "a.png"
    with pytest.raises(ValueError, match="each of the 4 items; got 3"):
        FolderPictures(tmp_path, 4, None)


def test_files_are_found_by_keys_and_never_outside_of_the_folder(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.png").write_bytes(png(np.zeros((1, 1), np.uint8)))
    (inside / "x.png").write_bytes(png(np.full((1, 1), 9, np.uint8)))
    (inside / "y.png").write_bytes(png(np.full((1, 1), 8, np.uint8)))
    pictures = FolderPictures(inside, 2, ["y", "x.png"])
    assert [decoded(pictures.picture(i).content).max() for i in range(2)] == [8, 9]
    for key in ("../secret", "../secret.png", str(tmp_path / "secret.png")):
        with pytest.raises(ValueError, match="no picture for 1 of 2 keys"):
            FolderPictures(inside, 2, ["x", key])


def test_the_kind_of_a_file_is_that_of_its_content(tmp_path):
    (tmp_path / "a.png").write_bytes(b"\xff\xd8\xff\xe0 a JPEG")
    (tmp_path / "b.jpg").write_bytes(b"RIFF\0\0\0\0WEBPVP8 ")
    (tmp_path / "c.gif").write_bytes(b"<svg onload='alert(1)'>")
    pictures = load_pictures(tmp_path, 3, None)
    assert (pictures.picture(0).ending, pictures.picture(1).ending) == (".jpg", ".webp")
    with pytest.raises(ValueError, match=r"c\.gif: not a PNG"):
        pictures.picture(2)


def test_an_array_file_is_an_array_of_pictures(tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((4, 3, 3), np.uint8))
    assert load_pictures(tmp_path / "images.npy", 4, None).picture(3).media_type == "image/png"
