"""From what a user writes after ``policy`` to a policy: an object, a name, a checkpoint of `ralseg fit`, or a class."""

import hashlib
import inspect
import logging
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ralseg.acquisition.heuristics import HEURISTICS
from ralseg.acquisition.policy import Policy
from ralseg.agents.base import LearnedPolicy
from ralseg.data.datamodule import SegmentationData
from ralseg.errors import ConfigError
from ralseg.models.weights import canvas_difference
from ralseg.runtime.allowed_imports import import_class
from ralseg.runtime.checkpoints import DurableCheckpointIO, read_checkpoint
from ralseg.runtime.files import file_hash

log = logging.getLogger(__name__)
BOX = "ralseg"
"""The name of the policy that comes with ralseg."""


def policy_in_the_box() -> Path:
    """The file of the policy that comes with ralseg: it fits any data (docs/policy.md)."""
    return Path(__file__).parent / "shipped" / "ralseg.ckpt"


def policy_file(name: str) -> Path:
    """The file that a name means: that of the built-in policy, or the name itself."""
    return policy_in_the_box() if name == BOX else Path(name).expanduser()


def find_policy(name: str | Policy, options: dict[str, Any], data: SegmentationData) -> Policy:
    """The policy that ``name`` means.

    Args:
        name: A policy; or ``ralseg`` (the built-in one), a heuristic's name, a checkpoint file, or the dotted path
            of a ``Policy`` class; a module in the current folder will do.
        options: Arguments of the class.
        data: What it will be used on; a learned policy must fit it.
    """
    if isinstance(name, Policy):
        if options:
            raise ConfigError(f"--policy_args are for class paths; {type(name).__name__} has its arguments already")
        return name
    if is_file(name):
        if options:
            raise ConfigError(f"--policy_args are for classes; {name} is a checkpoint")
        if not policy_file(name).is_file():
            raise ConfigError(
                f"--policy {name}: no such file; `ralseg fit` leaves policy.ckpt in its trainer.default_root_dir"
            )
        return load_policy(policy_file(name), data)
    if name not in HEURISTICS and "." not in name:
        close = get_close_matches(name, [BOX, *HEURISTICS], 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"--policy {name}: neither a file nor one of {policy_names()}, nor a module.Class{hint}")
    found = HEURISTICS[name] if name in HEURISTICS else import_class(name, Policy, "--policy")
    try:
        policy: Policy = found(**options)
    except TypeError as error:
        raise ConfigError(f"--policy {name} with --policy_args {options}: {error}") from error
    return policy


def policy_names() -> str:
    """The names of the built-in policy and of all heuristics, for messages."""
    return ", ".join([BOX, *sorted(HEURISTICS)])


def is_file(name: str) -> bool:
    """Whether a policy is a checkpoint; else it is a heuristic's name or a class."""
    return name == BOX or (name not in HEURISTICS and (name.endswith(".ckpt") or Path(name).is_file()))


def save_policy(checkpoint: dict[str, Any], path: Path) -> None:
    """Write the policy of a checkpoint of `ralseg fit` alone: a small file to hand on."""
    DurableCheckpointIO().save_checkpoint(policy_alone(checkpoint), path)


def policy_alone(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Description and weights of the policy in a checkpoint of `ralseg fit`, or in a file of the policy alone."""
    about = checkpoint["ralseg"]
    prefix = str(about.get("policy_prefix", ""))
    weights = {key.removeprefix(prefix): v for key, v in checkpoint["state_dict"].items() if key.startswith(prefix)}
    # a policy that fits any data fits any size, too
    wanted = ("version", "policy", "canvas") if about["policy"].get("fits") else ("version", "policy")
    kept = {key: about[key] for key in wanted if key in about}
    return {"ralseg": kept, "state_dict": weights}


def load_policy(path: Path, data: SegmentationData) -> LearnedPolicy:
    """A learned policy from a checkpoint of `ralseg fit`, if it fits the data."""
    checkpoint = read_checkpoint(path)
    saved, about = _saved(path, checkpoint), checkpoint["ralseg"]
    num_state_regions = len(data.regions("state_set"))
    here = {"class_names": list(data.class_names), "num_state_regions": num_state_regions}
    differing = [
        f"{key} is {value!r} in the policy and {here.get(key)!r} here"
        for key, value in saved["fits"].items()
        if here.get(key) != value
    ]
    if differing:
        raise ConfigError(
            f"{path}: the policy (ralseg {about.get('version')}) does not fit this data: " + "; ".join(differing)
        )
    differing_canvas = canvas_difference(about, data.canvas) if saved["fits"] else None
    if differing_canvas:
        log.warning("%s: the policy learned on %s; it may choose worse here", path, differing_canvas)
    return _made(path, checkpoint, data.class_names, num_state_regions)


def load_policy_alone(path: Path) -> LearnedPolicy:
    """A learned policy that fits any data, before there are data; others are refused."""
    checkpoint = read_checkpoint(path)
    saved = _saved(path, checkpoint)
    if saved["fits"]:
        raise ConfigError(f"{path}: the policy fits certain data only ({', '.join(saved['fits'])})")
    return _made(path, checkpoint, (), 0)


def _saved(path: Path, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of its policy."""
    about = checkpoint.get("ralseg", {})
    saved = about.get("policy") if isinstance(about, dict) else None
    if not isinstance(saved, dict) or not {"class_path", "init_args", "fits"} <= saved.keys():
        raise ConfigError(f"{path}: holds no policy (`ralseg fit` writes those; `ralseg pretrain` writes theta_0s)")
    return saved


def _made(path: Path, checkpoint: dict[str, Any], class_names: tuple[str, ...], num_state: int) -> LearnedPolicy:
    """The policy of a checkpoint."""
    saved = _saved(path, checkpoint)
    kind = import_class(str(saved["class_path"]), LearnedPolicy, f"the policy in {path}:")
    try:
        policy: LearnedPolicy = kind(**saved["init_args"])
        policy.build(class_names, num_state, seed=0)
        policy.load_state_dict(policy_alone(checkpoint)["state_dict"])
    except (TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{path}: its weights do not fit {saved['class_path']} ({reason})") from error
    return policy


def policy_tag(name: str | Policy) -> str:
    """A short name for tables, with a hash of the file for checkpoints: ``learned-1a2b3c4d``."""
    if isinstance(name, Policy):
        return type(name).__name__
    if name in (BOX, *HEURISTICS) or not Path(name).is_file():
        return name
    return f"learned-{file_hash(name)[:8]}"


def policy_identity(name: str | Policy) -> str:
    """What tells a policy from others: its name and, for a checkpoint or a class of one's own, its file's content."""
    if isinstance(name, LearnedPolicy):
        weights = [tensor.detach().cpu().numpy().tobytes() for tensor in name.state_dict().values()]
        return f"{name.description()} {hashlib.sha256(b''.join(weights)).hexdigest()}"
    if isinstance(name, Policy):
        plain = {key: value for key, value in vars(name).items() if isinstance(value, str | int | float | tuple | list)}
        code = file_hash(inspect.getsourcefile(type(name)) or "")
        return f"{type(name).__qualname__} {sorted(plain.items())} {code}"
    if name in HEURISTICS:
        return name
    if name == BOX or name.endswith(".ckpt"):
        return file_hash(policy_file(name))
    source = Path(*name.split(".")[:-1]).with_suffix(".py") if "." in name else Path(name)
    return f"{name} {file_hash(source)}"
