"""How the parts of a step that are no network passes grow with candidates, labels and classes..

Each size runs in a process of its own, so that its peak memory is its own. Writes benchmarks/growth.json.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from ralseg.features import KL_BINS, RegionFeatures
from ralseg.ledger import RegionLedger
from ralseg.query import QueryNetwork
from ralseg.replay import ReplayBuffer, StepMemory
from ralseg.representation import Observation, Representation

REPEATS = 3
# K pools of N candidates, labelled regions, regions of the set, classes
SIZES = {
    "demo": (24, 10, 120, 3_000, 11),
    "CamVid": (24, 20, 480, 2_400, 11),
    "Cityscapes, a tenth": (256, 10, 3_000, 334_720, 19),
    "Cityscapes": (256, 100, 30_720, 334_720, 19),
    "Cityscapes, 100 classes": (256, 100, 30_720, 334_720, 100),
}


def shares(rows: int, classes: int) -> torch.Tensor:
    """Random class histograms: [rows, classes]."""
    return torch.rand(rows, classes).square().softmax(1)


def measure(name: str) -> dict:
    """Seconds of each part, and the peak memory of this process beyond what it had at the start."""
    pools, size, labelled, regions, classes = SIZES[name]
    torch.manual_seed(0)
    candidates = pools * size
    ledger = RegionLedger(regions)
    ledger.add(torch.randperm(regions)[:labelled], 0)
    histogram, truth = shares(candidates, classes), shares(labelled, classes)
    found = RegionFeatures(histogram, torch.rand(candidates, 192), torch.rand(candidates, 3))
    query = QueryNetwork(use_state=False)
    query.build(tuple(map(str, range(classes))), 1, seed=0)
    state, memory = torch.empty(0, 0), ReplayBuffer(3200)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def observed(kind: str) -> torch.Tensor:
        return Representation(kind).actions(found, truth, torch.Size((pools, size)))

    actions = observed("3H+KL")
    seen = Observation(state, ledger.labelled[:0].reshape(0, 0), actions, found.mean_entropy(), histogram)
    parts = {
        "pools": lambda: ledger.draw_pools(pools, size, torch.Generator().manual_seed(0)),
        "features 3H": lambda: observed("3H"),
        f"features 3H+KL ({KL_BINS} bins)": lambda: observed("3H+KL"),
        "features summary": lambda: observed("summary"),
        "query": lambda: query(seen),
        "replay": lambda: memory.add(StepMemory(state, actions[:, 0], 0.0, 1.0, state, actions)),
        "minibatch": lambda: query.draw_minibatch(memory, torch.Generator().manual_seed(0)),
    }
    seconds = {}
    for part, run in parts.items():
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        seconds[part] = statistics.median(times)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {
        "size": name,
        "K": pools,
        "N": size,
        "labelled": labelled,
        "classes": classes,
        "MB": peak,
        "seconds": seconds,
    }


def main() -> None:
    """Measure all sizes, print a table, write JSON."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    rows = []
    for name in SIZES:
        done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        rows.append(row)
        print(
            f"{name}: K={row['K']} N={row['N']} labelled={row['labelled']} C={row['classes']}, peak {row['MB']:.0f} MB"
        )
        print("  " + ", ".join(f"{part} {1000 * value:.1f} ms" for part, value in row["seconds"].items()))
    facts = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    Path(__file__).with_name("growth.json").write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
