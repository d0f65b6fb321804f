"""A segmenter of your own: train it, have it labelled for, and predict with what comes out.

Run it anywhere: python examples/own_segmenter.py (RALSEG_SHORT=1: seconds, and figures that mean nothing)
"""

import os
import tempfile

import torch
from torch import Tensor, nn
from torch.nn import functional

import ralseg
from ralseg.data import SyntheticStreets

SHORT = "RALSEG_SHORT" in os.environ
folder = tempfile.mkdtemp(prefix="ralseg-")


class TinyNet(ralseg.Segmenter):
    """Three convolutions at a quarter of the resolution, with dropout, so that BALD works too."""

    def __init__(self, class_names: tuple[str, ...], width: int = 32, **options):
        super().__init__(class_names, **options)
        self.net = nn.Sequential(
            *(nn.Conv2d(3, width, 5, stride=2, padding=2), nn.ReLU()),
            *(nn.Conv2d(width, width, 5, stride=2, padding=2), nn.ReLU()),
            *(nn.Dropout2d(0.2), nn.Conv2d(width, len(class_names), 1)),
        )

    def forward(self, image: Tensor) -> Tensor:  # [B, 3, H, W] of uint8 -> [B, C, H, W] logits
        return functional.interpolate(self.net(image / 255 - 0.5), size=image.shape[-2:], mode="bilinear")


streets = SyntheticStreets(num_train=24, num_val=8, num_test=8, height=64, width=96)
data = ralseg.SegmentationData(
    streets, ralseg.SplitSizes(state=2, train=8), layout=ralseg.GridLayout(4, 6), batch_size=4
)


def segmenter() -> TinyNet:
    """A new one for each run, with a learning rate that suits it."""
    return TinyNet(data.class_names, width=24, optimizer=lambda weights: torch.optim.AdamW(weights, lr=5e-3))


quiet = {"enable_progress_bar": False, "accelerator": "cpu"}
theta_0 = str(ralseg.pretrain(segmenter(), data, f"{folder}/theta_0", max_epochs=2 if SHORT else 60, **quiet))
rules = ralseg.AcquisitionConfig(budgets=[24, 72], regions_per_step=24, initial_weights=theta_0)
final = ralseg.FinalTraining(max_steps=2 if SHORT else 150, validate_every=2 if SHORT else 50, mix=["fit_set"])
result = ralseg.acquire("bald", segmenter(), data, rules, final, folder=f"{folder}/bald", **quiet)
scores = [f"{100 * at['test_set/miou']:.2f} at {budget}" for budget, at in result["budgets"].items()]
print(f"bald: test mIoU {', '.join(scores)} regions")

# a checkpoint says how its segmenter is made; a class of your own is given, for files may not name any class
trained = ralseg.load_segmenter(f"{folder}/bald", segmenter())
classes = trained.predict(streets.read_image(0))  # [height, width], positions in class_names
found = sorted(set(classes.ravel().tolist()))
print("predicted in one image:", ", ".join(data.class_names[number] for number in found))
