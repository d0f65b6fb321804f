"""The scanner: features and measures of regions from one pass of the segmenter over each image."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ralseg.acquisition import features
from ralseg.acquisition.features import RegionFeatures
from ralseg.acquisition.measures import RegionPredictions, find_measure
from ralseg.acquisition.pictures import PICTURE, picture
from ralseg.labels.layout import RegionMaps, Regions
from ralseg.models.prediction import Seeds
from ralseg.models.segmenter import Segmenter, predicted_classes
from ralseg.runtime import distributed
from ralseg.runtime.seeding import mixed_seed


@dataclass(frozen=True)
class Scan:
    """What to find out about regions.

    Args:
        pooling: How entropy maps are pooled; None: not at all.
        measures: Names of what to measure beside, see ``measures.py``.
        seed: For measures that draw at random.
        batch_size: Images in a pass.
        labelled: [L, C] class shares of the regions labelled so far.
        labels: [R, *box_size] labels of the regions themselves, for measures that teach.
        judge: Gives the pixels that pay, for measures that teach.
        pictures: Side of the pictures of predicted classes that are kept among the measures; 0: none.
    """

    pooling: features.EntropyPooling | None = None
    measures: tuple[str, ...] = ()
    seed: int = 0
    batch_size: int = 16
    labelled: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    labels: Tensor | None = None
    judge: Callable[[], Any] | None = None
    pictures: int = 0


def scan(segmenter: Segmenter, regions: Regions, wanted: Tensor, what: Scan) -> RegionFeatures:
    """Features of the wanted regions [R], in their order; each of their images is passed through once.

    Where several processes share the run, each looks at its part of the images.

    Args:
        segmenter: The network; it is put into evaluation mode for the pass and back.
        regions: How the images are cut.
        wanted: [R] the regions to describe.
        what: What to find out about them.
    """
    ascending, order = wanted.sort()
    images, position = regions.image_of(ascending).unique_consecutive(return_inverse=True)
    if what.labels is not None:
        what = replace(what, labels=what.labels[order])
    size, rank = distributed.size(), distributed.rank()
    if size == 1:
        found = _scan(segmenter, regions, images, position, ascending, what)
        return found[order.argsort()]
    turn = position % size  # whose each region is
    mine = turn == rank
    own = None
    if mine.any():
        what = what if what.labels is None else replace(what, labels=what.labels[mine])
        own = _scan(segmenter, regions, images[rank::size], position[mine] // size, ascending[mine], what)
    found = RegionFeatures.join([part for part in distributed.gather(own) if part is not None])
    return found[turn.argsort(stable=True).argsort()][order.argsort()]


@torch.no_grad()  # not inference_mode: agents learn from these tensors
def _scan(
    segmenter: Segmenter, regions: Regions, images: Tensor, position: Tensor, wanted: Tensor, what: Scan
) -> RegionFeatures:
    """What this process looks at itself.

    Args:
        segmenter: The network.
        regions: How the images are cut.
        images: [i] positions of the images in their set.
        position: [R] which of ``images`` each region lies in, ascending.
        wanted: [R] the regions.
        what: What to find out.
    """
    was_training = segmenter.training
    segmenter.eval()
    parts: list[RegionFeatures] = []
    source = regions.images
    for start in range(0, len(images), what.batch_size):
        chosen = images[start : start + what.batch_size].tolist()
        indices = [source.indices[image] for image in chosen]
        pixels = torch.stack([source.pixels(image) for image in chosen]).to(segmenter.device)
        prediction = segmenter.look(pixels, torch.tensor(indices))
        is_here = (position >= start) & (position < start + len(chosen))
        rows, numbers = (position[is_here] - start).to(segmenter.device), wanted[is_here].to(segmenter.device)
        logits: RegionMaps | None = None
        if len(numbers) == sum(len(regions.of_image(image)) for image in chosen):  # all of them: whole maps are faster
            entropy = regions.cut(features.entropy_map(prediction.logits), rows, numbers)
            classes = regions.cut(predicted_classes(prediction.logits), rows, numbers).values
        else:
            logits = prediction.cut(regions, rows, numbers)
            entropy = RegionMaps(features.entropy_map(logits.values), logits.inside)
            classes = predicted_classes(logits.values)
        described = features.region_features(classes, entropy, len(segmenter.class_names), what.pooling)
        if what.measures:
            seen = RegionPredictions(
                prediction,
                regions,
                rows,
                numbers,
                logits or prediction.cut(regions, rows, numbers),
                Seeds(what.seed, [mixed_seed(what.seed, index) for index in indices]),
                what.labelled,
                None if what.labels is None else what.labels[is_here].to(segmenter.device),
                what.judge,
            )
            described = replace(described, measures={name: find_measure(name)(seen) for name in what.measures})
        if what.pictures:
            pictured = picture(classes, entropy.inside, what.pictures)
            described = replace(described, measures=described.measures | {PICTURE: pictured})
        parts.append(described)
    segmenter.train(was_training)
    return RegionFeatures.join(parts)
