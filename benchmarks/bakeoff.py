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
import csv
import json
import os
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.headroom import SeeingTrainer
from ralseg.acquisition import Policy
from ralseg.acquisition.heuristics import Uniform
from ralseg.agents import QueryNetwork
from ralseg.agents.loading import policy_alone
from ralseg.agents.perturbed import Perturbed
from ralseg.commands import AcquireCLI, quiet_console, run_cli
from ralseg.config import find_config, load_config, resolve_configs
from ralseg.data import CamVid, SegmentationData
from ralseg.data.samples import Batch, JoinedSamples, Samples, SeededSampler
from ralseg.engine import ShortTraining
from ralseg.engine.final_training import RoundSampler
from ralseg.engine.short_training import ConvergedWeights
from ralseg.labels import GridLayout
from ralseg.labels.oracle import RevealedLabels
from ralseg.models import ClosedFormSegmenter, FPNSegmenter, Segmenter
from ralseg.runtime.checkpoints import read_checkpoint
from ralseg.runtime.files import write_atomically
from ralseg.runtime.seeding import stream

PLAYED, OTHERS = "0016E5", ("0001TP", "0006R0")
"""CamVid's sequences: the one that regions are taken from, and those that pay and judge in turn."""
BUDGET = 240
ITERATIONS = 30
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


def theta_0(seed: int) -> str:
    """Its file."""
    return f"runs/camvid_cpu_pretrain/seed{seed}/checkpoints/best.ckpt"


def scenes(seed: int) -> tuple[str, str]:
    """The sequence that pays and the one that judges."""
    return OTHERS if seed % 2 else OTHERS[::-1]


def write_splits(folder: Path, seed: int) -> Path:
    """A file of sets: regions are taken from the acquisition set, the state set pays, the test set judges."""
    published = json.loads((Path(os.environ["RALSEG_CAMVID"]) / "al_splits.json").read_text())
    known = read_checkpoint(Path(theta_0(seed)))["ralseg"]["trained_on"]
    rest = sorted(set(published["state"] + published["train"]) - set(known))
    pays, judges = scenes(seed)

    def of(scene: str) -> list[str]:
        return [name for name in rest if name.startswith(scene)]

    sets = {"state": of(pays), "train": known, "acquisition": of(PLAYED), "test": of(judges)}
    file = folder / f"splits_seed{seed}.json"
    write_atomically(file, json.dumps(sets))
    return file


def play(seed: int, name: str, root: Path, options: list[str]) -> None:
    """Take 240 regions by a policy, score each step on D_R, train to the end, and test on the scene that judges."""
    folder = root / f"seed{seed}" / name.replace(" ", "_")
    if (folder / "result.json").is_file():
        return
    arguments = ["acquire", "--config", "camvid_cpu_acquire.yaml", "--policy", SELECTIONS[name]]
    if name.startswith("pushed"):
        arguments += ["--policy_args", json.dumps({"seed": seed, "sign": 1 if name == "pushed" else -1})]
    arguments += ["--data.splits", str(write_splits(root, seed)), "--data.reward_images", "51"]
    arguments += ["--trainer.acquisition.budgets", f"[{BUDGET}]", "--trainer.acquisition.score_steps", "true"]
    arguments += ["--seed_everything", str(seed), "--trainer.acquisition.initial_weights", theta_0(seed)]
    arguments += ["--trainer.default_root_dir", str(folder), "--trainer.logger", "false", "--ckpt", "last"]
    run_cli(AcquireCLI, SeeingTrainer, resolve_configs(arguments + options))


# -- what each reward pays -------------------------------------------------------------------------


def make_data(splits: Path) -> SegmentationData:
    """CamVid as it was played on; the state set pays, and the test set is left alone."""
    data = SegmentationData(
        CamVid(), str(splits), size=(128, 192), layout=GridLayout(4, 6), batch_size=24, reward_images=51, flip=False
    )
    data.setup()
    data.masks.open(data.splits.train_set)
    return data


def chosen_regions(folder: Path, data: SegmentationData) -> Tensor:
    """The regions of a selection, in the order in which they were taken."""
    names = {data.dataset.names[index]: position for position, index in enumerate(data.splits.acquisition_set)}
    with (folder / "selection.csv").open() as file:
        rows = [(names[row["image"]], int(row["row"]), int(row["column"])) for row in csv.DictReader(file)]
    return torch.tensor([24 * position + 6 * row + column for position, row, column in rows])


def labelled_samples(data: SegmentationData, regions: Tensor) -> tuple[Samples, Samples]:
    """What was labelled, one sample an image, and the whole images that theta_0 knows."""
    labels = RevealedLabels(data.regions("acquisition_set"))
    labels.add(regions, data.mask_oracle("acquisition_set").label(regions))
    groups: dict[int, list[int]] = {}
    for region in regions.tolist():
        groups.setdefault(region // 24, []).append(region)
    return data.region_samples(list(groups.values()), labels), data.image_samples(data.splits.train_set, augment=True)


def in_order(data: SegmentationData, samples: Samples) -> DataLoader[Batch]:
    """Every sample once."""
    return data.loader(samples, SeededSampler(len(samples), shuffle=False), 24)


def score(segmenter: Segmenter, data: SegmentationData, indices: list[int]) -> float:
    """Mean IoU on images."""
    segmenter.eval()
    with torch.no_grad():
        for number, batch in enumerate(in_order(data, data.image_samples(indices, augment=False))):
            segmenter.validation_step(batch, number)
    found = float(segmenter.reward_iou.compute())
    segmenter.reward_iou.reset()
    return found


def closed_form(encoder: str) -> ClosedFormSegmenter:
    """The closed form, with either encoder."""
    if encoder == "lite0":
        return ClosedFormSegmenter(CamVid.class_names)
    weights = os.environ.get("RALSEG_TINY_VIT", "")
    if not Path(weights).is_file():
        raise SystemExit("RALSEG_TINY_VIT must name the file of weights of the stronger encoder (tiny_vit_5m_224)")
    strides = {"stages_3.downsample.conv2.conv": 1}
    return ClosedFormSegmenter(CamVid.class_names, "tu-tiny_vit_5m_224", weights, strides)


def pay_closed(net: ClosedFormSegmenter, data: SegmentationData, regions: Tensor) -> dict[str, float]:
    """Converged scores, closed form, on D_R and on the scene that pays."""
    net.load_state_dict(empty_state(net))
    bought, known = labelled_samples(data, regions)
    for samples in (known, bought):
        for batch in in_order(data, samples):
            net.loss(batch)
    return {"D_R": score(net, data, data.reward_indices()), "other scene": score(net, data, data.splits.state_set)}


def empty_state(net: ClosedFormSegmenter) -> dict[str, Tensor]:
    """The segmenter's own features, with nothing learned."""
    learned = {"counts", "sums", "products"}
    state = {key: torch.zeros_like(t) if key in learned else t for key, t in net.state_dict().items()}
    return state | {"keys": net.keys[:0], "taken": net.taken[:0]}


def pay_iterations(net: Segmenter, data: SegmentationData, regions: Tensor, weights: str) -> float:
    """The score on the scene that pays after 30 iterations of the decoder, from theta_0, on everything labelled."""
    checkpoint = read_checkpoint(Path(weights))
    bought, known = labelled_samples(data, regions)
    samples = JoinedSamples(bought, known)
    batches = data.loader(samples, RoundSampler(len(samples), ITERATIONS * 24, data.seed), 24)
    converged = ConvergedWeights(net, ShortTraining(ITERATIONS))
    net.load_weights(checkpoint)
    torch.manual_seed(data.seed)
    converged.show(checkpoint["state_dict"], batches)
    converged.swap_in()
    return score(net, data, data.splits.state_set)


def decoder_net() -> Segmenter:
    """The FPN of the configuration."""
    options = load_config(find_config("camvid_cpu_acquire.yaml"))["model"]["init_args"]
    options = {key: value for key, value in options.items() if key != "optimizer"}
    return FPNSegmenter(CamVid.class_names, **options)


def pay(seeds: list[int], root: Path) -> None:
    """Write what every reward pays for every selection, one row each."""
    kinds = ["lite0", "tiny_vit"] if os.environ.get("RALSEG_TINY_VIT") else ["lite0"]
    decoder = decoder_net()
    for seed in seeds:
        data = make_data(write_splits(root, seed))
        closed = {kind: closed_form(kind) for kind in kinds}  # components come from images that are not judged
        for net in (*closed.values(), decoder):
            net.prepare(data)
        for name in SELECTIONS:
            folder = root / f"seed{seed}" / name.replace(" ", "_")
            file = folder / "paid.json"
            if file.is_file() or not (folder / "result.json").is_file():
                continue
            result = json.loads((folder / "result.json").read_text())
            final, regions = result["budgets"][str(BUDGET)], chosen_regions(folder, data)
            paid = {
                "judge": final["test_set/miou"],
                "one iteration, D_R": result["miou_by_step"][-1],
                "class entropy": final["class_frequencies"]["selected_entropy"],
                "final training, D_R": final["reward_set/miou"],
                "30 iterations, other scene": pay_iterations(decoder, data, regions, theta_0(seed)),
            }
            for kind, net in closed.items():
                suffix = "" if kind == "lite0" else f" ({kind})"
                scores = pay_closed(net, data, regions)
                paid |= {f"closed form, {where}{suffix}": value for where, value in scores.items()}
            write_atomically(file, json.dumps(paid, indent=1) + "\n")
            print(seed, name, {key: round(value, 4) for key, value in paid.items()}, flush=True)


# -- how well the orders agree ---------------------------------------------------------------------


def table(seeds: list[int], root: Path, out: Path) -> None:
    """Mean correlation of each reward with the judge within theta_0s, with intervals."""
    rows, found = [], {}
    for seed in seeds:
        paid = {}
        for name in SELECTIONS:
            file = root / f"seed{seed}" / name.replace(" ", "_") / "paid.json"
            if file.is_file():
                paid[name] = json.loads(file.read_text())
        if len(paid) < len(SELECTIONS):
            print(f"seed {seed} has {len(paid)} of {len(SELECTIONS)} selections and is left out")
            continue
        rows += [{"theta_0": seed, "selection": name, **values} for name, values in paid.items()]
        judge = [values["judge"] for values in paid.values()]
        for reward in next(iter(paid.values())):
            if reward != "judge":
                order = spearmanr(judge, [values[reward] for values in paid.values()]).statistic
                found.setdefault(reward, []).append(float(order))
    if not rows:
        raise SystemExit("no seed is complete: run `play` and `pay` first")
    out.mkdir(parents=True, exist_ok=True)
    with (out / "selections.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: f"{v:.6f}" if isinstance(v, float) else v for key, v in row.items()} for row in rows)
    draws = np.random.default_rng(0).integers(0, len(rows) // len(SELECTIONS), (20_000, len(rows) // len(SELECTIONS)))
    best = max((r for r in found if not r.startswith("final")), key=lambda r: float(np.mean(found[r])))
    lines = [
        "| reward | Spearman with the judge | by theta_0 | best less this |",
        "|---|---|---|---|",
    ]
    for reward, orders in sorted(found.items(), key=lambda item: -float(np.mean(item[1]))):
        values, beyond = np.array(orders), np.array(found[best]) - np.array(orders)
        low, high = np.quantile(values[draws].mean(1), [0.025, 0.975])
        less = (
            "best"
            if reward == best
            else "{:+.2f} [{:+.2f}, {:+.2f}]".format(beyond.mean(), *np.quantile(beyond[draws].mean(1), [0.025, 0.975]))
        )
        each = ", ".join(f"{value:.2f}" for value in orders)
        lines.append(f"| {reward} | {values.mean():+.2f} [{low:+.2f}, {high:+.2f}] | {each} | {less} |")
    by_seed = {seed: {r["selection"]: 100 * r["judge"] for r in rows if r["theta_0"] == seed} for seed in seeds}
    spread = np.mean([np.ptp(list(scores.values())) for scores in by_seed.values() if scores])
    luck = np.mean([abs(scores["uniform"] - scores["uniform again"]) for scores in by_seed.values() if scores])
    lines.append(
        f"\nThe judge's scores of a theta_0's selections lie within {spread:.1f} points; two uniform selections are "
        f"{luck:.1f} apart."
    )
    text = "\n".join(lines)
    print(text)
    write_atomically(out / "table.md", text + "\n")


def main() -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["play", "pay", "table"])
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7", help="of theta_0s")
    parser.add_argument("--folder", default="runs/bakeoff")
    parser.add_argument("--out", default="docs/study/bakeoff", help="for the table")
    asked, options = parser.parse_known_args()
    quiet_console()
    torch.set_num_threads(1)
    seeds, root = list(map(int, asked.seeds.split(","))), Path(asked.folder)
    if asked.part == "play":
        for seed in seeds:
            for name in SELECTIONS:
                play(seed, name, root, options)
    elif asked.part == "pay":
        pay(seeds, root)
    else:
        table(seeds, root, Path(asked.out))


if __name__ == "__main__":
    main()
