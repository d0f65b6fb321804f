import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ralseg.data.readers import IGNORE
from ralseg.data.samples import Augmentation, Draw, SeededSampler
from ralseg.errors import ConfigError, HiddenLabelError
from ralseg.labels.oracle import RevealedLabels
from ralseg.models.segmenter import masked_cross_entropy
from ralseg.runtime.seeding import mixed_seed
from support.data import small_data


@given(st.integers(0, 2**62), st.integers(0, 5), st.integers(32, 64), st.integers(32, 96), st.booleans())
def test_a_crop_contains_its_region_and_keeps_image_and_mask_together(seed, cell, height, width, flip):
    image = torch.arange(64 * 96, dtype=torch.int32).reshape(1, 64, 96)
    x, y = cell % 3 * 32, cell // 3 * 32
    mask = torch.full((64, 96), IGNORE)
    mask[y : y + 32, x : x + 32] = image[0, y : y + 32, x : x + 32]
    out, cut, flipped = Augmentation((height, width), flip)(image, mask, seed, contain=(x, y, 32, 32))
    assert out.shape == (1, height, width)
    assert cut.shape == (height, width)
    labelled = cut != IGNORE
    assert labelled.sum() >= 32 * 32 - 1  # the value 255 itself may occur once
    assert torch.equal(cut[labelled], out[0][labelled])
    assert flip or not flipped


def test_half_of_the_samples_are_flipped_and_crops_reach_everywhere():
    image = torch.arange(64 * 96, dtype=torch.int32).reshape(1, 64, 96)
    augmentation = Augmentation((40, 60))
    flips, corners = 0, set()
    for seed in range(400):
        out, _, flipped = augmentation(image, image[0], seed)
        flips += flipped
        corners.add(int(out.min()))
    assert 150 < flips < 250
    assert {corner // 96 for corner in corners} == set(range(25))
    assert {corner % 96 for corner in corners} == set(range(37))


def test_only_revealed_regions_reach_the_loss(data):
    """Change every pixel outside the labelled regions: no loss and no gradient may notice."""
    oracle, labels = data.mask_oracle("train_set"), RevealedLabels(data.regions("train_set"))
    regions = torch.tensor([0, 7, 8, 20])
    labels.add(regions, oracle.label(regions))
    samples = data.region_samples([[0], [7, 8], [20]], labels)
    assert len(samples) == 3
    for position, group in enumerate(([0], [7, 8], [20])):
        batch = samples[Draw(position, seed=position)]
        logits = torch.randn(1, 11, *batch.mask.shape, requires_grad=True)
        masked_cross_entropy(logits, batch.mask[None]).backward()
        touched = logits.grad.abs().sum(1)[0] > 0
        allowed = torch.zeros(data.height, data.width, dtype=torch.bool)
        for x, y, w, h in data.regions("train_set").boxes(torch.tensor(group)).tolist():
            allowed[y : y + h, x : x + w] = True
        if bool(batch.flipped):
            allowed = allowed.flip(-1)
        assert touched.any()
        assert not (touched & ~allowed).any()


@given(st.sets(st.integers(0, 5), min_size=1), st.integers(0, 5), st.integers(0, 2**62))
def test_region_masks_show_labelled_cells_only(cells, image, seed):
    data = REVEALED
    regions = data.regions("train_set").of_image(image)[sorted(cells)]
    labels = RevealedLabels(data.regions("train_set"))
    labels.add(regions, data.mask_oracle("train_set").label(regions))
    batch = data.region_samples([regions.tolist()], labels)[Draw(0, seed)]
    truth = torch.from_numpy(data.dataset.read_mask(data.splits.train_set[image]))
    if bool(batch.flipped):
        truth = truth.flip(-1)
    shown = batch.mask != IGNORE
    assert torch.equal(batch.mask[shown], truth[shown])
    labelled = (labels.mask(regions.tolist()) != IGNORE).sum()
    assert shown.sum() == labelled <= len(cells) * 32 * 32


REVEALED = small_data()
REVEALED.setup()


def test_hidden_labels_are_hidden(data):
    hidden = data.splits.acquisition_set[0]
    name = data.dataset.names[hidden]
    with pytest.raises(HiddenLabelError, match=name):
        data.masks[hidden]
    with pytest.raises(HiddenLabelError):
        data.masks[data.splits.train_set[0]]  # until something trains on whole images
    with pytest.raises(HiddenLabelError):
        data.masks[data.splits.test_set[0]]  # until a test
    data.masks[data.splits.state_set[0]]
    assert data.masks.revealed == 0
    cells = data.mask_oracle("acquisition_set").label(torch.tensor([0, 3]))
    assert cells.shape == (2, 32, 32)
    assert data.masks.revealed == 2
    with pytest.raises(HiddenLabelError):
        data.masks[hidden]


def epoch_of(data, epoch):
    loader = data.train_dataloader()
    loader.batch_sampler.sampler.set_epoch(epoch)
    return [torch.cat([part.flatten().float() for part in batch]) for batch in loader]


def test_an_epoch_is_a_function_of_seed_and_number_whatever_the_workers():
    epochs = {}
    for workers in (0, 2):
        module = small_data(num_workers=workers, crop=(48, 64))
        module.setup()
        epochs[workers] = [epoch_of(module, 3), epoch_of(module, 4)]
    torch.manual_seed(123)
    for one, two in zip(epochs[0], epochs[2], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    assert not torch.equal(epochs[0][0][0], epochs[0][1][0])
    other = small_data(seed=1, crop=(48, 64))
    other.setup()
    assert not torch.equal(epoch_of(other, 3)[0], epochs[0][0][0])


def test_each_image_is_decoded_once_with_workers(tmp_path):
    module = small_data(num_workers=2)
    reads = tmp_path / "reads"
    read_image = module.dataset.read_image

    def counting(index):
        with reads.open("a") as file:
            file.write(f"{index}\n")
        return read_image(index)

    module.dataset.read_image = counting
    module.setup()
    for epoch in range(3):
        epoch_of(module, epoch)
    decoded = reads.read_text().split()
    assert sorted(set(map(int, decoded))) == module.splits.train_set
    assert len(decoded) <= len(module.splits.train_set) + 2  # two workers may rarely start one at once


def test_fit_images_is_a_seeded_subset():
    subsets = []
    for seed in (0, 0, 1):
        module = small_data(fit_images=3, fit_on=["state_set", "train_set"], seed=seed)
        module.setup()
        subsets.append(module.fit_indices())
    assert subsets[0] == subsets[1] != subsets[2]
    assert len(subsets[0]) == 3
    module = small_data(fit_images=99)
    module.setup()
    with pytest.raises(ConfigError, match=r"data\.fit_images=99, but data\.fit_on has 6 images"):
        module.fit_indices()


@pytest.mark.parametrize(
    ("crop", "message"), [((65, 10), "larger than the images, 64x96"), ((31, 96), "smaller than a region, 32x32")]
)
def test_impossible_crops_are_refused(crop, message):
    with pytest.raises(ConfigError, match=message):
        small_data(crop=crop).setup()


def test_resizing_keeps_ids_whole():
    module = small_data(size=(48, 72))
    module.setup()
    assert module.images[0].shape == (3, 48, 72)
    module.masks.open([0])
    assert set(module.masks[0].unique().tolist()) <= {*range(11), IGNORE}


def test_sampler_covers_everything_once():
    sampler = SeededSampler(50, seed=3)
    assert sorted(draw.position for draw in sampler) == list(range(50))
    assert [d.position for d in SeededSampler(4, shuffle=False)] == [0, 1, 2, 3]


def test_mixed_seeds_do_not_collide():
    seeds = {mixed_seed(a, b) for a in range(60) for b in range(60)}
    assert len(seeds) == 3600
    assert all(0 <= seed < 2**63 for seed in seeds)
