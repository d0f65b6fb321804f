import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from ralseg.data import Folder
from ralseg.data.readers import IGNORE, map_ids, read_colour_mask, read_image, read_index_mask
from ralseg.errors import DataError
from support.data import make_folder, write_png

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


# -- Folder ------------------------------------------------------------------------------------------


def test_folder_reads_ids_ignore_and_nested_names(tmp_path):
    root = make_folder(tmp_path)
    (root / "dataset.yaml").write_text("classes: [ground, plant, stone]\nignore: 9\n")
    mask = np.full((32, 48), 9, np.uint8)
    mask[0, :4] = [0, 1, 2, 255]
    write_png(root / "masks/train/000.png", mask)
    folder = Folder(str(root))
    index = folder.names.index("train/000.png")
    assert folder.read_mask(index)[0, :5].tolist() == [0, 1, 2, IGNORE, IGNORE]
    assert folder.subsets.count("train") == 6


def test_folder_reads_colours(tmp_path):
    root = make_folder(tmp_path)
    palette = "palette: {ground: [9, 8, 7], plant: [0, 255, 0], stone: [1, 1, 1]}"
    (root / "dataset.yaml").write_text(f"classes: [ground, plant, stone]\n{palette}\nignore: [0, 0, 0]\n")
    colours = np.zeros((32, 48, 3), np.uint8)
    colours[0, 0], colours[0, 1] = (1, 1, 1), (9, 8, 7)
    write_png(root / "masks/train/000.png", colours)
    folder = Folder(str(root))
    assert folder.read_mask(folder.names.index("train/000.png"))[0, :3].tolist() == [2, 0, IGNORE]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "missing; write 'classes"),
        ("classes: [one]", "at least two different names"),
        ("classes: [a, a]", "at least two different names"),
        ("classes: [a, b]\npalette: {a: [0, 0, 0]}", "one colour for each of the 2 classes"),
        ("classes: [a, b]\npalette: {a: [0, 0, 0], b: [0, 0, 300]}", r"must be \[r, g, b\]"),
        ("classes: [a, b]\npalette: {a: [0, 0, 0], b: [0, 0, 0]}", "share a colour"),
        ("classes: [a, b]\nignore: 1", "also the id of class 'b'"),
        ("classes: [a, b]\nignore: 400", "id from 0 to 255"),
        ("classes: [a, b]\nclases: 3", r"unknown keys \['clases'\]"),
        ("classes: [a, b", "not valid YAML"),
        ("- a", "must be a mapping"),
    ],
)
def test_a_wrong_description_is_refused_by_name(tmp_path, text, message):
    root = make_folder(tmp_path)
    (root / "dataset.yaml").unlink()
    if text is not None:
        (root / "dataset.yaml").write_text(text)
    with pytest.raises(DataError, match=rf"dataset\.yaml: .*{message}"):
        Folder(str(root))


def test_missing_mask_and_size_mismatch_name_the_file(tmp_path):
    root = make_folder(tmp_path)
    (root / "masks/train/001.png").unlink()
    write_png(root / "masks/train/002.png", np.zeros((10, 48), np.uint8))
    folder = Folder(str(root))
    with pytest.raises(DataError, match=r"masks/train/001\.png: mask of image train/001\.png is missing"):
        folder.read_mask(folder.names.index("train/001.png"))
    with pytest.raises(DataError, match=r"002\.png: mask has 10x48 pixels, its image 002\.png 32x48"):
        folder.read_mask(folder.names.index("train/002.png"))


def test_wrong_number_of_classes_is_found_in_the_masks(tmp_path):
    root = make_folder(tmp_path)
    (root / "dataset.yaml").write_text("classes: [ground, plant]\n")
    with pytest.raises(DataError, match=r"unknown mask ids: 2 x \d+ pixels; known are 0-1, 255"):
        Folder(str(root)).read_mask(0)


def test_images_outside_a_subset_and_empty_folders(tmp_path):
    root = make_folder(tmp_path)
    write_png(root / "images/loose.png", RGB)
    with pytest.raises(DataError, match=r"loose\.png: put images into a subset's folder"):
        Folder(str(root))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/dataset.yaml").write_text("classes: [a, b]")
    with pytest.raises(DataError, match="no images found in the layout of Folder"):
        Folder(str(tmp_path / "empty"))
