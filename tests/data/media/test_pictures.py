"""Picture files of every format become arrays of one size, or are refused in one line."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from saccade.config.load import load
from saccade.data.media.decoding import get_decoding_key
from saccade.data.media.pictures import read_picture
from saccade.data.sources.media import list_files
from saccade.errors import SaccadeError


def encode_picture(picture: Image.Image, kind: str, **settings) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **settings)
    return buffer.getvalue()


def halves(mode: str, left, right, size=(20, 10)) -> Image.Image:
    picture = Image.new(mode, size, right)
    picture.paste(left, (0, 0, size[0] // 2, size[1]))
    return picture


@pytest.mark.parametrize(
    ("mode", "white", "black", "kind"),
    [
        ("RGB", (255, 255, 255), (0, 0, 0), "PNG"),
        ("L", 255, 0, "PNG"),
        ("1", 1, 0, "PNG"),
        ("CMYK", (0, 0, 0, 0), (0, 0, 0, 255), "TIFF"),
        ("I;16", 65535, 0, "PNG"),
        ("F", 1.0, 0.0, "TIFF"),
        ("F", 255.0, 0.0, "TIFF"),
        ("RGBA", (9, 9, 9, 0), (0, 0, 0, 255), "PNG"),  # what is transparent shows white
        ("LA", (9, 0), (0, 255), "PNG"),
    ],
)
def test_every_mode_is_read_as_the_colours_that_it_shows(mode, white, black, kind):
    read = read_picture(encode_picture(halves(mode, white, black), kind), size=10, fit="stretch")
    assert read.shape == (3, 10, 10)
    assert read.dtype == np.uint8
    assert read[:, :, 0].min() == 255
    assert read[:, :, -1].max() <= 1


def test_cmyk_of_a_jpeg_has_its_colours():
    read = read_picture(encode_picture(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG"), size=4)
    assert read[0].min() > 200
    assert read[1:].max() < 60


def test_a_palette_with_transparency_shows_white():
    palette = halves("RGBA", (0, 0, 0, 0), (255, 0, 0, 255)).quantize(4)
    read = read_picture(encode_picture(palette, "PNG"), size=10, fit="stretch")
    assert read[:, 5, 0].tolist() == [255, 255, 255]


def test_exif_orientation_is_applied():
    lying = halves("L", 255, 0)
    exif = Image.Exif()
    exif[274] = 6  # the camera was turned: the left side is on top
    read = read_picture(encode_picture(lying, "JPEG", exif=exif, quality=95), size=10, fit="stretch")
    assert read[0, 0].min() > 200
    assert read[0, -1].max() < 50


def test_what_is_no_square_loses_its_ends_or_its_shape():
    picture = encode_picture(halves("L", 255, 0, size=(40, 10)), "PNG")
    cropped = read_picture(picture, size=10, fit="crop")
    assert (cropped[0, 0, :4] == 255).all()
    assert (cropped[0, 0, 6:] == 0).all()
    assert read_picture(picture, size=10, fit="stretch")[0, 0].tolist()[::9] == [255, 0]


def test_pictures_may_be_wider_than_high():
    picture = encode_picture(halves("L", 255, 0, size=(40, 10)), "PNG")
    read = read_picture(picture, size=(5, 20), fit="crop")
    assert read.shape == (3, 5, 20)
    assert read[0, 0].tolist()[::19] == [255, 0]


def test_a_border_keeps_all_of_a_picture_and_its_shape():
    picture = encode_picture(halves("L", 255, 0, size=(40, 10)), "PNG")
    read = read_picture(picture, size=(8, 8), fit="pad")[0]
    assert read[3, 0] == 255 and read[3, -1] == 0
    assert (read[0] == 128).all() and (read[-1] == 128).all()


def test_one_pixel_fills_the_picture():
    read = read_picture(encode_picture(Image.new("RGB", (1, 1), (7, 8, 9)), "PNG"), size=5)
    assert (read == np.array([7, 8, 9])[:, None, None]).all()


def bomb(side: int) -> bytes:
    """A PNG that declares this number of pixels, without data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [20_000, 11_000])
def test_more_pixels_than_memory_should_hold_are_refused_before_they_are_decoded(side):
    with pytest.raises(SaccadeError, match=r"^big.png has .*more than 100,000,000.*make it smaller$"):
        read_picture(bomb(side), size=8, name="big.png")


def test_a_truncated_picture_is_named(tmp_path):
    path = tmp_path / "cut.jpg"
    path.write_bytes(encode_picture(Image.effect_noise((64, 64), 50), "JPEG")[:900])
    with pytest.raises(SaccadeError, match=r"cut.jpg is damaged: .*truncated"):
        read_picture(path, size=8)


def test_a_text_with_the_name_of_a_picture_is_named(tmp_path):
    path = tmp_path / "letter.jpg"
    path.write_text("Dear all")
    with pytest.raises(SaccadeError, match=r"letter.jpg is not a readable picture; expected JPEG"):
        read_picture(path, size=8)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_pixels_that_are_no_numbers_are_refused(value):
    picture = Image.fromarray(np.array([[0.5, value], [0.5, 0.5]], np.float32))
    with pytest.raises(SaccadeError, match=r"^a.tif has pixels that are not finite; save it again, or leave"):
        read_picture(encode_picture(picture, "TIFF"), size=2, name="a.tif")


def test_a_folder_with_the_name_of_a_picture_is_reported(tmp_path):
    (tmp_path / "folder.jpg").mkdir()
    with pytest.raises(SaccadeError, match=r"folder.jpg is a folder; expected a picture"):
        read_picture(tmp_path / "folder.jpg", size=8)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(SaccadeError, match=r"none.png not found"):
        read_picture(tmp_path / "none.png", size=8)


def test_pictures_are_known_by_their_names(tmp_path):
    for name in ("B.JPG", "b.txt"):
        (tmp_path / name).write_bytes(b"")
    assert list_files(str(tmp_path), medium="picture") == [str(tmp_path / "B.JPG")]


def test_pictures_are_resampled_as_the_settings_ask(tmp_path):
    noise = Image.fromarray(np.random.default_rng(3).integers(0, 256, (20, 20, 3), dtype=np.uint8))
    noise.save(tmp_path / "a.png")
    for name, method in (("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)):
        found = read_picture(tmp_path / "a.png", size=8, fit="stretch", resample=name)
        assert (found == np.asarray(noise.resize((8, 8), method)).transpose(2, 0, 1)).all()
    plain = load("vit").reader
    assert get_decoding_key(plain) != get_decoding_key(plain.model_copy(update={"resample": "bicubic"}))


def test_a_margin_is_cut_off_after_scaling(tmp_path):
    noise = Image.fromarray(np.random.default_rng(3).integers(0, 256, (20, 20, 3), dtype=np.uint8))
    noise.save(tmp_path / "a.png")
    whole = read_picture(tmp_path / "a.png", size=14)
    assert (read_picture(tmp_path / "a.png", size=8, margin=3) == whole[:, 3:-3, 3:-3]).all()
