"""Studies on other machines: here submitit's local executor and a Ray of one worker stand for them."""

from pathlib import Path

import pytest

from ralseg.cli import main
from ralseg.errors import ConfigError
from ralseg.runtime import ray_cluster
from ralseg.studies import run
from ralseg.studies.executors import Ray, Submitit, make_executor
from ralseg.studies.plan import Study, make_cells
from support.configs import STUDY
from support.studies import run_here

OPTIONS = {
    "submitit": "{cluster: local, folder: submitit, timeout_min: 10}",
    "ray": "{address: null, init: {num_cpus: 1, object_store_memory: 80000000}}",
}


def one_cell(method: str) -> None:
    """A study of one cell: processes take seconds to start."""
    text = STUDY.replace("seeds: [0, 1]", "seeds: [0]").replace("ours: entropy\n", "")
    Path("study.yaml").write_text(text.replace("{uniform: uniform, entropy: entropy}", method))


@pytest.mark.parametrize("engine", OPTIONS)
@pytest.mark.slow
def test_an_engine_gives_what_this_process_gives(study_folder, monkeypatch, capsys, engine):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one_cell("{uniform: uniform}")
    arguments = ["compare", "--config", "study.yaml"]
    assert main([*arguments, "--engine", engine, "--engine_options", OPTIONS[engine]]) == 0
    assert "1/1 cells" in capsys.readouterr().out
    numbers = Path("out/report/results.csv").read_text()
    assert "result:" in Path("out/logs/uniform-seed0.txt").read_text()
    monkeypatch.setattr(run, "run_cells", run_here)
    assert main([*arguments, "--folder", "here", "--name", "here"]) == 0
    assert Path("here/report/results.csv").read_text() == numbers


@pytest.mark.slow
def test_a_cell_that_fails_elsewhere_is_reported_here(study_folder, capsys):
    one_cell("{x: entropi}")
    options = ["--engine", "submitit", "--engine_options", OPTIONS["submitit"], "--retries", "0"]
    assert main(["compare", "--config", "study.yaml", *options]) == 3  # nothing to report on
    said = capsys.readouterr().out
    assert said.count("FAILED") == 1
    assert "neither a file nor one of" in said


class Flaky:
    """Fails each cell once."""

    def __init__(self):
        self.asked = []

    def run(self, cells, acquire):
        for cell in cells:
            yield cell, None if cell.title in self.asked else "not yet"
            self.asked.append(cell.title)


def test_retries(study_folder):
    cells = make_cells(Study(acquire="tiny.yaml", folder="out", seeds=[0, 1]))
    said = []
    engine = Flaky()
    assert run.run_cells(cells, engine, None, 1, said.append) == {}
    assert len(engine.asked) == 8
    assert "4/4 cells" in said[-1]
    assert set(run.run_cells(cells, Flaky(), None, 0, said.append)) == {cell.title for cell in cells}


def test_options_that_an_engine_does_not_have():
    with pytest.raises(ConfigError, match=r"engine_options=.*num_cpu"):
        make_executor(Study(engine="ray", engine_options={"num_cpu": 3}))
    assert isinstance(make_executor(Study(engine="submitit", engine_options={"slurm_partition": "x"})), Submitit)
    assert isinstance(make_executor(Study(engine="ray")), Ray)


def test_an_engine_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(ray_cluster.importlib, "import_module", _absent)
    with pytest.raises(ConfigError, match=r"engine=ray needs `pip install 'ralseg\[ray\]'`"):
        next(Ray().run([], None))


def _absent(name):
    raise ModuleNotFoundError(name)
