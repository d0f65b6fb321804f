"""`ralseg fit` as a person types it."""

from pathlib import Path

import pytest

from ralseg.cli import main
from support.configs import FIT


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with a configuration in it."""
    monkeypatch.chdir(tmp_path)
    Path("fit.yaml").write_text(FIT)
    return tmp_path


@pytest.mark.slow
def test_fit_from_the_command_line(folder, capsys):
    text = FIT.replace("enable_progress_bar: false", "enable_progress_bar: true")
    Path("fit.yaml").write_text(f"{text}  crop: [48, 64]\n")
    assert main(["fit", "--config", "fit.yaml"]) == 0
    out = capsys.readouterr().out
    assert "greedy validation" in out
    assert "episode 5/5" in out
    assert "s left" in out
    assert Path("run/config.yaml").is_file()
    assert main(["fit", "--config", "fit.yaml"]) == 2  # never over an earlier run
    options = ["--trainer.game.episodes", "4", "--ckpt", "last"]
    assert main(["fit", "--config", "fit.yaml", *options]) == 0  # more episodes: it goes on
    assert main(["fit", "--config", "fit.yaml", "--trainer.game.budget", "600", "--trainer.overwrite", "true"]) == 4
    assert "exceeds the 36 regions" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("agent", "option"),
    [
        ("ralseg.DQN", "block"),
        ("ralseg.PairedBlocks", "n_steps"),
        ("ralseg.RarityForecast", "gamma"),
    ],
)
def test_an_option_that_the_agent_does_not_have_is_an_error_that_names_it(folder, capsys, agent, option):
    text = FIT.replace("ralseg.DQN", agent).replace("epsilon_decay: 10.0", f"epsilon_decay: 10.0, {option}: 1")
    Path("other.yaml").write_text(text)
    command = ["fit", "--config", "fit.yaml", "--agent", agent, f"--agent.{option}", "1"]
    for arguments in (["fit", "--config", "other.yaml"], command):
        assert main(arguments) == 2
        message = capsys.readouterr().err
        assert option in message
        assert agent.rpartition(".")[2] in message
        assert "Traceback" not in message
    assert not Path("run").exists()


def test_without_an_agent_fit_says_what_to_set(folder, capsys):
    start, end = FIT.index("agent:"), FIT.index("data:")
    Path("fit.yaml").write_text(FIT[:start] + FIT[end:])
    assert main(["fit", "--config", "fit.yaml"]) == 2
    assert "agent.class_path" in capsys.readouterr().err
