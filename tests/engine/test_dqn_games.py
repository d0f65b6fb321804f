"""Games of DQN with each way to explore: they are exact when resumed, and greedy where they validate."""

from functools import partial

import pytest
import torch

from support.games import dqn, game, module_of, play

RELEASED = {
    "norm": "batch",
    "time": False,
    "dueling": False,
    "gamma": 0.999,
    "clip_targets": False,
    "exploration": "steps",
    "first_reward": "score",
    "loss": "huber",
    "pool_statistics": True,
    "rate_decay": 0.97,
}
PERTURBED = {"exploration": "perturbed", "epsilon_start": 1.0, "standardise": True, "reward_scale": 100.0}


@pytest.mark.parametrize("options", [RELEASED, PERTURBED], ids=["released", "perturbed"])
def test_a_run_that_was_cut_off_ends_like_one_that_was_not(tmp_path, options):
    agent, rules = partial(dqn, **options), game(episodes=2, validation_every=1)
    whole = play(tmp_path / "whole", rules, agent())
    play(tmp_path / "cut", rules, agent(), max_epochs=14, checkpoint_every=14)  # in the middle of a training episode
    resumed = play(tmp_path / "cut", rules, agent(), ckpt="last")
    one, two = module_of(whole).agent, module_of(resumed).agent
    assert one.num_steps == two.num_steps == 6
    for key, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[key]), key
    for name in ("largest_reward", "largest_value", "num_episodes", "loss"):
        assert getattr(one, name) == getattr(two, name), name
    rates = [module_of(trainer).agent_optimizer.param_groups[0]["lr"] for trainer in (whole, resumed)]
    assert rates[0] == rates[1] == pytest.approx(1e-3 * options.get("rate_decay", 1.0) ** (6 + 2))


def test_the_first_reward_of_the_released_code_is_the_whole_score(tmp_path):
    trainer = play(tmp_path, game(episodes=1, validation_plays=0), dqn(**RELEASED))
    record = trainer.fit_loop.session.history[0]
    rewards = [memory.value for memory in module_of(trainer).agent.replay.steps]
    gains = [after - before for before, after in zip(record["miou"], record["miou"][1:], strict=False)]
    assert rewards == pytest.approx([record["miou"][1], *gains[1:]])
