"""A run's folder: what belongs to it, and who may write there."""

import shutil
from pathlib import Path

from ralseg.errors import ConfigError

CHECKPOINTS = "checkpoints"
_OWN = (
    *(CHECKPOINTS, "splits.json", "config*.yaml", "test*.json"),
    *("episodes", "history.json", "learning_curve.png"),
    *("selection.csv", "labels", "overlays", "to_label", "budget_*", "result.json", "final.json", "smp"),
)


def find_checkpoint(folder: Path, name: str) -> Path:
    """``best`` or ``last`` of a run's folder, or else ``name`` as a path."""
    return folder / CHECKPOINTS / f"{name}.ckpt" if name in ("best", "last") else Path(name)


def claim(folder: Path, resume: bool, overwrite: bool) -> None:
    """Make sure that starting a run in ``folder`` destroys no other run.

    Args:
        folder: The run's folder, made if need be.
        resume: The run goes on from its last checkpoint; everything stays.
        overwrite: Delete what an earlier run left (only files that ralseg writes).
    """
    if not resume and any((folder / CHECKPOINTS).glob("*.ckpt")):
        if not overwrite:
            raise ConfigError(
                f"{folder} already holds a run: go on with it by --ckpt last, discard it by "
                "--trainer.overwrite true, or give this one another --trainer.default_root_dir"
            )
        for pattern in _OWN:
            for path in folder.glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    folder.mkdir(parents=True, exist_ok=True)


def resume_point(folder: Path, ckpt: str | None) -> str | None:
    """The file to go on from; ``last`` in a folder without a run means to start one."""
    if ckpt is None:
        return None
    path = find_checkpoint(folder, ckpt)
    return str(path) if path.is_file() or ckpt != "last" else None


def numbered(folder: Path, stem: str, suffix: str) -> Path:
    """The first free name of ``stem.suffix``, ``stem-001.suffix``, ...: nothing is ever overwritten."""
    path, number = folder / f"{stem}{suffix}", 0
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number:03d}{suffix}"
    return path
