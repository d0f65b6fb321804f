"""Acquisitions that are cut off, go on, or branch off at a budget."""

import lightning.pytorch as pl
import pytest
import torch

from ralseg.errors import ConfigError
from ralseg.labels import GridLayout
from support.data import small_data
from support.games import Killed, acquire, final, selected


class CutOff(pl.Callback):
    """Ends the run when so many steps are done, before the last of them is saved."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.fit_loop.session.step == self.steps:
            raise Killed


@pytest.mark.slow
def test_a_branch_equals_a_direct_run_and_touches_nothing(tmp_path):
    _, both = acquire(tmp_path / "both", budgets=[4, 10])
    _, direct = acquire(tmp_path / "direct", budgets=[4])
    _, whole = acquire(tmp_path / "whole", budgets=[10])
    assert both["budgets"]["4"] == direct["budgets"]["4"]
    assert both["budgets"]["10"] == whole["budgets"]["10"]
    assert selected(tmp_path / "both") == selected(tmp_path / "whole")


@pytest.mark.slow
def test_an_acquisition_that_was_cut_off_ends_the_same(tmp_path):
    _, whole = acquire(tmp_path / "whole", "bald", budgets=[4, 10])
    for after in (1, 2):
        cut = tmp_path / f"cut {after}"
        with pytest.raises(Killed):
            acquire(cut, "bald", budgets=[4, 10], options={"callbacks": [CutOff(after + 1)]})
        _, resumed = acquire(cut, "bald", budgets=[4, 10], ckpt="last")
        assert selected(cut) == selected(tmp_path / "whole")
        assert resumed["budgets"] == whole["budgets"]
        assert "corrected" not in resumed
    _, again = acquire(cut, "bald", budgets=[4, 10], ckpt="last")
    assert again["budgets"] == whole["budgets"]
    with pytest.raises(ConfigError, match="other rules: pool_size, policy differ"):
        acquire(cut, "entropy", budgets=[4, 10], ckpt="last", pool_size=2)


def test_a_run_goes_on_only_as_it_was_started(tmp_path, policy_file):
    acquire(tmp_path, policy_file)
    other = tmp_path / "other.ckpt"
    content = torch.load(policy_file, weights_only=True)
    torch.save(content | {"changed": 1}, other)
    with pytest.raises(ConfigError, match="other rules: policy differ"):
        acquire(tmp_path, str(other), ckpt="last")
    with pytest.raises(ConfigError, match="other rules: layout differ"):
        acquire(tmp_path, policy_file, small_data(layout=GridLayout(1, 6)), ckpt="last")
    with pytest.raises(ConfigError, match="a final training with other options"):
        acquire(tmp_path, policy_file, ckpt="last", options={"final": final(max_steps=6)})
    with pytest.raises(ConfigError, match="8 was not among the budgets when the run"):
        acquire(tmp_path, policy_file, ckpt="last", budgets=[8, 10])


def test_larger_budgets_may_follow(tmp_path):
    acquire(tmp_path / "grown", budgets=[4])
    _, grown = acquire(tmp_path / "grown", budgets=[4, 10], ckpt="last")
    _, direct = acquire(tmp_path / "direct", budgets=[4, 10])
    assert grown["budgets"] == direct["budgets"]
    assert selected(tmp_path / "grown") == selected(tmp_path / "direct")
