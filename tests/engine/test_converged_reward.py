"""Rewards of converged segmenters: closed form, or after a short training on everything labelled."""

import json
from dataclasses import replace

import pytest
import torch

from ralseg.agents import QueryNetwork, RarityForecast
from ralseg.data.samples import SeededSampler
from ralseg.engine import ShortTraining
from ralseg.engine.short_training import ConvergedWeights
from ralseg.engine.trainer import RunTrainer
from ralseg.errors import ConfigError
from ralseg.models.closed_form import ClosedFormSegmenter
from support.closed_form import closed_form
from support.data import small_data
from support.games import (
    QUIET,
    Killed,
    acquire,
    assert_same,
    blocks,
    everything,
    final,
    game,
    play,
    segmenter,
    selected,
)


def pretrained(folder, data=None, epochs=1, **changes) -> str:
    """theta_0 of a closed-form game."""
    net = closed_form(**changes)
    trainer = RunTrainer(default_root_dir=str(folder), max_epochs=epochs, num_sanity_val_steps=0, **QUIET)
    trainer.pretrain(net, data or small_data(flip=False, fit_images=2))
    return str(folder / "checkpoints" / "last.ckpt")


def test_pretraining_longer_changes_nothing(tmp_path):
    one, three = (torch.load(pretrained(tmp_path / str(n), epochs=n), weights_only=True) for n in (1, 3))
    assert one["state_dict"]["counts"].sum() > 0
    assert_same(one["state_dict"], three["state_dict"])


def test_every_reward_is_that_of_a_refit_from_scratch(tmp_path):
    data = small_data(flip=False)
    theta_0 = pretrained(tmp_path / "theta_0")
    trainer = play(tmp_path / "run", game(initial_weights=[theta_0]), blocks(), model=closed_form(), data=data)
    session = trainer.fit_loop.session
    last = session.history[-1]
    fresh = closed_form()
    fresh.prepare(data)
    fresh.load_weights(torch.load(theta_0, weights_only=True))
    samples = data.region_samples([session.ledger.labelled.tolist()[i : i + 1] for i in range(10)], session.labels)
    for batch in data.loader(samples, SeededSampler(len(samples), shuffle=False), 10):
        fresh.loss(batch)
    for number, batch in enumerate(data.val_dataloader()):
        fresh.validation_step(batch, number)
    assert last["miou"][-1] == pytest.approx(float(fresh.reward_iou.compute()), abs=1e-4)


def test_a_closed_form_game_resumes_bit_by_bit(tmp_path, monkeypatch):
    theta_0 = pretrained(tmp_path / "theta_0")
    rules = game(initial_weights=[theta_0])

    def run(name, ckpt=None):
        data = small_data(flip=False)
        return everything(play(tmp_path / name, rules, blocks(), ckpt, data, closed_form(), checkpoint_every=1))

    whole = run("whole")
    loss, calls = ClosedFormSegmenter.loss, []
    for at in (2, 5, 8):

        def dying(self, batch, at=at):
            calls.append(1)
            if len(calls) == at:
                raise Killed
            return loss(self, batch)

        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(ClosedFormSegmenter, "loss", dying)
            with pytest.raises(Killed):
                run(f"cut {at}")
        assert_same(run(f"cut {at}", "last"), whole, f"cut at {at}")


def test_acquire_ends_with_what_it_has_counted(tmp_path):
    """Final trainings show the same pixels again, from either start: nothing changes but what is mixed in."""
    theta_0 = pretrained(tmp_path / "pretrained")
    results = {}
    for start in ("acquired", "theta_0"):
        rules = {"initial_weights": theta_0, "score_steps": True}
        options = {"final": final(start=start, mix=["fit_set"], max_steps=20, validate_every=10)}
        data = small_data(flip=False)
        _, result = acquire(tmp_path / start, "bald", data, model=closed_form(), options=options, **rules)
        results[start] = result["budgets"]["10"]
        assert result["miou_by_step"][-1] == pytest.approx(result["budgets"]["10"]["reward_set/miou"], abs=1e-6)
    assert results["acquired"]["test_set/miou"] == pytest.approx(results["theta_0"]["test_set/miou"], abs=1e-6)
    assert len(selected(tmp_path / "acquired")) == 10


class Credited(RarityForecast):
    """Learns from the credit of every candidate."""

    teacher = "credit"


def test_credit_teaches(tmp_path):
    theta_0 = pretrained(tmp_path / "theta_0")
    agent = Credited(features="summary", prior="entropy", prior_weight=0.5, batch_size=8)
    trainer = play(
        tmp_path / "run", game(initial_weights=[theta_0]), agent, model=closed_form(), data=small_data(flip=False)
    )
    worth = torch.cat([step.value for step in agent.replay.steps])
    assert worth.std() > 0.1
    assert trainer.fit_loop.session.history


def test_a_policy_may_not_ask_for_what_teaches(tmp_path):
    agent = Credited(features="summary", prior="entropy", prior_weight=0.5, batch_size=8)
    agent.policy.needs = replace(agent.policy.needs, measures=("credit",))
    with pytest.raises(ConfigError, match="asks for the measure 'credit', which reads labels"):
        play(tmp_path, game(validation_plays=0), agent, model=closed_form(), data=small_data(flip=False))


def test_a_player_does_not_see_what_its_teacher_says(tmp_path, monkeypatch):
    seen = []
    scores = QueryNetwork.scores

    def watched(self, observation, generator):
        seen.append(set(observation.measures))
        return scores(self, observation, generator)

    monkeypatch.setattr(QueryNetwork, "scores", watched)
    agent = Credited(features="summary", prior="entropy", prior_weight=0.5, batch_size=8)
    play(tmp_path, game(validation_plays=0), agent, model=closed_form(), data=small_data(flip=False))
    assert seen
    assert all("credit" not in measures for measures in seen)
    assert all(step.value.std() > 0 for step in agent.replay.steps)  # the agent itself was told


@pytest.mark.parametrize("change", [{"weight_average": 0.5}, {"short_training": ShortTraining(2)}])
def test_what_a_converged_segmenter_would_ignore_is_refused(tmp_path, change):
    with pytest.raises(ConfigError, match="converged at every step"):
        play(tmp_path, game(**change), blocks(), model=closed_form(), data=small_data(flip=False))


def test_class_weights_of_a_final_training_are_refused(tmp_path):
    options = {"final": final(class_weights="inverse_sqrt")}
    with pytest.raises(ConfigError, match="option of its own"):
        acquire(tmp_path, "entropy", small_data(flip=False), model=closed_form(), options=options)


def test_credit_needs_a_closed_form(tmp_path):
    agent = Credited(features="summary", prior="entropy", prior_weight=0.5, batch_size=8)
    with pytest.raises(ConfigError, match="ClosedFormSegmenter"):
        play(tmp_path, game(), agent)


# -- short training --------------------------------------------------------------------------------


def trained_shortly(iterations: int) -> dict:
    return {"short_training": ShortTraining(iterations, learning_rate=1e-2)}


def test_a_short_training_pays_but_leaves_the_segmenter_alone(tmp_path):
    plain = play(tmp_path / "plain", game(), blocks())
    paid = play(tmp_path / "paid", game(**trained_shortly(3)), blocks())
    history, other = plain.fit_loop.session.history, paid.fit_loop.session.history
    assert history[0]["role"] == other[0]["role"] == "uniform"
    assert history[0]["miou"][0] == other[0]["miou"][0]  # theta_0 itself
    assert history[0]["miou"][1:] != other[0]["miou"][1:]
    uniform = [path for path in sorted((tmp_path / "plain" / "episodes").iterdir()) if "uniform" in path.name]
    for path in uniform:  # what does not look at rewards plays the same game
        assert path.read_text() == (tmp_path / "paid" / "episodes" / path.name).read_text()
    entropy = [path for path in sorted((tmp_path / "plain" / "episodes").iterdir()) if "entropy" in path.name]
    for path in entropy:
        assert path.read_text() == (tmp_path / "paid" / "episodes" / path.name).read_text()


def test_a_game_with_short_trainings_resumes_bit_by_bit(tmp_path, monkeypatch):
    rules = game(**trained_shortly(2), validation_plays=0)
    whole = play(tmp_path / "whole", rules, blocks())
    swap_in, calls = ConvergedWeights.swap_in, []

    def dying(self):
        calls.append(1)
        if len(calls) == 6:
            raise Killed
        swap_in(self)

    monkeypatch.setattr(ConvergedWeights, "swap_in", dying)
    with pytest.raises(Killed):
        play(tmp_path / "cut", rules, blocks(), checkpoint_every=1)
    monkeypatch.undo()
    assert_same(everything(play(tmp_path / "cut", rules, blocks(), "last")), everything(whole))


def test_another_short_training_is_another_game(tmp_path):
    play(tmp_path, game(validation_plays=0), blocks())
    with pytest.raises(ConfigError, match="short_training"):
        play(tmp_path, game(**trained_shortly(2), validation_plays=0, episodes=6), blocks(), "last")


def test_averaging_beside_a_short_training_is_refused():
    with pytest.raises(ConfigError, match="weight_average"):
        game(**trained_shortly(2), weight_average=0.5)
    with pytest.raises(ConfigError, match="iterations"):
        ShortTraining(-1)


def test_history_is_plain(tmp_path):
    play(tmp_path, game(**trained_shortly(1)), blocks(), model=segmenter())
    assert json.loads((tmp_path / "history.json").read_text())
