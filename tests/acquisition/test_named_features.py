"""Named features by hand, and that no class enters them."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ralseg
from ralseg.acquisition import features, named_features
from ralseg.acquisition.candidates import Candidates
from ralseg.acquisition.features import KL_EPSILON, RegionFeatures, standardised
from ralseg.acquisition.named_features import FEATURES, GENERAL, describe, feature
from ralseg.acquisition.observation import Observation
from ralseg.acquisition.representation import Representation
from ralseg.agents import FeaturePolicy
from ralseg.errors import ConfigError
from ralseg.labels import GridLayout

BY_CLASS = ("probability", "class_entropy")
IN_IMAGE = 12
"""Regions of an image, in four rows and three columns."""


@dataclass
class Images:
    """So many images of 64 x 96 pixels that nobody looks at."""

    number: int
    height: int = 64
    width: int = 96

    def __len__(self):
        return self.number

    def content(self, position):
        return self.height, self.width


def grid(images=3):
    return GridLayout(4, 3).over(Images(images))


def shares(rows, classes, generator):
    values = torch.rand(rows, classes, generator=generator) ** 3
    return values / values.sum(1, keepdim=True)


def some(number=8, labelled=3, before=2, classes=4, images=3, width=5, seed=0, alike=False) -> Candidates:
    """Candidates about which everything is drawn at random; or that are all alike."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(images * IN_IMAGE, generator=generator)
    numbers, taken = order[:number], order[number : number + labelled]
    frames = torch.randn(images, width, generator=generator)
    measures = {
        "margin": torch.rand(number, generator=generator),
        "bald": torch.rand(number, generator=generator),
        "probability": shares(number, classes, generator),
        "class_entropy": shares(number, classes, generator) * 0.5,
        "embedding": torch.randn(number, width, generator=generator),
        "frame": frames[numbers // IN_IMAGE],
    }
    moments = torch.rand(number, 3, generator=generator)
    seen = RegionFeatures(shares(number, classes, generator), torch.zeros(number, 0), moments, measures)
    if alike:
        seen = seen[torch.zeros(number, dtype=torch.int64)]
    known = {
        "embedding": torch.randn(len(taken) + before, width, generator=generator),
        "frame": torch.randn(len(taken) + before, width, generator=generator),
    }
    label_shares = shares(len(taken), classes, generator)
    its_shares = shares(before, classes, generator)
    return Candidates(seen, label_shares, its_shares, known, numbers, taken, grid(images), 0.25)


def seen_as(histogram, moments=None, **measures) -> RegionFeatures:
    histogram = torch.tensor(histogram)
    moments = torch.zeros(len(histogram), 3) if moments is None else torch.tensor(moments)
    found = {name: torch.tensor(values) for name, values in measures.items()}
    return RegionFeatures(histogram, torch.zeros(len(histogram), 0), moments, found)


def value(name, candidates) -> list[float]:
    return describe((name,), candidates)[:, 0].tolist()


# -- how unsure the segmenter is ------------------------------------------------------------------


def test_uncertainty_is_told_as_it_was_measured():
    seen = seen_as([[1.0, 0.0]] * 2, [[0.1, 0.5, 0.2], [0.3, 0.9, 0.4]], margin=[0.7, 0.8], bald=[0.01, 0.02])
    names = ("entropy", "entropy_max", "entropy_deviation", "margin", "bald")
    found = describe(names, Candidates(seen, torch.zeros(0, 2)))
    assert torch.equal(found, torch.tensor([[0.1, 0.5, 0.2, 0.7, 0.01], [0.3, 0.9, 0.4, 0.8, 0.02]]))


def test_entropies_by_class_are_ranked():
    names = ("class_entropy_1", "class_entropy_2", "class_entropy_3")
    many = seen_as([[1.0, 0.0, 0.0]] * 2, class_entropy=[[0.1, 0.3, 0.2], [0.5, 0.0, 0.4]])
    found = describe(names, Candidates(many, torch.zeros(0, 3)))
    assert torch.equal(found, torch.tensor([[0.3, 0.2, 0.1], [0.5, 0.4, 0.0]]))
    two = seen_as([[1.0, 0.0]], class_entropy=[[0.1, 0.3]])
    assert torch.equal(describe(names, Candidates(two, torch.zeros(0, 2))), torch.tensor([[0.3, 0.1, 0.0]]))


# -- what classes it seems to hold ----------------------------------------------------------------


def frequency(*values):
    return [(share + KL_EPSILON) / (1 + len(values) * KL_EPSILON) for share in values]


def test_rarity_counts_a_class_by_what_labels_hold_of_it():
    seen = seen_as([[1.0, 0.0]] * 3, probability=[[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], class_entropy=[[0.2, 0.1]] * 3)
    candidates = Candidates(seen, torch.tensor([[0.8, 0.2], [1.0, 0.0]]))
    common, rare = frequency(0.9, 0.1)
    often, seldom = common**-0.5, rare**-0.5
    assert value("rarity", candidates) == pytest.approx([often, seldom, (often + seldom) / 2], rel=1e-5)
    steep = [1 / common, 1 / rare, (1 / common + 1 / rare) / 2]
    assert value("rarity_steep", candidates) == pytest.approx(steep, rel=1e-5)
    assert value("rare_entropy", candidates) == pytest.approx([0.2 * often + 0.1 * seldom] * 3, rel=1e-5)


@pytest.mark.parametrize("name", ["rarity", "rarity_steep", "rare_entropy", "rare_and_unsure", "divergence_labelled"])
def test_the_labels_of_theta_0_count(name):
    one, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.2, 0.8]])
    seen = seen_as(
        [[0.9, 0.1], [0.3, 0.7]],
        [[0.1, 0.0, 0.0], [0.3, 0.0, 0.0]],
        probability=[[0.9, 0.1], [0.3, 0.7]],
        class_entropy=[[0.4, 0.1], [0.1, 0.3]],
    )
    with_both = value(name, Candidates(seen, one, other))
    assert with_both == value(name, Candidates(seen, torch.cat([one, other])))
    assert with_both != value(name, Candidates(seen, one))


def test_choices_balance_each_other_whatever_theta_0_saw():
    seen = seen_as([[1.0, 0.0]] * 2, probability=[[1.0, 0.0], [0.3, 0.7]])
    chosen, before = torch.tensor([[0.2, 0.8]]), torch.tensor([[1.0, 0.0]] * 5)
    first, second = (share**-0.5 for share in frequency(0.2, 0.8))
    found = value("rarity_chosen", Candidates(seen, chosen, before))
    assert found == pytest.approx([first, 0.3 * first + 0.7 * second], rel=1e-5)
    assert found == value("rarity_chosen", Candidates(seen, chosen))


def test_before_a_region_is_chosen_all_are_alike():
    probability = torch.rand(50, 11, generator=torch.Generator().manual_seed(0)).softmax(1)
    seen = seen_as(probability.tolist(), probability=probability.tolist())
    candidates = Candidates(seen, torch.zeros(0, 11), torch.eye(11))
    assert (standardised(describe(("rarity_chosen",), candidates)) == 0).all()


def test_without_labels_no_class_is_rarer():
    seen = seen_as([[1.0, 0.0]] * 2, probability=[[1.0, 0.0], [0.0, 1.0]])
    assert value("rarity", Candidates(seen, torch.zeros(0, 2))) == pytest.approx([2**0.5] * 2)


def test_rare_and_unsure_asks_for_both():
    moments = [[0.1, 0.0, 0.0], [0.1, 0.0, 0.0], [0.3, 0.0, 0.0], [0.3, 0.0, 0.0]]
    seen = seen_as([[1.0, 0.0]] * 4, moments, probability=[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    found = value("rare_and_unsure", Candidates(seen, torch.tensor([[0.9, 0.1]])))
    assert found == pytest.approx([1, -1, -1, 1], abs=1e-4)  # neither of them; one; one; both


def test_predicted_classes_are_counted_and_mixed():
    candidates = Candidates(seen_as([[0.5, 0.49, 0.01], [1.0, 0.0, 0.0], [0.4, 0.3, 0.3]]), torch.zeros(0, 3))
    assert value("classes", candidates) == [2, 1, 3]
    pure = -sum(p * math.log(p) for p in frequency(1.0, 0.0, 0.0))
    found = value("mixture", candidates)
    assert found[1] == pytest.approx(pure, rel=1e-4)
    assert found[1] < found[0] < found[2]


def test_divergence_is_the_mean_over_what_it_is_compared_with():
    candidates = some()
    own = candidates.seen.histogram
    known = features.kl_divergence(own, candidates.known).mean(1)
    assert value("divergence_labelled", candidates) == pytest.approx(known.tolist(), abs=1e-5)
    others = features.kl_divergence(own, own).mean(1)
    assert value("divergence_candidates", candidates) == pytest.approx(others.tolist(), abs=1e-5)


# -- how far it lies from what is labelled --------------------------------------------------------


def test_distances_are_in_deviations_of_the_candidates():
    seen = seen_as([[1.0, 0.0]] * 2, embedding=[[1.0, 10.0], [3.0, 30.0]])  # one deviation from their mean, each
    no_labels = torch.zeros(0, 2)
    assert value("nearest_labelled", Candidates(seen, no_labels)) == [0, 0]  # nothing is known: all alike
    assert value("novelty", Candidates(seen, no_labels)) == pytest.approx([2**0.5] * 2)
    known = {"embedding": torch.tensor([[3.0, 30.0], [3.0, 60.0]])}  # (1, 1) and (1, 4) in deviations
    candidates = Candidates(seen, torch.tensor([[1.0, 0.0]] * 2), measures=known)
    assert value("nearest_labelled", candidates) == pytest.approx([8**0.5, 0], abs=1e-6)
    second = torch.tensor([[3.0, 5.0], [5.0, 18.0]])  # the unit matrix and the two products
    expected = float(torch.ones(2) @ second.inverse() @ torch.ones(2)) ** 0.5
    assert value("novelty", candidates) == pytest.approx([expected] * 2, rel=1e-5)


@pytest.mark.parametrize("region", [0, 3])
def test_what_is_like_a_labelled_region_is_less_novel(region):
    candidates = some(labelled=0, before=4)
    before = value("novelty", candidates)
    known = candidates.measures["embedding"]
    more = torch.cat([candidates.seen.measures["embedding"][region][None], known])
    after_labelling = replace(candidates, measures=candidates.measures | {"embedding": more})
    after = value("novelty", after_labelling)
    assert after[region] < 0.9 * before[region]
    assert all(new <= old + 1e-5 for new, old in zip(after, before, strict=True))
    near = value("nearest_labelled", after_labelling)
    assert near[region] == pytest.approx(0, abs=1e-2)
    assert min(near[:region] + near[region + 1 :]) > 0.1


def test_images_are_as_far_as_their_embeddings():
    seen = seen_as([[1.0, 0.0]] * 4, frame=[[0.0], [0.0], [2.0], [2.0]])
    known = {"frame": torch.tensor([[2.0], [7.0]])}
    assert value("nearest_frame", Candidates(seen, torch.zeros(2, 2), measures=known)) == [2, 2, 0, 0]


@pytest.mark.parametrize("name", ["embedding", "frame"])
def test_a_channel_in_which_candidates_do_not_differ_does_not_drown_the_others(name):
    generator = torch.Generator().manual_seed(0)
    own, known = torch.randn(40, 3, generator=generator), torch.randn(9, 3, generator=generator)
    distances = []
    for more in (0, 1):  # a channel that only what is known has values in
        seen = seen_as([[1.0, 0.0]] * 40)
        measures = {name: torch.cat([own, torch.full((40, more), 0.3)], 1)}
        known_measures = {name: torch.cat([known, torch.rand(9, more, generator=generator)], 1)}
        candidates = Candidates(replace(seen, measures=measures), torch.zeros(9, 2), measures=known_measures)
        distances.append(describe(("nearest_labelled" if name == "embedding" else "nearest_frame",), candidates))
    assert torch.allclose(standardised(distances[0]), standardised(distances[1]), atol=1e-3)


# -- where it lies --------------------------------------------------------------------------------


def test_places_are_shares_of_the_image():
    candidates = replace(some(), numbers=torch.tensor([0, 1, 11, 12 + 5]), regions=grid())
    assert value("height", candidates) == [0.125, 0.125, 0.875, 0.375]
    assert value("height_extreme", candidates) == [0.375, 0.375, 0.375, 0.125]
    assert value("side", candidates) == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])


def test_labelled_regions_of_the_same_image_are_counted():
    numbers, labelled = torch.tensor([0, 12, 13, 24]), torch.tensor([14, 1, 23, 16])
    assert value("labelled_in_image", replace(some(), numbers=numbers, labelled_numbers=labelled)) == [1, 3, 3, 0]
    nothing = labelled[:0]
    assert value("labelled_in_image", replace(some(), numbers=numbers, labelled_numbers=nothing)) == [0] * 4


# -- all of them ----------------------------------------------------------------------------------


def with_classes(candidates: Candidates, change) -> Candidates:
    """Candidates of which everything that has classes in its columns is changed."""
    seen = candidates.seen
    measures = {name: change(found) if name in BY_CLASS else found for name, found in seen.measures.items()}
    seen = RegionFeatures(change(seen.histogram), seen.pooled, seen.moments, measures)
    return replace(candidates, seen=seen, labelled=change(candidates.labelled), before=change(candidates.before))


@pytest.mark.parametrize("name", GENERAL)
def test_the_order_of_classes_does_not_matter(name):
    candidates = some(classes=5)
    moved = with_classes(candidates, lambda values: values[:, [3, 0, 4, 1, 2]])
    assert value(name, candidates) == pytest.approx(value(name, moved), abs=1e-5)


@pytest.mark.parametrize("name", GENERAL)
def test_a_class_that_nothing_shows_changes_nothing_that_a_policy_reads(name):
    def wider(values):
        return torch.cat([values, torch.zeros(len(values), 1)], 1)

    candidates = some()
    one, two = (standardised(describe((name,), seen)) for seen in (candidates, with_classes(candidates, wider)))
    assert one.abs().max() > 0.5
    assert torch.allclose(one, two, atol=0.02)


@pytest.mark.parametrize("name", GENERAL)
def test_features_follow_their_region(name):
    candidates = some()
    order = torch.tensor([4, 2, 7, 0, 1, 3, 6, 5])
    moved = replace(candidates, seen=candidates.seen[order], numbers=candidates.numbers[order])
    expected = describe((name,), candidates)[order, 0].tolist()
    assert value(name, moved) == pytest.approx(expected, abs=1e-5)


@given(
    seed=st.integers(0, 2**31),
    number=st.integers(1, 6),
    labelled=st.integers(0, 4),
    before=st.integers(0, 3),
    classes=st.integers(2, 6),
    images=st.integers(1, 3),
    alike=st.booleans(),
)
def test_all_features_are_finite(**drawn):
    candidates = some(**drawn)
    if drawn["labelled"] + drawn["before"] == 0:
        candidates = replace(candidates, measures={})  # as a session has it where nothing is known
    assert describe(GENERAL, candidates).isfinite().all()
    actions = Representation("general", standardise=True, time=True).actions(
        candidates, torch.Size([1, len(candidates.numbers)])
    )
    assert actions.shape == (1, drawn["number"], 1 + len(GENERAL) + 1)
    assert actions.isfinite().all()
    assert (actions[..., 0] == -0.25).all()  # a quarter of the budget is spent
    assert (actions[..., 1:].abs() <= 4).all()


def test_candidates_of_one_image_have_its_frame_in_common():
    candidates = some(number=5, images=1, labelled=1)
    found = describe(GENERAL, candidates)
    assert found.isfinite().all()
    scores = standardised(found)
    assert (scores[:, GENERAL.index("nearest_frame")] == 0).all()
    assert (scores[:, GENERAL.index("labelled_in_image")] == 0).all()
    assert (scores[:, GENERAL.index("nearest_labelled")] != 0).any()


# -- the registry ---------------------------------------------------------------------------------


@pytest.fixture
def registry(monkeypatch):
    """A registry that forgets what a test adds."""
    monkeypatch.setattr(named_features, "FEATURES", dict(FEATURES))
    return named_features.FEATURES


def test_an_unknown_name_says_what_is_meant():
    with pytest.raises(
        ConfigError, match=r"no feature 'noveltie'; did you mean 'novelty'\? Features are bald, class_e"
    ):
        Representation(("entropy", "noveltie"))
    with pytest.raises(ConfigError, match=r"no feature 'x'\. Features are bald.*@ralseg\.feature"):
        FeaturePolicy(["x"])


def test_a_name_may_stand_there_once():
    with pytest.raises(ConfigError, match=r"\['entropy', 'bald', 'entropy'\]: each may stand there once"):
        FeaturePolicy(["entropy", "bald", "entropy"])


def test_the_name_of_a_feature_is_not_taken_by_another(registry):
    with pytest.raises(ConfigError, match=r"there is a feature 'entropy' already, in ralseg\.acquisition"):

        @feature()
        def entropy(candidates):
            return candidates.spent

    assert registry["entropy"] is FEATURES["entropy"]


def test_general_means_all_that_ralseg_has():
    own = {name for name, found in FEATURES.items() if found.describe.__module__ == named_features.__name__}
    assert set(GENERAL) == own
    assert FeaturePolicy("general").names == GENERAL
    needed = Representation("general")
    assert set(needed.measures) == {"margin", "bald", "probability", "class_entropy", "embedding", "frame"}
    assert needed.known_measures == ("embedding", "frame")
    assert needed.pooling is None


def test_a_feature_of_ones_own(registry):
    @ralseg.feature(measures=("confidence",), known_measures=("margin",))
    def doubt(candidates):
        return 1 - candidates.seen.measures["confidence"]

    policy = FeaturePolicy(["entropy", "doubt"], start={"doubt": 1.0})
    assert policy.needs.measures == ("confidence",)
    assert policy.needs.representation.known_measures == ("margin",)
    policy.build(("a", "b"), 0, seed=0)
    candidates = Candidates(seen_as([[1.0, 0.0]] * 4, confidence=[0.9, 0.2, 0.6, 0.7]), torch.zeros(0, 2))
    actions = policy.representation.actions(candidates, torch.Size([2, 2]))
    nothing = torch.zeros(2, 2)
    scores = policy.scores(Observation(torch.zeros(0, 0), nothing, actions, nothing, nothing), torch.Generator())
    assert scores.argmax(1).tolist() == [1, 0]
