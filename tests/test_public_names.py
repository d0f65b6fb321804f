"""`import ralseg` is quick, and everything it promises is there."""

import subprocess
import sys

import pytest

import ralseg

HEAVY = ("torch", "lightning", "mlflow", "numpy", "jsonargparse")


def test_importing_ralseg_imports_nothing_heavy():
    code = f"import sys, ralseg; dir(ralseg); ralseg.__version__; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", ralseg.__all__)
def test_every_public_name_resolves(name):
    assert getattr(ralseg, name) is not None
    assert name in dir(ralseg)


def test_public_names_are_each_there_once():
    assert len(set(ralseg.__all__)) == len(ralseg.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'Dqn'"):
        _ = ralseg.Dqn
