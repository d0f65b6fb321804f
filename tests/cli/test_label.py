"""`ralseg label` on the command line: what it makes of what was typed, and what it refuses."""

import json
from pathlib import Path

import pytest
import yaml

from ralseg.cli import main
from ralseg.errors import ConfigError
from ralseg.label_command import config_of, label_arguments

ACQUIRE = """\
policy: entropy
oracle: crops
trainer: {default_root_dir: mine, acquisition: {budgets: [4], regions_per_step: 4}}
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acquire.yaml").write_text(ACQUIRE)
    return tmp_path


def value(arguments: list[str], option: str) -> str:
    return arguments[len(arguments) - arguments[::-1].index(option)]


def oracle_in(arguments: list[str]) -> dict:
    return json.loads(value(arguments, "--oracle"))


def test_a_configuration_to_begin_with(here):
    made = label_arguments(["--config", "acquire.yaml", "--port", "9000", "--open", "--policy", "bald"])
    assert made[0] == "acquire"
    assert yaml.safe_load(value(made, "--config"))["trainer"]["default_root_dir"] == "mine"
    assert oracle_in(made) == {
        "class_path": "ralseg.annotation.PageOracle",
        "init_args": {"port": 9000, "open_browser": True},
    }
    assert (value(made, "--ckpt"), value(made, "--policy")) == ("last", "bald")
    assert value(made, "--trainer.acquisition.score_steps") == "true"  # people see what their work brings


def test_whoever_says_that_steps_are_not_scored_is_heard(here):
    said = ["--trainer.acquisition.score_steps", "false"]
    made = label_arguments(["-c", "acquire.yaml", *said])
    assert made.count(said[0]) == 1
    (here / "acquire.yaml").write_text(ACQUIRE.replace("regions_per_step: 4", "score_steps: false"))
    assert said[0] not in label_arguments(["-c", "acquire.yaml"])


def test_the_folder_of_a_run(here):
    folder = here / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("policy: bald\noracle: crops\n")
    (folder / "config-001.yaml").write_text(
        "policy: margin\noracle: {class_path: ralseg.annotation.PageOracle, init_args: {min_answers: 3, port: 1}}\n"
        "trainer: {final: {optimizer: 'Unable to serialize instance <function>', max_steps: 4}}\n"
    )
    assert config_of(folder).name == "config-001.yaml"
    made = label_arguments(["runs/one", "--port", "9000"])
    content = yaml.safe_load(value(made, "--config"))
    assert (content["policy"], content["trainer"]["final"]) == ("margin", {"max_steps": 4})
    assert value(made, "--trainer.default_root_dir") == "runs/one"
    assert oracle_in(made)["init_args"] == {"min_answers": 3, "port": 9000}
    assert "--trainer.acquisition.score_steps" not in made  # as it was


@pytest.mark.parametrize("typed", [[], ["runs", "--config", "acquire.yaml"], ["--port", "9000"]])
def test_either_a_folder_or_a_configuration(here, typed):
    with pytest.raises(ConfigError, match="takes the folder of an acquire run"):
        label_arguments(typed)


def test_what_cannot_be_labelled(here, capsys):
    assert main(["label", "nowhere"]) == 2
    assert "holds no configuration of an acquire run" in capsys.readouterr().err
    assert main(["label", "--config", "acquire.yaml", "--port", "many"]) == 2
    assert "--port" in capsys.readouterr().err
    assert main(["label", "--config", "none.yaml"]) == 2
    assert "none.yaml" in capsys.readouterr().err


@pytest.mark.parametrize("oracle", ["masks", "{class_path: ralseg.labels.MaskOracle}", "null"])
def test_labels_that_were_revealed_are_not_mixed_with_people_s(here, capsys, oracle):
    (here / "acquire.yaml").write_text(ACQUIRE.replace("crops", oracle))
    assert label_arguments(["--config", "acquire.yaml"])  # nothing is there yet
    (here / "mine" / "checkpoints").mkdir(parents=True)
    (here / "mine" / "checkpoints" / "last.ckpt").touch()
    assert main(["label", "--config", "acquire.yaml"]) == 2
    assert "were revealed from masks" in capsys.readouterr().err
    assert label_arguments(["--config", "acquire.yaml", "--trainer.default_root_dir", "other"])
    (here / "mine" / "to_label").mkdir()
    (here / "mine" / "to_label" / "journal.jsonl").touch()  # people have labelled: `label` goes on
    assert label_arguments(["--config", "acquire.yaml"])


def test_help(capsys):
    assert main(["label", "--help"]) == 0
    said = capsys.readouterr().out
    for word in ("RUN", "--host", "--port", "--open", "--min_answers", "--reserves", "--reask"):
        assert word in said
