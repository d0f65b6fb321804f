"""Does decoding or augmentation ever dominate? One epoch through the loader against bare passes.

Run by `make bench`, which fails when a ratio is over its bar; `--short` measures the small images alone.
Both sides train the same network on the same number of images of the same size:
one gets them from the data module (decoded once, then cached; cropped and flipped anew each epoch), the
other from tensors that already lie in RAM. Both are timed in turn, and the median of the ratios is given.
"""

import statistics
import time

import torch

from benchmarks.bars import REPEATS, Bars, is_short
from ralseg.data import SegmentationData, SplitSizes, SyntheticStreets
from ralseg.data.samples import Batch
from ralseg.models import FPNSegmenter
from ralseg.models.encoders import LITE0, LITE0_ENCODER
from ralseg.models.segmenter import masked_cross_entropy

TARGET = 1.15


def train_epoch(model: FPNSegmenter, optimizer: torch.optim.Optimizer, batches) -> float:
    """Seconds of one pass over ``batches``."""
    start = time.perf_counter()
    for batch in batches:
        optimizer.zero_grad()
        masked_cross_entropy(model(batch.image), batch.mask).backward()
        optimizer.step()
    return time.perf_counter() - start


def main() -> None:
    """Print the ratio for two image sizes."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; median of {REPEATS} interleaved epochs")
    print(f"{'images':>10} {'crop':>10} {'bare s':>8} {'loader s':>9} {'ratio':>6}   target at most {TARGET}")
    bars, sizes = Bars(), (((128, 192), None), ((360, 480), (224, 224)))
    for (height, width), crop in sizes[:1] if is_short() else sizes:
        dataset = SyntheticStreets(num_train=48, num_val=1, num_test=1, height=height, width=width)
        data = SegmentationData(dataset, SplitSizes(2, 40), batch_size=8, crop=crop)
        data.setup()
        loader = data.train_dataloader()
        in_ram = [Batch(*map(torch.clone, batch)) for batch in loader]  # also fills the cache
        model = FPNSegmenter(data.class_names, LITE0_ENCODER, LITE0, pyramid_channels=64, segmentation_channels=32)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        train_epoch(model, optimizer, in_ram)
        pairs = []
        for epoch in range(REPEATS):
            loader.batch_sampler.sampler.set_epoch(epoch)
            pairs.append((train_epoch(model, optimizer, in_ram), train_epoch(model, optimizer, loader)))
        bare, through = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        shown = "none" if crop is None else f"{crop[0]}x{crop[1]}"
        print(f"{height}x{width:>6} {shown:>10} {bare:8.2f} {through:9.2f} {ratio:6.3f}")
        bars.at_most(f"training through the loader beside bare passes, {height}x{width}", ratio, TARGET)
    bars.close()


if __name__ == "__main__":
    main()
