"""Configuration files: shipped ones by bare name, files that build on others, and values that cannot be meant."""

import importlib
import inspect
import reprlib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from ralseg.errors import ConfigError

BASE = "base"
"""The key under which a configuration names others that it builds on."""
_CONFIG_OPTIONS = ("--config", "-c")
_OF_CLASSES = {"class_path", "init_args", "__subclasses_disabled__"}


def config_folder() -> Path:
    """``ralseg/configs`` of an installed wheel, or ``configs`` of a checkout."""
    packaged = Path(__file__).parent / "configs"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "configs"


def find_config(name: str, beside: Path | None = None) -> str:
    """A path as given if it is a file; else the shipped configuration of that name.

    Args:
        name: ``camvid_dqn.yaml``, ``camvid_dqn``, ``data/camvid.yaml``, or a path.
        beside: The folder of the file that names it; looked into first.
    """
    if beside is not None and (beside / name).is_file():
        return str(beside / name)
    if Path(name).is_file() or Path(name).is_absolute():
        return name
    shipped = {str(path.relative_to(config_folder())): path for path in sorted(config_folder().rglob("*.yaml"))}
    path = shipped.get(name) or shipped.get(f"{name}.yaml")
    if path is None and Path(name).parent != Path():
        return name  # a path of the user's own: whoever reads it says what is wrong
    if path is None:
        close = get_close_matches(name.removesuffix(".yaml"), [key.removesuffix(".yaml") for key in shipped], 1)
        hint = f"; did you mean {close[0]}.yaml?" if close else "."
        whole = [key for key in shipped if "/" not in key]
        raise ConfigError(
            f"--config {name}: neither a file here nor a shipped one{hint} Shipped are {', '.join(whole)}"
        )
    return str(path)


def load_config(name: str, beside: Path | None = None, below: tuple[str, ...] = ()) -> dict[str, Any]:
    """The content of a configuration together with those that it builds on; where they differ, its own values win.

    Args:
        name: See :func:`find_config`.
        beside: The folder of the file that names it.
        below: The files that led here, to notice circles.
    """
    try:
        path = Path(find_config(name, beside))
    except ConfigError as error:
        if not below:
            raise
        raise ConfigError(f"{below[-1]}: `{BASE}` names {str(error).removeprefix('--config ')}") from None
    if path.resolve() in [Path(earlier).resolve() for earlier in below]:
        raise ConfigError(f"{path}: builds on itself ({' -> '.join([*below, str(path)])}); take it out of `{BASE}`")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        named_by = f" (named by {below[-1]})" if below else ""
        raise ConfigError(f"{path}: no such configuration{named_by}") from None
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: not valid YAML ({error})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be a mapping of keys")
    bases = content.pop(BASE, None) or []
    if isinstance(bases, str) or not isinstance(bases, Sequence):
        bases = [bases]
    merged: dict[str, Any] = {}
    for base in bases:
        merged = merge(merged, load_config(str(base), path.parent, (*below, str(path))))
    return merge(merged, content)


def merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two configurations as one. Where both set a key, the second wins.

    If the second names another ``class_path``, the first one's options for that class are dropped.

    Example:
        >>> merge({"data": {"size": 1, "flip": True}}, {"data": {"size": 2}})
        {'data': {'size': 2, 'flip': True}}
    """
    merged = dict(first)
    for key, value in second.items():
        before = merged.get(key)
        merged[key] = value
        if isinstance(before, dict) and isinstance(value, dict):
            kind = before.get("class_path")
            merged[key] = merge(before, value) if value.get("class_path", kind) == kind else value
    return merged


def set_option(config: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A configuration with one more option, given by its dotted name; ``init_args`` may be left out of it.

    Example:
        >>> set_option({"model": {"class_path": "m.Net"}}, "model.dropout", 0.5)
        {'model': {'class_path': 'm.Net', 'init_args': {'dropout': 0.5}}}
    """
    first, _, rest = key.partition(".")
    if not rest:
        return merge(config, {first: value})
    inner = config.get(first)
    inner = dict(inner) if isinstance(inner, dict) else {}
    if "class_path" in inner and rest.partition(".")[0] not in _OF_CLASSES:
        rest = f"init_args.{rest}"
    return config | {first: set_option(inner, rest, value)}


def resolve_configs(arguments: list[str]) -> list[str]:
    """Replace the value of every ``--config`` by a file or, where it builds on others, by all of it as YAML."""
    resolved = list(arguments)
    for position, argument in enumerate(resolved):
        if argument in _CONFIG_OPTIONS and position + 1 < len(resolved):
            resolved[position + 1] = _resolved(resolved[position + 1])
        elif argument.startswith("--config="):
            resolved[position] = f"--config={_resolved(argument.removeprefix('--config='))}"
    return resolved


def _resolved(name: str) -> str:
    if "\n" in name:  # the content itself: a process that another one has started
        return name
    path = find_config(name)
    try:
        builds_on_others = BASE in (yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {})
    except (OSError, yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError, TypeError):
        return path  # the parser says what is wrong
    return yaml.safe_dump(load_config(path), sort_keys=False) if builds_on_others else path


def refuse_nulls(config: Any, defaults: Any) -> None:
    """Refuse ``null``, and plain values in place of groups, where the default shows that neither can be meant.

    Args:
        config: A parsed configuration.
        defaults: The defaults of the same parser.
    """
    given = config.as_dict()
    for key, default in defaults.as_flat().__dict__.items():
        if _OF_CLASSES & set(key.split(".")):  # other kinds of values may stand there too
            continue
        value: Any = given
        path: list[str] = []
        for part in key.split("."):
            if not isinstance(value, dict):
                raise ConfigError(f"{'.'.join(path)}={reprlib.repr(value)}: must be a group of keys, {part} among them")
            if part not in value:
                break
            value, path = value[part], [*path, part]
        else:
            if value is None and default is not None:
                shown = reprlib.repr(default)
                raise ConfigError(f"{key} is null, but needs a value; leave it out for the default, {shown}")


def refuse_class_nulls(values: Any, key: str = "") -> None:
    """Refuse ``null`` among the ``init_args`` of classes, where the class itself has another default.

    Args:
        values: Plain values of a parsed configuration.
        key: Their dotted name, for messages.
    """
    if not isinstance(values, dict):
        return
    if isinstance(values.get("class_path"), str) and isinstance(values.get("init_args"), dict):
        for name, value in values["init_args"].items():
            default = _default(values["class_path"], name) if value is None else None
            if default is not None:
                shown = reprlib.repr(default)
                raise ConfigError(f"{key}.{name} is null, but needs a value; leave it out for the default, {shown}")
    for name, value in values.items():
        refuse_class_nulls(value, key if name == "init_args" else f"{key}.{name}".lstrip("."))


def _default(class_path: str, name: str) -> Any:
    """The default of a constructor's argument, also of one that an ancestor declares; None: there is none."""
    module, _, kind = class_path.rpartition(".")
    found = getattr(importlib.import_module(module), kind)  # the parser has imported it already
    for ancestor in getattr(found, "__mro__", ()):
        parameter = inspect.signature(ancestor.__init__).parameters.get(name) if "__init__" in vars(ancestor) else None
        if parameter is not None:
            return None if parameter.default is inspect.Parameter.empty else parameter.default
    return None
