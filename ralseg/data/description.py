"""What ``dataset.yaml``, or the arguments of ``Folder``, say about the images and masks of a folder."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from ralseg.data import readers
from ralseg.data.base import Colour
from ralseg.data.mask_names import STEM, has_ending
from ralseg.data.name_pattern import check_pattern
from ralseg.errors import ConfigError, DataError, RalsegError

FILE = "dataset.yaml"
KEYS = ("classes", "values", "palette", "ignore", "scenes", "mask_name", "shares")
_LONGEST_NAME = 200
_LONGEST_EXAMPLE = 3


@dataclass(frozen=True)
class Description:
    """How the files of a folder are read.

    Attributes:
        class_names: One name a class.
        colours: One RGB colour a class, for pictures.
        table: Mask value -> class index, 255 = void; None where colours stand for classes.
        palette: RGB colour -> class index, 255 = void; None where values do.
        says_void: Whether somebody has said which values are void; else 255 is, by custom.
        has_values: Whether somebody has said what each value means.
        scenes: Pattern that finds the scene in an image's name.
        mask_name: Pattern of a mask's name.
        shares: How much ``val`` and ``test`` get of images that are not sorted into subsets.
    """

    class_names: tuple[str, ...]
    colours: tuple[Colour, ...]
    table: dict[int, int] | None
    palette: readers.Palette | None
    says_void: bool
    has_values: bool
    scenes: str | None
    mask_name: str
    shares: dict[str, float] | None

    def written_as(self, index: int) -> str:
        """The mask values or the colour of a class, for messages."""
        if self.table is not None:
            return "value " + " or ".join(str(value) for value, known in self.table.items() if known == index)
        assert self.palette is not None
        return "colour " + next(str(list(colour)) for colour, known in self.palette.items() if known == index)


class _Said:
    """What is said under each key and where: an argument wins over the file."""

    def __init__(self, path: Path, arguments: Mapping[str, object]) -> None:
        self.path = path
        self.arguments = {key: value for key, value in arguments.items() if value is not None}
        describes_masks = any(key in self.arguments for key in ("classes", "values", "palette"))
        self.in_file = {} if describes_masks and not path.exists() else _read_yaml(path)
        unknown = sorted(str(key) for key in self.in_file if key not in KEYS)
        if unknown:
            hint = _did_you_mean(unknown[0], KEYS)
            raise DataError(f"{path}: unknown keys {unknown[:5]}{hint}; keys are {', '.join(KEYS)}")
        if "values" in self.arguments or "palette" in self.arguments:  # these say anew what masks hold
            about_masks = ("classes", "values", "palette", "ignore")
            self.in_file = {key: value for key, value in self.in_file.items() if key not in about_masks}

    def get(self, key: str) -> Any:
        """What is said; None where nothing is."""
        return self.arguments.get(key, self.in_file.get(key))

    def source(self, key: str) -> str:
        """Where it is said."""
        return f"data.dataset.init_args.{key}" if key in self.arguments else f"{self.path}: '{key}'"

    def error(self, key: str, text: str) -> RalsegError:
        """What is wrong with it."""
        kind = ConfigError if key in self.arguments else DataError
        return kind(f"{self.source(key)} {text}")


def describe(path: Path, arguments: Mapping[str, object]) -> Description:
    """Read and check a description.

    Args:
        path: The file; it may be missing where the arguments describe the masks.
        arguments: Keys of the file that were given as arguments, None where not.
    """
    said = _Said(path, arguments)
    if said.get("values") is not None and said.get("palette") is not None:
        raise said.error("values", "and 'palette' both say what masks hold; give one of them")
    names = _class_names(said)
    table = palette = None
    colours = default_colours(len(names))
    if said.get("palette") is not None:
        by_name = _palette(said, names)
        palette = _palette_table(said, names, by_name)
        if any(len(set(colour)) > 1 for colour in by_name.values()):  # shades of grey cannot be told apart in pictures
            colours = tuple(by_name[name] for name in names)
    else:
        table = _value_table(said, names)
    values = said.get("values")
    pattern = said.get("scenes")
    return Description(
        class_names=names,
        colours=colours,
        table=table,
        palette=palette,
        says_void=said.get("ignore") is not None or (values is not None and None in values.values()),
        has_values=values is not None,
        scenes=None if pattern is None else check_pattern(pattern, said.source("scenes")),
        mask_name=_mask_name(said),
        shares=_shares(said),
    )


# -- classes -----------------------------------------------------------------------------------------


def _class_names(said: _Said) -> tuple[str, ...]:
    """In the order of ``classes`` or, without that key, of ``values`` or ``palette``."""
    key = next((key for key in ("classes", "values", "palette") if said.get(key) is not None), None)
    if key is None:
        raise DataError(f"{said.path}: must say 'classes', 'values' or 'palette'; {_how_to_describe()}")
    listed = said.get(key)
    names: list[Any] = []
    if key == "classes":
        names = list(listed) if isinstance(listed, list | tuple) else []
    elif key == "values":
        names = [name for name in _mapping(said, key).values() if name is not None]
    else:
        names = list(_mapping(said, key))
    # only plain names are turned into text: nested aliases of YAML would grow without end
    classes = list(map(str, names)) if all(map(_is_name, names)) else []
    if key == "values":
        classes = list(dict.fromkeys(classes))  # several values may share a class
    if len(set(classes)) < max(2, len(classes)):
        hint = f" ({_EXAMPLES[key]})" if key in _EXAMPLES else ""
        raise said.error(key, f"must list at least two different names{hint}, got {reprlib.repr(listed)}")
    if len(classes) > readers.IGNORE:
        raise said.error(key, f"lists {len(classes)} classes, which do not fit 8-bit masks")
    return tuple(classes)


def _is_name(name: object) -> bool:
    return isinstance(name, str | int)


_EXAMPLES = {
    "values": "values: {0: background, 255: crack}",
    "palette": "palette: {road: [128, 64, 128], tree: [0, 128, 0]}",
}


def _mapping(said: _Said, key: str) -> dict[Any, Any]:
    listed = said.get(key)
    if not isinstance(listed, dict) or not listed:
        raise said.error(key, f"must be a mapping, {_EXAMPLES[key]} for example, got {reprlib.repr(listed)}")
    return listed


# -- masks of values ---------------------------------------------------------------------------------


def _value_table(said: _Said, names: tuple[str, ...]) -> dict[int, int]:
    """Mask value -> class index; 255 is void unless it is a class."""
    table = dict(enumerate(range(len(names))))
    if said.get("values") is not None:
        table = _named_values(said, names)
    table.setdefault(readers.IGNORE, readers.IGNORE)
    ignore = said.get("ignore")
    for value in ignore if isinstance(ignore, list) else [ignore] if ignore is not None else []:
        if not _is_level(value):
            raise said.error("ignore", f"must be an id from 0 to 255, or a list of them, got {reprlib.repr(ignore)}")
        if table.get(value, readers.IGNORE) != readers.IGNORE:
            raise said.error("ignore", f"holds {value}, which is also the id of class {names[table[value]]!r}")
        table[value] = readers.IGNORE
    return table


def _named_values(said: _Said, names: tuple[str, ...]) -> dict[int, int]:
    values = _mapping(said, "values")
    if not all(map(_is_level, values)) or not all(name is None or _is_name(name) for name in values.values()):
        raise said.error(
            "values",
            "must map mask values from 0 to 255 to names of classes, or to null for void: "
            f"{_EXAMPLES['values']}; got {reprlib.repr(values)}",
        )
    named = {str(name) for name in values.values() if name is not None}
    _check_names(said, "values", "value", names, named)
    return {value: readers.IGNORE if name is None else names.index(str(name)) for value, name in values.items()}


def _is_level(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255


def _check_names(said: _Said, key: str, what: str, names: tuple[str, ...], given: set[str]) -> None:
    """Every class needs a value or colour, and nothing else has one."""
    wrong = []
    lacking = [name for name in names if name not in given]
    if lacking:
        wrong.append(f"gives no {what} for {', '.join(map(repr, lacking))}")
    unknown = [f"{name!r}{_did_you_mean(name, names)}" for name in sorted(given - set(names))]
    if unknown:
        wrong.append(f"names {', '.join(unknown[:5])}, not in 'classes'")
    if wrong:
        raise said.error(key, f"{'; '.join(wrong)}. It must look like this: {_example(key, names)}")


def _example(key: str, names: tuple[str, ...]) -> str:
    """A mapping for these classes, cut short."""
    if key == "values":
        parts = [f"{value}: {name}" for value, name in enumerate(names)]
    else:
        parts = [f"{name}: {list(colour)}" for name, colour in zip(names, default_colours(len(names)), strict=True)]
    return f"{key}: {{{', '.join(parts[:_LONGEST_EXAMPLE])}{', ...' if len(parts) > _LONGEST_EXAMPLE else ''}}}"


# -- masks of colours --------------------------------------------------------------------------------


def _palette(said: _Said, names: tuple[str, ...]) -> dict[str, Colour]:
    given = _mapping(said, "palette")
    if not all(map(_is_name, given)):
        raise said.error("palette", f"must map names of classes to colours: {_EXAMPLES['palette']}")
    _check_names(said, "palette", "colour", names, {str(name) for name in given})
    return {str(name): _colour(said, "palette", colour) for name, colour in given.items()}


def _palette_table(said: _Said, names: tuple[str, ...], by_name: dict[str, Colour]) -> readers.Palette:
    """Colour -> class index."""
    table: readers.Palette = {}
    for index, name in enumerate(names):
        other = table.setdefault(by_name[name], index)
        if other != index:
            raise said.error("palette", f"gives {names[other]!r} and {name!r}, which share a colour, {by_name[name]}")
    ignore = said.get("ignore")
    if ignore is not None:
        void = _colour(said, "ignore", ignore)
        if void in table:
            raise said.error("ignore", f"is the colour of class {names[table[void]]!r} too, {void}")
        table[void] = readers.IGNORE
    return table


def _colour(said: _Said, key: str, value: object) -> Colour:
    """A colour, or a grey level."""
    if isinstance(value, int) and _is_level(value):
        return value, value, value
    if isinstance(value, list | tuple) and len(value) == 3 and all(map(_is_level, value)):
        return value[0], value[1], value[2]
    raise said.error(
        key, f"holds {reprlib.repr(value)}: a colour must be [r, g, b] or one grey level, with values from 0 to 255"
    )


_PLAIN_TO_ALL: tuple[Colour, ...] = (
    *((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0), (240, 228, 66)),
)
"""Colours that people with any kind of sight tell apart (Okabe and Ito 2008)."""


def default_colours(number: int) -> tuple[Colour, ...]:
    """Distinct colours: the first seven also for the colour-blind, then those of VOC.

    Examples:
        >>> default_colours(2)
        ((0, 114, 178), (230, 159, 0))
    """
    return (*_PLAIN_TO_ALL[:number], *voc_colours(number - len(_PLAIN_TO_ALL)))


def voc_colours(number: int) -> tuple[Colour, ...]:
    """The colours of VOC's classes 1, 2, ...: the bits of a class's number, spread over red, green and blue.

    Examples:
        >>> voc_colours(3)
        ((128, 0, 0), (0, 128, 0), (128, 128, 0))
    """
    colours = []
    for index in range(1, number + 1):
        rgb = [0, 0, 0]
        for bit in range(8):
            for channel in range(3):
                rgb[channel] |= (index >> channel & 1) << (7 - bit)
            index >>= 3
        colours.append((rgb[0], rgb[1], rgb[2]))
    return tuple(colours)


# -- files -------------------------------------------------------------------------------------------


def _mask_name(said: _Said) -> str:
    pattern = said.get("mask_name")
    if pattern is None:
        return STEM
    is_name = isinstance(pattern, str) and len(pattern) <= _LONGEST_NAME and "/" not in pattern and "\0" not in pattern
    if not is_name or pattern.count(STEM) != 1:
        raise said.error(
            "mask_name",
            f"must be a file name with {STEM} once in it, '{STEM}_mask' or 'gt_{STEM}.png' for example, "
            f"got {reprlib.repr(pattern)}",
        )
    if has_ending(pattern) and pattern.lower().endswith((".jpg", ".jpeg")):
        raise said.error("mask_name", f"is {pattern!r}, but JPEG changes mask values near edges; save masks as PNG")
    return str(pattern)


def _shares(said: _Said) -> dict[str, float] | None:
    shares = said.get("shares")
    if shares is None:
        return None
    subsets = ("val", "test")
    is_right = isinstance(shares, dict) and all(
        key in subsets and isinstance(value, int | float) and 0 <= value < 1 for key, value in shares.items()
    )
    if not is_right or not sum(shares.values()) < 1:
        raise said.error(
            "shares",
            "must say which part of the labelled images 'val' and 'test' get, together less than 1: "
            f"shares: {{val: 0.2, test: 0.2}}; got {reprlib.repr(shares)}",
        )
    return {str(key): float(value) for key, value in shares.items()}


def _read_yaml(path: Path) -> dict[Any, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: missing; {_how_to_describe()}") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise DataError(f"{path}: not valid YAML ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: must be a mapping; {_how_to_describe()}")
    return content


def _how_to_describe() -> str:
    return (
        "write 'classes: [name of id 0, name of id 1, ...]' into it (or 'values: {0: name, 255: name}'), or give "
        "data.dataset.init_args.classes; `ralseg init FOLDER` looks at the masks and proposes a description"
    )


def _did_you_mean(name: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(name, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
