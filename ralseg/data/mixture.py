"""Several data sets as one, so that one policy plays in all of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ralseg.data.base import SegmentationDataset
from ralseg.data.description import default_colours
from ralseg.data.splits import unknown_subsets
from ralseg.data.worlds import slot_names
from ralseg.errors import ConfigError
from ralseg.runtime.copies import KeptCopies

_USED = ("train", "val")  # subsets; a part's test images stay unseen


class Mixture(SegmentationDataset):
    """The labelled images of several data sets, without those of ``test``: what a policy that plays in all may see.

    Class i of a part has slot i; there are as many slots as the part with most classes has. A world whose images are
    all ``val`` stays held out; all other images are for training. A part that does not know worlds is one world.

    Args:
        parts: The data sets by the name of their family. Image ``name`` of family ``f`` is ``f/name`` here, and its
            world and scene begin with ``f`` too.
        held_out: Families whose images are all for validation. None: only worlds that are held out anyway.

    Examples:
        >>> from ralseg.data import SyntheticStreets, SyntheticWorlds
        >>> streets, worlds = SyntheticStreets(4, 1, 1), SyntheticWorlds(1, 1, images=3)
        >>> mixture = Mixture({"streets": streets, "drawn": worlds})
        >>> len(mixture), len(mixture.class_names)
        (11, 20)
        >>> mixture.names[-1], mixture.world(10), mixture.subsets[10]
        ('drawn/val_000/002', 'drawn/val_000', 'val')
    """

    def __init__(self, parts: dict[str, SegmentationDataset], held_out: list[str] | None = None) -> None:
        _check(parts, held_out or [])
        self.parts, self.held_out = dict(parts), list(held_out or [])
        self._images = [
            (family, index)
            for family, part in self.parts.items()
            for index in range(len(part))
            if part.subsets[index] in _USED and part.has_mask(index)
        ]
        if not self._images:
            raise ConfigError(
                "Mixture: no part has a labelled image in train or val; check data.dataset.init_args.parts"
            )
        slots = max(len(part.class_names) for part in self.parts.values())
        self.class_names, self.colours = slot_names(slots), default_colours(slots)
        self.names = [f"{family}/{self.parts[family].names[index]}" for family, index in self._images]
        self._worlds = [self._world_name(family, index) for family, index in self._images]
        self.subsets = self._make_subsets()

    def _world_name(self, family: str, index: int) -> str:
        world = self.parts[family].world(index)
        return f"{family}/{world}" if world else family

    def _make_subsets(self) -> list[str]:
        """``val`` for the images of worlds that hold nothing else, ``train`` for all others."""
        played = {
            world
            for world, (family, index) in zip(self._worlds, self._images, strict=True)
            if self.parts[family].subsets[index] == "train" and family not in self.held_out
        }
        return ["train" if world in played else "val" for world in self._worlds]

    def _part(self, index: int) -> tuple[SegmentationDataset, int]:
        """The data set that an image is from, and its position there."""
        family, inner = self._images[index]
        return self.parts[family], inner

    @property
    def copies(self) -> KeptCopies:
        """Where what is costly to decode may be kept between runs; the parts keep it in the same place."""
        return next(iter(self.parts.values())).copies

    @copies.setter
    def copies(self, copies: KeptCopies) -> None:
        for part in self.parts.values():
            part.copies = copies

    def image_size(self, index: int) -> tuple[int, int]:
        """(height, width) of an image, which may differ from part to part."""
        part, inner = self._part(index)
        return part.image_size(inner)

    def read_image(self, index: int) -> NDArray[np.uint8]:
        """Pixels of an image: [height, width, 3]."""
        part, inner = self._part(index)
        return part.read_image(inner)

    def read_mask(self, index: int) -> NDArray[np.uint8]:
        """Class slot of each pixel, 255 = ignore: [height, width]."""
        part, inner = self._part(index)
        return part.read_mask(inner)

    def has_mask(self, index: int) -> bool:
        """Whether the part still has the mask; images that never had one are left out."""
        part, inner = self._part(index)
        return part.has_mask(inner)

    def world(self, index: int) -> str:
        """``family/world``; only ``family`` where the whole part is one world."""
        return self._worlds[index]

    def scene(self, index: int) -> str | None:
        """``family/scene``; None where the part does not know it."""
        part, inner = self._part(index)
        scene = part.scene(inner)
        return None if scene is None else f"{self._images[index][0]}/{scene}"

    def file_problems(self) -> list[str]:
        """What is wrong with the files of each part, and images that are not used for the name of their subset."""
        return [
            f"{family}: {problem}"
            for family, part in self.parts.items()
            for problem in [*part.file_problems(), *unknown_subsets(part)]
        ]

    def image_key(self, index: int) -> list[Any] | None:
        """The part's own, so that copies serve with and without the mixture."""
        part, inner = self._part(index)
        return part.image_key(inner)

    def mask_key(self, index: int) -> list[Any] | None:
        """The part's own."""
        part, inner = self._part(index)
        return part.mask_key(inner)


def _check(parts: dict[str, SegmentationDataset], held_out: list[str]) -> None:
    """There must be parts, and names from which the family can be read off again."""
    if not parts:
        raise ConfigError(
            "Mixture has no parts; name some data sets: "
            "data.dataset.init_args.parts: {streets: {class_path: ralseg.data.SyntheticStreets}}"
        )
    for family in parts:
        if not family or "/" in family:
            raise ConfigError(f"data.dataset.init_args.parts: the name {family!r} must not be empty or hold a '/'")
    for family in held_out:
        if family not in parts:
            raise ConfigError(
                f"data.dataset.init_args.held_out: there is no part {family!r}; parts are {', '.join(parts)}"
            )
