import lightning.pytorch as pl
import pytest
import segmentation_models_pytorch as smp
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from ralseg.data.samples import Draw
from ralseg.errors import ConfigError
from ralseg.models import FPNSegmenter, encoders
from ralseg.models.feature_cache import FeatureCache
from ralseg.models.segmenter import inverse_sqrt_weights, masked_cross_entropy, predicted_classes
from ralseg.models.upsampling import upsampling_matrix
from support.data import small_data

NAMES = ("a", "b", "c")


def segmenter(**changes) -> FPNSegmenter:
    torch.manual_seed(0)
    options = {"encoder": "resnet18", "encoder_weights": "none", "pyramid_channels": 32, "segmentation_channels": 32}
    return FPNSegmenter(NAMES, **(options | changes)).eval()


def images(height, width, number=2):
    return torch.randint(0, 256, (number, 3, height, width), dtype=torch.uint8)


@pytest.mark.parametrize(("height", "width"), [(64, 96), (90, 120), (33, 47)])
def test_images_of_any_size(height, width):
    with torch.no_grad():
        assert segmenter()(images(height, width)).shape == (2, 3, height, width)


def test_equals_smp_where_no_padding_is_needed():
    model, batch = segmenter(), images(64, 96)
    with torch.no_grad():
        expected = model.net((batch / 255 - model.mean / 255) / (model.std / 255))
        assert torch.allclose(model(batch), expected, atol=1e-4)


@pytest.mark.parametrize("stride", [2, 4])
@pytest.mark.parametrize("size", [(64, 96), (90, 117)])
def test_strided_logits_are_the_full_ones_at_those_pixels(stride, size):
    model, batch = segmenter(), images(*size)
    with torch.no_grad():
        full = model(batch)
        strided = model.logits(batch, torch.arange(2), stride=stride)
    assert torch.allclose(strided, full[..., ::stride, ::stride], atol=1e-4)


def test_a_network_that_was_scored_first_can_train():
    upsampling_matrix.cache_clear()
    network, shown = segmenter(), images(64, 96)
    with torch.inference_mode():
        network.logits(shown, torch.arange(2), stride=2)
    network.logits(shown, torch.arange(2), stride=2).sum().backward()
    assert network.net.segmentation_head[0].weight.grad is not None


@pytest.mark.parametrize("classes", [1, 2, 19, 255, 256])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_predicted_class_is_the_first_of_the_largest(classes, layout):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, classes, 9, 11, generator=generator).round(decimals=1)  # with ties
    logits[0, :, 0] = float("-inf")
    expected = torch.from_numpy(logits.numpy().argmax(1))
    assert (predicted_classes(logits.to(memory_format=layout)) == expected).all()


def test_the_predicted_class_of_what_is_no_number_is_a_class():
    assert 0 <= int(predicted_classes(torch.full((1, 3, 1, 1), float("nan")))) < 3


def test_loss_is_the_mean_over_labelled_pixels_and_zero_without_any():
    logits, mask = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5), dtype=torch.uint8)
    mask[0, :2] = 255
    weight = torch.tensor([0.5, 2.0, 1.0])
    expected = functional.cross_entropy(logits, mask.long(), weight, ignore_index=255)
    assert torch.allclose(masked_cross_entropy(logits, mask, weight), expected)
    logits.requires_grad_()
    loss = masked_cross_entropy(logits, torch.full_like(mask, 255), weight)
    loss.backward()
    assert loss.item() == 0
    assert (logits.grad == 0).all()


def test_class_weights():
    weights = inverse_sqrt_weights(torch.tensor([0.64, 0.32, 0.04, 0.0]))
    assert weights[2] / weights[0] == pytest.approx(4)
    assert weights[3] / weights[2] == pytest.approx((0.04 / 2e-3) ** 0.5)  # absent: as if it were 0.2 %
    one_pixel = inverse_sqrt_weights(torch.tensor([1 - 1e-6, 1e-6]))
    assert one_pixel[1] / one_pixel[0] < 25
    assert (weights[:3] * torch.tensor([0.64, 0.32, 0.04])).sum() == pytest.approx(1)


def test_frozen_encoder_does_not_move():
    model = segmenter(freeze_encoder=True, optimizer=lambda p: torch.optim.SGD(p, lr=1.0)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    optimizer = model.configure_optimizers()
    masked_cross_entropy(model(images(64, 64)), torch.zeros(2, 64, 64)).backward()
    optimizer.step()
    moved = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    assert moved
    assert not any(key.startswith("net.encoder") for key in moved)


def test_cached_features_give_the_same_predictions_and_are_computed_once():
    data = small_data(flip=True, batch_size=8)
    data.setup()
    model = segmenter(freeze_encoder=True, cache_features=True)
    passes = []
    model.net.encoder.register_forward_hook(lambda module, inputs, _: passes.append(len(inputs[0])))
    batches = []
    for epoch in range(6):
        loader = data.train_dataloader()
        loader.batch_sampler.sampler.set_epoch(epoch)
        batches += list(loader)
    with torch.no_grad():
        plain = [model.logits(b.image, b.image_index, b.flipped, 2) for b in batches]
        passes.clear()
        model.features = FeatureCache(len(data.dataset), ram_bytes=2_000_000)  # some of them go to disk
        for batch, expected in zip(batches, plain, strict=True):
            logits = model.logits(batch.image, batch.image_index, batch.flipped, 2)
            assert torch.allclose(logits, expected, atol=1e-4)
            assert (logits.argmax(1) == expected.argmax(1)).float().mean() > 0.999
    kinds = {(int(i), bool(f)) for b in batches for i, f in zip(b.image_index, b.flipped, strict=True)}
    assert sum(passes) == len(kinds) == 12  # 6 images, each also mirrored


def test_evaluation_changes_no_statistics(data):
    model = segmenter().eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    batch = data.image_samples(data.splits.state_set, augment=False)[Draw(0, 0)]
    with torch.inference_mode():
        model.logits(batch.image[None], batch.image_index[None])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"segmentation_channels": 40}, "segmentation_channels=40 must be a multiple of 32"),
        ({"cache_features": True}, "needs model.freeze_encoder"),
        ({"encoder": "resnet19"}, "model.encoder='resnet19'"),
        ({"encoder_weights": "efficientnet_lite0"}, "fits model.encoder=tu-tf_efficientnet_lite0 only"),
        ({"encoder_weights": "nowhere.pth"}, "neither 'imagenet'"),
    ],
)
def test_wrong_options_name_the_key(options, message):
    with pytest.raises(ConfigError, match=message):
        segmenter(**options)


def test_encoder_weights_from_a_file(tmp_path):
    torch.manual_seed(5)
    donor = smp.FPN("resnet18", encoder_weights=None).encoder
    torch.save(donor.state_dict(), tmp_path / "w.pth")
    model = segmenter(encoder_weights=str(tmp_path / "w.pth"))
    assert torch.equal(model.net.encoder.conv1.weight, donor.conv1.weight)
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "bad.pth")
    with pytest.raises(ConfigError, match=r"bad\.pth' does not fit this encoder"):
        segmenter(encoder_weights=str(tmp_path / "bad.pth"))


def test_a_download_that_fails_says_what_to_do(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no connection")

    monkeypatch.setattr("segmentation_models_pytorch.encoders.hf_hub_download", offline)
    with pytest.raises(
        ConfigError, match=r"resnet18 could not be downloaded \(no connection\).*efficientnet_lite0.*'none'"
    ):
        segmenter(encoder_weights="imagenet")


def test_pip_installed_weights_are_loaded_in_full():
    lite0 = {"encoder": encoders.LITE0_ENCODER, "encoder_weights": encoders.LITE0}
    one, other = segmenter(**lite0), FPNSegmenter(NAMES, **lite0, pyramid_channels=32, segmentation_channels=32)
    for (key, a), b in zip(one.net.encoder.state_dict().items(), other.net.encoder.state_dict().values(), strict=True):
        assert torch.equal(a, b), key
    assert one.net.encoder.model.bn1.num_batches_tracked > 0 or one.net.encoder.model.bn1.running_mean.abs().sum() > 0
    assert one.mean.flatten().tolist() == [127.5] * 3


def test_a_checkpoint_can_be_saved_after_a_training_on_other_data(tmp_path):
    trainer = pl.Trainer(default_root_dir=tmp_path, max_epochs=0, logger=False, accelerator="cpu")
    trainer.fit(segmenter(), DataLoader([0]))
    trainer.save_checkpoint(tmp_path / "w.ckpt")
    assert "trained_on" not in torch.load(tmp_path / "w.ckpt", weights_only=True)["ralseg"]
