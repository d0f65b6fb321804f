"""The closed-form segmenter: what it has learned is a function of the labels alone."""

import copy

import cloudpickle
import pytest
import torch

from ralseg.acquisition.measures import BALD_SAMPLES
from ralseg.acquisition.scanner import Scan, scan
from ralseg.data import SyntheticStreets
from ralseg.data.samples import Batch, Draw
from ralseg.errors import ConfigError
from ralseg.labels.oracle import RevealedLabels
from ralseg.labels.vault import IGNORE
from ralseg.models import discriminant
from ralseg.models.prediction import Seeds
from support.closed_form import closed_form
from support.data import small_data
from support.layouts import Blobs


@pytest.fixture
def data():
    data = small_data(flip=False)
    data.setup()
    data.masks.open(data.splits.train_set + data.splits.state_set)
    return data


@pytest.fixture
def net(data):
    net = closed_form()
    net.prepare(data)
    return net


def shown(data, position: int, left: int = 0, right: int = 96) -> Batch:
    """An image of the train set of which some columns are labelled."""
    index = data.splits.train_set[position]
    mask = torch.full_like(data.masks[index], IGNORE)
    mask[:, left:right] = data.masks[index][:, left:right]
    return Batch(data.images[index][None], mask[None], torch.tensor([index]), torch.tensor([False]))


def together(*batches: Batch) -> Batch:
    return Batch(*(torch.cat(parts) for parts in zip(*batches, strict=True)))


def head_of(net):
    return torch.cat([net.head.weight, net.head.bias[:, None]], 1)


def test_order_and_portions_do_not_matter(data):
    one, other = closed_form(), closed_form()
    for net in (one, other):
        net.prepare(data)
    for batch in (shown(data, 0, 0, 32), shown(data, 1), shown(data, 0, 32, 96)):
        one.loss(batch)
    other.loss(together(shown(data, 1), shown(data, 0)))
    assert torch.equal(one.counts, other.counts)
    assert torch.allclose(head_of(one), head_of(other), rtol=1e-5, atol=1e-5)


def test_a_pixel_counts_once(data, net):
    net.loss(shown(data, 0))
    counts, head = net.counts.clone(), head_of(net)
    assert float(net.loss(shown(data, 0, 10, 50)).detach()) == 0  # nothing was new
    assert float(net.loss(together(shown(data, 0), shown(data, 0))).detach()) == 0
    assert torch.equal(net.counts, counts)
    assert torch.equal(head_of(net), head)
    mirrored = shown(data, 0)
    mirrored = Batch(mirrored.image.flip(-1), mirrored.mask.flip(-1), mirrored.image_index, torch.tensor([True]))
    net.loss(mirrored)
    assert net.counts.sum() == 2 * counts.sum()


def test_a_pixel_that_stands_twice_in_a_batch_counts_once(data, net):
    net.loss(together(shown(data, 0), shown(data, 0, 20, 60)))
    assert net.counts.sum() == (shown(data, 0).mask[..., 2::4, 2::4] != IGNORE).sum()


def test_a_corrected_label_replaces_the_old_one(data, net):
    wrong = shown(data, 0)
    wrong = wrong._replace(mask=torch.where(wrong.mask == IGNORE, IGNORE, 2).to(torch.uint8))
    net.loss(shown(data, 1))
    net.loss(wrong)
    net.loss(shown(data, 0))
    expected = closed_form()
    expected.prepare(data)
    expected.loss(together(shown(data, 0), shown(data, 1)))
    assert torch.equal(net.counts, expected.counts)
    assert torch.allclose(head_of(net), head_of(expected), rtol=1e-4, atol=1e-4)


def test_an_image_is_known_by_its_pixels_not_by_its_number(data, net):
    net.loss(shown(data, 0))
    elsewhere = closed_form()  # of another run, where images have other numbers
    elsewhere.features.load_state_dict(net.features.state_dict())
    elsewhere.load_state_dict(net.state_dict())
    again = shown(data, 0)
    elsewhere.loss(again._replace(image_index=torch.tensor([17])))
    assert torch.equal(elsewhere.counts, net.counts)


def test_training_twice_over_changes_nothing_and_restoring_takes_it_back(data, net):
    net.loss(shown(data, 0))
    state = {key: tensor.clone() for key, tensor in net.state_dict().items()}
    net.loss(shown(data, 1))
    net.restore(state)
    other = closed_form()
    other.prepare(data)
    other.load_state_dict(state)
    assert torch.equal(head_of(net), head_of(other))
    net.loss(shown(data, 2))
    net.restore(state)  # the second time from the very same tensors, which takes a short cut
    assert torch.equal(head_of(net), head_of(other))
    assert torch.equal(net.keys, other.keys)


def test_features_of_other_components_are_forgotten(data, net):
    index = torch.tensor(data.splits.train_set[:1])
    image = data.images[data.splits.train_set[0]][None]
    before = net.pixel_features(image, index)
    other = closed_form()
    other.features.fit([image[0]])
    net.restore(other.state_dict())
    assert not torch.allclose(net.pixel_features(image, index), before)


def test_a_state_without_components_leaves_those_there_are(data, net):
    net.loss(shown(data, 0))
    basis = net.features.basis.clone()
    net.restore(closed_form().state_dict())
    assert torch.equal(net.features.basis, basis)
    assert net.counts.sum() == 0


def test_a_copy_in_another_process_is_the_same(data, net):
    net.loss(shown(data, 0))
    copied = cloudpickle.loads(cloudpickle.dumps(net))
    image = data.images[data.splits.train_set[1]][None]
    assert torch.equal(copied(image), net(image))


def test_components_are_white(data, net):
    points = [
        net.features(data.images[i][None]).flatten(0, 2)
        for name in ("state_set", "train_set")
        for i in data.splits[name]
    ]
    own = torch.cat(points)[:, :-4].double()
    covariance = own.T @ own / len(own)
    assert (covariance.diagonal() > 0.3).all()
    assert (covariance.diagonal() < 3).all()
    assert (covariance - covariance.diag().diag()).abs().max() < 0.5


def test_features_of_another_data_set_are_not_taken_for_these(data, net):
    before = net.pixel_features(data.images[3][None], torch.tensor([3]))
    net.loss(shown(data, 0))
    counts = net.counts.clone()
    elsewhere = small_data(
        flip=False, dataset=SyntheticStreets(num_train=14, num_val=5, num_test=5, height=64, width=96, domain="game")
    )
    elsewhere.setup()
    elsewhere.masks.open(elsewhere.splits.train_set)
    net.prepare(elsewhere)
    assert not torch.allclose(net.pixel_features(elsewhere.images[3][None], torch.tensor([3])), before)
    net.loss(shown(elsewhere, 0))
    assert net.counts.sum() > counts.sum()  # an image of the same number, but not the same


def test_a_copy_with_other_components_leaves_the_original_its_features(data, net):
    index, image = torch.tensor([3]), data.images[3][None]
    before = net.pixel_features(image, index)
    copied, other = copy.deepcopy(net), closed_form()
    other.features.fit([data.images[0]])
    copied.load_state_dict(other.state_dict())
    assert not torch.allclose(copied.pixel_features(image, index), before)
    assert torch.equal(net.pixel_features(image, index), before)


def test_whole_maps_kept_features_and_full_size_agree(data, net):
    net.loss(shown(data, 0))
    index = data.splits.train_set[1]
    image = data.images[index][None]
    grid = net.logits(image, torch.tensor([index]), stride=4)
    assert grid.shape == (1, len(data.class_names), 16, 24)
    assert torch.allclose(net.predict_batch(image, torch.tensor([index])).logits, grid, atol=1e-5)
    assert torch.allclose(net.logits(image, torch.tensor([index])), net(image), atol=1e-4)
    unprepared = closed_form()
    unprepared.load_state_dict(net.state_dict())
    assert torch.allclose(unprepared.logits(image, torch.tensor([index]), stride=4), grid, atol=1e-4)


@pytest.mark.parametrize("layout", ["grid", "blobs"])
def test_what_policies_see_is_what_whole_maps_show(layout):
    data = small_data(flip=False, **({} if layout == "grid" else {"layout": Blobs()}))
    data.setup()
    data.masks.open(data.splits.train_set)
    net = closed_form()
    net.prepare(data)
    net.loss(shown(data, 0))
    regions = data.regions("train_set")
    some = torch.arange(1, len(regions), 2)
    whole = scan(net, regions, torch.arange(len(regions)), Scan("3H", ("margin", "embedding")))[some]
    parts = scan(net, regions, some, Scan("3H", ("margin", "embedding")))
    assert torch.allclose(whole.histogram, parts.histogram, atol=1e-6)
    assert torch.allclose(whole.pooled, parts.pooled, atol=1e-5)
    for name in ("margin", "embedding"):
        assert torch.allclose(whole.measures[name], parts.measures[name], atol=1e-4)


def test_bald_falls_where_labels_are(data, net):
    regions = data.regions("train_set")
    all_regions = torch.arange(len(regions))
    net.loss(shown(data, 0, 0, 32))
    before = scan(net, regions, all_regions, Scan(None, ("bald",))).measures
    for position in range(len(data.splits.train_set)):
        net.loss(shown(data, position))
    after = scan(net, regions, all_regions, Scan(None, ("bald",))).measures
    assert (before["bald"] >= 0).all()
    assert after["bald"].mean() < before["bald"].mean()


def test_samples_of_whole_images_are_those_at_regions(data, net):
    net.loss(shown(data, 0, 0, 32))
    regions, index = data.regions("train_set"), data.splits.train_set[1]
    prediction = net.predict_batch(data.images[index][None], torch.tensor([index]))
    rows, numbers = torch.zeros(6, dtype=torch.int64), regions.of_image(1)
    whole = [regions.cut(logits, rows, numbers).values for logits in prediction.sampled(3, Seeds(7, [7]))]
    parts = list(prediction.sampled_at(regions, rows, numbers, 3, Seeds(7, [7])))
    assert torch.allclose(torch.stack(whole), torch.stack(parts), atol=1e-4)
    assert not torch.allclose(parts[0], parts[1], atol=1e-2)


def test_frames_are_means_of_features_kept_or_not(data, net):
    indices = torch.tensor(data.splits.train_set[:3])
    images = torch.stack([data.images[index] for index in indices.tolist()])
    prediction = net.predict_batch(images, indices)
    expected = prediction.embedding().mean((2, 3))
    assert torch.allclose(prediction.frame([(1.0, 1.0)] * len(images)), expected, atol=1e-5)
    assert not torch.allclose(expected[0], expected[1], atol=1e-3)
    unprepared = closed_form()
    unprepared.load_state_dict(net.state_dict())
    assert torch.allclose(
        unprepared.predict_batch(images, indices).frame([(1.0, 1.0)] * len(images)), expected, atol=1e-5
    )
    regions = data.regions("train_set")
    frames = scan(net, regions, torch.tensor([13, 0, 7]), Scan(None, ("frame",))).measures["frame"]
    assert torch.allclose(frames, expected[[2, 0, 1]], atol=1e-5)  # six regions an image


def test_bald_does_not_depend_on_company(data, net):
    regions = data.regions("train_set")
    net.loss(shown(data, 0, 0, 32))
    together_ = scan(net, regions, torch.arange(12), Scan(None, ("bald",), seed=5)).measures["bald"]
    alone = scan(net, regions, torch.arange(6, 12), Scan(None, ("bald",), seed=5)).measures["bald"]
    assert torch.allclose(together_[6:], alone, atol=1e-6)
    other = scan(net, regions, torch.arange(6, 12), Scan(None, ("bald",), seed=6)).measures["bald"]
    assert not torch.allclose(other, alone, atol=1e-6)
    assert BALD_SAMPLES > 1


@pytest.mark.parametrize("layout", ["grid", "blobs"])
def test_credit_is_what_labelling_that_region_alone_changes(layout):
    data = small_data(flip=False, **({} if layout == "grid" else {"layout": Blobs()}))
    data.setup()
    data.masks.open(data.splits.train_set)
    net = closed_form()
    net.prepare(data)
    net.loss(shown(data, 0, 0, 48))
    regions, oracle = data.regions("train_set"), data.mask_oracle("train_set")
    judge = net.reward_pixels(data.val_dataloader(), 600, torch.Generator().manual_seed(0))
    assert len(judge.classes) == 600
    wanted = torch.tensor([7, 3, 11, 1])  # the last one lies in the half that is known already
    labels = oracle.label(wanted)
    found = scan(net, regions, wanted, Scan(None, ("credit",), labels=labels, judge=lambda: judge)).measures["credit"]
    state = {key: tensor.clone() for key, tensor in net.state_dict().items()}

    def score() -> float:
        return float(discriminant.mean_iou(net.head.logits(judge.features).argmax(1)[None], judge.classes, 11))

    base = score()
    for region, credit in zip(wanted.tolist(), found.tolist(), strict=True):
        revealed = data.region_samples([[region]], _labels(regions, wanted, labels))
        sample = revealed[Draw(0, 0)]
        net.loss(Batch(*(part[None] for part in sample)))
        # points at the edge of a region that is not a box may count for its neighbour
        assert score() - base == pytest.approx(credit, abs=1e-6 if layout == "grid" else 4e-3)
        net.restore(state)
    assert found[:3].abs().max() > 5e-4


def _labels(regions, wanted, labels):
    revealed = RevealedLabels(regions)
    revealed.add(wanted, labels)
    return revealed


def test_only_a_teacher_may_ask_for_credit(data, net):
    regions = data.regions("train_set")
    with pytest.raises(ConfigError, match="only agents that are taught"):
        scan(net, regions, torch.arange(3), Scan(None, ("credit",)))
    labels = data.mask_oracle("train_set").label(torch.arange(3))
    with pytest.raises(ConfigError, match="only agents that are taught"):
        scan(net, regions, torch.arange(3), Scan(None, ("credit",), labels=labels))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"shrinkage": 1.5}, "shrinkage"),
        ({"components": 0}, "components"),
        ({"prior_power": 2.0}, "prior_power"),
        ({"class_weights": "inverse_sqrt"}, "prior_power"),
        ({"encoder_strides": {"no.such.conv": 1}}, "encoder_strides"),
    ],
)
def test_options_that_cannot_work(change, word):
    with pytest.raises(ConfigError, match=word):
        closed_form(**change)


def test_crops_are_refused():
    data = small_data(crop=(48, 64))
    data.setup()
    with pytest.raises(ConfigError, match=r"data\.crop"):
        closed_form().prepare(data)


def test_sizes_that_the_stride_does_not_divide(net):
    image = torch.randint(256, (2, 3, 50, 70), dtype=torch.uint8)
    net.features.fit(image)
    assert net(image).shape == (2, 11, 50, 70)
    batch = Batch(
        image, torch.zeros(2, 50, 70, dtype=torch.uint8), torch.tensor([0, 1]), torch.zeros(2, dtype=torch.bool)
    )
    unprepared = closed_form()
    unprepared.load_state_dict(net.state_dict())
    unprepared.loss(batch)
    assert unprepared.counts[0] == 2 * 13 * 18
