"""How things lie in the images of a world: streets, blobs, tiles, curves, areas, and things on a ground."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ralseg.data.readers import IGNORE
from ralseg.data.sketch import Points, Sketch
from ralseg.data.synthetic import FloatImage, smooth_noise
from ralseg.data.world import Generator, Place, World

_MOST_OBJECTS = 140  # in an image; more would take longer to draw than they add
_CORNERS = 14  # of a blob


class View:
    """One image to be drawn: a world seen at one of its places.

    Args:
        world: The world.
        place: Where in it.
        featured: A class that the image shows whatever else it does, so that no class is missing in all images.
        height: In pixels.
        width: In pixels.
        rng: What is drawn follows from it.
    """

    def __init__(self, world: World, place: Place, featured: int, height: int, width: int, rng: Generator) -> None:
        self.world, self.height, self.width, self.rng, self.featured = world, height, width, rng, featured
        shares = np.array(world.shares) * np.array(place.frequencies)
        self.shares: NDArray[np.float64] = shares / shares.sum()
        self.unit = min(height, width) / 128
        self._is_featured = False

    def pick(self, classes: Sequence[int]) -> int:
        """One of some classes by their shares; the first time the featured one, if it is among them."""
        if self.featured in classes and not self._is_featured:
            self._is_featured = True
            return self.featured
        shares = self.shares[list(classes)]
        return classes[int(self.rng.choice(len(classes), p=shares / shares.sum()))]

    def size(self, kind: int) -> float:
        """Radius of an object of a class, in pixels."""
        usual = max(self.world.scale * self.world.sizes[kind], 3.5)
        return usual * self.unit * float(np.exp(self.rng.normal(0, 0.25)))

    def point(self) -> tuple[float, float]:
        """Somewhere in the image: (x, y)."""
        return float(self.rng.uniform(0, self.width)), float(self.rng.uniform(0, self.height))

    def noise(self, cell: float) -> FloatImage:
        """Smooth noise with some detail, of cells in pixels of an image that is 128 high: [height, width]."""
        coarse = smooth_noise(self.rng, self.height, self.width, cell * self.unit)
        return coarse + 0.35 * smooth_noise(self.rng, self.height, self.width, max(cell * self.unit / 4, 1.5))


def draw(view: View) -> Sketch:
    """Draw an image in the way of its world, with void where there is some, and with the featured class."""
    sketch = LAYOUTS[view.world.kind](view)
    _void(view, sketch)
    sketch = _roughened(view, sketch)
    if view.featured not in sketch.mask():
        kind = view.featured
        _blob(view, sketch, kind, *view.point(), max(view.size(kind), 3.0))
    return sketch


def _void(view: View, sketch: Sketch) -> None:
    """Some blobs of no class, small and large."""
    mean, rng = 5 * view.unit, view.rng
    for _ in range(rng.poisson(0.7 * view.world.void * view.height * view.width / (np.pi * mean**2))):
        _blob(view, sketch, IGNORE, *view.point(), mean * float(np.exp(rng.normal(0, 0.4))))


def _roughened(view: View, sketch: Sketch) -> Sketch:
    """The sketch with edges as rough as the world's."""
    if view.world.rough == 0:
        return sketch
    cell, reach = 5 * view.unit, view.world.rough * view.unit
    right, down = (reach * smooth_noise(view.rng, view.height, view.width, cell) for _ in range(2))
    return sketch.bent(right, down)


def _background(classes: int, most: int) -> tuple[list[int], list[int]]:
    """The classes of surfaces, at most so many, and those of objects, at least one."""
    surfaces = max(1, min(most, classes // 2))
    return list(range(surfaces)), list(range(surfaces, classes))


# -- shapes ------------------------------------------------------------------------------------------


def _blob_corners(rng: Generator, x: float, y: float, rx: float, ry: float) -> Points:
    """Corners of a roundish thing, turned at random."""
    angles = np.arange(_CORNERS) * (2 * np.pi / _CORNERS)
    wobble = 1 + 0.16 * np.sin(2 * angles + rng.uniform(0, 6.3)) + 0.1 * np.sin(3 * angles + rng.uniform(0, 6.3))
    turn = rng.uniform(0, np.pi)
    u, v = rx * wobble * np.cos(angles), ry * wobble * np.sin(angles)
    xs, ys = x + u * np.cos(turn) - v * np.sin(turn), y + u * np.sin(turn) + v * np.cos(turn)
    return list(zip(xs.tolist(), ys.tolist(), strict=True))


def _blob(view: View, sketch: Sketch, kind: int, x: float, y: float, radius: float) -> None:
    """A roundish thing."""
    stretch = float(np.exp(view.rng.normal(0, 0.2)))
    sketch.polygon(kind, _blob_corners(view.rng, x, y, radius * stretch, radius / stretch))


def _rectangle(view: View, sketch: Sketch, kind: int, x: float, y: float, w: float, h: float, turn: float) -> None:
    """A rectangle around its centre, turned."""
    cos, sin = float(np.cos(turn)), float(np.sin(turn))
    corners = [(-w, -h), (w, -h), (w, h), (-w, h)]
    sketch.polygon(kind, [(x + u * cos - v * sin, y + u * sin + v * cos) for u, v in corners])


def _standing(view: View, sketch: Sketch, kind: int, x: float, y: float, size: float) -> None:
    """A thing of the class's shape whose foot is at (x, y). Parts of other colours are of its class too."""
    shape, s = view.world.shapes[kind], size
    if shape == "box":
        sketch.box(kind, x - s, y - 1.6 * s, 2 * s, 1.6 * s)
        sketch.box(kind, x - 0.5 * s, y - 1.2 * s, s, 0.5 * s)
    elif shape == "ellipse":
        sketch.ellipse(kind, x, y - s, s, s)
    elif shape == "pole":
        sketch.box(kind, x - 0.14 * s, y - 3.4 * s, 0.28 * s, 3.4 * s)
    elif shape == "tree":
        sketch.box(kind, x - 0.14 * s, y - 1.5 * s, 0.28 * s, 1.5 * s)
        sketch.polygon(kind, _blob_corners(view.rng, x, y - 2.1 * s, 1.1 * s, s))
    elif shape == "cabin":
        sketch.box(kind, x - 1.5 * s, y - s, 3 * s, 0.85 * s)
        sketch.polygon(kind, [(x - s, y - s), (x - 0.6 * s, y - 1.6 * s), (x + 0.6 * s, y - 1.6 * s), (x + s, y - s)])
        sketch.ellipse(kind, x - 0.9 * s, y - 0.2 * s, 0.3 * s, 0.3 * s)
        sketch.ellipse(kind, x + 0.9 * s, y - 0.2 * s, 0.3 * s, 0.3 * s)
    elif shape == "wedge":
        sketch.polygon(kind, [(x - s, y), (x + s, y), (x, y - 2.2 * s)])
    else:
        _blob(view, sketch, kind, x, y - s, s)


# -- streets -----------------------------------------------------------------------------------------


def street(view: View) -> Sketch:
    """Bands from the sky down to what is near, with things standing on them, the near ones larger."""
    rng, height, width = view.rng, view.height, view.width
    surfaces = list(range(max(2, min(6, round(0.45 * view.world.classes)))))
    things = list(range(len(surfaces), view.world.classes))
    horizon = height * rng.uniform(0.3, 0.5)
    sketch = Sketch.filled(height, width, surfaces[0])
    _bands(view, sketch, surfaces, horizon)
    depths = np.sort(rng.uniform(0.04, 1.0, 3 + rng.poisson(5 + 16 * view.world.density)))
    for depth in depths.tolist():
        kind = view.pick(things)
        y = horizon + (height - horizon) * depth
        _standing(view, sketch, kind, float(rng.uniform(0, width)), y, view.size(kind) * (0.2 + 1.1 * depth))
    return sketch


def _bands(view: View, sketch: Sketch, surfaces: list[int], horizon: float) -> None:
    """A skyline, then the ground in bands that widen towards the front, then a way into the distance."""
    rng, height, width = view.rng, view.height, view.width
    ground = surfaces[2:] or surfaces[1:]
    if len(surfaces) > 2:
        _skyline(view, sketch, surfaces[1], horizon)
    tops = horizon + (height - horizon) * (np.arange(len(ground)) / len(ground)) ** 1.5
    waves = rng.uniform(0, 0.05) * height
    for kind, top in zip(ground, tops.tolist(), strict=True):
        xs = np.linspace(0, width, 7)
        edge = top + (rng.normal(0, waves, 7) if top > horizon else np.zeros(7))
        sketch.polygon(kind, [*zip(xs.tolist(), edge.tolist(), strict=True), (width, height), (0, height)])
    if len(ground) > 1 and view.world.style < 0.7:
        middle, left, right = (
            width * rng.uniform(0.3, 0.7),
            width * rng.uniform(-0.2, 0.3),
            width * rng.uniform(0.7, 1.2),
        )
        sketch.polygon(ground[-1], [(middle - 1, horizon), (middle + 1, horizon), (right, height), (left, height)])


def _skyline(view: View, sketch: Sketch, kind: int, horizon: float) -> None:
    """A row of houses, or of hills, up from the horizon."""
    rng, x = view.rng, -5.0
    while x < view.width:
        w, h = rng.uniform(0.08, 0.3) * view.width, rng.uniform(0.1, 0.9) * horizon
        if view.world.style < 0.5:
            sketch.box(kind, x, horizon - h, w, h + 1)
        else:
            sketch.polygon(kind, [(x - w, horizon + 1), (x + w / 2, horizon - 0.7 * h), (x + 2 * w, horizon + 1)])
        x += w * rng.uniform(0.8, 1.3)


# -- blobs -------------------------------------------------------------------------------------------


def blobs(view: View) -> Sketch:
    """Roundish cells on a background, alone or touching each other."""
    rng, world = view.rng, view.world
    surfaces, cells = _background(world.classes, 2 if world.style < 0.5 else 1)
    sketch = _surfaces(view, surfaces)
    radius = world.scale * view.unit
    coverage = (0.06 + 0.4 * world.density) * rng.uniform(0.6, 1.4)
    number = int(min(_MOST_OBJECTS, max(2, coverage * view.height * view.width / (np.pi * radius**2))))
    centres = np.array([view.point() for _ in range(number)])
    if world.clumped:
        centres = centres[rng.integers(0, max(1, number // 6), number)] + rng.normal(0, 1.9 * radius, (number, 2))
    for x, y in centres.tolist():
        kind = view.pick(cells)
        _blob(view, sketch, kind, x, y, view.size(kind))
    return sketch


# -- tiles -------------------------------------------------------------------------------------------


def tiles(view: View) -> Sketch:
    """Fields seen from above, with roads and buildings where there are classes for them."""
    rng, classes = view.rng, view.world.classes
    roofs = [classes - 1] if classes < 8 else [classes - 1, classes - 2]
    roads = [classes - len(roofs) - 1] if classes > 2 else []
    fields = list(range(classes - len(roofs) - len(roads)))
    numbers = _parcels(view) if view.world.style < 0.5 else _voronoi(view)
    sketch = Sketch(numbers, [view.pick(fields) for _ in range(int(numbers.max()) + 1)])
    for kind in roads * int(rng.integers(1, 4)):
        points = [_at_edge(view), view.point(), _at_edge(view)]
        sketch.line(kind, [points[0], points[2]] if rng.random() < 0.6 else points, rng.uniform(2, 6) * view.unit)
    turn = rng.uniform(0, np.pi)
    for _ in range(1 + rng.poisson(2 + 16 * view.world.density)):
        kind = view.pick(roofs)
        w, h = view.size(kind) * rng.uniform(0.35, 0.9, 2)
        _rectangle(view, sketch, kind, *view.point(), float(w), float(h), turn + rng.integers(2) * np.pi / 2)
    return sketch


def _at_edge(view: View) -> tuple[float, float]:
    """A point on the left or upper edge, or on those opposite."""
    x, y = view.point()
    side = view.rng.integers(4)
    return ((-5.0, y), (view.width + 5.0, y), (x, -5.0), (x, view.height + 5.0))[side]


def _coordinates(view: View) -> tuple[FloatImage, FloatImage]:
    """The x and the y of each pixel: [height, width] each."""
    ys, xs = np.mgrid[: view.height, : view.width].astype(np.float32)
    return xs, ys


def _parcels(view: View) -> NDArray[np.int32]:
    """A turned grid of uneven rows and columns, numbered: [height, width]."""
    rng, (xs, ys) = view.rng, _coordinates(view)
    turn, reach = rng.uniform(0, np.pi), float(view.height + view.width)
    numbers = np.zeros((view.height, view.width), np.int32)
    for u in (xs * np.cos(turn) + ys * np.sin(turn), ys * np.cos(turn) - xs * np.sin(turn)):
        steps = 3 * view.world.scale * view.unit * rng.uniform(0.5, 1.8, 400)
        cuts = -reach + np.cumsum(steps)
        lines = np.searchsorted(cuts[cuts < reach], u).astype(np.int32)
        numbers = numbers * (int(lines.max()) + 1) + lines
    _, compact = np.unique(numbers, return_inverse=True)
    return compact.reshape(numbers.shape).astype(np.int32)


def _voronoi(view: View) -> NDArray[np.int32]:
    """The nearest of some points to each pixel: [height, width]."""
    area = view.height * view.width
    number = int(np.clip(area / (3.2 * view.world.scale * view.unit) ** 2, 4, 60))
    sites = np.array([view.point() for _ in range(number)], np.float32)
    xs, ys = _coordinates(view)
    places = np.stack([xs.ravel(), ys.ravel()], 1)
    nearest: NDArray[np.int64] = ((sites**2).sum(1) - 2 * places @ sites.T).argmin(1)
    return nearest.reshape(view.height, view.width).astype(np.int32)


# -- curves ------------------------------------------------------------------------------------------


def curves(view: View) -> Sketch:
    """Cracks, wires or vessels on a surface: one to three of a hundred pixels."""
    surfaces, lines = _background(view.world.classes, 2)
    sketch = _surfaces(view, surfaces)
    width = max(1.0, (1 + 1.6 * view.world.style) * view.unit)
    length = (0.02 + 0.02 * view.world.density) * view.rng.uniform(0.6, 1.4) * view.height * view.width / width
    while length > 0:
        points = _walk(view, min(length, float(view.rng.uniform(0.4, 1.2)) * view.width))
        sketch.line(view.pick(lines), points, width)
        length -= 0.4 * view.width
    return sketch


def _walk(view: View, length: float) -> Points:
    """A line of so many pixels that wanders; how much is up to the world."""
    step = 3 * view.unit
    number = max(3, int(length / step))
    bends = view.rng.normal(0, 0.08 if view.world.clumped else 0.4, number)
    angles = view.rng.uniform(0, 2 * np.pi) + np.cumsum(bends)
    x, y = view.point()
    xs, ys = x + step * np.cumsum(np.cos(angles)), y + step * np.cumsum(np.sin(angles))
    return list(zip(xs.tolist(), ys.tolist(), strict=True))


# -- areas -------------------------------------------------------------------------------------------


def areas(view: View) -> Sketch:
    """Land cover, rocks, tissue: regions that follow smooth noise, beside each other or one inside the other."""
    return _surfaces(view, list(range(view.world.classes)))


def _surfaces(view: View, classes: list[int]) -> Sketch:
    """The whole image cut into areas of some classes, each in up to three shades."""
    cell = 3.5 * view.world.scale
    kinds = _nested(view, classes, cell) if view.world.style < 0.5 else _beside(view, classes, cell)
    shades = (view.noise(40) > 0.4).astype(np.int32) if view.world.clumped else np.zeros_like(kinds)
    return Sketch(2 * kinds + shades, [kind for kind in classes for _ in range(2)])


def _nested(view: View, classes: list[int], cell: float) -> NDArray[np.int32]:
    """Positions in ``classes`` by the height of a landscape, so that neighbours are the same everywhere: [h, w]."""
    if len(classes) == 1:
        return np.zeros((view.height, view.width), np.int32)
    land = view.noise(cell)
    shares = view.shares[classes] * np.exp(view.rng.normal(0, 0.3, len(classes)))
    cuts = np.quantile(land, np.cumsum(shares / shares.sum())[:-1])
    return np.searchsorted(cuts, land).astype(np.int32)


def _beside(view: View, classes: list[int], cell: float) -> NDArray[np.int32]:
    """Positions in ``classes``: each pixel goes to the class whose own landscape is highest: [h, w]."""
    shares = view.shares[classes]
    lands = [view.noise(cell) + 0.8 * float(np.log(share)) for share in shares]
    highest: NDArray[np.int64] = np.argmax(np.stack(lands), 0)
    return highest.astype(np.int32)


# -- things ------------------------------------------------------------------------------------------


def things(view: View) -> Sketch:
    """Objects of several classes scattered on a ground."""
    surfaces, kinds = _background(view.world.classes, 3)
    sketch = _surfaces(view, surfaces)
    for _ in range(1 + view.rng.poisson(2 + 14 * view.world.density)):
        kind = view.pick(kinds)
        x, y = view.point()
        size = 1.3 * view.size(kind)
        if view.world.style < 0.5:
            _standing(view, sketch, kind, x, y + size, size)
        else:
            _lying(view, sketch, kind, x, y, size)
    return sketch


def _lying(view: View, sketch: Sketch, kind: int, x: float, y: float, size: float) -> None:
    """A thing seen from above, turned at random: long, square or round, by the class's shape."""
    turn, shape = view.rng.uniform(0, np.pi), view.world.shapes[kind]
    if shape in ("pole", "cabin"):
        _rectangle(view, sketch, kind, x, y, 1.7 * size, 0.35 * size, turn)
    elif shape in ("box", "wedge"):
        _rectangle(view, sketch, kind, x, y, size, 0.8 * size, turn)
    else:
        _blob(view, sketch, kind, x, y, size)


LAYOUTS: dict[str, Callable[[View], Sketch]] = {
    "street": street,
    "blobs": blobs,
    "tiles": tiles,
    "curves": curves,
    "areas": areas,
    "things": things,
}
"""How each kind of world is drawn."""
