"""What is each feature worth? How well features forecast the credit of regions, on theta_0s that were held out.

    python benchmarks/features.py play           # records games on CamVid in the closed form; a few minutes
    python benchmarks/features.py table          # writes docs/study/agents/features.md

Needs theta_0s: `ralseg pretrain --config camvid_closed_pretrain.yaml --seeds 0,1,2,3,4,5,6,7,8,9`. Games are played on
D_S, D_T and D_R by rarity + BALD, with every second region at random, so that states are those of a sensible policy and
candidates of all kinds have been seen. Every candidate's credit is recorded: the change of mean IoU, on images of a
scene that is not played on, if that region alone were labelled. A ridge regression (that of `ralseg.CreditRegression`)
forecasts it from the games of some theta_0s for the games of the others, five folds. What counts is the correlation of
forecast and credit within a step: which region is better, not which step.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from ralseg import ClosedFormSegmenter, CreditRegression, Game
from ralseg.acquisition.features import standardised
from ralseg.acquisition.named_features import GENERAL
from ralseg.commands import quiet_console
from ralseg.data import CamVid, SegmentationData
from ralseg.engine import FitTrainer
from ralseg.labels import GridLayout
from ralseg.runtime.files import write_atomically

EPISODES, FOLDS, SHRINKAGE = 40, 5, 10.0
DRAWS = 2000


class Recorder(CreditRegression):
    """Keeps what it is taught, and learns nothing from it."""

    def __init__(self) -> None:
        super().__init__(start={"rarity": 1.0, "bald": 1.0}, epsilon=0.5)
        self.steps: list[dict] = []

    def remember(self, step, following) -> None:
        """Note the step; with the first one a game begins."""
        super().remember(step, following)
        self.steps.append({"actions": step.actions.flatten(0, 1)[:, :-1].clone(), "credit": step.lesson.flatten()})

    def update(self, optimizer) -> None:
        """Go on as before."""


def play(folder: Path) -> None:
    """Play, and write all candidates of all steps."""
    data = SegmentationData(
        CamVid(), "al_splits.json", size=(128, 192), layout=GridLayout(4, 6), batch_size=24, eval_batch_size=128,
        flip=False, reward_images=51,
    )  # fmt: skip
    game = Game(
        240, 24, 10, episodes=EPISODES, validation_plays=0, reward_on="other_scenes",
        initial_weights=["runs/camvid_closed_pretrain/seed[0-9]/checkpoints/best.ckpt"],
    )  # fmt: skip
    agent = Recorder()
    trainer = FitTrainer(
        game, default_root_dir=str(folder), logger=False, enable_model_summary=False, accelerator="cpu",
        checkpoint_every=10_000, overwrite=True,
    )  # fmt: skip
    trainer.fit(ClosedFormSegmenter(CamVid.class_names), datamodule=data, agent=agent)
    history = json.loads((folder / "history.json").read_text())
    played = [record["weights"] for record in history]
    steps = len(agent.steps) // len(played)
    torch.save({"steps": agent.steps, "theta_0": [name for name in played for _ in range(steps)]}, folder / "steps.pt")


def inputs(actions: torch.Tensor, columns: list[int]) -> torch.Tensor:
    """Features and their product with time: [R, 1 + A] -> [R, 2 * chosen]."""
    chosen = actions[:, 1:][:, columns].double()
    return torch.cat([chosen, actions[:, :1].double() * chosen], 1)


def forecast(steps: list[dict], folds: np.ndarray, columns: list[int]) -> np.ndarray:
    """Correlation of forecast and credit within each step, from the other folds' games: [steps]."""
    rows = [inputs(step["actions"], columns) for step in steps]
    worth = [standardised(step["credit"][:, None].double())[:, 0] for step in steps]
    grams = torch.stack([x.T @ x / len(x) for x in rows])
    crosses = torch.stack([x.T @ y / len(x) for x, y in zip(rows, worth, strict=True)])
    found = np.zeros(len(steps))
    for fold in range(FOLDS):
        others = torch.from_numpy(folds != fold)
        gram = grams[others].sum(0) + SHRINKAGE * torch.eye(grams.shape[1], dtype=torch.float64)
        weights = torch.linalg.solve(gram, crosses[others].sum(0))
        for position in np.flatnonzero(folds == fold):
            both = torch.stack([rows[position] @ weights, worth[position]])
            found[position] = 0.0 if both.std(1).min() < 1e-9 else float(torch.corrcoef(both)[0, 1])
    return found


def table(folder: Path, out: Path) -> None:
    """What each feature forecasts alone, and what the others lose without it."""
    saved = torch.load(folder / "steps.pt", weights_only=True)
    steps, names = saved["steps"], saved["theta_0"]
    different = sorted(set(names))
    folds = np.array([different.index(name) % FOLDS for name in names])
    games = np.arange(len(steps)) // (len(steps) // EPISODES)
    everything = forecast(steps, folds, list(range(len(GENERAL))))
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, EPISODES, (DRAWS, EPISODES))

    def interval(values: np.ndarray) -> str:
        by_game = np.array([values[games == game].mean() for game in range(EPISODES)])
        low, high = np.quantile(by_game[drawn].mean(1), [0.025, 0.975])
        return f"{values.mean():+.3f} [{low:+.3f}, {high:+.3f}]"

    rows = []
    for column, name in enumerate(GENERAL):
        without = [other for other in range(len(GENERAL)) if other != column]
        lost = everything - forecast(steps, folds, without)
        alone = forecast(steps, folds, [column])
        rows.append((float(lost.mean()), f"| `{name}` | {interval(alone)} | {interval(lost)} |"))
    lines = [
        f"{EPISODES} games, {len(steps)} steps of 240 candidates; theta_0s of a fifth of the games are held\nout. "
        f"Intervals of 95 % over games.\n",
        f"All {len(GENERAL)} features together: {interval(everything)}\n",
        "| feature | forecasts alone | is lost without it |\n|---|---|---|",
        *(line for _, line in sorted(rows, reverse=True)),
    ]
    text = "\n".join(lines)
    print(text)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "features.md", text + "\n")


def main() -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["play", "table"])
    parser.add_argument("--folder", default="runs/features")
    parser.add_argument("--out", default="docs/study/agents")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    quiet_console()
    if asked.do == "play":
        play(Path(asked.folder))
    else:
        table(Path(asked.folder), Path(asked.out))


if __name__ == "__main__":
    main()
