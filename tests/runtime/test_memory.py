"""Freed memory that stays with the process."""

import ctypes
import subprocess
import sys

import pytest

from ralseg.runtime import memory

FAULTS = """
import resource, sys
import torch
from ralseg.runtime.memory import keep_freed_memory
if sys.argv[1] == "kept":
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
    faults = {}
    for how in ("kept", "given back"):
        said = subprocess.run([sys.executable, "-c", FAULTS, how], check=True, capture_output=True, text=True)
        faults[how] = int(said.stdout)
    assert faults["kept"] < 1000 < faults["given back"]


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
