"""A first look at a folder: how it can be read, without a word from its owner."""

import numpy as np
import pytest
from PIL import Image

from ralseg.data.first_look import MOST_COLOURS, first_look
from ralseg.errors import ConfigError, DataError
from support.data import striped_folder as make
from support.data import write_png


def test_counted_ids_need_names_only(tmp_path):
    found = first_look(make(tmp_path, (0, 1, 2)))
    assert found.options == {"classes": ["class_0", "class_1", "class_2"]}
    assert found.dataset.class_names == ("class_0", "class_1", "class_2")
    assert "nobody has named the classes" in found.notes[0]
    assert first_look(tmp_path, ["a", "b", "c"]).options == {"classes": ["a", "b", "c"]}


def test_description_that_fits_is_left_alone(tmp_path):
    (make(tmp_path) / "dataset.yaml").write_text("classes: [road, crack]\n")
    found = first_look(tmp_path)
    assert found.options == {}
    assert found.notes == []


def test_a_class_that_does_not_occur_is_no_reason_to_doubt_a_description(tmp_path):
    (make(tmp_path, (0, 1, 255)) / "dataset.yaml").write_text("classes: [road, crack, tree, sky]\n")
    assert first_look(tmp_path).options == {}


@pytest.mark.parametrize("described", [True, False])
def test_black_and_white_masks_keep_their_white(tmp_path, described):
    make(tmp_path, (0, 255))
    if described:
        (tmp_path / "dataset.yaml").write_text("classes: [road, crack]\n")
    found = first_look(tmp_path)
    names = ("road", "crack") if described else ("background", "foreground")
    assert found.options == {"values": {0: names[0], 255: names[1]}}
    assert found.dataset.class_names == names
    assert found.pixels == [18 * 300, 18 * 300, 0]
    assert set(np.unique(found.dataset.read_mask(0))) == {0, 1}


def test_ids_and_void(tmp_path):
    found = first_look(make(tmp_path, (0, 1, 255)))
    assert found.options == {"classes": ["background", "foreground"]}
    assert found.pixels[-1] == 18 * 200


def test_scattered_values_are_named_after_themselves(tmp_path):
    found = first_look(make(tmp_path, (0, 100, 200)))
    assert found.options == {"values": {0: "value_0", 100: "value_100", 200: "value_200"}}
    with pytest.raises(ConfigError, match=r"2 names.*values 0, 100, 200.*--classes name_of_0,name_of_100,name_of_200"):
        first_look(tmp_path, ["a", "b"])


def test_suffix_of_masks_is_found(tmp_path):
    found = first_look(make(tmp_path, mask="{}_mask.png"))
    assert found.options["mask_name"] == "{stem}_mask"
    assert all(map(found.dataset.has_mask, range(len(found.dataset))))


def make_coloured(root, colour):
    """Masks that are black but for a third in one colour."""
    for i in range(4):
        write_png(root / "images" / "train" / f"{i}.png", np.zeros((20, 30, 3), np.uint8))
        mask = np.zeros((20, 30, 3), np.uint8)
        mask[:, 20:] = colour
        write_png(root / "masks" / "train" / f"{i}.png", mask)


def test_colours_become_a_palette(tmp_path):
    make_coloured(tmp_path, (255, 0, 0))
    found = first_look(tmp_path, ["fire=#ff0000", "ground=#000000"])
    assert found.options == {"palette": {"fire": [255, 0, 0], "ground": [0, 0, 0]}}
    assert first_look(tmp_path).dataset.class_names == ("colour_000000", "colour_ff0000")
    with pytest.raises(
        ConfigError, match=r"#000000 66\.7 %, #ff0000 33\.3 %\), and names alone do not say which is which"
    ):
        first_look(tmp_path, ["ground", "fire"])
    with pytest.raises(ConfigError, match="each name needs a colour, road=#804080"):
        first_look(tmp_path, ["ground=7", "fire=#ff0000"])
    with pytest.raises(ConfigError, match="to each of them, or to none"):
        first_look(tmp_path, ["ground", "fire=#ff0000"])


def test_a_palette_that_is_a_digit_off_is_not_guessed_anew(tmp_path):
    make_coloured(tmp_path, (200, 30, 30))
    (tmp_path / "dataset.yaml").write_text("palette: {nucleus: [200, 30, 31], background: [0, 0, 0]}\n")
    found = first_look(tmp_path)
    assert found.options == {}
    assert "colours that dataset.yaml does not know: (200, 30, 30) (33 % of the pixels)" in found.notes[0]


def test_a_stray_value_is_noted_and_does_not_become_a_class(tmp_path):
    make(tmp_path)
    (tmp_path / "dataset.yaml").write_text("classes: [road, crack]\n")
    mask = np.zeros((20, 30), np.uint8)
    mask[0, :5] = 7
    write_png(tmp_path / "masks" / "train" / "000.png", mask)
    found = first_look(tmp_path)
    assert found.options == {}
    assert "values that dataset.yaml does not know: 7" in found.notes[0]


def test_values_with_names(tmp_path):
    found = first_look(make(tmp_path, (0, 100, 200)), ["water=200", "land=0", "road=100"])
    assert found.options == {"values": {200: "water", 0: "land", 100: "road"}}


def test_smoothed_masks_are_refused(tmp_path):
    write_png(tmp_path / "images" / "a.png", np.zeros((20, 30, 3), np.uint8))
    smooth = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    write_png(tmp_path / "masks" / "a.png", smooth)
    with pytest.raises(DataError, match=r"masks hold \d+ colours, so colours do not stand for classes"):
        first_look(tmp_path)
    assert len(np.unique(smooth.reshape(-1, 3), axis=0)) > MOST_COLOURS


def test_images_that_nobody_has_sorted(tmp_path):
    found = first_look(make(tmp_path, labelled=10, unlabelled=5, subsets=("",)))
    assert [found.count(subset, True) for subset in ("train", "val", "test")] == [6, 2, 2]
    assert found.count("train", False) == 5


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        first_look(tmp_path / "nowhere")
    (tmp_path / "pictures").mkdir()
    with pytest.raises(DataError, match=r"images holds no image file \(.* holds pictures\)"):
        first_look(tmp_path)
    write_png(tmp_path / "images" / "a.png", np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(DataError, match="masks holds no image file"):
        first_look(tmp_path)
    write_png(tmp_path / "masks" / "other.png", np.zeros((4, 4), np.uint8))
    with pytest.raises(DataError, match="none of its 1 files belongs to an image"):
        first_look(tmp_path)
    write_png(tmp_path / "masks" / "a.png", np.zeros((4, 4), np.uint8))
    with pytest.raises(DataError, match="masks hold the value 0 alone"):
        first_look(tmp_path)


def test_damaged_images_and_masks_are_noted(tmp_path):
    make(tmp_path)
    (tmp_path / "images" / "train" / "000.png").write_bytes(b"no image")
    (tmp_path / "masks" / "train" / "001.png").write_bytes(b"no mask")
    found = first_look(tmp_path)
    assert len(found.sizes) == 17
    assert "1 images cannot be read, the first:" in found.notes[-1]
    assert "000.png" in found.notes[-1]


def test_palette_files_are_read_by_their_indices(tmp_path):
    for i in range(4):
        write_png(tmp_path / "images" / f"{i}.png", np.zeros((20, 30, 3), np.uint8))
        mask = Image.fromarray((np.arange(600).reshape(20, 30) % 2).astype(np.uint8), "P")
        mask.putpalette([10, 20, 30, 200, 100, 50])
        (tmp_path / "masks").mkdir(exist_ok=True)
        mask.save(tmp_path / "masks" / f"{i}.png")
    assert first_look(tmp_path).options == {"classes": ["background", "foreground"]}
