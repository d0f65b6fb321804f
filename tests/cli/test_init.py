"""`ralseg init`: what is chosen for which data, and that the file it writes is one."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ralseg import cli
from ralseg.data import SegmentationData, SplitSizes
from ralseg.data.canvas import Canvas
from ralseg.data.first_look import first_look
from ralseg.errors import ConfigError, DataError
from ralseg.project import CPU_PIXELS, choose, choose_frame, init_project
from support.data import striped_folder as make

sizes = st.lists(st.tuples(st.integers(100, 4000), st.integers(100, 4000)), min_size=1, max_size=5)


@given(sizes, st.sampled_from([CPU_PIXELS, 4 * CPU_PIXELS]))
def test_frames_hold_whole_square_regions_and_about_the_pixels_asked_for(found, pixels):
    frame = choose_frame(found, pixels)
    height, width = frame.size or found[0]
    assert (height, width) == (frame.rows * frame.cell[0], frame.columns * frame.cell[1])
    for size in found:
        content = Canvas(frame.size).content(*size)
        assert content[0] <= height
        assert content[1] <= width
    assert height * width <= 2.6 * pixels


def test_portrait_and_landscape_fit_one_square():
    frame = choose_frame([(3000, 4000), (4000, 3000)], CPU_PIXELS)
    assert frame.size is not None
    assert frame.size[0] == frame.size[1]


@pytest.mark.parametrize(
    ("files", "splits", "to_acquire", "asks_people"),
    [
        ({"labelled": 40}, SplitSizes(2, 8), 30, False),
        ({"labelled": 6, "unlabelled": 50}, SplitSizes(1, 5), 50, True),
        ({"labelled": 40, "subsets": ("train", "test")}, SplitSizes(1, 7, reward=8, reward_from_train=True), 24, False),
        ({"labelled": 40, "subsets": ("train", "val")}, SplitSizes(1, 7, reward=8, reward_from_train=True), 24, False),
        (
            {"labelled": 40, "subsets": ("train",)},
            SplitSizes(1, 5, reward=8, test=8, reward_from_train=True, test_from_train=True), 18, False,
        ),
        ({"labelled": 40, "subsets": ("",)}, SplitSizes(1, 5), 18, False),
    ],
)  # fmt: skip
def test_sets_follow_from_what_is_labelled(tmp_path, files, splits, to_acquire, asks_people):
    found = first_look(make(tmp_path, **files))
    chosen = choose(found, CPU_PIXELS)
    assert chosen.splits == splits
    assert chosen.to_acquire == to_acquire
    assert chosen.asks_people == asks_people
    data = SegmentationData(found.dataset, chosen.splits)
    data.setup()
    assert len(data.splits["acquisition_set"]) == to_acquire
    assert all(data.splits[name] for name in ("state_set", "train_set", "reward_set", "test_set"))
    assert len(data.splits["state_set"] + data.splits["train_set"]) == chosen.known


def test_too_few_labels_say_how_many_are_needed(tmp_path):
    with pytest.raises(DataError, match="3 labelled images of train are too few; label at least 4 images"):
        choose(first_look(make(tmp_path, labelled=3)), CPU_PIXELS)


def test_a_folder_with_another_name_for_train_is_named(tmp_path):
    with pytest.raises(DataError, match=r"subset 'training' \(6 images\) is not used.*rename it to 'train'"):
        choose(first_look(make(tmp_path, subsets=("training", "val", "test"))), CPU_PIXELS)


def test_a_test_set_whose_masks_are_withheld_is_left_alone(tmp_path):
    make(tmp_path, labelled=40)
    for path in (tmp_path / "masks" / "test").iterdir():
        path.unlink()
    found = first_look(tmp_path)
    chosen = choose(found, CPU_PIXELS)
    data = SegmentationData(found.dataset, chosen.splits)
    data.setup()
    assert len(data.labelled_images("test_set")) == 40  # val; the reward set is from train
    assert len(data.labelled_images("reward_set")) == 8


def test_the_file_is_not_written_over_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "my photos", size=(60, 90))
    assert cli.main(["init", "my photos"]) == 0
    told = capsys.readouterr().out
    assert "images: train 6 (6 labelled), val 6 (6 labelled), test 6 (6 labelled)" in told
    assert "ralseg acquire --config my_photos.yaml" in told
    content = yaml.safe_load((tmp_path / "my_photos.yaml").read_text())
    assert content["data"]["dataset"]["init_args"]["root"] == "my photos"
    with pytest.raises(ConfigError, match="is there already"):
        init_project("my photos")
    assert cli.main(["init", "my photos", "--overwrite", "--classes", "ground, crack"]) == 0
    content = yaml.safe_load((tmp_path / "my_photos.yaml").read_text())
    assert content["data"]["dataset"]["init_args"]["classes"] == ["ground", "crack"]
