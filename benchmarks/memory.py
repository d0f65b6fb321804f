"""How much sooner are images looked at where freed memory stays with the process? Run by `make bench`.

Each repeat starts two processes, one that keeps freed memory (``ralseg.runtime.memory``) and one that leaves the C
library as it is; both look at the same batches with the small FPN, whose features lie in the cache, on one thread.
Processor time counts, so that others on the machine change it little. Prints the largest memory of both, too.
"""

import json
import resource
import statistics
import subprocess
import sys
import time

from benchmarks.bars import REPEATS, Bars, is_short

BAR = 1.0
BATCH, LOOKS = 16, 40
KEPT, GIVEN_BACK = "kept", "given back"


def look(how: str) -> dict[str, float]:
    """Look at batches in this process: processor seconds, and the largest memory in MB."""
    import torch

    from benchmarks.step import LITE0_CACHED
    from ralseg.models import FPNSegmenter
    from ralseg.models.feature_cache import FeatureCache
    from ralseg.runtime.memory import keep_freed_memory

    torch.set_num_threads(1)
    if how == KEPT and not keep_freed_memory():
        raise SystemExit("this C library has no such setting, or the environment says otherwise")
    segmenter = FPNSegmenter(tuple("abcdefghijk"), **LITE0_CACHED).eval()
    segmenter.features = FeatureCache(BATCH, 10**9)
    image, index = torch.zeros(BATCH, 3, 128, 192, dtype=torch.uint8), torch.arange(BATCH)
    with torch.no_grad():
        for number in range(LOOKS + 3):
            if number == 3:
                began = time.process_time()
            segmenter.logits(image, index, stride=2)
    spent = time.process_time() - began
    return {"seconds": spent, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def in_a_process(how: str) -> dict[str, float]:
    """The same in a process of its own."""
    said = subprocess.run([sys.executable, __file__, how], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(said.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print times, memory and their ratio."""
    if sys.argv[1:] in ([KEPT], [GIVEN_BACK]):
        print(json.dumps(look(sys.argv[1])))
        return
    pairs = [(in_a_process(KEPT), in_a_process(GIVEN_BACK)) for _ in range(3 if is_short() else REPEATS)]
    for kept, given in pairs:
        print(
            f"freed memory kept {1000 * kept['seconds'] / LOOKS / BATCH:.2f} ms an image, {kept['mb']:.0f} MB at most; "
            f"given back {1000 * given['seconds'] / LOOKS / BATCH:.2f} ms, {given['mb']:.0f} MB"
        )
    bars = Bars()
    ratio = statistics.median(given["seconds"] / kept["seconds"] for kept, given in pairs)
    bars.at_least("freed memory given back, beside kept", ratio, BAR)
    bars.close()


if __name__ == "__main__":
    main()
