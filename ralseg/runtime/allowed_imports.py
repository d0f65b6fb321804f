"""Which modules a configuration may import.

A class path is code that runs, so nothing unknown is imported unasked.
"""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from jsonargparse import set_parsing_settings

from ralseg.errors import ConfigError

FLAG, VARIABLE = "--allow_import", "RALSEG_ALLOW_IMPORT"
ALWAYS = ("ralseg", "lightning.pytorch", "torch.optim", "torch.nn", "torchmetrics", "segmentation_models_pytorch")
_NAMED = ("--policy", "--oracle")  # what a person types there is meant to be imported


_once_allowed: set[str] = set()
_is_restricted = False


def take_allowed(arguments: list[str]) -> list[str]:
    """Allow what ``--allow_import`` names, and classes after ``--policy`` and ``--oracle``; the other arguments.

    For what a person has typed, never for arguments that were made of a configuration. Processes that this one
    starts are allowed the same, by the environment.
    """
    rest, named = [], allowed_by_user()
    is_follower = int(os.environ.get("LOCAL_RANK", 0)) > 0 and VARIABLE in os.environ and not _by_torchrun()
    waiting: str | None = None
    for argument in arguments:
        option, _, value = argument.partition("=")
        if waiting == FLAG or (option == FLAG and value):
            named += (argument if waiting else value).split(",")
            waiting = None
            continue
        if waiting or (option in _NAMED and value):
            named += _module_of(argument if waiting else value)
            waiting = None
        elif argument in (FLAG, *_NAMED):
            waiting = argument
        if waiting != FLAG:
            rest.append(argument)
    if waiting == FLAG:
        raise ConfigError(f"{FLAG} takes the names of modules, with commas between")
    if is_follower:  # started by a process that has said already what is allowed; its arguments nobody typed here
        named = allowed_by_user()
    for module in named:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ConfigError(f"{FLAG} {module}: not the name of a module")
    os.environ[VARIABLE] = ",".join(dict.fromkeys(named))
    return rest


def _by_torchrun() -> bool:
    """Whether each process was started with what a person typed."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def allowed_by_user() -> list[str]:
    """The modules that were allowed for this run."""
    return [module for module in os.environ.get(VARIABLE, "").split(",") if module]


def restrict() -> None:
    """Make this process import nothing else for a configuration."""
    modules = allowed_by_user()
    here = str(Path.cwd())
    if modules and here not in sys.path:
        sys.path.append(here)  # one's own modules stand where one works
    no_more = _once_allowed - set(modules)  # jsonargparse remembers what an earlier command of this process allowed
    set_parsing_settings(import_path_denylist=["*", *no_more], import_path_allowlist=[*ALWAYS, *modules])
    _once_allowed.update(modules)


@contextmanager
def restricted() -> Iterator[None]:
    """Inside, :func:`check` refuses; code that calls ralseg as a library names its classes itself."""
    global _is_restricted
    outer, _is_restricted = _is_restricted, True
    try:
        yield
    finally:
        _is_restricted = outer


def check(path: str, option: str) -> None:
    """Refuse to import a dotted path whose module nobody has allowed."""
    is_allowed = any(path.startswith(f"{module}.") for module in (*ALWAYS, *allowed_by_user()))
    if _is_restricted and not is_allowed:
        module = path.rpartition(".")[0]
        raise ConfigError(
            f"{option} {path}: not imported, because only a file names it, and ralseg imports nothing unknown by "
            f"itself; if you trust it, add {FLAG} {module}"
        )


def import_object(path: str, option: str) -> Any:
    """Import something by its dotted path; modules of the current folder are found too.

    Args:
        path: ``module.name``.
        option: Where the path was given, for messages.
    """
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise ConfigError(f"{option} {path}: must be a module.Class")
    check(path, option)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
        return getattr(module, name)
    except ImportError as error:
        raise ConfigError(f"{option} {path}: cannot be imported ({error})") from error
    except AttributeError as error:
        close = get_close_matches(name, dir(module), 1)
        hint = f"; did you mean {module_name}.{close[0]}?" if close else ""
        raise ConfigError(f"{option} {path}: cannot be imported ({error}){hint}") from error


def import_class(path: str, base: type, option: str) -> Any:
    """Import a class by its dotted path.

    Args:
        path: ``module.Class``.
        base: What it must be a subclass of.
        option: Where the path was given, for messages.
    """
    found = import_object(path, option)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{option} {path}: is no subclass of {base.__module__}.{base.__name__}")
    return found


def _module_of(path: str) -> list[str]:
    """The module in a dotted class path; nothing for names and files."""
    module, _, name = path.rpartition(".")
    is_class = bool(module) and all(part.isidentifier() for part in path.split(".")) and not Path(path).is_file()
    return [module] if is_class and name != "ckpt" else []
