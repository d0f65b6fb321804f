"""Examples are code that runs: those in docstrings, and the scripts in examples/."""

import doctest
import importlib
import json
import pkgutil
import re
import runpy
import tempfile
from pathlib import Path

import pytest
from matplotlib import pyplot

import ralseg
from benchmarks.notebook import cells

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


# what a script says at its end
SCRIPTS = {
    "own_acquisition.py": "One seed is no evidence",
    "own_data.py": "predictions: 24",
    "own_segmenter.py": "predicted in one image: ",
    "small_game.py": "learned test mIoU",
}
NOTEBOOK = ROOT / "examples/tour.ipynb"


@pytest.fixture
def short(tmp_path, monkeypatch):
    """Examples in their shortened form, with all their files in a folder that is thrown away."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("RALSEG_SHORT", "1")
    pyplot.switch_backend("Agg")


def test_every_script_is_tried():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {*SCRIPTS, "tour.py"}


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script(script, short, capsys):
    runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
    assert SCRIPTS[script] in capsys.readouterr().out


def code_cells() -> list[dict]:
    return [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_is_what_its_source_says_and_was_run():
    kept = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(NOTEBOOK.read_text())["cells"]]
    assert kept == cells((ROOT / "examples/tour.py").read_text()), "`make notebook` makes it anew"
    assert [cell["execution_count"] for cell in code_cells()] == [*range(1, len(code_cells()) + 1)]
    outputs = [output for cell in code_cells() for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"stream", "display_data"}
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert not re.search(r"/(home|root|tmp|work|Users)/", json.dumps(outputs))


@pytest.mark.slow
def test_the_notebooks_cells_run(short, capsys):
    names = {"__name__": "__main__"}
    for cell in code_cells():
        exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
    pyplot.close("all")
    assert re.search(r"theta_0, from 4 labelled images: test mIoU \d", capsys.readouterr().out)
    assert {*names["scores"]} == {"uniform", "entropy", "rare_bald", "ralseg"}
