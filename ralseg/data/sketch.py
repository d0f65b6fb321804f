"""A drawing whose pixels know the object that they show: its class and its colour follow from that."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Points = Sequence[tuple[float, float]]


class Sketch:
    """Objects drawn over each other. One stroke serves the mask and the picture, so they cannot disagree.

    Args:
        objects: The object that each pixel shows at first: [height, width].
        classes: The class of each of these objects.

    Examples:
        >>> sketch = Sketch.filled(4, 6, 0)
        >>> sketch.polygon(1, [(0, 0), (5, 0), (5, 1), (0, 1)])
        >>> sketch.mask()[:, 0].tolist()
        [1, 1, 0, 0]
    """

    def __init__(self, objects: NDArray[np.int32], classes: Sequence[int]) -> None:
        self.height, self.width = objects.shape
        self.classes = list(classes)
        self._picture = Image.fromarray(objects)
        self._draw = ImageDraw.Draw(self._picture)

    @classmethod
    def filled(cls, height: int, width: int, kind: int) -> "Sketch":
        """One object of class ``kind`` that fills everything."""
        return cls(np.zeros((height, width), np.int32), [kind])

    def add(self, kind: int) -> int:
        """The number of a new object of class ``kind``, which has no pixels yet."""
        self.classes.append(kind)
        return len(self.classes) - 1

    def polygon(self, kind: int, points: Points) -> None:
        """Draw an object given by its corners (x, y)."""
        self._draw.polygon(list(points), fill=self.add(kind))

    def ellipse(self, kind: int, x: float, y: float, rx: float, ry: float) -> None:
        """Draw an object given by its centre and radii."""
        self._draw.ellipse((x - rx, y - ry, x + rx, y + ry), fill=self.add(kind))

    def box(self, kind: int, x: float, y: float, w: float, h: float) -> None:
        """Draw an object given by its left, top, width and height."""
        self._draw.rectangle((x, y, x + w, y + h), fill=self.add(kind))

    def line(self, kind: int, points: Points, width: float) -> None:
        """Draw an object given by the line through its middle."""
        self._draw.line(list(points), fill=self.add(kind), width=max(1, round(width)), joint="curve")

    def bent(self, right: NDArray[np.float32], down: NDArray[np.float32]) -> "Sketch":
        """The sketch with each pixel taken from elsewhere, so that edges are no longer smooth.

        Args:
            right: How many pixels to the right: [height, width].
            down: How many pixels further down: [height, width].
        """
        ys, xs = np.mgrid[: self.height, : self.width].astype(np.float32)
        rows = np.clip(np.rint(ys + down), 0, self.height - 1).astype(np.int32)
        columns = np.clip(np.rint(xs + right), 0, self.width - 1).astype(np.int32)
        return Sketch(self.objects()[rows, columns], self.classes)

    def objects(self) -> NDArray[np.int32]:
        """The object that each pixel shows: [height, width]."""
        return np.asarray(self._picture)

    def mask(self) -> NDArray[np.uint8]:
        """The class of each pixel: [height, width]."""
        return np.array(self.classes, np.uint8)[self.objects()]
