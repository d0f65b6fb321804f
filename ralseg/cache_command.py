"""`ralseg cache`: what is kept between runs, and to delete it."""

import contextlib
import time
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console
from rich.table import Table

from ralseg.config_errors import parsed
from ralseg.errors import ConfigError
from ralseg.runtime.copies import DAY, all_copies, cache_folder, delete, kind_of


def run_cache(arguments: list[str]) -> int:
    """Run `cache` with what was typed."""
    clears = arguments[:1] == ["clear"]
    parser = ArgumentParser(
        prog="ralseg cache [clear]",
        description="Show what is kept between runs: scaled images and masks, class counts, features of frozen "
        "encoders. `ralseg cache clear` deletes it, which costs the next run time and nothing else.",
        exit_on_error=False,
    )
    parser.add_argument(
        "--folder", type=str | None, help="The folder; by default RALSEG_CACHE, or the user's cache folder."
    )
    if clears:
        parser.add_argument(
            "--unused_days", type=float, default=0.0, help="Delete only what was not used for so many days."
        )
    config = parsed(parser, "cache", arguments[1:] if clears else arguments)
    folder = Path(config.folder).expanduser() if config.folder else cache_folder()
    if config.folder and not folder.is_dir():
        raise ConfigError(f"--folder {folder}: no such folder; it is what data.cache_folder or RALSEG_CACHE names")
    if clears and config.unused_days < 0:
        raise ConfigError(f"--unused_days {config.unused_days}: must be 0 or more")
    clear(folder, config.unused_days) if clears else show(folder)
    return 0


def show(folder: Path) -> None:
    """Print how many copies of each kind there are, their size, and when each kind was last used."""
    found: dict[str, list[tuple[float, int]]] = {}
    for copy in all_copies(folder):
        found.setdefault(kind_of(copy.path), []).append((copy.used, copy.size))
    console = Console(soft_wrap=True)
    if not found:
        console.print(f"{folder}: holds nothing yet")
        return
    table = Table("kind", "copies", "MB", "last used")
    for column in table.columns[1:3]:
        column.justify = "right"
    for kind, copies in sorted(found.items()):
        last = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(used for used, _ in copies)))
        table.add_row(kind, f"{len(copies):,}", f"{sum(size for _, size in copies) / 1e6:,.1f}", last)
    console.print(table)
    console.print(f"in {folder}; data.copies_gb of a run says how much may be kept")


def clear(folder: Path, unused_days: float = 0.0) -> None:
    """Delete copies; runs that read them at this moment keep what they have.

    Args:
        folder: The store.
        unused_days: Keep what was used within so many days.
    """
    deleted, freed, left, before = 0, 0, 0, time.time() - unused_days * DAY
    for copy in all_copies(folder):
        if unused_days and copy.used > before:
            break  # they come in order of use
        if not delete(copy.path):
            left += 1
            continue
        with contextlib.suppress(OSError):  # others lie there
            copy.path.parent.rmdir()
        deleted, freed = deleted + 1, freed + copy.size
    kept = f"; {left:,} may not be deleted" if left else ""
    Console(soft_wrap=True).print(f"{folder}: {deleted:,} copies deleted, {freed / 1e6:,.1f} MB{kept}")
