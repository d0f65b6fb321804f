"""Contexts by hand: what they tell of a step as a whole, whatever the classes are."""

import pytest
import torch

from ralseg.acquisition.candidates import Candidates
from ralseg.acquisition.contexts import CONTEXTS
from ralseg.acquisition.features import RegionFeatures
from ralseg.acquisition.representation import Representation
from ralseg.errors import ConfigError


def candidates(margins=(0.2, 0.4), known=((1.0, 0.0),), before=None, spent=0.25) -> Candidates:
    known = torch.tensor(known).reshape(len(known), -1)
    seen = RegionFeatures(
        torch.full((len(margins), known.shape[1]), 0.5),
        torch.zeros(len(margins), 0),
        torch.rand(len(margins), 3),
        {"margin": torch.tensor(margins)},
    )
    return Candidates(seen, known, None if before is None else torch.tensor(before), spent=spent)


def value(name, **options) -> float:
    return float(CONTEXTS[name].describe(candidates(**options)))


def test_confidence_is_the_mean_gap_between_classes():
    assert value("confidence") == pytest.approx(-0.2)
    assert value("confidence", margins=(1.0, 1.0, 1.0)) == pytest.approx(0.5)


def test_variety_counts_the_classes_of_known_labels():
    assert value("variety") == pytest.approx(-0.5)
    assert value("variety", known=((0.25,) * 4,)) == pytest.approx(0.0)
    sixteen = torch.eye(16).tolist()
    assert value("variety", known=sixteen) == pytest.approx(0.5)
    assert value("variety", known=sixteen[:8], before=sixteen[8:]) == pytest.approx(0.5)  # theta_0's labels count
    unused = [[*row, 0.0, 0.0] for row in sixteen[:4]]
    assert value("variety", known=unused) == pytest.approx(value("variety", known=sixteen[:4]))


def test_experience_counts_known_regions():
    assert value("experience", known=((1.0, 0.0),)) == pytest.approx(-0.5)
    assert value("experience", known=((1.0, 0.0),) * 60, before=((1.0, 0.0),) * 40) == pytest.approx(0.0)
    nothing = CONTEXTS["experience"].describe(Candidates(candidates().seen, torch.zeros(0, 2)))
    assert float(nothing) == pytest.approx(-0.5)


def test_contexts_stand_between_time_and_features():
    kind = Representation(("entropy", "margin"), standardise=True, time=True, context=("experience", "confidence"))
    assert kind.num_action_features(num_classes=2) == 5
    found = kind.actions(candidates(), torch.Size((1, 2)))
    assert found.shape == (1, 2, 6)
    assert found[0, :, 0].tolist() == [-0.25, -0.25]
    assert found[0, :, 1].tolist() == [-0.5, -0.5]
    assert found[0, :, 2].tolist() == pytest.approx([-0.2, -0.2])
    assert found[0, :, 4].tolist() == pytest.approx([-1.0, 1.0])
    assert "margin" in Representation(("entropy",), context=("confidence",)).measures


def test_an_unknown_context_is_named():
    with pytest.raises(ConfigError, match=r"no context 'confidense'; did you mean 'confidence'\? Contexts are"):
        Representation(("entropy",), context=("confidense",))
