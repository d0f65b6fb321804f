"""What is worth labelling? Policies that see the hidden labels, beside honest ones, after a final training.

    python benchmarks/headroom.py                # needs theta_0s (docs/study); resumable; prints a table at the end

The test set of CamVid shows other streets than its train set, so choices are made the same way: 240 regions are taken
from two of D_T's three sequences, a segmenter is trained on them, and scored on D_T's images of the third and on D_R.
The seeds hold out the sequences in turn. Neither D_V nor the test set is looked at. No row of a policy that sees labels
is a result of the method. What a theta_0 was trained on is neither acquired nor tested on, and mixed into the final
training, as in the study.
"""

import argparse
import json
import math
import os
import statistics
from pathlib import Path

import torch
from torch import Tensor

from ralseg.acquire import AcquireTrainer
from ralseg.acquisition import SET, Acquisition
from ralseg.commands import AcquireCLI, quiet_console, run_cli
from ralseg.data import CamVid
from ralseg.data.module import SegmentationData
from ralseg.features import rarity, standardised
from ralseg.files import write_atomically
from ralseg.player import SegmenterPlayer
from ralseg.policies import Needs, Policy
from ralseg.regions import GridShape
from ralseg.shipped import find_config

CLASSES = ("RareEntropy", "RareBald", "HalfRareEntropy", "RowRareEntropy", "TrueInfluence", "TrueRarity")
GRID = GridShape(4, 6)
"""Of the study's configuration."""
POLICIES = (
    *("uniform", "entropy", "margin", "bald", "coreset", "class_balanced_entropy"),
    *(f"benchmarks.headroom.{name}" for name in CLASSES),
)


class TrueInfluence(Policy):
    """Takes what helps the reward set most, to first order, by the hidden labels."""

    needs = Needs(measures=("true_influence",))

    def scores(self, observation, generator) -> Tensor:
        """What each region's labels are worth."""
        return observation.measures["true_influence"]


class TrueRarity(Policy):
    """Takes what holds most of the classes that labels are short of, by the hidden labels."""

    needs = Needs(measures=("true_rarity",))

    def scores(self, observation, generator) -> Tensor:
        """How rare each region's classes are among the labels."""
        return observation.measures["true_rarity"]


class Rare(Policy):
    """The network's own guess of rarity plus how unsure it is, both standardised: nothing is learned or seen."""

    def scores(self, observation, generator) -> Tensor:
        """Sum of both."""
        guess = rarity(observation.measures["probability"].flatten(0, 1), observation.labelled)
        unsure = self.uncertainty(observation).flatten()
        return standardised(torch.stack([guess, unsure], 1)).sum(1).reshape(observation.pools.shape)

    def uncertainty(self, observation) -> Tensor:
        """Mean entropy of each region."""
        return observation.entropy


class RareEntropy(Rare):
    """With entropy."""

    needs = Needs(measures=("probability",))


class RareBald(Rare):
    """With BALD."""

    needs = Needs(measures=("probability", "bald"))

    def uncertainty(self, observation) -> Tensor:
        """Mean BALD of each region."""
        return observation.measures["bald"]


class HalfRareEntropy(RareEntropy):
    """In half of the pools any region will do."""

    def scores(self, observation, generator) -> Tensor:
        """As they are, or anything."""
        anything = torch.rand(observation.pools.shape, generator=generator)
        is_open = torch.rand(len(anything), 1, generator=generator) < 0.5
        return torch.where(is_open, anything, super().scores(observation, generator))


class RowRareEntropy(RareEntropy):
    """Among the candidates of the same row of the grid only: sky and road are worth something too."""

    def scores(self, observation, generator) -> Tensor:
        """Sum of both, each standardised within its row."""
        guess = rarity(observation.measures["probability"].flatten(0, 1), observation.labelled)
        both = torch.stack([guess, self.uncertainty(observation).flatten()], 1)
        rows = observation.pools.flatten() % (GRID.rows * GRID.columns) // GRID.columns
        scores = torch.zeros(len(both))
        for row in rows.unique():
            scores[rows == row] = standardised(both[rows == row]).sum(1)
        return scores.reshape(observation.pools.shape)


class SeeingAcquisition(Acquisition):
    """Shows the hidden labels of candidates to measures."""

    def look_at(self, pools, needs, picks=1, labels=None):
        """Look with open eyes."""
        return super().look_at(pools, needs, picks, self.data.oracle(SET).label(pools.flatten()))


class SeeingTrainer(AcquireTrainer):
    """Acquires with :class:`SeeingAcquisition`."""

    def _make_acquisition(self, player, data):
        honest = super()._make_acquisition(player, data)
        return SeeingAcquisition(honest.config, data, player, honest.oracle, honest.policy, honest.policy_identity)


def known_images(seed: int) -> list[str]:
    """The images that a theta_0 was trained on: drawn anew, as ``pretrain`` drew them."""
    fit_on = ["state_set", "train_set"]
    data = SegmentationData(CamVid(), "al_splits.json", grid=GRID, fit_on=fit_on, fit_images=10, seed=seed)
    data.setup("fit")
    return [data.dataset.names[index] for index in data.fit_indices()]


def write_splits(folder: Path, seed: int) -> Path:
    """A file of sets: one sequence of D_T is what is tested on, the others are what is acquired from.

    What theta_0 knows is in neither, and makes the train set.
    """
    published = json.loads((Path(os.environ["RALSEG_CAMVID"]) / "al_splits.json").read_text())
    known = known_images(seed)
    by_sequence: dict[str, list[str]] = {}
    for name in published["state"] + published["train"]:
        by_sequence.setdefault(name.split("_")[0], [])
        if name not in known:
            by_sequence[name.split("_")[0]].append(name)
    held_out = sorted(by_sequence)[seed % len(by_sequence)]
    acquired = [name for sequence, names in by_sequence.items() for name in names if sequence != held_out]
    sets = {"state": [], "train": known, "acquisition": acquired, "test": by_sequence[held_out]}
    file = folder / f"splits_seed{seed}.json"
    write_atomically(file, json.dumps(sets))
    return file


def acquire(policy: str, seed: int, folder: Path, splits: Path, options: list[str]) -> dict:
    """Acquire with a policy, or go on with it; its scores."""
    report = folder / "result.json"
    if not report.is_file():
        weights = f"runs/camvid_cpu_pretrain/seed{seed}/checkpoints/best.ckpt"
        arguments = ["acquire", "--config", find_config("camvid_cpu_acquire.yaml"), "--policy", policy]
        arguments += ["--data.splits", str(splits), "--trainer.acquisition.budgets", "[240]"]
        arguments += ["--seed_everything", str(seed), "--trainer.acquisition.initial_weights", weights]
        arguments += ["--trainer.default_root_dir", str(folder), "--trainer.logger", "false", "--ckpt", "last"]
        run_cli(AcquireCLI, SegmenterPlayer, SeeingTrainer, arguments + options)
    return json.loads(report.read_text())["budgets"]["240"]


def main() -> None:
    """Run what is missing, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3,4,5", help="of theta_0s that the study does not end with")
    parser.add_argument("--folder", default="runs/headroom")
    parser.add_argument("--policies", default=",".join(POLICIES), help="names, classes, or checkpoints of policies")
    asked, options = parser.parse_known_args()
    if "uniform" not in asked.policies.split(","):
        parser.error("--policies must hold uniform: the others are compared with it")
    quiet_console()
    seeds, rows = list(map(int, asked.seeds.split(","))), {}
    for seed in seeds:
        splits = write_splits(Path(asked.folder), seed)
        for policy in asked.policies.split(","):
            folder = Path(asked.folder) / policy.replace("/", "_") / f"seed{seed}"
            rows.setdefault(policy, []).append(acquire(policy, seed, folder, splits, options))
    print(f"240 regions of D_T, seeds {asked.seeds}, points of mean IoU; differences: mean ± standard error\n")
    print("| policy | held-out sequence | - uniform | D_R | - uniform | class entropy |\n|---|---|---|---|---|---|")
    for policy, results in rows.items():
        cells = []
        for score in ("test_set/miou", "reward_set/miou"):
            cells.append(f"{100 * statistics.mean(result[score] for result in results):.2f}")
            beyond = [100 * (a[score] - b[score]) for a, b in zip(results, rows["uniform"], strict=True)]
            error = statistics.stdev(beyond) / math.sqrt(len(beyond)) if len(beyond) > 1 else math.nan
            cells.append(f"{statistics.mean(beyond):+.2f} ± {error:.2f}")
        variety = statistics.mean(result["class_frequencies"]["selected_entropy"] for result in results)
        print(f"| {policy} | {' | '.join(cells)} | {variety:.2f} |")


if __name__ == "__main__":
    main()
