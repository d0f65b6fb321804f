"""Examples are code that runs: those in docstrings, and the scripts in examples/."""

import doctest
import importlib
import pkgutil
import re
import runpy
import tempfile
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
def test_a_script(script, tmp_path, monkeypatch, capsys):
    lines = (ROOT / "examples" / script).read_text().splitlines()
    assert len(lines) < 40
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    assert "learned test mIoU" in capsys.readouterr().out
