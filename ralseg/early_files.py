"""Writes down the options and help texts of all commands, for :mod:`ralseg.early`: ``python -m ralseg.early_files``."""

import argparse
import contextlib
import importlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from jsonargparse import ArgumentParser

from ralseg import early
from ralseg.config_errors import classes_of, keys_of
from ralseg.config_words import CLASSES

COMMANDS = (
    *("init", "pretrain", "fit", "acquire", "label", "predict", "export", "labels export", "labels import"),
    *("compare", "dashboard", "test", "data check", "explain"),
)
"""All that have a help of their own."""
_HELP_ONLY = ("label",)  # what it does not know is for `acquire`
MODULES = (*CLASSES, "ralseg.acquisition", "ralseg.agents", "ralseg.annotation", "ralseg.labels", "ralseg.models")
"""Where the classes are that configurations name."""


def make() -> dict[str, str]:
    """The files of ``ralseg/known`` with their content."""
    from ralseg import commands

    files, about = dict[str, str](), dict[str, Any]()
    for command in COMMANDS:
        said = io.StringIO()
        with _asked() as parsers, _columns(80), contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            commands.run([*command.split(), "--help"])
        files[f"{command.replace(' ', '_')}.txt"] = re.sub(r" at 0x[0-9a-f]+", "", said.getvalue())
        about[command] = None if command in _HELP_ONLY else _about(command, parsers[-1])
    known = {
        "made_with": early.versions(),
        "commands": about,
        "classes": dict(_classes()),
        "names": {module: _names(importlib.import_module(module)) for module in MODULES},
        "class_names": {module: classes_of(module) for module in MODULES},
    }
    return {"options.json": json.dumps(known, indent=1) + "\n"} | files


def _names(module: ModuleType) -> list[str]:
    """What a class path may find in a module."""
    return sorted(name for name in dir(module) if not isinstance(getattr(module, name), ModuleType) and name[0] != "_")


def _about(command: str, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """What :mod:`ralseg.early` wants to know about a parser."""
    assert isinstance(parser, ArgumentParser)
    dests = [action.dest for action in parser._actions]
    typed = [option.removeprefix("--") for action in parser._actions for option in action.option_strings]
    keys = [key.replace(".init_args.", ".") for key in keys_of(parser)]
    defaults = parser.get_defaults().as_dict()
    classes = {dest for dest in dests if f"{dest}.help" in dests}
    above = {dest.rpartition(".")[0] for dest in dests}
    return {
        "keys": keys,
        "groups": sorted(above - classes - {""}),
        "options": sorted({*dests, *(name for name in typed if name.isascii() and " " not in name), *keys}),
        "classes": sorted(classes),
        "defaults": dict(_default_classes(defaults)),
    }


def _default_classes(values: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The dotted keys whose default is a class, and which."""
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, dict) and isinstance(value.get("class_path"), str):
            yield f"{prefix}{name}", value["class_path"]
        else:
            yield from _default_classes(value, f"{prefix}{name}.")


def _classes() -> Iterator[tuple[str, dict[str, list[str]]]]:
    """The classes that configurations may name, with their options, and which of them are classes again."""
    for module in MODULES:
        for name in classes_of(module):
            kind = getattr(importlib.import_module(module), name)
            parser = ArgumentParser(exit_on_error=False)
            try:
                parser.add_class_arguments(kind, fail_untyped=False)
            except (ValueError, TypeError, AttributeError):
                continue  # not for configurations
            if _refuses_others(kind, f"{module}.{name}"):
                dests = [action.dest for action in parser._actions]
                options = sorted({key.partition(".")[0] for key in keys_of(parser)})
                nested = [option for option in options if f"{option}.help" in dests]
                yield f"{module}.{name}", {"options": options, "classes": nested}


def _refuses_others(kind: type, class_path: str) -> bool:
    """Whether the parser takes no options for a class but those that it lists."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--it", type=kind)
    try:
        parser.parse_object({"it": {"class_path": class_path, "init_args": {"no_such_option": 1}}})
    except argparse.ArgumentError as error:
        return "'no_such_option' is not accepted" in str(error)
    return False


@contextmanager
def _asked() -> Iterator[list[argparse.ArgumentParser]]:
    """The parsers that are asked for their help."""
    parsers: list[argparse.ArgumentParser] = []
    print_help = argparse.ArgumentParser.print_help

    def noted(parser: argparse.ArgumentParser, file: Any = None) -> None:
        parsers.append(parser)
        print_help(parser, file)

    argparse.ArgumentParser.print_help = noted  # type: ignore[assignment,method-assign]
    try:
        yield parsers
    finally:
        argparse.ArgumentParser.print_help = print_help  # type: ignore[method-assign]


@contextmanager
def _columns(number: int) -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(number)
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def write(folder: Path = early.KNOWN) -> None:
    """Write the files, and delete those of commands that there are no more."""
    folder.mkdir(exist_ok=True)
    files = make()
    for old in folder.iterdir():
        if old.name not in files:
            old.unlink()
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    sys.argv[1:] = []
    write()
