"""The query network: shapes, targets by hand, and a toy world that only a correct learner solves."""

from dataclasses import replace

import pytest
import torch

from ralseg.acquisition.heuristics import Entropy, Uniform
from ralseg.errors import ConfigError
from ralseg.acquisition.features import KL_BINS, RegionFeatures
from ralseg.acquisition.policy import Learned, Perturbed, choose
from ralseg.agents.query_network import Minibatch, QueryNetwork, TwoPathNetwork
from ralseg.agents.replay import ReplayBuffer, StepMemory
from ralseg.acquisition.representation import Observation, Representation

CLASSES = ("a", "b", "c", "d")
STATE_REGIONS = 5


def query(seed=0, **options) -> QueryNetwork:
    network = QueryNetwork(**options)
    network.build(CLASSES, STATE_REGIONS, seed)
    return network.eval()


def width(network: QueryNetwork) -> int:
    return network.representation.num_action_features(4)


def observation(network: QueryNetwork, pools=6, size=3, seed=0) -> Observation:
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(STATE_REGIONS, network.representation.num_state_features(4), generator=generator)
    actions = torch.randn(pools, size, width(network) + 1, generator=generator)
    numbers = torch.arange(pools * size).reshape(pools, size)
    return Observation(state, numbers, actions, actions[..., -1], torch.rand(pools, size, 4))


def test_one_score_for_each_candidate_and_one_state_pass():
    network = query()
    seen = observation(network)
    passes = []
    network.net.state_set.register_forward_hook(lambda *_: passes.append(1))
    values = network(seen)
    assert values.shape == (6, 3)
    assert len(passes) == 1
    alone = torch.stack([network(replace(seen, actions=seen.actions[k : k + 1]))[0] for k in range(6)])
    assert torch.allclose(values, alone, atol=1e-5)  # pools do not influence each other


def test_q_is_gate_times_score():
    network = query()
    net, seen = network.net, observation(network)
    flat = seen.actions.flatten(0, 1)[:, :-1]
    regions = net.state_regions(seen.state).reshape(1, -1)
    embedding = net.state_set(regions).expand(len(flat), -1)
    score = net.score(torch.cat([net.action(flat), embedding], 1))
    gate = torch.sigmoid(net.gate(flat[:, -2 * KL_BINS :]))
    assert torch.allclose(network(seen).flatten(), (gate * score).flatten(), atol=1e-5)


def test_papers_layers():
    net = query().net
    linear = [m for m in net.modules() if isinstance(m, torch.nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [
        *[(196, 256), (256, 128), (128, 1), (STATE_REGIONS, 128)],
        *[(260, 512), (512, 256), (256, 128), (256, 1), (64, 1)],
    ]


@pytest.mark.parametrize(("use_state", "use_gate"), [(True, False), (False, True), (False, False)])
def test_paths_can_be_switched_off(use_state, use_gate):
    network = query(use_state=use_state, use_gate=use_gate)
    seen = observation(network)
    other = replace(seen, state=-seen.state)
    assert torch.equal(network(seen), network(other)) == (not use_state)


def test_prior_alone_ranks_like_entropy():
    network = query(prior_weight=0.5)
    seen = observation(network)
    assert torch.allclose(network(seen), 0.5 * seen.entropy)
    linear = query(features="summary", use_gate=False, use_state=False, linear=True, batch_norm=False, prior_weight=1.0)
    seen = observation(linear)
    assert torch.equal(linear(seen).argmax(1), seen.entropy.argmax(1))
    assert sum(p.numel() for p in linear.net.parameters()) == 4 + 8 + 1


def test_a_prior_keeps_the_order_of_its_long_tail():
    skewed = torch.cat([torch.zeros(400), torch.tensor([5.0, 6.0, 7.0])])
    empty = torch.zeros(len(skewed), 1)
    regions = RegionFeatures(empty, empty, torch.zeros(len(skewed), 3), {"bald": skewed, "margin": -skewed})
    for prior in ("bald", "margin"):
        column = Representation("1H", prior=prior).actions(regions, torch.zeros(0, 1), torch.Size([1, 403]))[0, :, -1]
        assert column[-3:].tolist() == sorted(set(column[-3:].tolist()))
        assert column[-1] > 4


def test_a_prior_without_weight_is_refused():
    with pytest.raises(ConfigError, match="prior 'bald' has no effect at prior_weight 0"):
        query(prior="bald")


def memory(network, seed, value=1.0, follow=True, size=3, pools=2):
    seen, after = observation(network, pools, size, seed), observation(network, pools, size, seed + 100)
    chosen = seen.actions[:, 0]
    following = (after.state, after.actions) if follow else (None, None)
    return StepMemory(seen.state, chosen, value, 0.9, *following)


@pytest.mark.parametrize("double_dqn", ["standard", "paper"])
def test_td_target_by_hand(double_dqn):
    network = query(double_dqn=double_dqn)
    with torch.no_grad():
        for parameter in network.target.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    steps = [memory(network, 0, 1.0), memory(network, 1, 2.0, follow=False), memory(network, 2, 3.0, size=5)]
    rows = [(steps[0], steps[0].chosen[1:2], 1), (steps[1], steps[1].chosen[:1], 0), (steps[2], steps[2].chosen[:1], 0)]
    target = network.td_target(network._collate(rows, 3))
    expected = []
    for step, _, k in rows:
        value = step.value
        if step.next_actions is not None:
            zero = torch.zeros(1, dtype=torch.int64)
            own, copy = (
                network.values(net, step.next_state[None], zero, step.next_actions[k][None])[0]
                for net in (network.net, network.target)
            )
            value += 0.9 * float((copy[own.argmax()] if double_dqn == "standard" else own[copy.argmax()]).detach())
        expected.append(value)
    assert target.tolist() == pytest.approx(expected, abs=1e-4)
    assert target[1] == 2.0  # the last step of an episode: nothing follows


def test_targets_use_frozen_statistics_and_leave_them_alone():
    network = query()
    before = {k: v.clone() for k, v in network.target.state_dict().items()}
    batch = network._collate([(s, s.chosen[:1], 0) for s in (memory(network, i) for i in range(4))], 4)
    network.td_target(batch)
    assert all(torch.equal(v, before[k]) for k, v in network.target.state_dict().items())
    running = network.net.action[0][0].running_mean.clone()
    network.batch_loss(batch).backward()
    assert not torch.equal(running, network.net.action[0][0].running_mean)  # learning does move them
    assert not network.net.training
    assert all(p.grad is None for p in network.target.parameters())


def test_states_of_a_batch_are_passed_once_each():
    network = query()
    step = memory(network, 0)
    batch = network._collate([(step, step.chosen[:1], 0), (step, step.chosen[1:], 1)], 1)
    assert batch.states.shape[0] == 1
    assert batch.next_states.shape[0] == 1
    assert isinstance(batch, Minibatch)


def test_step_credit_regresses_the_mean_of_a_step():
    network = query(features="summary", use_gate=False, use_state=False, linear=True, batch_norm=False, bootstrap=False,
                    returns="monte_carlo", credit="step", batch_size=8)  # fmt: skip
    replay = ReplayBuffer(1000)
    for i in range(6):
        replay.add(memory(network, i, float(i), follow=False))
    batch = network.draw_minibatch(replay, torch.Generator().manual_seed(0))
    assert batch.actions.shape[1] == 2
    predicted = network.values(network.net, batch.states, batch.which, batch.actions).mean(1)
    assert float(network.batch_loss(batch)) == pytest.approx(float((predicted - batch.value).square().mean()), rel=1e-5)


def test_step_credit_of_unequal_steps_is_the_mean_of_each():
    network = query(features="summary", use_gate=False, use_state=False, linear=True, batch_norm=False, bootstrap=False,
                    returns="monte_carlo", credit="step")  # fmt: skip
    steps = [memory(network, 0, 1.0, follow=False, pools=5), memory(network, 1, 2.0, follow=False, pools=1)]
    batch = network._collate([(step, step.chosen, 0) for step in steps], 2)
    zero = torch.zeros(1, dtype=torch.int64)
    means = [float(network.values(network.net, s.state[None], zero, s.chosen[None]).mean()) for s in steps]
    expected = ((means[0] - 1) ** 2 + (means[1] - 2) ** 2) / 2
    assert float(network.batch_loss(batch)) == pytest.approx(expected, rel=1e-4)


def test_shrinkage_fades_with_experience():
    network = query(shrinkage=10.0)
    step = memory(network, 0)
    rows = [(step, step.chosen[:1], 0), (step, step.chosen[1:], 1)]
    losses = [float(network.batch_loss(network._collate(rows, experience))) for experience in (1, 10, 10**9)]
    penalty = 10 * sum(float(p.square().sum()) for p in network.net.parameters())
    assert losses[0] - losses[2] == pytest.approx(penalty, rel=0.02)
    assert losses[1] - losses[2] == pytest.approx(penalty / 10, rel=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "3H"}, "use_gate needs features"),
        ({"returns": "monte_carlo"}, "needs bootstrap: false"),
        ({"credit": "step"}, "needs bootstrap: false"),
    ],
)
def test_options_that_exclude_each_other(options, message):
    with pytest.raises(ConfigError, match=message):
        QueryNetwork(**options)


# -- policies ----------------------------------------------------------------------------------------


def test_uniform_picks_every_place_equally_often_and_entropy_the_largest():
    network = query()
    seen = observation(network, pools=2000, size=4)
    generator = torch.Generator().manual_seed(0)
    picked = choose(Uniform().scores(seen, generator), 0.0, generator)
    assert picked.bincount(minlength=4).min() > 430
    assert torch.equal(choose(Entropy().scores(seen, generator), 0.0, generator), seen.entropy.argmax(1))


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_is_the_share_of_random_sub_actions(epsilon):
    scores = torch.zeros(6000, 5)
    scores[:, 2] = 1
    picked = choose(scores, epsilon, torch.Generator().manual_seed(1))
    assert float((picked == 2).float().mean()) == pytest.approx(1 - epsilon * 0.8, abs=0.02)


def test_perturbations_come_in_opposite_pairs():
    network = query(prior_weight=1.0)
    seen, any_generator = observation(network, pools=40, size=5), torch.Generator()
    own = Learned(network).scores(seen, any_generator)
    up, down = (
        Perturbed(Learned(network), 0.5, torch.Generator().manual_seed(7), sign).scores(seen, any_generator)
        for sign in (1, -1)
    )
    centre = (own - own.mean()) / own.std(correction=0)
    assert torch.allclose((up + down) / 2, centre, atol=1e-4)
    assert float(((up - down) / 2).std(correction=0)) == pytest.approx(0.5, rel=1e-3)


# -- a world in which only one feature pays, and only later --------------------------------------------

POOLS, SIZE = 2, 4


class ToyWorld:
    """Two steps. A marked region in pool k pays nothing itself but puts a treasure into pool k of the next step."""

    def __init__(self, network: QueryNetwork, seed: int) -> None:
        self.network, self.generator = network, torch.Generator().manual_seed(seed)

    def pools(self, treasure: torch.Tensor | None) -> Observation:
        shape = (POOLS, SIZE, width(self.network) + 1)
        actions = torch.zeros(shape)
        actions[..., 2:8] = torch.randn(POOLS, SIZE, 6, generator=self.generator)  # means nothing
        place = torch.randint(SIZE, (POOLS,), generator=self.generator)
        rows = torch.arange(POOLS)
        if treasure is None:
            actions[rows, place, 0] = 2.0
        else:
            actions[rows, place, 1] = 2.0 * treasure
        num_features = self.network.representation.num_state_features(4)
        state = torch.randn(STATE_REGIONS, num_features, generator=self.generator)
        return Observation(state, torch.zeros(POOLS, SIZE), actions, actions[..., -1], torch.zeros(POOLS, SIZE, 4))

    def pick(self, seen: Observation, epsilon: float) -> torch.Tensor:
        return choose(self.network(seen), epsilon, self.generator)

    def play(self, epsilon: float) -> list[StepMemory]:
        rows, first = torch.arange(POOLS), self.pools(None)
        one = first.actions[rows, self.pick(first, epsilon)]
        second = self.pools((one[:, 0] > 0).float())
        two = second.actions[rows, self.pick(second, epsilon)]
        reward = float((two[:, 1] > 0).float().mean())
        return [
            StepMemory(first.state, one, 0.0, 0.9, second.state, second.actions),
            StepMemory(second.state, two, reward, 0.9),
        ]

    def skill(self) -> float:
        """Share of pools whose marked region is picked."""
        hits = []
        for _ in range(100):
            seen = self.pools(None)
            hits.append(seen.actions[torch.arange(POOLS), self.pick(seen, 0.0)][:, 0] > 0)
        return float(torch.cat(hits).float().mean())


def train_in_toy_world(seed: int, **options) -> float:
    network = query(seed, gamma=0.9, batch_size=32, **options)
    world, replay = ToyWorld(network, seed), ReplayBuffer(1600)
    optimizer = torch.optim.Adam(network.net.parameters(), lr=1e-3)
    for episode in range(300):
        for step in world.play(epsilon=max(0.2, 1 - episode / 150)):
            replay.add(step)
        for _ in range(2):
            optimizer.zero_grad()
            network.batch_loss(network.draw_minibatch(replay, world.generator)).backward()
            optimizer.step()
        if episode % 5 == 0:
            network.copy_to_target()
    return world.skill()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_toy_world_is_solved(seed):
    assert train_in_toy_world(seed) > 0.9


def without_bootstrap(self, batch):
    return batch.value.clone()


def closed_gate(self, states, which, actions):
    return forward(self, states, which, actions) * 0.0


def shifted_pools(self, rows, experience):
    return collate(self, [(step, actions, k + 1) for step, actions, k in rows], experience)


forward, collate = TwoPathNetwork.forward, QueryNetwork._collate


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (QueryNetwork, "td_target", without_bootstrap),
        (TwoPathNetwork, "forward", closed_gate),
        (QueryNetwork, "_collate", shifted_pools),
    ],
)
def test_toy_world_is_not_solved_by_a_broken_learner(monkeypatch, owner, name, mutant):
    monkeypatch.setattr(owner, name, mutant)
    # how far a broken learner gets depends on rounding, so on threads: any seed below the bar will do
    assert any(train_in_toy_world(seed) < 0.9 for seed in (0, 1))
