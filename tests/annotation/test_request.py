"""The request's file: what is written is read again, and what cannot be meant is refused by name."""

import json
from dataclasses import replace

import pytest

from ralseg.annotation import ClassColour, Request
from ralseg.errors import DataError
from support.label_requests import make_request


def test_a_request_is_read_as_it_was_written(tmp_path):
    request = make_request(3, 2, min_answers=2, reask=0.1)
    request.write(tmp_path)
    assert Request.read(tmp_path) == request
    assert request.wanted == 3
    content = json.loads((tmp_path / "request.json").read_text())
    assert content["format"] == "ralseg.request/2"
    assert content["classes"][1] == {"number": 1, "name": "plant", "colour": "#288c3c"}
    assert "blind" not in content["regions"][0]


def test_what_a_later_version_adds_is_passed_over(tmp_path):
    request = make_request()
    request.write(tmp_path)
    content = json.loads((tmp_path / "request.json").read_text())
    content["regions"][0]["mood"] = "fine"
    (tmp_path / "request.json").write_text(json.dumps(content | {"weather": 3}))
    assert Request.read(tmp_path) == request


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content.update(format="ralseg.request/9"), "not of the format"),
        (lambda content: content.pop("step"), "step is missing"),
        (lambda content: content.update(step=True), "step is 'True'"),
        (lambda content: content.update(regions={}), "regions: is not a list"),
        (lambda content: content["regions"].append(3), "'3' is not a table"),
        (lambda content: content["regions"].append(content["regions"][0]), "one stands there twice"),
        (lambda content: content["regions"][1].update(mask=content["regions"][0]["mask"]), "share the file"),
        (lambda content: content["regions"][0].update(region="x"), "region is 'x'"),
        (lambda content: content["regions"][0].update(width=0), "does not lie in its image"),
        (lambda content: content["regions"][0].update(x=-1), "does not lie in its image"),
        (lambda content: content["regions"][0].update(x=10**6), "does not lie in its image"),
        (lambda content: content["classes"][0].update(number=7), "numbered from 0"),
        (lambda content: content["classes"][0].update(colour="red"), "not of the form #rrggbb"),
    ],
)
def test_a_damaged_request_is_refused_by_its_file_and_key(tmp_path, damage, message):
    make_request().write(tmp_path)
    content = json.loads((tmp_path / "request.json").read_text())
    damage(content)
    (tmp_path / "request.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=message) as caught:
        Request.read(tmp_path)
    assert str(tmp_path / "request.json") in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_a_file_that_is_no_request_is_refused(tmp_path, text):
    (tmp_path / "request.json").write_text(text)
    with pytest.raises(DataError, match=r"request.json"):
        Request.read(tmp_path)


def test_a_folder_without_a_request_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        Request.read(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../a.png", "masks/../../a.png", "masks/..", ".", "", "a//b", "a\\..\\b", "C:/a", "a\0b", "a/"],
)
@pytest.mark.parametrize("key", ["crop", "mask", "prediction", "inside"])
def test_no_file_of_a_request_lies_outside_of_its_folder(name, key):
    with pytest.raises(DataError, match="not a file inside"):
        replace(make_request(1).regions[0], **{key: name})


def test_a_class_number_is_never_the_one_for_what_cannot_be_told():
    with pytest.raises(DataError, match="not one of 0 to 254"):
        ClassColour(255, "sky", "#000000")
