"""From a folder to predictions by five commands, without a key that a person wrote."""

import json

import numpy as np
import pytest
from PIL import Image

from ralseg.cli import main
from support.data import striped_folder

QUICK = ["--trainer.enable_progress_bar", "false", "--trainer.logger", "false"]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Black and white masks, and nobody has said what they mean."""
    monkeypatch.chdir(tmp_path)
    return striped_folder(tmp_path / "photos", (0, 255), labelled=16, size=(70, 90), mask="{}_mask.png")


@pytest.mark.slow
def test_five_commands(photos, capsys):
    assert main(["init", "photos", "--pixels", "4096"]) == 0
    assert main(["data", "check", "--config", "photos.yaml"]) == 0
    short = ["--trainer.max_epochs", "4", "--trainer.check_val_every_n_epoch", "2"]
    assert main(["pretrain", "--config", "photos.yaml", *short, *QUICK]) == 0
    assert main(["test", "--config", "photos.yaml", *QUICK]) == 0
    short = ["--trainer.final.max_steps", "4", "--trainer.final.validate_every", "2"]
    assert main(["acquire", "--config", "photos.yaml", *short, *QUICK]) == 0
    assert main(["predict", "--config", "photos.yaml", "--images", "photos/images/test", "--out", "found"]) == 0
    told = capsys.readouterr().out
    assert "values: {0: background, 255: foreground}" in told
    assert "ralseg on Folder, seed 0" in told
    about = json.loads((photos.parent / "found" / "classes.json").read_text())
    assert "foreground" in json.dumps(about)
    predicted = sorted((photos.parent / "found" / "classes").rglob("*.png"))
    assert len(predicted) == 16
    assert np.asarray(Image.open(predicted[0])).shape == (70, 90)


@pytest.mark.slow
def test_the_other_commands_take_the_file_too(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    photos = striped_folder(tmp_path / "photos", (0, 255), labelled=40, size=(70, 90), mask="{}_mask.png")
    main(["init", "photos"])
    game = ["--trainer.game.episodes", "2", "--trainer.game.validation_every", "2"]
    game += ["--trainer.game.validation_plays", "1", "--agent.episodes_per_update", "1"]
    assert main(["fit", "--config", "photos.yaml", *game, *QUICK]) == 0
    assert "points in 1 games on held-out images" in capsys.readouterr().out
    assert (photos.parent / "runs/photos/fit/policy.ckpt").is_file()
    capsys.readouterr()
    assert main(["compare", "--config", "photos.yaml", "--emit", "commands"]) == 0
    cells = capsys.readouterr().out.splitlines()
    assert len(cells) == 12
    assert cells[0].startswith("ralseg compare --config photos.yaml")


def test_people_label_where_most_images_have_no_mask(tmp_path, monkeypatch):
    import yaml

    monkeypatch.chdir(tmp_path)
    striped_folder(tmp_path / "photos", labelled=6, unlabelled=40)
    assert main(["init", "photos"]) == 0
    content = yaml.safe_load((tmp_path / "photos.yaml").read_text())
    assert content["acquire"]["oracle"] == "crops"
    assert content["data"]["splits"] == {"state": 1, "train": 5}
    assert "compare" not in content  # there is nothing to reveal to several methods
