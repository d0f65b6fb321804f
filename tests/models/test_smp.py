"""Every architecture of segmentation-models-pytorch behind one class, and networks that are not from there."""

from functools import cache

import pytest
import torch
from torch import nn

from ralseg.acquisition.scanner import Scan, scan
from ralseg.errors import ConfigError
from ralseg.labels import GridLayout
from ralseg.models import FPNSegmenter, Segmenter, SmpSegmenter
from ralseg.models.feature_cache import FeatureCache
from ralseg.models.prediction import Seeds
from support.layouts import Hook, Images, TinyNet

NAMES = ("a", "b", "c")
# what each is built with: most take any encoder
OPTIONS = {
    "FPN": {"encoder": "tu-test_resnet"},
    "Unet": {"encoder": "tu-test_resnet"},
    "UnetPlusPlus": {"encoder": "tu-test_resnet"},
    "MAnet": {"encoder": "tu-test_resnet"},
    "Linknet": {"encoder": "tu-test_resnet"},
    "PSPNet": {"encoder": "resnet18"},
    "PAN": {"encoder": "resnet18"},
    "DeepLabV3": {"encoder": "resnet18"},
    "DeepLabV3Plus": {"encoder": "resnet18"},
    "UPerNet": {"encoder": "tu-test_resnet"},
    "Segformer": {"encoder": "tu-test_resnet"},
}
SIZES = {"PAN": [(128, 160), (115, 141)]}  # it pools so often that smaller images vanish
every_arch = pytest.mark.parametrize("arch", list(OPTIONS))
some_archs = pytest.mark.parametrize("arch", ["DeepLabV3Plus", "Segformer", "UPerNet", "Unet", "PSPNet"])


def segmenter(arch, **changes) -> SmpSegmenter:
    torch.manual_seed(0)
    return SmpSegmenter(NAMES, **({"arch": arch, "encoder_weights": "none"} | OPTIONS[arch] | changes)).eval()


@cache
def built(arch) -> SmpSegmenter:
    """One that tests only look through."""
    return segmenter(arch)


def images(height, width, number=2):
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, 256, (number, 3, height, width), dtype=torch.uint8, generator=generator)


@every_arch
def test_strided_logits_are_the_full_ones_at_those_pixels_also_of_odd_images(arch):
    network = built(arch)
    for size in SIZES.get(arch, [(64, 96), (51, 77)]):
        shown = images(*size)
        with torch.no_grad():
            full = network(shown)
            assert full.shape == (2, 3, *size)
            for stride in (1, 2):
                logits = network.logits(shown, torch.arange(2), stride=stride)
                assert torch.allclose(logits, full[..., ::stride, ::stride], atol=1e-4)


@every_arch
def test_equals_the_library_where_no_padding_is_needed(arch):
    network, shown = built(arch), images(*SIZES.get(arch, [(64, 96)])[0])
    with torch.no_grad():
        expected = network.net((shown - network.mean) / network.std)
        assert torch.allclose(network(shown), expected, atol=1e-4)


@some_archs
def test_cached_features_of_a_frozen_encoder_give_the_same_logits(arch):
    network, shown = segmenter(arch, freeze_encoder=True, cache_features=True), images(51, 77, 3)
    index, flipped = torch.tensor([4, 0, 2]), torch.tensor([False, True, False])
    passes = []
    network.net.encoder.register_forward_hook(lambda module, inputs, _: passes.append(len(inputs[0])))
    with torch.no_grad():
        expected = network.logits(shown, index, flipped, 2)
        network.features = FeatureCache(5, ram_bytes=200_000)  # some of them go to disk
        passes.clear()
        for _ in range(2):
            assert torch.allclose(network.logits(shown, index, flipped, 2), expected, atol=1e-4)
        turned = network.logits(shown[[2, 0]], index[[2, 0]], flipped[[2, 0]], 2)
        assert torch.allclose(turned, expected[[2, 0]], atol=1e-4)
    assert passes == [1, 1, 1]


@some_archs
def test_only_the_decoder_of_a_frozen_network_trains(arch):
    network = segmenter(arch, freeze_encoder=True, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)).train()
    assert not network.net.encoder.training
    before = {key: value.clone() for key, value in network.state_dict().items()}
    optimizer = network.configure_optimizers()
    network.logits(images(64, 64), torch.arange(2), stride=2).square().mean().backward()
    optimizer.step()
    moved = {key for key, value in network.state_dict().items() if not torch.equal(value, before[key])}
    assert any(key.startswith("net.decoder") for key in moved)
    assert any(key.startswith("net.segmentation_head") for key in moved)
    assert not any(key.startswith("net.encoder") for key in moved)
    kept = {tensor.data_ptr() for tensor in network.trained_tensors()}
    assert all(network.state_dict()[key].data_ptr() in kept for key in moved if "num_batches" not in key)


def test_modules_of_a_frozen_encoder_are_not_visited_but_belong_to_the_network():
    frozen, free = segmenter("FPN", freeze_encoder=True), segmenter("FPN")
    assert not any(".encoder" in name for name, _ in frozen.named_modules())
    assert len(list(free.named_modules())) - len(list(frozen.named_modules())) > 30
    assert frozen.state_dict().keys() == free.state_dict().keys()
    assert frozen.double().net.encoder.state_dict().popitem()[0] == free.net.encoder.state_dict().popitem()[0]
    assert {tensor.dtype for tensor in frozen.state_dict().values()} <= {torch.float64, torch.int64}
    trained = {name for name, weight in free.named_parameters() if ".encoder." not in name}
    assert {name for name, _ in frozen.named_parameters()} == trained


def samples_of(network: Segmenter, shown, seeds, number=3):
    with torch.no_grad():
        return list(network.predict_batch(shown, torch.arange(len(shown))).sampled(number, Seeds(0, seeds)))


def check_samples(network: Segmenter):
    """Samples differ from each other and from image to image, and an image's depend on its seed alone."""
    shown = images(48, 64)[:1].repeat(3, 1, 1, 1)  # the same picture three times
    found = samples_of(network, shown, [5, 5, 6])
    stride = network.label_stride
    for sample in found:
        assert sample.shape == (3, len(network.class_names), 48 // stride, 64 // stride)
        assert torch.allclose(sample[0], sample[1], atol=1e-4)
        assert not torch.allclose(sample[0], sample[2], atol=1e-4)
    assert not torch.allclose(found[0], found[1], atol=1e-4)
    again = samples_of(network, shown, [5, 5, 6])
    assert all(torch.equal(one, two) for one, two in zip(found, again, strict=True))
    alone = samples_of(network, shown[:1], [6])
    assert all(torch.allclose(one[2:], two, atol=1e-4) for one, two in zip(found, alone, strict=True))
    assert not any(module.training for module in network.modules())


@some_archs
def test_dropout_samples_differ_and_are_reproducible_for_each_image(arch):
    check_samples(segmenter(arch, dropout=0.4, label_stride=2))


@some_archs
def test_dropout_samples_are_what_training_sees(arch):
    """The mean over many dropout masks is the network without dropout: dropout acts once, before a linear layer."""
    network, shown = segmenter(arch, dropout=0.3), images(32, 32, 1)
    with torch.no_grad():
        features = network.encode(shown)
        decoded = network.net.decoder(features)
        network.training = True
        for module in network.net.decoder.modules():  # normalisation as it is; only dropout is random
            if isinstance(module, nn.Dropout | nn.Dropout2d):
                module.train()
        channels = torch.stack([network.decode(features)[0].flatten(1).abs().amax(1) > 0 for _ in range(40)])
    alive = decoded[0].flatten(1).abs().amax(1) > 0
    kept = float(channels[:, alive].float().mean())
    assert kept == pytest.approx(0.7, abs=0.06), "a decoder with a dropout of its own would drop twice"


@some_archs
def test_scans_give_every_measure(arch):
    regions = GridLayout(2, 3).over(Images(64, 96, 3))
    network = segmenter(arch, label_stride=2)
    what = Scan("3H", ("margin", "confidence", "probability", "class_entropy", "embedding", "bald"), batch_size=2)
    found = scan(network, regions, torch.tensor([17, 0, 3, 8]), what)
    for name, values in found.measures.items():
        assert len(values) == 4, name
        assert values.isfinite().all(), name
    assert found.measures["bald"].min() > 0
    assert found.vector().shape == (4, 3 + 192)


@pytest.mark.parametrize(
    ("arch", "options", "message"),
    [
        ("Unet", {"decoder_chanels": [32, 16]}, r"model\.decoder=.*does not fit model\.arch=Unet.*decoder_chanels"),
        ("Segformer", {"no_such_option": 1}, r"model\.decoder=.*does not fit model\.arch=Segformer.*no_such_option"),
        (
            "DeepLabV3Plus",
            {"encoder_output_stride": 7},
            r"model\.decoder=.*encoder_output_stride.*stride 8 or 16",
        ),
        ("UPerNet", {"classes": 4}, r"model\.arch=UPerNet: it has no option 'classes', but decoder_channels"),
        ("PSPNet", {"decoder_channels": 64}, r"model\.decoder=.*does not fit model\.arch=PSPNet.*decoder_channels"),
    ],
)
@pytest.mark.parametrize("encoder", ["resnet18", "tu-test_resnet"])
def test_a_wrong_decoder_option_is_named(arch, options, message, encoder):
    with pytest.raises(ConfigError, match=message):
        segmenter(arch, encoder=encoder, decoder=options)


def test_decoder_options_reach_the_decoder_and_are_part_of_what_a_checkpoint_must_match():
    wide, narrow = (segmenter("UPerNet", decoder={"decoder_channels": c}) for c in (64, 32))
    assert wide.net.segmentation_head[0].in_channels == 64
    assert narrow.net.segmentation_head[0].in_channels == 32
    checkpoint = {"ralseg": {"segmenter": wide.describe()}, "state_dict": wide.state_dict()}
    with pytest.raises(ConfigError, match=r"does not fit this model: .*channels: 64 in the checkpoint, 32 here"):
        narrow.load_weights(checkpoint)
    other = segmenter("Segformer")
    with pytest.raises(ConfigError, match="arch: 'UPerNet' in the checkpoint, 'Segformer' here"):
        other.load_weights(checkpoint)
    again = segmenter("UPerNet", decoder={"decoder_channels": 64})
    again.load_weights(checkpoint)
    with torch.no_grad():
        assert torch.equal(again(images(32, 32)), wide(images(32, 32)))


# -- a network of one's own --------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [GridLayout(2, 2), Hook()])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_plain_segmenter_gives_predictions_embedding_and_bald(layout, stride):
    network = TinyNet(label_stride=stride)
    assert network.training
    regions = layout.over(Images(16, 24, 3))
    wanted = torch.arange(len(regions))
    found = scan(network, regions, wanted, Scan(None, ("bald", "embedding", "probability"), seed=3, batch_size=2))
    assert network.training  # as it was
    assert all(module.training for module in network.modules())
    assert found.measures["bald"].min() > 0
    assert found.measures["embedding"].shape == (len(regions), 3)
    assert torch.allclose(found.histogram.sum(1), torch.ones(len(regions)))
    if isinstance(layout, GridLayout):  # without anything better, an embedding is the mean class probability
        assert torch.allclose(found.measures["embedding"], found.measures["probability"], atol=1e-5)
    again = scan(network, regions, wanted, Scan(None, ("bald",), seed=3, batch_size=1))
    other = scan(network, regions, wanted, Scan(None, ("bald",), seed=4, batch_size=1))
    assert torch.allclose(again.measures["bald"], found.measures["bald"], atol=1e-6)
    assert not torch.allclose(other.measures["bald"], found.measures["bald"], atol=1e-6)


def test_dropout_samples_of_a_plain_segmenter():
    network = TinyNet(label_stride=2).eval()
    state = torch.random.get_rng_state()
    check_samples(network)
    assert torch.equal(torch.random.get_rng_state(), state)  # nothing is drawn from the global stream


def test_a_network_without_dropout_has_no_bald():
    regions = GridLayout(2, 2).over(Images(16, 24))
    with pytest.raises(ConfigError, match="BALD samples a network's dropout, but model TinyNet has none"):
        scan(TinyNet(dropout=0.0), regions, torch.tensor([0]), Scan(measures=("bald",)))
    with pytest.raises(ConfigError, match=r"model\.dropout is 0\.0"):
        scan(segmenter("Unet", dropout=0.0), regions, torch.tensor([0]), Scan(measures=("bald",)))


def test_a_segmenter_without_forward_says_so():
    with pytest.raises(NotImplementedError, match=r"Segmenter must define forward\(image\)"):
        Segmenter(NAMES)(images(8, 8))


def test_strides_of_an_encoder_can_be_changed_for_weights_that_were_trained_so():
    strides = {"stages_3.downsample.conv2.conv": 1}
    options = {"encoder": "tu-tiny_vit_5m_224", "encoder_weights": "none", "pyramid_channels": 32}
    net = FPNSegmenter(NAMES, **options, segmentation_channels=32, encoder_strides=strides).eval()
    plain = FPNSegmenter(NAMES, **options, segmentation_channels=32).eval()
    plain.net.load_state_dict(net.net.state_dict())
    image = torch.randint(256, (1, 3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        last, other = net.encode(image)[-1], plain.encode(image)[-1]
        assert last.shape == other.shape  # pooled to what the decoder expects
        assert not torch.allclose(last, other)
        assert net(image).shape == (1, len(NAMES), 64, 96)
    assert net.describe()["encoder_strides"] == strides
    assert "encoder_strides" not in plain.describe()
    with pytest.raises(ConfigError, match=r"encoder_strides.*'stages_9' names 0 convolutions"):
        FPNSegmenter(NAMES, **options, encoder_strides={"stages_9": 1})
