"""The request: which regions people are asked to label, in a file that every tool reads."""

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, Self, TypeVar, get_args

from ralseg.errors import DataError
from ralseg.labels.vault import IGNORE
from ralseg.runtime.files import write_atomically

FORMAT, FILE = "ralseg.request/2", "request.json"
_NAME = re.compile(r"(?!\.{1,2}(/|$))[^/\\\0:]+(/(?!\.{1,2}(/|$))[^/\\\0:]+)*")  # a file below the request's folder
_FILES = ("crop", "mask", "prediction", "inside")
_SIZES = ("image_width", "image_height", "width", "height")
T = TypeVar("T")


@dataclass(frozen=True)
class ClassColour:
    """A class, and the colour that it is shown in.

    Examples:
        >>> ClassColour(0, "road", "#804080").rgb
        (128, 64, 128)
    """

    number: int
    name: str
    colour: str  # #rrggbb

    def __post_init__(self) -> None:
        if not re.fullmatch("#[0-9a-f]{6}", self.colour):
            raise DataError(f"class {self.name}: colour {self.colour!r} is not of the form #rrggbb, in small letters")
        if not 0 <= self.number < IGNORE:
            raise DataError(f"class {self.name}: number {self.number} is not one of 0 to {IGNORE - 1}")

    @property
    def rgb(self) -> tuple[int, int, int]:
        """Red, green, blue."""
        red, green, blue = bytes.fromhex(self.colour[1:])
        return red, green, blue


@dataclass(frozen=True)
class WantedRegion:
    """A region that somebody should label. Its box is in the pixels of the image's own file.

    Attributes:
        region: Its number in the run.
        image: Name of its image.
        rank: 1 is wanted most.
        score: What the policy thinks of it; None where nobody knows.
        crop: A picture of the box.
        mask: Where its mask is, or is expected.
        prediction: What the model takes it for; None where nobody can say.
        inside: Which pixels of the box belong to the region, as a PNG of 0 and 255; None: all of them.
        reserve: Only wanted once others are skipped.
        blind: Asked a second time, to see whether people agree: show neither prediction nor mask. Never in a file.
    """

    region: int
    image: str
    image_width: int
    image_height: int
    x: int
    y: int
    width: int
    height: int
    rank: int
    score: float | None
    crop: str
    mask: str
    prediction: str | None = None
    inside: str | None = None
    reserve: bool = False
    blind: bool = False

    def __post_init__(self) -> None:
        for key in _FILES:
            name = getattr(self, key)
            if name is not None and not _NAME.fullmatch(name):
                raise DataError(f"region {self.region}: {key} {name!r} is not a file inside the request's folder")
        fits = 0 <= self.x <= self.image_width - self.width and 0 <= self.y <= self.image_height - self.height
        if min(getattr(self, key) for key in _SIZES) < 1 or not fits:
            raise DataError(
                f"region {self.region}: its box ({self.x}, {self.y}, {self.width}, {self.height}) does not lie in its "
                f"image of {self.image_width}x{self.image_height} pixels"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(height, width) of its mask."""
        return self.height, self.width

    def as_json(self) -> dict[str, Any]:
        """Plain values that :meth:`from_json` reads."""
        content = asdict(self)
        del content["blind"]
        return content

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read plain values; raises ``DataError`` where they are none of a region."""
        return _read(cls, content)


@dataclass(frozen=True)
class Request:
    """What people are asked for at a step.

    Args:
        step: The run's step.
        classes: The classes, in the order of their numbers.
        regions: What is wanted, in order of rank: first those of the step, then reserves.
        min_answers: So many answers are enough where somebody says that the model shall go on; None: all.
        reask: Share of the regions that a second annotator is asked for, too, without seeing the first one's mask.
        ignore: The number for what cannot be told.

    Examples:
        >>> import tempfile
        >>> region = WantedRegion(7, "a.png", 64, 48, 0, 0, 32, 24, 1, 0.5, "crops/7.png", "masks/7.png")
        >>> request = Request(0, (ClassColour(0, "road", "#804080"),), (region,))
        >>> folder = Path(tempfile.mkdtemp())
        >>> request.write(folder)
        >>> Request.read(folder) == request
        True
    """

    step: int
    classes: tuple[ClassColour, ...]
    regions: tuple[WantedRegion, ...]
    min_answers: int | None = None
    reask: float = 0.0
    ignore: int = IGNORE

    def __post_init__(self) -> None:
        if [entry.number for entry in self.classes] != list(range(len(self.classes))):
            raise DataError("classes: must be numbered from 0 on, each once and in order")
        if len({wanted.region for wanted in self.regions}) != len(self.regions):
            raise DataError("regions: one stands there twice")
        if len({wanted.mask for wanted in self.regions}) != len(self.regions):
            raise DataError("regions: two share the file of their mask")

    @property
    def wanted(self) -> int:
        """How many regions must be labelled; reserves are none of them."""
        return sum(not entry.reserve for entry in self.regions)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The request in a folder; raises ``DataError`` where there is none, or none that can be read."""
        path = folder / FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"{path}: no such file; `ralseg acquire` writes it when it asks people") from None
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{path}: cannot be read ({error}); `ralseg acquire` with --ckpt last writes it") from error
        try:
            return cls._from_json(content)
        except DataError as error:
            raise DataError(f"{path}: {error}; `ralseg acquire` with --ckpt last writes it anew") from error

    @classmethod
    def _from_json(cls, content: Any) -> Self:
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise DataError(f"is not of the format {FORMAT}")
        values = {key: value for key, value in content.items() if key != "format"}
        for key, kind in (("classes", ClassColour), ("regions", WantedRegion)):
            if not isinstance(values.get(key), list):
                raise DataError(f"{key}: is not a list")
            values[key] = tuple(_read(kind, entry) for entry in values[key])
        return _read(cls, values)

    def write(self, folder: Path) -> None:
        """Write ``request.json``, atomically."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain |= {
            "classes": [asdict(entry) for entry in self.classes],
            "regions": [entry.as_json() for entry in self.regions],
        }
        write_atomically(folder / FILE, json.dumps({"format": FORMAT, **plain}, indent=1) + "\n")


def _read(kind: type[T], content: Any) -> T:
    """Make a dataclass of plain values, each of the type that the class says; further keys are passed over."""
    if not isinstance(content, Mapping):
        raise DataError(f"{kind.__name__}: {str(content)[:40]!r} is not a table of values")
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]  # always a dataclass
        if field.name not in content:
            if field.default is MISSING:
                raise DataError(f"{kind.__name__}: {field.name} is missing")
            continue
        values[field.name] = _checked(content[field.name], field.type, f"{kind.__name__}: {field.name}")
    return kind(**values)


def _checked(value: Any, hint: Any, where: str) -> Any:
    allowed = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if float in allowed and type(value) is int:
        return float(value)
    if type(value) not in allowed and not isinstance(value, tuple):  # a bool is no number here
        raise DataError(f"{where} is {str(value)[:40]!r}")
    return value
