"""Small closed-form segmenters."""

import torch

from ralseg.models import ClosedFormSegmenter
from support.data import small_data


def closed_form(names=None, **changes) -> ClosedFormSegmenter:
    """A tiny encoder with random weights, always the same ones, and twelve components."""
    torch.manual_seed(0)
    options = {"encoder": "tu-test_resnet", "encoder_weights": "none", "components": 12}
    return ClosedFormSegmenter(names or small_data().class_names, **(options | changes))
