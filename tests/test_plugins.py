"""The promise of one file: classes that live outside of ralseg run through the commands by their class paths."""

import csv
import json
import shutil
from pathlib import Path

import pytest

from ralseg.cli import main
from support.configs import CONF

COMMON = """
trainer: {default_root_dir: run, logger: false, enable_progress_bar: false, enable_model_summary: false%s}
model:
  class_path: mine.Pixels
  init_args: {width: 6, label_stride: 2, optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}}
data:
  dataset: {class_path: mine.Noise, init_args: {count: 12}}
  layout: {class_path: mine.Diagonal}
  splits: {state: 1, train: 3}
  batch_size: 4
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(CONF / "mine.py", tmp_path)
    return tmp_path


def run(command: str, options: str, more: str = "", *arguments: str) -> int:
    Path(f"{command}.yaml").write_text(COMMON % options + more)
    return main([command, "--config", f"{command}.yaml", "--allow_import", "mine", *arguments])


def test_all_six_at_once(folder):
    """Segmenter, layout and data set in every command; agent in fit; policy, measure and oracle in acquire."""
    assert run("pretrain", ", max_epochs: 2") == 0
    assert main(["test", "--config", "pretrain.yaml", "--allow_import", "mine", "--ckpt", "best"]) == 0
    rules = "{budget: 4, regions_per_step: 2, pool_size: 2, episodes: 2, validation_plays: 1, validation_every: 2}"
    agent = "agent: {class_path: mine.HillClimber, init_args: {rate: 0.5}}\n"
    place = "--trainer.default_root_dir"
    assert run("fit", f", game: {rules}", agent, place, "fit") == 0
    spend = ", acquisition: {budgets: [5], regions_per_step: 4, pool_size: 2}, final: {max_steps: 2, validate_every: 2}"
    assert run("acquire", spend, "", place, "learned", "--policy", "fit/policy.ckpt") == 0
    own = "policy: {class_path: mine.Greenest, init_args: {sign: -1.0}}\noracle: {class_path: mine.Service}\n"
    assert run("acquire", spend, own, place, "own") == 0
    rows = list(csv.DictReader(Path("own/selection.csv").read_text().splitlines()))
    assert [int(row["step"]) for row in rows] == [0, 0, 0, 1, 1]  # at most three answers a step, five in all
    assert {int(row["segment"]) for row in rows} <= {0, 1, 2}
    assert json.loads(Path("own/result.json").read_text())["regions"] == 3 * (12 - 4 - 4)
    assert main(["data", "check", "--config", "acquire.yaml", "--allow_import", "mine"]) == 0


def test_a_policy_of_an_unknown_class_is_not_imported(folder, capsys, monkeypatch):
    rules = "{budget: 4, regions_per_step: 2, pool_size: 2, episodes: 1, validation_plays: 0}"
    assert run("fit", f", game: {rules}", "agent: {class_path: mine.HillClimber}\n") == 0
    monkeypatch.delenv("RALSEG_ALLOW_IMPORT", raising=False)
    plain = Path("fit.yaml").read_text().replace("mine.Pixels", "ralseg.FPNSegmenter").replace("width: 6,", "")
    plain = plain.replace("class_path: mine.Noise, init_args: {count: 12}", "class_path: ralseg.data.SyntheticStreets")
    plain = plain.replace("{class_path: mine.Diagonal}", "{class_path: ralseg.GridLayout}")
    plain = plain.replace(f", game: {rules}", "").replace("agent: {class_path: mine.HillClimber}\n", "")
    Path("plain.yaml").write_text(plain.replace("init_args: {", "init_args: {encoder_weights: none, ", 1))
    place = ["--trainer.default_root_dir", "other"]
    assert main(["acquire", "--config", "plain.yaml", "--policy", "run/policy.ckpt", *place]) == 2
    assert "mine.Weighted: not imported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arch", "decoder"),
    [
        ("DeepLabV3Plus", "{decoder_channels: 32}"),
        ("UPerNet", "{decoder_channels: 32}"),
        ("Segformer", "{decoder_segmentation_channels: 32}"),
    ],
)
@pytest.mark.slow
def test_other_architectures_by_configuration_alone(tmp_path, monkeypatch, arch, decoder):
    monkeypatch.chdir(tmp_path)
    model = (
        f"model: {{class_path: ralseg.SmpSegmenter, init_args: {{arch: {arch}, encoder: resnet18, decoder: {decoder}, "
        "encoder_weights: none, freeze_encoder: true, cache_features: true, label_stride: 2}}\n"
    )
    for name in ("pretrain", "fit", "acquire"):
        text = (CONF / f"{name}.yaml").read_text()
        start, end = text.index("model:"), text.index("agent:" if "agent:" in text else "data:")
        Path(f"{name}.yaml").write_text(text[:start] + model + text[end:])
    assert main(["pretrain", "--config", "pretrain.yaml", "--trainer.max_epochs", "2"]) == 0
    theta_0 = "run/checkpoints/best.ckpt"
    weights = ["--trainer.game.initial_weights", f"[{theta_0}]", "--trainer.default_root_dir", "fit"]
    assert main(["fit", "--config", "fit.yaml", *weights]) == 0
    weights = ["--trainer.acquisition.initial_weights", theta_0, "--trainer.default_root_dir", "acquire"]
    assert main(["acquire", "--config", "acquire.yaml", "--policy", "fit/policy.ckpt", *weights]) == 0
    assert json.loads(Path("acquire/result.json").read_text())["budgets"]["6"]["test_set/miou"] > 0
