"""Regular expressions from a data set's description, searched in names without trust in their author."""

import json
import re
import reprlib
import subprocess
import sys
import warnings

from ralseg.errors import DataError

MAX_PATTERN = 200
"""Longest pattern, in characters."""
SECONDS = 20.0
"""How long a pattern may take for all names together."""

# Python cannot stop a search that backtracks for years, and a short pattern is enough for that: (a+)+$
_SEARCH = """
import json, re, sys
pattern, names = json.load(sys.stdin)
search = re.compile(pattern).search
json.dump([match and match.group(1) for match in map(search, names)], sys.stdout)
"""


def check_pattern(pattern: object, source: str) -> str:
    """A pattern that can be searched for: short, valid, and with exactly one group.

    Args:
        pattern: What the description says.
        source: File and key, for error messages.

    Examples:
        >>> check_pattern("/([a-z]+)_", "dataset.yaml: 'scenes'")
        '/([a-z]+)_'
    """
    if not isinstance(pattern, str) or not 0 < len(pattern) <= MAX_PATTERN:
        said = reprlib.repr(pattern)
        raise DataError(f"{source} must be a regular expression of 1 to {MAX_PATTERN} characters, got {said}")
    try:
        with warnings.catch_warnings():  # of Python versions to come
            warnings.simplefilter("ignore")
            groups = re.compile(pattern).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise DataError(f"{source} is not a regular expression: {error}, in {pattern!r}") from error
    if groups != 1:
        raise DataError(
            f"{source} must have exactly one group, the part in ( ) that is wanted, but {pattern!r} has {groups}; "
            "write (?: ) for parts that only belong together"
        )
    return pattern


def search_names(pattern: str, names: list[str], source: str) -> list[str | None]:
    """What the pattern's group finds in each name; None where it finds nothing.

    Another process does it, because a process can be stopped when the pattern takes too long.

    Args:
        pattern: As :func:`check_pattern` gave it.
        names: Where to look.
        source: File and key, for error messages.

    Examples:
        >>> search_names("/([a-z]+)_", ["train/berlin_1.png", "val/2.png"], "dataset.yaml: 'scenes'")
        ['berlin', None]
    """
    command = [sys.executable, "-I", "-S", "-W", "ignore", "-c", _SEARCH]
    asked = json.dumps([pattern, names])
    try:
        done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise DataError(
            f"{source}: {pattern!r} takes more than {SECONDS:.0f} s for {len(names)} names; write one without repeats "
            "inside of repeats, and with fewer of them"
        ) from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines()[-1:]
        raise DataError(f"{source}: {pattern!r} cannot be searched for ({''.join(said)})") from error
    found: list[str | None] = json.loads(done.stdout)
    return found
