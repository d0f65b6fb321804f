"""The code of brush masks: what goes in comes out, and what is broken or too large is refused."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ralseg.annotation.label_studio.brush import decode_alpha, decode_mask, encode_mask
from ralseg.errors import DataError

SHAPES = arrays.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=40)


def spelled_out(pixels: np.ndarray, sizes: tuple[int, ...] = (3, 4, 8, 16), block: int = 7) -> list[int]:
    """The code of a picture [height, width, 4] in blocks of words that differ: what a browser makes of smooth edges."""
    words = pixels.ravel().tolist()
    bits = f"{len(words):032b}{7:05b}" + "".join(f"{size - 1:04b}" for size in sizes)
    for start in range(0, len(words), block):
        part = words[start : start + block]
        bits += "0" + "00" + f"{len(part) - 1:0{sizes[0]}b}" + "".join(f"{word:08b}" for word in part)
    bits += "0" * (-len(bits) % 8)
    return [int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)]


@given(arrays.arrays(np.bool_, SHAPES))
def test_a_mask_comes_back_as_it_was(mask):
    assert (decode_mask(encode_mask(mask), mask.shape) == mask).all()


@settings(max_examples=50)
@given(arrays.arrays(np.uint8, SHAPES.map(lambda shape: (*shape, 4))))
def test_what_others_spell_out_is_read(pixels):
    shape = pixels.shape[:2]
    assert (decode_alpha(spelled_out(pixels), shape) == pixels[..., 3]).all()
    assert (decode_alpha(spelled_out(pixels, (5, 1, 2, 3), 30), shape) == pixels[..., 3]).all()


def test_runs_longer_than_any_count():
    mask = np.zeros((300, 300), np.bool_)
    mask[-1, -1] = True
    code = encode_mask(mask)
    assert len(code) < 40
    assert (decode_mask(code, mask.shape) == mask).all()


def test_the_code_is_label_studios():
    """Made by hand from the format's description: 1 x 2 pixels, the first of them painted."""
    bits = (
        f"{8:032b}" + "00111" + "0010" + "0011" + "0111" + "1111" + "100" + "011" + "11111111" + "100" + "011" + "0" * 8
    )
    bits += "0" * (-len(bits) % 8)
    code = [int(bits[i : i + 8], 2) for i in range(0, len(bits), 8)]
    assert encode_mask(np.array([[True, False]])) == code


def test_smooth_edges_of_drawn_strokes_are_cut_at_half():
    """Trap 1: a stroke that was drawn has many values of alpha, and only masks sent by programs have two."""
    alpha = np.array([[0, 1, 127, 128, 200, 255]], np.uint8)
    pixels = np.stack([np.full_like(alpha, 200), alpha * 0, alpha * 0, alpha], axis=-1)
    assert decode_mask(spelled_out(pixels), (1, 6)).tolist() == [[False, False, False, True, True, True]]


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ([], "no list of bytes"),
        ([1, 2, 256], "no list of bytes"),
        ([1, -2], "no list of bytes"),
        ([1, "a"], "no list of bytes"),
        ([[1], [2, 3]], "no list of bytes"),
        ([1.5, 2.0], "no list of bytes"),
        ([2**70, 1], "no list of bytes"),
        ([0, 0], "breaks off"),
        (encode_mask(np.ones((3, 4), np.bool_)), "of 48 bytes, but 4x4 pixels"),
        (encode_mask(np.eye(4, dtype=np.bool_))[:-2], "breaks off"),
        ([255] * 10, "of 4294967295 bytes"),  # gigabytes, if it were believed
        ([0] * 5000, "more than any of its size"),
    ],
)
def test_broken_and_oversized_codes_are_refused(code, problem):
    with pytest.raises(DataError, match=problem):
        decode_mask(code, (4, 4))


def test_words_of_another_size_and_runs_beyond_the_end_are_refused():
    good = "".join(f"{byte:08b}" for byte in encode_mask(np.ones((4, 4), np.bool_)))
    for bits, problem in (
        (good[:32] + "01111" + good[37:], "words of 16 bits"),
        (good[:53] + "1" + "11" + "1" * 16 + "1" * 8 + "0" * 8, "longer than it says"),
    ):
        code = [int(bits[i : i + 8], 2) for i in range(0, len(bits) - 7, 8)]
        with pytest.raises(DataError, match=problem):
            decode_mask(code, (4, 4))


@settings(max_examples=200)
@given(st.lists(st.integers(0, 255), max_size=80))
def test_any_bytes_are_a_mask_or_refused(code):
    header = [0, 0, 0, 64]
    with suppress(DataError):
        assert decode_mask(header + code, (4, 4)).shape == (4, 4)
