"""Do policies that learned from reward beat those that nobody taught? Played from theta_0s that none of them has seen.

    python benchmarks/agents.py play --game closed --methods uniform,rare_bald,search=runs/a.ckpt+runs/b.ckpt
    python benchmarks/agents.py table --game closed --pairs search:uniform,search:rare_bald
    python benchmarks/agents.py weights --methods search=runs/a.ckpt+runs/b.ckpt

A method is a heuristic's name, or `name=files`: policies of one recipe that were trained independently, joined by `+`.
With `--cross` every policy plays from every theta_0, else they take the theta_0s in turn. `--game fpn` labels with the
FPN and ends with its final trainings, `--game closed` with the closed form. `--on held_out` takes regions from a part
of D_S and D_T and tests on scenes of theirs that were held out (benchmarks/headroom.py); settings are chosen on that.
`--on test` takes them from D_V and reads the test set. Cells that are there are not played again. One process plays
all, so that the encoder sees an image once; several share the work by `--part 0/2`, `--part 1/2`.

Needs theta_0s: `ralseg pretrain --config camvid_cpu_pretrain.yaml --seeds ...` and `camvid_closed_pretrain.yaml`.
"""

import argparse
import contextlib
import csv
import io
import json
import tempfile
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch

from benchmarks import bakeoff, headroom
from ralseg.acquisition import HEURISTICS
from ralseg.agents.loading import policy_alone
from ralseg.commands import quiet_console
from ralseg.data import CamVid, SegmentationData
from ralseg.engine import AcquireTrainer, AcquisitionConfig, FinalTraining
from ralseg.labels import GridLayout
from ralseg.models import ClosedFormSegmenter, Segmenter
from ralseg.runtime.checkpoints import read_checkpoint
from ralseg.runtime.files import write_atomically
from ralseg.studies.statistics import area, paired_difference

BUDGETS = [120, 240]
ITERATIONS = 100
"""Of a final training of the FPN."""
RATE = 2e-3
FOLDERS = {"fpn": "runs/camvid_cpu_pretrain", "closed": "runs/camvid_closed_pretrain"}
GAMES = {"fpn": "FPN after final trainings", "closed": "Closed form"}
DRAWS = 10_000


def final_training(game: str) -> FinalTraining:
    """Final trainings of the FPN are a schedule that ends at zero; the closed form is converged anyway."""
    if game == "closed":
        return FinalTraining(20, 20, keep="last", mix=["fit_set"])
    return FinalTraining(
        ITERATIONS,
        ITERATIONS,
        keep="last",
        mix=["fit_set"],
        class_weights="inverse_sqrt",
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=RATE),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=ITERATIONS),
    )


def theta_0(game: str, seed: int) -> str:
    """Its file."""
    return f"{FOLDERS[game]}/seed{seed}/checkpoints/best.ckpt"


def segmenter(game: str) -> Segmenter:
    """The network that labels and is tested."""
    return ClosedFormSegmenter(CamVid.class_names) if game == "closed" else bakeoff.decoder_net()


def make_data(seed: int, game: str, on: str, folder: Path, dataset: CamVid) -> SegmentationData:
    """CamVid as the study uses it, or the part of it that settings are chosen on."""
    splits = "al_splits.json"
    if on == "held_out":
        splits = str(headroom.write_splits(folder, seed, theta_0(game, seed)))
    return SegmentationData(
        dataset, splits, size=(128, 192), layout=GridLayout(4, 6), batch_size=24,
        eval_batch_size=128 if game == "closed" else 16, flip=game == "fpn", reward_images=51, seed=seed,
    )  # fmt: skip


def play(asked: argparse.Namespace, root: Path) -> None:
    """Play the cells that are missing."""
    net, dataset = segmenter(asked.game), CamVid()
    part, parts = map(int, asked.part.split("/"))
    for seed in asked.seeds[part::parts]:
        data = make_data(seed, asked.game, asked.on, root, dataset)
        for method, policies in asked.methods.items():
            turn = asked.seeds.index(seed) % len(policies)
            for number in range(len(policies)) if asked.cross else [turn]:
                file = root / f"{method}.{number}.seed{seed}.json"
                if file.is_file():
                    continue
                scores = acquire(asked, seed, data, net, policies[number])
                write_atomically(file, json.dumps(scores) + "\n")
                print(file.stem, {budget: round(score["test"], 2) for budget, score in scores.items()}, flush=True)


def acquire(
    asked: argparse.Namespace, seed: int, data: SegmentationData, net: Segmenter, policy: str
) -> dict[str, dict[str, float]]:
    """Scores at the budgets, in points."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = AcquireTrainer(
            AcquisitionConfig(asked.budgets, initial_weights=theta_0(asked.game, seed)), final_training(asked.game),
            default_root_dir=folder, logger=False, enable_progress_bar=False, accelerator="cpu",
            enable_model_summary=False,
        )  # fmt: skip
        found = trainer.acquire(net, data, policy)["budgets"]
    names = {"test": "test_set/miou", "reward": "reward_set/miou"}
    return {b: {name: 100 * found[b][key] for name, key in names.items()} for b in map(str, asked.budgets)}


# -- what comes out ---------------------------------------------------------------------------------


def read(root: Path, method: str, budgets: list[int], score: str = "test") -> dict[int, dict[int, list[float]]]:
    """Scores by theta_0 and policy: {seed: {policy: [score at each budget]}}."""
    found: dict[int, dict[int, list[float]]] = {}
    for file in root.glob(f"{method}.*.seed*.json"):
        policy, seed = file.name.removeprefix(f"{method}.").removesuffix(".json").split(".seed")
        scores = json.loads(file.read_text())
        found.setdefault(int(seed), {})[int(policy)] = [scores[str(budget)][score] for budget in budgets]
    return found


def areas(cells: dict[int, dict[int, list[float]]], budgets: list[int]) -> dict[int, dict[int, float]]:
    """Area under each curve: {seed: {policy: area}}."""
    return {seed: {p: area(budgets, scores) for p, scores in own.items()} for seed, own in cells.items()}


class Beyond(NamedTuple):
    """A mean paired difference with its interval."""

    mean: float
    low: float
    high: float
    of: str  # how many

    def __str__(self) -> str:
        """As it stands in a table."""
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}] ({self.of})"


def difference(first: dict[int, dict[int, float]], second: dict[int, dict[int, float]]) -> Beyond:
    """Mean paired difference with its interval; where policies are crossed with theta_0s, both are drawn anew."""
    seeds = sorted(set(first) & set(second))
    policies = sorted({policy for seed in seeds for policy in first[seed]})
    base = np.array([np.mean(list(second[seed].values())) for seed in seeds])
    if len(policies) > 1 and all(set(first[seed]) == set(policies) for seed in seeds):
        own = np.array([[first[seed][policy] for policy in policies] for seed in seeds]) - base[:, None]
        rng = np.random.default_rng(0)
        rows = rng.integers(0, len(seeds), (DRAWS, len(seeds)))
        columns = rng.integers(0, len(policies), (DRAWS, len(policies)))
        drawn = [own[np.ix_(row, column)].mean() for row, column in zip(rows, columns, strict=True)]
        low, high = np.quantile(drawn, [0.025, 0.975])
        return Beyond(float(own.mean()), low, high, f"{len(seeds)} theta_0s x {len(policies)} policies")
    values = [np.mean(list(first[seed].values())) for seed in seeds]
    found = paired_difference(values, base)
    return Beyond(found.mean, found.low, found.high, f"{len(seeds)} theta_0s")


def table(asked: argparse.Namespace, root: Path) -> None:
    """Print means of all methods, and the differences that were asked for."""
    methods = list(asked.methods) or sorted({file.name.split(".")[0] for file in root.glob("*.seed*.json")})
    budgets = asked.budgets
    found = {method: read(root, method, budgets) for method in methods}
    common = set.intersection(*(set(cells) for cells in found.values()))
    lines = [
        f"{GAMES[asked.game]}, {asked.on.replace('_', ' ')}: {len(common)} theta_0s that all methods played from;\n"
        "points of mean IoU, differences with 95 % intervals.\n",
        f"| method | {' | '.join(map(str, budgets))} | area | - uniform |\n|---|{'---|' * (len(budgets) + 2)}",
    ]
    uniform = areas(found["uniform"], budgets)
    beyond_uniform: dict[str, Beyond] = {}
    for method, cells in found.items():
        own = {seed: cells[seed] for seed in sorted(common)}
        means = np.mean([np.mean(list(scores.values()), 0) for scores in own.values()], 0)
        beyond = "" if method == "uniform" else difference(areas(own, budgets), uniform)
        if isinstance(beyond, Beyond):
            beyond_uniform[method] = beyond
        line = " | ".join(f"{mean:.2f}" for mean in means)
        lines.append(f"| {method} | {line} | {area(budgets, list(means)):.2f} | {beyond} |")
    if asked.pairs:
        lines.append("\n| area of | less that of | difference |\n|---|---|---|")
    for pair in filter(None, asked.pairs.split(",")):
        first, second = pair.split(":")
        beyond = difference(areas(found[first], budgets), areas(found[second], budgets))
        lines.append(f"| {first} | {second} | {beyond} |")
    text = "\n".join(lines)
    print(text)
    if asked.out:
        write(Path(asked.out), f"{asked.game}_{asked.on}", text, found, budgets)
        draw(Path(asked.out) / f"{asked.game}_{asked.on}.png", GAMES[asked.game], beyond_uniform)


def draw(file: Path, title: str, beyond: dict[str, Beyond]) -> None:
    """How far each method is above uniform, with intervals; what learned from reward in another colour."""
    figure, axes = plt.subplots(figsize=(6, 0.45 * len(beyond) + 1), layout="constrained")
    for place, (method, found) in enumerate(sorted(beyond.items(), key=lambda item: item[1].mean)):
        colour = "tab:gray" if method in HEURISTICS else "tab:blue"
        axes.plot([found.low, found.high], [place, place], color=colour)
        axes.plot(found.mean, place, "o", color=colour)
        axes.text(found.high, place, f"  {method}", va="center")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(yticks=[], title=title, xlabel="area less uniform's, points of mean IoU (95 % interval)")
    axes.margins(x=0.25)
    figure.savefig(file, dpi=120)
    plt.close(figure)


def write(
    out: Path, name: str, text: str, found: dict[str, dict[int, dict[int, list[float]]]], budgets: list[int]
) -> None:
    """Keep the tables and every score that they are made of."""
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f"{name}.md", text + "\n")
    with (out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "policy", "theta_0", "budget", "test_miou"])
        for method, cells in found.items():
            for seed, own in sorted(cells.items()):
                for policy, scores in sorted(own.items()):
                    for budget, score in zip(budgets, scores, strict=True):
                        writer.writerow([method, policy, seed, budget, f"{score:.4f}"])


def weights(asked: argparse.Namespace) -> None:
    """Print what the policies of each method count most, as shares of the length of all weights."""
    for method, files in asked.methods.items():
        rows, names = [], []
        for file in files:
            saved = policy_alone(read_checkpoint(Path(file)))
            names = saved["ralseg"]["policy"]["init_args"]["features"]
            rows.append(torch.nn.functional.normalize(saved["state_dict"]["net.weight"], dim=0))
        for title, row in [*zip(files, rows, strict=True), ("mean", torch.stack(rows).mean(0))]:
            first = row.abs().argsort(descending=True)[:6].tolist()
            print(method, title, ", ".join(f"{names[i]} {float(row[i]):+.2f}" for i in first))


def methods_of(text: str) -> dict[str, list[str]]:
    """Policies of each method: ``uniform,mine=a.ckpt+b.ckpt``."""
    named = [part.partition("=") for part in text.split(",") if part]
    return {name: files.split("+") if files else [name] for name, _, files in named}


def main() -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["play", "table", "weights"])
    parser.add_argument("--game", choices=list(FOLDERS), default="closed")
    parser.add_argument("--on", choices=["test", "held_out"], default="held_out")
    parser.add_argument("--methods", default="", help="what plays; for the table: all that have played")
    parser.add_argument("--seeds", default="20,21,22,23,24,25,26,27,28,29,30,31", help="of theta_0s")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    parser.add_argument("--pairs", default="", help="differences to print, first:second")
    parser.add_argument("--cross", action="store_true", help="every policy plays from every theta_0")
    parser.add_argument("--part", default="0/1", help="of the theta_0s")
    parser.add_argument("--folder", default="runs/agents")
    parser.add_argument("--out", default="", help="where the table and all scores are kept")
    asked = parser.parse_args()
    asked.seeds, asked.methods = list(map(int, asked.seeds.split(","))), methods_of(asked.methods)
    asked.budgets = list(map(int, asked.budgets.split(",")))
    root = Path(asked.folder) / f"{asked.game}_{asked.on}"
    root.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    quiet_console()
    if asked.do == "play":
        play(asked, root)
    elif asked.do == "weights":
        weights(asked)
    else:
        table(asked, root)


if __name__ == "__main__":
    main()
