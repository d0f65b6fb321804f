"""Your own images: two folders and a short YAML file."""

import reprlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from ralseg.data import readers
from ralseg.data.base import Colour, FileDataset, find_root, images_below
from ralseg.data.name_pattern import check_pattern, search_names
from ralseg.errors import DataError

DESCRIPTION = "dataset.yaml"
_KEYS = {"classes", "palette", "ignore", "scenes"}


def _default_colours(number: int) -> tuple[Colour, ...]:
    """Distinct colours by the bit pattern that VOC made customary: class i has the bits of i + 1."""
    colours = []
    for index in range(1, number + 1):
        rgb = [0, 0, 0]
        for bit in range(8):
            for channel in range(3):
                rgb[channel] |= (index >> channel & 1) << (7 - bit)
            index >>= 3
        colours.append((rgb[0], rgb[1], rgb[2]))
    return tuple(colours)


class Folder(FileDataset):
    """Images in ``images/<subset>``, masks of the same stem in ``masks/<subset>`` (PNG).

    ``dataset.yaml`` beside them says ``classes`` (names in order of their ids), optionally ``palette``
    (class name -> [r, g, b], where masks are coloured) and ``ignore`` (an id, or with a palette a
    colour, that counts as void besides 255). An image without a mask can only be acquired.

    ``scenes`` is optional too: a regular expression with one group that is searched in the name of an image
    (``train/berlin_0001.png``) and finds its scene: ``scenes: '/([a-z]+)_'`` finds ``berlin``. Without it an
    image in a subfolder, ``images/train/berlin/0001.png``, has the subfolder's name as its scene, others have none.

    Args:
        root: Folder that holds ``images``, ``masks`` and ``dataset.yaml``. Default: ``RALSEG_FOLDER``.
    """

    palette: readers.Palette | None
    table: dict[int, int]
    scene_pattern: str | None

    def __init__(self, root: str | None = None) -> None:
        folder = find_root(root, "RALSEG_FOLDER", "Folder")
        self._describe(folder / DESCRIPTION)
        super().__init__(folder)

    def _describe(self, path: Path) -> None:
        description = _read_yaml(path)
        unknown = sorted(set(description) - _KEYS)
        if unknown:
            raise DataError(f"{path}: unknown keys {unknown}; known are {sorted(_KEYS)}")
        listed = description.get("classes")
        # only plain names are turned into text: nested aliases of YAML would grow without end
        is_plain = isinstance(listed, list) and all(isinstance(name, str | int) for name in listed)
        classes = list(map(str, listed)) if isinstance(listed, list) and is_plain else []
        if len(set(classes)) < max(2, len(classes)):
            raise DataError(f"{path}: 'classes' must list at least two different names, got {reprlib.repr(listed)}")
        if len(classes) > readers.IGNORE:
            raise DataError(f"{path}: {len(classes)} classes do not fit 8-bit masks (255 is ignore)")
        self.class_names = tuple(classes)
        pattern = description.get("scenes")
        self.scene_pattern = None if pattern is None else check_pattern(pattern, f"{path}: 'scenes'")
        ignore = description.get("ignore")
        palette = description.get("palette")
        self.palette = None
        self.colours = _default_colours(len(classes))
        if palette is not None:
            self._read_palette(path, palette, ignore)
        else:
            self.table = {i: i for i in range(len(classes))} | {readers.IGNORE: readers.IGNORE}
            if ignore is not None:
                if not isinstance(ignore, int) or not 0 <= ignore <= 255:
                    raise DataError(f"{path}: 'ignore' must be an id from 0 to 255, got {reprlib.repr(ignore)}")
                if ignore < len(classes):
                    raise DataError(f"{path}: 'ignore: {ignore}' is also the id of class {classes[ignore]!r}")
                self.table[ignore] = readers.IGNORE

    def _read_palette(self, path: Path, palette: object, ignore: object) -> None:
        names = palette if isinstance(palette, dict) else {}
        if {str(name) for name in names if isinstance(name, str | int)} != set(self.class_names):
            raise DataError(
                f"{path}: 'palette' must give one colour for each of the {len(self.class_names)} classes, "
                f"got {reprlib.repr(palette)}"
            )
        by_name = {str(name): _colour(path, colour) for name, colour in names.items()}
        self.colours = tuple(by_name[name] for name in self.class_names)
        if len(set(self.colours)) < len(self.colours):
            raise DataError(f"{path}: two classes of 'palette' share a colour")
        self.palette = {colour: index for index, colour in enumerate(self.colours)}
        if ignore is not None:
            self.palette.setdefault(_colour(path, ignore), readers.IGNORE)

    def find_files(self, root: Path) -> Iterator[tuple[str, str, Path, Path]]:
        """Yield every image with the place where its mask is, or would be."""
        images = root / "images"
        for image in images_below(images):
            inside = image.relative_to(images)
            if len(inside.parts) < 2:
                raise DataError(f"{image}: put images into a subset's folder, images/train for example")
            mask = (root / "masks" / inside).with_suffix(".png")
            yield inside.parts[0], inside.as_posix(), image, mask

    def scene(self, index: int) -> str | None:
        """What ``scenes`` finds in the image's name; without that key, the subfolder that the image lies in."""
        if self.scene_pattern is None:
            _, *folders, _ = PurePosixPath(self.names[index]).parts
            return folders[0] if folders else None
        scene = self._scenes_by_pattern[index]
        if not scene:
            raise DataError(
                f"{self.root}/{DESCRIPTION}: 'scenes: {self.scene_pattern}' finds no scene in the name of image "
                f"{self.names[index]}"
            )
        return scene

    @cached_property
    def _scenes_by_pattern(self) -> list[str | None]:
        """Looked for in all names at once, when the first scene is asked for."""
        assert self.scene_pattern is not None
        return search_names(self.scene_pattern, self.names, f"{self.root}/{DESCRIPTION}: 'scenes'")

    def decode_mask(self, path: Path) -> NDArray[np.uint8]:
        """Class indices from ids or, with a palette, from colours."""
        if self.palette is not None:
            return readers.read_colour_mask(path, self.palette)
        return readers.map_ids(path, readers.read_index_mask(path), self.table)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: missing; write 'classes: [name of id 0, name of id 1, ...]' into it") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise DataError(f"{path}: not valid YAML ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: must be a mapping with the key 'classes'")
    return content


def _colour(path: Path, value: object) -> Colour:
    if isinstance(value, list) and len(value) == 3 and all(isinstance(v, int) and 0 <= v <= 255 for v in value):
        return (value[0], value[1], value[2])
    raise DataError(f"{path}: a colour must be [r, g, b] with values from 0 to 255, got {reprlib.repr(value)}")
