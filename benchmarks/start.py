"""How much sooner does the second `ralseg acquire` on the same data reach its first step?

Run by `make bench`. It draws photographs of 3000x4000 pixels, describes them with `ralseg init`, and starts
`ralseg acquire` twice with an empty cache: the first decodes, scales and encodes all images, the second finds copies.
Times are from the start of the process to the first labelled regions. Imports (about eight seconds) and the decoder's
pass over all images are in both, so the ratio grows with the number of photographs.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.bars import Bars
from ralseg.data import SyntheticStreets

TARGET = 5.0
SIZE = (4000, 3000)  # width, height


def draw_photographs(root: Path, number: int) -> None:
    """Large noisy photographs of streets with masks, as JPEG and PNG."""
    streets = SyntheticStreets(num_train=number, num_val=4, num_test=4, height=300, width=400)
    rng = np.random.default_rng(0)
    noise = rng.integers(-12, 13, (SIZE[1], SIZE[0], 3), np.int16)
    for index, (name, subset) in enumerate(zip(streets.names, streets.subsets, strict=True)):
        for folder in ("images", "masks"):
            (root / folder / subset).mkdir(parents=True, exist_ok=True)
        large = np.asarray(Image.fromarray(streets.read_image(index)).resize(SIZE, Image.Resampling.BICUBIC))
        pixels = np.clip(large + np.roll(noise, index * 977), 0, 255).astype(np.uint8)
        stem = name.replace("/", "_")
        Image.fromarray(pixels).save(root / "images" / subset / f"{stem}.jpg", quality=88)
        mask = Image.fromarray(streets.read_mask(index)).resize(SIZE, Image.Resampling.NEAREST)
        mask.save(root / "masks" / subset / f"{stem}.png", compress_level=1)
    (root / "dataset.yaml").write_text(f"classes: [{', '.join(streets.class_names)}]\n")


def ralseg(*arguments: str) -> list[str]:
    """A command line."""
    return [sys.executable, "-c", "from ralseg.cli import entry_point; entry_point()", *arguments]


def seconds_to_first_step(folder: Path, name: str, cache: Path) -> float:
    """Start an acquisition, wait until regions are labelled, and stop it."""
    run = folder / name
    command = ralseg(
        *("acquire", "--config", "photos.yaml", "--policy", "entropy", "--trainer.default_root_dir", str(run)),
        *("--trainer.enable_progress_bar", "false", "--trainer.logger", "false"),
        *("--trainer.acquisition.candidates", "global", "--trainer.acquisition.budgets", "[240]"),
        *("--trainer.acquisition.initial_weights", "null", "--trainer.final.mix", "[]"),
    )
    start = time.perf_counter()
    environment = os.environ | {"RALSEG_CACHE": str(cache)}
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        while not (run / "selection.csv").is_file():
            if process.poll() is not None:
                raise SystemExit((folder / f"{name}.log").read_text())
            time.sleep(0.02)
        seconds = time.perf_counter() - start
        process.kill()
        process.wait()
    return seconds


def main() -> None:
    """Print both times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=320)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        draw_photographs(folder / "photos", options.images)
        subprocess.run(ralseg("init", "photos"), cwd=folder, check=True, stdout=subprocess.DEVNULL)
        pairs = []
        for repeat in range(options.repeats):
            cache = folder / f"cache{repeat}"
            pair = [seconds_to_first_step(folder, f"run{repeat}{turn}", cache) for turn in ("a", "b")]
            pairs.append(pair)
            print(f"first {pair[0]:6.1f} s   second {pair[1]:6.1f} s   {pair[0] / pair[1]:.1f} x", flush=True)
    ratio = statistics.median(first / second for first, second in pairs)
    bars = Bars()
    bars.at_least(f"{options.images} photographs of {SIZE[1]}x{SIZE[0]}: first run to second", ratio, TARGET)
    bars.close()


if __name__ == "__main__":
    main()
