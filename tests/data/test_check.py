"""`ralseg data check`: all problems in one run, what is only worth a note, and the contact sheet."""

import json
import shutil
from pathlib import Path, PurePath

import numpy as np
import pytest
import torch
from PIL import Image

from ralseg.data import CamVid, Folder, SegmentationData, SegmentationDataset, SplitSizes
from ralseg.data.check import check_data
from ralseg.data.mask_names import find_mask_name, pair_masks
from ralseg.labels import GridLayout, Layout
from support.data import make_folder, small_data, write_png


def check(out: Path, data: SegmentationData) -> tuple[int, dict]:
    code = check_data(data, out)
    report = json.loads((out / "report.json").read_text())
    assert (code == 3) == bool(report["problems"])
    return code, report


def folder_data(root: Path, arguments: dict | None = None, **changes) -> SegmentationData:
    options = {"splits": SplitSizes(state=1, train=2), "layout": GridLayout(2, 3)} | changes
    return SegmentationData(Folder(str(root), **(arguments or {})), **options)


def rewrite_masks(root: Path, change) -> None:
    for path in (root / "masks").rglob("*.png"):
        write_png(path, change(np.asarray(Image.open(path))).astype(np.uint8))


def one(texts: list[str], *parts: str) -> str:
    """The only text that has all parts."""
    found = [text for text in texts if all(part in text for part in parts)]
    assert len(found) == 1, (parts, texts)
    return found[0]


# -- masks that are not read as they are meant -------------------------------------------------------


def test_masks_of_0_and_255_are_a_problem_with_the_remedy(tmp_path):
    root = make_folder(tmp_path / "mine")
    rewrite_masks(root, lambda mask: np.where(mask > 0, 255, 0))
    (root / "dataset.yaml").write_text("classes: [road, crack]\n")
    code, report = check(tmp_path / "out", folder_data(root))
    assert code == 3
    text = one(report["problems"], "no labelled image holds a pixel of class 'crack'")
    assert "masks hold 0 and 255, which counts as void: write values: {0: road, 255: crack} into dataset.yaml" in text
    for subset in ("train", "val", "test"):
        text = one(report["problems"], f"% of the labelled pixels of {subset} are void (value 255)")
        assert "values: {0: road, 255: crack}" in text
    assert (tmp_path / "out/contact_sheet.png").is_file()
    (root / "dataset.yaml").write_text("values: {0: road, 255: crack}\n")  # what it said
    code, report = check(tmp_path / "out", folder_data(root))
    assert code == 0
    assert report["pixels"]["train"]["crack"] > report["pixels"]["train"]["road"]


def test_void_that_somebody_asked_for_is_a_note(tmp_path):
    root = make_folder(tmp_path / "mine")
    rewrite_masks(root, lambda mask: np.where(np.indices(mask.shape)[0] > 4, 255, mask))
    assert check(tmp_path / "out", folder_data(root))[0] == 3
    code, report = check(tmp_path / "out", folder_data(root, {"ignore": 255}))
    assert code == 0
    one(report["notes"], "84% of the labelled pixels of train_set are void")


def test_a_class_that_is_missing_everywhere_is_a_problem_unless_labels_are(tmp_path):
    root = make_folder(tmp_path / "mine")
    (root / "dataset.yaml").write_text("classes: [ground, plant, stone, snow]\n")
    text = one(check(tmp_path / "out", folder_data(root))[1]["problems"], "no labelled image holds")
    assert "'snow' (value 3); leave it out of the classes, or say in dataset.yaml what masks hold" in text
    (root / "masks/train/000.png").unlink()  # it may show snow
    code, report = check(tmp_path / "out", folder_data(root))
    assert code == 0
    one(report["notes"], "no labelled image holds a pixel of class snow")


def test_a_class_that_is_missing_in_one_set_is_a_note(tmp_path):
    root = make_folder(tmp_path / "mine")
    for path in (root / "masks/val").iterdir():
        write_png(path, np.minimum(np.asarray(Image.open(path)), 1))
    code, report = check(tmp_path / "out", folder_data(root))
    assert code == 0
    assert report["notes"] == ["reward_set has no pixel of class stone"]


# -- everything at once ------------------------------------------------------------------------------


def test_all_problems_of_all_kinds_in_one_run(tmp_path, capsys):
    root = make_folder(tmp_path / "mine", train=12)
    train, masks = root / "images/train", root / "masks/train"
    (train / "000.png").write_bytes(b"junk")
    (train / "001.png").write_bytes((train / "001.png").read_bytes()[:900])
    (masks / "002.png").write_bytes((masks / "002.png").read_bytes()[:60])
    write_png(masks / "003.png", np.zeros((5, 5), np.uint8))
    write_png(masks / "004.png", np.full((32, 48), 9, np.uint8))
    (masks / "005.png").rename(masks / "nobody.png")
    shutil.copy(train / "006.png", root / "images/test/copy.png")
    shutil.copy(masks / "006.png", root / "masks/test/copy.png")
    (root / "images/extra").mkdir()
    shutil.copy(train / "007.png", root / "images/extra/0.png")
    (root / "masks/test/000.png").unlink()
    with (root / "dataset.yaml").open("a") as file:
        file.write("scenes: '(train|val|test)/'\n")
    code, report = check(tmp_path / "out", folder_data(root, layout=GridLayout(5, 7)))
    problems = report["problems"]
    assert code == 3
    for parts in (
        ("images/train/000.png", "not an image"),
        ("images/train/001.png", "cannot be decoded"),
        ("masks/train/002.png", "cannot be decoded"),
        ("masks/train/003.png", "mask has 5x5 pixels"),
        ("masks/train/004.png", "unknown mask ids: 9"),
        ("masks/train: holds 1 file that matches no image", "nobody.png"),
        ("subset 'extra' (1 images) is not used",),
        ("the same picture stands in", "test/copy.png", "train/006.png"),
        ("1 images of test_set have no mask, the first: test/000.png",),
        ("finds no scene in the name of image extra/0.png",),
        ("data.layout rows=5 does not divide the image height 32",),
    ):
        one(problems, *parts)
    assert len(problems) == 11
    out = capsys.readouterr().out
    assert out.count("problem: ") == 11
    assert "11 problems in 18 images" in out


def test_sets_that_cannot_be_drawn_leave_the_rest_to_be_checked(tmp_path):
    root = make_folder(tmp_path / "mine")
    data = folder_data(root, splits=SplitSizes(state=10, train=100), layout=GridLayout(5, 7))
    code, report = check(tmp_path / "out", data)
    assert code == 3
    one(report["problems"], "data.splits asks for 110 state + train images, but subset 'train' has 6 left")
    one(report["problems"], "data.layout rows=5")
    assert report["sets"] == {}
    assert Image.open(tmp_path / "out/contact_sheet.png").height > 300  # subsets instead


def test_many_problems_of_one_kind_are_cut_short_on_the_screen_only(tmp_path, capsys):
    root = make_folder(tmp_path / "mine", train=12)
    for path in (root / "images/train").iterdir():
        path.write_bytes(b"junk")
    report = check(tmp_path / "out", folder_data(root))[1]
    assert len([text for text in report["problems"] if "not an image" in text]) == 12
    out = capsys.readouterr().out
    assert out.count("not an image") == 5
    assert "problem: 7 more of this kind, all in report.json" in out


def test_empty_sets(tmp_path):
    code, report = check(tmp_path / "out", small_data(splits=SplitSizes(2, 0, reward=0, test=0, acquisition=0)))
    assert code == 3
    assert report["problems"] == [f"the {name} is empty; check data.splits" for name in ("reward_set", "train_set")]
    one(report["notes"], "the test_set is empty")
    one(report["notes"], "the acquisition_set is empty")


class Plain(SegmentationDataset):
    """A data set of somebody's own, with a mask of the wrong size and one of an unknown class."""

    class_names, colours = ("a", "b"), ((0, 0, 0), (255, 255, 255))
    names, subsets = list("uvwxyz"), ["train", "train", "train", "val", "test", "test"]

    def image_size(self, index):
        return 4, 6

    def read_image(self, index):
        return np.random.default_rng(index).integers(0, 255, (4, 6, 3), np.uint8)

    def read_mask(self, index):
        if index == 0:
            return np.zeros((3, 3), np.uint8)
        return np.tile(np.array([0, 1, 0, 1, 0, 7 if index == 1 else 255], np.uint8), (4, 1))


def test_masks_of_data_sets_of_your_own_are_checked_too(tmp_path):
    data = SegmentationData(Plain(), SplitSizes(1, 1), layout=GridLayout(2, 2))
    report = check(tmp_path / "out", data)[1]
    one(report["problems"], "the mask of image u has (3, 3) pixels, the image (4, 6)")
    one(report["problems"], "the mask of image v holds 7 x 4 pixels; there are 2 classes")
    assert len(report["problems"]) == 2


# -- the same picture twice --------------------------------------------------------------------------


def smooth(seed: int, size=(32, 48)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (4, 6, 3), np.uint8))
    return np.asarray(small.resize(size[::-1], Image.Resampling.BICUBIC))


def test_pictures_that_stand_twice(tmp_path):
    root = make_folder(tmp_path / "mine")
    for number, path in enumerate(sorted((root / "images").rglob("*.png"))):
        write_png(path, smooth(number))
    assert check(tmp_path / "out", folder_data(root))[1]["notes"] == []
    shutil.copy(root / "images/val/000.png", root / "images/val/001.png")
    Image.open(root / "images/val/000.png").convert("RGB").save(root / "images/test/re.jpg", quality=60)
    shutil.copy(root / "masks/val/000.png", root / "masks/test/re.png")
    code, report = check(tmp_path / "out", folder_data(root))
    assert code == 0
    one(report["notes"], "1 picture stands twice in one set", "val/000.png and val/001.png")
    one(report["notes"], "nearly the same picture stands in reward_set and in test_set", "test/re.jpg")
    assert report["same_pictures"] == [["val/000.png", "val/001.png"]]


# -- sizes -------------------------------------------------------------------------------------------


def test_sizes_and_how_they_come_to_the_size_of_the_run(tmp_path, capsys):
    root = make_folder(tmp_path / "mine")
    write_png(root / "images/val/000.png", np.zeros((60, 40, 3), np.uint8))
    write_png(root / "masks/val/000.png", np.ones((60, 40), np.uint8))
    report = check(tmp_path / "out", folder_data(root, size=(32, 48)))[1]
    sizes = report["sizes"]
    assert (sizes["different"], sizes["smallest"], sizes["median"], sizes["largest"]) == (
        2,
        [32, 48],
        [32, 48],
        [60, 40],
    )
    assert (sizes["landscape"], sizes["portrait"], sizes["square"], sizes["run"]) == (9, 1, 0, [32, 48])
    assert sizes["padded"]["images"] == 1
    assert sizes["scaled"] == [pytest.approx(0.53, abs=0.01), 1]
    assert "2 different, 32x48 to 60x40, median 32x48; 9 landscape, 1 portrait" in capsys.readouterr().out
    report = check(tmp_path / "out", folder_data(root, size=(32, 48), resize="stretch"))[1]
    one(report["notes"], "the proportions of 1 of 10 images change by more than a tenth", "val/000.png, 60x40")


# -- the contact sheet -------------------------------------------------------------------------------


def sheet_of(out: Path) -> np.ndarray:
    return np.asarray(Image.open(out / "contact_sheet.png")).astype(int)


def count(pixels: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((pixels == colour).all(-1).sum())


def test_the_contact_sheet_shows_damage_void_padding_and_regions(tmp_path):
    root = make_folder(tmp_path / "mine")
    (root / "images/val/000.png").write_bytes(b"junk")
    write_png(root / "masks/test/000.png", np.full((32, 48), 255, np.uint8))
    data = folder_data(root, size=(48, 48))
    check(tmp_path / "out", data)
    pixels = sheet_of(tmp_path / "out")
    assert count(pixels, (200, 30, 30)) > 500  # the cross
    assert count(pixels, (60, 60, 60)) > 20_000  # stripes of void
    assert count(pixels, (225, 225, 225)) > 100_000  # padding
    swatches = pixels[:40]
    for colour in data.dataset.colours:
        assert count(swatches, colour) > 200
    yellow = (pixels[..., 0] > 170) & (pixels[..., 2] < 90) & (pixels[..., 1] > 140)
    assert yellow.sum() > 5_000


class Corner(Layout):
    """One region that is no box."""

    def segment(self, pixels):
        numbers = torch.zeros(pixels.shape[-2:], dtype=torch.int64)
        numbers[: numbers.shape[0] // 2, : numbers.shape[1] // 2] = 1
        return numbers


@pytest.mark.parametrize("names", [["a/\u65e5\u672c.png", "\udcff.png"], ["x" * 200 + ".png", "<b>.png"]])
def test_any_layout_and_any_name(tmp_path, names):
    data = small_data(layout=Corner())
    data.dataset.names = [*names, *data.dataset.names[2:]]
    assert check_data(data, tmp_path / "out") == 0
    assert sheet_of(tmp_path / "out").shape[1] > 1000


# -- names of masks ----------------------------------------------------------------------------------


def paths(*names: str) -> list[PurePath]:
    return [PurePath(name) for name in names]


def test_the_pattern_that_explains_most_masks():
    images = paths("train/1.jpg", "train/10.jpg", "val/2.jpg")
    assert find_mask_name(images, paths("train/1_mask.png", "train/10_mask.png", "val/2_mask.png")) == "{stem}_mask"
    assert find_mask_name(images, paths("train/1.jpg.png", "train/10.jpg.png")) == "{stem}.jpg.png"
    assert find_mask_name(images, paths("train/1.png", "val/2.png")) == "{stem}"
    assert find_mask_name(images, paths("train/x.png", "train/y.png", "train/1_a.png")) is None
    assert find_mask_name(images, []) is None
    assert pair_masks(images, paths("train/1.jpg.png"), "{stem}.jpg.png")[0][0] == PurePath("train/1.jpg.png")


def test_a_png_goes_before_other_masks_of_an_image():
    pairs, others = pair_masks(paths("a.jpg"), paths("a.bmp", "a.png", "b.png"))
    assert pairs == paths("a.png")
    assert others == paths("b.png")


# -- real CamVid -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_real_camvid_has_no_problems(camvid_root, tmp_path):
    data = SegmentationData(CamVid(camvid_root), "al_splits.json", size=(128, 192))
    code, report = check(tmp_path / "out", data)
    assert code == 0
    assert report["sets"]["acquisition_set"] == 257
