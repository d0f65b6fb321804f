"""Other libraries' eyes: datumaro, pycocotools and CVAT's SDK read what ralseg wrote, and write what ralseg reads.

Runs in an environment of its own (`make judges`), where ralseg is not: ``python judge.py COMMAND ARGUMENTS``. Masks go
to and fro in an .npz: one array [height, width] an image, class numbers by ``classes``, 255 = unknown.
"""

import json
import sys
from pathlib import Path

import numpy as np

UNKNOWN = 255
FORMATS = {"cvat": "cvat", "coco": "coco_instances", "voc": "voc_segmentation"}


def read(kind, folder, out, classes):
    """Masks that datumaro finds in a folder, by the names of classes; frames and other labels are passed over."""
    from datumaro.components.annotation import AnnotationType
    from datumaro.components.dataset import Dataset
    from datumaro.util.mask_tools import rles_to_mask

    names = json.loads(classes)
    data = Dataset.import_from(folder, FORMATS[kind])
    labels = [label.name for label in data.categories()[AnnotationType.label].items]
    masks = {}
    for item in data:
        height, width = item.media.size
        mask = np.full((height, width), UNKNOWN, np.uint8)
        for shape in sorted(item.annotations, key=lambda shape: getattr(shape, "z_order", 0)):
            if labels[shape.label] not in names:
                continue
            number = names.index(labels[shape.label])
            if shape.type == AnnotationType.polygon:
                mask[rles_to_mask([shape.points], width, height) > 0] = number
            elif shape.type == AnnotationType.mask:
                mask[np.asarray(shape.image) > 0] = number
        masks[item.id] = mask
    np.savez(out, **masks)


def write(kind, source, folder, classes):
    """Have datumaro write masks and black images into a folder."""
    from datumaro.components.annotation import Mask
    from datumaro.components.dataset import Dataset
    from datumaro.components.dataset_base import DatasetItem
    from datumaro.components.media import Image

    names = json.loads(classes)
    items = []
    with np.load(source) as masks:
        for number, name in enumerate(masks.files):
            mask = masks[name]
            shapes = [
                Mask(image=mask == value, label=int(value), group=place + 1, id=place + 1)
                for place, value in enumerate(np.unique(mask[mask != UNKNOWN]))
            ]
            picture = Image.from_numpy(np.zeros((*mask.shape, 3), np.uint8))
            items.append(DatasetItem(id=name, media=picture, annotations=shapes, attributes={"id": number + 1}))
    data = Dataset.from_iterable(items, categories=names)
    options = {"segmentation_mode": "mask"} if kind == "coco" else {}
    data.export(folder, FORMATS[kind], save_media=True, **options)


def coco_bits(source, out):
    """Have pycocotools make bits of the segmentations of a COCO file, one array each, and encode them again."""
    from pycocotools import mask as tools

    content = json.loads(Path(source).read_text())
    sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    bits, texts = {}, []
    for place, entry in enumerate(content["annotations"]):
        found, (height, width) = entry["segmentation"], sizes[entry["image_id"]]
        if isinstance(found, dict) and isinstance(found["counts"], str):
            rle = {"size": found["size"], "counts": found["counts"].encode()}
        else:
            rle = tools.frPyObjects(found, height, width)
            rle = tools.merge(rle) if isinstance(rle, list) else rle
        decoded = tools.decode(rle)
        bits[str(place)] = decoded
        texts.append(tools.encode(np.asfortranarray(decoded))["counts"].decode())
    np.savez(out, **bits)
    Path(out).with_suffix(".json").write_text(json.dumps(texts))


def cvat_bits(source, out):
    """Have CVAT's SDK make bits of the masks of an XML file, one array each, and encode them again."""
    from xml.etree import ElementTree

    from cvat_sdk.masks import decode_mask, encode_mask

    bits, texts = {}, []
    for image in ElementTree.parse(source).getroot().iter("image"):
        size = {"image_width": int(image.get("width")), "image_height": int(image.get("height"))}
        for mask in image.iter("mask"):
            left, top, width, height = (int(mask.get(key)) for key in ("left", "top", "width", "height"))
            points = [*map(int, mask.get("rle").split(",")), left, top, left + width - 1, top + height - 1]
            decoded = decode_mask(points, **size)
            bits[str(len(texts))] = decoded
            texts.append(encode_mask(decoded) == points)
    np.savez(out, **bits)
    Path(out).with_suffix(".json").write_text(json.dumps(texts))


if __name__ == "__main__":
    {"read": read, "write": write, "coco_bits": coco_bits, "cvat_bits": cvat_bits}[sys.argv[1]](*sys.argv[2:])
