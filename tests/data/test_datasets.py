import numpy as np
import pytest
from PIL import Image

from ralseg.data import GTAV, CamVid, Cityscapes, SyntheticStreets
from ralseg.data.cityscapes import LABELS
from ralseg.data.readers import IGNORE
from ralseg.errors import ConfigError, DataError
from support.data import write_png

SIZE = (1024, 2048)
# the 19 trained label ids in the order of their train ids, as published with the benchmark
TRAINED = [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33]


def every_label_id() -> np.ndarray:
    """A 1024x2048 mask with all ids from 0 to 33 and 255 (license plate, -1) in vertical stripes."""
    ids = np.array([*range(34), 255], np.uint8)
    return np.tile(ids[np.arange(SIZE[1]) * len(ids) // SIZE[1]], (SIZE[0], 1))


def expected_train_ids(ids: np.ndarray) -> np.ndarray:
    result = np.full_like(ids, IGNORE)
    for train_id, label_id in enumerate(TRAINED):
        result[ids == label_id] = train_id
    return result


def cityscapes_tree(root, train_ids: bool):
    ids = every_label_id()
    for subset, city in (("train", "aachen"), ("train", "bremen"), ("val", "lindau")):
        stem = f"{city}_000000_000019"
        write_png(root / f"leftImg8bit/{subset}/{city}/{stem}_leftImg8bit.png", np.zeros((*SIZE, 3), np.uint8))
        write_png(root / f"gtFine/{subset}/{city}/{stem}_gtFine_labelIds.png", ids)
        if train_ids:
            write_png(root / f"gtFine/{subset}/{city}/{stem}_gtFine_labelTrainIds.png", expected_train_ids(ids)[::-1])
    return root


def test_cityscapes_maps_every_label_id_exactly(tmp_path):
    dataset = Cityscapes(str(cityscapes_tree(tmp_path, train_ids=False)))
    assert dataset.names == ["aachen_000000_000019", "bremen_000000_000019", "lindau_000000_000019"]
    assert dataset.subsets == ["train", "train", "val"]
    assert len(dataset.class_names) == 19
    assert dataset.class_names[:3] == ("road", "sidewalk", "building")
    assert dataset.image_size(0) == SIZE
    assert np.array_equal(dataset.read_mask(0), expected_train_ids(every_label_id()))


def test_cityscapes_prefers_train_id_files(tmp_path):
    dataset = Cityscapes(str(cityscapes_tree(tmp_path, train_ids=True)))
    assert dataset.mask_paths[0].name.endswith("labelTrainIds.png")
    assert np.array_equal(dataset.read_mask(0), expected_train_ids(every_label_id())[::-1])


def test_cityscapes_refuses_an_unknown_id(tmp_path):
    dataset = Cityscapes(str(cityscapes_tree(tmp_path, train_ids=False)))
    mask = every_label_id()
    mask[5, 5] = 77
    write_png(dataset.mask_paths[0], mask)
    with pytest.raises(DataError, match=r"aachen.*labelIds\.png: unknown mask ids: 77 x 1 pixels"):
        dataset.read_mask(0)


@pytest.mark.parametrize("mode", ["P", "RGB"])
@pytest.mark.parametrize("classes", ["cityscapes", "camvid"])
def test_gtav_maps_every_colour_exactly(tmp_path, mode, classes):
    ids = every_label_id()
    ids[ids == 255] = 34
    colours = np.array([row.colour for row in LABELS], np.uint8)  # row 34 is the license plate
    write_png(tmp_path / "images/00001.png", np.zeros((*SIZE, 3), np.uint8))
    label = Image.fromarray(ids, "P")
    label.putpalette(colours.flatten().tolist())
    (tmp_path / "labels").mkdir()
    label.convert(mode).save(tmp_path / "labels/00001.png")

    expected = expected_train_ids(ids)
    expected[ids == 18] = 5  # polegroup shares pole's colour
    expected[ids == 34] = 13  # license plate shares car's
    dataset = GTAV(str(tmp_path), classes)
    if classes == "camvid":
        names = "road pavement building building fence pole sign sign tree tree sky pedestrian bicyclist car car car"
        names = [*names.split(), "car", "bicyclist", "bicyclist"]
        merged = np.array([dataset.class_names.index(name) for name in names] + [IGNORE] * 237, np.uint8)
        expected = merged[expected]
        assert dataset.class_names == CamVid.class_names
    assert np.array_equal(dataset.read_mask(0), expected)


def test_camvid_layout(tmp_path):
    for subset in ("train", "val", "test"):
        write_png(tmp_path / subset / f"{subset}.png", np.zeros((6, 12, 3), np.uint8))
        write_png(tmp_path / f"{subset}annot" / f"{subset}.png", np.tile(np.arange(12, dtype=np.uint8), (6, 1)))
    dataset = CamVid(str(tmp_path))
    assert dataset.names == ["test.png", "train.png", "val.png"]
    assert dataset.read_mask(0)[0].tolist() == [*range(11), IGNORE]


def test_roots_come_from_the_environment_or_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.delenv("RALSEG_CAMVID", raising=False)
    with pytest.raises(ConfigError, match=r"root or the environment's RALSEG_CAMVID"):
        CamVid()
    monkeypatch.setenv("RALSEG_CAMVID", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nowhere: no such folder \(from RALSEG_CAMVID"):
        CamVid()


# -- SyntheticStreets --------------------------------------------------------------------------------


def test_synthetic_scenes_depend_on_seed_and_index_alone():
    one, same = SyntheticStreets(num_train=3), SyntheticStreets(num_train=99, num_val=7)
    assert np.array_equal(one.read_image(2), same.read_image(2))
    assert np.array_equal(one.read_mask(2), same.read_mask(2))
    assert np.array_equal(one.read_image(3), same.read_image(99))  # the first of val
    assert not np.array_equal(one.read_mask(0), one.read_mask(1))
    assert not np.array_equal(one.read_mask(0), SyntheticStreets(seed=1).read_mask(0))


def test_synthetic_domains_share_geometry_not_appearance():
    camera, game = SyntheticStreets(), SyntheticStreets(domain="game")
    assert np.array_equal(camera.read_mask(4), game.read_mask(4))
    assert np.abs(camera.read_image(4).astype(int) - game.read_image(4)).mean() > 10


def test_synthetic_classes_are_imbalanced_like_camvid():
    streets = SyntheticStreets(num_train=120)
    counts = sum(np.bincount(streets.read_mask(i).ravel(), minlength=256) for i in range(120))
    share = {name: counts[i] / counts.sum() for i, name in enumerate(streets.class_names)}
    assert share["road"] + share["building"] + share["sky"] > 0.65
    for rare in ("pole", "sign", "pedestrian", "bicyclist"):
        assert 0.002 < share[rare] < 0.02, rare
    assert 0 < counts[IGNORE] / counts.sum() < 0.03


@pytest.mark.parametrize(("height", "width"), [(32, 32), (90, 160), (360, 480)])
def test_synthetic_scenes_of_any_size(height, width):
    streets = SyntheticStreets(num_train=1, num_val=0, num_test=0, height=height, width=width)
    assert streets.read_image(0).shape == (height, width, 3)
    assert streets.read_mask(0).shape == (height, width)


# -- real CamVid -------------------------------------------------------------------------------------


def test_real_camvid_counts_and_classes(camvid_root):
    dataset = CamVid(camvid_root)
    assert [dataset.subsets.count(s) for s in ("train", "val", "test")] == [367, 101, 233]
    for index in range(0, len(dataset), 70):
        mask = dataset.read_mask(index)
        assert mask.shape == dataset.read_image(index).shape[:2] == (360, 480)
        assert set(np.unique(mask)) <= {*range(11), IGNORE}
