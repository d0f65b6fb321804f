"""What a configuration may import."""

import sys
from pathlib import Path

import pytest

from ralseg.cli import main
from ralseg.runtime import allowed_imports
from support.configs import ACQUIRE, PRETRAIN, STUDY

CALLS = {
    "a class": "{class_path: subprocess.Popen, init_args: {args: [touch, marker]}}",
    "a function": "os.system",
    "by a detour": "{class_path: ralseg.commands.subprocess.Popen, init_args: {args: [touch, marker]}}",
    "somebody's": "{class_path: evil.Optimizer}",
}


@pytest.mark.parametrize("value", CALLS.values(), ids=CALLS)
def test_a_configuration_cannot_import_what_nobody_named(tmp_path, monkeypatch, capsys, value):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RALSEG_ALLOW_IMPORT", "")
    Path("evil.py").write_text("open('marker', 'w')\n")
    optimizer = "{class_path: torch.optim.AdamW, init_args: {lr: 5.0e-3}}"
    Path("evil.yaml").write_text(PRETRAIN.replace(optimizer, value))
    assert main(["pretrain", "--config", "evil.yaml"]) == 2
    assert "does not import unasked; if you trust it, add --allow_import" in capsys.readouterr().err
    assert not Path("marker").exists()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("policy: my-evil.Mine", "my-evil.py"),
        ("policy: evil.Mine", "evil.py"),
        ("policy: uniform\noracle: evil.ckpt", "evil.py"),
        ("policy: uniform\noracle: evil.Mine", "evil.py"),
    ],
)
def test_policies_and_oracles_of_a_configuration_are_not_imported(tmp_path, monkeypatch, capsys, text, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RALSEG_ALLOW_IMPORT", "")
    Path(name).write_text("open('marker', 'w')\n")
    Path("evil.Mine").write_text("")  # a file of that name makes no difference
    Path("acquire.yaml").write_text(f"{text}\n" + ACQUIRE)
    arguments = ["acquire", "--config", "acquire.yaml", "--trainer.fast_dev_run", "true", "--trainer.logger", "false"]
    assert main(arguments) in (2, 3)
    assert not Path("marker").exists()


@pytest.mark.parametrize(
    "options",
    ["{oracle: evil.Mine}", "{oracle: {class_path: evil.Mine}}", "{policy: evil.Mine}", "{allow_import: evil}"],
)
def test_a_study_cannot_allow_itself_anything(tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RALSEG_ALLOW_IMPORT", "")
    Path("evil.py").write_text("open('marker', 'w')\n")
    Path("tiny.yaml").write_text(ACQUIRE)
    Path("compare.yaml").write_text(STUDY + f"options: {options}\n")
    assert main(["compare", "--config", "compare.yaml", "--cell", "uniform/seed0"]) != 0
    assert not Path("marker").exists()


def test_a_second_rank_is_allowed_what_the_first_one_was(monkeypatch):
    """Lightning starts it with arguments that may come from a study; torchrun with what a person typed."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv(allowed_imports.VARIABLE, "mine")
    arguments = ["acquire", "--oracle", "evil.Mine", "--allow_import", "evil"]
    assert allowed_imports.take_allowed(arguments) == ["acquire", "--oracle", "evil.Mine"]
    assert allowed_imports.allowed_by_user() == ["mine"]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    allowed_imports.take_allowed(arguments)
    assert allowed_imports.allowed_by_user() == ["mine", "evil"]


OWN = """
from ralseg.acquisition.policy import Needs, Policy
from ralseg.data import SyntheticStreets

class Mine(Policy):
    def scores(self, seen, generator):
        return seen.entropy

class Streets(SyntheticStreets):
    pass
"""


def test_what_a_person_names_is_imported(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RALSEG_ALLOW_IMPORT", "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("own_things.py").write_text(OWN)
    Path("acquire.yaml").write_text("policy: own_things.Mine\n" + ACQUIRE)
    arguments = ["acquire", "--config", "acquire.yaml", "--trainer.fast_dev_run", "true", "--trainer.logger", "false"]
    assert main(arguments) == 2
    assert "--policy own_things.Mine: not imported" in capsys.readouterr().err
    assert main([*arguments, "--allow_import", "own_things"]) == 0
    monkeypatch.setenv("RALSEG_ALLOW_IMPORT", "")
    assert main([*arguments, "--policy", "own_things.Mine"]) == 0  # typed by a person
    assert main([*arguments, "--allow_import", "no such"]) == 2
    assert main([*arguments, "--allow_import"]) == 2
