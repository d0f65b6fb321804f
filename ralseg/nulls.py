"""Values that the parsers of configurations let through although nothing can be done with them."""

import reprlib
from typing import Any

from jsonargparse import Namespace

from ralseg.errors import ConfigError

_OF_CLASSES = {"class_path", "init_args", "__subclasses_disabled__"}


def refuse_nulls(config: Namespace, defaults: Namespace) -> None:
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
            _refuse_null(key, value, default)


def _refuse_null(key: str, value: Any, default: Any) -> None:
    if value is None and default is not None:
        raise ConfigError(f"{key} is null, but needs a value; leave it out for the default, {reprlib.repr(default)}")
