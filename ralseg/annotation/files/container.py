"""Files, folders and zip archives of others, read within limits; and our own, written whole or not at all."""

import contextlib
import io
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ralseg.errors import ConfigError, DataError
from ralseg.runtime.files import inside, write_atomically

MAX_BYTES = 512 * 1024 * 1024
"""The largest file that is read, and the most that one is unpacked to."""
MAX_MEMBERS = 1_000_000
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same content gives the same archive, whenever it is written
_PACKED = (".png", ".jpg", ".jpeg", ".webp")

Member = tuple[str, bytes]
"""A name with slashes between folders, and the content of the file."""


class Members:
    """The files of a folder or an archive, or one file alone. Names of an archive are keys, never paths.

    Args:
        path: What the user named.
        names: Of all files, with slashes between folders.
        archive: Where they are; None: beside ``path``, or ``path`` itself.
    """

    def __init__(self, path: Path, names: list[str], archive: zipfile.ZipFile | None = None) -> None:
        self.path, self.names, self._archive = path, names, archive

    def where(self, name: str) -> str:
        """What messages call a file."""
        if self._archive is not None:
            return f"{self.path}: {name}"
        return str(self.path / name if self.path.is_dir() else self.path)

    def read(self, name: str) -> bytes:
        """The content of a file; one that is damaged, encrypted or too large is a DataError."""
        try:
            with self._open(name) as file:
                content = file.read(MAX_BYTES + 1)
        except (OSError, RuntimeError, NotImplementedError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise DataError(f"{self.where(name)}: cannot be read ({error})") from error
        if len(content) > MAX_BYTES:
            raise DataError(f"{self.where(name)}: is larger than {MAX_BYTES // 1024**2} MB; no labels need that much")
        return content

    @contextmanager
    def _open(self, name: str) -> Iterator[io.BufferedIOBase]:
        with contextlib.ExitStack() as stack:
            if self._archive is not None:
                yield stack.enter_context(self._archive.open(name))  # type: ignore[misc]
            else:
                path = self.path if self.path.is_file() else self.path / name
                if not path.is_file():  # reading a named pipe would wait for ever
                    raise OSError("not a regular file")
                yield stack.enter_context(path.open("rb"))

    @contextmanager
    def on_disk(self, name: str) -> Iterator[Path]:
        """A file for readers that need a path: where it is, or for a moment in a temporary folder.

        It has no name of its own there. Errors name it as :meth:`where` does.
        """
        with tempfile.TemporaryDirectory(prefix="ralseg_") as folder:
            path = self.path / name
            if self._archive is not None or not self.path.is_dir():
                path = Path(folder) / "file"
                path.write_bytes(self.read(name))
            try:
                yield path
            except DataError as error:
                raise DataError(str(error).replace(str(path), self.where(name))) from error

    def one_of(self, suffix: str, what: str) -> str:
        """The one file with an ending, ``.xml`` say; none or several are a DataError."""
        found = [name for name in self.names if name.lower().endswith(suffix)]
        if len(found) != 1:
            listed = f": {', '.join(found[:5])}" if found else ""
            raise DataError(f"{self.path}: holds {len(found)} files *{suffix}{listed}; give one file of {what}")
        return found[0]


@contextmanager
def opened(path: Path) -> Iterator[Members]:
    """The files that a user names: one file, all below a folder, or all in a zip archive."""
    if path.is_dir():
        found = sorted(inner for inner in path.rglob("*") if inner.is_file())
        yield Members(path, [inner.relative_to(path).as_posix() for inner in found])
        return
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder")
    if not zipfile.is_zipfile(path):
        yield Members(path, [path.name])
        return
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: not a zip archive that can be read ({error})") from error
    with archive:
        names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
        if len(names) > MAX_MEMBERS:
            raise DataError(f"{path}: holds {len(names)} files, more than {MAX_MEMBERS}")
        twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        if twice is not None:
            raise DataError(f"{path}: holds {twice[:80]!r} twice; which one is meant cannot be told")
        yield Members(path, names, archive)


def write_members(out: Path, members: Iterable[Member], overwrite: bool) -> None:
    """Write files into a folder, or into one archive where ``out`` ends in .zip.

    Args:
        out: The folder or archive.
        members: What to write; no name leads outside of ``out``, whatever it says.
        overwrite: Replace what is there.
    """
    check_free(out, overwrite)
    if out.suffix.lower() == ".zip":
        _write_archive(out, members)
        return
    for name, content in members:
        write_atomically(out / inside(name), content)


def check_free(out: Path, overwrite: bool) -> None:
    """Refuse to write where something is, unless it may be replaced."""
    is_there = any(out.iterdir()) if out.is_dir() else out.exists()
    if is_there and not overwrite:
        raise ConfigError(f"--out {out}: is there already; give another name, or replace it by --overwrite true")


def _write_archive(out: Path, members: Iterable[Member]) -> None:
    """Under another name until it is whole: it may be larger than memory."""
    part = out.with_name(f".{out.name[:100]}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members:
                archive.writestr(_entry(name), content)
        part.replace(out)
    except OSError as error:
        raise DataError(f"{out}: cannot be written ({error.strerror or error})") from error
    finally:
        part.unlink(missing_ok=True)


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(inside(name).as_posix().replace("\\", "_"), _EPOCH)
    entry.compress_type = zipfile.ZIP_STORED if name.lower().endswith(_PACKED) else zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry
