"""A family of synthetic worlds: a policy can play every game in another one, and is tried in worlds it never saw."""

from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray

from ralseg.data import readers, world_layouts
from ralseg.data.base import SegmentationDataset
from ralseg.data.description import default_colours
from ralseg.data.sketch import Sketch
from ralseg.data.world import MAX_CLASSES, Generator, Place, World, draw_world
from ralseg.data.world_photo import photograph
from ralseg.errors import ConfigError

VERSION = 1
"""Raise it when worlds come out otherwise than before, so that no copy of an older one is used."""
_FAMILIES = {"train": "world", "val": "val", "test": "test"}  # subset -> what its worlds are called
_MOST = 1_000_000  # images in all; more would not fit into anybody's memory
_PLACE, _FEATURED, _SKETCH, _PHOTO = 3, 4, 5, 6  # what a generator is for; 1 and 2 draw the worlds


def slot_names(number: int) -> tuple[str, ...]:
    """Names of class slots, which mean another class in each world.

    Examples:
        >>> slot_names(2)
        ('class_00', 'class_01')
    """
    return tuple(f"class_{slot:02d}" for slot in range(number))


class SyntheticWorlds(SegmentationDataset):
    """Many small data sets in one, drawn from a seed: each world has its own classes, things, colours and light.

    A world uses the first of 20 class slots, 2 to 20 of them. Whole worlds are held out: those of ``val`` and ``test``
    share nothing with those of ``train``. An image follows from the seed, its world and its number alone, so that it
    stays the same when there are more worlds or more images. Its scene is a place of its world.

    Args:
        num_train_worlds: Worlds whose images are in the subset ``train``: ``world_000``, ``world_001`` and so on.
        num_val_worlds: Worlds of the subset ``val``: ``val_000`` and so on.
        num_test_worlds: Worlds of the subset ``test``: ``test_000`` and so on.
        images: Images in each world.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
        seed: Another seed gives other worlds.

    Examples:
        >>> worlds = SyntheticWorlds(num_train_worlds=2, num_val_worlds=1, images=3)
        >>> worlds.names[4], worlds.world(4), worlds.subsets[4]
        ('world_001/001', 'world_001', 'train')
        >>> worlds.read_image(4).shape
        (128, 192, 3)
    """

    class_names = slot_names(MAX_CLASSES)
    colours = default_colours(MAX_CLASSES)

    def __init__(
        self,
        num_train_worlds: int = 48,
        num_val_worlds: int = 8,
        num_test_worlds: int = 0,
        images: int = 40,
        height: int = 128,
        width: int = 192,
        seed: int = 0,
    ) -> None:
        _check_size(height, width)
        counts = {"train": num_train_worlds, "val": num_val_worlds, "test": num_test_worlds}
        _check_counts(counts, images, seed)
        self.height, self.width, self.seed = height, width, seed
        self._parts = [
            (family, number, image)
            for family, count in enumerate(counts.values())
            for number in range(count)
            for image in range(images)
        ]
        self.subsets = [list(counts)[family] for family, *_ in self._parts]
        self.names = [f"{self.world(index)}/{image:03d}" for index, (*_, image) in enumerate(self._parts)]

    def world(self, index: int) -> str:
        """The name of the world that an image shows."""
        family, number, _ = self._parts[index]
        return f"{list(_FAMILIES.values())[family]}_{number:03d}"

    def describe_world(self, index: int) -> World:
        """What the images of an image's world have in common."""
        family, number, _ = self._parts[index]
        return draw_world(self.seed, family, number)

    def scene(self, index: int) -> str:
        """The place of its world that an image shows."""
        return f"{self.world(index)}/place_{self._place(index)[0]}"

    def image_size(self, index: int) -> tuple[int, int]:
        """(height, width), the same for all images."""
        return self.height, self.width

    def read_image(self, index: int) -> NDArray[np.uint8]:
        """Draw and photograph the image: [height, width, 3]."""
        _, place = self._place(index)
        return photograph(self._sketch(index), self.describe_world(index), place, self._generator(_PHOTO, index))

    def read_mask(self, index: int) -> NDArray[np.uint8]:
        """Draw the image and keep the class slots: [height, width]."""
        slots = np.full(256, readers.IGNORE, np.uint8)
        world = self.describe_world(index)
        slots[: world.classes] = world.slots
        return slots[self._sketch(index).mask()]

    def image_key(self, index: int) -> list[Any] | None:
        """What the image is drawn from, and by what."""
        drawn_by = [type(self).__name__, VERSION, np.__version__, PIL.__version__]
        return [*drawn_by, self.seed, *self._parts[index], self.height, self.width]

    def mask_key(self, index: int) -> list[Any] | None:
        """The same as the image's."""
        return self.image_key(index)

    def _generator(self, purpose: int, index: int) -> Generator:
        return np.random.default_rng([purpose, self.seed, *self._parts[index]])

    def _place(self, index: int) -> tuple[int, Place]:
        """The place that an image shows, with its number."""
        places = self.describe_world(index).places
        number = int(self._generator(_PLACE, index).choice(len(places), p=[place.share for place in places]))
        return number, places[number]

    def _featured(self, index: int) -> int:
        """A class that the image shows for sure: as many images in a row as there are classes have each another."""
        family, number, image = self._parts[index]
        classes = self.describe_world(index).classes
        rng = np.random.default_rng([_FEATURED, self.seed, family, number, image // classes])
        return int(rng.permutation(classes)[image % classes])

    def _sketch(self, index: int) -> Sketch:
        world, (_, place) = self.describe_world(index), self._place(index)
        rng = self._generator(_SKETCH, index)
        view = world_layouts.View(world, place, self._featured(index), self.height, self.width, rng)
        return world_layouts.draw(view)


def _check_size(height: int, width: int) -> None:
    if min(height, width) < 32:
        raise ConfigError(f"SyntheticWorlds needs at least 32x32 pixels, got height={height}, width={width}")
    if height * width > readers.MAX_PIXELS:
        raise ConfigError(f"SyntheticWorlds: {height}x{width} pixels are over the limit of {readers.MAX_PIXELS}")


def _check_counts(counts: dict[str, int], images: int, seed: int) -> None:
    for subset, count in counts.items():
        if count < 0:
            raise ConfigError(f"SyntheticWorlds: num_{subset}_worlds={count} must be a number of worlds, 0 or more")
    if sum(counts.values()) == 0:
        raise ConfigError(
            "SyntheticWorlds has no worlds: num_train_worlds, num_val_worlds and num_test_worlds are all 0"
        )
    if not 1 <= images <= _MOST // sum(counts.values()):
        raise ConfigError(f"SyntheticWorlds: images={images} must be 1 or more, and {_MOST} in all worlds at most")
    if seed < 0:
        raise ConfigError(f"SyntheticWorlds: seed={seed} must be 0 or more")
