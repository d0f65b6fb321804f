"""Do features mean the same on the FPN as in the closed-form game? Both look at the same regions of CamVid.

    python benchmarks/transfer.py                # a few minutes; writes docs/study/agents/transfer.md

Needs theta_0s of seeds 0-3 of both: `ralseg pretrain --config camvid_cpu_pretrain.yaml --seeds 0,1,2,3` and
`camvid_closed_pretrain.yaml`. theta_0s of one seed were trained on the same ten images. Both segmenters label the same
random regions of D_T, 24 at a step as in the game, and describe the same 240 candidates before each step. The
correlation of a feature on one with the same feature on the other, over candidates, says how much of what a policy
learned in the cheap game it will find again.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks import agents
from ralseg.acquisition.named_features import GENERAL
from ralseg.agents import FeatureAgent, FeaturePolicy
from ralseg.commands import quiet_console
from ralseg.data import CamVid
from ralseg.engine import FitTrainer, Game
from ralseg.runtime.files import write_atomically


class Witness(FeatureAgent):
    """Keeps what it sees, and learns nothing: all regions stay alike, and the first of each random pool is taken."""

    def __init__(self) -> None:
        super().__init__(FeaturePolicy(), ["policy"], 1)
        self.seen: list[Tensor] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One that does nothing."""
        return torch.optim.SGD(self.policy.parameters(), lr=0.0)

    def remember(self, step, following) -> None:
        """Keep the features of the candidates, without time and prior."""
        super().remember(step, following)
        self.seen.append(step.actions.flatten(0, 1)[:, 1:-1])

    def update(self, optimizer) -> None:
        """Learn nothing."""


def look(kind: str, seed: int, folder: Path, dataset: CamVid) -> list[Tensor]:
    """Features of the candidates at each step of a random game: [240, A] each."""
    data, witness = agents.make_data(seed, kind, "test", folder, dataset), Witness()
    game = Game(240, 24, 10, episodes=1, validation_plays=0, initial_weights=[agents.theta_0(kind, seed)])
    trainer = FitTrainer(
        game, default_root_dir=str(folder / f"{kind}{seed}"), logger=False, enable_model_summary=False,
        enable_progress_bar=False, accelerator="cpu", checkpoint_every=10_000,
    )  # fmt: skip
    trainer.fit(agents.segmenter(kind), datamodule=data, agent=witness)
    return witness.seen


def correlation(first: Tensor, second: Tensor) -> float:
    """Pearson's, over candidates; NaN where a feature is the same for all."""
    both = torch.stack([first, second]).double()
    return float("nan") if both.std(1).min() < 1e-9 else float(torch.corrcoef(both)[0, 1])


def main() -> None:
    """Look with both, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3", help="of theta_0s")
    parser.add_argument("--out", default="docs/study/agents")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    quiet_console()
    dataset, rows = CamVid(), []
    with tempfile.TemporaryDirectory() as folder:
        for seed in map(int, asked.seeds.split(",")):
            closed, fpn = (look(kind, seed, Path(folder), dataset) for kind in ("closed", "fpn"))
            for one, other in zip(closed, fpn, strict=True):
                rows.append([correlation(one[:, i], other[:, i]) for i in range(len(GENERAL))])
    means = np.nanmean(np.array(rows), 0)
    lines = [
        f"Correlation of each feature on the FPN with the same one in the closed form: mean of {len(rows)} steps, "
        f"theta_0s of seeds {asked.seeds}.\n",
        "| feature | correlation |\n|---|---|",
        *(f"| `{GENERAL[i]}` | {means[i]:+.2f} |" for i in np.argsort(-means)),
    ]
    text = "\n".join(lines)
    print(text)
    Path(asked.out).mkdir(parents=True, exist_ok=True)
    write_atomically(Path(asked.out) / "transfer.md", text + "\n")


if __name__ == "__main__":
    main()
