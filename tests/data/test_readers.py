import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from ralseg.data.readers import map_ids, mask_values, read_colour_mask, read_image, read_index_mask
from ralseg.errors import DataError
from support.data import write_png

RGB = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
GREY = np.arange(24, dtype=np.uint8).reshape(4, 6)


def test_rgb_is_read_as_it_is(tmp_path):
    assert np.array_equal(read_image(write_png(tmp_path / "a b 'ü.png", RGB)), RGB)


def test_greyscale_palette_and_opaque_alpha_are_converted(tmp_path):
    assert np.array_equal(read_image(write_png(tmp_path / "grey.png", GREY)), np.dstack([GREY] * 3))
    opaque = np.dstack([RGB, np.full((4, 6), 255, np.uint8)])
    assert np.array_equal(read_image(write_png(tmp_path / "rgba.png", opaque)), RGB)
    palette = Image.fromarray(np.zeros((4, 6), np.uint8), "P")
    palette.putpalette([10, 20, 30] + [0] * 765)
    palette.save(tmp_path / "p.png")
    assert (read_image(tmp_path / "p.png") == [10, 20, 30]).all()


def bad_image(path, kind):
    if kind == "see-through":
        write_png(path, np.dstack([RGB, np.full((4, 6), 9, np.uint8)]))
    elif kind == "16 or more bits":
        write_png(path, GREY.astype(np.uint16) * 256)
    elif kind == "CMYK":
        Image.new("CMYK", (6, 4)).save(path, "JPEG")
    elif kind == "frames":
        Image.new("RGB", (6, 4)).save(path, save_all=True, append_images=[Image.new("RGB", (6, 4), "red")])
    elif kind == "EXIF":
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", (6, 4)).save(path, exif=exif)
    elif kind == "not an image":
        path.write_text("hello")
    elif kind == "no such file":
        pass
    elif kind == "over the limit":
        header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
        chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
        idat = zlib.compress(b"\0" * 1000)
        data = struct.pack(">I", len(idat)) + b"IDAT" + idat + struct.pack(">I", zlib.crc32(b"IDAT" + idat))
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + data)
    elif kind == "cannot be decoded":
        write_png(path, np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))
        path.write_bytes(path.read_bytes()[:2000])


KINDS = ["see-through", "16 or more bits", "CMYK", "frames", "EXIF", "not an image", "no such file", "over the limit"]


@pytest.mark.parametrize("kind", [*KINDS, "cannot be decoded"])
def test_unfit_images_are_refused_by_name(tmp_path, kind):
    path = tmp_path / "the image.png"
    bad_image(path, kind)
    with pytest.raises(DataError, match=rf"the image\.png: .*{kind}"):
        read_image(path)


def test_flipped_bytes_never_crash(tmp_path):
    path = write_png(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8))
    good = path.read_bytes()
    rng = np.random.default_rng(1)
    refused = []
    for _ in range(200):
        damaged = bytearray(good)
        damaged[rng.integers(len(good))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            assert read_image(path).dtype == np.uint8
        except DataError as error:
            refused.append(str(error))
    assert len(refused) > 150
    assert all("a.png" in message for message in refused)


def test_masks_give_their_ids(tmp_path):
    assert np.array_equal(read_index_mask(write_png(tmp_path / "l.png", GREY)), GREY)
    palette = Image.fromarray(GREY, "P")
    palette.putpalette(list(range(256)) * 3)
    palette.save(tmp_path / "p.png")
    assert np.array_equal(read_index_mask(tmp_path / "p.png"), GREY)
    assert np.array_equal(read_index_mask(write_png(tmp_path / "i16.png", GREY.astype(np.uint16))), GREY)


def test_rgb_mask_without_a_palette_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"m\.png: is a RGB mask, but no palette is configured"):
        read_index_mask(write_png(tmp_path / "m.png", RGB))


def test_ids_above_8_bits_are_refused(tmp_path):
    with pytest.raises(DataError, match="ids from 0 to 300"):
        read_index_mask(write_png(tmp_path / "m.png", np.array([[0, 300]], np.uint16)))


def test_unknown_ids_and_colours_are_listed_with_counts(tmp_path):
    with pytest.raises(DataError, match=r"m\.png: unknown mask ids: 7 x 2 pixels; known are 0-2, 255"):
        map_ids(tmp_path / "m.png", np.array([[0, 7, 7]], np.uint8), {0: 0, 1: 1, 2: 2, 255: 255})
    path = write_png(tmp_path / "c.png", np.array([[[1, 2, 3], [9, 9, 9]]], np.uint8))
    with pytest.raises(DataError, match=r"c\.png: .*\(9, 9, 9\) x 1 pixels"):
        read_colour_mask(path, {(1, 2, 3): 0})


# -- masks that are not quite index PNGs -------------------------------------------------------------


def test_grey_files_that_were_saved_in_colour_are_read(tmp_path):
    assert np.array_equal(read_index_mask(write_png(tmp_path / "rgb.png", np.dstack([GREY] * 3))), GREY)
    rgba = np.dstack([GREY] * 3 + [np.full_like(GREY, 255)])
    assert np.array_equal(read_index_mask(write_png(tmp_path / "rgba.png", rgba)), GREY)


@pytest.mark.parametrize("mode", ["L", "1", "RGB", "P"])
def test_a_palette_of_grey_levels_reads_every_kind_of_file(tmp_path, mode):
    white = Image.fromarray(np.array([[0, 255], [255, 0]], np.uint8)).convert(mode)
    white.save(tmp_path / "m.png")
    found = read_colour_mask(tmp_path / "m.png", {(0, 0, 0): 0, (255, 255, 255): 1})
    assert found.tolist() == [[0, 1], [1, 0]]


def save_as(path, **options):
    Image.fromarray(np.dstack([GREY] * 3)).save(path, **options)
    return path


def test_lossy_masks_are_refused_whatever_they_are_called(tmp_path):
    lossy = {
        "a.jpg": {},
        "b.png": {"format": "JPEG"},
        "c.webp": {"quality": 50},
        "d.tif": {"compression": "jpeg"},
    }
    for name, options in lossy.items():
        with pytest.raises(DataError, match=rf"{name}: is a lossy (JPEG|WEBP) file.*save masks as PNG"):
            read_index_mask(save_as(tmp_path / name, **options))
    exif = Image.Exif()
    exif[0x010E] = "extended"  # makes a file with several chunks
    for name, options in {"e.webp": {"lossless": True}, "f.webp": {"lossless": True, "exif": exif}}.items():
        assert np.array_equal(read_index_mask(save_as(tmp_path / name, **options)), GREY)
    with pytest.raises(DataError, match="lossy WEBP"):
        read_index_mask(save_as(tmp_path / "g.webp", quality=50, exif=exif))
    for name in ("h.bmp", "i.tif"):
        assert np.array_equal(read_index_mask(save_as(tmp_path / name)), GREY)


def test_what_occurs_in_a_mask(tmp_path):
    assert mask_values(write_png(tmp_path / "a.png", np.array([[0, 255, 255]], np.uint8))) == {0: 1, 255: 2}
    colours = np.array([[[0, 0, 0], [9, 8, 7], [9, 8, 7]]], np.uint8)
    assert mask_values(write_png(tmp_path / "b.png", colours)) == {(0, 0, 0): 1, (9, 8, 7): 2}
    assert mask_values(write_png(tmp_path / "c.png", np.array([[[3, 3, 3]]], np.uint8))) == {3: 1}
