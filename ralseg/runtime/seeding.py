"""Random streams by name: every draw is a function of (seed, what it is for, when), never of history.

So a resumed run draws what the uninterrupted one would have drawn, the number of workers changes
nothing, and two games that should share their luck simply share their numbers.
"""

import zlib

import torch


def mixed_seed(*parts: int) -> int:
    """One well-mixed 63-bit seed from several numbers (splitmix64), so that streams do not overlap."""
    state = 0
    for part in parts:
        state = (state ^ (part & (2**64 - 1))) + 0x9E3779B97F4A7C15 & (2**64 - 1)
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & (2**64 - 1)
        state = (state ^ state >> 27) * 0x94D049BB133111EB & (2**64 - 1)
        state ^= state >> 31
    return state >> 1


def stream_seed(seed: int, name: str, *counters: int) -> int:
    """The seed of the stream ``name`` at ``counters``."""
    return mixed_seed(seed, zlib.crc32(name.encode()), *counters)


def stream(seed: int, name: str, *counters: int) -> torch.Generator:
    """A generator for the stream ``name`` at ``counters``, always in the same state."""
    return torch.Generator().manual_seed(stream_seed(seed, name, *counters))
