"""A run at a hundred times Cityscapes, without pixels: time a step and memory of all that is no network pass.

261,500 images of 128 regions with 3,072,000 labels, candidates of 256 pools of 100, beside Cityscapes itself. Class
histograms and labels are drawn at random. Each size has a process of its own. Labels: some are written to the file that
takes what memory does not, and read back; all of them would fill 50 GB. Writes benchmarks/hundredfold.json.
"""

import argparse
import io
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.bars import REPEATS
from ralseg.acquisition import features
from ralseg.acquisition.candidates import Candidates
from ralseg.acquisition.features import RegionFeatures
from ralseg.acquisition.representation import Representation
from ralseg.labels import RegionLedger
from ralseg.labels.label_store import MEMORY, LabelStore

K, N, CELLS, CLASSES, SIDE = 256, 100, 128, 19, 128
ROWS = 1_600
"""Candidates whose divergences are counted; the time of all is that many times as long, for rows do not share work."""


@dataclass(frozen=True)
class Size:
    """How large the set is, and how much of it is labelled."""

    images: int
    labelled: int


SIZES = {"Cityscapes": Size(2_615, 30_720), "x 100": Size(261_500, 3_072_000)}


def megabytes() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def median_seconds(run: Callable[[], Any]) -> float:
    """The median of several runs."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def histograms(rows: int) -> torch.Tensor:
    """Random class histograms, most of few classes: [rows, classes]."""
    return torch.rand(rows, CLASSES).pow_(8).div_(0.1).softmax(1)


def measure(size: Size) -> dict[str, Any]:
    """Seconds and MB of each part of a step."""
    torch.manual_seed(0)
    num_regions = size.images * CELLS
    at_start = megabytes()
    ledger = RegionLedger(num_regions)
    step = K
    order = torch.randperm(num_regions)[: size.labelled + REPEATS * step]
    with_order = megabytes()
    ledger.add(order[: size.labelled], 0)
    memory = {
        "ledger": 17 * size.labelled / 2**20 + num_regions / 2**20,
        "ledger and a random order": with_order - at_start,
    }
    rest = iter(order[size.labelled :].split(step))
    generator = torch.Generator().manual_seed(0)
    seconds = {
        "ledger": median_seconds(lambda: ledger.add(next(rest), 1)),
        "pools": median_seconds(lambda: ledger.draw_pools(K, N, generator)),
    }
    labelled, seen = histograms(size.labelled), histograms(K * N)
    memory["histograms of labels"] = labelled.numel() * 4 / 2**20
    before = megabytes()
    some = seen[:: len(seen) // ROWS][:ROWS]
    seconds["divergences"] = (len(seen) / ROWS) * median_seconds(
        lambda: [features.kl_histogram(some, others) for others in (labelled, seen)]
    )
    found = RegionFeatures(seen, torch.rand(len(seen), 192), torch.rand(len(seen), 3))
    shape = torch.Size((K, N))
    candidates = Candidates(found, labelled)
    seconds["features `summary`"] = median_seconds(lambda: Representation("summary").actions(candidates, shape))
    memory["features"] = megabytes() - before
    seconds["selection"] = median_seconds(lambda: found.mean_entropy().reshape(shape).argmax(1))
    saved = io.BytesIO()
    torch.save(ledger.state_dict(), saved)
    memory["ledger in a checkpoint"] = saved.tell() / 2**20
    return {**asdict(size), "seconds": seconds, "MB": memory, **labels_on_disk(size), **sampling_error(labelled, seen)}


def labels_on_disk(size: Size) -> dict[str, Any]:
    """Seconds to keep and to read a step's labels in the file, and what all of them take."""
    store, before = LabelStore(memory=0), megabytes()
    label = torch.randint(0, CLASSES, (SIDE, SIDE), dtype=torch.uint8)
    regions = iter(range(10**9))

    def keep() -> None:
        for _ in range(K):
            store[next(regions)] = label

    seconds = {"keep": median_seconds(keep)}
    seconds["read"] = median_seconds(lambda: [store[region] for region in range(K)])
    total = size.labelled * label.numel()
    return {
        "labels_seconds": seconds,
        "labels_GB": {"memory": min(total, MEMORY) / 2**30, "disk": max(total - MEMORY, 0) / 2**30},
        "labels_process_MB": megabytes() - before,
    }


def sampling_error(labelled: torch.Tensor, seen: torch.Tensor, rows: int = 64) -> dict[str, float]:
    """The largest error of a bin's share that counting from a sample of the labels makes, for a few candidates."""
    sampled = features.kl_histogram(seen[:rows], labelled)
    limit, features.KL_OTHERS = features.KL_OTHERS, len(labelled)
    start = time.perf_counter()
    exact = features.kl_histogram(seen[:rows], labelled)
    seconds = time.perf_counter() - start
    features.KL_OTHERS = limit
    return {
        "largest_error_of_a_share": float((sampled - exact).abs().max()),
        "seconds_of_all_labels": seconds * len(seen) / rows,
    }


def main() -> None:
    """Measure both sizes, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", nargs="?", choices=SIZES)
    chosen = parser.parse_args().size
    if chosen:
        print(json.dumps(measure(SIZES[chosen])))
        return
    rows = {}
    for name in SIZES:
        done = subprocess.run([sys.executable, __file__, name], stdout=subprocess.PIPE, text=True, check=True)
        row = rows[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"{name}: {row['images']} images, {row['labelled']} labels, {K * N} candidates")
        for part, value in row["seconds"].items():
            print(f"  {part:28} {1000 * value:10.1f} ms a step")
        for part, value in row["labels_seconds"].items():
            print(f"  {part + ' labels on disk':28} {1000 * value:10.1f} ms a step")
        for part, value in row["MB"].items():
            print(f"  {part:28} {value:10.1f} MB")
        print(
            f"  {'labels':28} {row['labels_GB']['memory']:10.2f} GB in memory, {row['labels_GB']['disk']:.1f} on disk"
        )
        print(f"  a bin's share is off by at most {row['largest_error_of_a_share']:.4f}; divergences from all labels")
        print(f"  would take {row['seconds_of_all_labels']:.0f} s (from 64 candidates)", flush=True)
    first, second = rows.values()
    for part in first["seconds"]:
        print(
            f"{part}: {second['seconds'][part] / first['seconds'][part]:.1f} times as long at a hundred times the size"
        )
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}
    Path(__file__).with_name("hundredfold.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
