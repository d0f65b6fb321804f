import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchmetrics.classification import MulticlassJaccardIndex

from ralseg.errors import DataError
from ralseg.models.metrics import IoU

NAMES = ("a", "b", "c", "d")


def slow_iou(prediction, target):
    """IoU of each class by counting pixels one class at a time."""
    valid = target != 255
    result = {}
    for index, name in enumerate(NAMES):
        hit = ((prediction == index) & (target == index) & valid).sum()
        union = (((prediction == index) | (target == index)) & valid).sum()
        if union:
            result[name] = hit / union
    return result


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 4))
def test_equals_a_slow_count_with_void_and_absent_classes(seed, predicted, present):
    rng = np.random.default_rng(seed)
    prediction = rng.integers(0, predicted, (3, 5, 7))
    target = rng.integers(0, present, (3, 5, 7))
    target[rng.random(target.shape) < 0.3] = 255
    target[0, 0, 0] = 0
    metric = IoU(NAMES)
    for p, t in zip(prediction, target, strict=True):  # accumulated over batches, not averaged
        metric.update(torch.from_numpy(p)[None], torch.from_numpy(t)[None])
    expected = slow_iou(prediction, target)
    assert metric.per_class() == pytest.approx(expected, abs=1e-6)
    assert float(metric.compute()) == pytest.approx(np.mean(list(expected.values())), abs=1e-6)


def test_a_set_without_labels_is_an_error_not_a_number():
    metric = IoU(NAMES)
    metric.update(torch.zeros(1, 2, 2, dtype=torch.long), torch.full((1, 2, 2), 255))
    with pytest.raises(DataError, match="nothing but void"):
        metric.compute()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_pixels_are_counted_as_torchmetrics_counts_them(dtype):
    generator = torch.Generator().manual_seed(0)
    prediction = torch.randint(0, 4, (3, 5, 7), generator=generator)
    target = torch.randint(0, 4, (3, 5, 7), generator=generator)
    target[torch.rand(target.shape, generator=generator) < 0.3] = 255
    ours, theirs = IoU(NAMES), MulticlassJaccardIndex(4, ignore_index=255)
    for metric in (ours, theirs):
        metric.update(prediction, target.to(dtype) if metric is ours else target)
    assert (ours.confmat == theirs.confmat).all()
    assert int(ours.confmat.sum()) == int((target != 255).sum())
    assert float(ours.compute()) == pytest.approx(float(theirs.compute()))
