"""What a closed-form game costs, and what a second actor brings. Run by `make bench`.

    python benchmarks/closed_game.py                     # 48 episodes with one actor, 48 with two, in turn
    python benchmarks/closed_game.py --episodes 1000 --actors 2 --repeats 1
    python benchmarks/closed_game.py --agent search      # with the policy search and all named features

Games of 20 steps with K=24 and pools of N=10, at the sizes of CamVid's published split (synthetic streets stand in
where RALSEG_CAMVID is not set), with all features that the policy sees, rewards of 51 images, and learning from whole
blocks. Seconds are those of `fit` from the first step to the last; starting actors (imports, features of all images) is
told apart. Writes benchmarks/closed_game*.json.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch

from ralseg.agents import Agent, PairedBlocks, PolicySearch
from ralseg.commands import quiet_console
from ralseg.data import CamVid, SegmentationData, SplitSizes, SyntheticStreets
from ralseg.engine import FitTrainer, Game
from ralseg.labels import GridLayout
from ralseg.models import ClosedFormSegmenter

BLOCK = ["entropy", "policy", *["perturbed"] * 10]
EPISODES, SECONDS = 1000, 600.0
"""The aim: so many episodes in so many seconds, on two quiet cores."""


def make_data(eval_batch_size: int = 128, flip: bool = False) -> SegmentationData:
    """CamVid at 128x192 pixels, or synthetic streets in its place."""
    real = bool(os.environ.get("RALSEG_CAMVID"))
    dataset = CamVid() if real else SyntheticStreets(110, 101, 1, 128, 192)
    splits = "al_splits.json" if real else SplitSizes(10, 100)
    return SegmentationData(
        dataset, splits, size=(128, 192), layout=GridLayout(4, 6), batch_size=24,
        eval_batch_size=eval_batch_size, flip=flip, reward_images=51,
    )  # fmt: skip


def make_agent(name: str) -> Agent:
    """Who learns; both after twelve games."""
    return PolicySearch(pairs=6) if name == "search" else PairedBlocks(block=BLOCK, updates_per_step=1)


def play(episodes: int, actors: int, folder: str, name: str) -> tuple[float, float]:
    """Seconds of an episode, once the first block has been played, and seconds of the first block."""
    data = make_data()
    game = Game(480, 24, 10, episodes=episodes + len(BLOCK), validation_plays=0)
    trainer = FitTrainer(
        game, actors=actors, checkpoint_every=20 * len(BLOCK), default_root_dir=folder, logger=False,
        enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", overwrite=True,
    )  # fmt: skip
    agent = make_agent(name)
    ends: list[float] = []
    loop = trainer.fit_loop
    advance_end = loop.on_advance_end

    def end() -> None:
        advance_end()
        if loop.result.episode is not None:
            ends.append(time.perf_counter())

    loop.on_advance_end, started = end, time.perf_counter()
    trainer.fit(ClosedFormSegmenter(data.class_names), datamodule=data, agent=agent)
    first = ends[len(BLOCK) - 1]
    return (ends[-1] - first) / episodes, first - started


def main() -> None:
    """Play with one actor and with two, in turn, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=4 * len(BLOCK), help="after the first block, a multiple of it")
    parser.add_argument("--actors", default="1,2", help="numbers of actors to compare")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--agent", choices=["blocks", "search"], default="blocks")
    asked = parser.parse_args()
    episodes = -(-asked.episodes // len(BLOCK)) * len(BLOCK)
    torch.set_num_threads(1)
    quiet_console()
    found: dict[int, list[float]] = {int(number): [] for number in asked.actors.split(",")}
    starts: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(asked.repeats):
            for actors, seconds in found.items():
                each, start = play(episodes, actors, folder, asked.agent)
                seconds.append(each)
                starts.append(start)
    print(f"closed-form game, {episodes} episodes of 20 steps, median of {asked.repeats}")
    for actors, seconds in found.items():
        thousand = EPISODES * statistics.median(seconds)
        print(
            f"  {actors} actors: {1000 * statistics.median(seconds) / 20:.1f} ms a step, "
            f"{EPISODES} episodes in {thousand:.0f} s (aim with two: {SECONDS:.0f} s)"
        )
    report = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}",
        "episodes": episodes,
        "seconds_per_episode": {str(actors): seconds for actors, seconds in found.items()},
        "seconds_of_first_block": starts,
    }
    if {1, 2} <= found.keys():
        ratios = [one / two for one, two in zip(found[1], found[2], strict=True)]
        report["two_actors_are_faster_by"] = ratios
        print(f"  two actors are {statistics.median(ratios):.2f} x as fast as one (aim: 1.7)")
    print(f"  until the end of the first block, with all features: {statistics.median(starts):.0f} s")
    suffix = ".json" if asked.agent == "blocks" else f"_{asked.agent}.json"
    out = Path(__file__).with_name(Path(__file__).stem + suffix)
    out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
