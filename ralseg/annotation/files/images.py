"""The images that labels belong to, to be put beside them: other tools want both."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from ralseg.annotation.files.container import Member
from ralseg.annotation.files.names import ENDINGS
from ralseg.errors import DataError
from ralseg.runtime.files import inside


def find_images(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """The file of each image, by its name; its ending may be missing from the name.

    Args:
        folder: Where names begin. Nothing outside of it is ever read, whatever a name says.
        names: Of the images.
    """
    if not folder.is_dir():
        raise DataError(f"--images {folder}: no such folder")
    files = {name: _find(folder, name) for name in names}
    missing = [name for name, file in files.items() if file is None]
    if missing:
        raise DataError(
            f"--images {folder}: {len(missing)} of {len(files)} images are not there, the first: {missing[0]!r}; give "
            "the folder that the names begin in, images/ of a data set as a rule"
        )
    return {name: file for name, file in files.items() if file is not None}


def _find(folder: Path, name: str) -> Path | None:
    for ending in ("", *ENDINGS, *map(str.upper, ENDINGS)):
        path = folder / inside(name + ending)
        if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            return path
    return None


def full_name(name: str, file: Path) -> str:
    """The name of an image with its file's ending, by which other tools find it."""
    return name if name.endswith(file.suffix) else name + file.suffix


def image_members(files: dict[str, Path], below: str) -> Iterator[Member]:
    """The files as they are, below a folder of the export: ``images/``, or nothing."""
    for name, file in files.items():
        try:
            yield f"{below}{full_name(name, file)}", file.read_bytes()
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror})") from error
