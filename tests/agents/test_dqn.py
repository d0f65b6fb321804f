"""DQN: targets by hand, and a toy world that only a correct learner solves."""

import pytest
import torch

from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import epsilon_greedy
from ralseg.agents import DQN, PlayedStep, query_agent
from ralseg.agents.query_network import TwoPathNetwork
from ralseg.agents.replay import Minibatch, collate
from ralseg.errors import ConfigError
from support.agents import STATE_REGIONS, built, memory, width

CPU = torch.device("cpu")


@pytest.mark.parametrize("double_dqn", ["standard", "paper"])
def test_targets_by_hand(double_dqn):
    agent = built(DQN(double_dqn=double_dqn))
    policy = agent.policy
    with torch.no_grad():
        for parameter in agent.target.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    steps = [memory(policy, 0, 1.0), memory(policy, 1, 2.0, follow=False), memory(policy, 2, 3.0, size=5)]
    rows = [(steps[0], steps[0].chosen[1:2], 1), (steps[1], steps[1].chosen[:1], 0), (steps[2], steps[2].chosen[:1], 0)]
    target = agent.target_values(collate(rows, 3, CPU))
    expected = []
    for step, _, k in rows:
        value = step.value
        if step.next_actions is not None:
            zero = torch.zeros(1, dtype=torch.int64)
            own, copy = (
                policy.values(net, step.next_state[None], zero, step.next_actions[k][None])[0]
                for net in (policy.net, agent.target)
            )
            value += 0.9 * float((copy[own.argmax()] if double_dqn == "standard" else own[copy.argmax()]).detach())
        expected.append(value)
    assert target.tolist() == pytest.approx(expected, abs=1e-4)
    assert target[1] == 2.0  # the last step of an episode: nothing follows


def test_targets_use_frozen_statistics_and_leave_them_alone():
    agent = built(DQN())
    net = agent.policy.net
    before = {k: v.clone() for k, v in agent.target.state_dict().items()}
    batch = collate([(s, s.chosen[:1], 0) for s in (memory(agent.policy, i) for i in range(4))], 4, CPU)
    agent.target_values(batch)
    assert all(torch.equal(v, before[k]) for k, v in agent.target.state_dict().items())
    running = net.action[0][0].running_mean.clone()
    agent.batch_loss(batch).backward()
    assert not torch.equal(running, net.action[0][0].running_mean)  # learning does move them
    assert not net.training
    assert all(p.grad is None for p in agent.target.parameters())


def test_states_of_a_batch_are_passed_once_each():
    step = memory(built(DQN()).policy, 0)
    batch = collate([(step, step.chosen[:1], 0), (step, step.chosen[1:], 1)], 1, CPU)
    assert batch.states.shape[0] == 1
    assert batch.next_states.shape[0] == 1
    assert isinstance(batch, Minibatch)


def test_the_target_follows_when_it_is_due_and_then_is_the_same():
    agent = built(DQN(batch_size=4, target_every=3))
    optimizer = torch.optim.SGD(agent.policy.net.parameters(), lr=0.01)

    def is_same() -> bool:
        own, copy = agent.policy.net.state_dict(), agent.target.state_dict()
        return all(torch.equal(own[key], copy[key]) for key in own)

    assert is_same()
    found = []
    for i in range(7):
        agent.waiting.append(memory(agent.policy, i))
        agent.learn(optimizer)
        found.append(is_same())
    assert agent.updates == 6  # not before a batch is there
    assert found == [True, False, False, True, False, False, True]


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_the_error_is_the_one_that_was_asked_for(loss):
    predicted, target = torch.tensor([0.0, 0.0]), torch.tensor([0.5, 4.0])
    expected = (0.25 + 16) / 2 if loss == "squared" else (0.125 + 3.5) / 2
    assert float(DQN(loss=loss).error(predicted, target)) == pytest.approx(expected)


def test_a_return_of_no_steps_is_refused():
    with pytest.raises(ConfigError, match="n_steps=0 must be at least 1"):
        DQN(n_steps=0)


# -- a world in which only one feature pays, and only later --------------------------------------------

POOLS, SIZE = 2, 4


class ToyWorld:
    """Two steps. A marked region in pool k pays nothing itself but puts a treasure into pool k of the next step."""

    def __init__(self, agent: DQN, seed: int) -> None:
        self.agent, self.generator = agent, torch.Generator().manual_seed(seed)

    def pools(self, treasure: torch.Tensor | None) -> Observation:
        actions = torch.zeros(POOLS, SIZE, width(self.agent.policy) + 1)
        actions[..., 2:8] = torch.randn(POOLS, SIZE, 6, generator=self.generator)  # means nothing
        place = torch.randint(SIZE, (POOLS,), generator=self.generator)
        rows = torch.arange(POOLS)
        if treasure is None:
            actions[rows, place, 0] = 2.0
        else:
            actions[rows, place, 1] = 2.0 * treasure
        num_features = self.agent.policy.representation.num_state_features(4)
        state = torch.randn(STATE_REGIONS, num_features, generator=self.generator)
        return Observation(state, torch.zeros(POOLS, SIZE), actions, actions[..., -1], torch.zeros(POOLS, SIZE, 4))

    def pick(self, seen: Observation, epsilon: float) -> torch.Tensor:
        return epsilon_greedy(self.agent.policy.scores(seen, self.generator), epsilon, self.generator)

    def play(self, epsilon: float) -> None:
        """Play an episode; the agent remembers it."""
        rows, first = torch.arange(POOLS), self.pools(None)
        one = self.pick(first, epsilon)
        second = self.pools((first.actions[rows, one][:, 0] > 0).float())
        two = self.pick(second, epsilon)
        reward = float((second.actions[rows, two][:, 1] > 0).float().mean())
        self.agent.remember(PlayedStep(0, 0, 0.0, first.state, first.actions, one), second)
        self.agent.remember(PlayedStep(0, 1, reward, second.state, second.actions, two), None)

    def skill(self) -> float:
        """Share of pools whose marked region is picked."""
        hits = []
        for _ in range(100):
            seen = self.pools(None)
            hits.append(seen.actions[torch.arange(POOLS), self.pick(seen, 0.0)][:, 0] > 0)
        return float(torch.cat(hits).float().mean())


def train_in_toy_world(seed: int, **options) -> float:
    agent = built(DQN(gamma=0.9, batch_size=32, replay_size=1600, target_every=10, gradient_clip=0, **options), seed)
    world = ToyWorld(agent, seed)
    optimizer = torch.optim.Adam(agent.policy.net.parameters(), lr=1e-3)
    for episode in range(300):
        world.play(epsilon=max(0.2, 1 - episode / 150))
        agent.learn(optimizer)
    return world.skill()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_toy_world_is_solved(seed):
    assert train_in_toy_world(seed) > 0.9


@pytest.mark.slow
def test_toy_world_is_solved_by_returns_of_two_steps():
    assert train_in_toy_world(0, n_steps=2) > 0.9


def without_bootstrap(self, batch):
    return batch.value.clone()


def closed_gate(self, states, which, actions):
    return forward(self, states, which, actions) * 0.0


def shifted_pools(rows, experience, device):
    return collate([(step, actions, k + 1) for step, actions, k in rows], experience, device)


forward = TwoPathNetwork.forward


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (DQN, "target_values", without_bootstrap),
        (TwoPathNetwork, "forward", closed_gate),
        (query_agent, "collate", shifted_pools),
    ],
)
def test_toy_world_is_not_solved_by_a_broken_learner(monkeypatch, owner, name, mutant):
    monkeypatch.setattr(owner, name, mutant)
    # how far a broken learner gets depends on rounding, so on threads: any seed below the bar will do
    assert any(train_in_toy_world(seed) < 0.9 for seed in (0, 1))
