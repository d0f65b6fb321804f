"""Labels that no run has made, for tests of the formats that hold them."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ralseg.annotation import ClassColour
from ralseg.annotation.files import formats
from ralseg.annotation.files.container import opened, write_members
from ralseg.annotation.files.record import UNKNOWN, FoundImage, LabelRecord, by_image, paste

CLASSES = (ClassColour(0, "ground", "#785a3c"), ClassColour(1, "plant", "#288c3c"), ClassColour(2, "stone", "#969696"))
NAMES = [entry.name for entry in CLASSES]


@st.composite
def records_of_images(draw, most: int = 3) -> list[LabelRecord]:
    """One to three images, each with one or two boxes of random labels, large areas and noise among them."""
    records, rank = [], 1
    for number in range(draw(st.integers(1, most))):
        height, width = draw(st.integers(1, 12)), draw(st.integers(1, 12))
        for _ in range(draw(st.integers(1, 2))):
            y, x = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
            box = (x, y, draw(st.integers(1, width - x)), draw(st.integers(1, height - y)))
            values = st.sampled_from([*range(len(CLASSES)), UNKNOWN])
            mask = draw(arrays.arrays(np.uint8, (box[3], box[2]), elements=values))
            records.append(LabelRecord(f"train/{number:03d}.png", width, height, box, mask, rank))
            rank += 1
    return records


def made(seed: int, size=(30, 40), images: int = 3) -> list[LabelRecord]:
    """Whole images with areas of all classes, of unknown pixels, and some noise."""
    rng = np.random.default_rng(seed)
    records = []
    for number in range(images):
        height, width = size[0] + number, size[1] + 2 * number
        coarse = rng.choice([0, 1, 2, UNKNOWN], (height // 5 + 1, width // 5 + 1)).astype(np.uint8)
        mask = coarse.repeat(5, 0).repeat(5, 1)[:height, :width].copy()
        noise = rng.random(mask.shape) < 0.05
        mask[noise] = rng.choice([0, 1, 2, UNKNOWN], noise.sum())
        records.append(LabelRecord(f"train/im{number}.png", width, height, (0, 0, width, height), mask))
    return records


def whole_masks(records: list[LabelRecord]) -> dict[str, np.ndarray]:
    """The masks of the images, without the endings of their names."""
    return {name.removesuffix(".png"): paste(group) for name, group in by_image(records).items()}


def found_masks(found: list[FoundImage]) -> dict[str, np.ndarray]:
    """The same of images that were read."""
    return {image.name.removesuffix(".png"): image.record().mask for image in found}


def there_and_back(kind, records, path, masks="rle", classes=CLASSES) -> dict[str, np.ndarray]:
    """What is read of what was written."""
    write_members(path, formats.encode(kind, records, classes, masks), overwrite=True)
    with opened(path) as members:
        return found_masks(formats.decode(kind, members, classes))


def same(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
