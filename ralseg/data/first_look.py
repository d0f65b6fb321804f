"""A first look at a folder that nobody has described: what lies there, and how it can be read."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from rich.progress import track

from ralseg.data import readers
from ralseg.data.base import Colour, images_below
from ralseg.data.canvas import Size
from ralseg.data.description import FILE, Description, describe
from ralseg.data.folder import Folder
from ralseg.data.mask_names import STEM, find_mask_name, pair_masks
from ralseg.errors import ConfigError, DataError

MOST_MASKS = 200
"""Masks that are looked at; ``ralseg data check`` looks at all of them."""
MOST_COLOURS = 64
"""More colours than this are no classes: the masks were smoothed, or saved by a lossy format."""

Values = Counter[int] | Counter[Colour]
"""What masks hold, with numbers of pixels: values, or colours."""


@dataclass(frozen=True)
class FirstLook:
    """What was found in a folder.

    Attributes:
        dataset: The folder as ralseg reads it.
        options: What ``Folder`` had to be told for that, beside ``root``.
        sizes: (height, width) of each image that could be read.
        pixels: Labelled pixels of each class and, last, of void, in the masks that were looked at.
        looked_at: Number of those masks.
        notes: What the person should know.
    """

    dataset: Folder
    options: dict[str, Any]
    sizes: list[Size]
    pixels: list[int]
    looked_at: int
    notes: list[str]

    def count(self, subset: str, labelled: bool | None = None) -> int:
        """Images of a subset; only those with a mask, or without one."""
        chosen = [index for index, name in enumerate(self.dataset.subsets) if name == subset]
        return sum(labelled is None or self.dataset.has_mask(index) == labelled for index in chosen)


def first_look(root: Path, classes: Sequence[str] | None = None) -> FirstLook:
    """Look at a folder of images and masks, and find out how to read it.

    Args:
        root: Holds ``images`` and ``masks``, and perhaps ``dataset.yaml``.
        classes: Names of the classes in order of their mask values, where the person has given them; or with the value
            or colour of each, ``road=#804080``.
    """
    images, masks = _files(root)
    options: dict[str, Any] = {}
    notes: list[str] = []
    pairs, unmatched = pair_masks(images, masks)
    if unmatched:
        pattern = find_mask_name(images, masks)
        if pattern is not None and pattern != STEM:
            options["mask_name"] = pattern
            pairs, _ = pair_masks(images, masks, pattern)
    labelled = [root / "masks" / pair for pair in pairs if pair is not None]
    if not labelled:
        raise DataError(
            f"{root / 'masks'}: none of its {len(masks)} files belongs to an image of {root / 'images'}, the first: "
            f"{masks[0]}; a mask is named like its image, or like it with the same addition for all, cat_mask.png"
        )
    looked_at = labelled[:: -(-len(labelled) // MOST_MASKS)]
    values = _count_values(looked_at)
    options |= _reading(root, values, classes, notes)
    dataset = Folder(str(root), **options)
    return FirstLook(dataset, options, _sizes(dataset, notes), _pixels_of(dataset, values), len(looked_at), notes)


def _files(root: Path) -> tuple[list[PurePath], list[PurePath]]:
    """Images and masks, as paths inside of their folders."""
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder")
    found = {
        name: [path.relative_to(root / name) for path in images_below(root / name)] for name in ("images", "masks")
    }
    for name, files in found.items():
        if not files:
            here = sorted(path.name for path in root.iterdir())[:8]
            raise DataError(
                f"{root}: ralseg init looks for photographs in {root / 'images'} and for masks of some of them in "
                f"{root / 'masks'}, but {root / name} holds no image file ({root} holds {', '.join(here) or 'nothing'})"
            )
    return list(found["images"]), list(found["masks"])


def _count_values(paths: list[Path]) -> Values:
    """What occurs in masks; files that cannot be read are left to `ralseg data check`."""
    ids: Counter[int] = Counter()
    colours: Counter[Colour] = Counter()
    error: DataError | None = None
    for path in track(paths, "looking at masks", transient=True, disable=not sys.stdout.isatty()):
        try:
            for value, number in readers.mask_values(path).items():
                if isinstance(value, tuple):
                    colours[value] += number
                else:
                    ids[value] += number
        except DataError as problem:
            error = error or problem
    if colours:
        for value, number in ids.items():  # a mask that happens to be of greys alone
            colours[value, value, value] += number
        return colours
    if not ids:
        raise error or DataError("no mask holds a pixel")
    return ids


# -- how masks are to be read ---------------------------------------------------------------------


def _reading(root: Path, values: Values, classes: Sequence[str] | None, notes: list[str]) -> dict[str, Any]:
    """What Folder must be told about masks beside what ``dataset.yaml`` says."""
    codes = dict(entry.split("=", 1) for entry in classes or () if "=" in entry)
    if codes and len(codes) < len(classes or ()):
        raise ConfigError(f"--classes {','.join(classes or ())}: give a value or colour to each of them, or to none")
    grey = [value for value in values if isinstance(value, int)]
    if codes:
        return _given_reading(codes, is_grey=len(grey) == len(values))
    names = list(classes or ())
    if not names and (root / FILE).exists():
        description = describe(root / FILE, {})
        if not _takes_a_class_for_void(description, values):
            notes += _not_described(description, values)
            return {}
        names = list(description.class_names)
    if len(grey) == len(values):
        return _reading_of_values(sorted(grey), names, notes)
    return _reading_of_colours(values, names, notes)


def _given_reading(codes: dict[str, str], is_grey: bool) -> dict[str, Any]:
    """What ``--classes road=0,crack=255`` or ``--classes road=#804080,sky=#4682b4`` means."""
    try:
        if is_grey:
            return {"values": {int(code): name for name, code in codes.items()}}
        return {
            "palette": {name: [int(code.strip()[i : i + 2], 16) for i in (1, 3, 5)] for name, code in codes.items()}
        }
    except ValueError:
        what = "a mask value, road=0" if is_grey else "a colour, road=#804080"
        raise ConfigError(f"--classes {codes}: each name needs {what} for example") from None


def _takes_a_class_for_void(description: Description, values: Values) -> bool:
    """Whether a list of classes cannot mean what it says: as many values as classes, but one is taken for void."""
    known = _classes_of(description)
    missing = set(range(len(description.class_names))) - {known.get(value) for value in values}
    is_list = description.palette is None and not description.says_void and not description.has_values
    return is_list and bool(missing) and len(values) == len(description.class_names) and readers.IGNORE in values


def _not_described(description: Description, values: Values) -> list[str]:
    """A note of what masks hold beside what the description knows."""
    known = _classes_of(description)
    unknown = {value: number for value, number in values.items() if value not in known}
    if not unknown:
        return []
    share = 100 * sum(unknown.values()) / max(sum(values.values()), 1)
    listed = ", ".join(map(str, list(unknown)[:5])) + (" ..." if len(unknown) > 5 else "")
    what = "colours" if description.palette is not None else "values"
    return [
        f"masks hold {what} that {FILE} does not know: {listed} ({share:.2g} % of the pixels); `ralseg data check` "
        "names the files. If they are void, add them to 'ignore'"
    ]


def _classes_of(description: Description) -> dict[Any, int]:
    """The class of each value or colour."""
    return dict(description.palette if description.palette is not None else description.table or {})


def _reading_of_values(found: list[int], names: list[str], notes: list[str]) -> dict[str, Any]:
    usual = [value for value in found if value != readers.IGNORE]
    is_counted = usual == list(range(len(usual))) and len(usual) > 1
    if names and len(names) == len(found) and not (is_counted and len(names) == len(usual)):
        return {"values": dict(zip(found, names, strict=True))}
    if names and usual and usual[-1] < len(names):
        return {"classes": names}  # some class may just not have been seen
    if names:
        raise ConfigError(
            f"there are {len(names)} names of classes ({', '.join(names)}), but masks hold the values "
            f"{', '.join(map(str, found))}; give one name for each value: --classes "
            + ",".join(f"name_of_{value}" for value in found)
        )
    if is_counted:
        names = _default_names(len(usual))
        notes.append(_unnamed(names))
        return {"classes": names}
    if len(found) < 2:
        raise DataError(f"masks hold the value {found[0]} alone; two classes are the least that can be told apart")
    names = ["background", "foreground"] if len(found) == 2 else [f"value_{value}" for value in found]
    notes.append(_unnamed(names))
    return {"values": dict(zip(found, names, strict=True))}


def _reading_of_colours(values: Values, names: list[str], notes: list[str]) -> dict[str, Any]:
    found: list[Any] = [value if isinstance(value, tuple) else (value,) * 3 for value, _ in values.most_common()]
    if len(found) > MOST_COLOURS:
        raise DataError(
            f"masks hold {len(found)} colours, so colours do not stand for classes: the masks were smoothed, or saved "
            "in a lossy format; write them again without smoothing, as PNG"
        )
    codes = ["#{:02x}{:02x}{:02x}".format(*colour) for colour in found]
    if names:
        total = sum(values.values())
        listed = ", ".join(
            f"{code} {100 * n / total:.1f} %" for code, (_, n) in zip(codes, values.most_common(), strict=True)
        )
        raise ConfigError(
            f"masks hold colours ({listed}), and names alone do not say which is which: --classes "
            + ",".join(f"{name}={code}" for name, code in zip(names, codes, strict=False))
            + " for example, or a palette in dataset.yaml"
        )
    names = [f"colour_{code[1:]}" for code in codes]
    notes.append(_unnamed(names))
    return {"palette": {name: list(colour) for name, colour in zip(names, found, strict=True)}}


def _default_names(number: int) -> list[str]:
    return ["background", "foreground"] if number == 2 else [f"class_{index}" for index in range(number)]


def _unnamed(names: list[str]) -> str:
    return f"nobody has named the classes: {', '.join(names)} can be changed in the file, or by --classes"


# -- what is there --------------------------------------------------------------------------------


def _sizes(dataset: Folder, notes: list[str]) -> list[Size]:
    sizes, problems = [], []
    for index in range(len(dataset)):
        try:
            sizes.append(dataset.image_size(index))
        except DataError as error:
            problems.append(str(error))
    if problems:
        notes.append(f"{len(problems)} images cannot be read, the first: {problems[0]}")
    if not sizes:
        raise DataError(problems[0])
    return sizes


def _pixels_of(dataset: Folder, values: Values) -> list[int]:
    """Pixels of each class and, last, of void."""
    known = _classes_of(dataset.description)
    pixels = [0] * (len(dataset.class_names) + 1)
    for value, number in values.items():
        index = known.get(value, readers.IGNORE)
        pixels[-1 if index == readers.IGNORE else index] += number
    return pixels
