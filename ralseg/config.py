"""Configuration files: shipped ones by bare name, built on others, with sections for commands; impossible values."""

import importlib
import inspect
import json
import reprlib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from ralseg.errors import ConfigError

BASE = "base"
"""The key under which a configuration names others that it builds on."""
SECTIONS = ("pretrain", "test", "fit", "acquire", "compare", "predict", "export")
"""The commands that may have a section of their own in a configuration, beside the keys that they share."""
_KEYS_OF_FEW = {
    "agent": ("fit",),
    "policy": ("acquire",),
    "policy_args": ("acquire",),
    "oracle": ("acquire",),
    "early_stopping": ("pretrain", "test"),
}
COMMON_KEYS = ("seed_everything", "data", "model", "trainer", "ckpt", *_KEYS_OF_FEW)
"""The keys that commands share; some of them are of use to few."""
SCHEDULE_LENGTHS = {
    "OneCycleLR": "total_steps",
    "CosineAnnealingLR": "T_max",
    "PolynomialLR": "total_iters",
    "LinearLR": "total_iters",
}
"""The option of a learning-rate schedule that says how long it is; 0: as long as the run."""
_SCHEDULES = "torch.optim.lr_scheduler."
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
        known = [path.stem for path in sorted(Path().glob("*.yaml"))] + [key.removesuffix(".yaml") for key in shipped]
        close = get_close_matches(name.removesuffix(".yaml"), known, 1)
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

    Examples:
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

    Examples:
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


# -- one file for all commands ---------------------------------------------------------------------


def command_config(names: str | list[str], command: str) -> dict[str, Any]:
    """What configurations say to a command, in the order in which ``--config`` would name them.

    Args:
        names: See :func:`find_config`.
        command: ``acquire``, say.
    """
    merged: dict[str, Any] = {}
    for name in [names] if isinstance(names, str) else names:
        merged = merge(merged, with_lengths(for_command(load_config(name), command, name)))
    return merged


def for_command(content: dict[str, Any], command: str, name: str) -> dict[str, Any]:
    """What a configuration with sections says to a command: the keys that all share, then the command's own.

    `test` uses the section of `pretrain` unless it has its own. A study (`compare`) has no keys in common with the
    others. A configuration without sections is left as it is.

    Args:
        content: Of a configuration.
        command: ``fit``, say.
        name: Of the configuration, for messages.

    Examples:
        >>> mine = {"data": {"size": 1}, "fit": {"agent": "DQN"}, "acquire": {"data": {"size": 2}}}
        >>> for_command(mine, "acquire", "mine.yaml")
        {'data': {'size': 2}}
    """
    if not has_sections(content):
        return content
    for key, value in content.items():
        if key not in SECTIONS + COMMON_KEYS:
            close = get_close_matches(str(key), SECTIONS + COMMON_KEYS, 1)
            hint = f"did you mean {close[0]}?" if close else f"sections are {', '.join(SECTIONS)}"
            raise ConfigError(f"{name}: there is neither a section nor a key {key}; {hint}")
        if key in SECTIONS and not isinstance(value, dict | None):
            raise ConfigError(f"{name}: {key}={reprlib.repr(value)}: a section must be a group of keys")
    section = content.get("pretrain" if command == "test" and "test" not in content else command)
    own = section if command in SECTIONS and section else {}
    if command == "compare":
        return own
    common = {key: value for key, value in content.items() if key not in SECTIONS and _takes(command, key)}
    return merge(common, own)


def has_sections(content: dict[str, Any]) -> bool:
    """Whether a configuration has sections of commands; ``acquire`` may also be the file that a study names."""
    return any(
        isinstance(content[key], dict) or (content[key] is None and key != "acquire")
        for key in SECTIONS
        if key in content
    )


def _takes(command: str, key: str) -> bool:
    """Whether a command has a use for a key that commands share, or passes over it by itself."""
    return command not in ("pretrain", "test", "fit", "acquire") or command in _KEYS_OF_FEW.get(key, (command,))


def with_lengths(content: Any) -> Any:
    """A configuration whose schedules all have a length; one that was left out is 0, which means the run's.

    The parser would take the default of torch, five iterations, or ask for a value.

    Examples:
        >>> with_lengths({"scheduler": "torch.optim.lr_scheduler.CosineAnnealingLR"})["scheduler"]["init_args"]
        {'T_max': 0}
    """
    if isinstance(content, str) and content.startswith(_SCHEDULES) and _length_option(content) is not None:
        return with_lengths({"class_path": content})
    if not isinstance(content, dict):
        return content
    filled = {key: with_lengths(value) if key != "class_path" else value for key, value in content.items()}
    option = _length_option(content.get("class_path"))
    arguments = filled.get("init_args") or {}
    if option is not None and isinstance(arguments, dict) and option not in arguments:
        filled["init_args"] = arguments | {option: 0}
    return filled


def _length_option(class_path: Any) -> str | None:
    """The option that says how long a schedule is, where the parser could not know what leaving it out means."""
    option = SCHEDULE_LENGTHS.get(str(class_path).removeprefix(_SCHEDULES))
    return option if option != "total_steps" else None


def resolve_configs(arguments: list[str]) -> list[str]:
    """Replace the value of every ``--config`` by what it says to the command that ``arguments`` begin with.

    That is a file or, where it builds on others or has sections, all of it as YAML with the file's name before it.
    """
    command, resolved = arguments[0] if arguments else "", list(arguments)
    files: list[str] = []
    for position, argument in enumerate(resolved):
        option, equals, value = argument.partition("=")
        if argument in _CONFIG_OPTIONS and position + 1 < len(resolved):
            resolved[position + 1] = _resolved(resolved[position + 1], command, files)
        elif option == "--config" and equals:
            resolved[position] = f"--config={_resolved(value, command, files)}"
    return _with_typed_lengths(resolved)


def _with_typed_lengths(arguments: list[str]) -> list[str]:
    """The same as :func:`with_lengths`, for schedules that are named on the command line.

    Examples:
        >>> _with_typed_lengths(["--model.scheduler.class_path=torch.optim.lr_scheduler.LinearLR"])[1:]
        ['--model.scheduler.init_args.total_iters=0']
    """
    filled: list[str] = []
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if not equals:
            option, value = filled[-1] if filled else "", argument
        content = with_lengths(value)
        if not isinstance(content, dict):
            filled.append(argument)
        elif option.endswith(".class_path"):
            (length,) = content["init_args"]
            filled += [argument, f"{option.removesuffix('class_path')}init_args.{length}=0"]
        else:
            filled.append(f"{option}={json.dumps(content)}" if equals else json.dumps(content))
    return filled


def _resolved(name: str, command: str, files: list[str]) -> str:
    """A path, or content as YAML; ``files`` are those that a study's cells take so far, one after the other."""
    if "\n" in name:  # the content itself: a process that another one has started
        return name
    path = find_config(name)
    whole = load_config(path)
    as_written = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    content = with_lengths(for_command(whole, command, name))
    if command == "compare":
        content = _with_acquire(content, files, name if has_sections(whole) else None)
    return path if content == as_written else f"# {name}\n{yaml.safe_dump(content, sort_keys=False)}"


def _with_acquire(study: dict[str, Any], files: list[str], name: str | None) -> dict[str, Any]:
    """A study whose cells take what it names, or the file itself (``name``) after those before it."""
    named = study.get("acquire")
    if named is not None:
        files[:] = [named] if isinstance(named, str) else named
    elif name is not None:
        files.append(name)
        return {"acquire": files[0] if len(files) == 1 else list(files)} | study
    return study


# -- impossible values -----------------------------------------------------------------------------


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
