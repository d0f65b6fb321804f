"""Discriminant analysis from moments: equal to scikit-learn's, whatever the order that pixels come in."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_jaccard_index

from ralseg.labels.vault import IGNORE
from ralseg.models import discriminant
from ralseg.models.discriminant import Moments


def clouds(seed: int, num_pixels: int = 300, num_classes: int = 4, num_features: int = 6):
    """Pixels of classes that overlap, of very different numbers: [n, D], [n]."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.tensor([0.6, 0.25, 0.1, 0.05][:num_classes])
    classes = torch.multinomial(shares, num_pixels, replacement=True, generator=generator)
    classes[:num_classes] = torch.arange(num_classes)
    centres = torch.randn(num_classes, num_features, generator=generator)
    mixing = torch.randn(num_features, num_features, generator=generator)
    noise = torch.randn(num_pixels, num_features, generator=generator) @ mixing
    return centres[classes] + noise, classes


def moments_of(pixels, classes, num_classes=4) -> Moments:
    found = Moments.empty(num_classes, pixels.shape[1])
    found.add(pixels, classes)
    return found


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_equals_scikit_learn(shrinkage, power):
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    pixels, classes = clouds(0)
    counts = np.bincount(classes.numpy()).astype(float) ** power
    theirs = LinearDiscriminantAnalysis("lsqr", shrinkage=shrinkage, priors=counts / counts.sum())
    theirs.fit(pixels.double().numpy(), classes.numpy())
    ours = discriminant.fit(moments_of(pixels, classes), shrinkage, power)
    assert np.allclose(ours.weight.numpy(), theirs.coef_, atol=1e-6)
    assert np.allclose(ours.bias.numpy(), theirs.intercept_, atol=1e-6)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(0, 300), max_size=6))
def test_incremental_equals_batch(seed, cuts):
    pixels, classes = clouds(seed)
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    piecewise = Moments.empty(4, pixels.shape[1])
    for part in torch.tensor_split(order, sorted(cuts)):
        piecewise.add(pixels[part], classes[part])
    one = discriminant.fit(piecewise, 0.3, 0.5)
    other = discriminant.fit(moments_of(pixels, classes), 0.3, 0.5)
    assert torch.allclose(one.weight, other.weight, rtol=1e-9, atol=1e-10)
    assert torch.allclose(one.bias, other.bias, rtol=1e-9, atol=1e-9)


def test_what_is_taken_out_was_never_there():
    pixels, classes = clouds(1)
    found = moments_of(pixels, classes)
    found.add(pixels[100:], classes[100:], sign=-1)
    expected = moments_of(pixels[:100], classes[:100])
    assert torch.allclose(found.products, expected.products, atol=1e-9)
    assert torch.equal(found.counts, expected.counts)


def test_single_precision_would_not_do():
    """Many pixels far from the origin: the covariance is a small difference of large sums."""
    pixels, classes = clouds(2, num_pixels=2000)
    far = (pixels.double() + 3000).float()
    exact = discriminant.fit(moments_of(far, classes), 0.3, 0.5)
    single = moments_of(far, classes)
    coarse = Moments(single.counts.float().double(), single.sums.float().double(), single.products.float().double())
    wrong = discriminant.fit(coarse, 0.3, 0.5)
    assert not torch.allclose(exact.weight, wrong.weight, rtol=1e-2)


def test_a_class_without_labels_is_never_predicted_and_gives_no_nan():
    pixels, classes = clouds(3)
    kept = classes != 2
    head = discriminant.fit(moments_of(pixels[kept], classes[kept]), 0.3, 0.5)
    logits = head.logits(pixels.double())
    assert (logits.argmax(1) != 2).all()
    assert torch.special.entr(logits.softmax(1)).isfinite().all()


def test_nothing_labelled_gives_equal_logits():
    head = discriminant.fit(Moments.empty(3, 5), 0.3, 0.5)
    assert torch.equal(head.logits(torch.randn(7, 5).double()), torch.full((7, 3), discriminant.UNSEEN).double())


def test_one_more_region_equals_a_refit():
    pixels, classes = clouds(4)
    known = moments_of(pixels[:120], classes[:120])
    regions, labels = pixels[120:].reshape(6, 30, -1), classes[120:].reshape(6, 30).clone()
    labels[0, :5] = IGNORE
    heads = discriminant.fit_with_each(known, regions, labels, 0.3, 0.5)
    for row in range(6):
        together = moments_of(pixels[:120], classes[:120])
        there = labels[row] != IGNORE
        together.add(regions[row][there], labels[row][there])
        alone = discriminant.fit(together, 0.3, 0.5)
        assert torch.allclose(heads.weight[row], alone.weight, rtol=1e-8, atol=1e-9)
        assert torch.allclose(heads.bias[row], alone.bias, rtol=1e-8, atol=1e-8)


def test_samples_scatter_less_the_more_is_known():
    known = moments_of(*clouds(5))
    noise = torch.randn(500, 4, 6, generator=torch.Generator().manual_seed(0))
    few, many = (
        discriminant.sample(known, 0.3, 0.5, torch.full((4,), number).double(), noise) for number in (2.0, 200.0)
    )
    fitted = discriminant.fit(known, 0.3, 0.5)
    assert torch.allclose(many.weight.mean(0), fitted.weight, atol=0.1 * float(fitted.weight.abs().max()))
    pixels = clouds(5)[0].double()
    for heads in (few, many):  # in the mean they say what the classifier itself says
        logits = torch.einsum("nd,scd->nsc", pixels, heads.weight) + heads.bias
        error = logits.std(1) / 500**0.5
        assert ((logits.mean(1) - fitted.logits(pixels)).abs() < 6 * error + 1e-9).all()
    ratio = few.weight.std(0) / many.weight.std(0)
    assert torch.allclose(ratio, torch.full_like(ratio, 10.0), rtol=1e-6)


def test_mean_iou_is_that_of_torchmetrics():
    generator = torch.Generator().manual_seed(6)
    classes = torch.randint(4, (200,), generator=generator)
    predicted = torch.randint(3, (5, 200), generator=generator)  # class 3 is never predicted
    found = discriminant.mean_iou(predicted, classes, 5)  # class 4 does not occur
    expected = [
        float(multiclass_jaccard_index(row, classes, 5, average="none")[:4].double().mean()) for row in predicted
    ]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
