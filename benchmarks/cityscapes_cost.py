"""What the paper's Cityscapes experiment costs, worked out from the passes of benchmarks/step.json and growth.json.

python benchmarks/cityscapes_cost.py                       # on the machine that wrote the two files
python benchmarks/cityscapes_cost.py --images 25 --crops 60   # with your GPU's passes a second
"""

import argparse
import json
from pathlib import Path

HERE = Path(__file__).parent
# the paper's figures: K, images of D_S, D_T, D_R, D_V, of the test set
K, STATE, TRAIN, REWARD, POOL, TEST = 256, 10, 150, 200, 2615, 500
EPISODES, STEPS = 50, 15
BUDGETS = (1920, 3840, 7680, 11520, 19200, 30720)
POOL_SIZE, CELLS = 100, 128
FINAL_STEPS, BATCH, SCORED_EVERY = 60_000, 16, 500
HOUR = 3600


def shown_images(candidates: int, images: int) -> float:
    """Images that hold at least one of so many regions drawn at random."""
    return images * (1 - (1 - 1 / images) ** candidates)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=float, help="1024x2048 images a second, forward")
    parser.add_argument("--crops", type=float, help="256x512 crops a second, training")
    given = parser.parse_args()
    row = next(r for r in json.loads((HERE / "step.json").read_text())["rows"] if r["size"].startswith("Cityscapes"))
    growth = next(r for r in json.loads((HERE / "growth.json").read_text())["rows"] if r["size"] == "Cityscapes")
    forward = 1 / given.images if given.images else row["bare_parts"]["reward"]  # one image
    crop = 1 / given.crops if given.crops else row["bare_parts"]["train"] / 4  # four crops
    rest = growth["seconds"]
    print(f"an image forward {forward:.3f} s, a crop in training {crop:.3f} s")
    in_game = STATE + TRAIN + REWARD  # 5,120 candidates: every image of D_T holds one
    looked = STATE + shown_images(K * POOL_SIZE, POOL)
    steps = BUDGETS[-1] // K
    final = FINAL_STEPS * BATCH * crop + FINAL_STEPS / SCORED_EVERY * REWARD * forward + TEST * forward
    overhead = rest["features with KL"] + rest["query"] + rest["pools"]
    lines = [
        ("fit, a step", f"{in_game} images, {K} crops", in_game * forward + K * crop),
        ("fit, 50 episodes of 15 steps", "", EPISODES * STEPS * (in_game * forward + K * crop)),
        ("acquire, a step", f"{looked:.0f} images, {K} crops", looked * forward + K * crop),
        ("  of it no network passes", "25,600 candidates, 30,720 labelled", overhead),
        ("acquire, 30,720 regions", f"{steps} steps", steps * (looked * forward + K * crop + overhead)),
        ("a final training", f"{FINAL_STEPS} iterations of {BATCH}, at most", final),
        ("one cell (a method with a seed)", "with six final trainings", 0.0),
    ]
    lines[-1] = (*lines[-1][:2], lines[4][2] + len(BUDGETS) * final)
    for name, what, seconds in lines:
        amount = f"{seconds / HOUR:10.1f} h" if seconds > 2 * HOUR else f"{seconds:10.1f} s"
        print(f"{name:34} {what:38} {amount}")


if __name__ == "__main__":
    main()
