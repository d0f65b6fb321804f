"""Which of the keys that only concern speed make the network's passes faster here, and how equal their results are.

    PYTHONPATH=. python benchmarks/network.py            # all sizes of `make bench`
    PYTHONPATH=. python benchmarks/network.py demo       # those whose name has the word

Every key runs in turn with the plain network, several times; medians of ratios count. Not part of `make bench`:
compiling alone takes minutes. Passes are those of a step: looking at a batch of whole images, and one training
iteration on a batch of crops. One thread at the demo's size, as in `make demo`. Writes benchmarks/network.json.
"""

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.step import ALL_THREADS, SIZES, Size
from ralseg.data import SyntheticStreets
from ralseg.data.samples import Batch
from ralseg.models import FPNSegmenter
from ralseg.models.feature_cache import FeatureCache
from ralseg.models.segmenter import predicted_classes

REPEATS = 5
CLASSES = SyntheticStreets(1, 1, 1).class_names
KEYS = ("plain", "model.channels_last", "model.compile", "trainer.precision bf16-mixed")


class Variant(NamedTuple):
    """The network under a key."""

    segmenter: FPNSegmenter
    context: Callable[[], AbstractContextManager]


def variants(size: Size, images: int) -> dict[str, Variant]:
    """The network under each key, with the same weights."""
    torch.manual_seed(0)
    made = {}
    for key in KEYS:
        options = {"channels_last": False} | ({key.removeprefix("model."): True} if key.startswith("model.") else {})
        segmenter = FPNSegmenter(CLASSES, **size.segmenter, **options)
        if made:
            segmenter.load_state_dict(made["plain"].segmenter.state_dict())
        if segmenter.cache_features:
            segmenter.features = FeatureCache(images, 10**9)
        is_low = key.startswith("trainer.")
        made[key] = Variant(segmenter, (lambda: torch.autocast("cpu", torch.bfloat16)) if is_low else nullcontext)
    return made


def batches(size: Size) -> tuple[Tensor, Batch]:
    """Images to look at, and a training batch."""
    generator = torch.Generator().manual_seed(0)
    whole = (size.eval_batch_size, 3, size.height, size.width)
    image = torch.randint(0, 256, whole, dtype=torch.uint8, generator=generator)
    height, width = size.crop or (size.height, size.width)
    count = min(size.regions_per_step, len(image)) if size.crop is None else size.regions_per_step
    crops = torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, len(CLASSES), (count, height, width), generator=generator).to(torch.uint8)
    indices = torch.arange(count)
    return image, Batch(crops if size.crop else image[:count], labels, indices, torch.zeros(count, dtype=torch.bool))


def timed(variant: Variant, stride: int, image: Tensor, batch: Batch) -> tuple[float, float, Tensor]:
    """Seconds of a look and of a training iteration, and the look's logits."""
    segmenter, context = variant
    segmenter.eval()
    start = time.perf_counter()
    with torch.no_grad(), context():
        logits = segmenter.logits(image, torch.arange(len(image)), stride=stride)
    looked = time.perf_counter() - start
    segmenter.train()
    segmenter.zero_grad()
    start = time.perf_counter()
    with context():
        loss = segmenter.loss(batch)
    loss.backward()
    return looked, time.perf_counter() - start, logits.float()


def measured(size: Size) -> list[dict]:
    """A row for each key."""
    torch.set_num_threads(size.threads or ALL_THREADS)
    image, batch = batches(size)
    stride = size.segmenter.get("label_stride", 1)
    under = variants(size, len(image))
    for variant in under.values():
        for _ in range(2):
            first = timed(variant, stride, image, batch)[2]  # compiles, and fills caches
            assert first.isfinite().all()
    runs = {key: [] for key in under}
    for _ in range(REPEATS):
        for key, variant in under.items():
            runs[key].append(timed(variant, stride, image, batch))
    rows = []
    for key, found in runs.items():
        look, training = (
            statistics.median(plain[i] / own[i] for plain, own in zip(runs["plain"], found, strict=True))
            for i in (0, 1)
        )
        plain, own = runs["plain"][0][2], found[0][2]
        difference = float((plain - own).abs().max() / plain.abs().max())
        same = float((predicted_classes(plain) == predicted_classes(own)).float().mean())
        print(f"{size.name:24} {key:30} {look:8.2f} {training:10.2f} {difference:10.2g} {100 * same:9.3f}%", flush=True)
        rows.append(
            {
                "size": size.name, "key": key, "look": look, "training": training,
                "difference": difference, "same_class": same,
            }
        )  # fmt: skip
    return rows


def main() -> None:
    """Measure, print a table, write JSON."""
    print(f"{'size':24} {'key':30} {'look x':>8} {'training x':>10} {'difference':>10} {'same class':>10}")
    rows = [row for size in SIZES if all(word in size.name for word in sys.argv[1:]) for row in measured(size)]
    facts = {"torch": torch.__version__, "threads": ALL_THREADS, "machine": platform.machine()}
    if not sys.argv[1:]:
        Path(__file__).with_name("network.json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
