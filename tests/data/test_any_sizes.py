"""Images of any size in one run: they keep their proportions, and the grid follows each of them."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ralseg.data import Folder, SegmentationData, SplitSizes
from ralseg.data.canvas import NEARLY, Canvas
from ralseg.data.samples import Draw
from ralseg.errors import DataError
from ralseg.labels import IGNORE, GridLayout, RevealedLabels
from ralseg.labels.grid import GridRegions
from ralseg.models.whole_image import segment
from support.data import write_png

SIZES = [(60, 90), (90, 60), (48, 48), (30, 120)]
sides = st.integers(1, 4000)


@given(sides, sides, st.integers(8, 600), st.integers(8, 600))
def test_content_fits_and_keeps_proportions(height, width, room_down, room_across):
    down, across = Canvas((room_down, room_across)).content(height, width)
    assert 1 <= down <= room_down
    assert 1 <= across <= room_across
    assert down == room_down or across == room_across
    if min(down, across) >= 25:  # below, whole pixels are coarse
        assert down / height == pytest.approx(across / width, rel=2 * NEARLY)


def test_own_size_and_stretching():
    assert Canvas().content(33, 44) == (33, 44)
    assert Canvas((10, 20), "stretch").content(33, 44) == (10, 20)


@given(st.sampled_from([None, (32, 64)]), st.sampled_from(["pad", "stretch"]))
def test_description_round_trip(size, resize):
    canvas = Canvas(size, resize)
    assert Canvas.from_description(canvas.describe()) == canvas


@pytest.fixture
def root(tmp_path):
    """Images of four sizes; the left half of each is of class 0, the right one of class 1."""
    for subset in ("train", "val", "test"):
        for i, (height, width) in enumerate(SIZES):
            pixels = np.zeros((height, width, 3), np.uint8)
            pixels[:, width // 2 :] = 200
            mask = np.zeros((height, width), np.uint8)
            mask[:, width // 2 :] = 1
            write_png(tmp_path / "images" / subset / f"{i}.png", pixels)
            write_png(tmp_path / "masks" / subset / f"{i}.png", mask)
    (tmp_path / "dataset.yaml").write_text("classes: [left, right]\n")
    return tmp_path


def data_of(root, size=(48, 72), layout=None, **options) -> SegmentationData:
    data = SegmentationData(
        Folder(str(root)), SplitSizes(state=1, train=2), size=size, layout=layout or GridLayout(2, 3), **options
    )
    data.setup()
    return data


def test_images_are_scaled_and_padded_with_what_counts_nowhere(root):
    data = data_of(root)
    for index in data.splits["reward_set"]:
        height, width = data.content(index)
        image, mask = data.images[index], data.masks[index]
        assert image.shape == (3, 48, 72)
        assert mask.shape == (48, 72)
        assert (mask[:height, :width] != IGNORE).all()
        assert (mask[height:] == IGNORE).all()
        assert (mask[:, width:] == IGNORE).all()
        assert (mask[:height, : width // 2 - 1] == 0).all()
        assert (mask[:height, width // 2 + 1 : width] == 1).all()
        assert (image[:, :, width // 2 + 3 :] > 150).all()  # the padding has the colour of the edge


def test_own_sizes_are_filled_up_to_the_largest(root):
    data = data_of(root, size=None)
    assert (data.height, data.width) == (90, 120)
    assert [data.content(i) for i in data.splits["test_set"]] == SIZES
    assert all(data.file_size(i) == data.content(i) for i in range(len(data.dataset)))


def test_grid_follows_each_image(root):
    data = data_of(root)
    images = data.splits["reward_set"]
    regions = data.regions("reward_set")
    numbers = [len(regions.of_image(position)) for position in range(len(images))]
    # 48x72 -> 2 x 3 cells of 24x24; 48x32 -> 2 x 1; 48x48 -> 2 x 2; 18x72 -> 1 x 3
    assert numbers == [6, 2, 4, 3]
    for position, index in enumerate(images):
        height, width = data.content(index)
        covered = torch.zeros(48, 72, dtype=torch.int64)
        file_covered = torch.zeros(data.file_size(index), dtype=torch.int64)
        for region in regions.of_image(position).tolist():
            x, y, w, h = regions.boxes(torch.tensor(region)).tolist()
            covered[y : y + h, x : x + w] += 1
            x, y, w, h = regions.file_box(region)
            file_covered[y : y + h, x : x + w] += 1
        assert (covered[:height, :width] == 1).all()
        assert covered.sum() == height * width
        assert (file_covered == 1).all()


def test_revealed_labels_put_together_are_the_mask(root):
    data = data_of(root)
    oracle, regions = data.mask_oracle("acquisition_set"), data.regions("acquisition_set")
    everything = torch.arange(len(regions))
    labels = RevealedLabels(regions)
    labels.add(everything, oracle.label(everything))
    data.masks.open(data.splits["acquisition_set"])
    for position, index in enumerate(data.splits["acquisition_set"]):
        assert torch.equal(labels.mask(regions.of_image(position).tolist()), data.masks[index])


def test_crops_of_small_images_hold_their_region(root):
    data = data_of(root, crop=(32, 40))
    regions = data.regions("acquisition_set")
    everything = torch.arange(len(regions))
    labels = RevealedLabels(regions)
    labels.add(everything, data.mask_oracle("acquisition_set").label(everything))
    samples = data.region_samples([[region] for region in everything.tolist()], labels)
    for position in range(len(samples)):
        batch = samples[Draw(position, 7 * position)]
        assert batch.image.shape == (3, 32, 40)
        assert (batch.mask != IGNORE).any()


def test_images_of_one_size_keep_the_fast_grid(root):
    data = data_of(root, resize="stretch", size=(48, 72))
    assert isinstance(data.regions("reward_set"), GridRegions)


def test_stretching_portrait_into_landscape_is_told(root, caplog):
    with caplog.at_level(logging.WARNING):
        data_of(root, resize="stretch")
    (message,) = [record.getMessage() for record in caplog.records if "proportions" in record.getMessage()]
    assert message.startswith("9 of 12 images lose their proportions by more than a quarter, the first: test/1.png")
    assert message.endswith("data.resize: pad keeps them")
    caplog.clear()
    data_of(root)
    assert not caplog.records


def test_stretching_without_a_size_names_both_ways_out(root):
    with pytest.raises(DataError, match=r"90x60 pixels.*60x90; set data.size to scale them, or data.resize: pad"):
        data_of(root, size=None, resize="stretch")


def test_a_set_of_large_images_beside_small_ones_is_cut_too(root):
    data = data_of(root, size=None, layout=GridLayout(7, 11))  # does not divide 90x120
    for name in ("reward_set", "train_set", "acquisition_set"):
        assert len(data.regions(name)) > 0
    assert len(data.regions([0])) > 0


def test_own_sizes_are_predicted_as_they_were_shown(root):
    data = data_of(root, size=None)
    assert data.canvas.room == (90, 120)
    seen = []

    def network(image, place):
        seen.append(image)
        return torch.zeros(1, 2, *image.shape[-2:])

    index = data.splits["test_set"][0]
    segment(network, data.dataset.read_image(index), data.canvas, 2)
    assert torch.equal(seen[0][0], data.images[index])
