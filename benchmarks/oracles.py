"""How much better could a policy be? Greedy policies that see the labels, in the closed-form game on CamVid.

    python benchmarks/oracles.py                 # about ten minutes; prints a table

Needs theta_0s: `ralseg pretrain --config camvid_closed_pretrain.yaml --seeds 0,1,2,3`. Each oracle takes the candidate
whose labels alone, added to what is labelled, raise something most: mean IoU or the balanced log-likelihood, on half of
the test images, on D_R, or on D_S and D_T. All are scored on the other half of the test images; the halves change
places from seed to seed. These rows measure a distance. They are no result of any method, and no setting follows from
them. The last rows are honest policies on the same images.
"""

import argparse
import io
import json
import math
import os
import statistics
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.headroom import RareEntropy, SeeingTrainer
from ralseg import measure
from ralseg.acquisition import HEURISTICS, Needs, Policy, RegionPredictions
from ralseg.commands import quiet_console
from ralseg.data import CamVid, SegmentationData
from ralseg.engine import AcquisitionConfig, FinalTraining
from ralseg.engine.acquire_session import AcquireSession
from ralseg.labels import GridLayout
from ralseg.models import ClosedFormSegmenter, discriminant
from ralseg.models.closed_form import RewardPixels
from ralseg.runtime.files import write_atomically

BUDGETS = [120, 240]
PIXELS = 5000


@measure
def likelihood_credit(seen: RegionPredictions) -> Tensor:
    """The balanced log-likelihood of the judge's pixels if this region alone were labelled: [r]."""
    net, judge = seen.prediction.segmenter, seen.paying_pixels()
    maps = seen.prediction._at(seen.regions, seen.rows, seen.numbers)
    labels = seen.label_maps().flatten(1)
    heads = discriminant.fit_with_each(net.moments, maps.values.flatten(2).mT, labels, net.shrinkage, net.prior_power)
    frequency = torch.bincount(judge.classes, minlength=len(net.class_names)).clamp(min=1)
    weight = (1.0 / frequency)[judge.classes]
    found = []
    for some, bias in zip(heads.weight.float(), heads.bias.float(), strict=True):
        logits = judge.features @ some.T + bias
        chosen = logits.log_softmax(1).clamp(min=-10).gather(1, judge.classes[:, None])[:, 0]
        found.append((weight * chosen).sum())
    return torch.stack(found)


class Oracle(Policy):
    """Takes the candidate whose labels alone raise something most, on images that are named by a set.

    Args:
        by: ``credit``, or ``likelihood_credit``.
        on: The set whose labels it sees beside the candidates'.
    """

    def __init__(self, by: str, on: str) -> None:
        self.by, self.on = by, on
        self.needs = Needs(measures=(by,))

    def scores(self, observation, generator) -> Tensor:
        """What each region would bring."""
        return observation.measures[self.by]


class OracleSession(AcquireSession):
    """Shows the hidden labels of candidates, and of the images that an oracle names."""

    _pixels: RewardPixels | None = None

    def look_at(self, pools, picks, needs, labels=None, judge=None):
        """Look with open eyes."""
        if not isinstance(self.policy, Oracle):
            return super().look_at(pools, picks, needs)
        return super().look_at(pools, picks, needs, self.oracle.label(pools.flatten()), self._judge)

    def _judge(self) -> RewardPixels:
        if self._pixels is None:
            data, indices = self.data, self.data.splits[self.policy.on]
            data.masks.open(indices)
            loader = data.eval_loader(indices, self.policy.on)
            self._pixels = self.segmenter.reward_pixels(loader, PIXELS, torch.Generator().manual_seed(data.seed))
        return self._pixels


class OracleTrainer(SeeingTrainer):
    """Acquires with :class:`OracleSession`."""

    session = OracleSession


ROWS: dict[str, Policy] = {
    "mean IoU on half of the test images": Oracle("credit", "state_set"),
    "balanced log-likelihood on the same images": Oracle("likelihood_credit", "state_set"),
    "mean IoU on D_R": Oracle("credit", "reward_set"),
    "balanced log-likelihood on D_R": Oracle("likelihood_credit", "reward_set"),
    "mean IoU on D_S and D_T": Oracle("credit", "train_set"),
    "balanced log-likelihood on D_S and D_T": Oracle("likelihood_credit", "train_set"),
    "(entropy)": HEURISTICS["entropy"](),
    "(margin)": HEURISTICS["margin"](),
    "(bald)": HEURISTICS["bald"](),
    "(rare_bald)": HEURISTICS["rare_bald"](),
    "(rare + entropy)": RareEntropy(),
    "uniform": HEURISTICS["uniform"](),
}


def write_splits(path: Path, seed: int) -> Path:
    """The published sets; half of the test images are the state set, which an oracle may look at."""
    root = Path(os.environ["RALSEG_CAMVID"])
    published = json.loads((root / "al_splits.json").read_text())
    test = sorted(file.name for file in (root / "test").glob("*.png"))
    sets = {
        "state": test[seed % 2 :: 2],
        "train": published["state"] + published["train"],
        "acquisition": published["acquisition"],
        "test": test[1 - seed % 2 :: 2],
    }
    write_atomically(path, json.dumps(sets))
    return path


def acquire(policy: Policy, seed: int, net: ClosedFormSegmenter, dataset: CamVid, folder: Path) -> dict[int, float]:
    """Test scores at the budgets, in points."""
    data = SegmentationData(
        dataset, str(write_splits(folder / f"splits{seed}.json", seed)), size=(128, 192), resize="stretch",
        layout=GridLayout(4, 6), batch_size=24, eval_batch_size=128, flip=False, reward_images=51, seed=seed,
    )  # fmt: skip
    theta_0 = f"runs/camvid_closed_pretrain/seed{seed}/checkpoints/best.ckpt"
    trainer = OracleTrainer(
        AcquisitionConfig(BUDGETS, initial_weights=theta_0), FinalTraining(20, 20, keep="last", mix=["fit_set"]),
        default_root_dir=tempfile.mkdtemp(dir=folder), logger=False, enable_progress_bar=False, accelerator="cpu",
        enable_model_summary=False,
    )  # fmt: skip
    with redirect_stdout(io.StringIO()):  # a table for every budget
        result = trainer.acquire(net, data, policy)
    return {budget: 100 * result["budgets"][str(budget)]["test_set/miou"] for budget in BUDGETS}


def main() -> None:
    """Play all rows, then print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3", help="of theta_0s")
    seeds = list(map(int, parser.parse_args().seeds.split(",")))
    torch.set_num_threads(1)
    quiet_console()
    net, dataset, found = ClosedFormSegmenter(CamVid.class_names), CamVid(), {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            for name, policy in ROWS.items():
                found.setdefault(name, []).append(acquire(policy, seed, net, dataset, Path(folder)))
    uniform = found["uniform"]
    print(f"Test mIoU of {len(seeds)} theta_0s less uniform's, in points, mean ± standard error\n")
    print(f"| takes the region whose labels alone raise ... most | {' | '.join(map(str, BUDGETS))} |\n|---|---|---|")
    for name, scores in found.items():
        cells = []
        for budget in BUDGETS:
            beyond = [own[budget] - other[budget] for own, other in zip(scores, uniform, strict=True)]
            error = statistics.stdev(beyond) / math.sqrt(len(beyond)) if len(beyond) > 1 else math.nan
            cells.append(f"{statistics.mean(beyond):+.2f} ± {error:.2f}")
        if name == "uniform":
            cells = [f"{statistics.mean(own[budget] for own in scores):.2f}" for budget in BUDGETS]
            name = "uniform itself"
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
