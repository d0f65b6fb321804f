"""What an episode of `camvid_cpu_dqn.yaml` costs, and what 100 of them come to.

    python benchmarks/episodes.py                 # a few steps, and the estimate
    python benchmarks/episodes.py --threads 2     # seconds of the clock: for a machine with two cores that are quiet
    python benchmarks/episodes.py --profile       # where the time goes that is no network pass

Plays the beginning of two training episodes by the rules of that file, with the segmenter of `camvid_cpu_pretrain.yaml`
as it is built: what a step costs does not depend on its weights. Synthetic streets stand in where RALSEG_CAMVID is not
set. The first episode fills the caches and does not count. With one thread, seconds are those of this process's CPU, so
that others on the machine change them little. The file of a checkpoint with a full replay is written apart: the run
writes one an episode. Games of validation cost what episodes do but for the update of the query network; with
`trainer.actors: 2` two of them are played at a time.
"""

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.closed_game import make_data
from ralseg.agents import DQN
from ralseg.commands import quiet_console
from ralseg.data import SegmentationData
from ralseg.engine import FitTrainer, Game
from ralseg.models import FPNSegmenter
from ralseg.models.encoders import LITE0, LITE0_ENCODER

STEPS, EPISODES, PLAYS, ROUNDS, REFERENCES = 20, 100, 8, 2, 2
"""Of an episode; then episodes, games of a round of validation, rounds, and policies to compare with, each PLAYS."""
TARGET_MINUTES = 20.0


@dataclass
class Cost:
    """Seconds of a step."""

    step: float
    parts: dict[str, float]  # wall seconds by part


def make_agent() -> DQN:
    """The agent of configs/agent/dqn.yaml."""
    return DQN(
        features="3H+KL", standardise=True, norm="layer", time=True, dueling=True, exploration="perturbed",
        epsilon_start=1.0, epsilon_end=0.5, epsilon_decay=500.0, reward_scale=100.0, gamma=0.9, clip_targets=True,
        batch_size=16, updates_per_step=1, target_every=20, replay_size=6000,
    )  # fmt: skip


def play(data: SegmentationData, steps: int, clock: Callable[[], float], profile: cProfile.Profile | None) -> Cost:
    """Two episodes of so many steps; the second one counts."""
    segmenter = FPNSegmenter(
        data.class_names, LITE0_ENCODER, LITE0, pyramid_channels=64, segmentation_channels=32, freeze_encoder=True,
        cache_features=True, label_stride=2,
    )  # fmt: skip
    game = Game(24 * steps, 24, 20, episodes=2, validation_plays=0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = FitTrainer(
            game, default_root_dir=folder, logger=False, enable_progress_bar=False, enable_model_summary=False,
            enable_checkpointing=False, accelerator="cpu",
        )  # fmt: skip
        loop, seconds, number = trainer.fit_loop, [], 0
        advance, advance_end = loop.advance, loop.on_advance_end

        def begin() -> None:
            nonlocal number
            number += 1
            if profile and number > steps + 1:
                profile.enable()
            seconds.append(-clock())
            advance()

        def end() -> None:
            advance_end()
            seconds[-1] += clock()
            if profile:
                profile.disable()

        loop.advance, loop.on_advance_end = begin, end
        trainer.fit(segmenter, datamodule=data, agent=make_agent())
        # the first step of each episode also scores theta_0
        return Cost(sum(seconds[steps + 1 :]) / (steps - 1), dict(loop.session.seconds))


def main() -> None:
    """Print a step's cost and the estimate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6, help="of an episode that are played, of 20")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    quiet_console()
    clock, kind = (time.process_time, "CPU ") if asked.threads == 1 else (time.perf_counter, "")
    profile = cProfile.Profile(time.process_time) if asked.profile else None
    data = make_data(eval_batch_size=16, flip=True)  # as configs/camvid_cpu_blocks.yaml, its base, has it
    cost = play(data, asked.steps, clock, profile)
    # an actor has one thread
    torch.set_num_threads(1)
    alone = cost if asked.threads == 1 else play(data, asked.steps, time.process_time, None)
    print(f"a step: {cost.step:.3f} {kind}seconds; wall seconds by part over {asked.steps} steps:")
    for part, seconds in cost.parts.items():
        print(f"  {part:12} {seconds:8.3f}")
    episode, validated = STEPS * cost.step, STEPS * alone.step
    games = PLAYS * (ROUNDS + REFERENCES)
    training, validation = EPISODES * episode / 60, games * validated / 60
    print(
        f"an episode: {episode:.1f} {kind}seconds; {EPISODES} episodes {training:.1f} minutes, {games} games of "
        f"validation {validation:.1f}, with two actors {validation / 2:.1f}\n"
        f"in all with {asked.threads} threads: {training + validation / 2:.1f} minutes (aim on two quiet cores: "
        f"{TARGET_MINUTES:.0f})"
    )
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
