"""Run lengths: how CVAT and COCO write a binary mask, counted by turns from a run of zeros on."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ralseg.errors import DataError

Bits = NDArray[np.bool_]
Counts = NDArray[np.int64]
_LONGEST_GROUP = 12
"""Groups of 5 bits in a number: 60 bits are more than any mask has pixels."""


def run_lengths(bits: Bits) -> Counts:
    """Lengths of the runs of a row of bits, the first of which is of zeros and may be empty.

    Examples:
        >>> run_lengths(np.array([1, 1, 0, 1], bool)).tolist()
        [0, 2, 1, 1]
    """
    changes = np.flatnonzero(np.diff(bits)) + 1
    edges = np.concatenate([[0], changes, [len(bits)]])
    counts = np.diff(edges).astype(np.int64)
    return np.concatenate([[0], counts]) if len(bits) and bits[0] else counts


def checked(counts: Iterable[int], size: int, where: str) -> Counts:
    """Counts that fill ``size`` pixels exactly; others are refused before room is made for them."""
    listed = list(counts)
    if not all(0 <= count <= size for count in listed):
        wrong = next(count for count in listed if not 0 <= count <= size)
        raise DataError(f"{where}: a run of {str(wrong)[:30]} pixels in a mask of {size}")
    if sum(listed) != size:
        raise DataError(f"{where}: its runs are {sum(listed)} pixels long together, but the mask has {size}")
    return np.array(listed, np.int64)


def bits_of(counts: Counts) -> Bits:
    """The row of bits that counts stand for.

    Examples:
        >>> bits_of(np.array([0, 2, 1, 1])).astype(int).tolist()
        [1, 1, 0, 1]
    """
    return np.repeat(np.arange(len(counts)) % 2 == 1, counts)


def compress(counts: Iterable[int]) -> str:
    """Counts as COCO's text: from the fourth on as the difference from the count before last, 5 bits a character.

    The lowest bits come first. A sixth bit says that more follow; the highest bit of the last group is the sign.

    Examples:
        >>> compress([6, 1, 40, 4, 5])
        '61X13mN'
    """
    listed = [int(count) for count in counts]
    text = []
    for place, count in enumerate(listed):
        rest = count - listed[place - 2] if place > 2 else count
        while True:
            group, rest = rest & 31, rest >> 5
            is_last = rest == (-1 if group & 16 else 0)
            text.append(chr(48 + (group if is_last else group | 32)))
            if is_last:
                break
    return "".join(text)


def decompress(text: str, where: str) -> list[int]:
    """Counts of COCO's text; what is no such text is a DataError.

    Examples:
        >>> decompress('61X13mN', "example")
        [6, 1, 40, 4, 5]
    """
    counts: list[int] = []
    value = length = 0
    for character in text:
        group = ord(character) - 48
        if not 0 <= group < 64 or length == _LONGEST_GROUP:
            raise DataError(f"{where}: {character!r} cannot stand there in compressed run lengths")
        value |= (group & 31) << (5 * length)
        length += 1
        if group & 32:
            continue
        if group & 16:
            value -= 1 << (5 * length)
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = length = 0
    if length:
        raise DataError(f"{where}: its compressed run lengths break off in the middle of a number")
    return counts
