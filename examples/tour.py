# %% [markdown]
# # A tour of ralseg
#
# Pixel labels are expensive, and most of an image teaches a network nothing new. Here a first segmenter is
# trained on a few labelled images. Then four policies choose which small regions to label next, and we look at
# what they ask for and what it brings. Everything is drawn or computed here, in a few minutes on a CPU.

# %%
import contextlib
import csv
import logging
import os

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

import ralseg
from ralseg.data import SyntheticStreets

try:
    from IPython.utils.capture import capture_output as silence  # a notebook need not show every table
except ImportError:
    silence = contextlib.nullcontext

SHORT = "RALSEG_SHORT" in os.environ  # for tests: seconds, and figures that mean nothing
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
quiet = {"enable_progress_bar": False, "accelerator": "cpu", "overwrite": True}

# %% [markdown]
# ## The data
#
# Synthetic streets with eleven classes, cut into 4 x 6 regions. `ralseg.data.Folder("photos")` in place of
# `streets` reads images and masks of your own.

# %%
train, test = (24, 6) if SHORT else (80, 60)
streets = SyntheticStreets(num_train=train, num_val=8, num_test=test, height=96, width=144)
data = ralseg.SegmentationData(streets, ralseg.SplitSizes(state=2, train=4), layout=ralseg.GridLayout(4, 6), flip=False)

colours = np.zeros((256, 3), np.uint8)  # void, 255, stays black
colours[: len(streets.colours)] = streets.colours
fig, (left, right) = plt.subplots(1, 2, figsize=(6, 2.2), layout="constrained")
left.imshow(streets.read_image(0))
left.set_title("image", fontsize=9)
right.imshow(colours[streets.read_mask(0)])
right.set_title("label, region by region", fontsize=9)
for cut in range(1, 6):
    right.axvline(24 * cut - 0.5, color="white", linewidth=0.8)
    if cut < 4:
        right.axhline(24 * cut - 0.5, color="white", linewidth=0.8)
for axes in (left, right):
    axes.set_axis_off()
plt.show()

# %% [markdown]
# ## The segmenter that labelling starts from
#
# The paper calls it theta_0. This one is a linear discriminant on a frozen encoder: it needs no iterations, so
# all of this takes little time. `ralseg.FPNSegmenter` is the paper's network.


# %%
def segmenter() -> ralseg.Segmenter:
    return ralseg.ClosedFormSegmenter(
        data.class_names, encoder="tu-tf_efficientnet_lite0", encoder_weights="efficientnet_lite0", components=32
    )


with silence():  # without the tables that the commands print
    theta_0 = str(ralseg.pretrain(segmenter(), data, "runs/tour/theta_0", max_epochs=1, **quiet))
    start = ralseg.test(segmenter(), data, theta_0, "runs/tour/theta_0", **quiet)["test_set/miou"]
print(f"theta_0, from 4 labelled images: test mIoU {100 * start:.2f}")

# %% [markdown]
# ## Four policies spend a budget
#
# Uniform chooses at random. Entropy takes what the network is least sure of. `rare_bald` takes what looks like
# classes with few labels, and adds what dropout disagrees about. `ralseg` was learned, in other synthetic worlds.

# %%
budgets = [12] if SHORT else [24, 72, 168]
rules = ralseg.AcquisitionConfig(budgets=budgets, regions_per_step=12, candidates="global", initial_weights=theta_0)
final = ralseg.FinalTraining(max_steps=1, validate_every=1, keep="last", mix=["fit_set"])
policies = ["uniform", "entropy", "rare_bald", "ralseg"]
scores = {}
for policy in policies:
    with silence():
        result = ralseg.acquire(policy, segmenter(), data, rules, final, folder=f"runs/tour/{policy}", **quiet)
    scores[policy] = [100 * result["budgets"][str(budget)]["test_set/miou"] for budget in budgets]
    print(f"{policy:>9}", *(f"{score:6.2f}" for score in scores[policy]))

# %% [markdown]
# ## What they asked for, and what it brought

# %%
fig = plt.figure(figsize=(8, 5), layout="constrained")
grid = fig.add_gridspec(2, 4, height_ratios=[1, 2])
names = {streets.names[i]: i for i in range(len(streets.names))}
asked = {policy: list(csv.DictReader(open(f"runs/tour/{policy}/selection.csv"))) for policy in policies}
every = [row["image"] for rows in asked.values() for row in rows]
image = max(sorted(set(every)), key=every.count)  # the image that most was asked of
for column, policy in enumerate(policies):
    axes = fig.add_subplot(grid[0, column])
    axes.imshow(streets.read_image(names[image]))
    chosen = [row for row in asked[policy] if row["image"] == image]
    for row in chosen:
        corner, size = (int(row["x"]), int(row["y"])), (int(row["w"]), int(row["h"]))
        axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor="#ffd400", linewidth=1.6))
    axes.set_title(f"{policy}: {len(chosen)} regions", fontsize=9)
    axes.set_axis_off()
axes = fig.add_subplot(grid[1, :])
for policy in policies:
    axes.plot([0, *budgets], [100 * start, *scores[policy]], marker="o", label=policy)
axes.set_xlabel("labelled regions")
axes.set_ylabel("test mIoU")
axes.legend(frameon=False, fontsize=9)
plt.show()

# %% [markdown]
# One seed is no evidence. `ralseg compare` plays methods on several, in pairs that share every random draw, and
# says how sure it is; [the study](../docs/study/README.md) did that on real streets.
#
# Next: [a folder of your own](own_data.py), [an acquisition function](own_acquisition.py) and
# [a segmenter](own_segmenter.py) of your own.
