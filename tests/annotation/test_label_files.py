"""Labels as files of CVAT, COCO, VOC and PNGs: what goes in comes out, bit by bit."""

import json
import re
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from ralseg.annotation import ClassColour
from ralseg.annotation.files import coco, cvat, formats, png, voc
from ralseg.annotation.files.container import opened, write_members
from ralseg.annotation.files.names import match_images
from ralseg.annotation.files.record import FRAME, UNKNOWN, ClassNumbers, FoundImage, LabelRecord
from ralseg.data import Folder
from ralseg.errors import ConfigError, DataError
from support.label_records import CLASSES, made, records_of_images, same, there_and_back, whole_masks

NUMBERS = ClassNumbers(CLASSES)
many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


# -- there and back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("masks", coco.KINDS)
@many
@given(records=records_of_images())
def test_coco_is_bit_identical(masks, records):
    read = coco.decode(coco.encode(records, CLASSES, masks).encode(), NUMBERS, "a.json")
    assert same({i.name.removesuffix(".png"): i.record().mask for i in read}, whole_masks(records))


@many
@given(records=records_of_images())
def test_cvat_is_bit_identical(records):
    read = cvat.decode(cvat.encode(records, CLASSES).encode(), NUMBERS, "a.xml")
    assert same({i.name.removesuffix(".png"): i.record().mask for i in read}, whole_masks(records))


@pytest.mark.parametrize("kind", ["voc", "png"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=records_of_images())
def test_pictures_are_bit_identical(tmp_path, kind, records):
    assert same(there_and_back(kind, records, tmp_path / "out.zip"), whole_masks(records))


@pytest.mark.parametrize("name", ["out.zip", "out"])
@pytest.mark.parametrize("kind", formats.FORMATS)
def test_archives_and_folders(tmp_path, kind, name):
    records = made(0)
    assert same(there_and_back(kind, records, tmp_path / name), whole_masks(records))


@many
@given(
    names=st.lists(
        st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), min_size=1),
        min_size=2,
        max_size=2,
        unique=True,
    )
)
def test_names_of_classes_and_images_come_back_whole(names):
    classes = tuple(ClassColour(number, name, "#00000" + str(number)) for number, name in enumerate(names))
    record = LabelRecord(names[0], 2, 1, (0, 0, 2, 1), np.array([[0, 1]], np.uint8))
    for module in (cvat, coco):
        (found,) = module.decode(module.encode([record], classes).encode(), ClassNumbers(classes), "a")
        assert found.name == names[0]
        assert found.record().mask.tolist() == [[0, 1]]


def test_a_class_may_be_called_like_the_frame():
    classes = (ClassColour(0, FRAME, "#000000"), CLASSES[1])
    record = LabelRecord("a", 2, 1, (0, 0, 2, 1), np.array([[0, 1]], np.uint8), rank=1)
    text = cvat.encode([record], classes)
    assert "<box" not in text
    assert cvat.decode(text.encode(), ClassNumbers(classes), "a")[0].record().mask.tolist() == [[0, 1]]


def test_the_same_labels_give_the_same_archive(tmp_path):
    for name in ("a.zip", "b.zip"):
        write_members(tmp_path / name, formats.encode("voc", made(0), CLASSES), False)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


# -- what is in the files ----------------------------------------------------------------------------


def test_cvat_shows_the_wanted_box_below_the_prediction():
    record = LabelRecord("a.png", 10, 8, (2, 3, 4, 2), np.full((2, 4), 1, np.uint8), rank=7)
    text = cvat.encode([record], CLASSES)
    assert f'<box label="{FRAME}" source="file" occluded="0" xtl="2.00" ytl="3.00" xbr="6.00" ybr="5.00"' in text
    assert '<attribute name="rank">7</attribute>' in text
    assert text.index("<box") < text.index("<mask")
    labels = json.loads(cvat.encode_labels(CLASSES))
    assert [label["name"] for label in labels] == ["ground", "plant", "stone", FRAME]
    assert [label["color"] for label in labels] == ["#785a3c", "#288c3c", "#969696", "#ffffff"]


def test_cvat_numbers_images_by_name_as_its_tasks_do():
    mask = np.zeros((1, 1), np.uint8)
    records = [LabelRecord(name, 1, 1, (0, 0, 1, 1), mask, rank) for rank, name in enumerate(["c", "a", "b"], start=1)]
    text = cvat.encode(records, CLASSES)
    assert re.findall(r'<image id="(\d)" name="(.)"', text) == [("2", "c"), ("0", "a"), ("1", "b")]


def test_coco_has_boxes_areas_and_what_is_wanted():
    mask = np.array([[1, 255], [1, 1]], np.uint8)
    content = json.loads(coco.encode([LabelRecord("a.png", 10, 8, (2, 3, 2, 2), mask, rank=1)], CLASSES))
    (entry,) = content["annotations"]
    assert (entry["bbox"], entry["area"], entry["category_id"]) == ([2, 3, 2, 2], 3, 2)
    assert content["images"][0]["ralseg_wanted"] == [{"bbox": [2, 3, 2, 2], "rank": 1}]
    assert [category["name"] for category in content["categories"]] == ["ground", "plant", "stone"]


def test_voc_has_numbers_colours_and_a_table(tmp_path):
    write_members(tmp_path / "voc", voc.encode(made(0, images=1), CLASSES), False)
    image = Image.open(tmp_path / "voc/SegmentationClass/train/im0.png")
    assert image.mode == "P"
    assert (np.asarray(image) == made(0, images=1)[0].mask).all()
    assert image.convert("RGB").getpixel((0, 0)) == {0: (120, 90, 60), 1: (40, 140, 60), 2: (150, 150, 150)}.get(
        image.getpixel((0, 0)), UNSAID
    )
    assert (tmp_path / "voc/ImageSets/Segmentation/default.txt").read_text() == "train/im0\n"
    assert (tmp_path / "voc/labelmap.txt").read_text().splitlines()[1:] == [
        "ground:120,90,60::",
        "plant:40,140,60::",
        "stone:150,150,150::",
        "ignored:250,250,250::",
    ]


def test_png_is_a_data_set_of_ralseg(tmp_path):
    records = made(0)
    write_members(tmp_path / "data", png.encode(records, CLASSES), False)
    for record in records:
        path = tmp_path / "data/images" / record.image
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (record.width, record.height)).save(path)
    data = Folder(str(tmp_path / "data"))
    assert data.class_names == ("ground", "plant", "stone")
    for index, record in enumerate(records):
        assert (data.read_mask(index) == record.mask).all()


def test_images_that_would_share_a_file_are_refused():
    records = [LabelRecord(name, 1, 1, (0, 0, 1, 1), np.zeros((1, 1), np.uint8)) for name in ("a.png", "a.jpg")]
    for kind in ("voc", "png"):
        with pytest.raises(DataError, match=r"'a\.png' and 'a\.jpg' would both be a\.png"):
            list(formats.encode(kind, records, CLASSES))


def test_classes_that_share_a_colour_cannot_be_told_in_voc():
    twins = (CLASSES[0], ClassColour(1, "plant", CLASSES[0].colour))
    with pytest.raises(DataError, match="two classes share a colour"):
        list(voc.encode(made(0), twins))


@pytest.mark.parametrize("name", ["a:b", "a\nb", " a", "#a"])
def test_names_that_a_table_cannot_hold_are_refused(name):
    with pytest.raises(DataError, match=r"cannot stand in labelmap\.txt"):
        list(voc.encode(made(0), (ClassColour(0, name, "#000000"), *CLASSES[1:])))
    with pytest.raises(DataError, match="which XML cannot"):
        cvat.encode(made(0), (ClassColour(0, "a\0b", "#000000"),))


# -- shapes ------------------------------------------------------------------------------------------


def xml(shapes: str, size=(6, 4)) -> bytes:
    image = f'<image id="0" name="a.png" width="{size[0]}" height="{size[1]}">{shapes}</image>'
    return f"<annotations><version>1.1</version>{image}</annotations>".encode()


def drawn(shapes: str) -> list[list[int]]:
    (found,) = cvat.decode(xml(shapes), NUMBERS, "a.xml")
    return found.record().mask.tolist()


def test_polygons_and_boxes_are_read_by_the_middles_of_pixels():
    triangle = '<polygon label="plant" points="0.00,0.00;3.00,0.00;0.00,3.00" z_order="0"></polygon>'
    assert drawn(triangle)[:2] == [[1, 1, 255, 255, 255, 255], [1, 255, 255, 255, 255, 255]]
    box = '<box label="stone" xtl="1.4" ytl="0.6" xbr="3.6" ybr="1.51" z_order="0"></box>'
    assert drawn(box) == [[255] * 6, [255, 2, 2, 2, 255, 255], [255] * 6, [255] * 6]
    turned = '<box label="stone" xtl="1" ytl="1" xbr="5" ybr="3" rotation="90.00"></box>'
    assert drawn(turned) == [[255, 255, 2, 2, 255, 255]] * 4


def test_the_higher_z_order_covers_the_lower_and_the_later_the_earlier():
    low = '<box label="ground" xtl="0" ytl="0" xbr="6" ybr="4" z_order="-1"></box>'
    first = '<box label="plant" xtl="0" ytl="0" xbr="2" ybr="4" z_order="2"></box>'
    later = '<box label="stone" xtl="1" ytl="0" xbr="3" ybr="4" z_order="2"></box>'
    assert drawn(first + later + low)[0] == [1, 2, 2, 0, 0, 0]


def test_shapes_without_an_area_are_an_error_where_their_image_is_wanted():
    line = '<polyline label="plant" points="0,0;3,3"></polyline>'
    (found,) = cvat.decode(xml(line), NUMBERS, "a.xml")
    with pytest.raises(DataError, match=r"a\.xml: image 'a\.png': <polyline> number 1: a polyline with label 'plant'"):
        found.record()
    assert drawn(f'<tag label="nice"></tag><box label="{FRAME}" xtl="0" ytl="0" xbr="6" ybr="4"></box>')[0] == [255] * 6


def test_labels_that_are_no_classes_are_named_with_the_nearest():
    with pytest.raises(DataError, match=r"label 'plants' is no class of this request \(did you mean 'plant'\?\)"):
        drawn('<box label="plants" xtl="0" ytl="0" xbr="6" ybr="4"></box>')


def test_coco_polygons_of_one_annotation_are_one_area():
    content = {
        "images": [{"id": 5, "file_name": "a.png", "width": 6, "height": 1}],
        "categories": [{"id": 9, "name": "plant"}],
        "annotations": [
            {
                "id": 1,
                "image_id": 5,
                "category_id": 9,
                "segmentation": [[0, 0, 2, 0, 2, 1, 0, 1], [1, 0, 4.2, 0, 4.2, 1, 1, 1]],
            }
        ],
    }
    (found,) = coco.decode(json.dumps(content).encode(), NUMBERS, "a.json")
    assert found.record().mask.tolist() == [[1, 1, 1, 1, 255, 255]]
    assert found.cut((3, 0, 2, 1)).tolist() == [[1, 255]]


# -- names -------------------------------------------------------------------------------------------


def images(*names):
    return [FoundImage(name, 1, 1, lambda box: np.zeros((1, 1), np.uint8)) for name in names]


def test_names_fit_whatever_folders_and_endings_a_tool_gives_them():
    found = images("images\\train\\a.jpg", "b", "val/c.png", "x/train/c.png", "train/d.e")
    wanted = ["train/a.png", "train/b.png", "train/c.png", "train/d.e", "train/f.png"]
    matched = match_images(wanted, found, "x.zip")
    assert {name: image.name for name, image in matched.items()} == {
        "train/a.png": "images\\train\\a.jpg",
        "train/b.png": "b",
        "train/c.png": "x/train/c.png",
        "train/d.e": "train/d.e",
    }


def test_names_that_may_mean_two_images_are_refused():
    with pytest.raises(DataError, match=r"'a\.png' may be 'train/a\.png' or 'val/a\.png'"):
        match_images(["train/a.png", "val/a.png"], images("a.png"), "x.zip")
    with pytest.raises(DataError, match=r"'x/a\.png' and 'y/a\.png' both fit image 'a\.png'"):
        match_images(["a.png"], images("x/a.png", "y/a.png"), "x.zip")
    assert match_images(["a.png"], images("a.jpg", "a.png"), "x.zip")["a.png"].name == "a.png"  # the same name wins


# -- pictures of others ------------------------------------------------------------------------------


def folder_of(tmp_path, picture: Image.Image, name="a.png"):
    (tmp_path / "answers").mkdir(exist_ok=True)
    picture.save(tmp_path / "answers" / name)
    return tmp_path / "answers"


def read_png(folder, **options):
    with opened(folder) as members:
        (found,) = formats.decode("png", members, CLASSES, **options)
        return found.record().mask.tolist()


def coloured(*rgb) -> Image.Image:
    return Image.fromarray(np.array([rgb], np.uint8))


GROUND, PLANT, STONE, UNSAID = (120, 90, 60), (40, 140, 60), (150, 150, 150), (250, 250, 250)


def test_colours_and_numbers_are_read_alike(tmp_path):
    numbers = np.array([[0, 1, 2, 255]], np.uint8)
    assert read_png(folder_of(tmp_path, Image.fromarray(numbers))) == numbers.tolist()
    assert read_png(folder_of(tmp_path, coloured(GROUND, PLANT, STONE, UNSAID))) == numbers.tolist()


def test_antialiased_colours_are_named_and_counted(tmp_path):
    folder = folder_of(tmp_path, coloured(GROUND, (80, 115, 60), (80, 115, 60), (41, 139, 60)))
    with pytest.raises(DataError) as error:
        read_png(folder)
    assert "answers/a.png" in str(error.value)
    assert "(80, 115, 60) x 2 pixels" in str(error.value)
    assert "(41, 139, 60) x 1 pixels" in str(error.value)
    assert "--nearest true" in str(error.value)
    assert read_png(folder, nearest=True)[0][::3] == [0, 1]


def test_a_palette_in_another_order_is_not_guessed(tmp_path):
    picture = Image.fromarray(np.array([[0, 1]], np.uint8))
    picture.putpalette([*PLANT, *GROUND])
    folder = folder_of(tmp_path, picture)
    with pytest.raises(DataError, match="colours say other classes than its numbers do"):
        read_png(folder)
    assert read_png(folder, pixels="colours") == [[1, 0]]
    assert read_png(folder, pixels="numbers") == [[0, 1]]


def test_a_palette_of_other_colours_means_numbers(tmp_path):
    picture = Image.fromarray(np.array([[0, 1, 2]], np.uint8))
    picture.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
    assert read_png(folder_of(tmp_path, picture)) == [[0, 1, 2]]
    picture.putpalette([*PLANT, 128, 0, 0, 0, 128, 0])  # half of it is smoothed, perhaps
    with pytest.raises(DataError, match=r"\(128, 0, 0\) x 1 pixels"):
        read_png(folder_of(tmp_path, picture))


def test_labels_of_voc_are_found_by_the_colours_of_its_own_table(tmp_path):
    folder = tmp_path / "voc"
    (folder / "SegmentationClass").mkdir(parents=True)
    (folder / "labelmap.txt").write_text(
        "# label:color\nbackground:0,0,0::\nstone:1,2,3::\nplant:9,9,9::\ncat:5,5,5::\n"
    )
    coloured((0, 0, 0), (1, 2, 3), (9, 9, 9)).save(folder / "SegmentationClass/a.png")
    with opened(folder) as members:
        assert formats.decode("voc", members, CLASSES)[0].record().mask.tolist() == [[UNKNOWN, 2, 1]]
    (folder / "labelmap.txt").write_text("background:::\nground:::\nplant:::\nstone:::\n")  # VOC's colours, by place
    coloured((0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0)).save(folder / "SegmentationClass/a.png")
    with opened(folder) as members:
        assert formats.decode("voc", members, CLASSES)[0].record().mask.tolist() == [[UNKNOWN, 0, 1, 2]]


@pytest.mark.parametrize("line", ["plant:1,2::", "plant:1,2,x::", "plant:1,2,256::", "plant:-1,2,3::"])
def test_damaged_tables_of_labels(tmp_path, line):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("labelmap.txt", f"stone:1,1,1::\n{line}\n")
    with opened(tmp_path / "a.zip") as members, pytest.raises(DataError, match=r"labelmap\.txt: line 2"):
        formats.decode("voc", members, CLASSES)


def test_nothing_is_overwritten_unasked(tmp_path):
    for name in ("out.zip", "out"):
        write_members(tmp_path / name, [("a.txt", b"first")], False)
        with pytest.raises(ConfigError, match="--overwrite true"):
            write_members(tmp_path / name, [("a.txt", b"second")], False)
