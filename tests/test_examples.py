"""Examples are code that runs: those in docstrings, and the scripts in examples/."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ralseg

ROOT = Path(ralseg.__file__).parent.parent
MODULES = sorted(
    module.name for module in pkgutil.walk_packages(ralseg.__path__, "ralseg.") if "__main__" not in module.name
)
QUIET = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=QUIET)
    assert not failed


@pytest.mark.parametrize("name", [name for name in ralseg.__all__ if callable(getattr(ralseg, name))])
def test_every_public_name_has_an_example(name):
    assert ">>> " in (getattr(ralseg, name).__doc__ or "")


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", (ROOT / "docs/plugins.md").read_text(), re.S))
def test_a_part_in_the_documentation(block):
    exec(compile(block, "docs/plugins.md", "exec"), {"__name__": "part_of_ones_own"})


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_a_script(script, tmp_path):
    lines = (ROOT / "examples" / script).read_text().splitlines()
    assert len(lines) < 40
    done = subprocess.run([sys.executable, ROOT / "examples" / script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "learned test mIoU" in done.stdout
