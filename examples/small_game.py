"""A whole game in a minute, from Python: train theta_0, learn a policy, spend a budget with it, look at a prediction.

Run it anywhere: python examples/small_game.py (RALSEG_SHORT=1: seconds, and figures that mean nothing)
"""

import os
import tempfile

import torch

import ralseg
from ralseg.data import SyntheticStreets

SHORT = "RALSEG_SHORT" in os.environ
folder = tempfile.mkdtemp(prefix="ralseg-")
streets = SyntheticStreets(num_train=24, num_val=8, num_test=8, height=64, width=96)
data = ralseg.SegmentationData(streets, ralseg.SplitSizes(state=2, train=8), layout=ralseg.GridLayout(2, 3))


def segmenter() -> ralseg.Segmenter:
    """A tiny network; `encoder="resnet50", encoder_weights="imagenet"` is the paper's."""
    adam = {"optimizer": lambda weights: torch.optim.AdamW(weights, lr=3e-3)}
    return ralseg.FPNSegmenter(streets.class_names, encoder="tu-test_resnet", encoder_weights="none", **adam)


quiet = {"enable_progress_bar": False, "accelerator": "cpu"}
theta_0 = str(ralseg.pretrain(segmenter(), data, f"{folder}/theta_0", max_epochs=1 if SHORT else 5, **quiet))

game = ralseg.Game(
    budget=12,
    regions_per_step=4,
    pool_size=4,
    episodes=1 if SHORT else 4,
    validation_plays=0 if SHORT else 1,
    initial_weights=[theta_0],
)
policy = ralseg.fit(ralseg.DQN(batch_size=8), segmenter(), data, game, f"{folder}/policy", **quiet)

rules = ralseg.AcquisitionConfig(budgets=[12], regions_per_step=4, pool_size=4, initial_weights=theta_0)
final = ralseg.FinalTraining(max_steps=2 if SHORT else 20, validate_every=2 if SHORT else 10)
for name, chooser in {"uniform": "uniform", "learned": policy}.items():
    result = ralseg.acquire(chooser, segmenter(), data, rules, final, folder=f"{folder}/{name}", **quiet)
    print(name, f"test mIoU {100 * result['budgets']['12']['test_set/miou']:.2f}")

trained = ralseg.load_segmenter(theta_0)
print("predicted classes of one image:", sorted(set(trained.predict(streets.read_image(0)).ravel().tolist())))
