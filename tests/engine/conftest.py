"""What several tests of runs share."""

import pytest

from support.games import dqn, game, play


@pytest.fixture(scope="session")
def policy_file(tmp_path_factory) -> str:
    """A policy that `ralseg fit` has trained for a moment."""
    folder = tmp_path_factory.mktemp("policy")
    agent = dqn(features="summary", use_gate=False, use_state=False, norm="none")
    play(folder, game(episodes=2, validation_plays=1), agent)
    return str(folder / "checkpoints" / "best.ckpt")
