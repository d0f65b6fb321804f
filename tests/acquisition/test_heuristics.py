"""Acquisition functions against slow, obvious references."""

import math
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from ralseg.acquisition import measures
from ralseg.acquisition.features import entropy_map
from ralseg.acquisition.heuristics import (
    HEURISTICS,
    ClassBalancedEntropy,
    Coreset,
    Entropy,
    PowerBald,
    RareBald,
    Uniform,
)
from ralseg.acquisition.measures import MEASURES, RegionPredictions
from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import Needs
from ralseg.acquisition.scanner import Scan, scan
from ralseg.errors import ConfigError
from ralseg.labels import GridLayout, RegionMaps
from ralseg.labels.grid import Cells
from ralseg.models.prediction import Seeds
from ralseg.models.smp import SmpPrediction, SmpSegmenter
from ralseg.runtime.seeding import mixed_seed
from support.data import small_data
from support.games import segmenter as make_segmenter
from support.layouts import Blobs

SPOTS = ((1, 0), (0, 1), (1, -1), (2, 0))  # images, and which of their regions


def predictions(logits: torch.Tensor) -> RegionPredictions:
    return RegionPredictions(None, None, None, None, RegionMaps(logits, None), [], torch.empty(0, 0))


def observation(pools=(3, 4), picks=1, seed=0, **given) -> Observation:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.arange(math.prod(pools)).reshape(pools)
    entropy = torch.rand(pools, generator=generator)
    histogram = torch.rand(*pools, 3, generator=generator)
    return Observation(torch.empty(0, 0), numbers, torch.empty(*pools, 0), entropy, histogram, picks, **given)


@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 5))
def test_pixel_measures_equal_slow_references(seed, num_classes, size):
    logits = 3 * torch.randn(2, num_classes, size, size + 1, generator=torch.Generator().manual_seed(seed))
    found = {
        name: MEASURES[name](predictions(logits)) for name in ("margin", "confidence", "probability", "class_entropy")
    }
    for region, values in enumerate(logits):
        pixels = values.flatten(1).T.softmax(1).tolist()
        count = len(pixels)
        ordered = [sorted(p, reverse=True) for p in pixels]
        assert found["margin"][region] == pytest.approx(sum(p[0] - p[1] for p in ordered) / count, abs=1e-5)
        assert found["confidence"][region] == pytest.approx(sum(p[0] for p in ordered) / count, abs=1e-5)
        for c in range(num_classes):
            assert found["probability"][region, c] == pytest.approx(sum(p[c] for p in pixels) / count, abs=1e-5)
            own = [-sum(q * math.log(q) for q in p if q > 0) for p in pixels if p.index(max(p)) == c]
            expected = sum(own) / math.log(num_classes) / count
            assert found["class_entropy"][region, c] == pytest.approx(expected, abs=1e-4)
        assert found["class_entropy"][region].sum() == pytest.approx(float(entropy_map(values[None]).mean()), abs=1e-5)


@pytest.fixture(scope="module")
def seen():
    """A segmenter, its data, and all regions of three images."""
    data = small_data()
    data.setup()
    segmenter = make_segmenter(cache_features=False).eval()
    return segmenter, data, torch.tensor([17, 0, 3, 4, 8])


def measured(seen, name, seed=5, batch_size=16):
    segmenter, data, regions = seen
    what = Scan(measures=(name,), seed=seed, batch_size=batch_size)
    return scan(segmenter, data.regions("acquisition_set"), regions, what).measures[name]


def test_bald_equals_a_reference_that_keeps_all_samples(seen):
    segmenter, data, regions = seen
    grid = data.regions("acquisition_set")
    positions = grid.image_of(regions).unique()
    images = [data.splits["acquisition_set"][i] for i in positions.tolist()]
    drop = segmenter.dropout
    with torch.no_grad():
        decoded = segmenter.decode(segmenter.encode(data.images.stack(images)))
        generators = [torch.Generator().manual_seed(mixed_seed(5, index)) for index in images]
        samples = []
        for _ in range(measures.BALD_SAMPLES):
            numbers = torch.stack([torch.rand(decoded.shape[1], generator=generator) for generator in generators])
            mask = (numbers[..., None, None] >= drop) / (1 - drop)
            samples.append(segmenter.upsample(segmenter.classify(decoded * mask), 64, 96, 2).softmax(1))
    every = torch.stack(samples)  # [samples, b, C, H, W]
    information = torch.special.entr(every.mean(0)).sum(1) - torch.special.entr(every).sum(2).mean(0)
    cells = grid.split(information / math.log(every.shape[2])).flatten(1, 2).flatten(2).mean(2)
    expected = [cells[positions.tolist().index(r // 6), r % 6] for r in regions.tolist()]
    assert measured(seen, "bald").tolist() == pytest.approx(torch.stack(expected).tolist(), abs=1e-6)
    assert measured(seen, "bald").min() > 0


def test_bald_of_an_image_does_not_depend_on_its_company(seen):
    alone = measured(seen, "bald", batch_size=1)
    assert alone.tolist() == pytest.approx(measured(seen, "bald").tolist(), abs=1e-6)
    assert alone.tolist() != pytest.approx(measured(seen, "bald", seed=6).tolist(), abs=1e-6)


def test_bald_keeps_sums_not_samples(seen, monkeypatch):
    alive, most = weakref.WeakSet(), 0
    sampled_at = SmpPrediction.sampled_at

    def watched(self, *given):
        nonlocal most
        for logits in sampled_at(self, *given):
            alive.add(logits)
            most = max(most, len(alive))
            yield logits

    monkeypatch.setattr(SmpPrediction, "sampled_at", watched)
    measured(seen, "bald")
    assert 1 <= most <= 2  # the present sample's logits and, at most, the last one's


@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize("layout", [GridLayout(2, 3), Cells(25.0, 35.0), Blobs()])
@pytest.mark.parametrize(("arch", "size"), [("FPN", (48, 84)), ("Linknet", (48, 84)), ("Unet", (48, 84))])
def test_samples_at_regions_are_those_of_whole_images_to_rounding(arch, size, layout, stride):
    """What is computed in windows alone is what upsampling whole maps under every mask gives, and cutting them."""
    data = small_data(size=size, layout=layout)
    data.setup()
    torch.manual_seed(1)
    segmenter = SmpSegmenter(
        data.class_names, arch=arch, encoder="tu-test_resnet", encoder_weights="none", label_stride=stride
    ).eval()
    regions = data.regions("acquisition_set")
    rows, numbers = torch.tensor([1, 0, 1, 2]), torch.cat([regions.of_image(i)[j][None] for i, j in SPOTS])
    with torch.no_grad():
        images = data.images.stack(data.splits["acquisition_set"][:3])
        prediction = segmenter.predict_batch(images, torch.arange(3))
        seeds = Seeds(3, [7, 8, 9])
        found = list(prediction.sampled_at(regions, rows, numbers, 3, seeds))
        expected = [regions.cut(logits, rows, numbers).values for logits in prediction.sampled(3, seeds)]
    assert len(found) == len(expected) == 3
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one, other, rtol=0, atol=2e-6 * float(other.abs().max()))
    assert not torch.allclose(found[0], found[1], atol=1e-3)


def test_bald_holds_for_logits_far_from_zero(seen, monkeypatch):
    """A closed form's logits may be thousands, all of them: differences must not drown in rounding."""
    before, sampled_at = measured(seen, "bald"), SmpPrediction.sampled_at
    monkeypatch.setattr(
        SmpPrediction, "sampled_at", lambda self, *given: (logits + 512 for logits in sampled_at(self, *given))
    )
    assert measured(seen, "bald").tolist() == pytest.approx(before.tolist(), abs=2e-5)


def test_bald_is_nothing_without_dropout(seen, monkeypatch):
    monkeypatch.setattr(seen[0], "dropout", 0.0)
    with pytest.raises(ConfigError, match=r"BALD samples the decoder's dropout, but model\.dropout is 0\.0"):
        measured(seen, "bald")


def test_embeddings_are_means_over_regions(seen):
    segmenter, data, regions = seen
    found = measured(seen, "embedding")
    region = int(regions[2])
    grid = data.regions("acquisition_set")
    image = data.splits["acquisition_set"][region // 6]
    with torch.no_grad():
        decoded = segmenter.decode(segmenter.encode(data.images.stack([image])))[0]
    x, y, width, height = (v // 4 for v in grid.boxes(torch.tensor(region)).tolist())
    assert found[2].tolist() == pytest.approx(decoded[:, y : y + height, x : x + width].mean((1, 2)).tolist(), abs=1e-5)


def k_center(points: list[torch.Tensor], labelled: list[torch.Tensor], count: int) -> list[int]:
    """Brute force: again and again the point whose nearest centre is farthest away."""
    centres, chosen = list(labelled), []
    for _ in range(count):
        free = [i for i in range(len(points)) if i not in chosen]
        gaps = {i: min((float((points[i] - c).norm()) for c in centres), default=math.inf) for i in free}
        chosen.append(max(free, key=lambda i: gaps[i]))
        centres.append(points[chosen[-1]])
    return chosen


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(0, 3))
def test_global_coreset_is_k_center_greedy(seed, picks, num_labelled):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(1, 9, 2, generator=generator)
    labelled = torch.randn(num_labelled, 2, generator=generator)
    known = {"embedding": labelled} if num_labelled else {}
    seen = observation((1, 9), picks, measures={"embedding": points}, labelled_measures=known)
    chosen = Coreset().scores(seen, generator).topk(picks).indices[0].tolist()
    assert chosen == k_center(list(points[0]), list(labelled), picks)


def test_coreset_in_pools_takes_the_farthest_of_each_in_turn():
    points = torch.tensor([[[0.0], [9.0]], [[9.1], [5.0]], [[8.9], [2.5]]])
    seen = observation((3, 2), measures={"embedding": points}, labelled_measures={"embedding": torch.zeros(1, 1)})
    assert Coreset().scores(seen, torch.Generator()).argmax(1).tolist() == [1, 1, 1]


def test_uniform_is_uniform():
    counts = torch.zeros(6)
    for seed in range(1200):
        counts[Uniform().scores(observation((1, 6)), torch.Generator().manual_seed(seed)).argmax()] += 1
    assert chisquare(counts.numpy()).pvalue > 0.001


def test_power_bald_samples_in_proportion():
    bald = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    counts = torch.zeros(4)
    for seed in range(2000):
        seen = observation((1, 4), measures={"bald": bald})
        counts[PowerBald().scores(seen, torch.Generator().manual_seed(seed)).argmax()] += 1
    assert chisquare(counts.numpy(), 2000 * bald[0].numpy()).pvalue > 0.001


def test_entropy_is_the_mean_entropy():
    seen = observation()
    assert Entropy().scores(seen, torch.Generator()) is seen.entropy


def test_class_balance_prefers_what_is_rare_among_the_labels():
    by_class = torch.tensor([[[0.5, 0.0], [0.0, 0.4]]])  # more entropy on class 0
    fresh = observation((1, 2), measures={"class_entropy": by_class})
    assert ClassBalancedEntropy().scores(fresh, torch.Generator()).argmax() == 0
    later = observation((1, 2), measures={"class_entropy": by_class}, labelled=torch.tensor([[0.9, 0.1]]))
    assert ClassBalancedEntropy().scores(later, torch.Generator()).argmax() == 1


def test_rare_bald_adds_what_labels_are_short_of_to_bald():
    classes = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]])  # one pool: all of class 0, all of class 1, both

    def scores(bald, labels):
        measures = {"probability": classes, "bald": torch.tensor([bald])}
        return RareBald().scores(observation((1, 3), measures=measures, labelled=torch.tensor([labels])), None)[0]

    rare, alike = [0.9, 0.1], [0.5, 0.5]
    assert scores([0.1, 0.1, 0.1], rare).argsort().tolist() == [0, 2, 1]
    assert scores([0.3, 0.1, 0.2], alike).argsort().tolist() == [1, 2, 0]
    # both in deviations within the step: what one says of a region, the other can take back
    assert scores([0.3, 0.1, 0.2], rare).tolist() == pytest.approx([0, 0, 0], abs=1e-4)


def test_every_heuristic_scores_every_candidate(seen):
    segmenter, data, regions = seen
    for name, kind in HEURISTICS.items():
        found = scan(segmenter, data.regions("acquisition_set"), regions[:4], Scan(measures=kind.needs.measures))
        policy = kind()
        shaped = {key: values.unflatten(0, (2, 2)) for key, values in found.measures.items()}
        scores = policy.scores(observation((2, 2), measures=shaped), torch.Generator())
        assert scores.shape == (2, 2), name
        assert scores.isfinite().all(), name


def test_who_does_not_look_cannot_ask_for_anything():
    with pytest.raises(ConfigError, match=r"Needs\(looks=False\) computes nothing"):
        Needs(measures=("bald",), looks=False)
