"""From a checkpoint, or the folder of a run, to a segmenter that predicts: the file alone says how it is made."""

import logging
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from ralseg.data.canvas import Canvas
from ralseg.errors import ConfigError, RalsegError
from ralseg.models import encoders
from ralseg.models.origins import LEFT_OUT, EncoderMissing
from ralseg.models.segmenter import Segmenter
from ralseg.runtime import allowed_imports
from ralseg.runtime.checkpoints import DurableCheckpointIO, read_checkpoint
from ralseg.runtime.files import read_json
from ralseg.runtime.run_folder import CHECKPOINTS

log = logging.getLogger(__name__)


def load(path: Path, segmenter: Segmenter | None = None) -> Segmenter:
    """A segmenter with the weights of a checkpoint, in evaluation mode.

    Args:
        path: A checkpoint, or the folder of a run; see :func:`find_segmenter`.
        segmenter: Takes the weights; None: one is made as the checkpoint says.
    """
    file = find_segmenter(path)
    checkpoint = read_checkpoint(file)
    about = _description(file, checkpoint)
    if segmenter is None:
        segmenter = _rebuilt(file, about)
        try:
            segmenter.check_fits(checkpoint)
            segmenter.load_state_dict(segmenter.weights_in(checkpoint))
        except EncoderMissing:  # says all, with the file
            raise
        except RalsegError as error:
            raise ConfigError(f"{file}: does not fit itself: {error}; was its class changed since?") from error
    else:
        segmenter.load_weights(checkpoint)
    _take_notes(segmenter, about, file)
    return segmenter.eval()


def write_complete(path: Path, out: Path) -> None:
    """Write a segmenter's checkpoint again with all weights, so that it needs nothing else.

    Args:
        path: A checkpoint, or the folder of a run; see :func:`find_segmenter`.
        out: The file to write.
    """
    file = find_segmenter(path)
    segmenter, checkpoint = load(file), dict(read_checkpoint(file))
    about = {key: value for key, value in checkpoint["ralseg"].items() if key != LEFT_OUT}
    whole = checkpoint | {"ralseg": about, "state_dict": segmenter.state_dict()}
    DurableCheckpointIO().save_checkpoint(whole, out)


def _take_notes(segmenter: Segmenter, about: dict[str, Any], file: Path) -> None:
    """Show images to the segmenter as its training did."""
    colours = about.get("colours")
    if isinstance(colours, list) and len(colours) == len(segmenter.class_names):
        segmenter.colours = tuple((int(red), int(green), int(blue)) for red, green, blue in colours)
    if isinstance(about.get("canvas"), dict):
        segmenter.canvas = Canvas.from_description(about["canvas"])
    elif segmenter.canvas is None:
        log.warning(
            "%s does not say what size its images had; images are predicted at their own size, which is wrong for a "
            "training at another (set segmenter.canvas = ralseg.data.canvas.Canvas((height, width)))",
            file,
        )


def _description(file: Path, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """What a segmenter's checkpoint says of itself; other files are refused."""
    about = checkpoint.get("ralseg")
    if isinstance(about, dict) and isinstance(about.get("segmenter"), dict):
        return about
    kinds = {"policy": "a policy", "segmenter_of_game": "the state of a labelling run"}
    kind = next((words for key, words in kinds.items() if isinstance(about, dict) and key in about), None)
    raise ConfigError(
        f"{file}: holds {kind or 'no segmenter of ralseg'}, not a segmenter that can predict; give the folder of a "
        "run of `ralseg pretrain` or `ralseg acquire`, or a checkpoint in checkpoints/ or budget_*/checkpoints/"
    )


# -- making it ---------------------------------------------------------------------------------------

_REMEDY = "give one that fits: ralseg.load_segmenter(path, segmenter=...), made as the run's config.yaml says"


def _rebuilt(file: Path, about: dict[str, Any]) -> Segmenter:
    """A segmenter as a checkpoint describes it, with random weights. Nothing else is imported, downloaded or read."""
    made = about.get("made")
    if not (isinstance(made, dict) and isinstance(made.get("init_args"), dict) and "class_path" in made):
        raise ConfigError(
            f"{file}: does not say how its segmenter is made (ralseg {about.get('version')} did not write that down); "
            + _REMEDY
        )
    name = str(made["class_path"])
    if made.get("left_out"):
        raise ConfigError(
            f"{file}: its {name} was made with {', '.join(map(str, made['left_out']))}, which is no plain value that a "
            f"file could hold; {_REMEDY}"
        )
    kind = _find_class(name, file)
    arguments = dict(made["init_args"])
    if isinstance(arguments.get("class_names"), list):
        arguments["class_names"] = tuple(arguments["class_names"])
    try:
        with encoders.rebuilding(), torch.random.fork_rng(devices=[]):
            return kind(**arguments)
    except Exception as error:  # whatever a constructor raises on values that a file has brought
        raise ConfigError(f"{file}: its {name} cannot be made again ({error}); {_REMEDY}") from error


def _find_class(name: str, file: Path) -> type[Segmenter]:
    """The class of a dotted path: one that this process has already, or one of a module that may be imported."""
    for known in _subclasses(Segmenter):
        if f"{known.__module__}.{known.__qualname__}" == name:
            return known
    option = f"the segmenter in {file}:"
    try:
        with allowed_imports.restricted():
            found: type[Segmenter] = allowed_imports.import_class(name, Segmenter, option)
    except ConfigError as error:
        raise ConfigError(f"{error} (in Python: import its module first, or {_REMEDY})") from error
    return found


def _subclasses(kind: type[Segmenter]) -> Iterator[type[Segmenter]]:
    """Subclasses near and far, the newest first: a notebook may define one again."""
    for inner in reversed(kind.__subclasses__()):
        yield inner
        yield from _subclasses(inner)


# -- finding the file --------------------------------------------------------------------------------


def find_segmenter(path: Path) -> Path:
    """The checkpoint that ``path`` means.

    Args:
        path: A checkpoint itself; the folder of a `pretrain` run, whose best is taken; the folder of an `acquire` run,
            of which the segmenter of the largest budget is taken; or the folder of one of its budgets.
    """
    if path.is_file() or "://" in str(path) or str(path).startswith(("http:/", "https:/")):
        return path
    if not path.is_dir():
        raise ConfigError(f"{path}: no such file or folder{_nearest(path)}")
    budgets = sorted(folder for folder in path.glob("budget_*") if folder.is_dir())
    if budgets:
        finished = [folder for folder in budgets if (folder / "final.json").is_file()]
        if not finished:
            raise ConfigError(
                f"{path}: no final training of this acquisition has ended yet; go on with the same `ralseg acquire` "
                "command and --ckpt last, or give a checkpoint of a budget_* folder"
            )
        return _tested(finished[-1])
    if (path / "plan.json").is_file():
        return _tested(path)
    best = path / CHECKPOINTS / "best.ckpt"
    if best.is_file():
        return best
    raise ConfigError(f"{path}: {_what_is_missing(path)}")


def _tested(folder: Path) -> Path:
    """The checkpoint of a final training that was tested: its best, or its last."""
    plan = read_json(folder / "plan.json")
    keep = plan.get("keep") if isinstance(plan, dict) else None
    file = folder / CHECKPOINTS / f"{'last' if keep == 'last' else 'best'}.ckpt"
    if not file.is_file():
        raise ConfigError(f"{file}: missing, though it is what this final training keeps; was it deleted?")
    return file


def _what_is_missing(folder: Path) -> str:
    if (folder / "policy.ckpt").is_file() or (folder / "episodes").is_dir():
        return (
            "holds a policy (`ralseg fit`); a segmenter that predicts comes from `ralseg pretrain` or `ralseg acquire`"
        )
    if (folder / CHECKPOINTS / "last.ckpt").is_file():
        return (
            "holds no checkpoints/best.ckpt: the training has not been scored yet; go on with it by --ckpt last, or "
            "give its checkpoints/last.ckpt"
        )
    inner = sorted(found.parent.name for found in folder.glob(f"*/{CHECKPOINTS}"))
    if inner:
        return f"holds no run itself, but the runs {', '.join(inner[:8])}; give one of these folders"
    return (
        f"holds no {CHECKPOINTS}/best.ckpt (of `ralseg pretrain`) and no budget_* (of `ralseg acquire`); give the "
        "folder of a run, or a checkpoint"
    )


def _nearest(path: Path) -> str:
    """A hint at names that are alike, from the innermost folder that exists."""
    for parent in path.parents:
        if parent.is_dir():
            wrong = path.relative_to(parent).parts[0]
            close = get_close_matches(wrong, [entry.name for entry in parent.iterdir()], 1)
            return f"; did you mean {parent / close[0]}?" if close else f"; {parent} has no {wrong}"
    return ""
