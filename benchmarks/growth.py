"""How the parts of a step that are no network passes grow: with K, N, labelled regions, classes, images in the set.

One figure changes at a time, the others stay at CamVid's; then all are Cityscapes' at once. Each size runs in a process
of its own, so that its peak memory is its own. Then the memory of looking at candidates in a few and in four times as
many images of 1024x2048, with next to no RAM for the cache. Run by `make bench`; writes benchmarks/growth.json.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ralseg.acquisition import Candidates, Observation
from ralseg.acquisition.features import RegionFeatures
from ralseg.acquisition.representation import Representation
from ralseg.acquisition.scanner import Scan, scan
from ralseg.agents import DQN
from ralseg.agents.replay import StepMemory
from ralseg.data import SegmentationData, SplitSizes, SyntheticStreets
from ralseg.labels import GridLayout, RegionLedger
from ralseg.models import FPNSegmenter
from ralseg.models.encoders import LITE0, LITE0_ENCODER

REPEATS = 3


@dataclass(frozen=True)
class Size:
    """A step's figures."""

    K: int = 24
    N: int = 20
    labelled: int = 480
    images: int = 257
    cells: int = 24
    classes: int = 11


CAMVID = Size()
CITYSCAPES = Size(K=256, N=100, labelled=30_720, images=2_615, cells=128, classes=19)
SIZES = {
    "CamVid": CAMVID,
    "K x 10": replace(CAMVID, K=240),
    "N x 10": replace(CAMVID, N=200),
    "labelled x 10": replace(CAMVID, labelled=4_800),
    "images x 10": replace(CAMVID, images=2_570),
    "classes x 10": replace(CAMVID, classes=110),
    "Cityscapes": CITYSCAPES,
}


def shares(rows: int, classes: int) -> torch.Tensor:
    """Random class histograms: [rows, classes]."""
    return torch.rand(rows, classes).square().softmax(1)


def measure(size: Size) -> dict:
    """Median seconds of each part, and the peak memory of this process beyond what it had at the start."""
    torch.manual_seed(0)
    candidates, regions = size.K * size.N, size.images * size.cells
    ledger = RegionLedger(regions)
    ledger.add(torch.randperm(regions)[: size.labelled], 0)
    histogram, truth = shares(candidates, size.classes), shares(size.labelled, size.classes)
    found = RegionFeatures(histogram, torch.rand(candidates, 192), torch.rand(candidates, 3))
    agent = DQN(use_state=False, replay_size=3200)
    agent.build(tuple(map(str, range(size.classes))), num_state_regions=1, steps_per_episode=1, seed=0)
    state = torch.empty(0, 0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def observed(kind: str) -> torch.Tensor:
        return Representation(kind).actions(Candidates(found, truth), torch.Size((size.K, size.N)))

    actions = observed("3H+KL")
    seen = Observation(state, torch.empty(0, 0), actions, found.mean_entropy(), histogram)
    parts = {
        "pools": lambda: ledger.draw_pools(size.K, size.N, torch.Generator().manual_seed(0)),
        "features without KL": lambda: observed("3H"),
        "features with KL": lambda: observed("3H+KL"),
        "query": lambda: agent.policy.scores(seen, torch.Generator()),
        "replay": lambda: agent.replay.add(StepMemory(state, actions[:, 0], 0.0, 1.0, state, actions)),
        "minibatch": lambda: agent.draw(torch.Generator().manual_seed(0)),
    }
    seconds = {}
    for part, run in parts.items():
        times = []
        for _ in range(REPEATS if candidates < 10_000 else 1):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        seconds[part] = statistics.median(times)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {**asdict(size), "MB": peak, "seconds": seconds}


def look_at_pool(num_images: int) -> dict:
    """Memory after looking at two regions in each of so many large images: its own, and what maps files (Linux)."""
    dataset = SyntheticStreets(num_images + 2, 1, 1, 1024, 2048)
    data = SegmentationData(dataset, SplitSizes(1, 1), layout=GridLayout(8, 16), eval_batch_size=1, cache_gb=0.01)
    data.setup()
    segmenter = FPNSegmenter(data.class_names, LITE0_ENCODER, LITE0, pyramid_channels=64, segmentation_channels=32)
    regions = data.regions("acquisition_set")
    two_each = torch.cat([regions.of_image(image)[[0, 7]] for image in range(num_images)])
    found = scan(segmenter, regions, two_each, Scan("3H", batch_size=data.eval_batch_size))
    assert len(found.histogram) == 2 * num_images
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    own, cached = (int(status[key].split()[0]) / 1024 for key in ("RssAnon", "RssFile"))
    return {"images": num_images, "own_mb": own, "cached_mb": cached}


def in_own_process(name: str) -> dict:
    """The result of this script for one size."""
    done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True)
    row: dict = json.loads(done.stdout.splitlines()[-1])
    return row


def main() -> None:
    """Measure all sizes, print a table, write JSON."""
    if len(sys.argv) > 1:
        name = sys.argv[1]
        print(json.dumps(look_at_pool(int(name)) if name.isdigit() else measure(SIZES[name])))
        return
    rows = []
    print("milliseconds of the parts of a step that are no network passes; MB beyond the start")
    for name in SIZES:
        row = {"size": name, **in_own_process(name)}
        if not rows:
            print(f"{'size':14} {'candidates':>10} {'labelled':>8}  " + "  ".join(row["seconds"]) + "  MB")
        rows.append(row)
        figures = "  ".join(f"{1000 * value:{len(part)}.1f}" for part, value in row["seconds"].items())
        print(f"{name:14} {row['K'] * row['N']:10} {row['labelled']:8}  {figures}  {row['MB']:.0f}", flush=True)
    pools = [in_own_process(str(count)) for count in (2, 8)]
    for pool in pools:
        print(
            f"looking at {pool['images']} images of 1024x2048: {pool['own_mb']:.0f} MB of its own in the end, and "
            f"{pool['cached_mb']:.0f} MB of files that the system may drop"
        )
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    Path(__file__).with_name("growth.json").write_text(
        json.dumps({**facts, "rows": rows, "pools": pools}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
