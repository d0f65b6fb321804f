"""Influence: equal to gradients that autograd finds."""

import pytest
import torch
from test_loop import model

from ralseg.data.readers import IGNORE
from ralseg.influence import reward_direction
from ralseg.measures import Hints
from ralseg.representation import look_at_regions


@pytest.fixture
def segmenter(data):
    network = model(segmenter={"class_weights": "none"}).segmenter
    network.prepare(data)
    network.class_weight.copy_(torch.rand(len(data.class_names), generator=torch.Generator().manual_seed(3)) + 0.5)
    return network.eval()


def head_gradient(segmenter, data, index, mask):
    """Of the summed loss over the labelled pixels of a mask [H, W]: [C, D + 1]."""
    head, stride = segmenter.net.segmentation_head[0], segmenter.label_stride
    logits = segmenter.logits(data.images.stack([index]), torch.tensor([index]), stride=stride)
    target = mask[None, ::stride, ::stride].long()
    loss = torch.nn.functional.cross_entropy(
        logits, target, segmenter.class_weight, ignore_index=IGNORE, reduction="sum"
    )
    weight, bias = torch.autograd.grad(loss, [head.weight, head.bias])
    return torch.cat([weight.flatten(1), bias[:, None]], 1)


def test_direction_is_the_gradient_of_the_reward_set(data, segmenter):
    expected = sum(head_gradient(segmenter, data, i, data.masks[i]) for i in data.splits.reward_set)
    found = reward_direction(segmenter, data)
    assert torch.allclose(found, expected / expected.norm(), atol=1e-5)


def test_true_influence_is_the_dot_product_of_gradients(data, segmenter):
    direction = reward_direction(segmenter, data)
    grid, images = data.grid, data.splits.train_set
    regions = torch.tensor([7, 0, 20, 13])
    labels = data.oracle("train_set").label(regions)
    labels[0, :10] = IGNORE
    found = look_at_regions(
        segmenter, data.images, images, grid, None, regions, 2, ("true_influence", "expected_influence"),
        hints=Hints(direction, labels),
    ).measures  # fmt: skip
    stride = segmenter.label_stride
    pixels = (grid.cell_height // stride) * (grid.cell_width // stride)
    for position, region in enumerate(regions.tolist()):
        mask = torch.full((data.height, data.width), IGNORE, dtype=torch.uint8)
        x, y, width, height = grid.boxes(torch.tensor([region]))[0].tolist()
        mask[y : y + height, x : x + width] = labels[position]
        gradient = head_gradient(segmenter, data, images[region // grid.cells], mask)
        expected = float((gradient * direction).sum()) / pixels
        assert float(found["true_influence"][position]) == pytest.approx(expected, rel=1e-3, abs=1e-6)
    mean, gain, size, deviation = found["expected_influence"].unbind(1)
    assert (size >= gain).all()
    assert (gain >= mean - 1e-7).all()
    assert (deviation >= 0).all()


def test_expected_influence_is_the_mean_over_the_networks_own_labels(data, segmenter):
    direction, images, grid = reward_direction(segmenter, data), data.splits.train_set, data.grid
    regions = torch.tensor([3])
    arguments = (segmenter, data.images, images, grid, None, regions, 2)
    stride = segmenter.label_stride
    index = images[0]
    logits = segmenter.logits(data.images.stack([index]), torch.tensor([index]), stride=stride)
    p = grid.split(logits.softmax(1))[0, 3]  # [C, h, w]
    generator = torch.Generator().manual_seed(0)
    values = []
    for _ in range(300):
        drawn = torch.multinomial(p.flatten(1).T, 1, generator=generator).reshape(p.shape[1:])
        labels = drawn.repeat_interleave(stride, 0).repeat_interleave(stride, 1)[None].to(torch.uint8)
        found = look_at_regions(*arguments, ("true_influence",), hints=Hints(direction, labels))
        values.append(float(found.measures["true_influence"]))
    found = look_at_regions(*arguments, ("expected_influence",), hints=Hints(direction)).measures["expected_influence"]
    error = torch.tensor(values).std() / len(values) ** 0.5
    assert abs(float(found[0, 0]) - sum(values) / len(values)) < 4 * error
