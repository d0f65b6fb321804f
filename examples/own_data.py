"""A folder of images of your own, from start to predictions, with the commands that you would type.

Run it anywhere: python examples/own_data.py (RALSEG_SHORT=1: seconds, and figures that mean nothing)
The folder is drawn here: round cells on a dark ground. Where RALSEG_DATA names a folder that holds `nuclei`
(images/train/*, masks/train/*, dataset.yaml; the same with val and test), that is used.
"""

import json
import os
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from ralseg.cli import main

SHORT = "RALSEG_SHORT" in os.environ
QUIET = ["--trainer.enable_progress_bar", "false", "--trainer.logger", "false"]


def draw_cells(folder: Path) -> Path:
    """60 photographs of 96x128 pixels, and masks of 0 and 255: what `ralseg init` expects to find."""
    for number in range(24 if SHORT else 60):
        draws = np.random.default_rng(number)
        mask = Image.new("L", (128, 96))
        for x, y, radius in draws.uniform((0, 0, 4), (128, 96, 12), (8, 3)):
            ImageDraw.Draw(mask).ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
        light = np.asarray(mask.filter(ImageFilter.GaussianBlur(3)), np.float64)[..., None] * (0.3, 0.5, 0.4) + 40
        image = Image.fromarray((light + draws.normal(0, 12, light.shape)).clip(0, 255).astype(np.uint8))
        for kind, picture in {"images": image, "masks": mask}.items():
            (folder / kind).mkdir(parents=True, exist_ok=True)
            picture.save(folder / kind / f"{number:03d}.png")
    return folder


def ralseg(*arguments: str) -> None:
    """One command, as typed in a shell; here in this process, which saves its start."""
    print("\n$ ralseg", *arguments)
    if code := main([*arguments]):
        raise SystemExit(code)


os.chdir(tempfile.mkdtemp(prefix="ralseg-"))
nuclei = Path(os.environ.get("RALSEG_DATA") or "nowhere", "nuclei").absolute()
photos = nuclei if nuclei.is_dir() and not SHORT else draw_cells(Path("cells"))
short = ["--trainer.max_epochs", "2", "--trainer.check_val_every_n_epoch", "1"] if SHORT else []
few = ["--trainer.final.max_steps", "2", "--trainer.final.validate_every", "2"] if SHORT else []

ralseg("init", str(photos), "--out", "photos.yaml")  # looks at images and masks, chooses everything else
ralseg("pretrain", "--config", "photos.yaml", *short, *QUIET)  # theta_0, from the first labelled images
ralseg("acquire", "--config", "photos.yaml", "--policy", "rare_bald", *few, *QUIET)
new = sorted(photos.glob("images/test/*")) or sorted(photos.glob("images/*"))
ralseg("predict", "--config", "photos.yaml", "--images", str(new[0].parent), "--out", "predictions")

(run,) = Path("runs").glob("*/acquire")
for budget, at in json.loads((run / "result.json").read_text())["budgets"].items():
    print(f"test mIoU after {budget} regions: {100 * at['test_set/miou']:.2f}")
print("predictions:", len(list(Path("predictions/classes").rglob("*.png"))))
