"""Networks in formats of others give what PyTorch gives, and say what one must know to use them."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
from torch import nn

from ralseg.cli import main
from ralseg.data.canvas import Canvas
from ralseg.errors import ConfigError
from ralseg.models import FPNSegmenter, Segmenter, SmpSegmenter, export
from support.closed_form import closed_form

NAMES, COLOURS = ("road", "sky", "tree"), ((1, 2, 3), (4, 5, 6), (7, 8, 9))
TINY = {"encoder": "tu-test_resnet", "encoder_weights": "none"}
SIZES = [(64, 96), (61, 83), (130, 40)]


class Own(Segmenter):
    """A network of one's own."""

    def __init__(self, class_names, **options):
        super().__init__(class_names, **options)
        self.net = nn.Conv2d(3, len(class_names), 5, padding=2)

    def forward(self, image):
        return self.net(image / 255)


def fitted_closed_form():
    net = closed_form(NAMES)
    net.features.fit([torch.randint(256, (3, 64, 96), dtype=torch.uint8)])
    weight = torch.randn_like(net.head.weight)
    net.head = net.head._replace(weight=weight, bias=torch.randn(3))
    return net


MAKE = {
    "fpn": lambda: FPNSegmenter(NAMES, **TINY),
    "unet": lambda: SmpSegmenter(NAMES, arch="Unet", **TINY),
    "closed form": fitted_closed_form,
    "own": lambda: Own(NAMES),
}


def made(kind, canvas=(48, 80)):
    torch.manual_seed(0)
    net = MAKE[kind]().eval()
    net.canvas, net.colours = Canvas(canvas), COLOURS
    return net


def images(size, number=2):
    return torch.randint(0, 256, (number, 3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(7))


def assert_equal(net, run):
    for size in SIZES:
        with torch.no_grad():
            expected, found = net(images(size)), run(images(size))
        assert (expected - found).abs().max() < export.TOLERANCE * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("kind", MAKE)
def test_onnx(kind, tmp_path):
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    net = made(kind)
    written = export.export_onnx(net, tmp_path / "net.onnx")
    assert written.size is None
    assert written.difference < 1e-3
    session = runtime.InferenceSession(tmp_path / "net.onnx")
    assert_equal(net, lambda image: torch.from_numpy(session.run(["logits"], {"image": image.numpy()})[0]))
    known = {entry.key: entry.value for entry in onnx.load(tmp_path / "net.onnx").metadata_props}
    assert json.loads(known["class_names"]) == list(NAMES)
    assert json.loads(known["colours"]) == [list(colour) for colour in COLOURS]
    assert json.loads(known["size"]) == [48, 80]
    assert (known["resize"], known["takes"]) == ("pad", "any")
    assert "uint8" in known["input"]
    with pytest.raises(Exception, match=r"(?i)unexpected input data type"):  # floats give no wrong classes
        session.run(None, {"image": images((64, 96)).float().numpy()})


@pytest.mark.parametrize("kind", MAKE)
def test_torchscript(kind, tmp_path):
    net, extra = made(kind, canvas=None), {"ralseg.json": ""}
    assert export.export_torchscript(net, tmp_path / "net.pt").size is None
    loaded = torch.jit.load(tmp_path / "net.pt", _extra_files=extra)
    assert_equal(net, loaded)
    known = json.loads(extra["ralseg.json"])
    assert known["class_names"] == list(NAMES)
    assert known["size"] is None


@pytest.mark.parametrize("kind", ["fpn", "unet"])
def test_smp(kind, tmp_path):
    net = made(kind)
    assert export.export_smp(net, tmp_path / "there").difference < 1e-3
    loaded = smp.from_pretrained(str(tmp_path / "there")).eval()
    known = json.loads((tmp_path / "there" / "ralseg.json").read_text())
    mean, std = (torch.tensor(known[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    image = images((64, 96))
    with torch.no_grad():
        assert torch.allclose(loaded((image / 255 - mean) / std), net(image), atol=1e-3)
    assert known["class_names"] == list(NAMES)
    assert known["size"] == [48, 80]
    assert "from_pretrained" in (tmp_path / "there" / "README.md").read_text()
    net.export(tmp_path)  # what final trainings call
    assert json.loads((tmp_path / "smp" / "ralseg.json").read_text()) == known


def test_what_smp_cannot_hold_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="ClosedFormSegmenter is no network of segmentation-models-pytorch; use onnx"):
        export.export_smp(made("closed form"), tmp_path)
    net = made("fpn")
    net.encoder_strides = {"conv1": 1}
    with pytest.raises(ConfigError, match="the encoder's strides were changed"):
        export.export_smp(net, tmp_path)
    assert not list(tmp_path.iterdir())


class SizeBound(Own):
    """Works at one size only when it is traced: the size becomes a constant."""

    def forward(self, image):
        return self.net(image / 255) + torch.zeros(int(image.shape[-2]), int(image.shape[-1]))


def test_a_network_that_cannot_take_any_size_takes_that_of_its_training(tmp_path):
    net = SizeBound(NAMES).eval()
    net.canvas = Canvas((48, 80))
    assert export.export_torchscript(net, tmp_path / "net.pt").size == (48, 80)
    extra = {"ralseg.json": ""}
    torch.jit.load(tmp_path / "net.pt", _extra_files=extra)
    assert json.loads(extra["ralseg.json"])["takes"] == [48, 80]
    net.canvas = Canvas()
    with pytest.raises(ConfigError, match=r"--format torchscript: SizeBound cannot be exported .*try --format onnx"):
        export.export_torchscript(net, tmp_path / "other.pt")
    assert not (tmp_path / "other.pt").exists()


def test_a_wrong_export_is_not_written(tmp_path, monkeypatch):
    net = made("own")
    traced = export._traced
    monkeypatch.setattr(export, "_traced", lambda segmenter, size: traced(made("own").apply(_spoil), size))
    with pytest.raises(ConfigError, match="does not give what PyTorch gives: logits of images of 48x80 pixels differ"):
        export.export_torchscript(net, tmp_path / "net.pt")
    assert not list(tmp_path.iterdir())


def _spoil(module):
    if isinstance(module, nn.Conv2d):
        nn.init.ones_(module.weight)


def test_missing_packages_are_named(tmp_path, monkeypatch):
    real = importlib.import_module

    def without(name, *more):
        if name.startswith("onnxruntime"):
            raise ModuleNotFoundError(name)
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(ConfigError, match=r"needs the package onnxruntime: pip install 'ralseg\[onnx\]'"):
        export.export_onnx(made("own"), tmp_path / "net.onnx")


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    net = made("fpn")
    torch.save({"ralseg": {"segmenter": net.describe(), **net.about()}, "state_dict": net.state_dict()}, "c.ckpt")
    asked = ["export", "--ckpt", "c.ckpt"]
    assert main([*asked, "--format", "torchscript", "--out", "net.pt"]) == 0
    assert "net.pt: written, for images of any size; its logits differ from PyTorch's by" in capsys.readouterr().out
    image = images((33, 47), 1)
    with torch.no_grad():
        assert np.allclose(torch.jit.load("net.pt")(image), net(image), atol=1e-3)
    assert main([*asked, "--format", "torchscript", "--out", "net.pt"]) == 2
    assert "net.pt: is there already" in capsys.readouterr().err
    assert main([*asked, "--format", "torchscript", "--out", "net.pt", "--overwrite"]) == 0
    assert main([*asked, "--format", "smp", "--out", "folder"]) == 0
    assert (Path("folder") / "model.safetensors").is_file()
    capsys.readouterr()
    for wrong, message in (
        (["--format", "onx"], "--format onx: is none of onnx, torchscript, smp"),
        ([], "ralseg export needs --format: one of onnx, torchscript, smp"),
        (["--format", "onnx", "--out", "folder", "--overwrite"], "--out folder: is a folder; give a file"),
        (["--format", "smp", "--out", "net.pt", "--overwrite"], "--out net.pt: is a file, but smp is a folder"),
    ):
        assert main([*asked, *wrong]) == 2
        assert message in capsys.readouterr().err
