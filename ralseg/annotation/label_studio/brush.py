"""Label Studio's brush masks: a run-length code of bits, of red, green, blue and alpha one after another.

The code is a stream of bits, most significant first. It begins with the number of words (32 bits), the size of a word
less 1 (5 bits: a word is a byte here), and four sizes of counts less 1 (4 bits each). Blocks follow: a bit that says
whether one word is repeated, two bits that choose a size of count, the count less 1, and the word or the words. The
words are a picture of four channels; the mask is its alpha.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ralseg.errors import DataError

THRESHOLD = 128
"""The alpha from which a pixel counts as painted: the edges of drawn strokes are smoothed."""
_CHANNELS, _WORD = 4, 8
_COUNT_BITS = (3, 4, 8, 16)
_HEADER_BITS = 32 + 5 + 4 * 4
_LONGEST = 1 << _COUNT_BITS[-1]


def encode_mask(mask: NDArray[np.bool_]) -> list[int]:
    """The code of a mask [height, width], as Label Studio shows it: alpha 255 where it is true.

    Examples:
        >>> mask = np.eye(3, dtype=bool)
        >>> bool((decode_mask(encode_mask(mask), mask.shape) == mask).all())
        True
    """
    flat = mask.ravel()
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    starts = np.concatenate([[0], edges, [flat.size]])
    bits = [f"{_CHANNELS * flat.size:032b}{_WORD - 1:05b}" + "".join(f"{size - 1:04b}" for size in _COUNT_BITS)]
    # each pixel is four equal words, and a repeated word takes fewer bits than four spelled out: nothing else is used
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        bits += _repeated(255 if flat[start] else 0, _CHANNELS * (stop - start))
    stream = "".join(bits)
    return np.packbits(np.frombuffer(stream.encode(), np.uint8) - ord("0")).tolist()


def _repeated(word: int, count: int) -> Iterable[str]:
    """Blocks that repeat a word so many times."""
    while count:
        part = min(count, _LONGEST)
        place = next(i for i, size in enumerate(_COUNT_BITS) if part <= 1 << size)
        yield f"1{place:02b}{part - 1:0{_COUNT_BITS[place]}b}{word:08b}"
        count -= part


def decode_mask(code: Sequence[int], shape: tuple[int, int]) -> NDArray[np.bool_]:
    """The mask [height, width] of a code, whoever made it: what has at least half of the alpha.

    Args:
        code: Bytes, as Label Studio lists them.
        shape: Height and width that the mask must have. A code of any other size is refused before it is unpacked.
    """
    alpha = decode_alpha(code, shape)
    painted: NDArray[np.bool_] = alpha >= THRESHOLD
    return painted


def decode_alpha(code: Sequence[int], shape: tuple[int, int]) -> NDArray[np.uint8]:
    """The alpha [height, width] of a code; drawn strokes have smooth edges."""
    stream = _Bits(_as_bytes(code, _CHANNELS * shape[0] * shape[1]))
    words, wanted = stream.number(32), _CHANNELS * shape[0] * shape[1]
    if words != wanted:
        raise DataError(
            f"a brush mask of {words} bytes, but {shape[0]}x{shape[1]} pixels (height x width) have {wanted}"
        )
    word = stream.number(5) + 1
    if word != _WORD:
        raise DataError(f"a brush mask with words of {word} bits; only those of {_WORD} are known")
    sizes = [stream.number(4) + 1 for _ in range(4)]
    found, place = np.empty(words, np.uint8), 0
    while place < words:
        is_repeated = stream.number(1)
        count = stream.number(sizes[stream.number(2)]) + 1
        if count > words - place:
            raise DataError("a brush mask that is longer than it says")
        found[place : place + count] = stream.number(_WORD) if is_repeated else stream.words(count)
        place += count
    return found.reshape(*shape, _CHANNELS)[..., -1]


def _as_bytes(code: Sequence[int], words: int) -> NDArray[np.uint8]:
    """The bytes of a code, if it is one and no longer than the longest for so many words."""
    longest = (_HEADER_BITS + (1 + 2 + 16 + _WORD) * words) // 8 + 1  # every word in a block of its own
    if len(code) > longest:
        raise DataError(f"a brush mask of {len(code)} bytes, more than any of its size has")
    try:
        numbers = np.asarray(code)
        is_whole = numbers.ndim == 1 and np.issubdtype(numbers.dtype, np.integer)
    except (ValueError, OverflowError):
        is_whole = False
    if not is_whole or not len(code) or numbers.min() < 0 or numbers.max() > 255:
        raise DataError("a brush mask that is no list of bytes")
    return numbers.astype(np.uint8)


class _Bits:
    """Reads numbers from a stream of bits.

    Args:
        data: The bytes.
    """

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._data, self._place = data, 0
        self._bytes = data.tobytes()

    def number(self, size: int) -> int:
        """The next ``size`` bits, at most 32 of them."""
        start, stop = self._place, self._place + size
        self._need(stop)
        last = (stop + 7) // 8
        value = int.from_bytes(self._bytes[start // 8 : last], "big") >> (8 * last - stop)
        self._place = stop
        return value & ((1 << size) - 1)

    def words(self, count: int) -> NDArray[np.uint8]:
        """The next ``count`` bytes, which may begin in the middle of one."""
        start, stop = self._place, self._place + _WORD * count
        self._need(stop)
        bits = np.unpackbits(self._data[start // 8 : (stop + 7) // 8])
        self._place = stop
        return np.packbits(bits[start % 8 : start % 8 + _WORD * count])

    def _need(self, stop: int) -> None:
        if stop > 8 * len(self._data):
            raise DataError("a brush mask that breaks off")
