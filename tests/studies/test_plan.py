"""A cell of a study is a call with values, not a line of arguments."""

import sys
from pathlib import Path

import pytest
import yaml

from ralseg.commands import run_acquire
from ralseg.errors import ConfigError
from ralseg.runtime import allowed_imports
from ralseg.studies.plan import Study, make_cells, run_cell
from support.configs import ACQUIRE

OPTIONS = {
    "trainer.acquisition.budgets": [4, 6],
    "trainer.final.optimizer.lr": 5e-05,  # json writes 5e-05, which YAML reads as a text
    "trainer.final.max_steps": 4,
    "trainer.experiment": "007",
    "trainer.max_time": None,
    "data.crop": None,
    "data.flip": False,
    "model.dropout": 0.25,
    "model.scheduler": None,
}


def one_cell(**changes):
    options = {"acquire": "tiny.yaml", "folder": "out", "methods": {"uniform": "uniform"}, "seeds": [3]}
    (cell,) = make_cells(Study(**(options | changes)))
    return cell


def test_typed_values_reach_the_call_as_they_are(study_folder):
    heard = []
    assert run_cell(one_cell(options=OPTIONS), heard.append) == "it ended without a result"
    (config,) = heard
    acquisition, final = config["trainer"]["acquisition"], config["trainer"]["final"]
    assert acquisition == {"budgets": [4, 6], "regions_per_step": 4, "pool_size": 3}  # beside what the file says
    assert final["optimizer"] == {"class_path": "torch.optim.AdamW", "init_args": {"lr": 5e-05}}
    assert config["trainer"]["experiment"] == "007"
    assert config["trainer"]["max_time"] is None
    assert config["data"]["crop"] is None
    assert config["data"]["flip"] is False
    assert config["model"]["init_args"]["dropout"] == 0.25
    assert config["model"]["init_args"]["encoder"] == "tu-test_resnet"
    assert (config["policy"], config["seed_everything"], config["ckpt"]) == ("uniform", 3, "last")
    assert config["trainer"]["default_root_dir"] == "out/cells/uniform/seed3"


def test_a_cell_runs_without_arguments(study_folder, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["a notebook", "--not", "an option"])
    cell = one_cell(options=OPTIONS)
    assert run_cell(cell, run_acquire) is None
    assert sys.argv == ["a notebook", "--not", "an option"]
    said = yaml.safe_load((cell.folder / "config.yaml").read_text())
    assert said["trainer"]["acquisition"]["budgets"] == [4, 6]
    assert said["trainer"]["final"]["optimizer"]["init_args"]["lr"] == 5e-05
    assert said["trainer"]["experiment"] == "007"
    assert said["data"]["crop"] is None
    assert said["data"]["flip"] is False
    assert said["model"]["init_args"]["dropout"] == 0.25
    assert said["model"]["init_args"]["scheduler"] is None
    assert (said["policy"], said["seed_everything"]) == ("uniform", 3)
    assert set(cell.result()["budgets"]) == {"4", "6"}


def test_a_value_of_the_wrong_kind_is_said_with_its_key(study_folder):
    problem = run_cell(one_cell(options={"trainer.acquisition.budgets": "many"}), run_acquire)
    assert "trainer.acquisition" in problem
    assert "Traceback" not in problem
    problem = run_cell(one_cell(options={"data.batchsize": 3}), run_acquire)
    assert "batchsize" in problem


def test_a_configuration_may_build_on_others(study_folder):
    Path("more.yaml").write_text("base: [tiny.yaml]\ntrainer: {final: {max_steps: 9}}\n")
    plain, built = one_cell(), one_cell(acquire="more.yaml")
    assert built.content["trainer"]["final"]["max_steps"] == 9
    assert built.content["data"] == plain.content["data"]
    assert built.identity() != plain.identity()
    before = built.identity()
    Path("tiny.yaml").write_text(ACQUIRE.replace("validate_every: 2", "validate_every: 3"))
    assert one_cell(acquire="more.yaml").identity() != before


@pytest.mark.parametrize("key", ["policy", "seed_everything", "ckpt", "trainer.default_root_dir"])
def test_what_the_study_says_itself_is_no_option(key):
    with pytest.raises(ConfigError, match=rf"options\.{key}: the study itself"):
        Study(options={key: "x"})
    with pytest.raises(ConfigError, match=rf"options\.{key}: the study itself"):
        Study(method_options={"uniform": {key: "x"}})


def test_an_oracle_may_be_a_class_with_arguments(study_folder):
    with allowed_imports.restricted():
        assert one_cell(options={"oracle": {"class_path": "ralseg.MaskOracle"}}).options["oracle"]
        with pytest.raises(ConfigError, match=r"options\.oracle evil\.Mine: not imported"):
            one_cell(options={"oracle": {"class_path": "evil.Mine"}})


@pytest.mark.parametrize("oracle", ["crops", "page", "label_studio", {"class_path": "ralseg.annotation.CropOracle"}])
def test_a_study_asks_no_people(study_folder, oracle):
    with pytest.raises(ConfigError, match="people would have to label for every method and seed"):
        one_cell(options={"oracle": oracle})
