"""How a world looks: a sketch becomes a picture with textures, light, shadows, blur and sensor noise."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from ralseg.data.readers import IGNORE
from ralseg.data.sketch import Sketch
from ralseg.data.synthetic import FloatImage, smooth_noise
from ralseg.data.world import Generator, Place, World

_GRAINS = (1.5, 4.0, 10.0)  # cells of the three noises, in pixels of an image that is 128 high
_EXPOSURE = (45.0, 170.0)  # a camera's: means in between are left as they are


def photograph(sketch: Sketch, world: World, place: Place, rng: Generator) -> NDArray[np.uint8]:
    """The picture of a sketch, taken at a place of its world: [height, width, 3]."""
    height, width = sketch.height, sketch.width
    unit = min(height, width) / 128
    flat = _object_colours(sketch, world, place, rng)[sketch.objects()]
    flat += _texture(_looks_of(sketch, world)[sketch.objects()], world, unit, rng)[..., None]
    picture = Image.fromarray(np.clip(flat, 0, 255).astype(np.uint8))
    pixels = np.asarray(picture.filter(ImageFilter.GaussianBlur(world.blur * unit))).astype(np.float32)
    pixels += _drift(height, width, world.drift, rng)
    light = place.light * rng.uniform(0.88, 1.12) * (1 + 0.1 * smooth_noise(rng, height, width, max(height, width) / 2))
    if rng.random() < world.shadows:
        light = light * np.where(smooth_noise(rng, height, width, 40 * unit) > 0.7, 0.68, 1.0)
    pixels *= light[..., None] * np.array(place.tint, np.float32)
    pixels *= np.clip(pixels.mean(), *_EXPOSURE) / pixels.mean()
    if world.is_grey:
        pixels[:] = pixels.mean(-1, keepdims=True)
    noise = rng.standard_normal((height, width, 1 if world.is_grey else 3), np.float32)
    return np.clip(pixels + world.noise * noise, 0, 255).astype(np.uint8)


def _looks_of(sketch: Sketch, world: World) -> NDArray[np.int64]:
    """Position in ``world.looks`` of each object; void's look is the last: [objects]."""
    classes = np.array(sketch.classes)
    return np.where(classes == IGNORE, world.classes, classes)


def _object_colours(sketch: Sketch, world: World, place: Place, rng: Generator) -> FloatImage:
    """The colour of each object: its class's here, and its own deviation from that: [objects, 3]."""
    looks = _looks_of(sketch, world)
    colours = np.array([look.colour for look in world.looks]) + np.array(place.shifts)
    spread = np.array([look.spread for look in world.looks])[looks, None]
    number = len(looks)
    own = spread * (rng.normal(0, 1, (number, 1)) + rng.normal(0, 0.45, (number, 3)))
    result: FloatImage = (colours[looks] + own).astype(np.float32)
    return result


def _texture(looks: NDArray[np.int64], world: World, unit: float, rng: Generator) -> FloatImage:
    """What is added to the flat colours, in grey levels.

    Args:
        looks: Position in ``world.looks`` of each pixel: [height, width].
        world: The world.
        unit: Pixels of the image in one of an image that is 128 high.
        rng: The texture follows from it.
    """
    height, width = looks.shape
    ys, xs = np.mgrid[:height, :width].astype(np.float32)
    angle = np.array([look.angle for look in world.looks])
    pace = np.array([2 * np.pi / (look.period * unit) for look in world.looks])
    cos, sin = (pace * np.cos(angle)).astype(np.float32)[looks], (pace * np.sin(angle)).astype(np.float32)[looks]
    start = rng.uniform(0, 2 * np.pi, 2).astype(np.float32)
    stripes = np.sin(xs * cos + ys * sin + start[0])
    dots = np.where(stripes * np.sin(ys * cos - xs * sin + start[1]) > 0.3, 1.6, -0.4)
    noises = np.stack([smooth_noise(rng, height, width, cell * unit) for cell in _GRAINS])
    grains = np.array([look.grain for look in world.looks])[looks]
    noise = np.take_along_axis(noises, grains[None], 0)[0]
    weights = {
        name: np.array([look.strength * (look.texture == name) for look in world.looks], np.float32)[looks]
        for name in ("noise", "stripes", "dots")
    }
    patterns = weights["stripes"] * stripes + weights["dots"] * dots
    texture: FloatImage = patterns + weights["noise"] * 1.2 * noise + 2.0 * noises[0]
    return texture


def _drift(height: int, width: int, strength: float, rng: Generator) -> FloatImage:
    """Colour that varies slowly over the image and means nothing: [height, width, 3]."""
    cell = max(height, width) / 4
    return strength * np.stack([smooth_noise(rng, height, width, cell) for _ in range(3)], -1) * 0.6
