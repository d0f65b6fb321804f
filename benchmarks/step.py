"""What a step of the game costs, part by part, beside the network passes that it cannot avoid. Run by `make bench`.

Plays an episode through the real trainer, then makes the same passes bare: D_S once, each image with a
candidate once, one training iteration, D_R once, and one update of the query network on a minibatch that lies
ready; with the same batch sizes, on tensors in RAM. Both are repeated in turn; the median of the ratios counts. Ratios
are of seconds of this process's CPU, so that others on the machine change them little; all else is of the clock.
Last, what a cache of a frozen encoder's features saves. Writes benchmarks/step.json. The large sizes use few images:
their passes take seconds each. `--short` measures the demo's size alone and writes nothing.
"""

import json
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.bars import Bars, is_short
from ralseg.agents import DQN
from ralseg.agents.replay import Minibatch
from ralseg.commands import quiet_console
from ralseg.data import SegmentationData, SplitSizes, SyntheticStreets
from ralseg.data.samples import Batch
from ralseg.engine import FitTrainer, Game
from ralseg.labels import GridLayout
from ralseg.models import FPNSegmenter
from ralseg.models.encoders import LITE0, LITE0_ENCODER
from ralseg.runtime.seeding import stream

BARS = {"demo, cached features": 1.05}
BAR = 1.10
"""How many times its bare passes a step may cost: at the demo's size, and at the others."""
ALL_THREADS = torch.get_num_threads()


@dataclass(frozen=True)
class Size:
    """One row of the table."""

    name: str
    height: int
    width: int
    layout: GridLayout
    segmenter: dict
    sets: tuple[int, int, int]  # state, train, reward
    regions_per_step: int
    pool_size: int
    steps: int
    repeats: int
    crop: tuple[int, int] | None = None
    eval_batch_size: int = 16
    threads: int | None = None  # None: as many as torch takes


LITE0_CACHED = {
    "encoder": LITE0_ENCODER,
    "encoder_weights": LITE0,
    "pyramid_channels": 64,
    "segmentation_channels": 32,
    "freeze_encoder": True,
    "cache_features": True,
    "label_stride": 2,
}
RESNET50 = {"encoder": "resnet50", "encoder_weights": "none"}
SMALL_DECODER = RESNET50 | {"pyramid_channels": 64, "segmentation_channels": 32, "label_stride": 2}
SIZES = (
    Size("demo, cached features", 128, 192, GridLayout(4, 6), LITE0_CACHED, (10, 60, 40), 24, 10, 6, 5, None, 16, 1),
    Size("CamVid, ResNet-50", 360, 480, GridLayout(4, 6), RESNET50, (2, 6, 4), 8, 10, 1, 2, (224, 224), 4),
    Size("Cityscapes, ResNet-50", 1024, 2048, GridLayout(8, 16), RESNET50, (1, 1, 1), 4, 20, 1, 1, (256, 512), 1),
)
CACHE = (360, 480, GridLayout(4, 6))
WITH_CACHE = Size(
    "ResNet-50, small decoder, frozen and cached", *CACHE,
    SMALL_DECODER | {"freeze_encoder": True, "cache_features": True}, (2, 6, 4), 8, 10, 2, 2, None, 4,
)  # fmt: skip
WITHOUT_CACHE = Size("the same, trained, no cache", *CACHE, SMALL_DECODER, (2, 6, 4), 8, 10, 1, 1, None, 4)


def make(size: Size) -> tuple[SegmentationData, FPNSegmenter]:
    """Data and segmenter of a size."""
    state, train, reward = size.sets
    dataset = SyntheticStreets(state + train + 1, reward, 1, size.height, size.width)
    data = SegmentationData(
        dataset,
        SplitSizes(state, train),
        layout=size.layout,
        batch_size=size.regions_per_step,
        eval_batch_size=size.eval_batch_size,
        crop=size.crop,
    )
    return data, FPNSegmenter(data.class_names, **size.segmenter)


class Spent(NamedTuple):
    """What something took."""

    cpu: float
    parts: dict[str, float]  # seconds of the clock


class Played(NamedTuple):
    """An episode that was played."""

    spent: Spent
    seconds: float  # of the clock
    shown: list[int]  # number of images with a candidate at each step
    agent: DQN
    minibatch: Minibatch


def play(size: Size, data: SegmentationData, segmenter: FPNSegmenter, folder: str) -> Played:
    """Play two episodes; the second one counts."""
    budget = size.steps * size.regions_per_step
    game = Game(budget, size.regions_per_step, size.pool_size, episodes=2, validation_plays=0)
    trainer = FitTrainer(
        game, default_root_dir=folder, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, accelerator="cpu",
    )  # fmt: skip
    times: list[tuple[float, float]] = []
    shown: list[int] = []
    loop, agent = trainer.fit_loop, DQN()
    advance, advance_end, scores = loop.advance, loop.on_advance_end, agent.policy.scores

    def start() -> None:
        times.append((-time.process_time(), -time.perf_counter()))
        advance()

    def end() -> None:
        advance_end()
        times[-1] = times[-1][0] + time.process_time(), times[-1][1] + time.perf_counter()

    def seen(observation, generator) -> Tensor:
        shown.append(len(data.regions("train_set").image_of(observation.pools).unique()))
        return scores(observation, generator)

    loop.advance, loop.on_advance_end, agent.policy.scores = start, end, seen
    trainer.fit(segmenter, datamodule=data, agent=agent)
    # the first episode fills the caches; its first step also scores theta_0
    minibatch, parts = agent.draw(stream(0, "bench")), dict(loop.session.seconds)
    cpu, seconds = (sum(column) for column in zip(*times[size.steps :], strict=True))
    return Played(Spent(cpu, parts), seconds, shown[size.steps :], agent, minibatch)


def bare(size: Size, data: SegmentationData, segmenter: FPNSegmenter, played: Played) -> Spent:
    """The same passes with nothing around them."""
    stride, batch = segmenter.label_stride, size.eval_batch_size

    def forward(indices: list[int]) -> None:
        for start in range(0, len(indices), batch):
            chosen = indices[start : start + batch]
            with torch.no_grad():
                segmenter.logits(images[chosen], torch.tensor(chosen), stride=stride)

    images = data.images.stack(range(len(data.dataset)))
    state, train, reward = data.splits.state_set, data.splits.train_set, data.splits.reward_set
    height, width = size.crop or (size.height, size.width)
    chosen = [train[i % len(train)] for i in range(size.regions_per_step)]
    sample = Batch(
        images[chosen][..., :height, :width].contiguous(),
        torch.zeros(size.regions_per_step, height, width, dtype=torch.uint8),
        torch.tensor(chosen),
        torch.zeros(size.regions_per_step, dtype=torch.bool),
    )
    optimizer = torch.optim.SGD([p for p in segmenter.parameters() if p.requires_grad], lr=1e-9)
    query_optimizer = torch.optim.SGD(played.agent.policy.net.parameters(), lr=1e-9)
    cpu, seconds = 0.0, dict.fromkeys(("state", "candidates", "train", "reward", "learn"), 0.0)

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        nonlocal cpu
        start, began = time.process_time(), time.perf_counter()
        yield
        cpu += time.process_time() - start
        seconds[part] += time.perf_counter() - began

    for number in played.shown:
        segmenter.eval()
        with timed("state"):
            forward(state)
        with timed("candidates"):
            forward(train[:number])
        with timed("reward"):
            forward(reward)
        segmenter.train()
        with timed("train"):
            optimizer.zero_grad()
            segmenter.loss(sample).backward()
            optimizer.step()
        with timed("learn"):
            query_optimizer.zero_grad()
            played.agent.batch_loss(played.minibatch).backward()
            query_optimizer.step()
    return Spent(cpu, seconds)


def measured(size: Size) -> dict:
    """Medians over the repeats: seconds of a step and of the bare passes, in all and by part."""
    torch.set_num_threads(size.threads or ALL_THREADS)
    data, segmenter = make(size)
    plays, passes = [], []
    for _ in range(size.repeats):
        with tempfile.TemporaryDirectory() as folder:
            plays.append(play(size, data, segmenter, folder))
        passes.append(bare(size, data, segmenter, plays[-1]))

    def median(values: Iterable[float]) -> float:
        return statistics.median(values) / size.steps

    return {
        "size": size.name,
        "step": median(played.seconds for played in plays),
        "bare": median(sum(spent.parts.values()) for spent in passes),
        "ratio": statistics.median(p.spent.cpu / b.cpu for p, b in zip(plays, passes, strict=True)),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "parts": {part: median(played.spent.parts[part] for played in plays) for part in plays[0].spent.parts},
        "bare_parts": {part: median(spent.parts[part] for spent in passes) for part in passes[0].parts},
    }


def show(row: dict) -> None:
    """Print a size: the whole step, then its parts beside the bare passes."""
    print(f"{row['size']:44} {row['step']:8.3f} {row['bare']:8.3f} {row['ratio']:6.3f} {row['peak_mb']:8.0f}")
    for part, seconds in row["parts"].items():
        least = row["bare_parts"].get(part)
        print(f"  {part:42} {seconds:8.3f} {'' if least is None else f'{least:8.3f}'}")
    rest = row["step"] - sum(row["parts"].values())
    print(f"  {'everything else':42} {rest:8.3f}", flush=True)


def main() -> None:
    """Measure all sizes, print a table, write JSON."""
    quiet_console()
    facts = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    print(f"{'size':44} {'step s':>8} {'bare s':>8} {'ratio':>6} {'peak MB':>8}")
    rows, bars = [], Bars()
    for size in SIZES[:1] if is_short() else SIZES:
        rows.append(measured(size))
        show(rows[-1])
        bars.at_most(f"a step, {size.name}", rows[-1]["ratio"], BARS.get(size.name, BAR))
    if is_short():
        bars.close()
        return
    cached, full = measured(WITH_CACHE), measured(WITHOUT_CACHE)
    show(cached)
    saved = full["bare"] / cached["step"]
    print(f"with its features cached a step costs {saved:.1f} x less than the bare passes of the whole network")
    result = {**facts, "rows": rows, "cache": {"with": cached, "without": full, "saved": saved}}
    Path(__file__).with_name("step.json").write_text(json.dumps(result, indent=1) + "\n")
    bars.close()


if __name__ == "__main__":
    main()
