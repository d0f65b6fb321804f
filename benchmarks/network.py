"""Which of torch's options make the network's own passes faster here, and how equal their results are.

Every option runs in turn with the plain network, several times; medians of ratios count. Not part of `make bench`:
compiling alone takes minutes. `python benchmarks/network.py Lite0` measures one network. Writes
benchmarks/network.json.
"""

import copy
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from ralseg.models import FPNSegmenter
from ralseg.models.encoders import LITE0, LITE0_ENCODER
from ralseg.models.segmenter import predicted_classes

REPEATS = 3
CLASSES = tuple(map(str, range(11)))
NETWORKS = {
    "ResNet-50, an image of 192x256": ({"encoder": "resnet50", "encoder_weights": "none"}, (1, 192, 256)),
    "Lite0, 8 images of 128x192": (
        {
            "encoder": LITE0_ENCODER, "encoder_weights": LITE0, "pyramid_channels": 64, "segmentation_channels": 32,
        },
        (8, 128, 192),
    ),
}  # fmt: skip
Variant = tuple[FPNSegmenter, Callable[[], AbstractContextManager]]


def variants(segmenter: FPNSegmenter) -> dict[str, Variant]:
    """The network under each option."""
    last = copy.deepcopy(segmenter)
    last.net.to(memory_format=torch.channels_last)
    compiled = copy.deepcopy(segmenter)
    compiled.net.encoder.compile()
    compiled.net.decoder.compile()
    return {
        "plain": (segmenter, nullcontext),
        "channels_last": (last, nullcontext),
        "torch.compile": (compiled, nullcontext),
        "bf16 autocast": (segmenter, lambda: torch.autocast("cpu", torch.bfloat16)),
    }


def timed(variant: Variant, image: Tensor) -> tuple[float, float, Tensor]:
    """Seconds of a pass without gradients and of one with them, and the logits."""
    segmenter, context = variant
    segmenter.eval()
    start = time.perf_counter()
    with torch.no_grad(), context():
        logits = segmenter(image)
    middle = time.perf_counter()
    with context():
        segmenter(image).float().square().mean().backward()
    return middle - start, time.perf_counter() - middle, logits.float()


def main() -> None:
    """Measure, print a table, write JSON."""
    rows = []
    print(f"{'network':32} {'option':14} {'forward x':>9} {'training x':>10} {'difference':>10} {'same class':>10}")
    chosen = {name: network for name, network in NETWORKS.items() if all(word in name for word in sys.argv[1:])}
    for name, (options, (count, height, width)) in chosen.items():
        torch.manual_seed(0)
        image = torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8)
        under = variants(FPNSegmenter(CLASSES, **options))
        for variant in under.values():
            timed(variant, image)  # compiles, and fills caches
        runs = {option: [] for option in under}
        for _ in range(REPEATS):
            for option, variant in under.items():
                runs[option].append(timed(variant, image))
        for option, found in runs.items():
            forward, training = (
                statistics.median(plain[i] / own[i] for plain, own in zip(runs["plain"], found, strict=True))
                for i in (0, 1)
            )
            plain, own = runs["plain"][0][2], found[0][2]
            difference = float((plain - own).abs().max())
            same = float((predicted_classes(plain) == predicted_classes(own)).float().mean())
            print(f"{name:32} {option:14} {forward:9.2f} {training:10.2f} {difference:10.2g} {100 * same:9.2f}%")
            rows.append(
                {
                    "network": name, "option": option, "forward": forward, "training": training,
                    "difference": difference, "same_class": same,
                }
            )  # fmt: skip
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}
    Path(__file__).with_name("network.json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
