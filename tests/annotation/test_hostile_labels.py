"""Files that people did not mean to send: an error that names the file, nothing written, nothing unpacked."""

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from ralseg.annotation.files import coco, container, cvat, formats
from ralseg.annotation.files.container import opened, write_members
from ralseg.annotation.files.images import find_images
from ralseg.annotation.files.record import ClassNumbers
from ralseg.annotation.files.rle import decompress
from ralseg.errors import DataError, RalsegError
from ralseg.labels_command import import_labels
from support.damage import damaged, damages
from support.label_records import CLASSES, made
from support.label_requests import make_answers

NUMBERS = ClassNumbers(CLASSES)
bounded = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read_all(images) -> None:
    for image in images:
        assert image.record().mask.shape == (image.height, image.width)


# -- XML ---------------------------------------------------------------------------------------------

LAUGHS = """<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>
<annotations><image id="0" name="&c;" width="4" height="4"></image></annotations>"""
OUTSIDE = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotations>&x;</annotations>'


@pytest.mark.parametrize(
    "content",
    [
        LAUGHS.encode(),
        OUTSIDE.encode(),
        OUTSIDE.encode("utf-16"),  # a search for bytes would not find it
        b'<!DOCTYPE annotations SYSTEM "http://127.0.0.1/a.dtd"><annotations></annotations>',
    ],
)
def test_document_types_are_refused_before_they_can_do_anything(content):
    with pytest.raises(DataError, match=r"answers\.xml: declares a document type"):
        cvat.decode(content, NUMBERS, "answers.xml")


@pytest.mark.parametrize(
    "content", [b"", b"<", b"\xff\xfe", b"<a>", b'<?xml version="1.0" encoding="nope"?><a/>', b"{}"]
)
def test_what_is_no_xml(content):
    with pytest.raises(DataError, match=r"answers\.xml"):
        cvat.decode(content, NUMBERS, "answers.xml")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("<html></html>", "not <annotations>"),
        ("<annotations><track id='0'></track></annotations>", "is an export for video"),
        ("<annotations><image name='a'></image></annotations>", "has no width"),
        ("<annotations><image width='1' height='1'></image></annotations>", "has no name"),
        ("<annotations><image name='a' width='9e9' height='1'></image></annotations>", "is no whole number"),
        ("<annotations><image name='a' width='1000000' height='1000000'></image></annotations>", "1000000x1000000"),
        ("<annotations><image name='a' width='-4' height='-4'></image></annotations>", "-4x-4"),
        (f"<annotations><image name='a' width='{'9' * 5000}' height='1'></image></annotations>", "is no whole number"),
    ],
)
def test_images_that_cannot_be(content, said):
    with pytest.raises(DataError, match=said):
        cvat.decode(content.encode(), NUMBERS, "answers.xml")


def mask_xml(**changes) -> bytes:
    values = {"label": "plant", "rle": "0, 4", "left": "1", "top": "1", "width": "2", "height": "2"} | changes
    written = " ".join(f'{key}="{value}"' for key, value in values.items())
    return (
        f"<annotations><image name='a.png' width='6' height='4'><mask {written}></mask></image></annotations>".encode()
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rle": "0, 5"}, "a run of 5 pixels in a mask of 4"),
        ({"rle": "1, 2"}, "its runs are 3 pixels long together, but the mask has 4"),
        ({"rle": "2, -1, 3"}, "a run of -1 pixels"),
        ({"rle": f"0, {2**70}"}, "a run of 1180591620717411303424 pixels"),
        ({"rle": ""}, "is no list of whole numbers"),
        ({"rle": "0, 4.5"}, "is no list of whole numbers"),
        ({"width": "2000000000", "height": "2000000000"}, "does not lie in the image"),
        ({"left": "-1"}, "does not lie in the image"),
        ({"left": "5"}, "does not lie in the image"),
        ({"width": "0", "rle": "0"}, "does not lie in the image"),
        ({"z_order": "high"}, "cannot be read as numbers"),
    ],
)
def test_run_lengths_that_do_not_fill_their_mask(changes, said):
    with pytest.raises(DataError, match=said) as error:
        cvat.decode(mask_xml(**changes), NUMBERS, "answers.xml")
    assert "answers.xml: image 'a.png'" in str(error.value)


@pytest.mark.parametrize(
    "points", ["", "1,1", "1,1;2,2", "1,1;2,2;3", "nan,1;2,2;3,3", "inf,1;2,2;3,3", "1e300,1;2,2;3,3"]
)
def test_polygons_that_are_none(points):
    shape = f'<polygon label="plant" points="{points}"></polygon>'
    content = f"<annotations><image name='a.png' width='6' height='4'>{shape}</image></annotations>"
    with pytest.raises(DataError, match=r"answers\.xml: image 'a\.png'"):
        cvat.decode(content.encode(), NUMBERS, "answers.xml")


# -- JSON --------------------------------------------------------------------------------------------


def coco_file(**changes) -> bytes:
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "segmentation": {"size": [4, 6], "counts": [0, 24]}}
    content = {
        "images": [{"id": 1, "file_name": "a.png", "width": 6, "height": 4} | changes.pop("image", {})],
        "categories": [{"id": 1, "name": "plant"}],
        "annotations": [annotation | changes],
    }
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"segmentation": {"size": [4, 6], "counts": [0, 23]}}, "23 pixels long together"),
        ({"segmentation": {"size": [4, 6], "counts": [25, -1]}}, "a run of 25"),
        ({"segmentation": {"size": [4, 6], "counts": [True, 23]}}, "neither a text nor a list"),
        ({"segmentation": {"size": [4, 6], "counts": [0.5, 23.5]}}, "neither a text nor a list"),
        ({"segmentation": {"size": [6, 4], "counts": [0, 24]}}, r"a mask of size \[6, 4\] in an image of \[4, 6\]"),
        ({"segmentation": {"size": [10**9, 10**9], "counts": "0"}}, "a mask of size"),
        ({"segmentation": {"size": [4, 6], "counts": "é"}}, "cannot stand there"),
        ({"segmentation": {"size": [4, 6], "counts": "P"}}, "break off"),
        ({"segmentation": {"size": [4, 6], "counts": "o" * 40}}, "cannot stand there"),
        ({"segmentation": {"size": [4, 6], "counts": "0O"}}, "a run of -1"),
        ({"segmentation": [[0, 0, 1]]}, "it needs x and y of three points"),
        ({"segmentation": [[0, 0, 1, 1, float("nan"), 1]]}, "outside of any image, or are no numbers"),
        ({"segmentation": [[0, 0, 1, 1, 1e300, 1]]}, "outside of any image"),
        ({"segmentation": [["0", 0, 1, 1, 2, 1]]}, "something that is no number"),
        ({"segmentation": "all"}, "neither run lengths nor a list of polygons"),
        ({"image_id": 7}, "image_id 7 or category_id 1 is not in the file"),
        ({"category_id": None}, "category_id=None should be a whole number"),
        ({"image": {"width": 10**6, "height": 10**6}}, "1000000x1000000"),
        ({"image": {"width": True}}, "width=True should be a whole number"),
        ({"image": {"file_name": 3}}, "file_name=3 should be a text"),
    ],
)
def test_annotations_that_cannot_be(changes, said):
    with pytest.raises(DataError, match=said) as error:
        coco.decode(coco_file(**changes), NUMBERS, "answers.json")
    assert "answers.json" in str(error.value)


def test_an_annotation_without_a_segmentation_is_an_error_where_its_image_is_wanted():
    (found,) = coco.decode(coco_file(segmentation=[]), NUMBERS, "answers.json")
    with pytest.raises(DataError, match="annotation 1: a box without a segmentation"):
        found.record()


@pytest.mark.parametrize("content", [b"", b"[", b"[]", b'{"images": 3}', b"[" * 100_000, b"1" * 5000, b"\xff"])
def test_what_is_no_coco(content):
    with pytest.raises(DataError, match=r"answers\.json"):
        coco.decode(content, NUMBERS, "answers.json")


# -- archives ----------------------------------------------------------------------------------------


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(container, "MAX_BYTES", 1_000_000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("annotations.xml", bytes(50_000_000))
        archive.writestr("SegmentationClass/a.png", bytes(50_000_000))
    assert (tmp_path / "bomb.zip").stat().st_size < 200_000
    with opened(tmp_path / "bomb.zip") as members:
        for kind in ("cvat", "voc"):
            with pytest.raises(DataError, match=r"bomb\.zip: \S+: is larger than 0 MB"):
                formats.decode(kind, members, CLASSES)


def test_names_of_an_archive_are_no_paths(tmp_path):
    (tmp_path / "in").mkdir()
    with zipfile.ZipFile(tmp_path / "in/tricky.zip", "w") as archive:
        for name in ("../../out.png", "/tmp/ralseg_out.png", "SegmentationClass/../../../a.png"):
            buffer = io.BytesIO()
            Image.new("L", (3, 2)).save(buffer, "PNG")
            archive.writestr(name, buffer.getvalue())
    with opened(tmp_path / "in/tricky.zip") as members:
        read_all(formats.decode("png", members, CLASSES))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in", "tricky.zip"]
    assert not Path("/tmp/ralseg_out.png").exists()


@pytest.mark.parametrize("out", ["out", "out.zip"])
def test_names_of_images_lead_nowhere_else(tmp_path, out):
    hostile = ["../../x", "/etc/x", "a/../../../x", "b/..", ".", "a\0b"]
    write_members(tmp_path / "deep/er" / out, [(name, b"x") for name in hostile], False)
    assert all(path.is_relative_to(tmp_path / "deep/er") for path in tmp_path.rglob("*") if path.is_file())
    if out == "out.zip":
        with zipfile.ZipFile(tmp_path / "deep/er/out.zip") as archive:
            assert all(".." not in name.split("/") and not name.startswith("/") for name in archive.namelist())


def test_images_are_not_taken_from_elsewhere(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "images/link.png").symlink_to(tmp_path / "secret.png")
    for name in ("../secret.png", "link.png", str(tmp_path / "secret.png")):
        with pytest.raises(DataError, match="1 of 1 images are not there"):
            find_images(tmp_path / "images", [name])


def test_archives_that_are_damaged_encrypted_or_ambiguous(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.xml", mask_xml())
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.xml", mask_xml())
    with pytest.raises(DataError, match=r"holds 'a\.xml' twice"), opened(path):
        pass
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.xml", mask_xml())
    content = bytearray(path.read_bytes())
    content[6] |= 1  # encrypted, says the local header
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with opened(path) as members, pytest.raises(DataError, match=r"a\.zip: a\.xml: cannot be read"):
        members.read("a.xml")
    path.write_bytes(b"PK\x05\x06" + bytes(18))
    with opened(path) as members, pytest.raises(DataError, match=r"holds 0 files \*\.xml"):
        formats.decode("cvat", members, CLASSES)


def test_what_is_no_file(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"), opened(tmp_path / "nowhere"):
        pass
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="no such file or folder"), opened(tmp_path / "pipe"):
        pass
    os.mkfifo(tmp_path / "folder.xml")
    with opened(tmp_path) as members, pytest.raises(DataError, match=r"holds 0 files \*\.xml"):
        formats.decode("cvat", members, CLASSES)


# -- random damage -----------------------------------------------------------------------------------

TEXTS = {
    "cvat": cvat.encode(made(0, (12, 17), 2), CLASSES).encode(),
    "coco": coco.encode(made(0, (12, 17), 2), CLASSES).encode(),
    "polygons": coco.encode(made(0, (12, 17), 2), CLASSES, "polygons").encode(),
}


@bounded
@given(kind=st.sampled_from(sorted(TEXTS)), steps=damages)
def test_damaged_texts(kind, steps):
    module = cvat if kind == "cvat" else coco
    try:
        read_all(module.decode(damaged(TEXTS[kind], steps), NUMBERS, "answers.file"))
    except DataError as error:
        assert "answers.file" in str(error)


@few
@given(kind=st.sampled_from(formats.FORMATS), steps=damages)
def test_damaged_archives(tmp_path, kind, steps):
    good = tmp_path / f"{kind}.zip"
    if not good.exists():
        write_members(good, formats.encode(kind, made(0, (12, 17), 2), CLASSES), False)
    (tmp_path / "answers.zip").write_bytes(damaged(good.read_bytes(), steps))
    try:
        with opened(tmp_path / "answers.zip") as members:
            read_all(formats.decode(kind, members, CLASSES))
    except DataError as error:
        assert "answers.zip" in str(error)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 30) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@bounded
@given(content=values, key=st.sampled_from(["segmentation", "image_id", "category_id", "image", "id"]))
def test_any_value_in_coco(content, key):
    changed = {key: content if key != "image" or isinstance(content, dict) else {"width": content}}
    try:
        read_all(coco.decode(coco_file(**changed), NUMBERS, "answers.json"))
    except DataError as error:
        assert "answers.json" in str(error)


@bounded
@given(text=st.text(st.characters(min_codepoint=40, max_codepoint=120)))
@example("")
def test_any_text_as_run_lengths(text):
    try:
        counts = decompress(text, "answers.json")
    except DataError as error:
        assert "answers.json" in str(error)
    else:
        assert all(isinstance(count, int) for count in counts)


# -- nothing is written ------------------------------------------------------------------------------


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("damage", [mask_xml(rle="0, 5"), LAUGHS.encode(), b"<annotations>", b""])
def test_a_file_with_one_fault_changes_nothing(tmp_path, damage):
    make_answers(tmp_path / "run/to_label")
    before = snapshot(tmp_path / "run")
    (tmp_path / "answers.xml").write_bytes(damage)
    with pytest.raises(RalsegError, match=r"answers\.xml"):
        import_labels(tmp_path / "run", tmp_path / "answers.xml", "cvat")
    assert snapshot(tmp_path / "run") == before


def test_the_last_fault_is_found_before_the_first_answer_is_kept(tmp_path):
    answers = make_answers(tmp_path / "run/to_label")
    width, height = answers.request.regions[0].image_width, answers.request.regions[0].image_height
    picture = np.zeros((height, width), np.uint8)
    picture[-1, -1] = 9  # in the last region
    (tmp_path / "answers").mkdir()
    Image.fromarray(picture).save(tmp_path / "answers/a.png")
    before = snapshot(tmp_path / "run")
    with pytest.raises(DataError, match=r"unknown mask ids: 9 x 1 pixels"):
        import_labels(tmp_path / "run", tmp_path / "answers", "png")
    assert snapshot(tmp_path / "run") == before
