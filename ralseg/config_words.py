"""Sentences about keys of configurations: where one stands, what was probably meant.

Nothing heavy is imported here: :mod:`ralseg.early` says them before a parser is made.
"""

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from ralseg.config import COMMON_KEYS, SECTIONS

CLASSES = ("ralseg", "ralseg.data", "torch.optim", "torch.optim.lr_scheduler")
"""The modules whose classes configurations name most."""


class Typed:
    """What a person has given to a command: options, and files of configurations.

    Args:
        command: What a person types after ``ralseg``.
        arguments: As :func:`ralseg.config.resolve_configs` leaves them.
    """

    def __init__(self, command: str, arguments: list[str]) -> None:
        self.command = command
        self.arguments = arguments

    def has(self, key: str) -> bool:
        """Whether a person typed an option, instead of writing it into a file."""
        return any(argument.partition("=")[0].replace(".init_args.", ".") == f"--{key}" for argument in self.arguments)

    def place(self, key: str) -> str:
        """The file that a key stands in, for the beginning of a message; nothing where it was typed."""
        if not key or self.has(key):
            return ""
        for name, content in reversed(list(self.files())):
            if _has(content, key.split(".")):
                return f"{name}: "
        return ""

    def files(self) -> Iterator[tuple[str, Any]]:
        """The configurations with their names; content that stands in the arguments begins with its file's name."""
        for position, argument in enumerate(self.arguments):
            option, _, value = argument.partition("=")
            if option not in ("--config", "-c"):
                continue
            value = value or "".join(self.arguments[position + 1 : position + 2])
            try:
                text = value if "\n" in value else Path(value).read_text(encoding="utf-8")
                name = value.splitlines()[0].removeprefix("# ") if "\n" in value else value
                yield name, yaml.safe_load(text)
            except (OSError, ValueError, yaml.YAMLError):
                continue

    # -- what is wrong ----------------------------------------------------------------------------

    def no_key(self, key: str, known: list[str]) -> str:
        """A command has no such key.

        Args:
            key: The one that nobody knows.
            known: Those of the command.
        """
        is_section = key.partition(".")[0] not in COMMON_KEYS and not self.has(key)
        meant = nearest_key(key, known + (list(SECTIONS) if is_section else []))
        if self.has(key):
            return f"`ralseg {self.command}` has no option --{key}{hint(meant and f'--{meant}')}\n{self.help()}"
        return f"{self.place(key)}`ralseg {self.command}` has no key {key}{hint(meant)}\n{self.help()}"

    def no_class_option(self, keys: list[str], class_path: str, option: str, known: Iterable[str]) -> str:
        """The class of a key has no such option.

        Args:
            keys: The dotted key of the class, in pieces.
            class_path: Of the class.
            option: The one that it does not have.
            known: Those that it has.
        """
        close = get_close_matches(option, list(known), 1)
        typed = ".".join([*keys, option])
        joint = "." if self.has(typed) else ".init_args."
        meant = joint.join([*keys, close[0]]) if close else None
        key = joint.join([*keys, option])
        return (
            f"{self.place(typed)}{class_path} has no option {option} ({key}){hint(meant)}\n"
            f"(`ralseg {self.command} --{'.'.join(keys)}.help {class_path}` lists its options)"
        )

    def no_class(self, key: str, class_path: str, meant: str | None) -> str:
        """A key names a class that does not exist."""
        return f"{self.place(key)}there is no class {class_path} for {key}{hint(meant)}\n{self.help()}"

    def help(self) -> str:
        """Where all options are listed."""
        return f"(`ralseg {self.command} --help` lists all options)"


def _has(content: Any, parts: list[str]) -> bool:
    """Whether a key is in a configuration; ``init_args`` on the way to it need not be named."""
    if not parts:
        return True
    if not isinstance(content, dict):
        return False
    inner = content.get("init_args")
    return (parts[0] in content and _has(content[parts[0]], parts[1:])) or (inner is not None and _has(inner, parts))


# -- what was probably meant -----------------------------------------------------------------------


def hint(meant: str | None) -> str:
    """The end of a sentence that says what was probably meant."""
    return f"; did you mean {meant}?" if meant else "."


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """The known key that a misspelt one probably means; also one of the same name that stands elsewhere.

    Examples:
        >>> known = ["data.batch_size", "data.size", "trainer.max_epochs"]
        >>> nearest_key("data.bach_size", known), nearest_key("trianer.max_epoch", known)
        ('data.batch_size', 'trainer.max_epochs')
        >>> nearest_key("batch_size", known)
        'data.batch_size'
    """
    paths, found = [name.split(".") for name in known], list[str]()
    for part in key.split("."):
        names = {path[len(found)] for path in paths if path[: len(found)] == found and len(path) > len(found)}
        if not names:
            break  # a value, not a group: what stands in it is not known
        close = [part] if part in names else get_close_matches(part, sorted(names), 1)
        if not close:
            found = []
            break
        found += close
    if found:
        return ".".join(found)
    ends = {path[-1]: ".".join(path) for path in reversed(paths)}
    close = get_close_matches(key.rpartition(".")[2], ends, 1, 0.8)
    return ends[close[0]] if close else None


def nearest_name(class_path: str, classes_of: Callable[[str], list[str]]) -> str | None:
    """The class that a misspelt path probably means, of its own module or of those that configurations name most.

    Args:
        class_path: The misspelt one.
        classes_of: The names of the classes of a module.
    """
    module, _, name = class_path.rpartition(".")
    for place in dict.fromkeys((module, *CLASSES)):
        close = get_close_matches(name, classes_of(place), 1, 0.75)
        if close:
            return f"{place}.{close[0]}"
    return None
