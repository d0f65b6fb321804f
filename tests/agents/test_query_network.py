"""The query network: shapes, the paper's layers, and priors."""

from dataclasses import replace

import pytest
import torch

from ralseg.acquisition.candidates import Candidates
from ralseg.acquisition.features import KL_BINS, RegionFeatures
from ralseg.acquisition.heuristics import Entropy, Uniform
from ralseg.acquisition.policy import epsilon_greedy
from ralseg.acquisition.representation import Representation
from ralseg.agents import QueryNetwork
from ralseg.errors import ConfigError
from support.agents import STATE_REGIONS, network, observation

ANY = torch.Generator()


def test_one_score_for_each_candidate_and_one_state_pass():
    policy = network()
    seen = observation(policy)
    passes = []
    policy.net.state_set.register_forward_hook(lambda *_: passes.append(1))
    values = policy.scores(seen, ANY)
    assert values.shape == (6, 3)
    assert len(passes) == 1
    alone = torch.stack([policy.scores(replace(seen, actions=seen.actions[k : k + 1]), ANY)[0] for k in range(6)])
    assert torch.allclose(values, alone, atol=1e-5)  # pools do not influence each other


def test_q_is_gate_times_score():
    policy = network()
    net, seen = policy.net, observation(policy)
    flat = seen.actions.flatten(0, 1)[:, :-1]
    regions = net.state_regions(seen.state).reshape(1, -1)
    embedding = net.state_set(regions).expand(len(flat), -1)
    score = net.score(torch.cat([net.action(flat), embedding], 1))
    gate = torch.sigmoid(net.gate(flat[:, -2 * KL_BINS :]))
    assert torch.allclose(policy.scores(seen, ANY).flatten(), (gate * score).flatten(), atol=1e-5)


def test_papers_layers():
    linear = [m for m in network().net.modules() if isinstance(m, torch.nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [
        *[(196, 256), (256, 128), (128, 1), (STATE_REGIONS, 128)],
        *[(260, 512), (512, 256), (256, 128), (256, 1), (64, 1)],
    ]


@pytest.mark.parametrize(("use_state", "use_gate"), [(True, False), (False, True), (False, False)])
def test_paths_can_be_switched_off(use_state, use_gate):
    policy = network(use_state=use_state, use_gate=use_gate)
    seen = observation(policy)
    other = replace(seen, state=-seen.state)
    assert torch.equal(policy.scores(seen, ANY), policy.scores(other, ANY)) == (not use_state)
    assert policy.needs.state == use_state


def test_prior_alone_ranks_like_entropy():
    policy = network(prior_weight=0.5)
    seen = observation(policy)
    assert torch.allclose(policy.scores(seen, ANY), 0.5 * seen.entropy)
    linear = network(
        features="summary", use_gate=False, use_state=False, linear=True, batch_norm=False, prior_weight=1.0
    )
    seen = observation(linear)
    assert torch.equal(linear.scores(seen, ANY).argmax(1), seen.entropy.argmax(1))
    assert sum(p.numel() for p in linear.net.parameters()) == 4 + 8 + 1


def test_a_prior_keeps_the_order_of_its_long_tail():
    skewed = torch.cat([torch.zeros(400), torch.tensor([5.0, 6.0, 7.0])])
    empty = torch.zeros(len(skewed), 1)
    regions = RegionFeatures(empty, empty, torch.zeros(len(skewed), 3), {"bald": skewed, "margin": -skewed})
    for prior in ("bald", "margin"):
        column = Representation("1H", prior=prior).actions(
            Candidates(regions, torch.zeros(0, 1)), torch.Size([1, 403])
        )[0, :, -1]
        assert column[-3:].tolist() == sorted(set(column[-3:].tolist()))
        assert column[-1] > 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "3H"}, "use_gate needs features"),
        ({"prior": "bald"}, "prior 'bald' has no effect at prior_weight 0"),
    ],
)
def test_options_that_exclude_each_other(options, message):
    with pytest.raises(ConfigError, match=message):
        QueryNetwork(**options)


def test_the_seed_decides_the_weights_and_the_description_makes_the_network_again():
    one, same, other = (network(seed, features="3H", use_gate=False, prior_weight=0.3) for seed in (4, 4, 5))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    about = one.description()
    assert about["class_path"].endswith(".QueryNetwork")
    assert about["fits"] == {"class_names": ["a", "b", "c", "d"], "num_state_regions": STATE_REGIONS}
    again = QueryNetwork(**about["init_args"])
    again.build(tuple(about["fits"]["class_names"]), about["fits"]["num_state_regions"], seed=9)
    again.load_state_dict(one.state_dict())
    seen = observation(one)
    assert torch.equal(again.scores(seen, ANY), one.scores(seen, ANY))
    assert network(use_state=False).fits() == {"class_names": ["a", "b", "c", "d"]}


# -- choosing ----------------------------------------------------------------------------------------


def test_uniform_picks_every_place_equally_often_and_entropy_the_largest():
    seen = observation(network(), pools=2000, size=4)
    generator = torch.Generator().manual_seed(0)
    picked = epsilon_greedy(Uniform().scores(seen, generator), 0.0, generator)
    assert picked.bincount(minlength=4).min() > 430
    assert torch.equal(epsilon_greedy(Entropy().scores(seen, generator), 0.0, generator), seen.entropy.argmax(1))


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_is_the_share_of_random_sub_actions(epsilon):
    scores = torch.zeros(6000, 5)
    scores[:, 2] = 1
    picked = epsilon_greedy(scores, epsilon, torch.Generator().manual_seed(1))
    assert float((picked == 2).float().mean()) == pytest.approx(1 - epsilon * 0.8, abs=0.02)
