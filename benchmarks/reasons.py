"""What a step of `ralseg acquire` pays to keep why it chose, in the cheapest steps that there are. Run by `make bench`.

    python benchmarks/reasons.py

Plays acquisitions of 24 from 240 candidates with a closed form and with a small FPN whose features are cached, in one
thread, by entropy, which asks for nothing beside. The seconds of pictures, record and file are held against those of
their step; the first step, which fills caches, is left out. Seconds are the process's own.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch

from benchmarks.bars import Bars
from ralseg.acquisition import scanner
from ralseg.commands import quiet_console
from ralseg.data import SegmentationData, SplitSizes, SyntheticStreets
from ralseg.engine import AcquireTrainer, AcquisitionConfig, FinalTraining
from ralseg.engine.acquire_session import AcquireSession
from ralseg.engine.reasons import ReasonsFile
from ralseg.labels import GridLayout
from ralseg.models import ClosedFormSegmenter, FPNSegmenter, Segmenter
from ralseg.models.encoders import LITE0, LITE0_ENCODER

STEPS = 12
BARS = {"fpn": 0.02, "closed": 0.03}
"""The closed form's step is a third of the FPN's, and its reasons are the same."""


class Clock(pl.Callback):
    """Seconds of this process for each step, and for its reasons."""

    def __init__(self) -> None:
        self.reasons = 0.0
        self.steps: list[tuple[float, float]] = []

    def timed(self, owner: Any, name: str) -> None:
        """Count the seconds of a function among those of reasons."""
        function: Callable[..., Any] = getattr(owner, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            start = time.process_time()
            found = function(*arguments, **options)
            self.reasons += time.process_time() - start
            return found

        setattr(owner, name, wrapped)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Note where the clocks stand."""
        self.steps.append((time.process_time(), self.reasons))

    def share(self) -> float:
        """The median share of a step."""
        pairs = zip(self.steps[1:], self.steps[2:], strict=False)
        return statistics.median((after[1] - before[1]) / (after[0] - before[0]) for before, after in pairs)


def main() -> None:
    """Measure both segmenters."""
    torch.set_num_threads(1)
    quiet_console()
    bars, clock = Bars(), Clock()
    for owner, name in ((scanner, "picture"), (AcquireSession, "_reasons"), (ReasonsFile, "write")):
        clock.timed(owner, name)
    streets = SyntheticStreets(140, 4, 4, 128, 192)
    for make in (closed, fpn):
        data = SegmentationData(streets, SplitSizes(2, 10), layout=GridLayout(4, 6), batch_size=24, eval_batch_size=16)
        clock.steps.clear()
        with tempfile.TemporaryDirectory() as folder:
            quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "callbacks": [clock]}
            rules = AcquisitionConfig([24 * STEPS], 24, pool_size=10)
            trainer = AcquireTrainer(rules, FinalTraining(1, 1), default_root_dir=folder, accelerator="cpu", **quiet)
            trainer.acquire(make(data), data, "entropy")
        seconds = statistics.median(
            after[0] - before[0] for before, after in zip(clock.steps, clock.steps[1:], strict=False)
        )
        print(f"{make.__name__}: a step takes {seconds:.3f} s")
        bars.at_most(f"share of the reasons in a step, {make.__name__}", clock.share(), BARS[make.__name__])
    bars.close()


def closed(data: SegmentationData) -> Segmenter:
    """The segmenter whose steps are cheapest."""
    return ClosedFormSegmenter(data.class_names)


def fpn(data: SegmentationData) -> Segmenter:
    """The small FPN of the demo."""
    return FPNSegmenter(
        data.class_names, LITE0_ENCODER, LITE0, pyramid_channels=64, segmentation_channels=32, freeze_encoder=True,
        cache_features=True, label_stride=2,
    )  # fmt: skip


if __name__ == "__main__":
    main()
