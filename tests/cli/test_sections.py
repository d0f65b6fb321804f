"""One file for all commands: the keys that they share, and a section for each."""

import sys
from pathlib import Path

import pytest
import torch
import yaml

from ralseg import commands
from ralseg.cli import main
from ralseg.config import COMMON_KEYS, SECTIONS, command_config, for_command, resolve_configs
from ralseg.engine.acquire_trainer import AcquireTrainer
from ralseg.engine.fit_trainer import FitTrainer
from ralseg.engine.trainer import RunTrainer
from ralseg.errors import ConfigError
from ralseg.studies import run
from ralseg.studies.plan import Study, make_cells
from support.configs import CONF
from support.studies import run_here

PARTS = {name: yaml.safe_load((CONF / f"{name}.yaml").read_text()) for name in ("pretrain", "fit", "acquire")}
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
ONE_CYCLE = {"class_path": "torch.optim.lr_scheduler.OneCycleLR", "init_args": {"max_lr": 4.0e-3}}


def mine() -> dict:
    """tests/conf as one file."""
    acquire = PARTS["acquire"]["trainer"]
    return {
        "seed_everything": 1,
        "data": PARTS["acquire"]["data"],
        "model": PARTS["acquire"]["model"],
        "trainer": QUIET,
        "agent": PARTS["fit"]["agent"],
        "pretrain": {
            "trainer": {"default_root_dir": "runs/pretrain", "max_epochs": 2},
            "model": {"init_args": {"scheduler": ONE_CYCLE}},
            "early_stopping": {"patience": 3},
        },
        "fit": {"trainer": {"default_root_dir": "runs/fit", "game": PARTS["fit"]["trainer"]["game"]}},
        "acquire": {
            "trainer": {"default_root_dir": "runs/acquire", "acquisition": acquire["acquisition"],
                        "final": acquire["final"]},
            "policy": "rare_bald",
            "policy_args": {},
        },
        "compare": {"name": "mine", "folder": "out", "seeds": [0, 1]},
        "predict": {"ckpt": "runs/acquire"},
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["ralseg"])
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write("mine.yaml", mine())
    return tmp_path


def write(name, content):
    Path(name).write_text(yaml.safe_dump(content, sort_keys=False))


def printed(capsys, *arguments) -> dict:
    """The whole configuration as the parser of a command understands it."""
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--print_config"])
    said = capsys.readouterr()
    assert stop.value.code == 0, said.err
    return yaml.safe_load(said.out)


# -- what a command takes ----------------------------------------------------------------------------


def test_each_command_takes_its_own_section(folder, capsys):
    pretrain = printed(capsys, "pretrain", "--config", "mine.yaml")
    assert pretrain["trainer"]["default_root_dir"] == "runs/pretrain"
    assert pretrain["model"]["init_args"]["scheduler"]["class_path"] == ONE_CYCLE["class_path"]
    assert pretrain["model"]["init_args"]["encoder"] == "tu-test_resnet"  # beside the common options of the class
    assert pretrain["trainer"]["enable_progress_bar"] is False
    assert pretrain["early_stopping"]["patience"] == 3
    assert "agent" not in pretrain

    fit = printed(capsys, "fit", "--config", "mine.yaml")
    assert fit["trainer"]["game"]["episodes"] == 2
    assert fit["agent"]["class_path"] == "ralseg.DQN"
    assert fit["model"]["init_args"]["scheduler"] is None

    acquire = printed(capsys, "acquire", "--config", "mine.yaml")
    assert acquire["trainer"]["acquisition"]["budgets"] == [4, 6]
    assert acquire["policy"] == "rare_bald"

    study = printed(capsys, "compare", "--config", "mine.yaml")
    assert (study["name"], study["acquire"]) == ("mine", "mine.yaml")
    assert printed(capsys, "data", "check", "--config", "mine.yaml")["data"]["splits"]["train"] == 6
    assert printed(capsys, "predict", "--config", "mine.yaml")["ckpt"] == "runs/acquire"


def test_test_takes_the_section_of_pretrain_unless_it_has_its_own(folder, capsys):
    assert printed(capsys, "test", "--config", "mine.yaml")["trainer"]["default_root_dir"] == "runs/pretrain"
    write("mine.yaml", mine() | {"test": {"trainer": {"default_root_dir": "elsewhere"}}})
    assert printed(capsys, "test", "--config", "mine.yaml")["trainer"]["default_root_dir"] == "elsewhere"
    assert printed(capsys, "pretrain", "--config", "mine.yaml")["trainer"]["default_root_dir"] == "runs/pretrain"


def test_without_a_section_a_command_takes_what_all_share(folder, capsys):
    write("mine.yaml", {key: value for key, value in mine().items() if key != "fit"})
    found = printed(capsys, "fit", "--config", "mine.yaml")
    assert found["agent"]["init_args"]["batch_size"] == 8
    assert found["trainer"]["logger"] is False
    write("mine.yaml", mine() | {"fit": None})
    assert printed(capsys, "fit", "--config", "mine.yaml")["agent"] == found["agent"]


def test_several_files_and_the_command_line(folder, capsys):
    write("more.yaml", {"data": {"batch_size": 5}, "acquire": {"trainer": {"final": {"max_steps": 8}}}})
    both = ["--config", "mine.yaml", "--config", "more.yaml"]
    found = printed(capsys, "acquire", *both, "--data.batch_size", "6", "--policy", "bald")
    assert (found["data"]["batch_size"], found["policy"]) == (6, "bald")
    assert found["trainer"]["final"]["max_steps"] == 8
    assert found["trainer"]["final"]["validate_every"] == 2
    write("built.yaml", {"base": ["mine.yaml"], "acquire": {"policy": "margin"}})
    assert printed(capsys, "acquire", "--config=built.yaml")["policy"] == "margin"
    assert printed(capsys, "compare", *both)["acquire"] == ["mine.yaml", "more.yaml"]
    assert printed(capsys, "compare", *both, "--acquire", "other.yaml")["acquire"] == "other.yaml"
    write("named.yaml", {"compare": {"acquire": "third.yaml"}})
    assert printed(capsys, "compare", "--config", "mine.yaml", "--config", "named.yaml")["acquire"] == "third.yaml"


def test_what_one_process_hands_to_another_is_taken_as_it_is(folder):
    first = resolve_configs(["fit", "--config", "mine.yaml", "--data.batch_size", "3"])
    assert first[2].startswith("# mine.yaml\n")
    assert not set(yaml.safe_load(first[2])) & set(SECTIONS)
    assert resolve_configs(first) == first


def test_a_study_whose_acquire_names_a_file_is_no_section():
    study = {"name": "x", "acquire": "synthetic_acquire.yaml", "seeds": [1]}
    assert for_command(study, "compare", "study.yaml") is study


def test_all_keys_that_commands_share_are_known(folder):
    """A key that a file with sections may hold is a key of some command, and the other way round."""
    found = set()
    for cli, trainer, names in (
        (commands.SegmenterCLI, RunTrainer, ("pretrain", "test")),
        (commands.FitCLI, FitTrainer, ("fit",)),
        (commands.AcquireCLI, AcquireTrainer, ("acquire",)),
    ):
        for name in names:
            keys = keys_of(cli, trainer, name)
            found |= keys
            assert keys == set(for_command({key: {} for key in COMMON_KEYS} | {"predict": {}}, name, "x"))
    assert found == set(COMMON_KEYS)


def keys_of(cli, trainer, command) -> set[str]:
    class Seen(cli):
        def parse_arguments(self, parser, args):
            keys.extend(self._subcommand_parsers[command].get_defaults().keys())
            raise SystemExit

    keys: list[str] = []
    with pytest.raises(SystemExit):
        commands.run_cli(Seen, trainer, [command])
    return {key.partition(".")[0] for key in keys} - {"config"}


# -- what cannot be meant ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["pretrain", "acquire", "compare", "predict"])
def test_an_unknown_section_is_refused_by_every_command(folder, capsys, command):
    write("mine.yaml", mine() | {"acquires": {}})
    assert main([command, "--config", "mine.yaml"]) == 2
    said = capsys.readouterr().err
    assert "mine.yaml: there is neither a section nor a key acquires; did you mean acquire?" in said


def test_a_section_is_a_group_of_keys(folder):
    with pytest.raises(ConfigError, match=r"mine\.yaml: fit=3: a section must be a group of keys"):
        for_command(mine() | {"fit": 3}, "acquire", "mine.yaml")


# -- whole runs --------------------------------------------------------------------------------------


def test_cells_take_the_section_acquire(folder):
    cell = make_cells(Study(acquire="mine.yaml", seeds=[3]))[0]
    config = cell.config()
    assert config["trainer"]["acquisition"]["budgets"] == [4, 6]
    assert config["trainer"]["default_root_dir"].endswith("uniform/seed3")
    assert config["policy"] == "uniform"
    assert "policy_args" not in config  # they are of rare_bald
    assert not set(config) & set(SECTIONS)
    write("more.yaml", {"acquire": {"data": {"batch_size": 5}}})
    several = make_cells(Study(acquire=["mine.yaml", "more.yaml"], seeds=[3]))[0]
    assert command_config(["mine.yaml", "more.yaml"], "acquire").items() >= several.content.items()
    assert several.content["data"] == cell.content["data"] | {"batch_size": 5}
    assert "--config mine.yaml --config more.yaml" in several.command()
    assert several.identity() != cell.identity()


@pytest.mark.slow
def test_a_study_from_one_file(folder, capsys, monkeypatch):
    assert main(["compare", "--config", "mine.yaml", "--seeds", "[0]", "--emit", "commands"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"ralseg compare --config mine.yaml --seeds '[0]' --cell {method}/seed0" for method in ("uniform", "entropy")
    ]
    assert main(["compare", "--config", "mine.yaml", "--seeds", "[0]", "--cell", "uniform/seed0"]) == 0
    assert Path("out/cells/uniform/seed0/result.json").is_file()
    monkeypatch.setattr(run, "run_cells", run_here)
    assert main(["compare", "--config", "mine.yaml", "--seeds", "[0]"]) == 0
    assert "2 cells, 1 finished" in capsys.readouterr().out
    assert yaml.safe_load(Path("out/study.yaml").read_text())["acquire"] == "mine.yaml"
    assert Path("out/report/report.html").is_file()


def test_pretrain_then_test_from_one_file_with_a_schedule_that_follows(folder, capsys):
    assert main(["pretrain", "--config", "mine.yaml"]) == 0
    saved = torch.load("runs/pretrain/checkpoints/last.ckpt", weights_only=True)
    assert saved["lr_schedulers"][0]["total_steps"] == saved["global_step"] == 2
    assert main(["test", "--config", "mine.yaml"]) == 0
    assert Path("runs/pretrain/test.json").is_file()


@pytest.mark.parametrize("kind", ["CosineAnnealingLR", "PolynomialLR"])
def test_schedules_whose_length_torch_wants_or_invents(folder, kind):
    """By a file, and by the command line."""
    class_path = f"torch.optim.lr_scheduler.{kind}"
    for value in ({"class_path": class_path}, class_path):
        content = mine()
        content["pretrain"]["model"] = {"init_args": {"scheduler": value}}
        write("other.yaml", content)
        assert main(["pretrain", "--config", "other.yaml", "--trainer.overwrite", "true"]) == 0
        saved = torch.load("runs/pretrain/checkpoints/last.ckpt", weights_only=True)
        assert 2 in (saved["lr_schedulers"][0].get("T_max"), saved["lr_schedulers"][0].get("total_iters"))
    options = ["--model.scheduler", class_path, "--trainer.default_root_dir", "typed"]
    assert main(["pretrain", "--config", "mine.yaml", *options]) == 0
    typed = torch.load("typed/checkpoints/last.ckpt", weights_only=True)
    assert typed["lr_schedulers"] == saved["lr_schedulers"]
