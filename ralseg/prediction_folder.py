"""The folder that `ralseg predict` writes: which files, whose they are, and which of them need not be made again."""

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from ralseg.data import readers
from ralseg.data.base import Colour
from ralseg.errors import ConfigError, DataError
from ralseg.models.whole_image import ImagePrediction
from ralseg.runtime.copies import file_key
from ralseg.runtime.files import read_json, write_atomically, write_png

CLASSES, OVERLAYS, CONFIDENCE, PROBABILITIES = "classes", "overlays", "confidence", "probabilities"
SUFFIX_OF = {CLASSES: ".png", OVERLAYS: ".jpg", CONFIDENCE: ".png", PROBABILITIES: ".npy"}
"""The subfolders, and the kind of file in each."""
ABOUT, LEGEND = "classes.json", "legend.png"
FORMAT = "ralseg predictions 1"
_TAG = "ralseg"  # the text in a PNG that says which checkpoint it is of
_JPEG_QUALITY = 90


@dataclass(frozen=True)
class PredictionFolder:
    """Where predictions go, one file of each kind for each image, under its name and subfolder.

    Args:
        out: The folder.
        names: Names of the classes; a class's value in the PNGs is its position here.
        colours: One colour a class.
        kinds: The subfolders that are wanted.
        identity: What predictions follow from besides the image: the checkpoint's hash, the size of tiles.
    """

    out: Path
    names: tuple[str, ...]
    colours: tuple[Colour, ...]
    kinds: tuple[str, ...]
    identity: str

    def open(self, about: dict[str, Any], overwrite: bool) -> None:
        """Claim the folder: make it, or go on in one of the same checkpoint; others are refused.

        Args:
            about: What ``classes.json`` says besides the classes.
            overwrite: Write over predictions of another checkpoint, and between files of others.
        """
        there = read_json(self.out / ABOUT)
        is_ours = isinstance(there, dict) and there.get("format") == FORMAT
        if self.out.exists() and not self.out.is_dir():
            raise ConfigError(f"--out {self.out}: is a file; give a folder")
        if is_ours and there.get("identity") != self.identity and not overwrite:
            raise ConfigError(
                f"--out {self.out}: holds predictions of another checkpoint or tile size ({there.get('checkpoint')}); "
                "give another folder, or replace them by --overwrite true"
            )
        if not is_ours and not overwrite and self.out.is_dir() and any(self.out.iterdir()):
            raise ConfigError(
                f"--out {self.out}: holds files that are no predictions of ralseg; give another folder, or write "
                f"between them by --overwrite true (files in {', '.join(SUFFIX_OF)} may be replaced)"
            )
        classes = [
            {"value": value, "name": name, "colour": list(colour)}
            for value, (name, colour) in enumerate(zip(self.names, self.colours, strict=True))
        ]
        content = {"format": FORMAT, "identity": self.identity, **about, "classes": classes}
        write_atomically(self.out / ABOUT, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        write_png(self.out / LEGEND, legend(self.names, self.colours))

    def path(self, kind: str, name: Path) -> Path:
        """The file of one kind for the image of a name."""
        return self.out / kind / name.with_name(name.name + SUFFIX_OF[kind])

    def is_up_to_date(self, image: Path, name: Path) -> bool:
        """Whether all that is wanted of an image is there, from the same checkpoint and from the image as it is."""
        classes = self.path(CLASSES, name)
        try:
            if not all(self.path(kind, name).is_file() for kind in self.kinds):
                return False
            with Image.open(classes, formats=("PNG",)) as file:
                return bool(file.info.get(_TAG) == self._tag(image))
        except (OSError, SyntaxError, ValueError):
            return False

    def _tag(self, image: Path) -> str:
        """What a prediction follows from: the checkpoint, and the image's file as it is."""
        _, *stamp = file_key(image) or [None]
        return f"{self.identity} {stamp}"

    def _is_ours(self, name: Path) -> bool:
        """Whether the classes of an image that are there were written by ralseg."""
        try:
            with Image.open(self.path(CLASSES, name), formats=("PNG",)) as file:
                return _TAG in file.info
        except (OSError, SyntaxError, ValueError):
            return False

    def write(self, image: Path, name: Path, pixels: NDArray[np.uint8], prediction: ImagePrediction) -> None:
        """Write what is wanted of an image. The classes come last: where they are, all is."""
        for kind in SUFFIX_OF if self._is_ours(name) else self.kinds:
            self.path(kind, name).unlink(missing_ok=True)  # of another checkpoint, or of the image as it was
        if OVERLAYS in self.kinds:
            drawn = Image.fromarray(overlay(pixels, prediction.classes, self.colours))
            self._save(OVERLAYS, name, drawn, format="JPEG", quality=_JPEG_QUALITY)
        if prediction.confidence is not None and CONFIDENCE in self.kinds:
            grey = np.rint(prediction.confidence * 255).astype(np.uint8)
            self._save(CONFIDENCE, name, Image.fromarray(grey), format="PNG")
        if prediction.probabilities is not None:
            buffer = io.BytesIO()
            np.save(buffer, prediction.probabilities)
            write_atomically(self.path(PROBABILITIES, name), buffer.getbuffer())
        tag = PngImagePlugin.PngInfo()
        tag.add_text(_TAG, self._tag(image))
        self._save(CLASSES, name, self._indexed(prediction.classes), format="PNG", pnginfo=tag)

    def _indexed(self, classes: NDArray[np.uint8]) -> Image.Image:
        """Values are classes, and viewers show them in the classes' colours."""
        image = Image.fromarray(classes)
        image.putpalette([channel for colour in self.colours for channel in colour])
        return image

    def _save(self, kind: str, name: Path, image: Image.Image, **options: Any) -> None:
        buffer = io.BytesIO()
        image.save(buffer, **options)
        write_atomically(self.path(kind, name), buffer.getbuffer())


def names_of(images: Iterable[Path], root: Path) -> dict[Path, Path]:
    """What predictions of images are called: their place below ``root`` without the suffix; two may not share one.

    Examples:
        >>> names_of([Path("photos/may/01.JPG")], Path("photos"))
        {PosixPath('photos/may/01.JPG'): PosixPath('may/01')}
    """
    names: dict[Path, Path] = {}
    taken: dict[Path, Path] = {}
    for image in images:
        place = image.relative_to(root)
        name = place.with_suffix("") if place.suffix.lower() in readers.SUFFIXES else place
        if name in taken:
            raise DataError(
                f"{taken[name]} and {image}: their predictions would have the same name, {name}.png; rename one"
            )
        names[image], taken[name] = name, image
    return names


def overlay(pixels: NDArray[np.uint8], classes: NDArray[np.uint8], colours: tuple[Colour, ...]) -> NDArray[np.uint8]:
    """An image under its classes' colours, half of each: [H, W, 3]."""
    half = np.array(colours, np.uint8) // 2
    drawn: NDArray[np.uint8] = pixels // 2
    drawn += half[classes]
    return drawn


def legend(names: tuple[str, ...], colours: tuple[Colour, ...]) -> NDArray[np.uint8]:
    """A picture of the classes' colours and names, one a line: [height, width, 3]."""
    font, line, margin, swatch = ImageFont.load_default(14), 24, 12, 30
    # the font knows Latin letters only
    texts = [f"{value}  {name}".encode("latin-1", "replace").decode("latin-1") for value, name in enumerate(names)]
    width = 2 * margin + swatch + 10 + max(int(font.getlength(text)) for text in texts)
    picture = Image.new("RGB", (width + 1, 2 * margin + line * len(names)), (255, 255, 255))
    pen = ImageDraw.Draw(picture)
    for row, (text, colour) in enumerate(zip(texts, colours, strict=True)):
        top = margin + row * line
        pen.rectangle((margin, top, margin + swatch, top + line - 6), fill=colour, outline=(30, 30, 30))
        pen.text((margin + swatch + 10, top), text, (30, 30, 30), font)
    return np.asarray(picture)
