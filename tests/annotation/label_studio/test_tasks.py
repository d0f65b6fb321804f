"""Tasks: what people are shown, and which mask follows from what they paint."""

import xml.etree.ElementTree as xml
from dataclasses import replace

import numpy as np
import pytest

from ralseg.annotation import ClassColour, WantedRegion
from ralseg.annotation.label_studio.brush import decode_mask, encode_mask
from ralseg.annotation.label_studio.tasks import (
    CANNOT_TELL,
    Picture,
    has_brushes,
    label_config,
    mask_of,
    newest,
    prediction_of,
)
from ralseg.errors import ConfigError, DataError

CLASSES = (ClassColour(0, "ground", "#785a3c"), ClassColour(1, "plant", "#288c3c"), ClassColour(2, "stone", "#969696"))
WANTED = WantedRegion(7, "a.png", 40, 30, 10, 5, 8, 6, 1, 0.5, "crops/7.png", "masks/7.png", "predictions/7.png")
WHOLE, ALL = Picture.whole(WANTED), np.ones(WANTED.shape, np.bool_)
PREDICTED = np.zeros(WANTED.shape, np.uint8)
PREDICTED[:, 4:] = 1


def shown(predicted=PREDICTED, inside=ALL, picture=WHOLE) -> list[dict]:
    return prediction_of(WANTED, picture, CLASSES, predicted, inside, 0.25)["result"]


def stroke(label: str, rows: slice, columns: slice, picture=WHOLE, **changes) -> dict:
    """A brush of the whole picture's pixels, as people draw it."""
    mask = np.zeros((picture.height, picture.width), np.bool_)
    mask[rows, columns] = True
    return {
        "id": "Xy12",
        "from_name": "label",
        "to_name": "image",
        "type": "brushlabels",
        "original_width": picture.width,
        "original_height": picture.height,
        "image_rotation": 0,
        "value": {"format": "rle", "rle": encode_mask(mask), "brushlabels": [label]},
    } | changes


def read(results: list[dict], predicted=PREDICTED, inside=ALL, picture=WHOLE) -> np.ndarray:
    predictions = [prediction_of(WANTED, picture, CLASSES, predicted, inside, 0.25)]
    return mask_of(results, predictions, WANTED, picture, CLASSES, inside)


@pytest.mark.parametrize("picture", [WHOLE, Picture.crop(WANTED)])
def test_a_prediction_that_is_accepted_comes_back_as_it_was(picture):
    results = shown(picture=picture)
    assert [result["type"] for result in results] == ["rectanglelabels", "brushlabels", "brushlabels"]
    assert (read(results, picture=picture) == PREDICTED).all()


def test_the_prediction_lies_in_the_frame():
    frame, ground, _ = shown()
    assert frame["readonly"]
    box = {key: frame["value"][key] for key in ("x", "y", "width", "height")}
    assert box == pytest.approx({"x": 25, "y": 100 / 6, "width": 20, "height": 20})  # percent of 40 x 30
    mask = decode_mask(ground["value"]["rle"], (30, 40))
    assert mask[5:11, 10:14].all()
    assert mask.sum() == 24


def test_the_frame_does_not_tint_what_it_surrounds():
    """Trap 4: the default frame has a fill."""
    view = xml.fromstring(label_config(CLASSES))
    frame = view.find(".//RectangleLabels")
    assert (frame.get("opacity"), frame.get("strokeWidth")) == ("0", "3")
    assert view.find(".//View/BrushLabels") is None  # it would bring a second brush into the toolbar
    assert xml.fromstring(label_config(CLASSES, has_shapes=True)).find(".//View/BrushLabels").get("name") == "outside"
    assert [label.get("value") for label in view.find("BrushLabels")] == ["ground", "plant", "stone", CANNOT_TELL]


def test_strokes_are_cut_off_at_the_regions_edge():
    """Trap 3: strokes leave the region."""
    mask = read([*shown(), stroke("stone", slice(0, 30), slice(0, 12))])
    assert (mask[:, :2] == 2).all()
    assert (mask[:, 2:] == PREDICTED[:, 2:]).all()


def test_where_classes_overlap_the_later_stroke_wins():
    """Trap 3: classes overlap."""
    first, second = stroke("stone", slice(5, 9), slice(10, 14)), stroke("plant", slice(7, 11), slice(12, 16))
    mask = read([*shown(), first, second])
    assert (mask[:2, :4] == 2).all()
    assert (mask[2:, 2:6] == 1).all()
    assert (read([*shown(), second, first])[2:4, 2:4] == 2).all()


def test_an_extended_prediction_wins_over_what_was_predicted_there():
    """It keeps its place at the front of the list: by the order alone the prediction that it covers would win."""
    frame, ground, plant = shown()
    extended = np.zeros((30, 40), np.bool_)
    extended[5:11, 10:18] = True  # people have painted on with the ground's brush, over the plant
    extended[5, 10:18] = False  # and rubbed a row out
    ground = ground | {"value": ground["value"] | {"rle": encode_mask(extended)}, "origin": "prediction-changed"}
    mask = read([frame, ground, plant])
    assert (mask[1:] == 0).all()
    assert (mask[0] == [255] * 4 + [1] * 4).all()


def test_a_stroke_of_the_predicted_class_over_an_extended_one_wins():
    frame, ground, plant = shown()
    ground = stroke("ground", slice(5, 11), slice(10, 18), id=ground["id"])
    again = stroke("plant", slice(5, 7), slice(14, 18))
    mask = read([frame, ground, plant, again])
    assert (mask[:2, 4:] == 1).all()
    assert (mask[2:] == 0).all()


def test_what_nobody_paints_or_can_tell_is_ignored():
    mask = read([stroke("plant", slice(5, 6), slice(10, 18)), stroke(CANNOT_TELL, slice(5, 6), slice(10, 12))], None)
    assert mask[0].tolist() == [255, 255, 1, 1, 1, 1, 1, 1]
    assert (mask[1:] == 255).all()


def test_a_region_of_any_shape_is_shown_and_cut_out():
    inside = np.tri(*WANTED.shape, dtype=np.bool_)
    results = shown(inside=inside)
    outside = next(result for result in results if result["from_name"] == "outside")
    assert outside["readonly"]
    assert (decode_mask(outside["value"]["rle"], (30, 40))[5:11, 10:18] == ~inside).all()
    mask = read([*results, stroke("stone", slice(0, 30), slice(0, 40))], inside=inside)
    assert (mask == np.where(inside, 2, 255)).all()


def test_without_a_prediction_only_the_frame_is_shown():
    assert [result["from_name"] for result in shown(None)] == ["frame"]


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (stroke("water", slice(0, 1), slice(0, 1)), r"label \['water'\], but the classes are ground, plant"),
        (stroke("plant", slice(0, 1), slice(0, 1), type="polygonlabels"), "'polygonlabels', but only brushes"),
        (stroke("plant", slice(0, 1), slice(0, 1), from_name="other"), "only brushes"),
        (stroke("plant", slice(0, 1), slice(0, 1), original_width=41), "30x41 pixels"),
        (stroke("plant", slice(0, 1), slice(0, 1), image_rotation=90), "turned by 90 degrees"),
        (stroke("plant", slice(0, 1), slice(0, 1), value={"brushlabels": ["plant"]}), "the format 'None'"),
        (stroke("plant", slice(0, 1), slice(0, 1), value=[]), "only brushes"),
        (stroke("plant", slice(0, 1), slice(0, 1), value={"brushlabels": [["plant"]]}), "has the label"),
        (
            stroke("plant", slice(0, 1), slice(0, 1), value={"brushlabels": ["plant"], "format": "rle", "rle": [1]}),
            "breaks off",
        ),
        ("text", "no list of painted regions"),
    ],
)
def test_what_cannot_be_read_is_said(result, problem):
    with pytest.raises(DataError, match=problem):
        read([result])


@pytest.mark.parametrize("name", [CANNOT_TELL, "plant", " stone", ""])
def test_class_names_that_label_studio_would_confuse_are_refused(name):
    with pytest.raises(ConfigError, match="for Label Studio"):
        label_config((*CLASSES[:2], replace(CLASSES[2], name=name)))


def test_names_are_data():
    config = label_config((ClassColour(0, '"/><Script src="http://x"/>', "#000000"), ClassColour(1, "<&>", "#ffffff")))
    labels = [label.get("value") for label in xml.fromstring(config).find("BrushLabels")]
    assert labels == ['"/><Script src="http://x"/>', "<&>", CANNOT_TELL]


def test_an_interface_of_somebody_else_is_noticed():
    control = {"type": "BrushLabels", "to_name": ["image"], "labels": ["ground", "plant", "stone", CANNOT_TELL]}
    parsed = dict.fromkeys(("label", "frame"), control)
    assert has_brushes(parsed, CLASSES)
    assert not has_brushes(parsed, CLASSES, has_shapes=True)
    assert has_brushes(parsed | {"outside": control}, CLASSES, has_shapes=True)
    assert not has_brushes(parsed | {"label": control | {"labels": ["ground"]}}, CLASSES)
    assert not has_brushes({"label": control}, CLASSES)
    assert not has_brushes(None, CLASSES)


def annotation(when: str, cancelled: bool = False, **more) -> dict:
    return {"updated_at": when, "was_cancelled": cancelled, "lead_time": 3.5, "completed_by": {"email": "a@b"}} | more


def test_the_annotation_that_was_changed_last_counts():
    early, late, skip = annotation("1", result=[1]), annotation("2", result=[2]), annotation("3", True)
    assert newest({"annotations": [late, early]}).results == [2]
    assert newest({"annotations": [early, skip]}).results == [1]
    assert newest({"annotations": [skip]}).is_skip
    assert newest({"annotations": []}) is None
    found = newest({"annotations": [annotation("1", completed_by=4, lead_time=None)]})
    assert (found.who, found.seconds) == ("4", None)
    with pytest.raises(DataError, match="no list"):
        newest({"annotations": "none"})
