"""`ralseg labels`: a request goes out as files of other tools, answers come back, and labels can be put elsewhere."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from ralseg.annotation import Answers, Request
from ralseg.annotation.files import cvat, formats
from ralseg.annotation.files.container import opened, write_members
from ralseg.annotation.files.exchange import labelled_records
from ralseg.annotation.files.names import without_ending
from ralseg.annotation.files.record import UNKNOWN, LabelRecord
from ralseg.cli import main
from ralseg.data import Folder, SyntheticStreets
from ralseg.data.readers import read_index_mask
from support.configs import ACQUIRE
from support.data import write_png
from support.label_records import CLASSES, found_masks
from support.label_requests import HEIGHT, WIDTH, make_answers, make_request, painted

WANTED, RESERVES = 4, 2
SIZE = (HEIGHT, WIDTH * (WANTED + RESERVES))


@pytest.fixture
def run(tmp_path, monkeypatch) -> Path:
    """Four wanted regions side by side in one image, predicted as ground; two reserves to the right."""
    monkeypatch.chdir(tmp_path)
    make_answers(tmp_path / "run/to_label", WANTED, RESERVES)
    write_png(tmp_path / "photos/train/a.png", np.zeros((*SIZE, 3), np.uint8))
    return tmp_path / "run"


def answers_of(run: Path) -> Answers:
    return Answers(run / "to_label", Request.read(run / "to_label"))


def labels(*arguments) -> int:
    return main(["labels", *map(str, arguments)])


def export(run, kind, out, *more) -> int:
    return labels("export", run, "--format", kind, "--out", out, *more)


def answer(kind: str, out: Path, mask: np.ndarray) -> Path:
    """What a tool would return: one image, labelled all over."""
    record = LabelRecord("train/a.png", SIZE[1], SIZE[0], (0, 0, SIZE[1], SIZE[0]), mask)
    write_members(out, formats.encode(kind, [record], CLASSES), overwrite=True)
    return out


def striped() -> np.ndarray:
    """Each region of another class, with a spot of stone; nothing on the reserves."""
    mask = np.full(SIZE, UNKNOWN, np.uint8)
    for place in range(WANTED):
        mask[:, WIDTH * place : WIDTH * (place + 1)] = place % 2
        mask[2, WIDTH * place + 3] = 2
    return mask


def events(run: Path) -> list[str]:
    return [entry["event"] for entry in answers_of(run).journal.entries()]


# -- a request and its answers -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", formats.FORMATS)
def test_a_request_goes_out_and_its_answers_come_back(run, kind, capsys):
    assert export(run, kind, "request.zip") == 0
    assert "4 regions of 1 images, the most wanted first" in capsys.readouterr().out
    with opened(Path("request.zip")) as members:
        (mask,) = found_masks(formats.decode(kind, members, CLASSES)).values()
    assert (mask[:, : WIDTH * WANTED] == 0).all()  # as predicted
    assert (mask[:, WIDTH * WANTED :] == UNKNOWN).all()  # reserves are not asked for
    answer(kind, Path("answers.zip"), striped())
    assert labels("import", run, "answers.zip", "--format", kind, "--who", "Ada") == 0
    assert "the request is complete" in capsys.readouterr().out
    answers = answers_of(run)
    for place, wanted in enumerate(answers.request.regions[:WANTED]):
        assert (answers.mask(wanted.region) == striped()[:, WIDTH * place : WIDTH * (place + 1)]).all()
        assert answers.mask(answers.request.regions[WANTED].region) is None
    saved = [entry for entry in answers.journal.entries() if entry["event"] == "saved"]
    assert {entry["who"] for entry in saved} == {"Ada"}
    assert {entry["source"] for entry in saved} == {kind}
    assert [entry["changed"] for entry in saved] == [1, HEIGHT * WIDTH, 1, HEIGHT * WIDTH]
    assert answers.journal.entries()[-1]["event"] == "imported"
    assert answers.journal.entries()[-1]["regions"] == [10, 11, 12, 13]


def test_what_is_answered_is_neither_exported_nor_overwritten_unasked(run, capsys):
    answers_of(run).save(11, painted(2), who="Eve", source="page")
    export(run, "coco", "request.json")
    content = json.loads(Path("request.json").read_text())
    assert [wanted["rank"] for wanted in content["images"][0]["ralseg_wanted"]] == [1, 3, 4]
    answer("coco", Path("answers.zip"), striped())
    labels("import", run, "answers.zip", "--format", "coco")
    assert (answers_of(run).mask(11) == 2).all()
    told = capsys.readouterr().out
    assert "3 regions answered" in told
    assert "1 regions were answered before and stay as they are; --overwrite true corrects them" in told
    labels("import", run, "answers.zip", "--format", "coco", "--overwrite", "true", "--who", "Ada")
    assert (answers_of(run).mask(11) == striped()[:, WIDTH : 2 * WIDTH]).all()
    assert answers_of(run).versions() == {10: 1, 11: 2, 12: 1, 13: 1}  # what is the same is no new version


def test_a_region_in_which_nothing_is_drawn_stays_open(run, capsys):
    mask = striped()
    mask[:, :WIDTH] = UNKNOWN
    answer("cvat", Path("answers.zip"), mask)
    labels("import", run, "answers.zip", "--format", "cvat")
    told = capsys.readouterr().out
    assert "3 regions answered" in told
    assert "left open: 1 nothing drawn" in told
    assert "1 of 4 regions still wait for labels" in told
    labels("import", run, "answers.zip", "--format", "cvat", "--rest", "plant")
    assert (answers_of(run).mask(10) == 1).all()


def test_work_that_is_half_done_leaves_the_rest_open(run, capsys):
    mask = np.zeros(SIZE, np.uint8)  # the prediction
    mask[0, 0] = 1
    answer("voc", Path("answers.zip"), mask)
    labels("import", run, "answers.zip", "--format", "voc", "--changed_only", "true")
    assert "left open: 3 as predicted" in capsys.readouterr().out
    assert list(answers_of(run).versions()) == [10]
    labels("import", run, "answers.zip", "--format", "voc")
    assert "3 regions answered, 3 of them as predicted" in capsys.readouterr().out


def test_a_skipped_region_is_replaced_in_the_export(run):
    answers_of(run).skip(10, who="Ada")
    export(run, "coco", "request.json")
    (image,) = json.loads(Path("request.json").read_text())["images"]
    assert [wanted["bbox"][0] // WIDTH for wanted in image["ralseg_wanted"]] == [1, 2, 3, 4]


def test_images_go_into_the_archive(run):
    assert export(run, "cvat", "request.zip", "--images", "photos") == 0
    with zipfile.ZipFile("request.zip") as archive:
        assert archive.namelist() == ["annotations.xml", "labels.json", "train/a.png"]
        assert archive.read("train/a.png") == Path("photos/train/a.png").read_bytes()
    assert export(run, "voc", "voc", "--images", "photos") == 0
    assert Path("voc/JPEGImages/train/a.png").is_file()


def test_one_file_alone(run, capsys):
    assert export(run, "cvat", "request.xml") == 0
    assert [label["name"] for label in json.loads(Path("request_labels.json").read_text())][:3] == [
        "ground",
        "plant",
        "stone",
    ]
    assert labels("import", run, "request.xml", "--format", "cvat") == 0
    assert "4 regions answered, 4 of them as predicted" in capsys.readouterr().out
    assert export(run, "cvat", "again.xml") == 3
    assert "all that the request wants is answered" in capsys.readouterr().err


def test_antialiased_answers(run, capsys):
    smooth = np.full((*SIZE, 3), (120, 90, 60), np.uint8)
    smooth[3] = (80, 115, 60)
    write_png(Path("answers/a.png"), smooth)
    assert labels("import", run, "answers", "--format", "png") == 3
    told = capsys.readouterr().err
    assert "answers/a.png: colours that are not in the palette: (80, 115, 60) x 48 pixels" in told
    assert events(run) == ["asked"]
    assert labels("import", run, "answers", "--format", "png", "--nearest", "true") == 0
    assert len(answers_of(run).versions()) == WANTED


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image": "val/b.png"}, "holds none of the images that the request wants ('train/a.png'), but 'val/b.png'"),
        ({"width": 4, "height": 4}, "image 'train/a.png' has 4x4 pixels, 'train/a.png' of the request 48x6"),
    ],
)
def test_images_that_do_not_fit(run, capsys, changes, said):
    values = {"image": "train/a.png", "width": SIZE[1], "height": SIZE[0]} | changes
    box = (0, 0, values["width"], values["height"])
    record = LabelRecord(**values, box=box, mask=np.zeros((box[3], box[2]), np.uint8))
    Path("answers.xml").write_text(cvat.encode([record], CLASSES))
    assert labels("import", run, "answers.xml", "--format", "cvat") == 3
    assert said in capsys.readouterr().err
    assert events(run) == ["asked"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["labels"], "usage: ralseg labels export RUN"),
        (["labels", "exprot"], "usage: ralseg labels export RUN"),
        (["labels", "export", "run", "--out", "x"], "--format is missing: one of cvat, coco, voc, png"),
        (
            ["labels", "export", "run", "--format", "cvat", "--out", "x.json"],
            "cvat is a folder, or a file that ends in",
        ),
        (
            ["labels", "export", "run", "--format", "voc", "--out", "x.png"],
            "voc is a folder, or a file that ends in .zip",
        ),
        (["labels", "export", "run", "--format", "yolo"], "format"),
        (["labels", "export", "run", "--format", "coco", "--masks", "dots"], "--masks dots: is none of rle, counts"),
        (["labels", "export", "run", "--format", "cvat", "--out", "x.xml", "--images", "photos"], "give x.zip instead"),
        (["labels", "import", "run", "nowhere.zip", "--format", "cvat"], "nowhere.zip: no such file or folder"),
        (
            ["labels", "import", "run", "photos", "--format", "png", "--rest", "sky"],
            "--rest sky: is none of the classes",
        ),
        (["labels", "import", "nowhere", "photos", "--format", "png"], "nowhere/to_label/request.json: no such file"),
    ],
)
def test_mistakes_are_named(run, capsys, arguments, said):
    assert main(arguments) in (2, 3)
    assert said in capsys.readouterr().err


def test_help(run, capsys):
    assert main(["labels", "--help"]) == 0
    assert "ralseg labels import RUN FILE" in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert "ralseg labels export|import" in capsys.readouterr().out


# -- everything labelled so far ----------------------------------------------------------------------


def test_all_labels_of_people_can_be_put_into_a_data_set(run, capsys):
    answers = answers_of(run)
    answers.save(10, painted(1), source="page")
    answers.save(12, painted(2, ground=3), source="page")
    places = {"crop": "crops/99.png", "mask": "masks/99.png", "prediction": None}
    region = replace(make_request(1).regions[0], region=99, image="train/b.png", **places)
    Request(1, CLASSES, (region,)).write(run / "to_label")
    newer = answers_of(run)
    newer.open()
    newer.save(99, painted(0), source="page")
    assert export(run, "png", "data", "--what", "labelled") == 0
    assert "the labels of 2 images" in capsys.readouterr().out
    expected = np.full(SIZE, UNKNOWN, np.uint8)
    expected[:, :WIDTH], expected[:, 2 * WIDTH : 3 * WIDTH] = painted(1), painted(2, ground=3)
    assert (read_index_mask(Path("data/masks/train/a.png")) == expected).all()
    assert (read_index_mask(Path("data/masks/train/b.png")) == 0).all()
    for name in ("train/a.png", "train/b.png"):
        with Image.open(f"data/masks/{name}") as mask:
            write_png(Path("data/images") / name, np.zeros((mask.height, mask.width, 3), np.uint8))
    data = Folder("data")
    assert data.class_names == ("ground", "plant", "stone")
    assert (data.read_mask(data.names.index("train/a.png")) == expected).all()
    assert {record.image for record in labelled_records(newer)} == {"train/a.png", "train/b.png"}


def test_pixels_outside_of_a_region_are_unknown(run):
    half = np.zeros((HEIGHT, WIDTH), np.uint8)
    half[:, : WIDTH // 2] = 255
    write_png(run / "to_label/inside/10.png", half)
    request = json.loads((run / "to_label/request.json").read_text())
    request["regions"][0]["inside"] = "inside/10.png"
    (run / "to_label/request.json").write_text(json.dumps(request))
    export(run, "png", "request")
    assert (read_index_mask(Path("request/masks/train/a.png"))[:, WIDTH // 2 : WIDTH] == UNKNOWN).all()
    answer("png", Path("answers.zip"), striped())
    labels("import", run, "answers.zip", "--format", "png", "--rest", "stone")
    assert (answers_of(run).mask(10)[:, WIDTH // 2 :] == UNKNOWN).all()


PALETTE = "palette: {ground: [1, 2, 3], plant: [4, 5, 6], stone: [9, 9, 9]}\nignore: [0, 0, 0]\n"


@pytest.mark.parametrize(
    ("description", "values"),
    [
        ("values: {0: ground, 128: plant, 255: stone, 7: null}", {0, 128, 255, 7}),
        (PALETTE + "mask_name: '{stem}_m'", None),
    ],
)
def test_labels_become_masks_of_the_data_sets_own_kind(run, description, values):
    for name in ("a", "z"):
        write_png(Path(f"set/images/train/{name}.png"), np.zeros((*SIZE, 3), np.uint8))
    Path("set/dataset.yaml").write_text(description + "\n")
    data = {"dataset": {"class_path": "ralseg.data.Folder", "init_args": {"root": "set"}}}
    (run / "config.yaml").write_text(yaml.safe_dump({"policy": "entropy", "oracle": "crops", "data": data}))
    for region, number in ((10, 1), (11, 2)):
        answers_of(run).save(region, painted(number, ground=3), source="page")
    assert export(run, "png", "set", "--what", "labelled", "--like_data", "true") == 2  # the folder is not empty
    assert export(run, "png", "set", "--what", "labelled", "--like_data", "true", "--overwrite", "true") == 0
    (record,) = labelled_records(answers_of(run))
    folder = Folder("set")
    assert [folder.has_mask(index) for index in (0, 1)] == [True, False]
    assert (folder.read_mask(0) == record.mask).all()
    if values is not None:
        assert set(np.unique(read_index_mask(Path("set/masks/train/a.png")))) == values


def test_a_data_set_that_cannot_say_unknown_is_told_how(run, capsys):
    write_png(Path("set/images/train/a.png"), np.zeros((*SIZE, 3), np.uint8))
    Path("set/dataset.yaml").write_text("values: {0: ground, 128: plant, 255: stone}\n")
    data = {"dataset": {"class_path": "ralseg.data.Folder", "init_args": {"root": "set"}}}
    (run / "config.yaml").write_text(yaml.safe_dump({"policy": "entropy", "oracle": "crops", "data": data}))
    answers_of(run).save(10, painted(1), source="page")
    assert export(run, "png", "out", "--what", "labelled", "--like_data", "true") == 3
    assert "set/dataset.yaml: has no value or colour for pixels without a label" in capsys.readouterr().err
    assert export(run, "voc", "out", "--what", "labelled", "--like_data", "true") == 2
    assert "--like_data goes with --format png --what labelled" in capsys.readouterr().err


def masks_below(folder: Path) -> dict[str, np.ndarray]:
    return {path.relative_to(folder).as_posix(): read_index_mask(path) for path in sorted(folder.rglob("*.png"))}


@pytest.mark.slow
def test_labels_that_were_revealed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(ACQUIRE)
    assert main(["acquire", "--config", "tiny.yaml", "--policy", "entropy"]) == 0
    assert export("run", "png", "data", "--what", "labelled") == 0
    found, written = masks_below(Path("data/masks")), masks_below(Path("run/labels"))
    assert found.keys() == written.keys()
    assert all((found[name] == written[name]).all() for name in found)
    assert export("run", "cvat", "request.zip") == 3  # nobody was asked
    assert "request.json: no such file" in capsys.readouterr().err
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    config["data"]["layout"]["init_args"]["rows"] = 4
    Path("run/config.yaml").write_text(yaml.safe_dump(config))
    assert export("run", "png", "other", "--what", "labelled") == 2
    assert "cut into other regions now" in capsys.readouterr().err
    Path("run/config.yaml").write_text("model: 3\n")
    assert export("run", "png", "other", "--what", "labelled") == 3
    assert "is of no run of `ralseg acquire`" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("cvat", "coco"), ("voc", "png")])
def test_a_run_that_is_answered_through_files_ends_like_one_whose_masks_are_revealed(tmp_path, monkeypatch, kinds):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(ACQUIRE)
    command = ["acquire", "--config", "tiny.yaml", "--policy", "entropy"]
    assert main([*command, "--trainer.default_root_dir", "revealed"]) == 0
    streets = SyntheticStreets(num_train=12, num_val=4, num_test=4, height=64, width=96)
    for kind, number in zip(kinds, (4, 2), strict=True):
        assert main([*command, "--oracle", "crops", "--ckpt", "last"]) == 0  # asks, and stops
        classes = answers_of(Path("run")).request.classes
        assert export("run", kind, f"{kind}.zip") == 0
        with opened(Path(f"{kind}.zip")) as members:
            asked = formats.decode(kind, members, classes)
        names = {without_ending(name): place for place, name in enumerate(streets.names)}
        masks = {image.name: streets.read_mask(names[without_ending(image.name)]) for image in asked}
        records = [LabelRecord(name, 96, 64, (0, 0, 96, 64), mask) for name, mask in masks.items()]
        write_members(Path(f"{kind}_answers.zip"), formats.encode(kind, records, classes), False)
        assert labels("import", "run", f"{kind}_answers.zip", "--format", kind, "--who", "Ada") == 0
        assert len(answers_of(Path("run")).wanted_now()) == 0
        assert len(answers_of(Path("run")).versions()) in (number, 4 + number)
    assert main([*command, "--oracle", "crops", "--ckpt", "last"]) == 0
    assert Path("run/selection.csv").read_text() == Path("revealed/selection.csv").read_text()
    ours, theirs = (json.loads(Path(folder, "result.json").read_text()) for folder in ("run", "revealed"))
    assert ours["budgets"]["6"]["test_set/miou"] == theirs["budgets"]["6"]["test_set/miou"]
    assert export("run", "png", "labels_of_people", "--what", "labelled") == 0
    found, written = masks_below(Path("labels_of_people/masks")), masks_below(Path("revealed/labels"))
    assert found.keys() == written.keys()
    assert all((found[name] == written[name]).all() for name in found)
