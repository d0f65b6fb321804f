"""Every feature against a slow, obvious reference on random inputs."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ralseg.acquisition import features
from ralseg.acquisition.candidates import Candidates
from ralseg.acquisition.features import RegionFeatures
from ralseg.acquisition.representation import Representation
from ralseg.labels import RegionMaps

seeds = st.integers(0, 2**31)


def random_histograms(seed, rows, classes):
    generator = torch.Generator().manual_seed(seed)
    counts = torch.rand(rows, classes, generator=generator) ** 4
    return counts / counts.sum(1, keepdim=True).clamp(min=1e-9)


@given(seeds, st.integers(2, 12), st.integers(1, 9), st.integers(1, 9))
def test_entropy_map(seed, classes, height, width):
    logits = torch.randn(2, classes, height, width, generator=torch.Generator().manual_seed(seed)) * 4
    result = features.entropy_map(logits)
    for b, y, x in [(0, 0, 0), (1, height - 1, width - 1)]:
        p = np.exp(logits[b, :, y, x].double().numpy())
        p /= p.sum()
        expected = -sum(v * math.log(v) for v in p if v > 0) / math.log(classes)
        assert float(result[b, y, x]) == pytest.approx(expected, abs=1e-5)
    assert ((result >= 0) & (result <= 1)).all()


@given(seeds, st.integers(1, 6), st.integers(2, 12), st.floats(0, 1))
def test_class_histogram_leaves_void_out(seed, regions, classes, void):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, (regions, 5, 7)).astype(np.uint8)
    labels[rng.random(labels.shape) < void] = 255
    result = features.class_histogram(torch.from_numpy(labels), classes)
    for region in range(regions):
        valid = labels[region][labels[region] != 255]
        expected = [np.mean(valid == c) if valid.size else 0 for c in range(classes)]
        assert result[region].tolist() == pytest.approx(expected, abs=1e-6)


@given(seeds, st.integers(8, 40), st.integers(8, 40))
def test_pooled_entropy_drops_no_pixel(seed, height, width):
    entropy = torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))
    lowest, mean, highest = features.pooled_entropy(entropy).reshape(3, 3, 8, 8).unbind(1)
    assert torch.equal(features.pooled_entropy(entropy, "1H").reshape(3, 8, 8), highest)
    for i in range(8):
        for j in range(8):
            rows = slice(i * height // 8, -(-(i + 1) * height // 8))
            columns = slice(j * width // 8, -(-(j + 1) * width // 8))
            cell = entropy[:, rows, columns].flatten(1)
            assert torch.allclose(lowest[:, i, j], cell.amin(1))
            assert torch.allclose(mean[:, i, j], cell.mean(1), atol=1e-6)
            assert torch.allclose(highest[:, i, j], cell.amax(1))
    assert torch.allclose(highest.amax((1, 2)), entropy.amax((1, 2)))


def test_regions_smaller_than_the_pooling_grid_work():
    assert features.pooled_entropy(torch.rand(2, 3, 5)).shape == (2, 192)


@given(seeds, st.integers(1, 7), st.integers(1, 7), st.integers(2, 12))
def test_kl_divergence_of_all_pairs(seed, rows, others, classes):
    first, second = random_histograms(seed, rows, classes), random_histograms(seed + 1, others, classes)
    result = features.kl_divergence(first, second)
    for i in range(rows):
        for j in range(others):
            p = (first[i] + features.KL_EPSILON) / (first[i] + features.KL_EPSILON).sum()
            q = (second[j] + features.KL_EPSILON) / (second[j] + features.KL_EPSILON).sum()
            assert float(result[i, j]) == pytest.approx(float((p * (p / q).log()).sum()), abs=1e-4)
    assert (result <= features.kl_limit(classes) + 1e-4).all()
    assert features.kl_divergence(first, first).diag().abs().max() < 1e-5


def test_mean_divergence_needs_no_pairs():
    rng = torch.Generator().manual_seed(0)
    first, second = torch.rand(7, 5, generator=rng), torch.rand(9, 5, generator=rng)
    expected = features.kl_divergence(first, second).mean(1)
    assert torch.allclose(features.mean_kl_divergence(first, second), expected, atol=1e-5)


def test_kl_limit_is_reached_by_opposites():
    one = torch.eye(5)
    assert float(features.kl_divergence(one[:1], one[1:2])) == pytest.approx(features.kl_limit(5), rel=1e-4)


@given(seeds, st.integers(1, 40), st.integers(0, 40), st.integers(1, 16))
def test_kl_histogram_is_tiled_exactly(seed, rows, others, tile):
    first, second = random_histograms(seed, rows, 6), random_histograms(seed + 1, others, 6)
    result = features.kl_histogram(first, second, tile)
    if others == 0:
        assert (result == 0).all()  # no labelled region yet
        return
    assert torch.allclose(result.sum(1), torch.ones(rows))
    divergence = features.kl_divergence(first, second)
    width = features.kl_limit(6) / features.KL_BINS
    expected = torch.zeros(rows, features.KL_BINS)
    for i in range(rows):
        for j in range(others):
            expected[i, min(int(divergence[i, j] / width), features.KL_BINS - 1)] += 1 / others
    assert (result - expected).abs().sum() <= 2 / others  # one pair on the edge of a bin may fall either way


def test_divergences_from_very_many_are_counted_from_a_sample(monkeypatch):
    first, second = random_histograms(0, 30, 6), random_histograms(1, 20_000, 6)
    exact = features.kl_histogram(first, second)
    monkeypatch.setattr(features, "KL_OTHERS", 20_000)
    assert torch.equal(features.kl_histogram(first, second), exact)  # up to the limit nothing is drawn
    few = features.sampled(second, 8_000)
    assert torch.equal(few, features.sampled(second, 8_000))
    sampled = features.kl_histogram(first, few)
    assert 0 < (sampled - exact).abs().max() <= (math.log(2 / 4e-6) / 2 / 8_000) ** 0.5  # Hoeffding's bound
    monkeypatch.setattr(features, "KL_OTHERS", 8_000)
    assert torch.equal(features.kl_histogram(first, second), sampled)


def test_histograms_tell_half_near_half_far_from_all_in_between():
    region = torch.tensor([[1.0, 0.0]])
    same, opposite, mixed = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]])
    half = features.kl_histogram(region, torch.cat([same, opposite]))
    between = features.kl_histogram(region, torch.cat([mixed, mixed]))
    assert (half > 0).sum() == 2
    assert half[0, 0] == half[0, -1] == 0.5
    assert (between > 0).sum() == 1


@given(seeds, st.integers(1, 4), st.integers(1, 5), st.integers(1, 6))
def test_standardised(seed, pools, size, width):
    values = torch.randn(pools, size, width, generator=torch.Generator().manual_seed(seed)) * 7 + 3
    values[..., 0] = 5.0  # constant
    result = features.standardised(values)
    assert (result[..., 0] == 0).all()
    assert (result.abs() <= 4).all()
    if pools * size > 1 and width > 1:
        flat = values[..., 1:].reshape(-1, width - 1)
        expected = ((flat - flat.mean(0)) / flat.std(0, correction=0)).clamp(-4, 4)
        assert torch.allclose(result[..., 1:].reshape(-1, width - 1), expected, atol=1e-4)


def some_regions(number, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    predicted = torch.randint(0, classes, (number, 16, 16), generator=generator)
    entropy = RegionMaps(torch.rand(number, 16, 16, generator=generator), None)
    return features.region_features(predicted, entropy, classes, "3H")


def test_one_class_regions_and_constant_entropy_give_finite_features():
    entropy = RegionMaps(torch.full((6, 9, 9), 0.5), None)
    regions = features.region_features(torch.zeros(6, 9, 9, dtype=torch.int64), entropy, 4, "3H")
    for kind in ("1H", "3H", "3H+KL", "summary"):
        actions = Representation(kind, standardise=True).actions(
            Candidates(regions, torch.zeros(0, 4)), torch.Size([2, 3])
        )
        assert actions.isfinite().all()
        assert (actions == 0).all()  # nothing tells them apart


@pytest.mark.parametrize("kind", ["1H", "3H", "3H+KL", "summary"])
def test_dimensions_are_what_is_announced(kind):
    representation = Representation(kind)
    regions = some_regions(6)
    if kind == "1H":
        regions = RegionFeatures(regions.histogram, regions.pooled[:, -64:], regions.moments)
    actions = representation.actions(Candidates(regions, random_histograms(0, 5, 4)), torch.Size([2, 3]))
    assert actions.shape == (2, 3, representation.num_action_features(4) + 1)
    if kind != "summary":
        assert regions.vector().shape[1] == representation.num_state_features(4)


def test_papers_dimensions():
    assert Representation("3H+KL").num_state_features(11) == 11 + 192
    assert Representation("3H+KL").num_action_features(19) == 19 + 192 + 64
    assert Representation("1H").num_action_features(11) == 11 + 64
    assert Representation("summary").num_action_features(11) == 19


def test_features_follow_their_region_when_candidates_are_permuted():
    regions, order = some_regions(12), torch.randperm(12, generator=torch.Generator().manual_seed(3))
    moved = regions[order]
    labelled = random_histograms(1, 5, 4)
    for kind in ("3H+KL", "summary"):
        one = Representation(kind, True).actions(Candidates(regions, labelled), torch.Size([3, 4])).flatten(0, 1)
        two = Representation(kind, True).actions(Candidates(moved, labelled), torch.Size([3, 4])).flatten(0, 1)
        assert torch.allclose(one[order], two, atol=1e-4)


def test_summary_prefers_rare_classes():
    predicted = torch.stack([torch.full((8, 8), c) for c in range(3)])
    regions = features.region_features(predicted, RegionMaps(torch.full((3, 8, 8), 0.5), None), 3, "3H")
    labelled = torch.tensor([[0.9, 0.1, 0.0]] * 4)
    rarity = features.summary_features(regions, labelled)[:, -2]
    assert rarity[0] < rarity[1] < rarity[2]
