"""The same picture twice: what a network was trained on must not be what it is tested on."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

NEAR = 3
"""Pictures look the same from afar when so many of 64 bits differ at most."""
_MOST = 20_000  # images whose looks are compared; more would take long


class Twins(NamedTuple):
    """Two images that show the same; where they stand, None where they stand in no set."""

    first: int
    second: int
    first_set: str | None
    second_set: str | None


def same_pixels(digests: Sequence[bytes | None], set_of: Mapping[int, str]) -> list[Twins]:
    """Images that have the pixels of an image before them; those of another set come first.

    Args:
        digests: Checksum of each image's pixels.
        set_of: The set that each image stands in.

    Examples:
        >>> same_pixels([b"a", b"b", b"a"], {0: "train_set", 2: "test_set"})
        [Twins(first=0, second=2, first_set='train_set', second_set='test_set')]
    """
    groups: dict[bytes, list[int]] = defaultdict(list)
    for index, digest in enumerate(digests):
        if digest is not None:
            groups[digest].append(index)
    twins = []
    for group in groups.values():
        first, *others = sorted(group, key=lambda index: (index not in set_of, index))
        for index in others:
            twins.append(Twins(first, index, set_of.get(first), set_of.get(index)))
    return sorted(twins, key=lambda pair: (not across(pair), pair.first, pair.second))


def across(pair: Twins) -> bool:
    """Whether the two stand in different sets."""
    return pair.first_set is not None and pair.second_set is not None and pair.first_set != pair.second_set


def same_look(looks: Sequence[int | None], digests: Sequence[bytes | None], set_of: Mapping[int, str]) -> list[Twins]:
    """Images of one set that look nearly like one of another set without having its pixels; one such pair an image.

    Args:
        looks: What each image looks like from afar, in 64 bits; None where that says nothing.
        digests: Checksum of each image's pixels.
        set_of: The set that each image stands in.

    Examples:
        >>> same_look([7, 6], [b"a", b"b"], {0: "train_set", 1: "test_set"})
        [Twins(first=0, second=1, first_set='train_set', second_set='test_set')]
    """
    known = [index for index, look in enumerate(looks) if look is not None and index in set_of]
    if len(known) > _MOST:
        return []
    bits = np.array([looks[index] for index in known], np.uint64)
    names = np.array([set_of[index] for index in known])
    twins = []
    for place, index in enumerate(known):
        near = np.bitwise_count(bits[place + 1 :] ^ bits[place]) <= NEAR
        for other in np.flatnonzero(near & (names[place + 1 :] != names[place])):
            second = known[place + 1 + int(other)]
            if digests[index] != digests[second]:
                twins.append(Twins(index, second, set_of[index], set_of[second]))
                break
    return twins
