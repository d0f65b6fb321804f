"""Synthetic street scenes: any number of labelled images of any size from a seed, and no files.

They stand in for CamVid where no data can be had: the same 11 classes, a similar imbalance, objects
that hide each other, and colours that alone do not tell road from pavement or a pole from a wall.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from ralseg.data import camvid, readers
from ralseg.data.base import Colour, SegmentationDataset
from ralseg.errors import ConfigError

Generator = np.random.Generator
FloatImage = NDArray[np.float32]
Points = list[tuple[float, float]]

CLASS_IDS = {name: index for index, name in enumerate(camvid.CLASSES)}


@dataclass(frozen=True)
class Domain:
    """How a world looks; two of them share their geometry and differ in appearance."""

    materials: dict[str, Colour]
    colour_jitter: float  # spread of an object's own colour
    light: tuple[float, float]  # range of the scene's brightness
    texture: float  # strength of surface noise
    sensor_noise: float
    blur: tuple[float, float]  # range of the blur radius in pixels


CAMERA = Domain(
    materials={
        "sky": (178, 192, 205),
        "building": (126, 112, 102),
        "pole": (92, 90, 90),
        "road": (98, 96, 98),
        "pavement": (124, 118, 114),
        "tree": (72, 84, 58),
        "sign": (150, 110, 100),
        "fence": (104, 98, 92),
        "car": (104, 106, 116),
        "pedestrian": (92, 78, 80),
        "bicyclist": (96, 90, 74),
        "void": (88, 92, 86),
    },
    colour_jitter=26.0,
    light=(0.55, 1.25),
    texture=16.0,
    sensor_noise=7.0,
    blur=(0.3, 1.0),
)
GAME = Domain(
    materials={
        "sky": (120, 170, 235),
        "building": (176, 140, 108),
        "pole": (70, 72, 84),
        "road": (78, 80, 92),
        "pavement": (158, 150, 140),
        "tree": (58, 118, 44),
        "sign": (196, 66, 60),
        "fence": (136, 120, 92),
        "car": (122, 60, 64),
        "pedestrian": (130, 84, 70),
        "bicyclist": (70, 110, 130),
        "void": (60, 70, 80),
    },
    colour_jitter=18.0,
    light=(0.85, 1.2),
    texture=8.0,
    sensor_noise=2.0,
    blur=(0.0, 0.4),
)
DOMAINS = {"camera": CAMERA, "game": GAME}


class Canvas:
    """Two pictures drawn with the same strokes: the colours that are seen, and the classes."""

    def __init__(self, height: int, width: int, domain: Domain, rng: Generator) -> None:
        self.height, self.width, self.domain, self.rng = height, width, domain, rng
        self._colours = Image.new("RGB", (width, height))
        self._classes = Image.new("L", (width, height))
        self._paint = ImageDraw.Draw(self._colours)
        self._label = ImageDraw.Draw(self._classes)

    def colour_of(self, material: str, jitter: float = 1.0) -> Colour:
        """The material's colour with an object's own deviation."""
        base = np.array(self.domain.materials[material], dtype=np.float64)
        shade = self.rng.normal(0, self.domain.colour_jitter * jitter, 3) * 0.45
        tone = self.rng.normal(0, self.domain.colour_jitter * jitter)
        red, green, blue = np.clip(base + shade + tone, 0, 255).astype(int)
        return int(red), int(green), int(blue)

    def polygon(self, material: str, points: Points, colour: Colour | None = None) -> None:
        """Fill a polygon."""
        self._paint.polygon(points, fill=colour or self.colour_of(material))
        self._label.polygon(points, fill=CLASS_IDS.get(material, readers.IGNORE))

    def box(self, material: str, x: float, y: float, w: float, h: float, colour: Colour | None = None) -> None:
        """Fill a rectangle given by its left, top, width and height."""
        self.polygon(material, [(x, y), (x + w, y), (x + w, y + h), (x, y + h)], colour)

    def ellipse(self, material: str, x: float, y: float, rx: float, ry: float, colour: Colour | None = None) -> None:
        """Fill an ellipse given by its centre and radii."""
        bounds = (x - rx, y - ry, x + rx, y + ry)
        self._paint.ellipse(bounds, fill=colour or self.colour_of(material))
        self._label.ellipse(bounds, fill=CLASS_IDS.get(material, readers.IGNORE))

    def pictures(self) -> tuple[Image.Image, NDArray[np.uint8]]:
        """What was drawn: colours, and classes [height, width]."""
        return self._colours, np.asarray(self._classes)


def smooth_noise(rng: Generator, height: int, width: int, cell: float) -> FloatImage:
    """Noise of about unit deviation whose blobs are ``cell`` pixels wide: [height, width]."""
    rows, columns = max(2, round(height / cell)), max(2, round(width / cell))
    coarse = Image.fromarray(rng.normal(0, 1, (rows, columns)).astype(np.float32))
    return np.asarray(coarse.resize((width, height), Image.Resampling.BILINEAR))


class Street:
    """One scene: geometry drawn from far to near onto a :class:`Canvas`."""

    def __init__(self, canvas: Canvas) -> None:
        self.canvas, self.rng = canvas, canvas.rng
        height, width = canvas.height, canvas.width
        self.horizon = height * self.rng.uniform(0.36, 0.48)
        self.vanishing = width * self.rng.uniform(0.35, 0.65)
        self.road_left = -width * self.rng.uniform(0.0, 0.35)
        self.road_right = width * (1 + self.rng.uniform(0.0, 0.35))
        self.pavement = self.rng.uniform(0.25, 0.5)  # width, as a share of half the road's

    def ground(self, depth: float) -> tuple[float, float, float]:
        """At ``depth`` 0 (far) to 1 (near): the ground's y, and the road's left and right edge."""
        y = self.horizon + (self.canvas.height - self.horizon) * depth
        left = self.vanishing + (self.road_left - self.vanishing) * depth
        right = self.vanishing + (self.road_right - self.vanishing) * depth
        return y, left, right

    def kerb(self, side: int, depth: float, offset: float) -> tuple[float, float]:
        """A point beside the road: ``offset`` 0 is the kerb, 1 the building line; ``side`` -1 or 1."""
        y, left, right = self.ground(depth)
        edge = left if side < 0 else right
        return edge + side * offset * self.pavement * (right - left) / 2, y

    def draw(self) -> None:
        """Draw everything, far to near."""
        self.sky_and_ground()
        for side in (-1, 1):
            self.buildings(side)
        objects = [self.tree] * int(self.rng.integers(3, 8)) + [self.car] * int(self.rng.integers(1, 5))
        objects += [self.pole] * int(self.rng.integers(2, 6)) + [self.bin] * int(self.rng.integers(1, 4))
        objects += [self.fence] * int(self.rng.integers(0, 3))
        objects += [self.pedestrian] * int(self.rng.poisson(1.6))
        objects += [self.bicyclist] * int(self.rng.poisson(0.5))
        depths = self.rng.uniform(0.06, 0.85, len(objects))
        for index in np.argsort(depths):
            objects[index](float(depths[index]))

    def sky_and_ground(self) -> None:
        """Sky above the horizon; pavement with the road upon it below."""
        canvas = self.canvas
        canvas.box("sky", 0, 0, canvas.width, self.horizon + 1)
        canvas.box("pavement", 0, self.horizon, canvas.width, canvas.height)
        road = canvas.colour_of("road")
        corners = [(self.vanishing - 1, self.horizon), (self.vanishing + 1, self.horizon)]
        corners += [(self.road_right, canvas.height), (self.road_left, canvas.height)]
        canvas.polygon("road", corners, road)
        bright = (min(road[0] + 70, 255), min(road[1] + 70, 255), min(road[2] + 62, 255))
        for depth in np.arange(0.08, 1.0, 0.14):
            (y0, l0, r0), (y1, l1, r1) = self.ground(depth), self.ground(depth + 0.05)
            m0, m1, w0, w1 = (l0 + r0) / 2, (l1 + r1) / 2, (r0 - l0) * 0.012, (r1 - l1) * 0.012
            canvas.polygon("road", [(m0 - w0, y0), (m0 + w0, y0), (m1 + w1, y1), (m1 - w1, y1)], bright)

    def buildings(self, side: int) -> None:
        """A row of houses along one side; their feet follow the building line."""
        depth = 0.02
        while depth < 1.1:
            end = depth + self.rng.uniform(0.05, 0.4) * (0.3 + depth)
            storeys = self.rng.uniform(0.5, 1.5)
            (x0, y0), (x1, y1) = self.kerb(side, depth, 1.0), self.kerb(side, end, 1.0)
            h0, h1 = (y0 - self.horizon + 4) * storeys * 1.9, (y1 - self.horizon + 4) * storeys * 1.9
            if self.rng.random() > 0.12:
                wall = self.canvas.colour_of("building", 1.3)
                self.canvas.polygon("building", [(x0, y0), (x0, y0 - h0), (x1, y1 - h1), (x1, y1)], wall)
                self.windows(wall, (x0, y0, h0), (x1, y1, h1))
            depth = end

    def windows(self, wall: Colour, near: tuple[float, float, float], far: tuple[float, float, float]) -> None:
        """Rows of darker panes; they count as building."""
        dark = (int(wall[0] * 0.7), int(wall[1] * 0.7), int(wall[2] * 0.75))
        (x0, y0, h0), (x1, y1, h1) = near, far
        columns, rows = int(self.rng.integers(2, 5)), int(self.rng.integers(2, 4))
        for column in range(columns):
            a, b = (column + 0.3) / columns, (column + 0.7) / columns
            (xa, ya, ha), (xb, yb, hb) = ((x0 + (x1 - x0) * t, y0 + (y1 - y0) * t, h0 + (h1 - h0) * t) for t in (a, b))
            for row in range(rows):
                low, high = (row + 0.35) / rows, (row + 0.75) / rows
                pane = [(xa, ya - ha * low), (xa, ya - ha * high), (xb, yb - hb * high), (xb, yb - hb * low)]
                self.canvas.polygon("building", pane, dark)

    def metre(self, depth: float) -> float:
        """Pixels a metre at this depth."""
        return (self.canvas.height - self.horizon) * depth * 0.42

    def side(self) -> int:
        """Left or right of the road."""
        return -1 if self.rng.random() < 0.5 else 1

    def tree(self, depth: float) -> None:
        """A trunk and a crown of overlapping blobs."""
        x, y = self.kerb(self.side(), depth, self.rng.uniform(0.6, 1.3))
        m, colour = self.metre(depth), self.canvas.colour_of("tree")
        self.canvas.box("tree", x - 0.12 * m, y - 2.2 * m, 0.24 * m, 2.2 * m)
        for _ in range(5):
            dx, dy = self.rng.normal(0, 0.6, 2) * m
            self.canvas.ellipse("tree", x + dx, y - 2.9 * m + dy * 0.7, 0.85 * m, 0.75 * m, colour)

    def car(self, depth: float) -> None:
        """A body with a cabin, dark wheels and windows: all of them car."""
        y, left, right = self.ground(depth)
        x = left + (right - left) * self.rng.choice([0.16, 0.28, 0.72, 0.84])
        m, colour = self.metre(depth) * 0.8, self.canvas.colour_of("car", 1.9)
        self.canvas.box("car", x - 0.95 * m, y - 1.0 * m, 1.9 * m, 0.8 * m, colour)
        cabin = [(x - 0.75 * m, y - 1.0 * m), (x - 0.55 * m, y - 1.55 * m)]
        cabin += [(x + 0.55 * m, y - 1.55 * m), (x + 0.75 * m, y - 1.0 * m)]
        self.canvas.polygon("car", cabin, (58, 64, 72))
        for wheel in (-0.65, 0.65):
            self.canvas.ellipse("car", x + wheel * m, y - 0.2 * m, 0.26 * m, 0.26 * m, (34, 34, 36))

    def pole(self, depth: float) -> None:
        """A lamp post; half of them carry a sign."""
        x, y = self.kerb(self.side(), depth, self.rng.uniform(0.05, 0.5))
        m = self.metre(depth)
        tall = self.rng.uniform(2.6, 4.6) * m
        self.canvas.box("pole", x - 0.07 * m, y - tall, max(0.14 * m, 1.0), tall)
        if self.rng.random() < 0.5:
            size = self.rng.uniform(0.35, 0.6) * m
            if self.rng.random() < 0.5:
                self.canvas.box("sign", x - size, y - tall, 2 * size, 2 * size)
            else:
                self.canvas.ellipse("sign", x, y - tall + size, size, size)

    def fence(self, depth: float) -> None:
        """A stretch of railing along the kerb, with darker bars."""
        side, end = self.side(), min(depth + self.rng.uniform(0.15, 0.4), 1.0)
        (x0, y0), (x1, y1) = self.kerb(side, depth, 0.6), self.kerb(side, end, 0.6)
        h0, h1 = 1.1 * self.metre(depth), 1.1 * self.metre(end)
        colour = self.canvas.colour_of("fence")
        self.canvas.polygon("fence", [(x0, y0), (x0, y0 - h0), (x1, y1 - h1), (x1, y1)], colour)
        dark = (colour[0] * 2 // 3, colour[1] * 2 // 3, colour[2] * 2 // 3)
        for t in np.linspace(0.05, 0.95, 9):
            x, y, h = x0 + (x1 - x0) * t, y0 + (y1 - y0) * t, h0 + (h1 - h0) * t
            self.canvas.box("fence", x, y - h * 0.9, max(0.12 * h, 1), h * 0.8, dark)

    def pedestrian(self, depth: float) -> None:
        """Legs, torso and head on the pavement."""
        x, y = self.kerb(self.side(), depth, self.rng.uniform(0.15, 0.9))
        m = self.metre(depth)
        legs, torso = self.canvas.colour_of("pedestrian", 1.5), self.canvas.colour_of("pedestrian", 1.8)
        self.canvas.box("pedestrian", x - 0.2 * m, y - 0.9 * m, 0.4 * m, 0.9 * m, legs)
        self.canvas.box("pedestrian", x - 0.3 * m, y - 1.55 * m, 0.6 * m, 0.75 * m, torso)
        self.canvas.ellipse("pedestrian", x, y - 1.72 * m, 0.18 * m, 0.2 * m, (150, 116, 98))

    def bicyclist(self, depth: float) -> None:
        """A rider leaning over two wheels, near the kerb."""
        y, left, right = self.ground(depth)
        x = left + (right - left) * self.rng.choice([0.05, 0.1, 0.9, 0.95])
        m = self.metre(depth)
        for wheel in (-0.5, 0.5):
            self.canvas.ellipse("bicyclist", x + wheel * m, y - 0.34 * m, 0.34 * m, 0.34 * m, (46, 46, 50))
        torso = [(x - 0.35 * m, y - 0.8 * m), (x - 0.1 * m, y - 1.5 * m)]
        torso += [(x + 0.35 * m, y - 1.4 * m), (x + 0.15 * m, y - 0.5 * m)]
        self.canvas.polygon("bicyclist", torso, self.canvas.colour_of("bicyclist", 1.8))
        self.canvas.ellipse("bicyclist", x + 0.1 * m, y - 1.66 * m, 0.18 * m, 0.2 * m, (150, 116, 98))

    def bin(self, depth: float) -> None:
        """An object that belongs to no class: void."""
        x, y = self.kerb(self.side(), depth, self.rng.uniform(0.2, 0.8))
        m = self.metre(depth)
        self.canvas.box("void", x - 0.3 * m, y - 1.0 * m, 0.6 * m, 1.0 * m)


def photograph(canvas: Canvas) -> NDArray[np.uint8]:
    """Turn flat colours into a picture: surface texture, light, shadows, blur and sensor noise."""
    rng, domain = canvas.rng, canvas.domain
    height, width = canvas.height, canvas.width
    picture, classes = canvas.pictures()
    blurred = picture.filter(ImageFilter.GaussianBlur(rng.uniform(*domain.blur)))
    pixels = np.asarray(blurred).astype(np.float32)
    fine, middle = smooth_noise(rng, height, width, 2.5), smooth_noise(rng, height, width, 9)
    leaves = smooth_noise(rng, height, width, 4) * (classes == CLASS_IDS["tree"]) * 1.3
    surface = np.where(classes == CLASS_IDS["sky"], 0.3, 1.0).astype(np.float32)
    pixels += (domain.texture * (surface * (0.6 * fine + 0.5 * middle) + leaves))[..., None]
    light = rng.uniform(*domain.light) * (1 + 0.12 * smooth_noise(rng, height, width, max(height, width) / 2))
    if rng.random() < 0.6:
        shadow = (smooth_noise(rng, height, width, height / 3) > 0.9) & (classes != CLASS_IDS["sky"])
        light = light * np.where(shadow, 0.72, 1.0)
    pixels *= light[..., None] * rng.uniform(0.94, 1.06, 3)
    pixels += rng.normal(0, domain.sensor_noise, pixels.shape)
    return np.clip(pixels, 0, 255).astype(np.uint8)


_SCENES = 1_000_000  # different ones that each subset can have


class SyntheticStreets(SegmentationDataset):
    """Procedural street scenes, each made from (seed, index) alone.

    Args:
        num_train: Images of the subset ``train``, from which state, train and acquisition sets come.
        num_val: Images of the subset ``val``: the reward set.
        num_test: Images of the subset ``test``.
        height: Height of the images in pixels.
        width: Width of the images in pixels.
        domain: ``camera``, or ``game``: the same streets in brighter colours with less noise, a
            stand-in for GTAV as the source of pretraining.
        seed: Another seed gives another city.
    """

    class_names = tuple(camvid.CLASSES)
    colours = tuple(camvid.CLASSES.values())

    def __init__(
        self,
        num_train: int = 200,
        num_val: int = 40,
        num_test: int = 60,
        height: int = 128,
        width: int = 192,
        domain: Literal["camera", "game"] = "camera",
        seed: int = 0,
    ) -> None:
        if min(height, width) < 32:
            raise ConfigError(f"SyntheticStreets needs at least 32x32 pixels, got height={height}, width={width}")
        if height * width > readers.MAX_PIXELS:
            raise ConfigError(f"SyntheticStreets: {height}x{width} pixels are over the limit of {readers.MAX_PIXELS}")
        self.height, self.width, self.domain, self.seed = height, width, domain, seed
        counts = {"train": num_train, "val": num_val, "test": num_test}
        if max(counts.values()) > _SCENES or min(counts.values()) < 0:
            raise ConfigError(f"SyntheticStreets has 0 to {_SCENES} images of each subset, not {counts}")
        self.subsets = [subset for subset, count in counts.items() for _ in range(count)]
        self.names = [f"{subset}_{i:05d}" for subset, count in counts.items() for i in range(count)]
        # an image keeps its content when the number of images of another subset changes
        offsets = {subset: _SCENES * position for position, subset in enumerate(counts)}
        self._scenes = [offsets[subset] + i for subset, count in counts.items() for i in range(count)]
        if not self.names:
            raise ConfigError("SyntheticStreets has no images: num_train, num_val and num_test are all 0")

    def image_size(self, index: int) -> tuple[int, int]:
        """(height, width), the same for all images."""
        return self.height, self.width

    def _render(self, index: int) -> Canvas:
        rng = np.random.default_rng([self.seed, self._scenes[index]])
        canvas = Canvas(self.height, self.width, DOMAINS[self.domain], rng)
        Street(canvas).draw()
        return canvas

    def read_image(self, index: int) -> NDArray[np.uint8]:
        """Draw and photograph the scene."""
        return photograph(self._render(index))

    def read_mask(self, index: int) -> NDArray[np.uint8]:
        """Draw the scene again and keep its classes."""
        return self._render(index).pictures()[1].copy()
