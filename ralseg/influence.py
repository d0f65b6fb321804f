"""What labelling a region would do for the reward set, to first order and for the network's last layer.

A training step on a region moves the weights against the gradient of its loss; the loss on the reward set falls in
proportion to how far that gradient points the way of the reward set's own. For the last layer both are known in
closed form: with predictions p, alignment a and class weights w, a pixel of class y adds w_y (sum_c p_c a_c - a_y).

Letters: b images in a batch, r regions, h x w pixels of a region, C classes, D channels of the decoder's last map.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ralseg import ranks
from ralseg.data.module import SegmentationData
from ralseg.data.readers import IGNORE
from ralseg.segmenter import FPNSegmenter


def reward_direction(segmenter: FPNSegmenter, data: SegmentationData) -> Tensor:
    """Unit gradient of the reward set's loss in the last layer's weights and biases: [C, D + 1]."""
    was_training = segmenter.training
    segmenter.eval()
    head = segmenter.net.segmentation_head[0]
    stride = segmenter.label_stride
    total = torch.zeros(head.out_channels, head.in_channels + 1, device=segmenter.device)
    for batch in data.val_dataloader():
        image, mask = batch.image.to(segmenter.device), batch.mask.to(segmenter.device)[..., ::stride, ::stride]
        with torch.no_grad():
            merged = segmenter.merge(segmenter.encoded(image, batch.image_index))
        with torch.enable_grad():
            logits = segmenter.upsample(segmenter.classify(merged), image.shape[-2], image.shape[-1], stride)
            # the sum over pixels: batches may differ in size
            loss = functional.cross_entropy(
                logits, mask.long(), segmenter.class_weight, ignore_index=IGNORE, reduction="sum"
            )
            weight, bias = torch.autograd.grad(loss, [head.weight, head.bias])
        total += torch.cat([weight.flatten(1), bias[:, None]], 1)
    segmenter.train(was_training)
    total = ranks.total(total)
    unit: Tensor = total / total.norm().clamp(min=torch.finfo(total.dtype).tiny)
    return unit


def coarse_alignment(merged: Tensor, direction: Tensor) -> Tensor:
    """How a rise of each class's logit at each place moves along ``direction``: [b, D, h, w] -> [b, C, h, w]."""
    return torch.einsum("cd,bdhw->bchw", direction[:, :-1], merged) + direction[:, -1][None, :, None, None]


def value_by_class(logits: Tensor, alignment: Tensor, weight: Tensor) -> Tensor:
    """What a pixel's label would be worth for each class that it could be: [r, C, h, w] of the same shape."""
    expected = (logits.softmax(1) * alignment).sum(1, keepdim=True)
    return weight[None, :, None, None] * (expected - alignment)


def influence(values: Tensor, labels: Tensor) -> Tensor:
    """What the true labels [r, h, w] are worth, of ``value_by_class``; void is worth nothing: [r]."""
    known = labels != IGNORE
    chosen = values.gather(1, torch.where(known, labels, 0).long()[:, None])[:, 0]
    return (chosen * known).flatten(1).mean(1)


def prospects(values: Tensor, logits: Tensor) -> Tensor:
    """What the network itself would expect labels to be worth: [r, 4].

    Under its predictions, pixel by pixel, then on average: expected value, expected gain (losses as 0), expected size,
    and deviation.
    """
    p = logits.softmax(1)
    mean = (p * values).sum(1)
    gain = (p * values.clamp(min=0)).sum(1)
    size = (p * values.abs()).sum(1)
    deviation = ((p * values.square()).sum(1) - mean.square()).clamp(min=0).sqrt()
    return torch.stack([mean, gain, size, deviation], 1).flatten(2).mean(2)
