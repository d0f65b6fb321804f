"""Your own images: a folder of images, a folder of masks, and a short description."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePath, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from ralseg.data import readers
from ralseg.data.base import FileDataset, find_root, images_below
from ralseg.data.description import FILE, Description, describe
from ralseg.data.mask_names import STEM, find_mask_name, has_ending, pair_masks
from ralseg.data.name_pattern import search_names
from ralseg.data.shares import DEFAULT_SHARES, share_out
from ralseg.data.splits import SUBSETS
from ralseg.errors import ConfigError, DataError

LARGE_VOID = 0.5
"""More void than this share of labelled pixels is a problem, unless somebody has said which values are void."""


class Folder(FileDataset):
    """Images in ``images/<subset>`` with subsets train, val and test; masks with the same names in ``masks/<subset>``.

    Images directly in ``images`` are shared out among the subsets by ``shares``. An image without a mask can only be
    acquired. What masks hold is said by ``dataset.yaml`` beside them, or by arguments, which win over it. The
    scene of an image is what ``scenes`` finds in its name; without that, the subfolder that it lies in.

    Args:
        root: Folder that holds ``images``, ``masks`` and ``dataset.yaml``. Default: ``RALSEG_FOLDER``.
        classes: Names of classes, in order of their ids in masks; 255 is void.
        values: Class of each mask value, None for void: ``{0: background, 255: crack}``.
        palette: Colour of each class, or its grey level: ``{road: [128, 64, 128], tree: [0, 128, 0]}``.
        ignore: A value, or with a palette a colour, that is void too; a list of values.
        scenes: A regular expression with one group, searched in the names of images: ``/([a-z]+)_`` finds ``berlin``
            in ``train/berlin_0001.png``.
        mask_name: Name of the mask of an image, ``{stem}_mask`` or ``{stem}_mask.png`` for example.
        shares: Which part of the labelled images ``val`` and ``test`` get where images are not in subsets.

    Examples:
        >>> import tempfile
        >>> from PIL import Image
        >>> root = Path(tempfile.mkdtemp())
        >>> (root / "images/train").mkdir(parents=True)
        >>> Image.new("RGB", (6, 4)).save(root / "images/train/a.png")
        >>> (root / "masks/train").mkdir(parents=True)
        >>> Image.new("L", (6, 4), 255).save(root / "masks/train/a.png")
        >>> folder = Folder(str(root), values={0: "road", 255: "crack"})
        >>> folder.class_names[folder.read_mask(0)[0, 0]]
        'crack'
    """

    def __init__(
        self,
        root: str | None = None,
        classes: list[str] | None = None,
        values: dict[int, str | None] | None = None,
        palette: dict[str, int | list[int]] | None = None,
        ignore: int | list[int] | None = None,
        scenes: str | None = None,
        mask_name: str | None = None,
        shares: dict[str, float] | None = None,
    ) -> None:
        folder = find_root(root, "RALSEG_FOLDER", "Folder")
        arguments: dict[str, object] = {"classes": classes, "values": values, "palette": palette, "ignore": ignore}
        arguments |= {"scenes": scenes, "mask_name": mask_name, "shares": shares}
        self.description: Description = describe(folder / FILE, arguments)
        self.class_names, self.colours = self.description.class_names, self.description.colours
        self.palette = self.description.palette
        self.is_flat = False
        self.unmatched_masks: list[PurePath] = []  # inside of masks
        self.mask_rule = repr((self.description.palette, self.description.table))
        super().__init__(folder)

    # -- files -----------------------------------------------------------------------------------

    def find_files(self, root: Path) -> Iterator[tuple[str, str, Path, Path]]:
        """Yield every image with the place where its mask is, or would be."""
        images = [path.relative_to(root / "images") for path in images_below(root / "images")]
        if not images:
            raise DataError(f"{root}: no images found in the layout of Folder: images/train/ ..., or images/ alone")
        masks = [path.relative_to(root / "masks") for path in images_below(root / "masks")]
        pairs, self.unmatched_masks = pair_masks(images, masks, self.description.mask_name)
        self.is_flat = self._check_flat(root, images)
        names = [image.as_posix() for image in images]
        if len(self.unmatched_masks) == len(masks) > 0:
            raise DataError(self._unmatched(root, root / "masks", self.unmatched_masks, images))
        subsets = [PurePath(name).parts[0] for name in names]
        if self.is_flat:
            subsets = self._share_out(root, names, pairs)
        for subset, name, image, pair in zip(subsets, names, images, pairs, strict=True):
            yield subset, name, root / "images" / image, root / "masks" / (pair or self._usual_mask(image))

    def _check_flat(self, root: Path, images: list[Path]) -> bool:
        """Whether images are not sorted into subsets. Half and half is an error."""
        folder = root / "images"
        flat = next((image for image in images if len(image.parts) == 1), None)
        deep = next((image for image in images if len(image.parts) > 1), None)
        sorted_ = next((image for image in images if image.parts[0] in SUBSETS and len(image.parts) > 1), None)
        if self.description.shares is not None:
            if sorted_ is not None:
                raise ConfigError(
                    f"{folder / sorted_}: lies in a subset, but 'shares' is for images that are not sorted into "
                    f"{', '.join(SUBSETS)}; leave 'shares' out, or put all images directly into {folder}"
                )
            return True
        if flat is not None and deep is not None:
            raise DataError(
                f"{folder / flat}: lies directly in images, {folder / deep} in a folder of it; put all images into "
                f"folders {', '.join(SUBSETS)}, or none (then 'shares' divides them; with that key, folders are scenes)"
            )
        return flat is not None

    def _share_out(self, root: Path, names: list[str], pairs: list[PurePath | None]) -> list[str]:
        labelled = [pair is not None for pair in pairs]
        scenes = self._find_scenes(root, names)
        subsets = share_out(names, labelled, scenes, self.description.shares or DEFAULT_SHARES)
        trains = any(subset == "train" and known for subset, known in zip(subsets, labelled, strict=True))
        if any(labelled) and not trains and set(scenes) != {None}:
            raise DataError(
                f"{root}: the labelled images are of {len(set(scenes))} scenes, too few for train, val and test to "
                f"have scenes of their own; sort the images into {', '.join(SUBSETS)}, or give smaller 'shares'"
            )
        return subsets

    def file_problems(self) -> list[str]:
        """Masks that belong to no image: one message for each folder that holds some."""
        assert self.root is not None
        by_folder: dict[PurePath, list[PurePath]] = {}
        for mask in self.unmatched_masks:
            by_folder.setdefault(mask.parent, []).append(mask)
        images = [PurePath(name) for name in self.names]
        return [
            self._unmatched(self.root, self.root / "masks" / folder, masks, images)
            for folder, masks in by_folder.items()
        ]

    def _unmatched(self, root: Path, folder: Path, masks: list[PurePath], images: Sequence[PurePath]) -> str:
        files = "1 file that matches" if len(masks) == 1 else f"{len(masks)} files that match"
        image = next((image for image in images if image.parent == masks[0].parent), images[0])
        text = (
            f"{folder}: holds {files} no image, the first: {root / 'masks' / masks[0]}; "
            f"the mask of {image.name} would be {self._usual_mask(image).name}"
        )
        pattern = find_mask_name(images, masks)
        if pattern is None or pattern == self.description.mask_name:
            return text
        return f"{text}; did you mean mask_name: '{pattern}'? Write that into {FILE}"

    def _usual_mask(self, image: PurePath) -> PurePath:
        """Where the mask of an image would be, inside of masks."""
        mask_name = self.description.mask_name
        return image.with_name(mask_name.replace(STEM, image.stem) + ("" if has_ending(mask_name) else ".png"))

    # -- scenes ----------------------------------------------------------------------------------

    def scene(self, index: int) -> str | None:
        """What ``scenes`` finds in the image's name; without that key, the subfolder that the image lies in."""
        scene, pattern = self._scenes[index], self.description.scenes
        if pattern is not None and not scene:
            name = self.names[index]
            raise DataError(f"{self.root}/{FILE}: 'scenes: {pattern}' finds no scene in the name of image {name}")
        return scene

    @cached_property
    def _scenes(self) -> list[str | None]:
        """Looked for in all names at once, when the first scene is asked for."""
        assert self.root is not None
        return self._find_scenes(self.root, self.names)

    def _find_scenes(self, root: Path, names: list[str]) -> list[str | None]:
        if self.description.scenes is not None:
            return search_names(self.description.scenes, names, f"{root}/{FILE}: 'scenes'")
        above = 0 if self.is_flat else 1  # the folder of the subset
        folders = [PurePosixPath(name).parts[above:-1] for name in names]
        return [inner[0] if inner else None for inner in folders]

    # -- masks -----------------------------------------------------------------------------------

    def decode_mask(self, path: Path) -> NDArray[np.uint8]:
        """Class indices from values or, with a palette, from colours."""
        if self.description.palette is not None:
            remedy = f"; give each colour to a class in 'palette' of {FILE}, or make it void by 'ignore'"
            return readers.read_colour_mask(path, self.description.palette, remedy)
        assert self.description.table is not None
        first = list(self._classes_by_value().items())[:2]
        example = ", ".join(f"{value}: {self.class_names[index]}" for value, index in first)
        remedy = f"; write into {FILE} what each value means (null: void), values: {{{example}, ...}}"
        return readers.map_ids(path, readers.read_index_mask(path), self.description.table, remedy)

    def class_problems(self, pixels: Mapping[str, NDArray[np.int64]]) -> list[str]:
        """Classes without a pixel, and void that nobody has asked for: signs that masks are not read as they are meant.

        Args:
            pixels: Of each subset, labelled pixels of each class and, last, of void: [classes + 1].
        """
        total = np.sum(list(pixels.values()), axis=0)
        missing = [index for index in range(len(self.class_names)) if not total[index] and total.any()]
        by_custom = not self.description.says_void and self.description.palette is None
        taken_for_void = by_custom and bool(total[-1])
        problems = []
        if missing and (taken_for_void or all(map(self.has_mask, range(len(self))))):
            problems.append(self._missing_classes(missing, taken_for_void))
        for subset, counts in pixels.items():
            share = counts[-1] / max(counts.sum(), 1)
            if by_custom and share > LARGE_VOID:
                problems.append(
                    f"{share:.0%} of the labelled pixels of {subset} are void (value 255); if 255 is a class, say so "
                    f"in {FILE}, values: {self._with_255(missing)}; if they really have no class, write ignore: 255"
                )
        return problems

    def _missing_classes(self, missing: list[int], taken_for_void: bool) -> str:
        listed = ", ".join(f"{self.class_names[index]!r} ({self.description.written_as(index)})" for index in missing)
        text = f"no labelled image holds a pixel of class {listed}"
        if not taken_for_void or len(missing) > 1:
            it = "it" if len(missing) == 1 else "them"
            return f"{text}; leave {it} out of the classes, or say in {FILE} what masks hold (values or palette)"
        present = [str(value) for value, index in self._classes_by_value().items() if index not in missing]
        return (
            f"{text}; masks hold {', '.join(present)} and 255, which counts as void: write "
            f"values: {self._with_255(missing)} into {FILE}, or ignore: 255 if it really means void"
        )

    def _classes_by_value(self) -> dict[int, int]:
        table = self.description.table or {}
        return {value: index for value, index in table.items() if index != readers.IGNORE}

    def _with_255(self, missing: list[int]) -> str:
        """What ``values`` would say if 255 were the class that is missing."""
        present = {
            value: self.class_names[index] for value, index in self._classes_by_value().items() if index not in missing
        }
        name = self.class_names[missing[0]] if len(missing) == 1 else "name of the class"
        return "{" + ", ".join(f"{value}: {name}" for value, name in (present | {readers.IGNORE: name}).items()) + "}"
