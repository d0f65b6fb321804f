"""`ralseg acquire`: the right regions, the right number of them, and everything that is written."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ralseg.acquisition.heuristics import HEURISTICS, Uniform
from ralseg.acquisition.policy import Needs
from ralseg.acquisition.scanner import scan
from ralseg.agents.loading import find_policy
from ralseg.cli import main
from ralseg.engine import AcquisitionConfig
from ralseg.engine import session as sessions
from ralseg.engine.acquire_session import SET, AcquireSession
from ralseg.engine.modules import LabellingModule
from ralseg.errors import ConfigError
from ralseg.labels import GridLayout
from support.configs import ACQUIRE
from support.data import small_data
from support.games import UNTRAINED, acquire, segmenter, selected


def test_everything_that_is_written(tmp_path):
    trainer, result = acquire(tmp_path, budgets=[4, 10])
    data = trainer.fit_loop.session.data
    assert len(selected(tmp_path)) == len(set(selected(tmp_path))) == 10
    assert [row[0] for row in selected(tmp_path)] == ["0"] * 4 + ["1"] * 4 + ["2"] * 2
    for budget in (4, 10):
        scores = result["budgets"][str(budget)]
        assert 0 <= scores["test_set/miou"] <= 1
        assert scores["iterations"] == 4
        shares = scores["class_frequencies"]
        assert sum(shares["selected"]) == pytest.approx(1) == pytest.approx(sum(shares["available"]))
        assert shares["selected_entropy"] > 0
        folder = tmp_path / f"budget_{budget:06d}"
        assert (folder / "checkpoints" / "best.ckpt").is_file()
        assert not (folder / "smp").exists()  # its encoder is frozen
    row = next(csv.DictReader((tmp_path / "selection.csv").open()))
    x, y, w, h = (int(row[key]) for key in "xywh")
    index = data.dataset.names.index(row["image"])
    shown = np.asarray(Image.open(tmp_path / "labels" / f"{row['image']}.png"))
    box = (slice(y, y + h), slice(x, x + w))
    assert (shown[box] == data.dataset.read_mask(index)[box]).all()
    hidden = shown == 255
    revealed = {r[1:] for r in selected(tmp_path) if r[1] == row["image"]}
    assert hidden.mean() >= 1 - len(revealed) / 6 - 1e-9
    assert len(list((tmp_path / "overlays").glob("*.png"))) == min(12, len({r[1] for r in selected(tmp_path)}))
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["method"] == "entropy"
    assert "corrected" not in written


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(HEURISTICS))
@pytest.mark.parametrize("candidates", ["pools", "global"])
def test_every_heuristic_in_both_modes(tmp_path, name, candidates):
    acquire(tmp_path, name, candidates=candidates, options=UNTRAINED)
    assert len(set(selected(tmp_path))) == 10


def test_methods_meet_the_same_candidates(data, policy_file):
    seen = {}
    for policy in ("uniform", "margin", policy_file):
        module, config = LabellingModule(segmenter()), AcquisitionConfig([10], 4, pool_size=3)
        module.segmenter.prepare(data)
        found = find_policy(policy, {}, data)
        session = AcquireSession(config, data, module, data.mask_oracle(SET), found)
        seen[policy] = session.observe().pools.tolist()
    assert seen["uniform"] == seen["margin"] == seen[policy_file]


def test_what_is_not_looked_at_costs_no_look_and_is_noted_all_the_same(tmp_path, monkeypatch):
    looked = []

    def counting(network, regions, wanted, what):
        looked[-1] += len(wanted)
        return scan(network, regions, wanted, what)

    monkeypatch.setattr(sessions, "scan", counting)
    for name, needs in (("blind", Uniform.needs), ("looking", Needs())):
        looked.append(0)
        monkeypatch.setattr(Uniform, "needs", needs)
        acquire(tmp_path / name, "uniform", options=UNTRAINED)
    assert looked == [10, 10 * 3]
    assert (tmp_path / "blind/selection.csv").read_text() == (tmp_path / "looking/selection.csv").read_text()


@pytest.mark.parametrize(
    ("rules", "count"),
    [
        ({"budgets": [3]}, 3),  # smaller than K
        ({"budgets": [9], "regions_per_step": 4}, 9),  # K does not divide it
        ({"budgets": [36], "pool_size": 50}, 36),  # the whole set, and N larger than what is left
        ({"budgets": [5, 7], "regions_per_step": 36}, 7),
    ],
)
def test_budgets_are_met_exactly(tmp_path, rules, count):
    acquire(tmp_path, "uniform", options=UNTRAINED, **rules)
    assert len(set(selected(tmp_path))) == len(selected(tmp_path)) == count


def test_impossible_budgets_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="37 exceeds the 36 regions"):
        acquire(tmp_path, budgets=[37])
    with pytest.raises(ConfigError, match="ascending"):
        AcquisitionConfig(budgets=[10, 4])
    with pytest.raises(ConfigError, match="no checkpoint at"):
        acquire(tmp_path, initial_weights="nowhere.ckpt")


def test_whole_images_by_configuration(tmp_path):
    acquire(
        tmp_path,
        data=small_data(layout=GridLayout(1, 1)),
        budgets=[3],
        regions_per_step=1,
        pool_size=2,
        options=UNTRAINED,
    )
    assert {row[2:] for row in selected(tmp_path)} == {("0", "0")}


def test_steps_can_be_scored(tmp_path):
    _, result = acquire(tmp_path, score_steps=True, options=UNTRAINED)
    assert len(result["miou_by_step"]) == 4  # theta_0, and after each step
    acquire(tmp_path / "not", score_steps=False, options=UNTRAINED)
    assert selected(tmp_path) == selected(tmp_path / "not")


def test_the_last_step_leaves_its_result_on_the_loop(tmp_path):
    trainer, _ = acquire(tmp_path, score_steps=True, options=UNTRAINED)
    result = trainer.fit_loop.result
    assert (result.kind, result.axis, result.labelled, result.is_budget) == (SET, 10, 10, True)
    assert result.line == result.news
    assert result.line.startswith("step 3/3 labelled 10/10 mIoU ")
    assert result.metrics["acquisition/labelled"] == 10
    assert result.metrics["reward_set/miou"] == trainer.fit_loop.session.scores[-1]
    assert result.episode is None


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(ACQUIRE)
    assert main(["acquire", "--config", "tiny.yaml", "--policy", "margin"]) == 0
    assert "margin on SyntheticStreets, seed 1" in capsys.readouterr().out
    assert main(["acquire", "--config", "tiny.yaml", "--policy", "margin"]) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert main(["acquire", "--config", "tiny.yaml", "--policy", "margins", "--trainer.overwrite", "true"]) == 2
    assert "neither a file nor one of" in capsys.readouterr().err
