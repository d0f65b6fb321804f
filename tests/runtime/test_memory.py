"""Freed memory that stays with the process."""

import ctypes
import subprocess
import sys

import pytest

from ralseg.runtime import memory

FAULTS = """
import resource
import torch
from ralseg.runtime.memory import keep_freed_memory
assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for number in range(40):
    if number == 10:
        before = faults()
    arrays = [torch.ones(2_000_000) for _ in range(4)]  # 8 MB each
    del arrays
print(faults() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc")
def test_arrays_that_are_freed_and_asked_for_again_cost_no_page_faults():
    said = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True)
    assert int(said.stdout) < 1000


def test_what_the_c_library_is_asked_for(monkeypatch):
    asked = {}

    class Library:
        def mallopt(self, option, value):
            asked[option] = value
            return 1

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr(sys, "platform", "linux")
    assert memory.keep_freed_memory()
    assert asked == {-1: 2**31 - 1, -3: 32 * 2**20}  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_a_users_own_settings_are_left_alone(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("asked the C library"))
    assert not memory.keep_freed_memory()


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not memory.keep_freed_memory()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not memory.keep_freed_memory()
