"""Checkpoints that describe themselves, and strangers' checkpoints that must not do more than that."""

import copy
import logging
import sys

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

import ralseg
from ralseg.data.canvas import Canvas
from ralseg.engine.trainer import RunTrainer
from ralseg.errors import ConfigError
from ralseg.models import ClosedFormSegmenter, FPNSegmenter, Segmenter, SmpSegmenter, encoders
from ralseg.models.loading import find_segmenter
from ralseg.models.recipe import recipe_of
from ralseg.runtime.checkpoints import read_checkpoint
from support.closed_form import closed_form
from support.data import small_data
from support.games import QUIET, acquire, final, game, play, segmenter

TINY = {"encoder": "tu-test_resnet", "encoder_weights": "none"}


class Stripes(Segmenter):
    """A network of one's own, with an option that `describe` does not name."""

    def __init__(self, class_names: tuple[str, ...], width: int = 4, activation=None, **options):
        super().__init__(class_names, **options)
        self.activation = activation
        self.net = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, len(class_names), 1))

    def forward(self, image):
        return self.net(image / 255)


def pretrained(folder, model, **changes):
    """The best checkpoint of one epoch."""
    data = small_data(**changes)
    RunTrainer(default_root_dir=str(folder), max_epochs=1, **QUIET).pretrain(model, data)
    return folder / "checkpoints" / "best.ckpt", data


def photograph(height=70, width=101, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


MODELS = {
    "fpn": lambda names: segmenter(names=names),
    "fpn, positional": lambda names: FPNSegmenter(names, "tu-test_resnet", "none", None, 32, 32),
    "unet": lambda names: SmpSegmenter(names, arch="Unet", decoder={"decoder_channels": [32, 16, 16, 8, 8]}, **TINY),
    "closed form": lambda names: closed_form(names, components=8, grid_stride=2),
    "own class": lambda names: Stripes(names, width=6, label_stride=2),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_file_alone_makes_the_segmenter_again(kind, tmp_path):
    torch.manual_seed(1)
    path, data = pretrained(tmp_path, MODELS[kind](small_data().class_names), size=(48, 80))
    model = MODELS[kind](data.class_names)
    model.load_weights(read_checkpoint(path))
    model.canvas = data.canvas
    torch.manual_seed(5)
    expected_draw = torch.rand(3)
    torch.manual_seed(5)
    loaded = ralseg.load_segmenter(path)
    assert torch.equal(torch.rand(3), expected_draw), "loading must not disturb random draws"
    assert type(loaded) is type(model)
    assert not loaded.training
    assert loaded.canvas == Canvas((48, 80))
    assert loaded.colours == tuple(data.dataset.colours)
    assert loaded.describe() == model.describe()
    one, other = model.eval().predict_image(photograph()), loaded.predict_image(photograph())
    assert np.array_equal(one.classes, other.classes)
    assert np.array_equal(one.confidence, other.confidence)
    assert len(np.unique(one.classes)) > 1


def test_a_loaded_segmenter_can_be_trained_and_loaded_again(tmp_path):
    path, _ = pretrained(tmp_path / "one", Stripes(small_data().class_names, width=6))
    again, _ = pretrained(tmp_path / "two", ralseg.load_segmenter(path))
    assert ralseg.load_segmenter(again).net[0].out_channels == 6


def test_copies_and_pickles_know_how_they_were_made():
    net = Stripes(("a", "b"), width=3)
    recipe = recipe_of(net)
    assert recipe == {"class_path": f"{__name__}.Stripes", "init_args": {"class_names": ("a", "b"), "width": 3}}
    assert recipe_of(copy.deepcopy(net)) == recipe
    assert recipe_of(cloudpickle.loads(cloudpickle.dumps(net))) == recipe


def test_where_weights_came_from_is_not_written_down(tmp_path):
    torch.save(FPNSegmenter(("a", "b"), **TINY).net.encoder.state_dict(), tmp_path / "w.pth")
    net = FPNSegmenter(("a", "b"), encoder="tu-test_resnet", encoder_weights=str(tmp_path / "w.pth"))
    assert recipe_of(net)["init_args"]["encoder_weights"] == "none"


# -- folders of runs ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_folder_of_an_acquisition_gives_what_was_tested_at_the_largest_budget(keep, tmp_path):
    acquire(tmp_path, budgets=[4, 10], options={"final": final(keep=keep)})
    expected = tmp_path / "budget_000010" / "checkpoints" / f"{keep}.ckpt"
    assert find_segmenter(tmp_path) == expected
    assert find_segmenter(tmp_path / "budget_000004").parts[-3:] == ("budget_000004", "checkpoints", f"{keep}.ckpt")
    loaded = ralseg.load_segmenter(tmp_path)
    saved = torch.load(expected, weights_only=True)["state_dict"]
    assert all(torch.equal(tensor, saved[key]) for key, tensor in loaded.state_dict().items())
    assert loaded.canvas == Canvas()
    with pytest.raises(ConfigError, match=r"last\.ckpt: holds the state of a labelling run"):
        ralseg.load_segmenter(tmp_path / "checkpoints" / "last.ckpt")
    (tmp_path / "budget_000010" / "final.json").unlink()
    assert find_segmenter(tmp_path).parent.parent.name == "budget_000004"
    (tmp_path / "budget_000004" / "final.json").unlink()
    with pytest.raises(ConfigError, match="no final training of this acquisition has ended yet"):
        ralseg.load_segmenter(tmp_path)


@pytest.mark.slow
def test_policies_are_not_segmenters_and_warn_of_other_sizes(tmp_path, caplog):
    play(tmp_path, game(episodes=1, validation_plays=0))
    with pytest.raises(ConfigError, match="holds a policy"):
        ralseg.load_segmenter(tmp_path)
    with pytest.raises(ConfigError, match=r"policy\.ckpt: holds a policy"):
        ralseg.load_segmenter(tmp_path / "policy.ckpt")
    with caplog.at_level(logging.WARNING):
        acquire(tmp_path / "same", policy=str(tmp_path / "policy.ckpt"))
        assert "the policy learned on" not in caplog.text
        acquire(tmp_path / "other", policy=str(tmp_path / "policy.ckpt"), data=small_data(size=(32, 48)))
    assert "the policy learned on images of their own size, and here they are of 32x48 pixels" in caplog.text


def test_what_is_missing_is_said(tmp_path):
    (tmp_path / "runs" / "camvid" / "seed0" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"no such file or folder; did you mean .*runs/camvid\?"):
        ralseg.load_segmenter(tmp_path / "runs" / "camvit" / "checkpoints" / "best.ckpt")
    with pytest.raises(ConfigError, match="holds no run itself, but the runs seed0"):
        ralseg.load_segmenter(tmp_path / "runs" / "camvid")
    with pytest.raises(ConfigError, match=r"holds no checkpoints/best.ckpt \(of `ralseg pretrain`\)"):
        ralseg.load_segmenter(tmp_path / "runs" / "camvid" / "seed0")
    with pytest.raises(ConfigError, match="local files only"):
        ralseg.load_segmenter("https://example.org/best.ckpt")


# -- checkpoints that do not say enough --------------------------------------------------------------


def written(folder, **about):
    """A checkpoint of `Stripes` whose description was changed; None leaves a key out."""
    net = Stripes(("a", "b"))
    description = {"version": "0.1.0", "segmenter": net.describe(), **net.about(), **about}
    kept = {key: value for key, value in description.items() if value is not None}
    torch.save({"ralseg": kept, "state_dict": net.state_dict()}, folder / "c.ckpt")
    return folder / "c.ckpt"


def made(**changes):
    return {"class_path": f"{__name__}.Stripes", "init_args": {"class_names": ["a", "b"]}} | changes


def test_an_old_checkpoint_goes_into_a_segmenter_that_is_given(tmp_path, caplog):
    path = written(tmp_path, made=None)
    with pytest.raises(ConfigError, match=r"does not say how its segmenter is made .*segmenter=\.\.\."):
        ralseg.load_segmenter(path)
    with caplog.at_level(logging.WARNING):
        net = ralseg.load_segmenter(path, Stripes(("a", "b")))
    assert "does not say what size its images had" in caplog.text
    assert net.predict(photograph(20, 30)).shape == (20, 30)


def test_arguments_that_are_no_plain_values_need_a_segmenter(tmp_path):
    net = Stripes(("a", "b"), activation=nn.ReLU())
    path = written(tmp_path, **net.about())
    with pytest.raises(ConfigError, match=r"was made with activation, which is no plain value .*segmenter="):
        ralseg.load_segmenter(path)
    assert ralseg.load_segmenter(path, net) is net


def test_other_weights_of_ones_own_class_are_explained():
    wide = Stripes(("a", "b"), width=8)
    checkpoint = {"ralseg": {"segmenter": wide.describe(), **wide.about()}, "state_dict": wide.state_dict()}
    with pytest.raises(ConfigError) as error:
        Stripes(("a", "b"), width=4).load_weights(checkpoint)
    said = str(error.value)
    assert "Stripes: the checkpoint's weights do not fit this network: 3 of another shape (net.0.weight: " in said
    assert "[8, 3, 3, 3] in the checkpoint, [4, 3, 3, 3] here" in said
    assert "width: 8 in the checkpoint, 4 here" in said
    other = Stripes(("a", "b"))
    other.more = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=r"2 that the checkpoint lacks \(more.weight, more.bias\)"):
        other.restore(Stripes(("a", "b")).state_dict())
    broken = closed_form().state_dict()
    del broken["features.basis"]
    with pytest.raises(ConfigError, match=r"1 that the checkpoint lacks \(features.basis\)"):
        closed_form().restore(broken)


def test_weights_of_other_sizes_are_warned_of_once(tmp_path, caplog):
    path, _ = pretrained(tmp_path, segmenter(), size=(32, 48))
    other = segmenter()
    other.canvas = Canvas((64, 96))
    with caplog.at_level(logging.WARNING):
        other.load_weights(read_checkpoint(path))
        other.load_weights(read_checkpoint(path))
    said = "a training on images of 32x48 pixels (resize: pad), and here they are of 64x96 pixels (resize: pad)"
    assert caplog.text.count(said) == 1


# -- strangers ---------------------------------------------------------------------------------------


def test_a_stranger_cannot_have_modules_imported(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RALSEG_ALLOW_IMPORT", raising=False)
    with pytest.raises(ConfigError, match=r"evil.Net: not imported, .* add --allow_import evil .*import its module"):
        ralseg.load_segmenter(written(tmp_path, made=made(class_path="evil.Net")))
    with pytest.raises(ConfigError, match="is no subclass of"):
        ralseg.load_segmenter(written(tmp_path, made=made(class_path="torch.nn.Linear")))
    assert "evil" not in sys.modules


NET = """
from torch import nn
from ralseg import Segmenter

class Net(Segmenter):
    def __init__(self, class_names, **options):
        super().__init__(class_names, **options)
        self.net = nn.Conv2d(3, 2, 1)

    def forward(self, image):
        return self.net(image / 255)
"""


def test_an_allowed_module_is_imported(tmp_path, monkeypatch):
    (tmp_path / "net_of_mine.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RALSEG_ALLOW_IMPORT", "net_of_mine")
    state = {**Stripes(("a", "b")).state_dict(), "net.weight": torch.zeros(2, 3, 1, 1), "net.bias": torch.zeros(2)}
    state = {key: value for key, value in state.items() if not key.startswith(("net.0", "net.2"))}
    about = {"segmenter": {"class": "Net", "class_names": ["a", "b"]}, "made": made(class_path="net_of_mine.Net")}
    torch.save({"ralseg": about, "state_dict": state}, tmp_path / "c.ckpt")
    assert ralseg.load_segmenter(tmp_path / "c.ckpt").predict(photograph(8, 9)).shape == (8, 9)


@pytest.mark.parametrize("encoder", ["tu-hf-hub:someone/net", "tu-local-dir:/tmp", "../../weights", "tu-a b"])
@pytest.mark.parametrize("kind", [FPNSegmenter, ClosedFormSegmenter])
def test_a_stranger_cannot_have_networks_looked_up(encoder, kind, tmp_path):
    path = f"{kind.__module__}.{kind.__qualname__}"
    recipe = made(class_path=path, init_args={"class_names": ["a", "b"], "encoder": encoder})
    with pytest.raises(ConfigError, match="may only name encoders of the installed libraries"):
        ralseg.load_segmenter(written(tmp_path, made=recipe))


def test_a_stranger_cannot_have_weights_downloaded_or_read(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("must not be called")

    monkeypatch.setattr(encoders, "load_file", refuse)
    monkeypatch.setattr(encoders, "load_lite0", refuse)
    monkeypatch.setattr("segmentation_models_pytorch.encoders.hf_hub_download", refuse)
    net = FPNSegmenter(("a", "b"), encoder="resnet18", encoder_weights="none")
    for weights in ("imagenet", "efficientnet_lite0", "/etc/passwd"):
        about = {"segmenter": net.describe(), **net.about()}
        about["made"]["init_args"]["encoder_weights"] = weights
        torch.save({"ralseg": about, "state_dict": net.state_dict()}, tmp_path / "c.ckpt")
        ralseg.load_segmenter(tmp_path / "c.ckpt")


def test_a_stranger_cannot_call_other_functions_of_a_library(tmp_path):
    recipe = made(
        class_path="ralseg.models.smp.SmpSegmenter",
        init_args={"class_names": ["a", "b"], "arch": "from_pretrained", "encoder": "x"},
    )
    with pytest.raises(ConfigError, match=r"model\.arch='from_pretrained' is none of FPN"):
        ralseg.load_segmenter(written(tmp_path, made=recipe))
    with pytest.raises(ConfigError, match="cannot be made again"):
        ralseg.load_segmenter(written(tmp_path, made=made(init_args={"class_names": ["a", "b"], "widht": 3})))
