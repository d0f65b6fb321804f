"""What each policy asks for on one image, and why: the picture of docs/album.md, and its table.

    python benchmarks/album.py --theta_0 runs/synthetic_pretrain/seed0/checkpoints/best.ckpt

One image of the synthetic streets that nobody has labelled, seen by a theta_0 of the demo; 24 regions of other images
are labelled by then. All regions of the image are the candidates. Writes docs/pictures/album.png, and prints the table.
"""

import argparse
import io
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot
from matplotlib.patches import Rectangle
from PIL import Image
from torch import Tensor

from ralseg.acquisition.policy import Reasons
from ralseg.agents.loading import find_policy
from ralseg.commands import load_data, quiet_console
from ralseg.config import command_config
from ralseg.data import SegmentationData
from ralseg.engine.acquire_session import SET, AcquireSession, AcquisitionConfig
from ralseg.engine.modules import LabellingModule
from ralseg.models.loading import load
from ralseg.models.segmenter import Segmenter
from ralseg.studies.explanation import signed

POLICIES = ("uniform", "entropy", "bald", "coreset", "rare_bald", "ralseg")
TAKEN = 3
PICTURE = Path(__file__).parent.parent / "docs/pictures/album.png"


def asked(
    name: str, data: SegmentationData, segmenter: Segmenter, image: int, before: Tensor
) -> tuple[Tensor, Reasons, AcquireSession]:
    """The scores of all regions of an image, and what they follow from.

    Args:
        name: Of the policy.
        data: The data.
        segmenter: Looks at the image.
        image: Its position in the acquisition set.
        before: Regions that are labelled by then.
    """
    policy = find_policy(name, {}, data)
    config = AcquisitionConfig([len(before) + TAKEN], len(before))
    session = AcquireSession(config, data, LabellingModule(segmenter), data.mask_oracle(SET), policy)
    answer = session.oracle.ask(before, 0)
    session.ledger.add(answer.regions, 0)
    session._keep(answer.regions, answer.labels)
    seen = session.look_at(session.regions.of_image(image)[None], TAKEN, policy.needs)
    return session.score(policy, seen)[0], policy.reasons(seen), session


def main() -> None:
    """Draw the picture and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--theta_0", type=Path, required=True, help="A checkpoint of `ralseg pretrain`.")
    parser.add_argument("--image", type=int, default=18, help="Position in the acquisition set.")
    chosen = parser.parse_args()
    quiet_console()
    data = load_data(command_config("synthetic_acquire.yaml", "acquire"))
    data.setup()
    segmenter = load(chosen.theta_0)
    segmenter.prepare(data)
    regions = data.regions(SET)
    others = torch.tensor([n for n in range(len(regions)) if n not in set(regions.of_image(chosen.image).tolist())])
    before = others[torch.randperm(len(others), generator=torch.Generator().manual_seed(0))[:24]]
    index = data.splits[SET][chosen.image]
    pixels, mask = data.dataset.read_image(index), data.dataset.read_mask(index)
    colours = np.full((256, 3), 225, np.uint8)
    colours[: len(data.class_names)] = data.dataset.colours
    figure, axes = pyplot.subplots(3, 3, figsize=(9, 6.6), layout="constrained")
    shown = {
        "the image": pixels,
        "what the network sees": colours[segmenter.predict(pixels)],
        "what the label says": colours[mask],
    }
    for axis, (title, picture) in zip(axes.flat, shown.items(), strict=False):
        axis.imshow(picture)
        axis.set_title(title)
    print(f"| policy | its first region | why |\n|{'---|' * 3}")
    for axis, name in zip(axes.flat[3:], POLICIES, strict=True):
        scores, why, session = asked(name, data, segmenter, chosen.image, before)
        draw(axis, name, pixels, scores, session, chosen.image)
        print(row(name, scores, why, session, chosen.image))
    for axis in axes.flat:
        axis.set_axis_off()
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    Image.open(drawn).convert("RGB").quantize(128).save(PICTURE, optimize=True)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size} bytes")


def draw(
    axis: mpl.axes.Axes, name: str, pixels: np.ndarray, scores: Tensor, session: AcquireSession, image: int
) -> None:
    """The image under the scores, with the regions that the policy takes."""
    numbers = session.regions.of_image(image)
    rank = scores.argsort().argsort() / (len(scores) - 1)
    heat = np.zeros((*pixels.shape[:2], 4))
    for share, (x, y, w, h) in zip(rank.tolist(), session.regions.boxes(numbers).tolist(), strict=True):
        heat[y : y + h, x : x + w] = (*mpl.colormaps["magma"](share)[:3], 0.45)
    axis.imshow(pixels)
    axis.imshow(heat)
    for place, best in enumerate(scores.topk(TAKEN).indices.tolist()):
        x, y, w, h = session.regions.boxes(numbers)[best].tolist()
        axis.imshow(pixels[y : y + h, x : x + w], extent=(x - 0.5, x + w - 0.5, y + h - 0.5, y - 0.5))
        axis.add_patch(Rectangle((x, y), w - 1, h - 1, fill=False, edgecolor="#00e5c0", linewidth=2))
        axis.text(x + 2, y + 3, str(place + 1), color="white", fontsize=9, va="top", backgroundcolor="#00796b")
    axis.set_xlim(-0.5, pixels.shape[1] - 0.5)
    axis.set_ylim(pixels.shape[0] - 0.5, -0.5)
    axis.set_title(name)


def row(name: str, scores: Tensor, why: Reasons, session: AcquireSession, image: int) -> str:
    """A line of the table: the region that comes first, and what spoke for it."""
    best = int(scores.argmax())
    place = session.regions.place(int(session.regions.of_image(image)[best]))
    values = why.values[0]
    if why.weights is not None:
        parts = values[best] * why.weights
        order = parts.abs().argsort(descending=True)[:4].tolist()
        said = ", ".join(f"{why.names[i]} {signed(float(parts[i]), float(parts.abs().max()))}" for i in order)
        said = f"{said} and {len(parts) - 4} more sum to {signed(float(parts.sum()), float(parts.abs().max()))}"
    elif why.names:
        told = zip(why.names, values[best].tolist(), values.T, strict=True)
        said = ", ".join(f"{feature} {value:.3f} (median {all_.median():.3f})" for feature, value, all_ in told)
    else:
        said = "chance"
    return f"| `{name}` | row {place[0]}, column {place[1]} | {said} |"


if __name__ == "__main__":
    main()
