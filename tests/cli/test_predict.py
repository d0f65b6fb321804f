"""`ralseg predict`: a folder of images in, pictures of classes out."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ralseg
from ralseg.cli import main
from ralseg.data import Folder
from ralseg.data.canvas import Canvas
from ralseg.data.readers import read_index_mask
from ralseg.models import FPNSegmenter
from support.data import write_png

NAMES, COLOURS = ("ground", "plant", "stone"), ((200, 10, 10), (10, 200, 10), (10, 10, 200))


def checkpoint(path, size=(48, 64), seed=0):
    torch.manual_seed(seed)
    net = FPNSegmenter(
        NAMES, encoder="tu-test_resnet", encoder_weights="none", pyramid_channels=32, segmentation_channels=32
    )
    torch.nn.init.normal_(net.net.segmentation_head[0].weight)
    net.canvas, net.colours = Canvas(size), COLOURS
    torch.save({"ralseg": {"segmenter": net.describe(), **net.about()}, "state_dict": net.state_dict()}, path)
    return net.eval()


def pixels(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A checkpoint, and images of several sizes and kinds in two folders."""
    monkeypatch.chdir(tmp_path)
    checkpoint("c.ckpt")
    write_png(Path("photos/one.PNG"), pixels(70, 90))
    write_png(Path("photos/deep/two.png"), pixels(31, 130, 1))
    Image.fromarray(pixels(40, 40, 2)).convert("L").save("photos/grey.jpeg")
    Image.fromarray(pixels(40, 40, 3)).convert("P").save("photos/deep/palette.bmp")
    Path("photos/notes.txt").write_text("no image")
    Path("photos/.hidden.png").write_text("no image")
    return tmp_path


def predict(*more, images="photos", out="out"):
    return main(["predict", "--ckpt", "c.ckpt", "--images", images, "--out", out, *more])


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def test_every_image_gets_its_files_in_its_own_size(here, capsys):
    assert predict("--confidence", "--probabilities") == 0
    stems = ["deep/palette", "deep/two", "grey", "one"]
    suffixes = {"classes": "png", "confidence": "png", "overlays": "jpg", "probabilities": "npy"}
    expected = [f"{kind}/{stem}.{suffix}" for kind, suffix in suffixes.items() for stem in stems]
    assert files("out") == sorted([*expected, "classes.json", "legend.png"])
    assert "4 images predicted: out/classes" in capsys.readouterr().out
    net = ralseg.load_segmenter("c.ckpt")
    found = net.predict_image(Path("photos/deep/two.png"), probabilities=True)
    assert found.classes.shape == (31, 130)
    assert len(np.unique(found.classes)) > 1
    assert np.array_equal(read_index_mask(Path("out/classes/deep/two.png")), found.classes)
    grey = np.asarray(Image.open("out/confidence/deep/two.png"))
    assert np.abs(grey / 255 - found.confidence).max() <= 0.5 / 255 + 1e-6
    assert np.array_equal(np.load("out/probabilities/deep/two.npy"), found.probabilities)
    assert found.probabilities.shape == (3, 31, 130)


def blocks(image):
    """Mean colours of 10x10 pixels."""
    return image.reshape(image.shape[0] // 10, 10, image.shape[1] // 10, 10, 3).mean((1, 3))


def test_class_files_are_looked_at_in_colour_and_read_as_masks(here):
    predict()
    image = Image.open("out/classes/one.png")
    assert image.mode == "P"
    classes = np.asarray(image)
    assert np.array_equal(np.asarray(image.convert("RGB")), np.array(COLOURS, np.uint8)[classes])
    overlay = np.asarray(Image.open("out/overlays/one.jpg")).astype(int)
    expected = pixels(70, 90) // 2 + np.array(COLOURS)[classes] // 2
    assert np.abs(blocks(overlay) - blocks(expected)).max() < 8  # JPEG of noise is right on average
    about = json.loads(Path("out/classes.json").read_text())
    assert about["classes"][1] == {"value": 1, "name": "plant", "colour": [10, 200, 10]}
    assert about["size"] == [48, 64]
    for subset in ("train", "val", "test"):
        shutil.copytree("photos/deep", f"data/images/{subset}")
        shutil.copytree("out/classes/deep", f"data/masks/{subset}")
    Path("data/dataset.yaml").write_text("classes: [ground, plant, stone]\n")
    data = Folder("data")
    predicted = read_index_mask(Path("out/classes/deep/two.png"))
    assert np.array_equal(data.read_mask(data.names.index("train/two.png")), predicted)


def test_one_image_may_be_given_and_has_no_extension(here):
    shutil.copy("photos/one.PNG", "snapshot")
    assert predict("--overlays", "false", images="snapshot") == 0
    assert files("out") == ["classes.json", "classes/snapshot.png", "legend.png"]


def test_a_damaged_image_is_passed_over_and_named_at_the_end(here, capsys):
    Path("photos/aaa.png").write_bytes(Path("photos/one.PNG").read_bytes()[:200])
    Image.new("RGBA", (9, 9), (1, 2, 3, 4)).save("photos/clear.png")
    assert predict() == 3
    said = capsys.readouterr()
    assert "4 images predicted" in said.out
    assert "2 of 6 images could not be read, all others are done:" in said.err
    assert "photos/aaa.png: cannot be decoded" in said.err
    assert "photos/clear.png: has see-through pixels" in said.err
    assert len(files("out/classes")) == 4


def stamps():
    return {name: Path("out", name).stat().st_mtime_ns for name in files("out") if "classes/" in name}


def test_the_same_command_goes_on_where_it_was(here, capsys):
    predict()
    before = stamps()
    Path("out/classes/one.png").unlink()
    Path("out/overlays/grey.jpg").unlink()
    Path("out/classes/deep/two.png").write_bytes(b"half")
    later = time.time() + 5
    os.utime("photos/deep/palette.bmp", (later, later))  # the image has changed
    capsys.readouterr()
    assert predict() == 0
    assert "4 images predicted: out" in capsys.readouterr().out
    now = {name: Path("out", name).read_bytes() for name in files("out")}
    assert predict() == 0
    assert "0 images predicted, 4 were there already" in capsys.readouterr().out
    assert {name: Path("out", name).read_bytes() for name in files("out")} == now
    assert before.keys() == stamps().keys()
    os.utime("photos/deep/palette.bmp", (0, 0))  # an older file in its place
    assert predict() == 0
    assert "1 images predicted, 3 were there already" in capsys.readouterr().out
    assert predict("--confidence") == 0, "what is missing now is made"
    assert len(files("out/confidence")) == 4


def test_other_predictions_and_foreign_files_are_not_touched(here, capsys):
    predict("--confidence")
    checkpoint("c.ckpt", seed=1)
    before = {name: Path("out", name).read_bytes() for name in files("out")}
    assert predict() == 2
    assert "holds predictions of another checkpoint or tile size (c.ckpt)" in capsys.readouterr().err
    assert {name: Path("out", name).read_bytes() for name in files("out")} == before
    assert predict("--overwrite") == 0
    assert Path("out/classes/one.png").read_bytes() != before["classes/one.png"]
    assert not files("out/confidence"), "those of the other checkpoint must not stay beside the new classes"
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years of work")
    assert predict(out="mine") == 2
    assert "mine: holds files that are no predictions of ralseg" in capsys.readouterr().err
    assert predict(out="mine/thesis.txt") == 2
    assert "is a file; give a folder" in capsys.readouterr().err
    assert predict("--overwrite", out="mine") == 0
    assert Path("mine/thesis.txt").read_text() == "years of work"


def test_predictions_inside_the_images_folder_are_no_images(here):
    assert predict(out="photos/predicted") == 0
    assert predict(out="photos/predicted") == 0
    assert len(files("photos/predicted/classes")) == 4


def test_names_that_would_meet_are_refused_before_anything_is_done(here, capsys):
    shutil.copy("photos/one.PNG", "photos/one.jpg")
    assert predict() == 3
    said = capsys.readouterr().err
    assert "photos/one.PNG and photos/one.jpg: their predictions would have the same name, one.png" in said
    assert not Path("out").exists()


def test_values_may_come_from_a_configuration_with_other_commands_keys(here):
    values = "ckpt: c.ckpt\nimages: photos\nout: there\noverlays: false\n"
    Path("p.yaml").write_text(values + "seed_everything: 3\ndata: {size: 1}\n")
    assert main(["predict", "--config", "p.yaml", "--model", "x", "--tile", "512"]) == 0
    assert len(files("there")) == 6
    assert json.loads(Path("there/classes.json").read_text())["tile"] == 512


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--images", "photos"], 2, "ralseg predict needs --ckpt"),
        (["--ckpt", "c.ckpt"], 2, "ralseg predict needs --images"),
        (["--ckpt", "d.ckpt", "--images", "photos"], 2, "d.ckpt: no such file or folder; did you mean c.ckpt?"),
        (["--ckpt", "c.ckpt", "--images", "fotos"], 3, "--images fotos: no such file or folder"),
        (["--ckpt", "c.ckpt", "--images", "empty"], 3, "--images empty: holds no images (.png, "),
        (["--ckpt", "c.ckpt", "--images", "photos", "--tile", "100"], 2, "--tile 100: must be a multiple of 32"),
        (["--ckpt", "photos/one.PNG", "--images", "photos"], 3, "not a checkpoint"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(here, capsys, arguments, code, message):
    Path("empty").mkdir()
    before = files(".")
    assert main(["predict", *arguments]) == code
    assert message in capsys.readouterr().err
    assert files(".") == before
