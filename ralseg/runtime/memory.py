"""Memory that was freed stays with the process: a network's next pass asks for as much again."""

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names of glibc's options, from malloc.h
_LARGEST_KEPT = 2**31 - 1  # bytes that may lie free before some are given back
_LARGEST_ON_HEAP = 32 * 2**20  # bytes of an array that comes from the heap; glibc allows no more
_USERS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Have the C library keep freed memory, up to 2 GB of it; whether that could be asked for.

    Else it gives an array of some megabytes back to the system at once, and the next one begins with page faults:
    looking at images with a small network took half as long again (``benchmarks/memory.py``). The largest amount that
    a process ever has does not change. Other C libraries than glibc are left alone, and so are settings of the user's.

    Examples:
        >>> keep_freed_memory() in (True, False)
        True
    """
    if sys.platform != "linux" or any(name in os.environ for name in _USERS_OWN):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(
        mallopt(_MMAP_THRESHOLD, _LARGEST_ON_HEAP) and mallopt(_TRIM_THRESHOLD, _LARGEST_KEPT)
    )
