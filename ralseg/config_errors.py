"""What a parser says about a configuration, in ralseg's words: which file, which key, and what was probably meant."""

import importlib
import re
from argparse import ArgumentError
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from ralseg.config_words import CLASSES, Typed, nearest_name
from ralseg.errors import ConfigError
from ralseg.runtime import allowed_imports

_NOISE = re.compile(
    r"[\s-]*(Parser key |Does not validate|Subtypes:|Errors:|Given value|Expected a <class 'NoneType'>|"
    r"Expected a path|Expected a dot import path|Problem with given class_path|Type typing\S+.*Parser key )"
)
_WORDS = {
    r"Type typing\.Callable.*? expects a function or a callable class: ": "",
    r"\. Got value: Namespace\(.*\)": "",
    r"Expected a <class '([\w.]+)'>": r"expected \1",
    r"Expected a typing\.Literal\[(.*?)\]": r"expected one of \1",
    r"\. Got value: ": ", but it is ",
}
_UNKNOWN = (
    re.compile(r"unrecognized arguments: .*?--(?P<key>[\w.]+)"),
    re.compile(r"Subcommand '\w+' does not accept option '(?P<key>[\w.]+)'"),
    re.compile(r"Group '(?P<group>[\w.]+)' does not accept option '(?P<key>[\w.]+)'"),
    re.compile(r"Option '(?P<key>[\w.]+)' is not accepted"),
)


@contextmanager
def explained(parser: ArgumentParser | None, command: str, arguments: Any) -> Iterator[None]:
    """Turn what a parser says about ``arguments`` into an error that names the way out.

    Args:
        parser: Of the command; None: not known.
        command: What a person types after ``ralseg``.
        arguments: What was parsed: a list of arguments, or the values of a configuration.
    """
    try:
        yield
    except ArgumentError as error:
        raise ConfigError(Explanation(parser, command, arguments).of(str(error))) from error


def parsed(parser: ArgumentParser, command: str, arguments: list[str]) -> Namespace:
    """What a parser makes of ``arguments``; its errors name the way out."""
    with explained(parser, command, arguments):
        return parser.parse_args(arguments)


class Explanation:
    """Says what is wrong with a configuration.

    Args:
        parser: Of the command; None: not known.
        command: What a person types after ``ralseg``.
        arguments: What was parsed.
    """

    def __init__(self, parser: ArgumentParser | None, command: str, arguments: Any) -> None:
        self.command = command
        self.keys = [key.replace(".init_args.", ".") for key in keys_of(parser)] if parser else []
        given = [str(argument) for argument in arguments] if isinstance(arguments, list) else []
        self.typed = Typed(command, given)

    def of(self, message: str) -> str:
        """A parser's message in ralseg's words."""
        kinds = (self._not_allowed, self._missing, self._wrong_class, self._wrong_option, self._wrong_key)
        return next((said for kind in kinds if (said := kind(message)) is not None), self._wrong_value(message))

    # -- kinds of mistakes ------------------------------------------------------------------------

    def _not_allowed(self, message: str) -> str | None:
        found = re.search(r"Importing '([\w.]+)' is not allowed", message)
        keys = re.findall(r'Parser key "([\w.]+)"', message)
        if found is None:
            return None
        if found[1].startswith("typing."):
            return f"an option of {'.'.join(keys)} is given, but it has no class; name the class before it"
        known = [f"{module}.{name}" for module in CLASSES for name in classes_of(module)]
        close = get_close_matches(found[1], known, 1, 0.85)
        way_out = f"did you mean {close[0]}? If" if close else "if"
        return (
            f"the configuration names {found[1]}, which ralseg does not import unasked; {way_out} you trust it, add "
            f"{allowed_imports.FLAG} {found[1].rpartition('.')[0] or found[1]}"
        )

    def _missing(self, message: str) -> str | None:
        found = re.fullmatch(rf"the following arguments are required: ({self.command}\.)?(.+)", message.strip())
        if found is None:
            return None
        return f"`ralseg {self.command}` needs {found[2]}\n{self.typed.help()}"

    def _wrong_class(self, message: str) -> str | None:
        found = re.search(r"class_path '([\w.]+)':\s+module '[\w.]+' has no attribute", message) or re.search(
            r"module '[\w.]+' has no attribute '\w+'\. Got value: Namespace\(class_path='([\w.]+)'", message
        )
        if not re.search(r"Expected a <class '(?!NoneType)", message):  # nothing else could stand there
            found = found or re.search(r"Expected a dot import path string: ([\w.]+)", message)
        keys = re.findall(r'Parser key "([\w.]+)"', message)
        if found is None or not keys:
            return None
        return self.typed.no_class(".".join(keys), found[1], nearest_class(found[1]))

    def _wrong_option(self, message: str) -> str | None:
        """An option that the class of a key does not have."""
        found = re.search(r"Option '([\w.]+)' is not accepted", message)
        before = message[: found.start()] if found else ""
        keys = re.findall(r'Parser key "([\w.]+)"', before)
        if found is None or not keys:
            return None
        of_callable = re.match(r"\. Got value: Namespace\(class_path='([\w.]+)'", message[found.end() :])
        class_path = of_callable[1] if of_callable else re.findall(r"class_path '([\w.]+)'", before)[-1]
        return self.typed.no_class_option(keys, class_path, found[1], options_of(class_path))

    def _wrong_key(self, message: str) -> str | None:
        found = next((match for pattern in _UNKNOWN if (match := pattern.search(message))), None)
        if found is None:
            return None
        key = ".".join(part for part in (found.groupdict().get("group"), found["key"]) if part)
        return self.typed.no_key(key, self.keys)

    def _wrong_value(self, message: str) -> str:
        """Anything else: what the parser says, without what only its authors can read."""
        key = ".".join(re.findall(r'Parser key "([\w.]+)"', message))
        given = re.search(r"Given value: (?!NestedArg|Namespace|\{)(.+?)(?:\. Got value|$)", message, re.MULTILINE)
        lines = [line.strip().removeprefix("- ") for line in message.splitlines() if not _NOISE.match(line)]
        text = "; ".join(dict.fromkeys(line for line in lines if line))
        for pattern, words in _WORDS.items():
            text = re.sub(pattern, words, text)
        shown = f", but it is {given[1]}" if given and "but it is" not in text else ""
        return f"{self.typed.place(key)}{key + ': ' if key else ''}{text}{shown}\n{self.typed.help()}"


def nearest_class(class_path: str) -> str | None:
    """The class that a misspelt path probably means, of its own module or of those that configurations name most."""
    return nearest_name(class_path, classes_of)


def classes_of(module: str) -> list[str]:
    """The public classes of a module that may be imported."""
    if not any(f"{module}.".startswith(f"{known}.") for known in allowed_imports.ALWAYS):
        return []
    try:
        found = importlib.import_module(module)
    except ImportError:
        return []
    return [name for name in dir(found) if not name.startswith("_") and isinstance(getattr(found, name, None), type)]


def options_of(class_path: str) -> list[str]:
    """The options of a class that the parser has imported already."""
    module, _, name = class_path.rpartition(".")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(getattr(importlib.import_module(module), name), fail_untyped=False)
    return sorted({key.partition(".")[0] for key in keys_of(parser)})


def keys_of(parser: ArgumentParser) -> list[str]:
    """All keys of a parser, also those that have no default."""
    return list(parser.get_defaults().keys())
