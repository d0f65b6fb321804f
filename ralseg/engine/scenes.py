"""Reward on other scenes: which images an episode of `ralseg fit` is played on, and which pay for it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from ralseg.data.base import SegmentationDataset
from ralseg.data.datamodule import SegmentationData
from ralseg.errors import ConfigError, PoolExhausted
from ralseg.runtime.seeding import stream

KEY = "trainer.game.reward_on=other_scenes"
_MOST_LISTED = 20


@dataclass(frozen=True)
class Cast:
    """The images of an episode. No image has two roles.

    Attributes:
        played: Images whose regions may be labelled, ascending.
        paying: Images whose mean IoU is the reward, ascending.
        scene: The scene or world that pays.
        known: Images that theta_0 learns from before the first step, ascending. None: a file has theta_0.
    """

    played: tuple[int, ...]
    paying: tuple[int, ...]
    scene: str
    known: tuple[int, ...] = ()


def draw_cast(
    scenes: Mapping[int, str],
    regions: Mapping[int, int],
    budget: int,
    generator: torch.Generator,
    most_paying: int | None = None,
) -> Cast:
    """Draw the scene that pays, uniformly among those that can; the images of all other scenes are played on.

    Args:
        scenes: The scene of each image that may be used.
        regions: Number of regions of each image.
        budget: Regions that an episode labels.
        generator: Decides.
        most_paying: Draw so many of the scene's images where it has more. None: all of them pay.

    Examples:
        >>> scenes = {0: "town", 1: "town", 2: "coast", 3: "coast", 4: "coast"}
        >>> draw_cast(scenes, dict.fromkeys(scenes, 6), budget=15, generator=torch.Generator())
        Cast(played=(2, 3, 4), paying=(0, 1), scene='town', known=())
    """
    able = able_to_pay(scenes, regions, budget)
    scene = able[int(torch.randint(len(able), (), generator=generator))]
    paying = sorted(image for image, its in scenes.items() if its == scene)
    if most_paying is not None and most_paying < len(paying):
        drawn = torch.randperm(len(paying), generator=generator)[:most_paying]
        paying = sorted(paying[place] for place in drawn.tolist())
    played = sorted(image for image, its in scenes.items() if its != scene)
    return Cast(tuple(played), tuple(paying), scene)


def able_to_pay(scenes: Mapping[int, str], regions: Mapping[int, int], budget: int) -> list[str]:
    """The scenes beside which an episode's budget of regions can be labelled, by their names; none is an error.

    Examples:
        >>> able_to_pay({0: "town", 1: "coast", 2: "coast"}, {0: 6, 1: 6, 2: 6}, budget=10)
        ['town']
    """
    total = sum(regions[image] for image in scenes)
    own: dict[str, list[int]] = {scene: [] for scene in sorted(set(scenes.values()))}
    for image, scene in scenes.items():
        own[scene].append(regions[image])
    able = [scene for scene, counts in own.items() if total - sum(counts) >= budget]
    if not able:
        listed = [
            f"{scene} ({len(counts)} images, {total - sum(counts)} regions beside it)" for scene, counts in own.items()
        ]
        listed[_MOST_LISTED:] = [f"{len(listed) - _MOST_LISTED} more"] if len(listed) > _MOST_LISTED else []
        raise PoolExhausted(
            f"{KEY}: no scene can pay: the images of all others must hold trainer.game.budget={budget} regions; "
            f"there are {', '.join(listed) or 'none'}; lower the budget, or give train_set and reward_set more images "
            "or scenes (data.splits)"
        )
    return able


def known_scenes(dataset: SegmentationDataset, images: Collection[int]) -> dict[int, str]:
    """The scene of each image; where one is not known, an error says how to give it."""
    found = {image: dataset.scene(image) for image in images}
    unknown = [image for image, scene in found.items() if scene is None]
    advice = (
        "ralseg.data.Folder finds scenes by the key 'scenes' of its dataset.yaml or by subfolders, a data set of your "
        "own by its method scene; or leave reward_on at reward_set"
    )
    name = type(dataset).__name__
    if unknown and len(unknown) == len(found):
        raise ConfigError(f"{KEY}: {name} knows no scenes of its images; {advice}")
    if unknown:
        raise ConfigError(
            f"{KEY}: {name} knows no scene of image {dataset.names[unknown[0]]} ({len(unknown)} of {len(found)} images "
            f"have none, the others do); {advice}"
        )
    return {image: scene for image, scene in found.items() if scene is not None}


class Casting:
    """Draws the casts of a run among the images of train set and reward set.

    A cast is a function of the seed, of the kind and number of an episode's draws, and of what its theta_0 has seen:
    the episodes of a block share it, and validation repeats it in every round.

    Args:
        data: The data, set up.
        budget: Regions that an episode labels.
    """

    def __init__(self, data: SegmentationData, budget: int) -> None:
        images = data.labelled_images("train_set", "reward_set")
        self._data, self._budget = data, budget
        self._scenes = known_scenes(data.dataset, images)
        regions = data.regions(images)
        data.check_crop_holds(regions)
        self._regions = {image: len(regions.of_image(place)) for place, image in enumerate(images)}

    def _left(self, seen: Collection[str]) -> dict[int, str]:
        names = self._data.dataset.names
        return {image: scene for image, scene in self._scenes.items() if names[image] not in seen}

    def check(self, seen: Collection[str], theta_0: str) -> None:
        """Refuse a theta_0 that has seen so many images that no scene can pay."""
        try:
            able_to_pay(self._left(seen), self._regions, self._budget)
        except PoolExhausted as error:
            if not seen:
                raise
            raise PoolExhausted(f"{error} (without the {len(seen)} images that {theta_0} was trained on)") from error

    def draw(self, kind: str, number: int, seen: Collection[str]) -> Cast:
        """The cast of an episode.

        Args:
            kind: Of the episode's draws: ``train`` or ``validation``.
            number: Of the episode's draws.
            seen: Names of the images that its theta_0 was trained on.
        """
        generator = stream(self._data.seed, f"{kind} scene", number)
        return draw_cast(self._left(seen), self._regions, self._budget, generator, self._data.reward_images)
