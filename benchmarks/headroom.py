"""How much there is to gain: acquisitions by policies that see the hidden labels, beside honest ones.

    python benchmarks/headroom.py --seeds 10,11,12 --folder runs/headroom      # resumable; prints a table at the end

No result of such a policy is a result of the method; the table says what a perfect forecast would be worth.
"""

import argparse
import json
import statistics
from pathlib import Path

from torch import Tensor

from ralseg.acquire import AcquireTrainer
from ralseg.acquisition import SET, Acquisition
from ralseg.commands import AcquireCLI, quiet_console, run_cli
from ralseg.player import SegmenterPlayer
from ralseg.policies import Needs, Policy
from ralseg.shipped import find_config


class TrueInfluence(Policy):
    """Takes what helps the reward set most, to first order, by the hidden labels."""

    needs = Needs(measures=("true_influence",))

    def scores(self, observation, generator) -> Tensor:
        """What each region's labels are worth."""
        return observation.measures["true_influence"]


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


def acquire(policy: str, seed: int, folder: Path, options: list[str]) -> dict:
    """Acquire with a policy, or go on with it; its result."""
    report = folder / "result.json"
    if not report.is_file():
        weights = f"runs/camvid_cpu_pretrain/seed{seed}/checkpoints/best.ckpt"
        arguments = ["acquire", "--config", find_config("camvid_cpu_acquire.yaml"), "--policy", policy, *options]
        arguments += ["--seed_everything", str(seed), "--trainer.acquisition.initial_weights", weights]
        arguments += ["--trainer.default_root_dir", str(folder), "--trainer.logger", "false", "--ckpt", "last"]
        run_cli(AcquireCLI, SegmenterPlayer, SeeingTrainer, arguments)
    return json.loads(report.read_text())


def main() -> None:
    """Run what is missing, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="10,11,12")
    parser.add_argument("--folder", default="runs/headroom")
    parser.add_argument("--budgets", default="[240,480]")
    parser.add_argument("--policies", default="uniform,entropy,expected_influence,headroom.TrueInfluence")
    asked = parser.parse_args()
    quiet_console()
    options = ["--trainer.acquisition.budgets", asked.budgets]
    rows = {}
    for seed in map(int, asked.seeds.split(",")):
        for policy in asked.policies.split(","):
            result = acquire(policy, seed, Path(asked.folder) / policy / f"seed{seed}", options)
            rows.setdefault(policy, []).append(result["budgets"])
    print(f"mean over seeds {asked.seeds}, points of mean IoU: test set / reward set")
    for policy, results in rows.items():
        cells = []
        for budget in results[0]:
            means = (
                statistics.mean(100 * scores[budget][name] for scores in results)
                for name in ("test_set/miou", "reward_set/miou")
            )
            cells.append(f"{budget}: " + " / ".join(f"{mean:.2f}" for mean in means))
        print(f"{policy:28}", "   ".join(cells))


if __name__ == "__main__":
    main()
