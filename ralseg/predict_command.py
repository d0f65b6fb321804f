"""`ralseg predict`: the classes of all images of a folder, as files."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from jsonargparse import SUPPRESS, ActionConfigFile, ArgumentParser
from rich.console import Console
from rich.progress import track

from ralseg.config import COMMON_KEYS
from ralseg.config_errors import parsed
from ralseg.data import readers
from ralseg.data.base import images_below
from ralseg.data.description import default_colours
from ralseg.errors import ConfigError, DataError
from ralseg.models.loading import find_segmenter, load
from ralseg.models.segmenter import Segmenter
from ralseg.models.whole_image import TILE, tiles
from ralseg.prediction_folder import (
    ABOUT,
    CLASSES,
    CONFIDENCE,
    LEGEND,
    OVERLAYS,
    PROBABILITIES,
    SUFFIX_OF,
    PredictionFolder,
    names_of,
)
from ralseg.runtime.files import file_hash

PASSED_OVER = tuple(key for key in COMMON_KEYS if key != "ckpt")
"""Keys of other commands, which may stand in the same configuration."""
_SHOWN = 20


def add_switch(parser: ArgumentParser, option: str, text: str) -> None:
    """An option that is off unless it is named; `--option false` says so."""
    parser.add_argument(option, type=bool, nargs="?", const=True, default=False, help=text)


def run_predict(arguments: list[str]) -> int:
    """Run `predict` with what was typed."""
    parser = parser_of("predict", "Predict the class of each pixel of images, at any size.")
    parser.add_argument("--images", type=str | None, help="A folder of images, with its subfolders, or one image.")
    parser.add_argument("--out", type=str, default="predictions", help="Folder for classes/, overlays/ and so on.")
    parser.add_argument("--overlays", type=bool, default=True, help="Also write the images under the classes' colours.")
    add_switch(parser, "--confidence", "Also write how probable each pixel's class is, as a grey PNG: 255 is certain.")
    add_switch(
        parser,
        "--probabilities",
        "Also write the probabilities of all classes, as a .npy [classes, height, width] of float16.",
    )
    parser.add_argument(
        *("--tile",), type=int, default=TILE,
        help="Side of the tiles that large images are cut into where training kept them at their own size; 0: none.",
    )  # fmt: skip
    add_switch(parser, "--overwrite", "Write into a folder that holds other things.")
    config = parsed(parser, "predict", arguments)
    wanted = {OVERLAYS: config.overlays, CONFIDENCE: config.confidence, PROBABILITIES: config.probabilities}
    kinds = (CLASSES, *(kind for kind, is_wanted in wanted.items() if is_wanted))
    images = required(config.images, "predict", "--images", "a folder of images, or one image")
    predict_files(run_of(config.ckpt, "predict"), Path(images), Path(config.out), kinds, config.tile, config.overwrite)
    return 0


def parser_of(command: str, description: str) -> ArgumentParser:
    """A parser with `--config` and `--ckpt`, which passes over the keys of other commands."""
    parser = ArgumentParser(prog=f"ralseg {command}", description=description, exit_on_error=False)
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="A configuration with values for these keys.")
    parser.add_argument("--ckpt", type=str | None, help="The folder of a pretrain or acquire run, or a checkpoint.")
    for key in PASSED_OVER:
        parser.add_argument(f"--{key}", type=Any, default=SUPPRESS, help=SUPPRESS)
    return parser


def required(value: str | None, command: str, option: str, what: str) -> str:
    """A value that must be given, on the command line or in a configuration."""
    if not value:
        raise ConfigError(f"ralseg {command} needs {option}: {what}")
    return value


def run_of(ckpt: str | None, command: str) -> Path:
    """What `--ckpt` names."""
    return Path(required(ckpt, command, "--ckpt", "the folder of a pretrain or acquire run, or a checkpoint"))


def predict_files(ckpt: Path, images: Path, out: Path, kinds: tuple[str, ...], tile: int, overwrite: bool) -> None:
    """Predict all images that are not predicted yet; one that cannot be read is passed over and named at the end.

    Args:
        ckpt: A checkpoint, or the folder of a run.
        images: A folder, or one image.
        out: Where predictions go.
        kinds: Which: the subfolders of ``out``.
        tile: Side of tiles; see :func:`ralseg.models.whole_image.tiles`.
        overwrite: Whether ``out`` may hold other things.
    """
    next(tiles(1, 1, tile))  # refuses a size that cannot work before anything is done
    file = find_segmenter(ckpt)
    names = names_of(find_images(images, out), images if images.is_dir() else images.parent)
    segmenter = load(file)
    if torch.cuda.is_available():
        segmenter.to("cuda")
    identity = f"{file_hash(file)} tile {tile}"
    colours = segmenter.colours or default_colours(len(segmenter.class_names))
    folder = PredictionFolder(out, segmenter.class_names, colours, kinds, identity)
    canvas = {} if segmenter.canvas is None else segmenter.canvas.describe()
    folder.open({"checkpoint": str(file), "sha256": file_hash(file), **canvas, "tile": tile}, overwrite)
    missing = {image: name for image, name in names.items() if not folder.is_up_to_date(image, name)}
    failed = _predict_each(segmenter, folder, missing, tile)
    _report(folder, len(names), len(names) - len(missing), failed)


def find_images(images: Path, out: Path) -> list[Path]:
    """The images that are meant; predictions among them are not."""
    if images.is_file():
        return [images]
    if not images.is_dir():
        raise DataError(f"--images {images}: no such file or folder")
    own = {(out / kind).resolve() for kind in SUFFIX_OF}
    found = [
        path
        for path in images_below(images)
        if own.isdisjoint(path.resolve().parents) and path.resolve() != (out / LEGEND).resolve()
    ]
    if not found:
        raise DataError(f"--images {images}: holds no images ({', '.join(readers.SUFFIXES)})")
    return found


def _predict_each(
    segmenter: Segmenter, folder: PredictionFolder, images: dict[Path, Path], tile: int
) -> dict[Path, str]:
    """Predict images one by one; returns what is wrong with those that cannot be read."""
    failed: dict[Path, str] = {}
    for image, name in _watched(images.items()):
        try:
            pixels = readers.read_image(image, turn=True)
        except DataError as error:
            failed[image] = str(error)
            continue
        found = segmenter.predict_image(pixels, CONFIDENCE in folder.kinds, PROBABILITIES in folder.kinds, tile)
        folder.write(image, name, pixels, found)
    return failed


def _watched(images: Iterable[tuple[Path, Path]]) -> Iterable[tuple[Path, Path]]:
    """With a bar that tells how far it is, where somebody can see it."""
    console = Console(stderr=True)
    return track(list(images), "predicting", console=console, transient=True, disable=not console.is_terminal)


def _report(folder: PredictionFolder, number: int, before: int, failed: dict[Path, str]) -> None:
    """Say what was done; images that could not be read end in an error that lists them."""
    made = number - before - len(failed)
    already = f", {before} were there already" if before else ""
    print(f"{made} images predicted{already}: {folder.out / CLASSES}")
    print(f"classes and colours: {folder.out / ABOUT}, {folder.out / LEGEND}")
    if failed:
        listed = [f"  {problem}" for problem in list(failed.values())[:_SHOWN]]
        more = [f"  and {len(failed) - _SHOWN} more"] if len(failed) > _SHOWN else []
        raise DataError(
            "\n".join([f"{len(failed)} of {number} images could not be read, all others are done:", *listed, *more])
        )
