"""Folders of images as people have them."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from ralseg.cli import main
from ralseg.data import Folder, SplitSizes
from ralseg.data.readers import IGNORE
from ralseg.data.splits import draw_splits
from ralseg.errors import ConfigError, DataError, RalsegError
from support.data import make_folder, write_png

PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
MASK = np.array([[0, 255, 0, 255, 0, 7]] * 4, np.uint8)


def one_image(root: Path, mask: np.ndarray = MASK) -> str:
    write_png(root / "images/train/a.png", PIXELS)
    write_png(root / "masks/train/a.png", mask)
    return str(root)


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
        (None, "missing; write 'classes.*ralseg init FOLDER"),
        ("classes: [one]", "at least two different names"),
        ("classes: [a, a]", "at least two different names"),
        (
            "classes: [a, b]\npalette: {a: [0, 0, 0]}",
            r"'palette' gives no colour for 'b'\. It must look like this: palette: {a: \[",
        ),
        ("classes: [a, b]\npalette: {a: [0, 0, 0], b: [0, 0, 300]}", r"must be \[r, g, b\]"),
        ("classes: [a, b]\npalette: {a: [0, 0, 0], b: [0, 0, 0]}", "share a colour"),
        ("classes: [a, b]\nignore: 1", "also the id of class 'b'"),
        ("classes: [a, b]\nignore: 400", "id from 0 to 255"),
        ("classes: [a, b]\nclases: 3", r"unknown keys \['clases'\] \(did you mean 'classes'\?\)"),
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


# -- what masks hold ---------------------------------------------------------------------------------


def test_values_name_the_class_of_each_mask_value(tmp_path):
    folder = Folder(one_image(tmp_path), values={0: "road", 255: "crack", 7: None})
    assert folder.class_names == ("road", "crack")
    assert folder.read_mask(0)[0].tolist() == [0, 1, 0, 1, 0, IGNORE]


def test_several_values_share_a_class_and_classes_give_the_order(tmp_path):
    folder = Folder(one_image(tmp_path), classes=["crack", "road"], values={0: "road", 7: "road", 255: "crack"})
    assert folder.read_mask(0)[0].tolist() == [1, 0, 1, 0, 1, 1]


def test_255_is_void_unless_values_name_it(tmp_path):
    folder = Folder(one_image(tmp_path), values={0: "road", 7: "crack"})
    assert folder.read_mask(0)[0].tolist() == [0, IGNORE, 0, IGNORE, 0, 1]


def test_several_values_are_ignored(tmp_path):
    mask = np.array([[0, 1, 8, 9, 255, 0]] * 4, np.uint8)
    folder = Folder(one_image(tmp_path, mask), classes=["road", "crack"], ignore=[8, 9])
    assert folder.read_mask(0)[0].tolist() == [0, 1, IGNORE, IGNORE, IGNORE, 0]


def test_grey_levels_in_a_palette(tmp_path):
    folder = Folder(one_image(tmp_path), palette={"road": 0, "crack": 255}, ignore=7)
    assert folder.read_mask(0)[0].tolist() == [0, 1, 0, 1, 0, IGNORE]
    assert len(set(folder.colours)) == 2
    assert all(len(set(colour)) > 1 for colour in folder.colours)  # not two greys


def test_an_unknown_value_says_how_to_name_it(tmp_path):
    folder = Folder(one_image(tmp_path), values={0: "road", 255: "crack"})
    with pytest.raises(DataError, match=r"unknown mask ids: 7 x 4 pixels.*values: {0: road, 255: crack, \.\.\.}"):
        folder.read_mask(0)
    folder = Folder(one_image(tmp_path), palette={"road": 0, "crack": 255})
    with pytest.raises(DataError, match=r"\(7, 7, 7\) x 4 pixels; give each colour to a class in 'palette'"):
        folder.read_mask(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": {0: "a"}}, "values must list at least two different names"),
        ({"values": {0: "a", 300: "b"}}, "values must map mask values from 0 to 255"),
        ({"values": {0: "a", 1: "b"}, "classes": ["a", "b", "c"]}, "values gives no value for 'c'"),
        ({"values": {0: "tre", 1: "sky"}, "classes": ["tree", "sky"]}, r"names 'tre' \(did you mean 'tree'\?\)"),
        ({"values": {0: "a", 1: "b"}, "palette": {"a": 0, "b": 1}}, "give one of them"),
        ({"palette": {"a": 0, "b": [0, 0, 0]}}, r"gives 'a' and 'b', which share a colour, \(0, 0, 0\)"),
        ({"palette": {"a": 0, "b": 256}}, r"must be \[r, g, b\] or one grey level"),
        ({"palette": {"a": 0, "b": 9}, "ignore": [9, 9, 9]}, "ignore is the colour of class 'b' too"),
        ({"classes": ["a", "b"], "ignore": [7, 1]}, "ignore holds 1, which is also the id of class 'b'"),
        ({"classes": ["a", "b"], "mask_name": "mask"}, "mask_name must be a file name with {stem} once in it"),
        ({"classes": ["a", "b"], "mask_name": "../{stem}"}, "mask_name must be a file name"),
        ({"classes": ["a", "b"], "mask_name": "{stem}.jpg"}, "JPEG changes mask values near edges"),
        ({"classes": ["a", "b"], "shares": {"val": 0.6, "test": 0.6}}, "together less than 1"),
        ({"classes": ["a", "b"], "shares": {"vla": 0.6}}, "shares must say which part"),
    ],
)
def test_wrong_arguments_are_refused_by_name(tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=rf"data\.dataset\.init_args\..*{message}"):
        Folder(one_image(tmp_path), **arguments)


def test_arguments_win_over_the_file(tmp_path):
    root = one_image(tmp_path)
    (tmp_path / "dataset.yaml").write_text("palette: {grass: [0, 9, 0], wood: [9, 0, 0]}\nmask_name: '{stem}'\n")
    assert Folder(root).class_names == ("grass", "wood")
    folder = Folder(root, values={0: "road", 255: "crack"}, ignore=7)
    assert folder.class_names == ("road", "crack")
    assert folder.has_mask(0)
    (tmp_path / "dataset.yaml").unlink()
    assert Folder(root, classes=["road", "crack"]).class_names == ("road", "crack")
    with pytest.raises(DataError, match=r"dataset\.yaml: missing"):
        Folder(root, mask_name="{stem}")


def test_arguments_come_from_configurations(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    root = make_folder(tmp_path / "mine")
    (root / "dataset.yaml").unlink()
    arguments = {"root": str(root), "values": {0: "ground", 1: "plant", 2: None}, "scenes": "(train|val|test)"}
    layout = {"class_path": "ralseg.GridLayout", "init_args": {"rows": 2, "columns": 2}}
    data = {"dataset": {"class_path": "ralseg.data.Folder", "init_args": arguments}, "layout": layout}
    Path("mine.yaml").write_text(yaml.safe_dump({"data": data | {"splits": {"state": 1, "train": 2}}}))
    assert main(["data", "check", "--config", "mine.yaml"]) == 0
    assert "│ plant" in capsys.readouterr().out


# -- which mask belongs to which image ---------------------------------------------------------------


@pytest.mark.parametrize("ending", [".png", ".bmp", ".tif", ".tiff", ".webp"])
def test_masks_of_any_lossless_format(tmp_path, ending):
    root = one_image(tmp_path)
    (tmp_path / "masks/train/a.png").unlink()
    Image.fromarray(MASK).save(tmp_path / f"masks/train/a{ending}", **({"lossless": True} if "webp" in ending else {}))
    folder = Folder(root, values={0: "road", 255: "crack", 7: None})
    assert folder.read_mask(0)[0].tolist() == [0, 1, 0, 1, 0, IGNORE]


@pytest.mark.parametrize(
    ("given", "mask_name"),
    [("a_mask.png", "{stem}_mask"), ("a_mask.png", "{stem}_mask.png"), ("gt-a.bmp", "gt-{stem}")],
)
def test_masks_with_other_names(tmp_path, given, mask_name):
    root = one_image(tmp_path)
    Image.open(tmp_path / "masks/train/a.png").save(tmp_path / "masks/train" / given)
    (tmp_path / "masks/train/a.png").unlink()
    folder = Folder(root, classes=["a", "b"], mask_name=mask_name)
    assert folder.mask_paths[0].name == given
    assert folder.file_problems() == []
    with pytest.raises(DataError, match=r"holds 1 file that matches no image.*did you mean mask_name: '.*{stem}.*'\?"):
        Folder(root, classes=["a", "b"])


def test_jpeg_masks_are_found_and_refused_with_the_reason(tmp_path):
    root = one_image(tmp_path)
    (tmp_path / "masks/train/a.png").unlink()
    Image.fromarray(MASK).save(tmp_path / "masks/train/a.jpg")
    with pytest.raises(DataError, match=r"a\.jpg: is a lossy JPEG file: its values change near edges"):
        Folder(root, classes=["a", "b"]).read_mask(0)


def test_masks_of_nobody_are_named_where_images_are_too_few(tmp_path):
    root = make_folder(tmp_path)
    for path in sorted((root / "masks/train").iterdir()):
        path.rename(path.with_name(f"{path.stem}_gt.png"))
    folder = Folder(str(root))
    message = r"holds 6 files that match no image, the first: .*000_gt\.png.*did you mean mask_name: '{stem}_gt'"
    assert re.search(message, folder.file_problems()[0])
    with pytest.raises(ConfigError, match=rf"subset 'train' has 0 left.*6 of its 6 images have no mask.*{message}"):
        draw_splits(folder, SplitSizes(1, 2))


# -- subsets -----------------------------------------------------------------------------------------


def flat_folder(root: Path, images: int = 10, labelled: int = 10, folders: int = 0) -> Path:
    for number in range(images):
        inner = f"scene{number % folders}/" if folders else ""
        write_png(root / f"images/{inner}{number}.png", PIXELS + number)
        if number < labelled:
            write_png(root / f"masks/{inner}{number}.png", MASK % 2)
    (root / "dataset.yaml").write_text("classes: [road, crack]\n")
    return root


def subsets(folder: Folder) -> dict[str, str]:
    return dict(zip(folder.names, folder.subsets, strict=True))


def test_images_that_nobody_sorted_are_shared_out(tmp_path):
    folder = Folder(str(flat_folder(tmp_path, images=14)))
    found = subsets(folder)
    assert sorted(found) == sorted(f"{number}.png" for number in range(14))
    assert [folder.subsets.count(subset) for subset in ("train", "val", "test")] == [10, 2, 2]
    assert {found[f"{number}.png"] for number in range(10, 14)} == {"train"}  # nobody has labelled them
    shutil.copytree(tmp_path, tmp_path.with_name("elsewhere"))
    assert subsets(Folder(str(tmp_path.with_name("elsewhere")))) == found
    shares = {"val": 0.5, "test": 0.1}
    assert Folder(str(tmp_path), shares=shares).subsets.count("val") == 5


def test_scenes_stay_together_when_images_are_shared_out(tmp_path):
    root = flat_folder(tmp_path, images=20, labelled=20, folders=5)
    folder = Folder(str(root), shares={"val": 0.2, "test": 0.2})
    assert [folder.subsets.count(subset) for subset in ("train", "val", "test")] == [12, 4, 4]
    homes = {(folder.scene(index), subset) for index, subset in enumerate(folder.subsets)}
    assert len(homes) == 5
    by_pattern = Folder(str(root), shares={"val": 0.2, "test": 0.2}, scenes="scene([0-9])/")
    assert {(scene, by_pattern.subsets[i]) for i, scene in enumerate(map(by_pattern.scene, range(20)))} != homes
    assert len({(by_pattern.scene(i), by_pattern.subsets[i]) for i in range(20)}) == 5


def test_too_few_scenes_to_share_out(tmp_path):
    root = flat_folder(tmp_path, folders=2)
    with pytest.raises(DataError, match="of 2 scenes, too few for train, val and test to have scenes of their own"):
        Folder(str(root), shares={"val": 0.2, "test": 0.2})


def test_half_sorted_images_are_an_error_that_names_both(tmp_path):
    root = make_folder(tmp_path)
    write_png(root / "images/loose.png", PIXELS)
    with pytest.raises(
        DataError, match=r"images/loose\.png: lies directly in images, .*images/test/000\.png in a folder"
    ):
        Folder(str(root))
    (root / "images/loose.png").unlink()
    with pytest.raises(RalsegError, match=r"images/test/000\.png: lies in a subset, but 'shares' is for images"):
        Folder(str(root), shares={"val": 0.2})


def test_no_images_at_all(tmp_path):
    (tmp_path / "dataset.yaml").write_text("classes: [a, b]")
    with pytest.raises(DataError, match="no images found in the layout of Folder: images/train/"):
        Folder(str(tmp_path))


def test_a_missing_or_misnamed_val_is_named(tmp_path):
    root = make_folder(tmp_path)
    for kind in ("images", "masks"):
        (root / kind / "val").rename(root / kind / "validation")
    why = r"subset 'validation' \(2 images\) is not used: subsets are train, val, test; rename it to 'val'"
    with pytest.raises(
        ConfigError, match=rf"is the subset 'val', which has no images; {why}; put labelled images there"
    ):
        draw_splits(Folder(str(root)), SplitSizes(1, 2))
    with pytest.raises(
        ConfigError, match=r"but subset 'val' has 0 left.*reward_from_train: true with data\.splits\.reward"
    ):
        draw_splits(Folder(str(root)), SplitSizes(1, 2, reward=1))
    draw_splits(Folder(str(root)), SplitSizes(1, 2, reward=0))
    draw_splits(Folder(str(root)), SplitSizes(1, 2, reward=2, reward_from_train=True))
