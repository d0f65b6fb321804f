"""Synthetic worlds: what they follow from, how they differ, and that a run can be made of them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ralseg.data import SegmentationData, SplitSizes, SyntheticWorlds
from ralseg.data.class_stats import class_counts
from ralseg.data.readers import IGNORE
from ralseg.data.sketch import Sketch
from ralseg.data.world import CLASSES, draw_world
from ralseg.data.world_layouts import LAYOUTS, View, draw
from ralseg.data.world_photo import photograph
from ralseg.errors import ConfigError
from ralseg.labels import GridLayout

SMALL = {"height": 64, "width": 96}
KINDS = len(CLASSES)


@pytest.fixture(scope="module")
def worlds():
    return SyntheticWorlds(num_train_worlds=2 * KINDS, num_val_worlds=1, images=20, **SMALL)


@pytest.fixture(scope="module")
def masks(worlds) -> dict[str, np.ndarray]:
    """The masks of each world: [images, height, width]."""
    found: dict[str, list[np.ndarray]] = {}
    for index in range(len(worlds)):
        found.setdefault(worlds.world(index), []).append(worlds.read_mask(index))
    return {world: np.stack(of_world) for world, of_world in found.items()}


def position(dataset, name: str) -> int:
    return dataset.names.index(name)


def same_image(one, other, name: str) -> bool:
    first, second = position(one, name), position(other, name)
    images = np.array_equal(one.read_image(first), other.read_image(second))
    return images and np.array_equal(one.read_mask(first), other.read_mask(second))


# -- what an image follows from ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["world_001/002", "val_000/001", "test_000/000"])
def test_an_image_follows_from_the_seed_its_world_and_its_number_alone(name):
    few = SyntheticWorlds(2, 1, 1, images=3, **SMALL)
    many = SyntheticWorlds(5, 3, 2, images=7, **SMALL)
    draw_world.cache_clear()  # nor does it follow from what was drawn before
    assert same_image(few, many, name)
    assert not same_image(few, SyntheticWorlds(2, 1, 1, images=3, seed=1, **SMALL), name)


def test_reading_twice_gives_the_same():
    worlds = SyntheticWorlds(KINDS, 0, images=2, **SMALL)
    for index in range(len(worlds)):
        assert same_image(worlds, worlds, worlds.names[index])


def test_keys_tell_images_apart_and_sizes():
    worlds, larger = SyntheticWorlds(2, 2, images=2), SyntheticWorlds(2, 2, images=2, height=256)
    keys = [repr(dataset.image_key(index)) for dataset in (worlds, larger) for index in range(8)]
    assert len(set(keys)) == 16
    assert worlds.mask_key(3) == SyntheticWorlds(9, 2, images=2).mask_key(3)


# -- names -------------------------------------------------------------------------------------------


def test_whole_worlds_are_held_out():
    worlds = SyntheticWorlds(2, 1, 1, images=2)
    assert [worlds.world(index) for index in range(8)] == [
        *["world_000"] * 2, *["world_001"] * 2, *["val_000"] * 2, *["test_000"] * 2
    ]  # fmt: skip
    assert worlds.subsets == ["train"] * 4 + ["val"] * 2 + ["test"] * 2
    assert worlds.names[3] == "world_001/001"
    assert len(set(worlds.names)) == 8


def test_a_world_of_another_subset_is_another_world():
    worlds = SyntheticWorlds(1, 1, 1, images=1, **SMALL)
    assert len({repr(worlds.describe_world(index)) for index in range(3)}) == 3


def test_scenes_are_the_places_of_a_world():
    worlds = SyntheticWorlds(KINDS, 0, images=30, **SMALL)
    for start in range(0, len(worlds), 30):
        scenes = {worlds.scene(index) for index in range(start, start + 30)}
        known = {f"{worlds.world(start)}/place_{i}" for i in range(len(worlds.describe_world(start).places))}
        assert scenes <= known
        assert len(scenes) > len(known) / 2


def test_a_place_has_its_own_light_and_its_own_classes():
    world = draw_world(0, 0, [draw_world(0, 0, number).kind for number in range(KINDS)].index("areas"))
    usual = replace(world.places[0], light=1.0, frequencies=(1.0,) * world.classes)
    dark, full = replace(usual, light=0.6), replace(usual, frequencies=(50.0,) + (1.0,) * (world.classes - 1))
    sketches = [draw(View(world, place, 0, 64, 96, np.random.default_rng(0))) for place in (usual, full)]
    first, more = ((sketch.mask() == 0).mean() for sketch in sketches)
    assert more > first + 0.1
    pictures = [photograph(sketches[0], world, place, np.random.default_rng(0)) for place in (usual, dark)]
    assert pictures[1].mean() < 0.8 * pictures[0].mean()


# -- how worlds differ -------------------------------------------------------------------------------


def test_every_class_of_a_world_appears_and_no_other(worlds, masks):
    for index, name in enumerate(worlds.names):
        if name.endswith("/000"):
            world = worlds.describe_world(index)
            assert set(np.unique(masks[worlds.world(index)])) - {IGNORE} == set(range(world.classes)), name


@pytest.mark.parametrize("size", [(32, 32), (40, 200)])
def test_every_class_appears_in_small_images_too(size):
    tiny = SyntheticWorlds(KINDS, 0, images=20, height=size[0], width=size[1])
    for start in range(0, len(tiny), 20):
        seen = np.unique([tiny.read_mask(index) for index in range(start, start + 20)])
        assert set(seen) - {IGNORE} == set(range(tiny.describe_world(start).classes))


def test_worlds_in_a_row_are_of_all_kinds():
    drawn = [draw_world(3, 0, number) for number in range(4 * KINDS)]
    for start in range(0, len(drawn), KINDS):
        assert {world.kind for world in drawn[start : start + KINDS]} == set(CLASSES)
    orders = [[world.kind for world in drawn[start : start + KINDS]] for start in range(0, len(drawn), KINDS)]
    assert any(first != second for first, second in pairwise(orders))


def test_most_worlds_have_few_classes_and_some_have_many():
    numbers = np.array([draw_world(0, 0, number).classes for number in range(600)])
    assert numbers.min() == 2
    assert numbers.max() == 20
    assert 0.5 < (numbers <= 6).mean() < 0.85


def test_imbalance_differs_from_nearly_none_to_rare_classes(masks):
    rarest = []
    for of_world in masks.values():
        counts = np.bincount(of_world.ravel(), minlength=256)[:IGNORE]
        shares = counts[counts > 0] / counts.sum()
        rarest.append(shares.min() * len(shares))  # 1: all the same
    assert min(rarest) < 0.1
    assert max(rarest) > 0.4


def test_void_is_rare_and_most_worlds_have_none(masks):
    void = np.array([(of_world == IGNORE).mean() for of_world in masks.values()])
    assert (void == 0).any()
    assert 0 < void.max() < 0.05


def test_worlds_of_thin_curves_are_mostly_surface(worlds, masks):
    chosen = [i for i in range(0, len(worlds), 20) if worlds.describe_world(i).kind == "curves"]
    assert len(chosen) >= 2
    for index in chosen:
        world = worlds.describe_world(index)
        lines = world.slots[max(1, min(2, world.classes // 2)) :]
        assert 0.004 < np.isin(masks[worlds.world(index)], lines).mean() < 0.08


def test_worlds_look_unlike_each_other():
    worlds = SyntheticWorlds(12, 0, images=6, **SMALL)
    means = np.array([worlds.read_image(index).mean((0, 1)) for index in range(len(worlds))]).reshape(12, 6, 3)
    within, between = means.std(1).mean(), means.mean(1).std(0).mean()
    assert between > within


def test_grey_worlds_have_no_colour_and_others_do():
    worlds = SyntheticWorlds(40, 0, images=1, height=32, width=32)
    grey = [worlds.describe_world(index).is_grey for index in range(40)]
    assert 0 < sum(grey) < 20
    for index in range(40):
        pixels = worlds.read_image(index).astype(int)
        assert bool((pixels.std(-1) == 0).all()) == grey[index]


# -- drawing -----------------------------------------------------------------------------------------


def test_every_kind_of_world_has_a_layout():
    assert set(LAYOUTS) == set(CLASSES)


def test_a_bent_sketch_takes_pixels_from_elsewhere_and_stops_at_the_edge():
    sketch = Sketch(np.array([[0, 1, 2, 3]], np.int32), [5, 6, 7, 8])
    still, one = np.zeros((1, 4), np.float32), np.ones((1, 4), np.float32)
    assert sketch.bent(still, still).mask().tolist() == [[5, 6, 7, 8]]
    assert sketch.bent(one, 9 * one).mask().tolist() == [[6, 7, 8, 8]]


# -- errors and runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"height": 31}, r"at least 32x32 pixels, got height=31, width=192"),
        ({"height": 10**6, "width": 10**6}, r"1000000x1000000 pixels are over the limit"),
        ({"num_val_worlds": -1}, r"num_val_worlds=-1 must be a number of worlds"),
        ({"num_train_worlds": 0, "num_val_worlds": 0}, r"no worlds: num_train_worlds, num_val_worlds and"),
        ({"images": 0}, r"images=0 must be 1 or more"),
        ({"images": 10**9}, r"images=1000000000 must be 1 or more, and 1000000 in all"),
        ({"seed": -3}, r"seed=-3 must be 0 or more"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        SyntheticWorlds(**options)


def test_a_run_reads_worlds():
    worlds = SyntheticWorlds(3, 2, images=4, **SMALL)
    data = SegmentationData(worlds, SplitSizes(state=2, train=6), layout=GridLayout(2, 3), batch_size=4, copies_gb=0)
    data.setup()
    assert len(data.splits.acquisition_set) == 4
    assert {worlds.world(index) for index in data.splits.reward_set} == {"val_000", "val_001"}
    images, masks, *_ = next(iter(data.train_dataloader()))
    assert images.shape == (4, 3, 64, 96)
    assert set(masks.unique().tolist()) <= {*range(20), IGNORE}
    with pytest.raises(ConfigError, match="test_set is empty"):
        data.test_dataloader()


def test_class_counts_are_kept_between_runs(tmp_path, monkeypatch):
    def counted():
        worlds = SyntheticWorlds(1, 0, images=1, **SMALL)
        SegmentationData(worlds, cache_folder=str(tmp_path))
        return class_counts(worlds, 0)

    first = counted()
    monkeypatch.setattr(SyntheticWorlds, "read_mask", lambda self, index: pytest.fail("drawn again"))
    assert counted().tolist() == first.tolist()
