"""Oracles that answer in part, correct themselves, or come from a configuration."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ralseg import Answer, LabelsNeeded, MaskOracle, Needs, Policy
from ralseg.cli import main
from ralseg.engine.loop import saved_session
from ralseg.errors import RalsegError
from ralseg.runtime.checkpoints import read_checkpoint
from support.configs import ACQUIRE
from support.games import UNTRAINED, Killed, acquire, assert_same, selected


class Hesitant(MaskOracle):
    """Answers one, two or three of the regions that it is asked for, the last first; fails at a step."""

    def __init__(self, fails_at: int = -1) -> None:
        self.fails_at = fails_at

    def ask(self, regions, step):
        if step == self.fails_at:
            raise Killed
        some = regions.flip(0)[: 1 + step % 3]
        return Answer(some, self.label(some))


class Highest(Policy):
    """A region's score is its number."""

    needs = Needs(looks=False)

    def scores(self, observation, generator):
        return observation.pools.float()


def test_an_oracle_that_answers_in_part_still_meets_the_budget_exactly(tmp_path):
    trainer, result = acquire(tmp_path, oracle=Hesitant(), budgets=[4, 10], score_steps=True)
    steps = [int(row[0]) for row in selected(tmp_path)]
    assert len(set(selected(tmp_path))) == len(steps) == 10
    # asked for 4, 3, 1 up to the first budget, then for 4, 4, 3
    assert steps == [0] * 1 + [1] * 2 + [2] * 1 + [3] * 1 + [4] * 2 + [5] * 3
    assert trainer.current_epoch == 6 == len(result["miou_by_step"]) - 1
    assert set(result["budgets"]) == {"4", "10"}
    for budget in (4, 10):
        saved = saved_session(read_checkpoint(tmp_path / "checkpoints" / f"budget_{budget:06d}.ckpt"))
        assert len(saved["ledger"]["labelled"]) == budget
    assert saved["asked"] == [4, 3, 1, 4, 4, 3]


def test_what_was_left_out_is_noted_neither_in_scores_nor_in_predictions(tmp_path):
    trainer, _ = acquire(tmp_path, Highest(), oracle=Hesitant(), options=UNTRAINED)
    session = trainer.fit_loop.session
    rows = list(csv.DictReader((tmp_path / "selection.csv").open()))
    assert [float(row["score"]) for row in rows] == session.ledger.labelled.tolist()
    places = [tuple(map(str, session.regions.place(region))) for region in session.ledger.labelled.tolist()]
    assert [(row["row"], row["column"]) for row in rows] == places
    labels = torch.stack([session.labels[region] for region in session.ledger.labelled.tolist()])
    assert torch.equal(labels, session.oracle.label(session.ledger.labelled))


def state_of(trainer) -> dict:
    """All that a session knows, but for the clock."""
    return {key: value for key, value in trainer.fit_loop.session.state_dict().items() if key != "seconds"}


@pytest.mark.slow
def test_a_partly_answered_run_that_was_cut_off_ends_the_same(tmp_path):
    whole, first = acquire(tmp_path / "whole", "bald", oracle=Hesitant(), budgets=[4, 10])
    for fails_at in (1, 2, 4):
        cut = tmp_path / f"cut {fails_at}"
        with pytest.raises(Killed):
            acquire(cut, "bald", oracle=Hesitant(fails_at), budgets=[4, 10])
        resumed, second = acquire(cut, "bald", oracle=Hesitant(), budgets=[4, 10], ckpt="last")
        assert selected(cut) == selected(tmp_path / "whole")
        assert second["budgets"] == first["budgets"]
        assert resumed.current_epoch == whole.current_epoch == 6
        assert_same(state_of(whole), state_of(resumed), f"cut at {fails_at}")


class Waiting(MaskOracle):
    """Has nothing to say at its second step, the first time."""

    def __init__(self, answers: bool) -> None:
        self.answers = answers

    def ask(self, regions, step):
        if step == 1 and not self.answers:
            return Answer(regions[:0], self.label(regions[:0]))
        return super().ask(regions, step)


def test_a_run_without_an_answer_waits_and_goes_on(tmp_path, capsys):
    acquire(tmp_path / "whole", options=UNTRAINED)
    _, nothing = acquire(tmp_path / "run", oracle=Waiting(answers=False), options=UNTRAINED)
    assert nothing is None
    assert "Waiting has labelled none of the 4 regions of step 1 yet" in capsys.readouterr().out
    assert len(selected(tmp_path / "run")) == 4
    acquire(tmp_path / "run", oracle=Waiting(answers=True), ckpt="last", options=UNTRAINED)
    assert selected(tmp_path / "run") == selected(tmp_path / "whole")


def test_labels_that_nobody_asked_for_are_refused(tmp_path):
    class Eager(MaskOracle):
        def ask(self, regions, step):
            others = (regions + 1) % 36
            return Answer(others, self.label(others))

    with pytest.raises(RalsegError, match=r"Eager labelled regions that nobody asked for \(step 0\)"):
        acquire(tmp_path, oracle=Eager(), options=UNTRAINED)


class Sloppy(MaskOracle):
    """Changes what it should give."""

    def __init__(self, change) -> None:
        self.change = change

    def label(self, regions):
        return self.change(super().label(regions))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda labels: labels.long(), r"Sloppy gave labels \(4, 32, 32\) of torch.int64, but \(4, 32, 32\) of"),
        (lambda labels: labels[:, 1:], r"Sloppy gave labels \(4, 31, 32\) of torch.uint8"),
        (lambda labels: labels.fill_(11), r"Sloppy gave the classes \[11\], but there are 11, from 0 on"),
    ],
)
def test_labels_of_another_kind_are_refused_by_name(tmp_path, change, message):
    with pytest.raises(RalsegError, match=message):
        acquire(tmp_path, oracle=Sloppy(change))


def test_an_oracle_that_needs_time_is_no_failure():
    assert LabelsNeeded("later").exit_code == 0


class Corrected(MaskOracle):
    """Gives other labels than the masks to some regions, and may fail at a step."""

    def __init__(self, wrong: dict[int, int], fails_at: int = -1) -> None:
        self.wrong, self.fails_at = wrong, fails_at

    def ask(self, regions, step):
        if step == self.fails_at:
            raise Killed
        return super().ask(regions, step)

    def label(self, regions):
        labels = super().label(regions)
        for place, region in enumerate(regions.tolist()):
            if region in self.wrong:
                labels[place] = self.wrong[region]
        return labels


def test_masks_that_were_corrected_between_two_runs_are_used_and_told(tmp_path, caplog):
    with pytest.raises(Killed):
        acquire(tmp_path, oracle=Corrected({}, fails_at=1), options=UNTRAINED)
    ledger = saved_session(read_checkpoint(tmp_path / "checkpoints" / "last.ckpt"))["ledger"]
    region = int(ledger["labelled"][2])
    assert not [record for record in caplog.records if "corrected" in record.getMessage()]
    trainer, result = acquire(tmp_path, oracle=Corrected({region: 3}), ckpt="last", options=UNTRAINED)
    warnings = [record for record in caplog.records if "corrected since the checkpoint" in record.getMessage()]
    assert [record.levelname for record in warnings] == ["WARNING"]
    assert str([region]) in warnings[0].getMessage()
    assert result["corrected"] == [region]
    assert json.loads((tmp_path / "result.json").read_text())["corrected"] == [region]
    session = trainer.fit_loop.session
    assert (session.labels[region] == 3).all()
    row = list(csv.DictReader((tmp_path / "selection.csv").open()))[2]
    x, y, w, h = (int(row[key]) for key in "xywh")
    shown = np.asarray(Image.open(tmp_path / "labels" / f"{row['image']}.png"))
    assert (shown[y : y + h, x : x + w] == 3).all()


def test_what_was_corrected_stays_noted_when_a_run_is_resumed_again(tmp_path):
    with pytest.raises(Killed):
        acquire(tmp_path, oracle=Corrected({}, fails_at=1), options=UNTRAINED)
    first, *_, last = saved_session(read_checkpoint(tmp_path / "checkpoints" / "last.ckpt"))["ledger"][
        "labelled"
    ].tolist()
    with pytest.raises(Killed):
        acquire(tmp_path, oracle=Corrected({last: 3}, fails_at=2), ckpt="last", options=UNTRAINED)
    _, result = acquire(tmp_path, oracle=Corrected({last: 3, first: 4}), ckpt="last", options=UNTRAINED)
    assert result["corrected"] == sorted([first, last])


OWN = """
import torch
from ralseg import Oracle

class OneClass(Oracle):
    def __init__(self, label_as: int = 0) -> None:
        self.label_as = label_as
    def label(self, regions):
        return torch.full((len(regions), *self.job.regions.box_size), self.label_as, dtype=torch.uint8)

class NoOracle:
    pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with a configuration and an oracle of one's own in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RALSEG_ALLOW_IMPORT", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_oracle.py").write_text(OWN)
    Path("tiny.yaml").write_text(ACQUIRE)
    own = "oracle: {class_path: own_oracle.OneClass, init_args: {label_as: 2}}\npolicy: uniform\n"
    Path("own.yaml").write_text(ACQUIRE + own)
    return tmp_path


def shown_classes() -> set[int]:
    return {int(v) for path in Path("run/labels").glob("*.png") for v in np.unique(np.asarray(Image.open(path)))}


def test_an_oracle_with_arguments_in_a_configuration(folder, monkeypatch, capsys):
    assert main(["acquire", "--config", "own.yaml"]) == 2  # a configuration alone imports nothing unknown
    assert "--allow_import own_oracle" in capsys.readouterr().err
    assert not Path("run").exists()
    assert main(["acquire", "--config", "own.yaml", "--allow_import", "own_oracle"]) == 0
    assert shown_classes() == {2, 255}
    assert main(["acquire", "--config", "own.yaml", "--allow_import", "own_oracle", "--ckpt", "last"]) == 0
    assert "corrected" not in json.loads(Path("run/result.json").read_text())


def test_an_oracle_by_the_name_of_its_class(folder, capsys):
    command = ["acquire", "--config", "tiny.yaml", "--policy", "uniform", "--oracle"]
    assert main([*command, "own_oracle.OneClass"]) == 0
    assert shown_classes() == {0, 255}
    for name, message in (
        ("own_oracle.NoOracle", "is no subclass of ralseg.labels.oracle.Oracle"),
        ("own_oracle.Nothing", "cannot be imported"),
        ("people", "neither one of masks, crops"),
    ):
        assert main([*command, name, "--trainer.default_root_dir", "other"]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("word", ["crops", "none"])
def test_crops_go_by_their_old_name_too(folder, capsys, word):
    command = ["acquire", "--config", "tiny.yaml", "--policy", "entropy", "--oracle", word]
    assert main(command) == 0
    assert "4 of 4 regions wait for labels" in capsys.readouterr().out
    assert len(json.loads(Path("run/to_label/manifest.json").read_text())["regions"]) == 4
    assert not Path("run/result.json").exists()
