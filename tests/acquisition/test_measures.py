"""Measures of one's own, and measures that are not there."""

import csv

import pytest
import torch

import ralseg
from ralseg.acquisition import measures
from ralseg.acquisition.scanner import Scan, scan
from ralseg.errors import ConfigError
from ralseg.labels import GridLayout
from support.data import small_data
from support.games import UNTRAINED, acquire
from support.layouts import Blobs, Images, TinyNet


@pytest.fixture
def registry(monkeypatch):
    """A copy of the registry: what a test registers is gone after it."""
    monkeypatch.setattr(measures, "MEASURES", dict(measures.MEASURES))
    return measures.MEASURES


@pytest.fixture
def brightness(registry):
    @ralseg.measure
    def brightness(seen: ralseg.RegionPredictions) -> torch.Tensor:
        """Mean value of the pixels: [r]."""
        return seen.mean(seen.cut(seen.prediction.image.float().mean(1)))

    return brightness


class Brightest(ralseg.Policy):
    needs = ralseg.Needs(measures=("brightness",))

    def scores(self, observation, generator):
        return observation.measures["brightness"]


@pytest.mark.parametrize("layout", [GridLayout(2, 3), Blobs()])
def test_an_own_measure_sees_the_pixels_of_its_region(brightness, layout):
    regions = layout.over(Images(16, 24, 3))
    wanted = torch.randperm(len(regions), generator=torch.Generator().manual_seed(0))
    found = scan(TinyNet(), regions, wanted, Scan(measures=("brightness", "margin"), batch_size=2))
    assert list(found.measures) == ["brightness", "margin"]
    for region, value in zip(wanted.tolist(), found.measures["brightness"].tolist(), strict=True):
        image = int(regions.image_of(torch.tensor([region])))
        own = layout.segment(regions.images.pixels(image)) == region - int(regions.of_image(image)[0])
        assert value == pytest.approx(float(regions.images.pixels(image).float().mean(0)[own].mean()), rel=1e-4)


def test_a_policy_chooses_by_an_own_measure(tmp_path, brightness):
    data = small_data()
    acquire(tmp_path, Brightest(), data=data, candidates="global", options=UNTRAINED)
    regions = data.regions("acquisition_set")
    pixels = torch.stack([regions.images.pixels(i) for i in range(len(regions.images))]).float().mean(1)
    everything = torch.arange(len(regions))
    values = regions.cut(pixels, regions.image_of(everything), everything).values.flatten(1).mean(1)
    brightest = values.argsort(descending=True)[:10].tolist()
    names = [data.dataset.names[index] for index in regions.images.indices]
    expected = [(names[int(regions.image_of(torch.tensor(r)))], *map(str, regions.place(r))) for r in brightest]
    with (tmp_path / "selection.csv").open() as file:
        chosen = [(row["image"], row["row"], row["column"]) for row in csv.DictReader(file)]
    assert set(chosen[:4]) == set(expected[:4])
    assert set(chosen) == set(expected)


def test_an_unknown_measure_is_an_error_that_names_those_there_are(registry):
    regions = GridLayout(2, 3).over(Images(16, 24))
    with pytest.raises(ConfigError, match=r"no measure 'margn'; did you mean 'margin'\? Measures are bald, .*margin"):
        scan(TinyNet(), regions, torch.tensor([0]), Scan(measures=("margn",)))
    with pytest.raises(ConfigError, match=r"no measure 'xyz'\. Measures are bald, .*; register one of your own"):
        measures.find_measure("xyz")


def test_an_unknown_measure_stops_an_acquisition(tmp_path, registry):
    with pytest.raises(ConfigError, match="no measure 'brightness'"):
        acquire(tmp_path, Brightest())


def test_two_measures_of_one_name_are_refused_unless_a_module_is_read_again(registry):
    def margin(seen):
        return seen.logits.mean((1, 2, 3))

    margin.__module__ = "somebody.elses"
    with pytest.raises(ConfigError, match=r"a measure 'margin' already, in ralseg\.acquisition\.measures"):
        ralseg.measure(margin)
    assert registry["margin"] is not margin

    def own(seen):
        return 1

    def again(seen):
        return 2

    again.__name__ = "own"
    ralseg.measure(own)
    assert ralseg.measure(again) is again
    assert registry["own"] is again  # as when a notebook's cell is run twice


def test_a_measure_that_reads_labels_is_for_teachers_only():
    regions = GridLayout(2, 3).over(Images(16, 24))
    with pytest.raises(ConfigError, match=r"reads the labels of unlabelled regions: only agents that are taught"):
        scan(TinyNet(), regions, torch.tensor([0]), Scan(measures=("true_rarity",)))


def test_true_rarity_tells_each_region_its_own_labels():
    regions = GridLayout(2, 3).over(Images(16, 24, 2))
    wanted = torch.tensor([7, 2, 4])
    labels = torch.tensor([0, 1, 2], dtype=torch.uint8)[:, None, None].expand(3, *regions.box_size)
    what = Scan(measures=("true_rarity",), labelled=torch.tensor([[0.7, 0.25, 0.05]]), labels=labels)
    found = scan(TinyNet(), regions, wanted, what).measures["true_rarity"]
    assert found[0] < found[1] < found[2]
