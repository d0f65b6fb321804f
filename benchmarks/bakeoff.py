"""Which reward ranks selections of regions as a converged segmenter on new scenes does? Played and trained on CamVid.

    python benchmarks/bakeoff.py play --seeds 0,2,4,6    # selections of 240 regions, each with a final training
    python benchmarks/bakeoff.py pay                     # what each candidate reward pays for those selections
    python benchmarks/bakeoff.py table                   # how well the orders agree

Needs theta_0s: `ralseg pretrain --config camvid_cpu_pretrain.yaml --seeds 0,1,2,3,4,5,6,7`. Every part goes on where it
was cut off. Only images of D_S, D_T and D_R are looked at. Regions are taken from one sequence of D_S and D_T
(0016E5, the largest). A second sequence pays, where a reward is paid on other scenes. The third judges: it tests the
network after its final training. The last two change places from seed to seed. What a theta_0 was trained on is in none
of the three, and is mixed into the final training, as in the study.
"""

import argparse
import json
import os
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.headroom import SeeingTrainer
from ralseg.acquisition import Policy
from ralseg.acquisition.heuristics import Uniform
from ralseg.agents import QueryNetwork
from ralseg.agents.loading import policy_alone
from ralseg.agents.paired_blocks import Perturbed
from ralseg.commands import AcquireCLI, quiet_console, run_cli
from ralseg.config import resolve_configs
from ralseg.data import CamVid
from ralseg.runtime.checkpoints import read_checkpoint
from ralseg.runtime.files import write_atomically
from ralseg.runtime.seeding import stream

PLAYED, OTHERS = "0016E5", ("0001TP", "0006R0")
"""CamVid's sequences: the one that regions are taken from, and those that pay and judge in turn."""
BUDGET = 240
KEPT = "docs/study/prior/policy0.ckpt"
"""A learned policy of the study, which is pushed in two opposite directions too."""


class UniformAgain(Uniform):
    """Uniform with other random numbers: the distance between two rows that differ by luck alone."""

    def scores(self, observation, generator) -> Tensor:
        """The second numbers of the stream."""
        super().scores(observation, generator)
        return super().scores(observation, generator)


class Pushed(Policy):
    """The kept policy, pushed in a direction that the seed of the run draws.

    Args:
        seed: Of the direction.
        sign: 1 or -1.
    """

    def __init__(self, seed: int = 0, sign: int = 1) -> None:
        saved = policy_alone(read_checkpoint(Path(KEPT)))
        policy = QueryNetwork(**saved["ralseg"]["policy"]["init_args"])
        policy.build(CamVid.class_names, num_state_regions=0, seed=0)
        policy.load_state_dict(saved["state_dict"])
        self._policy = Perturbed(policy, 0.7, stream(seed, "bake-off"), sign)
        self.needs = self._policy.needs

    def scores(self, observation, generator) -> Tensor:
        """Scores of the policy plus a random linear function of the features."""
        return self._policy.scores(observation, generator)


SELECTIONS: dict[str, str] = {
    "uniform": "uniform",
    "uniform again": "benchmarks.bakeoff.UniformAgain",
    "entropy": "entropy",
    "margin": "margin",
    "bald": "bald",
    "rare_bald": "rare_bald",
    "rarity forecast": KEPT,
    "true rarity": "benchmarks.headroom.TrueRarity",
    "pushed": "benchmarks.bakeoff.Pushed",
    "pushed back": "benchmarks.bakeoff.Pushed",
}


def theta_0(seed: int, encoder: str) -> str:
    """Its file."""
    return f"runs/camvid_cpu_pretrain{'' if encoder == 'lite0' else '_' + encoder}/seed{seed}/checkpoints/best.ckpt"


def scenes(seed: int) -> tuple[str, str]:
    """The sequence that pays and the one that judges."""
    return OTHERS if seed % 2 else OTHERS[::-1]


def write_splits(folder: Path, seed: int, encoder: str) -> Path:
    """A file of sets: regions are taken from the acquisition set, the state set pays, the test set judges."""
    published = json.loads((Path(os.environ["RALSEG_CAMVID"]) / "al_splits.json").read_text())
    known = read_checkpoint(Path(theta_0(seed, encoder)))["ralseg"]["trained_on"]
    rest = sorted(set(published["state"] + published["train"]) - set(known))
    pays, judges = scenes(seed)

    def of(scene: str) -> list[str]:
        return [name for name in rest if name.startswith(scene)]

    sets = {"state": of(pays), "train": known, "acquisition": of(PLAYED), "test": of(judges)}
    file = folder / f"splits_seed{seed}.json"
    write_atomically(file, json.dumps(sets))
    return file


def play(seed: int, name: str, root: Path, encoder: str, options: list[str]) -> None:
    """Take 240 regions by a policy, score each step on D_R, train to the end, and test on the scene that judges."""
    folder = root / f"seed{seed}" / name.replace(" ", "_")
    if (folder / "result.json").is_file():
        return
    arguments = ["acquire", "--config", "camvid_cpu_acquire.yaml", "--policy", SELECTIONS[name]]
    if name.startswith("pushed"):
        arguments += ["--policy_args", json.dumps({"seed": seed, "sign": 1 if name == "pushed" else -1})]
    arguments += ["--data.splits", str(write_splits(root, seed, encoder)), "--data.reward_images", "51"]
    arguments += ["--trainer.acquisition.budgets", f"[{BUDGET}]", "--trainer.acquisition.score_steps", "true"]
    arguments += ["--seed_everything", str(seed), "--trainer.acquisition.initial_weights", theta_0(seed, encoder)]
    arguments += ["--trainer.default_root_dir", str(folder), "--trainer.logger", "false", "--ckpt", "last"]
    run_cli(AcquireCLI, SeeingTrainer, resolve_configs(arguments + options))


def main() -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["play", "pay", "table"])
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7", help="of theta_0s")
    parser.add_argument("--folder", default="runs/bakeoff")
    parser.add_argument("--encoder", default="lite0", choices=["lite0", "tiny_vit"])
    asked, options = parser.parse_known_args()
    quiet_console()
    seeds, root = list(map(int, asked.seeds.split(","))), Path(asked.folder) / asked.encoder
    torch.set_num_threads(1)
    for seed in seeds:
        for name in SELECTIONS:
            if asked.part == "play":
                play(seed, name, root, asked.encoder, options)


if __name__ == "__main__":
    main()
