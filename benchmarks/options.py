"""What each option of `ralseg fit` changes, on small synthetic games: the table of docs/options.md.

    python benchmarks/options.py            # all that is missing; resumable, one row a run in options.csv
    python benchmarks/options.py --table    # only print the table

Each variant changes one thing of a base (the paper's algorithm, or paired blocks) and is trained with three
seeds; each trained policy plays greedy games from theta_0s that it has not seen, with common random numbers.

Rows of options.csv whose variant is not in VARIANTS are of options that no longer exist; the table shows them as they
were measured, and they cannot be run again.
"""

import argparse
import csv
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ralseg.agents import DQN, Agent, PairedBlocks
from ralseg.cli import quiet_libraries
from ralseg.commands import quiet_console
from ralseg.data import SegmentationData, SplitSizes, SyntheticStreets
from ralseg.engine import FitTrainer, Game, RunTrainer
from ralseg.engine.learning_curves import validation_metrics
from ralseg.models import FPNSegmenter
from ralseg.models.encoders import LITE0, LITE0_ENCODER

CSV = Path(__file__).with_name("options.csv")
SEEDS = (0, 1, 2)
WEIGHTS = Path(tempfile.gettempdir()) / "ralseg-options-theta_0"
EPISODES, STEPS, PLAYS = 24, 8, 6


def paper(**options: Any) -> Agent:
    """The paper's algorithm, its rewards in points."""
    numbers = {"norm": "batch", "time": False, "dueling": False, "gamma": 0.999, "clip_targets": False}
    fixed: dict[str, Any] = {"epsilon_decay": 60.0, "reward_scale": 100.0, **numbers}
    return DQN(**(fixed | options), optimizer=lambda p: torch.optim.Adam(p, lr=5e-4, weight_decay=1e-3))


def blocks(**options: Any) -> Agent:
    """Regression on paired blocks."""
    return PairedBlocks(batch_size=768, **options, optimizer=lambda p: torch.optim.Adam(p, lr=3e-3))


@dataclass(frozen=True)
class Variant:
    """An agent, and what of the game is not as in the others."""

    agent: Callable[[], Agent]
    average: float = 1.0
    thetas: int = 1
    reward_images: int | None = None


VARIANTS = {
    "paper": Variant(paper),
    "paper + double DQN as written in the paper": Variant(partial(paper, double_dqn="paper")),
    "paper + Huber loss": Variant(partial(paper, loss="huber")),
    "paper + 4 updates a step": Variant(partial(paper, updates_per_step=4)),
    "paper + gamma 0.9": Variant(partial(paper, gamma=0.9)),
    "paper + 4-step returns": Variant(partial(paper, n_steps=4)),
    "paper + Monte-Carlo returns": Variant(partial(paper, n_steps=STEPS)),
    "paper + standardised features": Variant(partial(paper, standardise=True)),
    "paper + entropy prior": Variant(partial(paper, standardise=True, prior_weight=0.5)),
    "paper - state path": Variant(partial(paper, use_state=False)),
    "paper - gate": Variant(partial(paper, use_gate=False)),
    "paper + three theta_0s": Variant(paper, thetas=3),
    "paper + half of the reward set": Variant(paper, reward_images=12),
    "paper + averaged weights": Variant(paper, average=0.25),
    "blocks": Variant(blocks, 0.25, 3),
    "blocks - averaged weights": Variant(blocks, 1.0, 3),
    "blocks - entropy prior": Variant(partial(blocks, prior_weight=0.0), 0.25, 3),
    "blocks - shrinkage": Variant(partial(blocks, shrinkage=0.0), 0.25, 3),
}


def data(seed: int, reward_images: int | None = None) -> SegmentationData:
    """Small streets: 64x96 pixels in 24 regions."""
    streets = SyntheticStreets(num_train=47, num_val=24, num_test=1, height=64, width=96)
    return SegmentationData(
        streets, SplitSizes(6, 40), batch_size=12, reward_images=reward_images, seed=seed,
        fit_on=["state_set", "train_set"], fit_images=8,
    )  # fmt: skip


def segmenter(**options: Any) -> FPNSegmenter:
    """Frozen EfficientNet-Lite0 with a small decoder."""
    return FPNSegmenter(
        SyntheticStreets.class_names, LITE0_ENCODER, LITE0, pyramid_channels=64, segmentation_channels=32,
        freeze_encoder=True, cache_features=True, label_stride=2, **options,
    )  # fmt: skip


def quiet(**options: Any) -> dict[str, Any]:
    """Trainer options of a run that only its result is wanted of."""
    return {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        **options,
    }


def theta_0(seed: int) -> str:
    """The checkpoint of a theta_0, made if it is missing."""
    path = WEIGHTS / f"seed{seed}" / "checkpoints" / "best.ckpt"
    if not path.is_file():
        torch.manual_seed(seed)
        options = quiet(
            default_root_dir=str(path.parent.parent), max_steps=60, check_val_every_n_epoch=20, overwrite=True
        )
        adam = segmenter(class_weights="inverse_sqrt", optimizer=lambda p: torch.optim.AdamW(p, lr=2e-3))
        RunTrainer(**options).pretrain(adam, data(seed))
    return str(path)


def run(variant: Variant, seed: int) -> dict[str, float]:
    """Train a policy; its greedy games against uniform and entropy."""
    torch.manual_seed(seed)
    agent, player = variant.agent(), segmenter(optimizer=lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9))
    game = Game(
        budget=STEPS * 12, regions_per_step=12, pool_size=10,
        episodes=EPISODES, validation_every=EPISODES, validation_plays=PLAYS,
        initial_weights=[theta_0(i) for i in range(variant.thetas)],
        validation_weights=[theta_0(i) for i in range(3, 3 + PLAYS)],
        weight_average=variant.average,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = FitTrainer(game, **quiet(default_root_dir=folder, enable_checkpointing=False))
        trainer.fit(player, datamodule=data(seed, variant.reward_images), agent=agent)
    return validation_metrics(trainer.fit_loop.session.history, 1)


def table(rows: list[dict[str, str]]) -> str:
    """Mean and standard error over seeds, as Markdown."""
    lines = ["| variant | seeds | area | area - uniform | area - entropy |", "|---|---|---|---|---|"]
    for name in dict.fromkeys([*(row["variant"] for row in rows), *VARIANTS]):
        mine = [row for row in rows if row["variant"] == name]
        cells = []
        for key in ("validation/auc", "validation/auc_minus_uniform", "validation/auc_minus_entropy"):
            values = [float(row[key]) for row in mine]
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
            cells.append(f"{statistics.mean(values):+.2f} ± {error:.2f}" if values else "-")
        lines.append(f"| {name} | {len(mine)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def finished() -> list[dict[str, str]]:
    """The rows that earlier calls have written."""
    return list(csv.DictReader(CSV.open())) if CSV.is_file() else []


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only print the table")
    arguments = parser.parse_args()
    quiet_console()
    for seed in () if arguments.table else SEEDS:
        for name, variant in VARIANTS.items():
            if any(row["variant"] == name and row["seed"] == str(seed) for row in finished()):
                continue
            row = {"variant": name, "seed": seed, **run(variant, seed)}
            is_new = not CSV.is_file()
            with CSV.open("a", newline="") as file:
                writer = csv.DictWriter(file, list(row))
                if is_new:
                    writer.writeheader()
                writer.writerow(row)
            print(f"seed {seed}: {name}: {row['validation/auc']:.2f}", file=sys.stderr, flush=True)
    print(table(finished()))


if __name__ == "__main__":
    quiet_libraries()
    main()
