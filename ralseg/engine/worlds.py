"""Games in many worlds: each episode is played in a world of its own, from a theta_0 that saw a few of its images."""

import math
from dataclasses import dataclass

import torch

from ralseg.data.datamodule import SegmentationData
from ralseg.engine.scenes import Cast, able_to_pay, draw_cast
from ralseg.errors import ConfigError, PoolExhausted
from ralseg.runtime.seeding import stream

KEY = "trainer.game.reward_on=own_world"
SETS = {"train": "train_set", "validation": "reward_set"}
"""The set whose worlds an episode of each kind is played in."""
PAYING_SHARE = 1 / 3
"""Of the images that theta_0 did not see, so many pay, unless ``data.reward_images`` says how many."""
ONLY_WORLD = "the data set"
"""What a world without a name is called."""


@dataclass(frozen=True)
class World:
    """The labelled images of one world."""

    name: str
    images: list[int]
    regions: dict[int, int]  # number of regions of each image
    scenes: dict[int, str]  # of images whose scene is known


class WorldCasting:
    """Draws the world of each episode, theta_0's images, what is played on and what pays.

    Episodes of training are played in worlds of the train set, those of validation in worlds of the reward set, which
    nothing was learned in. First a family of worlds is drawn (what stands before ``/`` in a world's name), then one of
    its worlds: a single real data set counts as much as a hundred synthetic worlds.

    Args:
        data: The data, set up.
        budget: Regions that an episode labels.
        known_images: Fewest and most images that theta_0 sees; few of them are drawn more often than many.

    Examples:
        >>> from ralseg.data import SyntheticStreets
        >>> from ralseg.data.splits import SplitSizes
        >>> streets = SyntheticStreets(num_train=9, num_val=9, num_test=1, height=32, width=48)
        >>> data = SegmentationData(streets, SplitSizes(state=0, train=9))
        >>> data.setup()
        >>> cast = WorldCasting(data, budget=20, known_images=(1, 3)).draw("train", 0, ())
        >>> len(cast.known) + len(cast.played) + len(cast.paying)
        9
    """

    def __init__(self, data: SegmentationData, budget: int, known_images: tuple[int, int]) -> None:
        self._data, self._budget, self._known_images = data, budget, known_images
        self._families = {kind: self._families_of(name) for kind, name in SETS.items()}

    def _families_of(self, set_name: str) -> dict[str, list[World]]:
        """The worlds of a set, by family, in order of their names."""
        images: dict[str, list[int]] = {}
        for index in self._data.labelled_images(set_name):
            images.setdefault(self._data.dataset.world(index), []).append(index)
        families: dict[str, list[World]] = {}
        for name in sorted(images):
            families.setdefault(name.partition("/")[0], []).append(self._world(name, images[name]))
        return families

    def _world(self, name: str, images: list[int]) -> World:
        regions, dataset = self._data.regions(images), self._data.dataset
        self._data.check_crop_holds(regions)
        counts = {image: len(regions.of_image(place)) for place, image in enumerate(images)}
        scenes = {image: scene for image in images if (scene := dataset.scene(image)) is not None}
        self._check(name, counts)
        return World(name or ONLY_WORLD, images, counts, scenes)

    def _check(self, name: str, regions: dict[int, int]) -> None:
        """Refuse a world that has too few images for the largest theta_0."""
        most = self._known_images[1]
        left = sorted(regions.values())[: len(regions) - most]
        played = sum(left[: len(left) - self._num_paying(len(left))])
        if not left or played < self._budget:
            raise PoolExhausted(
                f"{KEY}: world {name or ONLY_WORLD!r} has {len(regions)} images; without the {most} that theta_0 may "
                f"see and those that pay, {played} regions can be counted on, and "
                f"trainer.game.budget={self._budget} are played for; "
                "lower the budget or known_images, or give each world more images"
            )

    def _num_paying(self, number: int) -> int:
        """How many of so many images pay."""
        share = max(1, math.ceil(PAYING_SHARE * number))
        return share if self._data.reward_images is None else min(self._data.reward_images, share)

    def check(self, seen: object, theta_0: str) -> None:
        """Refuse a theta_0 from a file: it has seen one world, or none."""
        if theta_0:
            raise ConfigError(f"{KEY}: each episode makes its own theta_0; leave out initial_weights ({theta_0})")

    def draw(self, kind: str, number: int, seen: object) -> Cast:
        """The cast of an episode.

        Args:
            kind: Of the episode's draws: ``train`` or ``validation``.
            number: Of the episode's draws.
            seen: Nothing: theta_0 is made here.
        """
        generator = stream(self._data.seed, f"{kind} world", number)
        families = list(self._families[kind].values())
        if not families:
            raise ConfigError(
                f"{KEY}: there is no world to play episodes of {kind} in: the {SETS[kind]} is empty; check data.splits"
                + (", or set trainer.game.validation_plays to 0" if kind == "validation" else "")
            )
        worlds = families[_one_of(len(families), generator)]
        world = worlds[_one_of(len(worlds), generator)]
        order = [world.images[place] for place in torch.randperm(len(world.images), generator=generator).tolist()]
        few, many = self._known_images
        exponent = float(torch.rand((), generator=generator))
        count = min(many, int(few * ((many + 1) / few) ** exponent))
        known, left = sorted(order[:count]), order[count:]
        return self._cast(world, known, left, generator)

    def _cast(self, world: World, known: list[int], left: list[int], generator: torch.Generator) -> Cast:
        """Other scenes pay where the world has several; else images drawn at random do."""
        scenes = {image: world.scenes[image] for image in sorted(left) if image in world.scenes}
        if len(scenes) == len(left) and len(set(scenes.values())) > 1:
            try:
                able_to_pay(scenes, world.regions, self._budget)
            except PoolExhausted:
                pass
            else:
                cast = draw_cast(scenes, world.regions, self._budget, generator, self._data.reward_images)
                return Cast(cast.played, cast.paying, f"{world.name}: {cast.scene}", tuple(known))
        paying = self._num_paying(len(left))
        return Cast(tuple(sorted(left[paying:])), tuple(sorted(left[:paying])), world.name, tuple(known))


def _one_of(number: int, generator: torch.Generator) -> int:
    return int(torch.randint(number, (), generator=generator))
