from itertools import pairwise

import pytest
import torch
from scipy.stats import chisquare

from ralseg.agents.replay import ReplayBuffer, StepMemory, memory_state


def steps(number, regions=4, size=3, state=(5, 2), width=6):
    """Memories of one long game; each shares its successor's tensors."""
    seen = [(torch.randn(state), torch.randn(regions, size, width)) for _ in range(number + 1)]
    return [StepMemory(s, a[:, 0], float(i), 0.9, *seen[i + 1]) for i, (s, a) in enumerate(seen[:-1])]


def test_ring_keeps_the_newest_whole_steps():
    replay = ReplayBuffer(capacity=10)
    for step in steps(7):
        replay.add(step)
    assert len(replay) == 8
    assert [step.value for step in replay.steps] == [5, 6]


def test_sampling_is_uniform_over_transitions_of_unequal_steps():
    replay = ReplayBuffer(100)
    for regions in (4, 1, 7):
        replay.add(StepMemory(torch.zeros(1, 1), torch.arange(regions)[:, None].float(), float(regions), 1.0))
    counts = {}
    for step, k in replay.sample(12_000, torch.Generator().manual_seed(0)):
        assert 0 <= k < len(step)
        counts[step.value, k] = counts.get((step.value, k), 0) + 1
    assert len(counts) == 12
    assert chisquare(list(counts.values())).pvalue > 1e-3


def test_cityscapes_scale_fits_in_150_mb():
    """3200 transitions of K=256 sub-actions, N=20, 1280 state regions, 19 classes."""
    replay = ReplayBuffer(3200)
    features = 19 + 192 + 64 + 1
    seen = [(torch.empty(1280, 19 + 192), torch.empty(256, 20, features)) for _ in range(16)]
    for (state, actions), following in pairwise(seen):
        replay.add(StepMemory(state, actions[:, 0].clone(), 0.0, 0.999, *following))
    assert len(replay) == 12 * 256
    assert replay.num_bytes() < 150e6
    assert 256 * 12 * (2 * 1280 * 211 + 20 * features) * 4 > 5e9  # what storing them per transition would take


@pytest.mark.parametrize("filled", [0, 1, 5, 30])
def test_save_and_load_gives_the_same_samples(tmp_path, filled):
    replay = ReplayBuffer(40)
    for step in steps(filled):
        replay.add(step)
    torch.save(replay.state_dict(), tmp_path / "replay.pt")
    again = ReplayBuffer(40)
    again.load_state_dict(torch.load(tmp_path / "replay.pt", weights_only=True))
    assert len(again) == len(replay)
    if filled:
        one, two = (r.sample(100, torch.Generator().manual_seed(1)) for r in (replay, again))
        for (a, k), (b, m) in zip(one, two, strict=True):
            assert k == m
            for first, second in zip(memory_state(a).values(), memory_state(b).values(), strict=True):
                assert type(first) is type(second)
                assert first is None or torch.equal(torch.as_tensor(first), torch.as_tensor(second))


def test_shared_tensors_are_written_once(tmp_path):
    replay = ReplayBuffer(10_000)
    for step in steps(50, regions=8, size=10, state=(50, 20), width=30):
        replay.add(step)
    torch.save(replay.state_dict(), tmp_path / "replay.pt")
    assert (tmp_path / "replay.pt").stat().st_size < 1.3 * replay.num_bytes()
    again = ReplayBuffer(10_000)
    again.load_state_dict(torch.load(tmp_path / "replay.pt", weights_only=True))
    assert again.num_bytes() == replay.num_bytes()
