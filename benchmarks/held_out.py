"""How good are policies in worlds that none of them has seen? Closed-form games; settings are chosen by this.

    python benchmarks/held_out.py --policies uniform,entropy,rare_bald,runs/worlds/policy.ckpt
    python benchmarks/held_out.py --data ../shared/data --games 60 --policies ...

Plays the validation games of `ralseg fit` in worlds: synthetic ones that training does not have and, with `--data`
(RALSEG_DATA), the train and val images of five real data sets, never their test images. All policies play the very same
games: theta_0, pools and draws are shared. Prints the area under the curve less that of each method in `--against`,
family by family, and the mean over families, with standard errors.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
from pathlib import Path

import torch

from ralseg.acquisition.heuristics import HEURISTICS
from ralseg.agents import FeatureAgent, FeaturePolicy
from ralseg.agents.base import POLICY, Episode
from ralseg.agents.loading import is_file, load_policy_alone, policy_file
from ralseg.commands import quiet_console
from ralseg.data import CamVid, Folder, Mixture, SegmentationData, SegmentationDataset, SplitSizes, SyntheticWorlds
from ralseg.engine import FitTrainer, Game
from ralseg.engine.learning_curves import area
from ralseg.labels import GridLayout
from ralseg.models import ClosedFormSegmenter


class Contest(FeatureAgent):
    """Has several policies play the validation games, and learns nothing.

    Args:
        names: Heuristics, or files of policies.
    """

    def __init__(self, names: list[str]) -> None:
        super().__init__(FeaturePolicy(["entropy"]), [POLICY], 1)
        self.names = names
        self.players = {name: load_policy_alone(policy_file(name)) for name in names if is_file(name)}

    @property
    def references(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(self.names)

    def player(self, episode: Episode, seed: int):
        """One of them."""
        return self.players.get(episode.role) or super().player(episode, seed)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One that does nothing."""
        return torch.optim.SGD(self.policy.parameters(), lr=0.0)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn nothing."""


def make_data(folder: str, seed: int, num_worlds: int) -> SegmentationData:
    """Worlds of another seed than those of training, and real sets."""
    parts: dict[str, SegmentationDataset] = {"drawn": SyntheticWorlds(1, num_worlds, images=32, seed=1000 + seed)}
    if folder:
        parts["camvid"] = CamVid(f"{folder}/camvid")
        for name in ("carla", "dubai", "nuclei", "cracks"):
            parts[name] = Folder(f"{folder}/{name}")
    return SegmentationData(
        Mixture(parts, held_out=[name for name in parts if name != "drawn"]), SplitSizes(state=0, train=None),
        size=(128, 192), layout=GridLayout(4, 6), eval_batch_size=128, flip=False, reward_images=20, seed=seed,
    )  # fmt: skip


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", required=True, help="those they are compared with must be among them")
    parser.add_argument("--against", default="uniform", help="what they are compared with")
    parser.add_argument("--games", type=int, default=60)
    parser.add_argument("--worlds", type=int, default=12, help="synthetic ones")
    parser.add_argument("--data", default=os.environ.get("RALSEG_DATA", ""), help="folder of the real data sets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--out", default="", help="where the history of all games is kept")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    quiet_console()
    names = asked.policies.split(",")
    data = make_data(asked.data, asked.seed, asked.worlds)
    game = Game(
        80, 8, 10, episodes=1, validation_plays=asked.games, validation_every=10**9, reward_on="own_world",
        known_images=(2, 8),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = FitTrainer(
            game, actors=asked.actors, default_root_dir=folder, logger=False, enable_progress_bar=False,
            enable_model_summary=False, accelerator="cpu", checkpoint_every=10_000,
        )  # fmt: skip
        trainer.fit(ClosedFormSegmenter(data.class_names), datamodule=data, agent=Contest(names))
        history = json.loads((Path(folder) / "history.json").read_text())
    if asked.out:
        Path(asked.out).write_text(json.dumps(history) + "\n")
    for other in asked.against.split(","):
        show(history, [name for name in names if name in HEURISTICS or is_file(name)], other)


def show(history: list[dict], names: list[str], other: str) -> None:
    """Print differences from a method."""
    games = {name: {r["draw"]: r for r in history if r["kind"] == "validation" and r["role"] == name} for name in names}
    families: dict[str, list[int]] = {}
    for draw, record in games[other].items():
        families.setdefault(record["scene"].partition(":")[0].partition("/")[0], []).append(draw)
    print(
        f"| area less {other} |", " | ".join(f"{family} ({len(families[family])})" for family in families), "| mean |"
    )
    print("|---|" + "---|" * (len(families) + 1))
    for name in names:
        cells, means, errors = [], [], []
        for draws in families.values():
            found = [area(games[name][draw]) - area(games[other][draw]) for draw in draws]
            means.append(statistics.mean(found))
            errors.append(statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.nan)
            cells.append(f"{means[-1]:+.2f} ± {errors[-1]:.2f}")
        total = math.sqrt(sum(error**2 for error in errors)) / len(errors)
        print(f"| {name} | {' | '.join(cells)} | {statistics.mean(means):+.2f} ± {total:.2f} |")


if __name__ == "__main__":
    main()
