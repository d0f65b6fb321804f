"""From what a user types after `--policy` to a policy: a name, a checkpoint of `ralseg fit`, or a class."""

import importlib
import sys
from pathlib import Path
from typing import Any

from ralseg import imports
from ralseg.baselines import BASELINES
from ralseg.checkpoints import read_checkpoint
from ralseg.data.module import SegmentationData
from ralseg.errors import ConfigError
from ralseg.files import file_hash
from ralseg.policies import Learned, Policy
from ralseg.query import QueryNetwork

_OPTIONS = ("features", "standardise", "use_state", "use_gate", "linear", "batch_norm", "prior", "prior_weight")


def find_policy(name: str, options: dict[str, Any], data: SegmentationData) -> Policy:
    """The policy that ``name`` means.

    Args:
        name: A baseline's name, a checkpoint file, or the dotted path of a ``Policy`` class; a module in the
            current folder will do.
        options: Arguments of the class.
        data: What it will be used on; a learned policy must fit it.
    """
    if is_file(name):
        if options:
            raise ConfigError(f"--policy_args are for classes; {name} is a checkpoint")
        return load_policy(Path(name), data)
    found = BASELINES[name] if name in BASELINES else import_class(name, Policy, "--policy", sorted(BASELINES))
    try:
        policy: Policy = found(**options)
    except TypeError as error:
        raise ConfigError(f"--policy {name} with --policy_args {options}: {error}") from error
    return policy


def is_file(name: str) -> bool:
    """Whether a policy is a checkpoint; else it is a baseline's name or a class."""
    return name not in BASELINES and (name.endswith(".ckpt") or Path(name).is_file())


def import_class(path: str, base: type, option: str, names: list[str]) -> Any:
    """Import a class by its dotted path; modules of the current folder are found too."""
    module_name, _, class_name = path.rpartition(".")
    if not module_name:
        raise ConfigError(f"{option} {path}: neither a file nor one of {', '.join(names)}, nor a module.Class")
    imports.check(path, option)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{option} {path}: cannot be imported ({error})") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{option} {path}: is no subclass of {base.__module__}.{base.__name__}")
    return found


def load_policy(path: Path, data: SegmentationData) -> Learned:
    """A learned policy from a checkpoint of `ralseg fit`, if it fits the data."""
    checkpoint = read_checkpoint(path)
    about = checkpoint.get("ralseg", {})
    saved = about.get("policy") if isinstance(about, dict) else None
    if not isinstance(saved, dict):
        raise ConfigError(f"{path}: holds no policy (`ralseg fit` writes those; `ralseg pretrain` writes theta_0s)")
    if "entropy_prior" in saved:  # of before the prior could be chosen
        saved |= {"prior": "entropy", "prior_weight": saved["entropy_prior"]}
    here: dict[str, Any] = {"class_names": list(data.class_names)}
    if saved["use_state"]:
        here["num_state_regions"] = len(data.splits.state_set) * data.grid.cells
    differing = [
        f"{key} is {saved.get(key)!r} in the policy and {value!r} here"
        for key, value in here.items()
        if saved.get(key) != value
    ]
    if differing:
        raise ConfigError(
            f"{path}: the policy (ralseg {about.get('version')}) does not fit this data: " + "; ".join(differing)
        )
    query = QueryNetwork(**{key: saved[key] for key in _OPTIONS})
    query.build(data.class_names, saved["num_state_regions"], seed=0)
    weights = checkpoint["state_dict"]
    query.load_state_dict({k.removeprefix("query."): v for k, v in weights.items() if k.startswith("query.")})
    return Learned(query)


def policy_tag(name: str) -> str:
    """A short name for tables, with a hash of the file for checkpoints: ``learned-1a2b3c4d``."""
    if name in BASELINES or not Path(name).is_file():
        return name
    return f"learned-{file_hash(name)[:8]}"


def policy_identity(name: str) -> str:
    """What tells a policy from others: its name and, for a checkpoint or a class of one's own, its file's content."""
    if name in BASELINES:
        return name
    if name.endswith(".ckpt"):
        return file_hash(name)
    source = Path(*name.split(".")[:-1]).with_suffix(".py") if "." in name else Path(name)
    return f"{name} {file_hash(source)}"
