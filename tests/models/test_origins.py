"""Checkpoints that name a frozen encoder: they do all that whole ones do, or say what is missing."""

import copy
import logging

import numpy as np
import pytest
import torch

import ralseg
from ralseg.cli import main
from ralseg.engine.trainer import RunTrainer
from ralseg.errors import ConfigError
from ralseg.models import encoders
from ralseg.models.origins import LEFT_OUT, EncoderMissing, Origins
from ralseg.runtime.checkpoints import read_checkpoint
from support.closed_form import closed_form
from support.data import small_data
from support.games import QUIET, Kill, Killed, acquire, assert_same, final, game, play, segmenter, selected

ENCODER = "tu-test_resnet"


def write_weights(path, seed=0):
    """A file of weights for the small encoder."""
    torch.manual_seed(seed)
    path.parent.mkdir(exist_ok=True)
    torch.save(encoders.build(ENCODER, "none").state_dict(), path)
    return path


@pytest.fixture
def weights(tmp_path):
    return write_weights(tmp_path / "encoder.pth")


def train(model, folder, **options):
    """The best checkpoint of one epoch."""
    RunTrainer(default_root_dir=str(folder), max_epochs=1, **QUIET, **options).pretrain(model, small_data())
    return folder / "checkpoints" / "best.ckpt"


def holds_encoder(path) -> bool:
    return any(".encoder." in f".{name}" for name in read_checkpoint(path)["state_dict"])


def about_to_be_saved(net) -> dict:
    checkpoint = {"ralseg": {}, "state_dict": net.state_dict()}
    net.leave_out_encoder(checkpoint)
    return checkpoint


def prediction(net) -> np.ndarray:
    return net.predict_image(np.random.default_rng(0).integers(0, 256, (40, 56, 3), np.uint8)).confidence


@pytest.mark.parametrize("make", [segmenter, closed_form], ids=["fpn", "closed form"])
def test_a_file_alone_makes_the_segmenter_again(make, weights, tmp_path):
    model = make(encoder_weights=str(weights))
    path = train(model, tmp_path / "run")
    assert not holds_encoder(path)
    assert read_checkpoint(path)["ralseg"][LEFT_OUT]["weights"] == str(weights)
    torch.manual_seed(5)
    expected_draw = torch.rand(3)
    torch.manual_seed(5)
    loaded = ralseg.load_segmenter(path)
    assert torch.equal(torch.rand(3), expected_draw), "loading must not disturb random draws"
    whole = train(make(encoder_weights=str(weights)), tmp_path / "whole", complete_checkpoints=True)
    assert holds_encoder(whole)
    assert np.array_equal(prediction(loaded), prediction(ralseg.load_segmenter(whole)))
    assert path.stat().st_size < whole.stat().st_size


def test_nothing_that_has_changed_is_left_out(weights):
    net = segmenter(encoder_weights=str(weights))
    checkpoint = about_to_be_saved(net)
    assert LEFT_OUT in checkpoint["ralseg"]
    statistics = next(name for name, _ in net.net.encoder.named_buffers() if name.endswith("running_mean"))
    dict(net.net.encoder.named_buffers())[statistics][0] += 1e-6
    checkpoint = about_to_be_saved(net)
    assert LEFT_OUT not in checkpoint["ralseg"]
    assert f"net.encoder.{statistics}" in checkpoint["state_dict"]


def test_weights_that_nobody_could_draw_again_are_stored(tmp_path):
    assert holds_encoder(train(segmenter(), tmp_path))


def test_an_encoder_that_trains_is_stored(weights, tmp_path):
    free = {"encoder_weights": str(weights), "freeze_encoder": False, "cache_features": False}
    assert holds_encoder(train(segmenter(**free), tmp_path / "free"))


def test_statistics_of_a_frozen_encoder_stay(weights, tmp_path):
    net = segmenter(encoder_weights=str(weights), cache_features=False)
    before = copy.deepcopy(net.net.encoder.state_dict())
    train(net, tmp_path)
    acquire(tmp_path / "acquired", model=net)
    assert before.keys() >= {"model.bn1.running_mean", "model.bn1.num_batches_tracked"}
    assert_same(before, dict(net.net.encoder.state_dict()))


def test_a_run_that_was_cut_off_ends_the_same(weights, tmp_path):
    theta_0 = str(train(segmenter(encoder_weights=str(weights)), tmp_path / "theta_0"))

    def run(name, ckpt=None, **options):
        model = segmenter(encoder_weights=str(weights))
        options = {"final": final(keep="last")} | options
        return acquire(tmp_path / name, model=model, initial_weights=theta_0, ckpt=ckpt, options=options)[1]

    whole = run("whole")
    with pytest.raises(Killed):
        run("cut", callbacks=[Kill(2)])
    resumed = run("cut", ckpt="last")
    complete = run("complete", complete_checkpoints=True)
    for name, result in (("cut", resumed), ("complete", complete)):
        assert result["budgets"] == whole["budgets"]
        assert selected(tmp_path / name) == selected(tmp_path / "whole")
    files = ["checkpoints/last.ckpt", "checkpoints/budget_000010.ckpt", "budget_000010/checkpoints/last.ckpt"]
    for file in files:
        lean, again, held = (read_checkpoint(tmp_path / name / file) for name in ("whole", "cut", "complete"))
        assert_same(lean["state_dict"], again["state_dict"])
        shared = {key: held["state_dict"][key] for key in lean["state_dict"]}
        assert_same(lean["state_dict"], shared)
        assert LEFT_OUT in lean["ralseg"]
        assert len(held["state_dict"]) > len(shared)
    assert [path.name for path in (tmp_path / "whole" / "budget_000010" / "checkpoints").iterdir()] == ["last.ckpt"]
    assert not (tmp_path / "whole" / "budget_000010" / "smp").exists()


def test_games_of_fit_leave_encoders_out_and_go_on(weights, tmp_path):
    theta_0 = str(train(segmenter(encoder_weights=str(weights)), tmp_path / "theta_0"))
    rules = game(initial_weights=[theta_0], episodes=1, validation_plays=0)
    options = {"model": segmenter(encoder_weights=str(weights))}
    play(tmp_path / "whole", rules, **options)
    with pytest.raises(Killed):
        play(tmp_path / "cut", rules, **options, callbacks=[Kill(2)])
    play(tmp_path / "cut", rules, **options, ckpt="last")
    one, two = (read_checkpoint(tmp_path / name / "checkpoints" / "last.ckpt") for name in ("whole", "cut"))
    assert_same(one["state_dict"], two["state_dict"])
    assert not holds_encoder(tmp_path / "whole" / "checkpoints" / "last.ckpt")


def test_what_is_saved_here_names_the_file_that_is_here(weights, tmp_path):
    """Not the one that a checkpoint from another machine names."""
    path = train(segmenter(encoder_weights=str(weights)), tmp_path / "there")
    own = write_weights(tmp_path / "here" / "own.pth")
    weights.unlink()
    net = segmenter(encoder_weights=str(own))
    net.load_weights(read_checkpoint(path))
    assert about_to_be_saved(net)["ralseg"][LEFT_OUT]["weights"] == str(own)


def test_weights_beside_a_checkpoint_are_named_where_they_are(weights, tmp_path):
    path = train(segmenter(encoder_weights=str(weights)), tmp_path / "run")
    beside = weights.rename(path.with_name(weights.name))
    net = segmenter(seed=7)
    net.load_weights(read_checkpoint(path))
    assert about_to_be_saved(net)["ralseg"][LEFT_OUT]["weights"] == str(beside)


def test_another_encoder_here_is_replaced_by_the_one_that_is_named(weights, tmp_path):
    path = train(segmenter(encoder_weights=str(weights)), tmp_path / "run")
    expected = prediction(ralseg.load_segmenter(path))
    for net in (segmenter(seed=7), segmenter(seed=7, freeze_encoder=False, cache_features=False)):
        net.load_weights(read_checkpoint(path))
        assert np.array_equal(prediction(net.eval()), expected)
    checkpoint = about_to_be_saved(net)
    assert LEFT_OUT not in checkpoint["ralseg"], "it may train from here on"


def test_an_encoder_that_was_replaced_is_left_out_again(weights, tmp_path):
    path = train(segmenter(encoder_weights=str(weights)), tmp_path / "run")
    net = ralseg.load_segmenter(path)
    checkpoint = about_to_be_saved(net)
    assert checkpoint["ralseg"][LEFT_OUT] == read_checkpoint(path)["ralseg"][LEFT_OUT]


def asked_for(path, weights, tmp_path):
    """All ways to use a checkpoint, each with an encoder that is not the one it names."""

    def other():
        return segmenter(seed=7)

    yield lambda: ralseg.load_segmenter(path)
    yield lambda: other().load_weights(read_checkpoint(path))
    yield lambda: RunTrainer(default_root_dir=str(tmp_path / "t"), **QUIET).test(
        other(), None, path, False, small_data()
    )
    yield lambda: acquire(tmp_path / "a", model=other(), initial_weights=str(path))
    yield lambda: RunTrainer(default_root_dir=str(path.parent.parent), max_epochs=2, **QUIET).pretrain(
        other(), small_data(), ckpt=str(path)
    )


@pytest.mark.parametrize("way", range(5))
@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "another one"])
def test_an_encoder_that_is_not_to_be_had_is_refused(way, is_gone, weights, tmp_path):
    path = train(segmenter(encoder_weights=str(weights)), tmp_path / "run")
    use = list(asked_for(path, weights, tmp_path))[way]
    if is_gone:
        weights.unlink()
    else:
        write_weights(weights, seed=1)
    with pytest.raises(EncoderMissing) as error:
        use()
    said = str(error.value)
    assert said.startswith(f"{path}: its frozen encoder is not in the file, but to be taken from {weights}")
    assert ("is neither" in said) if is_gone else ("where another one is now (checksum" in said)
    assert f"ralseg export --ckpt {path} --format checkpoint --out whole.ckpt" in said


def test_weights_beside_the_checkpoint_serve_too(weights, tmp_path):
    path = train(segmenter(encoder_weights=str(weights)), tmp_path / "run")
    expected = prediction(ralseg.load_segmenter(path))
    weights.rename(path.parent / weights.name)
    assert np.array_equal(prediction(ralseg.load_segmenter(path)), expected)


def test_export_makes_a_checkpoint_that_needs_nothing_else(weights, tmp_path, capsys):
    path = train(segmenter(encoder_weights=str(weights)), tmp_path / "run")
    expected = prediction(ralseg.load_segmenter(path))
    out = tmp_path / "whole.ckpt"
    assert main(["export", "--ckpt", str(tmp_path / "run"), "--format", "checkpoint", "--out", str(out)]) == 0
    assert "written, with all weights" in capsys.readouterr().out
    weights.unlink()
    assert holds_encoder(out)
    assert np.array_equal(prediction(ralseg.load_segmenter(out)), expected)
    assert acquire(tmp_path / "a", initial_weights=str(out))[1]["budgets"]


def test_a_stranger_cannot_have_anything_run_by_a_name(weights, tmp_path):
    path = train(segmenter(encoder_weights=str(weights)), tmp_path / "run")
    content = dict(read_checkpoint(path))
    code = tmp_path / "code.pth"
    torch.save({"weight": print}, code)
    for name in (str(code), "/dev/zero", str(tmp_path), "https://example.org/weights.pth"):
        content["ralseg"][LEFT_OUT]["weights"] = name
        torch.save(content, tmp_path / "strange.ckpt")
        with pytest.raises(ConfigError, match="its frozen encoder is not in the file"):
            ralseg.load_segmenter(tmp_path / "strange.ckpt")


def test_precisions_that_numpy_does_not_know_have_checksums():
    origins, part = Origins(), {"weight": torch.ones(3, dtype=torch.bfloat16), "count": torch.tensor(3)}
    origins.note(part, "imagenet")
    checkpoint = {"ralseg": {}, "state_dict": dict(part)}
    origins.leave_out(checkpoint, "", "")
    assert checkpoint["state_dict"] == {}
    assert_same(origins.take_in(checkpoint, part, lambda source: {}), part)


def test_nothing_is_said_where_all_is_well(weights, tmp_path, caplog):
    path = train(segmenter(encoder_weights=str(weights)), tmp_path / "run")
    with caplog.at_level(logging.WARNING):
        ralseg.load_segmenter(path)
    assert "encoder" not in caplog.text
