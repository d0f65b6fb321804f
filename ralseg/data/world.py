"""One world: what it is made of and how it looks, drawn from a seed.

Worlds differ in what real data sets differ in: how many classes there are and how rare some of them are, how things
lie, how large they are, how well colours tell them apart, and how unlike images of one world are.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Generator = np.random.Generator
Triple = tuple[float, float, float]
Texture = Literal["plain", "noise", "stripes", "dots"]

MAX_CLASSES = 20
CLASSES = {"street": (4, 20), "blobs": (2, 8), "tiles": (2, 16), "curves": (2, 5), "areas": (2, 12), "things": (2, 20)}
"""The kinds of worlds, and how many classes each may have."""
TEXTURES: dict[Texture, float] = {"plain": 0.25, "noise": 0.45, "stripes": 0.15, "dots": 0.15}
"""How often each is drawn."""
SHAPES = ("box", "ellipse", "pole", "tree", "cabin", "wedge", "blob")
_MONOCHROME = 0.15  # share of worlds without colours: X-rays, microscopes, night cameras
_PAIR_DISTANCE = 9.0  # grey levels between the colours of classes that are meant to be confused


@dataclass(frozen=True)
class Look:
    """How the objects of one class look."""

    colour: Triple
    spread: float  # how far an object's own colour is from that
    texture: Texture
    strength: float  # of the texture, in grey levels
    period: float  # of stripes and dots, in pixels of an image that is 128 high
    grain: int  # which of three noises: fine, middle, coarse
    angle: float


@dataclass(frozen=True)
class Place:
    """A part of a world. Images of one place resemble each other; another's differ in light, colours and classes."""

    share: float  # of the world's images
    light: float
    tint: Triple
    shifts: tuple[Triple, ...]  # of each class's colour, and last of void's
    frequencies: tuple[float, ...]  # how much more there is of each class than elsewhere


@dataclass(frozen=True)
class World:
    """Everything that the images of a world have in common.

    Attributes:
        kind: How things lie, one of ``CLASSES``.
        classes: Number of classes.
        slots: The class slot of each class of a layout; its first classes are the background.
        shares: How much of each class there is, roughly.
        sizes: How large the objects of each class are, compared with each other.
        shapes: What the objects of each class are shaped like.
        scale: Radius of a usual object, in pixels of an image that is 128 high.
        density: How full an image is, from 0 to 1.
        clumped: Whether objects crowd together.
        style: A number from 0 to 1 that layouts choose between their variants by.
        rough: How far edges are from smooth, in pixels of an image that is 128 high.
        looks: How each class looks, and last how void does.
        places: The parts of the world.
        is_grey: Whether images have no colours.
        blur: Radius in pixels.
        noise: Of the sensor, in grey levels.
        drift: Colour that varies over an image and means nothing, in grey levels.
        shadows: How often an image has shadows.
        void: Share of pixels without a class.
    """

    kind: str
    classes: int
    slots: tuple[int, ...]
    shares: tuple[float, ...]
    sizes: tuple[float, ...]
    shapes: tuple[str, ...]
    scale: float
    density: float
    clumped: bool
    style: float
    rough: float
    looks: tuple[Look, ...]
    places: tuple[Place, ...]
    is_grey: bool
    blur: float
    noise: float
    drift: float
    shadows: float
    void: float


@lru_cache(maxsize=4096)
def draw_world(seed: int, family: int, number: int) -> World:
    """Draw a world. As many worlds in a row as there are kinds are each of another kind.

    Args:
        seed: Seed of all worlds.
        family: Which of the seed's families: training, validation or test worlds.
        number: Of the world in its family.

    Examples:
        >>> sorted(draw_world(0, 0, number).kind for number in range(6)) == sorted(CLASSES)
        True
    """
    kinds = np.random.default_rng([1, seed, family, number // len(CLASSES)]).permutation(list(CLASSES))
    kind = str(kinds[number % len(CLASSES)])
    rng = np.random.default_rng([2, seed, family, number])
    difficulty, is_grey = float(rng.random()), bool(rng.random() < _MONOCHROME)
    least, most = CLASSES[kind]
    classes = least + int((most - least + 1) * rng.random() ** 2.2)
    return World(
        kind=kind,
        classes=classes,
        slots=_draw_slots(rng, classes),
        shares=_draw_shares(rng, classes),
        sizes=_floats(np.exp(rng.uniform(-0.6, 0.6, classes))),
        shapes=tuple(map(str, rng.choice(SHAPES, classes))),
        scale=_log_uniform(rng, 4.0, 18.0),
        density=float(rng.random()),
        clumped=bool(rng.random() < 0.5),
        style=float(rng.random()),
        rough=float(max(0.0, rng.uniform(-1.5, 3.0))),
        looks=_draw_looks(rng, classes + 1, difficulty, is_grey),
        places=_draw_places(rng, classes),
        is_grey=is_grey,
        blur=float(rng.uniform(0, 0.4 + 0.9 * difficulty)),
        noise=float(rng.uniform(1, 4 + 12 * difficulty)),
        drift=float(rng.uniform(0, 6 + 16 * difficulty)),
        shadows=float(max(0.0, rng.uniform(-0.5, 0.8))),
        void=float(rng.uniform(0.003, 0.03) if rng.random() < 0.4 else 0.0),
    )


def _floats(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(map(float, values))


def _triple(values: NDArray[np.float64]) -> Triple:
    red, green, blue = map(float, values)
    return red, green, blue


def _log_uniform(rng: Generator, least: float, most: float) -> float:
    return float(np.exp(rng.uniform(np.log(least), np.log(most))))


def _draw_slots(rng: Generator, classes: int) -> tuple[int, ...]:
    """In half of the worlds the background comes first, as in most data sets; in others anywhere."""
    order = rng.permutation(classes)
    return tuple(range(classes)) if rng.random() < 0.5 else tuple(map(int, order))


def _draw_shares(rng: Generator, classes: int) -> tuple[float, ...]:
    """Shares that sum to 1: from nearly equal ones to those where one class has 60 times another's."""
    ratio = _log_uniform(rng, 1.2, 60.0)
    weights = np.exp(-np.log(ratio) * rng.random(classes))
    return _floats(weights / weights.sum())


def _draw_looks(rng: Generator, count: int, difficulty: float, is_grey: bool) -> tuple[Look, ...]:
    """How classes look: in easy worlds far apart, in hard ones close, with pairs that share a colour.

    The first two never do: where there are no others, nothing could be learned.
    """
    colours: list[NDArray[np.float64]] = []
    for _ in range(count):
        if len(colours) > 1 and rng.random() < 0.05 + 0.4 * difficulty:
            colours.append(colours[rng.integers(len(colours))] + rng.normal(0, _PAIR_DISTANCE, 3))
        else:
            colours.append(_draw_colour(rng, colours, difficulty, is_grey))
    return tuple(_draw_look(rng, colour, difficulty) for colour in colours)


def _draw_colour(
    rng: Generator, others: list[NDArray[np.float64]], difficulty: float, is_grey: bool
) -> NDArray[np.float64]:
    """Of several colours the one that is farthest from the others; of fewer, the harder the world is."""
    tries = 1 + round(9 * (1 - difficulty))
    grey = rng.normal(122, 62 - 28 * difficulty, (tries, 1))
    tone = rng.normal(0, 30 - 14 * difficulty, (tries, 3)) * (not is_grey)
    colours = np.clip(grey + tone, 16, 230)
    nearest = np.min([np.linalg.norm(colours - other, axis=1) for other in others] or [np.zeros(tries)], axis=0)
    chosen: NDArray[np.float64] = colours[int(nearest.argmax())]
    return chosen


def _draw_look(rng: Generator, colour: NDArray[np.float64], difficulty: float) -> Look:
    return Look(
        colour=_triple(np.clip(colour, 10, 245)),
        spread=float(rng.uniform(1, 6 + 20 * difficulty)),
        texture=list(TEXTURES)[rng.choice(len(TEXTURES), p=list(TEXTURES.values()))],
        strength=float(rng.uniform(4, 14 + 10 * difficulty)),
        period=_log_uniform(rng, 3.0, 11.0),
        grain=int(rng.integers(3)),
        angle=float(rng.uniform(0, np.pi)),
    )


def _draw_places(rng: Generator, classes: int) -> tuple[Place, ...]:
    """One to five places; the last are rare. ``variety`` says how unlike each other they are."""
    variety = float(rng.random())
    shares = 0.6 ** np.arange(rng.integers(1, 6))
    return tuple(
        Place(
            share=float(share),
            light=float(np.exp(rng.normal(0, 0.28 * variety))),
            tint=_triple(np.exp(rng.normal(0, 0.09 * variety, 3))),
            shifts=tuple(_triple(shift) for shift in rng.normal(0, 14 * variety, (classes + 1, 3))),
            frequencies=_floats(np.exp(rng.normal(0, 1.0 * variety, classes))),
        )
        for share in shares / shares.sum()
    )
