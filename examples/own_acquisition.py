"""An acquisition function of your own, on a measure of your own, beside the shipped ones.

Run it anywhere: python examples/own_acquisition.py (RALSEG_SHORT=1: seconds, and figures that mean nothing)
"""

import os
import tempfile

import ralseg
from ralseg.data import SyntheticStreets

SHORT = "RALSEG_SHORT" in os.environ
folder = tempfile.mkdtemp(prefix="ralseg-")


@ralseg.measure
def doubt(seen):
    """How unlikely the predicted class is, as the mean over a region's own pixels: [r]."""
    return 1 - seen.mean(seen.logits.softmax(1).amax(1))


class RareDoubt(ralseg.Policy):
    """Doubtful regions of classes that have few labels so far."""

    needs = ralseg.Needs(measures=("doubt",))  # nothing else is computed

    def scores(self, observation, generator):  # higher is better: [pools, regions]
        known = observation.labelled.mean(0) if len(observation.labelled) else 0  # class shares of the labels
        rare = (observation.histogram * (1 - known)).sum(-1)  # predicted, and hardly labelled yet
        return observation.measures["doubt"] * rare


streets = SyntheticStreets(num_train=24 if SHORT else 80, num_val=8, num_test=8 if SHORT else 40, height=64, width=96)
data = ralseg.SegmentationData(streets, ralseg.SplitSizes(state=2, train=4), layout=ralseg.GridLayout(4, 6), flip=False)


def segmenter() -> ralseg.Segmenter:
    """A linear discriminant on a frozen encoder: it needs no iterations, so an acquisition takes seconds."""
    return ralseg.ClosedFormSegmenter(
        data.class_names, encoder="tu-tf_efficientnet_lite0", encoder_weights="efficientnet_lite0", components=32
    )


quiet = {"enable_progress_bar": False, "accelerator": "cpu"}
theta_0 = str(ralseg.pretrain(segmenter(), data, f"{folder}/theta_0", max_epochs=1, **quiet))
rules = ralseg.AcquisitionConfig(budgets=[12] if SHORT else [24, 72], regions_per_step=12, initial_weights=theta_0)
final = ralseg.FinalTraining(max_steps=1, validate_every=1, keep="last", mix=["fit_set"])
for name, policy in {"uniform": "uniform", "entropy": "entropy", "RareDoubt": RareDoubt()}.items():
    result = ralseg.acquire(policy, segmenter(), data, rules, final, folder=f"{folder}/{name}", **quiet)
    scores = [f"{100 * at['test_set/miou']:.2f} at {budget}" for budget, at in result["budgets"].items()]
    print(f"{name}: test mIoU {', '.join(scores)} regions")
print("One seed is no evidence: `ralseg compare` plays methods on several, and says how sure it is.")
