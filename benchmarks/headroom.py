"""What is worth labelling? Policies that see the hidden labels, beside honest ones, after a final training.

    python benchmarks/headroom.py                # needs theta_0s (docs/study); resumable; prints a table at the end

They spend 240 regions on D_T, whose labels are known when a policy is made; a segmenter is trained on them and scored
on one half of D_R while the other half decides when training stops. Neither D_V nor the test set is looked at, so
choices may be made by this table. No row of a policy that sees labels is a result of the method.
"""

import argparse
import json
import math
import os
import statistics
from pathlib import Path

from torch import Tensor

from ralseg.acquire import AcquireTrainer
from ralseg.acquisition import SET, Acquisition
from ralseg.commands import AcquireCLI, quiet_console, run_cli
from ralseg.data import CamVid
from ralseg.player import SegmenterPlayer
from ralseg.policies import Needs, Policy
from ralseg.shipped import find_config

POLICIES = "uniform,entropy,margin,class_balanced_entropy,expected_influence,headroom.TrueInfluence,headroom.TrueRarity"


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


def write_splits(path: Path) -> None:
    """D_T as what is acquired from, the two halves of D_R as reward and test set."""
    dataset = CamVid()
    published = json.loads((Path(os.environ["RALSEG_CAMVID"]) / "al_splits.json").read_text())
    reward = [name for name, subset in zip(dataset.names, dataset.subsets, strict=True) if subset == "val"]
    sets = {"state": [], "train": published["state"], "acquisition": published["train"]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sets | {"reward_set": reward[::2], "test_set": reward[1::2]}))


def acquire(policy: str, seed: int, folder: Path, splits: Path) -> dict:
    """Acquire with a policy, or go on with it; its scores."""
    report = folder / "result.json"
    if not report.is_file():
        weights = f"runs/camvid_cpu_pretrain/seed{seed}/checkpoints/best.ckpt"
        arguments = ["acquire", "--config", find_config("camvid_cpu_acquire.yaml"), "--policy", policy]
        arguments += ["--data.splits", str(splits), "--trainer.acquisition.budgets", "[240]"]
        arguments += ["--seed_everything", str(seed), "--trainer.acquisition.initial_weights", weights]
        arguments += ["--trainer.default_root_dir", str(folder), "--trainer.logger", "false", "--ckpt", "last"]
        run_cli(AcquireCLI, SegmenterPlayer, SeeingTrainer, arguments)
    return json.loads(report.read_text())["budgets"]["240"]


def main() -> None:
    """Run what is missing, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3", help="of theta_0s that the study does not end with")
    parser.add_argument("--folder", default="runs/headroom")
    parser.add_argument("--policies", default=POLICIES, help="names, classes, or checkpoints of policies")
    asked = parser.parse_args()
    quiet_console()
    splits = Path(asked.folder) / "splits.json"
    write_splits(splits)
    seeds, rows = list(map(int, asked.seeds.split(","))), {}
    for seed in seeds:
        for policy in asked.policies.split(","):
            folder = Path(asked.folder) / policy.replace("/", "_") / f"seed{seed}"
            rows.setdefault(policy, []).append(acquire(policy, seed, folder, splits))
    print(f"240 regions of D_T, seeds {asked.seeds}, points of mean IoU on D_R's other half, mean ± standard error\n")
    print("| policy | mIoU | mIoU - uniform | class entropy |\n|---|---|---|---|")
    for policy, results in rows.items():
        scores = [100 * result["test_set/miou"] for result in results]
        beyond = [a - 100 * b["test_set/miou"] for a, b in zip(scores, rows["uniform"], strict=True)]
        variety = statistics.mean(result["class_frequencies"]["selected_entropy"] for result in results)
        error = statistics.stdev(beyond) / math.sqrt(len(beyond)) if len(beyond) > 1 else math.nan
        mean, gain = statistics.mean(scores), statistics.mean(beyond)
        print(f"| {policy} | {mean:.2f} | {gain:+.2f} ± {error:.2f} | {variety:.2f} |")


if __name__ == "__main__":
    main()
