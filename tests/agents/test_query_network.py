"""The query network: shapes, the paper's layers, and priors."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ralseg.acquisition.candidates import Candidates
from ralseg.acquisition.features import KL_BINS, RegionFeatures
from ralseg.acquisition.heuristics import Entropy, Uniform
from ralseg.acquisition.policy import epsilon_greedy
from ralseg.acquisition.representation import Representation
from ralseg.agents import QueryNetwork
from ralseg.agents.loading import policy_alone
from ralseg.agents.replay import collate
from ralseg.errors import ConfigError
from support.agents import STATE_REGIONS, memory, network, observation

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


def keys_of_layer(name, position, batch_norm) -> list[str]:
    """Names of a layer's weights, as files have them."""
    normed = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"] if batch_norm else []
    linear = position + batch_norm
    return [*(f"{name}.0.{key}" for key in normed), f"{name}.{linear}.weight", f"{name}.{linear}.bias"]


@pytest.mark.parametrize("batch_norm", [True, False])
def test_policies_of_earlier_files_load(batch_norm):
    about = {  # as a checkpoint of 2026-10 has it
        "features": "3H+KL",
        "standardise": False,
        "use_state": True,
        "use_gate": True,
        "linear": False,
        "batch_norm": batch_norm,
        "prior": "entropy",
        "prior_weight": 0.0,
    }
    policy = network(**about)
    layers = [*(f"state_regions.{i}" for i in range(3)), "state_set", *(f"action.{i}" for i in range(3))]
    expected = [key for name in layers for key in keys_of_layer(f"net.{name}", 1, batch_norm)]
    expected += [*keys_of_layer("net.score", 0, batch_norm), *keys_of_layer("net.gate", 1, batch_norm)]
    assert list(policy.state_dict()) == expected
    assert policy.norm == ("batch" if batch_norm else "none")
    assert "batch_norm" not in policy.init_args()
    again = network(seed=3, **policy.init_args())
    again.load_state_dict(policy.state_dict())
    seen = observation(policy)
    assert torch.equal(again.scores(seen, ANY), policy.scores(seen, ANY))


def test_policies_of_the_study_load():
    files = sorted((Path(__file__).parents[2] / "docs" / "study").glob("*/policy*.ckpt"))
    assert files
    for file in files:
        saved = torch.load(file, weights_only=True)
        about = saved["ralseg"]["policy"]
        policy = QueryNetwork(**about["init_args"])
        policy.build(tuple(about["fits"]["class_names"]), about["fits"].get("num_state_regions", 0), seed=0)
        policy.load_state_dict(policy_alone(saved)["state_dict"])


def test_a_dueling_value_is_that_of_the_state_plus_the_advantage_within_the_pool():
    policy = network(dueling=True, time=True, prior_weight=0.5)
    seen = observation(policy)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.net.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    seen.actions[..., 0] = -0.3
    values = policy.scores(seen, ANY)
    embedding = policy.net.state_set(policy.net.state_regions(seen.state).reshape(1, -1))
    value = policy.net.value(torch.cat([embedding, torch.tensor([[-0.3]])], 1)).detach()
    assert torch.allclose(values.mean(1), value[0].expand(6), atol=1e-5)  # the same state for all pools
    plain = network(time=True)
    plain.net.load_state_dict({k: v for k, v in policy.net.state_dict().items() if not k.startswith("value")})
    score = plain.scores(seen, ANY) + 0.5 * seen.actions[..., -1]
    assert torch.allclose(values - values.mean(1, keepdim=True), score - score.mean(1, keepdim=True), atol=1e-5)
    later = replace(seen, actions=seen.actions.clone())
    later.actions[..., 0] = 0.4
    assert not torch.allclose(policy.scores(later, ANY).mean(1), values.mean(1), atol=1e-3)


def test_what_fills_up_a_pool_changes_no_dueling_value():
    policy = network(dueling=True)
    with torch.no_grad():
        policy.net.score[-1].weight.normal_(generator=torch.Generator().manual_seed(0))
    small, large = memory(policy, 0, size=3), memory(policy, 1, size=5)
    rows = [(small, small.pools[0], 0), (large, large.pools[0], 0)]
    batch = collate(rows, 2, torch.device("cpu"), [0, 0])
    zero = torch.zeros(1, dtype=torch.int64)
    with torch.no_grad():
        padded = policy.values(policy.net, batch.states, batch.which, batch.actions, batch.real)[0, :3]
        alone = policy.values(policy.net, small.state[None], zero, small.pools[:1])[0]
        after = policy.values(policy.net, batch.next_states, batch.next_which, batch.next_actions, batch.next_real)[
            0, :3
        ]
        after_alone = policy.values(policy.net, small.next_state[None], zero, small.next_actions[:1])[0]
    assert torch.allclose(padded, alone, atol=1e-5)
    assert torch.allclose(after, after_alone, atol=1e-5)


def test_named_features_without_a_state_path_fit_any_classes():
    policy = network(features="general", standardise=True, use_gate=False, use_state=False)
    assert policy.fits() == {}
    again = QueryNetwork(**policy.init_args())
    again.build(("only",), 0, seed=1)
    again.load_state_dict(policy.state_dict())


def test_prior_alone_ranks_like_entropy():
    policy = network(prior_weight=0.5)
    seen = observation(policy)
    assert torch.allclose(policy.scores(seen, ANY), 0.5 * seen.entropy)
    linear = network(features="summary", use_gate=False, use_state=False, linear=True, norm="none", prior_weight=1.0)
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
