"""How much more BALD costs than entropy when an acquisition looks at its candidates. Run by `make bench`.

    python benchmarks/bald.py            # medians of 5 looks at 240 candidates of 258 images
    python benchmarks/bald.py --short    # a quarter of the images and candidates

Both look at the same regions with the small FPN of `camvid_cpu_acquire.yaml`, whose features are cached, in turn and
in one thread. Seconds are the process's own, so that others on the machine change them little. The closed form's ratio
is printed without a bar: its single look is one product a pixel, and nothing else that BALD could share.
"""

import statistics
import time

import torch

from benchmarks.bars import Bars, in_turn, is_short, median_ratio
from ralseg.acquisition.scanner import Scan, scan
from ralseg.data import SegmentationData, SplitSizes, SyntheticStreets
from ralseg.labels import GridLayout
from ralseg.models import ClosedFormSegmenter, FPNSegmenter, Segmenter
from ralseg.models.encoders import LITE0, LITE0_ENCODER

BAR = 1.5


def look(segmenter: Segmenter, data: SegmentationData, wanted: torch.Tensor, *measures: str) -> float:
    """Seconds of this process for a look at the wanted regions."""
    start = time.process_time()
    scan(segmenter, data.regions("acquisition_set"), wanted, Scan(None, measures, batch_size=data.eval_batch_size))
    return time.process_time() - start


def main() -> None:
    """Measure both segmenters, and hold the FPN against its bar."""
    torch.set_num_threads(1)
    images, candidates = (64, 60) if is_short() else (258, 240)
    streets = SyntheticStreets(images + 12, 1, 1, 128, 192)
    data = SegmentationData(streets, SplitSizes(2, 10), layout=GridLayout(4, 6), eval_batch_size=16)
    data.setup()
    chosen = torch.randperm(len(data.regions("acquisition_set")), generator=torch.Generator().manual_seed(0))
    wanted, bars = chosen[:candidates], Bars()
    fpn = FPNSegmenter(
        data.class_names, LITE0_ENCODER, LITE0, pyramid_channels=64, segmentation_channels=32, freeze_encoder=True,
        cache_features=True, label_stride=2,
    )  # fmt: skip
    segmenters: dict[str, Segmenter] = {"FPN": fpn, "closed form": ClosedFormSegmenter(data.class_names)}
    for name, segmenter in segmenters.items():
        segmenter.prepare(data)
        look(segmenter, data, wanted, "bald")  # fills the caches
        pairs = in_turn(lambda: look(segmenter, data, wanted), lambda: look(segmenter, data, wanted, "bald"))  # noqa: B023
        entropy, bald = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{name}: entropy {entropy:.3f} s, BALD {bald:.3f} s, ratio {median_ratio(pairs):.3f}")
        if segmenter is fpn:
            bars.at_most("BALD beside entropy, FPN", median_ratio(pairs), BAR)
    bars.close()


if __name__ == "__main__":
    main()
