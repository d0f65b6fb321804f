"""What a cell of a study leaves on the disk with a frozen encoder, and what it would leave with whole checkpoints.

Runs `acquire` with three budgets and a final training at each, on synthetic streets with the segmenter of
`camvid_cpu_acquire.yaml`, twice: as it is, and with `complete_checkpoints`. Run by `make bench`; takes half a minute.
"""

import tempfile
from functools import partial
from pathlib import Path

import torch

from benchmarks.bars import Bars
from ralseg.commands import quiet_console
from ralseg.data import SegmentationData, SplitSizes, SyntheticStreets
from ralseg.engine import AcquireTrainer, AcquisitionConfig, FinalTraining
from ralseg.labels import GridLayout
from ralseg.models import FPNSegmenter
from ralseg.models.encoders import LITE0, LITE0_ENCODER

BAR_MB = 15.0


def megabytes(folder: Path, complete: bool) -> float:
    """What a cell leaves."""
    streets = SyntheticStreets(num_train=16, num_val=4, num_test=4, height=128, width=192)
    data = SegmentationData(streets, SplitSizes(state=2, train=4), layout=GridLayout(4, 6), batch_size=8)
    segmenter = FPNSegmenter(
        streets.class_names, LITE0_ENCODER, LITE0, pyramid_channels=64, segmentation_channels=32,
        freeze_encoder=True, cache_features=True, label_stride=2,
        optimizer=partial(torch.optim.SGD, lr=5e-3, momentum=0.9),
    )  # fmt: skip
    final = FinalTraining(max_steps=4, validate_every=2, optimizer=partial(torch.optim.AdamW, lr=2e-3))
    trainer = AcquireTrainer(
        AcquisitionConfig(budgets=[24, 48, 72], regions_per_step=24), final, default_root_dir=str(folder), logger=False,
        enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", complete_checkpoints=complete,
    )  # fmt: skip
    trainer.acquire(segmenter, data, "entropy")
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def main() -> None:
    """Measure both, and hold the first against its bar."""
    quiet_console()
    bars = Bars()
    with tempfile.TemporaryDirectory() as folder:
        lean, whole = (megabytes(Path(folder) / name, name == "whole") for name in ("lean", "whole"))
    print(f"with whole checkpoints: {whole:.0f} MB")
    bars.at_most("MB that a cell with three budgets leaves", lean, BAR_MB)
    bars.close()


if __name__ == "__main__":
    main()
