"""How well does a policy do on data that it has not seen? Rows: what it was trained on. Columns: where it is used.

    python benchmarks/matrix.py play --game closed --methods uniform,entropy,worlds=runs/worlds/policy.ckpt
    python benchmarks/matrix.py play --game fpn --sets dubai,cracks --methods uniform,ralseg
    python benchmarks/matrix.py table --game closed --methods ralseg --against uniform,entropy

A method is a heuristic's name, `ralseg` (the built-in policy), or `name=file`. `{set}` in a file stands for the
column, for rows that leave the column's set out: `others=runs/without_{set}/policy.ckpt`. Each seed draws the labelled
images of theta_0 and with them those to choose from; all methods share both. A hundredth of all regions is labelled at
a step (at most 24). The test set is read after two, five and ten steps with the closed form; with the FPN of `ralseg
init`, after five and ten, each with a final training. `--pixels` makes images smaller. Cells that are there are not
played again; several processes share the work by `--part 0/2`, `--part 1/2`.

Dubai's published test set is one place. `--sets dubai:tile1,dubai:tile2` tests on images whose names begin so, and
labels those of all other places.

Needs data sets in `--data` (RALSEG_DATA): camvid, and folders that `ralseg init` can read.
"""

import argparse
import csv
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import torch

import ralseg
from benchmarks import agents
from ralseg.commands import quiet_console
from ralseg.config import find_config, load_config
from ralseg.data import CamVid, Folder, SegmentationData, SegmentationDataset
from ralseg.engine import AcquisitionConfig, FinalTraining
from ralseg.labels import GridLayout
from ralseg.models import ClosedFormSegmenter, FPNSegmenter, Segmenter
from ralseg.project import CPU_PIXELS, choose_frame
from ralseg.runtime.files import write_atomically
from ralseg.studies.statistics import area, labels_saved, paired_difference

SETS = ["camvid", "carla", "dubai", "nuclei", "cracks"]
KNOWN = {"camvid": 10, "carla": 10}
FEWEST_KNOWN = 5
"""Labelled images that theta_0 is made from."""
BUDGETS = {"closed": (2, 5, 10), "fpn": (5, 10)}
"""Steps after which the test set is read."""
THETA_0_ITERATIONS, FINAL_ITERATIONS, BATCH = 150, 150, 8


def read(name: str, folder: Path) -> SegmentationDataset:
    """A data set; behind a colon stands what the names of the images begin with that are tested on."""
    name, _, tested = name.partition(":")
    if name == "camvid":
        return CamVid(str(folder / name))
    dataset = Folder(str(folder / name))
    if tested:
        dataset.subsets = ["test" if Path(image).name.startswith(tested) else "train" for image in dataset.names]
    return dataset


def make_data(
    name: str, dataset: SegmentationDataset, seed: int, game: str, pixels: int = CPU_PIXELS
) -> SegmentationData:
    """The sets of a seed: other labelled images, and so others to choose from; the same test set."""
    known = KNOWN.get(name, FEWEST_KNOWN)
    if name == "camvid":
        size, layout, resize = (128, 192), GridLayout(4, 6), "stretch"
    else:
        frame = choose_frame([dataset.image_size(index) for index in range(len(dataset))], pixels)
        size, layout, resize = frame.size, GridLayout(frame.rows, frame.columns), "pad"
    # nothing is chosen by the reward set
    reward = {"reward": 1, "reward_from_train": True} if ":" in name else {}
    sizes = ralseg.SplitSizes(state=1, train=known - 1, seed=seed, **reward)
    return SegmentationData(
        dataset, sizes, size=size, resize=resize, layout=layout,
        fit_on=["state_set", "train_set"], batch_size=BATCH, eval_batch_size=128 if game == "closed" else 16,
        flip=game == "fpn", reward_images=20, seed=seed,
    )  # fmt: skip


def segmenter(game: str, data: SegmentationData) -> Segmenter:
    """The network that labels and is tested: the closed form, or the FPN of `ralseg init`.

    Args:
        game: Which of both.
        data: Of any seed. The closed form finds its components from images of it that are not tested on.
    """
    names = data.class_names
    if game == "fpn":
        return FPNSegmenter(names, **_fpn_options(), optimizer=lambda p: torch.optim.SGD(p, lr=5e-3, momentum=0.9))
    net = ClosedFormSegmenter(names)
    data.setup()
    net.prepare(data)
    return net


def _fpn_options() -> dict:
    options = load_config(find_config("segmenter/fpn_lite0_frozen.yaml"))["model"]["init_args"]
    return {key: value for key, value in options.items() if key != "optimizer"}


def _one_cycle(rate: float) -> dict:
    """AdamW on a schedule that ends at zero, as `ralseg init` has it."""
    return {
        "optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=rate),
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=rate, total_steps=THETA_0_ITERATIONS
        ),
    }


def theta_0(game: str, net: Segmenter, data: SegmentationData, folder: Path) -> str:
    """The checkpoint that labelling starts from; trained if it is not there.

    All closed forms of a set share components, so that an image's features are made once.
    """
    file = folder / "checkpoints" / "best.ckpt"
    if not file.is_file():
        names, epochs = data.class_names, 1
        if game == "closed":
            components = {key: value for key, value in net.state_dict().items() if key.startswith("features.")}
            net = ClosedFormSegmenter(names)
            net.load_state_dict(components, strict=False)
        else:
            net = FPNSegmenter(names, **_fpn_options(), class_weights="inverse_sqrt", **_one_cycle(4e-3))
            data.setup()
            epochs = round(THETA_0_ITERATIONS / -(-len(data.fit_indices()) // BATCH))
        ralseg.pretrain(
            net, data, str(folder), "last", max_epochs=epochs, check_val_every_n_epoch=epochs, **_QUIET,
        )  # fmt: skip
    return str(file)


_QUIET = {"accelerator": "cpu", "enable_progress_bar": False}


@contextmanager
def silence() -> Iterator[None]:
    """Cells print tables of their own."""
    with redirect_stdout(StringIO()):
        yield


def play(asked: argparse.Namespace, root: Path) -> None:
    """Play the cells that are missing."""
    part, parts = map(int, asked.part.split("/"))
    for name in asked.sets:
        missing = [
            (seed, method, file)
            for seed in asked.seeds[part::parts]
            for method, file in asked.methods.items()
            if not cell(root, name, method, seed).is_file()
        ]
        if not missing:
            continue
        dataset = read(name, Path(asked.data))
        net = segmenter(asked.game, make_data(name, dataset, 0, asked.game, asked.pixels))
        for seed, method, file in missing:
            data = make_data(name, dataset, seed, asked.game, asked.pixels)
            with silence():
                start = theta_0(asked.game, net, data, root / name / f"theta_0/seed{seed}")
                scores = acquire(asked.game, net, data, file.format(set=name), start)
            write_atomically(cell(root, name, method, seed), json.dumps(scores) + "\n")
            print(name, method, seed, {budget: round(score, 2) for budget, score in scores.items()}, flush=True)


def cell(root: Path, name: str, method: str, seed: int) -> Path:
    """Where the scores of a cell are kept."""
    return root / name / f"{method}.seed{seed}.json"


def acquire(game: str, net: Segmenter, data: SegmentationData, policy: str, start: str) -> dict[str, float]:
    """Test scores by budget, in points."""
    data.setup()
    step = min(max(len(data.regions("acquisition_set")) // 100, 2), 24)
    budgets = [step * steps for steps in BUDGETS[game]]
    rules = AcquisitionConfig(budgets, regions_per_step=step, pool_size=10, initial_weights=start)
    final = FinalTraining(20, 20, keep="last", mix=["fit_set"])
    if game == "fpn":
        final = FinalTraining(
            FINAL_ITERATIONS, FINAL_ITERATIONS, keep="last", mix=["fit_set"], class_weights="inverse_sqrt",
            **_one_cycle(2e-3),
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        found = ralseg.acquire(policy, net, data, rules, final, folder=folder, checkpoint_every=1000, **_QUIET)
    assert found is not None
    return {budget: 100 * scores["test_set/miou"] for budget, scores in found["budgets"].items()}


# -- what comes out ---------------------------------------------------------------------------------


def curves(root: Path, name: str, method: str) -> dict[int, dict[int, float]]:
    """Test scores by budget, of each seed."""
    return {
        int(file.stem.rpartition("seed")[2]): {int(key): value for key, value in json.loads(file.read_text()).items()}
        for file in (root / name).glob(f"{method}.seed*.json")
    }


def areas(root: Path, name: str, method: str) -> dict[int, float]:
    """Area under each seed's curve."""
    return {seed: area(list(scores), list(scores.values())) for seed, scores in curves(root, name, method).items()}


def saved(root: Path, name: str, method: str, other: str) -> str:
    """Labels that a method saves until it is as good as another one with the whole budget, with their interval."""
    own, others = curves(root, name, method), curves(root, name, other)
    seeds = sorted(set(own) & set(others))
    if len(seeds) < 2:
        return ""
    both = [np.array([list(found[seed].values()) for seed in seeds]) for found in (own, others)]
    found = labels_saved(BUDGETS[root.name], *both, target=float(both[1].mean(0)[-1]))
    if not found.is_reached:
        return "not reached"
    return f"{found.percent:.0f} % [{found.low:.0f}, {found.high:.0f}]"


def differences(root: Path, name: str, method: str, other: str) -> np.ndarray:
    """Paired differences of area over the seeds that both have played."""
    own, others = areas(root, name, method), areas(root, name, other)
    return np.array([own[seed] - others[seed] for seed in sorted(set(own) & set(others))])


def table(asked: argparse.Namespace, root: Path) -> None:
    """Print how far each method is above others: set by set, and in the mean over sets."""
    lines = [
        f"{agents.GAMES[asked.game]}: area under the test curve less that of another method, in points of mean IoU;\n"
        "95 % intervals over seeds.\n"
    ]
    for other in asked.against.split(","):
        lines.append(
            f"| less {other} | {' | '.join(asked.sets)} | mean over sets |\n|---|{'---|' * len(asked.sets)}---|"
        )
        for method in asked.methods:
            if method != other:
                lines.append(f"| {method} | {' | '.join(row(root, asked.sets, method, other))} |")
        lines.append("")
    lines.append(
        "Labels saved until the mean score is that of uniform with the whole budget:\n\n"
        f"| | {' | '.join(asked.sets)} |\n|---|{'---|' * len(asked.sets)}"
    )
    for method in asked.methods:
        if method != "uniform":
            lines.append(f"| {method} | {' | '.join(saved(root, name, method, 'uniform') for name in asked.sets)} |")
    lines.append("")
    text = "\n".join(lines)
    print(text)
    if asked.out:
        keep(asked, root, text)


def row(root: Path, sets: list[str], method: str, other: str) -> list[str]:
    """The differences on each set, and their mean."""
    found = [differences(root, name, method, other) for name in sets]
    cells = ["" if len(own) < 2 else _interval(own) for own in found]
    complete = [own for own in found if len(own) > 1]
    if len(complete) < 2:
        return [*cells, ""]
    rng = np.random.default_rng(0)
    drawn = [np.mean([rng.choice(own, len(own)).mean() for own in complete]) for _ in range(agents.DRAWS)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return [*cells, f"{np.mean([own.mean() for own in complete]):+.2f} [{low:+.2f}, {high:+.2f}]"]


def _interval(values: np.ndarray) -> str:
    found = paired_difference(values, np.zeros(len(values)))
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}] ({len(values)})"


def keep(asked: argparse.Namespace, root: Path, text: str) -> None:
    """Keep the table, and every score that it is made of."""
    out = Path(asked.out)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f"{asked.game}.md", text + "\n")
    with (out / f"{asked.game}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["set", "method", "seed", "budget", "test_miou"])
        for name in asked.sets:
            for cells in sorted((root / name).glob("*.seed*.json")):
                method, _, seed = cells.stem.partition(".seed")
                for budget, score in json.loads(cells.read_text()).items():
                    writer.writerow([name, method, seed, budget, f"{score:.4f}"])


def main() -> None:
    """Play or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["play", "table"])
    parser.add_argument("--game", choices=list(agents.GAMES), default="closed")
    parser.add_argument("--methods", required=True)
    parser.add_argument("--against", default="uniform,entropy", help="what they are compared with")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7", help="to play; a table is of all that are there")
    parser.add_argument("--pixels", type=int, default=CPU_PIXELS, help="of an image, at most; CamVid has 128x192")
    parser.add_argument("--part", default="0/1", help="of the seeds")
    parser.add_argument("--data", default=os.environ.get("RALSEG_DATA", "data"), help="folder of the data sets")
    parser.add_argument("--folder", default="runs/matrix")
    parser.add_argument("--out", default="", help="where the table and all scores are kept")
    asked = parser.parse_args()
    asked.sets, asked.seeds = asked.sets.split(","), list(map(int, asked.seeds.split(",")))
    asked.methods = {name: files[0] for name, files in agents.methods_of(asked.methods).items()}
    torch.set_num_threads(1)
    quiet_console()
    root = Path(asked.folder) / asked.game
    play(asked, root) if asked.do == "play" else table(asked, root)


if __name__ == "__main__":
    main()
