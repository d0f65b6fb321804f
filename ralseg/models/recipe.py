"""How a segmenter is made, in plain values: a checkpoint holds it, so that the file alone makes the segmenter again."""

import inspect
from typing import Any

WEIGHTS_KEY = "encoder_weights"
"""Weights come with the checkpoint; where they once came from is nobody's business."""


class RemembersArguments:
    """Remembers what its constructor was given, whatever the subclass and its arguments.

    A class of its own, because parsers take the arguments of a class that defines ``__new__`` from there.

    Examples:
        >>> class Net(RemembersArguments):
        ...     def __init__(self, width=3, **options):
        ...         pass
        >>> recipe_of(Net(5, depth=2, optimizer=max))["init_args"]
        {'width': 5, 'depth': 2}
    """

    not_kept: tuple[str, ...] = ("optimizer", "scheduler")
    """Arguments that only training needs, or the machine that it runs on."""
    _given: dict[str, Any]
    _not_plain: list[str]

    def __new__(cls, *args: Any, **kwargs: Any) -> "RemembersArguments":
        """Note the arguments; copies and unpickled objects come without any, and bring their notes along."""
        made = super().__new__(cls)
        given, not_plain = _plain_arguments(cls, args, kwargs)
        made.__dict__.update(_given=given, _not_plain=not_plain)
        return made


def recipe_of(made: RemembersArguments) -> dict[str, Any]:
    """What makes an object again: its class, and the constructor's arguments that are plain values."""
    kind = type(made)
    arguments = dict(made._given)
    if WEIGHTS_KEY in arguments:
        arguments[WEIGHTS_KEY] = "none"
    recipe = {"class_path": f"{kind.__module__}.{kind.__qualname__}", "init_args": arguments}
    return recipe | ({"left_out": list(made._not_plain)} if made._not_plain else {})


def _plain_arguments(
    kind: type[RemembersArguments], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Arguments by name as plain values, and the names of those that are none."""
    # not that of the class, which would be __new__'s
    signature = inspect.signature(kind.__init__)
    try:
        bound = signature.bind(None, *args, **kwargs).arguments
    except TypeError:  # the constructor itself will say so; or it is not called at all
        return {}, []
    named: dict[str, Any] = {}
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.name in bound:
            is_rest = parameter.kind is inspect.Parameter.VAR_KEYWORD
            named |= bound[parameter.name] if is_rest else {parameter.name: bound[parameter.name]}
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                named[parameter.name] = _NotPlain()  # has no name to be given by
    given: dict[str, Any] = {}
    not_plain = []
    for name, value in named.items():
        if name in kind.not_kept:
            continue
        try:
            given[name] = _plain(value)
        except TypeError:
            not_plain.append(name)
    return given, not_plain


class _NotPlain:
    """Stands for what cannot be written down."""


def _plain(value: Any) -> Any:
    """A copy of a value made of nothing but Python's own plain types; others raise TypeError."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return tuple(_plain(inner) for inner in value)
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    raise TypeError(f"{type(value).__name__} is no plain value")
