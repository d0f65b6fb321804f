"""How much memory and time does a prediction take, and does it stay bounded as images grow?

Run by `make bench`. A small FPN with 19 classes predicts images of four sizes, each in a process of its own: scaled to
the size of training, and in tiles, as where training kept images at their own size. Memory is the peak above what the
process had with the network loaded and the image in RAM.
"""

import json
import resource
import subprocess
import sys
import time

import numpy as np
import torch

from ralseg.data.canvas import Canvas
from ralseg.models import FPNSegmenter
from ralseg.models.encoders import LITE0_ENCODER

SIZES = ((750, 1000), (1500, 2000), (3000, 4000), (6000, 8000))
KINDS = {"scaled to 360x480": Canvas((360, 480)), "tiles of 1024": Canvas()}


def peak_mb() -> float:
    """The most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(kind: str, height: int, width: int) -> dict[str, float]:
    """Predict one image in this process."""
    torch.set_num_threads(1)
    names = tuple(f"class {i}" for i in range(19))
    net = FPNSegmenter(names, LITE0_ENCODER, "none", pyramid_channels=64, segmentation_channels=32)
    net.predict(np.zeros((64, 64, 3), np.uint8))
    net.canvas = KINDS[kind]
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    before, start = peak_mb(), time.perf_counter()
    net.predict(image)
    return {"mb": peak_mb() - before, "seconds": time.perf_counter() - start}


def main() -> None:
    """Print a table."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
        return
    print(f"{'':20} {'image':>10} {'image MB':>9} {'peak MB':>8} {'seconds':>8}")
    for kind in KINDS:
        for height, width in SIZES:
            command = [sys.executable, __file__, kind, str(height), str(width)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            size = f"{height}x{width}"
            print(f"{kind:20} {size:>10} {3e-6 * height * width:9.0f} {found['mb']:8.0f} {found['seconds']:8.1f}")


if __name__ == "__main__":
    main()
