"""What is worth labelling? Policies that see the hidden labels, beside honest ones, after a final training.

    python benchmarks/headroom.py                # needs theta_0s (docs/study); resumable; prints a table at the end

CamVid's test set is the later half of a sequence that begins in the train set, and a sequence of its own. Choices are
made on images of D_S and D_T that are cut the same way: regions are taken from one of the two day sequences and from
the earlier half of the one at dusk, a segmenter is trained on them, and scored on the other day sequence with the later
half, and on D_R. The seeds hold out the day sequences in turn. Neither D_V nor the test set is looked at. No row of a
policy that sees labels is a result of the method. What a theta_0 was trained on is neither acquired nor tested on, and
mixed into the final training, as in the study.
"""

import argparse
import json
import math
import os
import statistics
from pathlib import Path

from torch import Tensor

from ralseg.acquisition import Needs, Policy
from ralseg.acquisition.heuristics import RareBald
from ralseg.commands import AcquireCLI, quiet_console, run_cli
from ralseg.config import resolve_configs
from ralseg.engine import AcquireTrainer
from ralseg.engine.acquire_session import AcquireSession
from ralseg.runtime.checkpoints import read_checkpoint
from ralseg.runtime.files import write_atomically

CLASSES = ("RareEntropy", "RareMargin", "TrueRarity")
BUDGETS = ("120", "240")
DUSK, DAYS = "0001TP", ("0006R0", "0016E5")
"""Sequences of CamVid's train subset."""
POLICIES = (
    *("uniform", "entropy", "margin", "bald", "coreset", "class_balanced_entropy", "rare_bald"),
    *(f"benchmarks.headroom.{name}" for name in CLASSES),
)


class TrueRarity(Policy):
    """Takes what holds most of the classes that labels are short of, by the hidden labels."""

    needs = Needs(measures=("true_rarity",))

    def scores(self, observation, generator) -> Tensor:
        """How rare each region's classes are among the labels."""
        return observation.measures["true_rarity"]


class RareEntropy(RareBald):
    """With entropy in place of BALD."""

    needs = Needs(measures=("probability",))

    def uncertainty(self, observation) -> Tensor:
        """Mean entropy of each region."""
        return observation.entropy


class RareMargin(RareBald):
    """With the margin between the two most probable classes in place of BALD."""

    needs = Needs(measures=("probability", "margin"))

    def uncertainty(self, observation) -> Tensor:
        """Negative mean margin of each region."""
        return -observation.measures["margin"]


class SeeingSession(AcquireSession):
    """Shows the hidden labels of candidates to measures."""

    def look_at(self, pools, picks, needs, labels=None):
        """Look with open eyes."""
        return super().look_at(pools, picks, needs, self.oracle.label(pools.flatten()))


class SeeingTrainer(AcquireTrainer):
    """Acquires with :class:`SeeingSession`, or another one that sees."""

    session: type[AcquireSession] = SeeingSession

    def play(self, module, data, open_session, resume):
        """Play the session that sees in place of the honest one."""

        def see() -> AcquireSession:
            honest = open_session()
            return self.session(honest.config, data, module, honest.oracle, honest.policy, honest.policy_identity)

        return super().play(module, data, see, resume)


def theta_0(seed: int) -> str:
    """Its file."""
    return f"runs/camvid_cpu_pretrain/seed{seed}/checkpoints/best.ckpt"


def write_splits(folder: Path, seed: int, weights: str | None = None) -> Path:
    """A file of sets: the rest of D_S and D_T, cut into what is acquired from and what is tested on.

    What theta_0 knows is in neither, and makes the train set.

    Args:
        folder: Where the file goes.
        seed: Its day sequence is held out.
        weights: theta_0, if it is not the study's of this seed.
    """
    published = json.loads((Path(os.environ["RALSEG_CAMVID"]) / "al_splits.json").read_text())
    names = sorted(published["state"] + published["train"])
    dusk = [name for name in names if name.startswith(DUSK)]
    held_out = {name for name in names if name.startswith(DAYS[seed % 2])} | set(dusk[len(dusk) // 2 :])
    known = read_checkpoint(Path(weights or theta_0(seed)))["ralseg"]["trained_on"]
    rest = [name for name in names if name not in known]
    sets = {
        "state": [],
        "train": known,
        "acquisition": [name for name in rest if name not in held_out],
        "test": [name for name in rest if name in held_out],
    }
    file = folder / f"splits_seed{seed}.json"
    write_atomically(file, json.dumps(sets))
    return file


def acquire(policy: str, seed: int, folder: Path, splits: Path, options: list[str]) -> dict:
    """Acquire with a policy, or go on with it; its scores by budget."""
    report = folder / "result.json"
    if not report.is_file():
        arguments = ["acquire", "--config", "camvid_cpu_acquire.yaml", "--policy", policy]
        arguments += ["--data.splits", str(splits), "--trainer.acquisition.budgets", f"[{','.join(BUDGETS)}]"]
        arguments += ["--seed_everything", str(seed), "--trainer.acquisition.initial_weights", theta_0(seed)]
        arguments += ["--trainer.default_root_dir", str(folder), "--trainer.logger", "false", "--ckpt", "last"]
        run_cli(AcquireCLI, SeeingTrainer, resolve_configs(arguments + options))
    scores: dict = json.loads(report.read_text())["budgets"]
    return scores


def main() -> None:
    """Run what is missing, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", default="0,1,2,3,4,5,6,7,8,9,16,17", help="of theta_0s that the study does not end with"
    )
    parser.add_argument("--folder", default="runs/headroom_cut")
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
    print(f"{' and '.join(BUDGETS)} regions of D_S and D_T, seeds {asked.seeds}, points of mean IoU, mean of both;")
    print("differences: mean ± standard error over seeds\n")
    print("| policy | held out | - uniform | D_R | - uniform | class entropy |\n|---|---|---|---|---|---|")
    for policy, results in rows.items():
        cells = []
        for score in ("test_set/miou", "reward_set/miou"):
            own, uniform = points(results, score), points(rows["uniform"], score)
            beyond = [a - b for a, b in zip(own, uniform, strict=True)]
            error = statistics.stdev(beyond) / math.sqrt(len(beyond)) if len(beyond) > 1 else math.nan
            cells += [f"{statistics.mean(own):.2f}", f"{statistics.mean(beyond):+.2f} ± {error:.2f}"]
        variety = statistics.mean(result[BUDGETS[-1]]["class_frequencies"]["selected_entropy"] for result in results)
        print(f"| {policy.removeprefix('benchmarks.headroom.')} | {' | '.join(cells)} | {variety:.2f} |")


def points(results: list[dict], score: str) -> list[float]:
    """A score of each seed, the mean over budgets."""
    return [100 * statistics.mean(result[budget][score] for budget in BUDGETS) for result in results]


if __name__ == "__main__":
    main()
