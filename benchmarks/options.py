"""What each option of `ralseg fit` changes, on small synthetic games: the table of docs/options.md.

    python benchmarks/options.py            # all that is missing; resumable, one row a run in options.csv
    python benchmarks/options.py --table    # only print the table

Each variant changes one thing of a base (the paper's algorithm, or paired blocks) and is trained with three
seeds; each trained policy plays greedy games from theta_0s that it has not seen, with common random numbers.
"""

import argparse
import csv
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from ralseg import curves
from ralseg.al_trainer import ActiveLearningTrainer
from ralseg.cli import quiet_libraries
from ralseg.commands import quiet_console
from ralseg.data import SyntheticStreets
from ralseg.data.module import SegmentationData
from ralseg.data.splits import SplitSizes
from ralseg.encoders import LITE0, LITE0_ENCODER
from ralseg.game import GameConfig, RewardConfig
from ralseg.query import QueryNetwork
from ralseg.ralis import Ralis
from ralseg.regions import GridShape
from ralseg.segmenter import FPNSegmenter
from ralseg.trainer import RunTrainer

CSV = Path(__file__).with_name("options.csv")
SEEDS = (0, 1, 2)
WEIGHTS = Path(tempfile.gettempdir()) / "ralseg-options-theta_0"
EPISODES, PLAYS = 24, 6

DQN: dict[str, Any] = {
    "query": {"replay_size": 600, "optimizer": lambda p: torch.optim.Adam(p, lr=5e-4, weight_decay=1e-3)},
    "game": {"block": ["policy"], "epsilon_decay": 60.0},
    "reward": {"scale": 100.0},
    "thetas": 1,
}
BLOCKS: dict[str, Any] = {
    "query": {
        "features": "summary", "standardise": True, "use_state": False, "use_gate": False, "linear": True,
        "batch_norm": False, "prior_weight": 0.5, "returns": "monte_carlo", "bootstrap": False, "credit": "step",
        "gamma": 0.9, "batch_size": 768, "updates_per_step": 4, "replay_size": 10**6, "shrinkage": 200.0,
        "optimizer": lambda p: torch.optim.Adam(p, lr=3e-3),
    },
    "game": {
        "block": ["entropy", "policy", *["perturbed"] * 4], "perturbation": 0.7,
        "epsilon_start": 0.1, "epsilon_end": 0.05,
    },
    "reward": {"scale": 100.0, "baseline": "block", "normalise": True, "average": 0.25},
    "thetas": 3,
}  # fmt: skip
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "paper": (DQN, {}),
    "paper + double DQN as written in the paper": (DQN, {"query": {"double_dqn": "paper"}}),
    "paper + Huber loss": (DQN, {"query": {"loss": "huber"}}),
    "paper + 4 updates a step": (DQN, {"query": {"updates_per_step": 4}}),
    "paper + gamma 0.9": (DQN, {"query": {"gamma": 0.9}}),
    "paper + 4-step returns": (DQN, {"query": {"returns": "n_step"}}),
    "paper + 4-step returns, no bootstrap": (DQN, {"query": {"returns": "n_step", "bootstrap": False}}),
    "paper + Monte-Carlo returns": (DQN, {"query": {"returns": "monte_carlo", "bootstrap": False}}),
    "paper + standardised features": (DQN, {"query": {"standardise": True}}),
    "paper + entropy prior": (DQN, {"query": {"standardise": True, "prior_weight": 0.5}}),
    "paper - state path": (DQN, {"query": {"use_state": False}}),
    "paper - gate": (DQN, {"query": {"use_gate": False}}),
    "paper + three theta_0s": (DQN, {"thetas": 3}),
    "paper + half of the reward set": (DQN, {"reward_images": 12}),
    "paper + averaged weights": (DQN, {"reward": {"average": 0.25}}),
    "paper + reward less its mean at the step": (DQN, {"reward": {"baseline": "step_mean", "normalise": True}}),
    "paper + reward less a uniform twin's": (
        DQN, {"game": {"block": ["uniform", "policy"]}, "reward": {"baseline": "uniform_twin"}},
    ),
    "blocks": (BLOCKS, {}),
    "blocks - averaged weights": (BLOCKS, {"reward": {"average": 1.0}}),
    "blocks - entropy prior": (BLOCKS, {"query": {"prior_weight": 0.0}}),
    "blocks - shrinkage": (BLOCKS, {"query": {"shrinkage": 0.0}}),
}  # fmt: skip


def data(seed: int, reward_images: int | None = None) -> SegmentationData:
    """Small streets: 64x96 pixels in 24 regions."""
    streets = SyntheticStreets(num_train=47, num_val=24, num_test=1, height=64, width=96)
    return SegmentationData(
        streets, SplitSizes(6, 40), grid=GridShape(4, 6), batch_size=12, reward_images=reward_images, seed=seed,
        fit_on=["state_set", "train_set"], fit_images=8,
    )  # fmt: skip


def segmenter(**options: Any) -> FPNSegmenter:
    """Frozen EfficientNet-Lite0 with a small decoder."""
    return FPNSegmenter(
        SyntheticStreets.class_names, LITE0_ENCODER, LITE0, 64, 32, freeze_encoder=True, cache_features=True,
        label_stride=2, **options,
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


def run(base: dict[str, Any], change: dict[str, Any], seed: int) -> dict[str, float]:
    """Train a policy; its greedy games against uniform and entropy."""
    torch.manual_seed(seed)
    query = QueryNetwork(**(base["query"] | change.get("query", {})))
    players = Ralis(segmenter(optimizer=lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9)), query)
    rules = base["game"] | change.get("game", {})
    game = GameConfig(
        budget=96, regions_per_step=12, pool_size=10,
        episodes=EPISODES, validation_every=EPISODES, validation_plays=PLAYS,
        initial_weights=[theta_0(i) for i in range(change.get("thetas", base["thetas"]))],
        validation_weights=[theta_0(i) for i in range(3, 3 + PLAYS)],
        reward=RewardConfig(**(base["reward"] | change.get("reward", {}))), **rules,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = ActiveLearningTrainer(game, **quiet(default_root_dir=folder, enable_checkpointing=False))
        trainer.fit(players, datamodule=data(seed, change.get("reward_images")))
    return curves.validation_metrics(trainer.fit_loop.play.history, 1)


def table(rows: list[dict[str, str]]) -> str:
    """Mean and standard error over seeds, as Markdown."""
    lines = ["| variant | seeds | area | area - uniform | area - entropy |", "|---|---|---|---|---|"]
    for name in VARIANTS:
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
        for name, (base, change) in VARIANTS.items():
            if any(row["variant"] == name and row["seed"] == str(seed) for row in finished()):
                continue
            row = {"variant": name, "seed": seed, **run(base, change, seed)}
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
