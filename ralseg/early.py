"""What is wrong with a command line, as far as a list of known options says: nothing heavy is imported for it.

The parser of a command needs torch and Lightning for the types of its options, which takes seconds. What options there
are does not change between one command and the next, so ``ralseg/known`` keeps them (``make known`` writes it). A
mistake that the list does not know, and whatever is right, goes on to the parser.
"""

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ralseg.config_words import Typed, nearest_name
from ralseg.errors import ConfigError

KNOWN = Path(__file__).parent / "known"
"""Holds ``options.json``, and ``COMMAND.txt`` with what ``ralseg COMMAND --help`` says."""
LIBRARIES = ("lightning", "jsonargparse", "torch")
"""What the options and their help come from, beside ralseg itself."""
_WITH_SUBCOMMAND = ("data", "labels")
_SEVERAL_PROCESSES = ("LOCAL_RANK", "RANK", "SLURM_PROCID")
_TAKEN_BEFORE = ("--allow_import", "--seeds")
"""Options that are taken out of the arguments before a parser sees them."""


def versions() -> dict[str, str]:
    """The versions of :data:`LIBRARIES`."""
    return {name: version(name) for name in LIBRARIES}


@cache
def _options() -> dict[str, Any]:
    """What is known; nothing where it was made with other libraries."""
    try:
        known: dict[str, Any] = json.loads((KNOWN / "options.json").read_text(encoding="utf-8"))
        return known if known["made_with"] == versions() else {}
    except (OSError, ValueError, KeyError, PackageNotFoundError):
        return {}


def command_of(arguments: list[str]) -> str:
    """The command as its help names it: ``fit``, ``data check``."""
    return " ".join(arguments[: 2 if arguments[0] in _WITH_SUBCOMMAND else 1])


def help_text(arguments: list[str]) -> str | None:
    """What `ralseg COMMAND --help` prints, 80 columns wide; None: only the parser knows.

    Args:
        arguments: As they were typed. With any other among them, the help may be another.
    """
    command = command_of(arguments)
    if arguments[len(command.split()) :] not in (["--help"], ["-h"]) or command not in _options().get("commands", {}):
        return None
    file = KNOWN / f"{command.replace(' ', '_')}.txt"
    return file.read_text(encoding="utf-8") if file.is_file() else None


def check(arguments: list[str]) -> None:
    """Raise :class:`ConfigError` for what no parser would take: an unknown key, option or class.

    Args:
        arguments: As :func:`ralseg.config.resolve_configs` leaves them.
    """
    command = command_of(arguments)
    about = _options().get("commands", {}).get(command)
    asks = any(argument in ("-h", "--") or re.match(r"--([\w.]+\.)?help\b", argument) for argument in arguments)
    # one of several processes leaves it to the first to say what is wrong, which takes the parser's way
    if about is None or asks or any(name in os.environ for name in _SEVERAL_PROCESSES):
        return
    judge = _Judge(command, about, arguments)
    judge.options()
    judge.files()


class _Judge:
    """Looks through what was given to a command.

    Args:
        command: As its help names it.
        about: What is known about it.
        arguments: All arguments.
    """

    def __init__(self, command: str, about: dict[str, Any], arguments: list[str]) -> None:
        self.about = about
        self.typed = Typed(command, arguments)
        self.contents = [content for _, content in self.typed.files()]
        self.is_unsure = False

    def files(self) -> None:
        """Refuse unknown keys, classes, and options of classes in configurations."""
        for content in self.contents:
            self._group(content, "")

    def _group(self, content: Any, prefix: str) -> None:
        for name, value in content.items() if isinstance(content, dict) else ():
            key = f"{prefix}{name}"
            if not isinstance(name, str) or not re.fullmatch(r"\w+", name):
                continue  # a dotted key, or one that appends: the parser's to read
            if key in self.about["groups"]:
                self._group(value, f"{key}.")
            elif key not in self.about["options"]:
                if not self._may_be_new(name):
                    raise ConfigError(self.typed.no_key(_with_first(key, value), self.about["keys"]))
            elif key in self.about["classes"]:
                self._class([key], value)

    def _class(self, keys: list[str], value: Any) -> None:
        """Refuse what a class that a configuration names does not have."""
        class_path = value.get("class_path") if isinstance(value, dict) else None
        if not isinstance(class_path, str):
            return
        self._is_class(".".join(keys), class_path)
        about, given = _options()["classes"].get(class_path), value.get("init_args")
        for name, inner in given.items() if about and isinstance(given, dict) else ():
            if not isinstance(name, str) or not name.isidentifier():
                continue
            if name in about["classes"]:
                self._class([*keys, name], inner)
            elif name not in about["options"] and not self._may_be_new(name):
                raise ConfigError(self.typed.no_class_option(keys, class_path, name, about["options"]))

    def _is_class(self, key: str, class_path: str) -> None:
        module, _, name = class_path.rpartition(".")
        names = _options()["names"].get(module)
        if names is not None and name.isidentifier() and name not in names and not self._may_be_new(name):
            meant = nearest_name(class_path, lambda place: _options()["class_names"].get(place, []))
            raise ConfigError(self.typed.no_class(key, class_path, meant))

    def options(self) -> None:
        """Refuse unknown options that were typed."""
        for option in _long_options(self.typed.arguments):
            known = [f"--{key}" for key in self.about["options"]] + list(_TAKEN_BEFORE)
            if any(name.startswith(option) for name in known):
                continue  # also a shortened one
            key = option.removeprefix("--")
            parts = key.split(".")
            above = [".".join(parts[:length]) for length in range(1, len(parts))]
            owner = next(
                (name for name in above if name in self.about["options"] and name not in self.about["groups"]), ""
            )
            if owner:
                self._option_of_class(owner, key.removeprefix(f"{owner}.").removeprefix("init_args."))
            elif not self._may_be_new(parts[-1]):
                raise ConfigError(self.typed.no_key(key, self.about["keys"]))

    def _option_of_class(self, key: str, option: str) -> None:
        """Refuse what a class does not have that a configuration names, or that is the default."""
        about = _options()["classes"].get(self._class_of(key), {"options": [option]})
        is_plain = option.isidentifier() and option not in ("class_path", "init_args", "dict_kwargs")
        if is_plain and option not in about["options"] and not self._may_be_new(option):
            raise ConfigError(self.typed.no_class_option([key], self._class_of(key), option, about["options"]))

    def _class_of(self, key: str) -> str:
        """The class path that a key has by configurations, or by default; empty: it is typed, or not known."""
        if any(option in (f"--{key}", f"--{key}.class_path") for option in _long_options(self.typed.arguments)):
            return ""
        for content in reversed(self.contents):
            value = content
            for part in key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                found = value.get("class_path") if isinstance(value, dict) else None
                return found if isinstance(found, str) else ""
        default: str = self.about["defaults"].get(key, "")
        return default

    def _may_be_new(self, name: str) -> bool:
        """Whether only the parser can say that there is no such name; then it may say more that is wrong before."""
        self.is_unsure |= may_be_new(name)
        return may_be_new(name)


def _long_options(arguments: list[str]) -> Iterator[str]:
    """The names of options among arguments, as they were typed."""
    for argument in arguments:
        option = argument.partition("=")[0]
        if re.fullmatch(r"--\w[\w.]*", option):
            yield option


def _with_first(key: str, value: Any) -> str:
    """An unknown key together with the first one of what it holds: the way in which parsers name it."""
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        key = f"{key}.{name}"
    return key


def may_be_new(name: str) -> bool:
    """Whether ralseg's source may have a name that the list does not know yet: somebody is working on it."""
    if (Path(__file__).parent / "configs").is_dir():
        return False  # an installed wheel
    return re.search(rf"\b{re.escape(name)}\b", _source()) is not None


@cache
def _source() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.rglob("*.py")))
