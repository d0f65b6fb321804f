"""DQN: targets by hand, and a toy world that only a correct learner solves."""

import pytest
import torch

from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import epsilon_greedy
from ralseg.agents import DQN, Episode, PlayedStep, query_agent, query_network
from ralseg.agents.perturbed import Perturbed
from ralseg.agents.query_network import TwoPathNetwork
from ralseg.agents.random_steps import RandomSteps
from ralseg.agents.replay import Minibatch, collate
from ralseg.errors import ConfigError
from support.agents import STATE_REGIONS, built, memory, observation, width

CPU = torch.device("cpu")
PAPER = {"norm": "batch", "gamma": 0.999, "time": False, "dueling": False, "clip_targets": False}


def moved(network: TwoPathNetwork, seed=1) -> None:
    """Push all weights in a random direction."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("options", [PAPER, {"clip_targets": False}, {}], ids=["paper", "no clip", "ours"])
@pytest.mark.parametrize("double_dqn", ["standard", "paper"])
def test_targets_by_hand(double_dqn, options):
    agent = built(DQN(double_dqn=double_dqn, **options))
    policy = agent.policy
    moved(policy.net, 2)
    agent.largest_reward = 0.05  # at most 0.05 + 0.9 * 0.05 can follow in two steps
    moved(agent.target)
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
            worth = float((copy[own.argmax()] if double_dqn == "standard" else own[copy.argmax()]).detach())
            assert abs(worth) > 0.095
            value += 0.9 * (worth if options else max(-0.095, min(worth, 0.095)))
        expected.append(value)
    assert target.tolist() == pytest.approx(expected, abs=1e-4)
    assert target[1] == 2.0  # the last step of an episode: nothing follows


def test_targets_use_frozen_statistics_and_leave_them_alone():
    agent = built(DQN(**PAPER))
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
    agent = built(DQN(batch_size=4, target_every=3, norm="batch"))
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_steps": 0}, "n_steps=0 must be at least 1"),
        ({"gamma": 1.1}, r"gamma=1\.1 must be between 0 and 1"),
        ({"pool_statistics": True}, "pool_statistics needs norm 'batch', not 'layer'"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        DQN(**options)


# -- what can be earned ------------------------------------------------------------------------------


def played(step, gain, policy, seed=0, **known) -> PlayedStep:
    seen = observation(policy, pools=2, seed=seed)
    return PlayedStep(0, step, gain, seen.state, seen.actions, torch.tensor([1, 2]), **known)


def test_what_can_be_earned_follows_the_largest_reward_and_the_steps_left():
    agent = built(DQN(gamma=0.5, reward_scale=10), steps=3)
    for step, gain in enumerate((0.1, -0.4, 0.2)):
        agent.remember(played(step, gain, agent.policy), None if step == 2 else observation(agent.policy))
    assert agent.largest_reward == pytest.approx(4)
    assert [m.steps_left for m in agent.waiting] == [2, 1, 0]
    assert agent.reachable(torch.tensor([0.0, 1, 2, 3, 9, float("inf")])).tolist() == [0, 4, 6, 7, 7, 7]
    assert built(DQN(gamma=1.0), steps=3).reachable(torch.tensor([float("inf")])).tolist() == [0]
    of_two = built(DQN(gamma=0.5, n_steps=2), steps=3)
    for step in range(3):
        of_two.remember(played(step, 1.0, of_two.policy), None if step == 2 else observation(of_two.policy))
    assert [m.steps_left for m in of_two.waiting] == [1, 0, 0]


def test_the_first_reward_may_be_the_whole_score():
    agent = built(DQN(first_reward="score", reward_scale=100), steps=2)
    agent.remember(played(0, 0.01, agent.policy, score=0.35), observation(agent.policy))
    agent.remember(played(1, 0.02, agent.policy, score=0.37), None)
    assert [m.value for m in agent.waiting] == pytest.approx([35, 2])
    assert agent.largest_reward == pytest.approx(35)


@pytest.fixture
def narrow(monkeypatch):
    """Networks with every part of the real one, and a tenth of its units: how a learner fails is the same."""
    for name, units in {"ACTION_WIDTHS": (64, 32, 32), "STATE_WIDTHS": (32, 16, 1), "STATE_EMBEDDING": 16}.items():
        monkeypatch.setattr(query_network, name, units)


def states_that_hardly_differ(agent: DQN, episodes: int, seed: int, steps=20, pools=6, size=4) -> None:
    """Learn from games in which all states look alike, most features are nearly always 0, and rewards are noise."""
    generator = torch.Generator().manual_seed(seed)
    policy = agent.policy
    optimizer = agent.configure_optimizers()
    state = torch.rand(STATE_REGIONS, policy.representation.num_state_features(4), generator=generator)
    usual = torch.rand(width(policy) + 1, generator=generator)

    def look(step: int) -> Observation:
        shape = (pools, size, len(usual))
        actions = usual * (torch.rand(shape, generator=generator) < 0.05)
        actions += 1e-4 * torch.randn(shape, generator=generator)
        if policy.representation.time:
            actions[..., 0] = step / steps - 0.5
        near = state + 1e-4 * torch.randn(state.shape, generator=generator)
        return Observation(near, torch.zeros(pools, size), actions, actions[..., -1], torch.zeros(pools, size, 4))

    for _ in range(episodes):
        seen = look(0)
        for step in range(steps):
            gain = 0.1 + 0.3 * float(torch.randn((), generator=generator))
            picked = torch.randint(size, (pools,), generator=generator)
            following = look(step + 1) if step < steps - 1 else None
            agent.remember(PlayedStep(0, step, gain, seen.state, seen.actions, picked), following)
            agent.learn(optimizer)
            seen = following or seen


def most(agent: DQN) -> float:
    """The largest return that an episode can have."""
    return float(agent.reachable(torch.tensor(float(agent.steps_per_episode))))


@pytest.mark.slow
def test_values_never_exceed_what_can_be_earned_where_the_papers_numbers_drift(caplog, narrow):
    old = built(DQN(**PAPER), steps=20)
    states_that_hardly_differ(old, 30, seed=0)
    assert old.largest_value > 3 * most(old)
    old._warn_of_drift(1e6)  # unless it has been told by now
    told = [r.getMessage() for r in caplog.records if "have drifted" in r.getMessage()]
    advice = "Set agent norm: layer, gamma: 0.9, time: true, clip_targets: true (together"
    assert [advice in message for message in told] == [True]
    new = built(DQN(), steps=20)
    states_that_hardly_differ(new, 30, seed=0)
    assert 0 < new.largest_value < 0.5 * most(new)


@pytest.mark.slow
def test_the_other_brakes_hold_at_a_gamma_near_one_too(narrow):
    agent = built(DQN(gamma=0.999), steps=20)
    states_that_hardly_differ(agent, 30, seed=0)
    assert 0 < agent.largest_value < most(agent)


def test_no_target_lies_beyond_what_can_be_earned_however_large_values_are():
    agent = built(DQN(norm="none", dueling=False), steps=3)
    moved(agent.target)
    with torch.no_grad():
        agent.target.score[-1].weight *= 1e6
    agent.largest_reward = 2.0
    steps = [memory(agent.policy, i, 2.0) for i in range(8)]
    batch = collate([(s, s.chosen[:1], 0) for s in steps], 8, CPU)
    assert float(agent.target_values(batch).abs().max()) <= 2.0 + 0.9 * most(agent) + 1e-5
    agent.clip_targets = False
    assert float(agent.target_values(batch).abs().max()) > 1000


def test_advice_against_drift_names_what_is_missing_and_then_the_learning_rate():
    assert "Set agent norm: layer (" in DQN(norm="none")._advice()
    assert "learning rate" in DQN()._advice()


# -- whole pools -------------------------------------------------------------------------------------


def test_a_dueling_minibatch_has_whole_pools_and_the_target_is_of_what_was_picked():
    agent = built(DQN(batch_size=6))
    moved(agent.policy.net)
    for i in range(4):
        agent.remember(played(0, float(i), agent.policy, seed=i), None)
        agent.learn(agent.configure_optimizers())
    drawn = agent.replay.sample(6, torch.Generator().manual_seed(3))
    batch = agent.draw(torch.Generator().manual_seed(3))
    assert batch.actions.shape[:2] == (6, 3)
    assert batch.counts.argmax(1).tolist() == [[1, 2][k] for _, k in drawn]
    assert batch.counts.sum(1).tolist() == [1] * 6
    with torch.no_grad():
        values = agent.predicted_values(batch)
    expected = ((values * batch.counts).sum(1) - batch.value).square().mean()
    assert float(agent.batch_loss(batch).detach()) == pytest.approx(float(expected), rel=1e-4)


def test_statistics_of_whole_pools_move_with_the_next_pools_too():
    agent = built(DQN(**PAPER | {"norm": "batch"}, pool_statistics=True, batch_size=4))
    for i in range(4):
        agent.remember(played(0, 1.0, agent.policy, seed=i), observation(agent.policy, pools=2, seed=i + 50))
        agent.replay.add(agent.waiting.pop())
    batch = agent.draw(torch.Generator().manual_seed(0))
    assert batch.actions.shape[1] == 3
    running = agent.target.action[0][0].running_mean.clone()
    agent.target_values(batch)
    assert not torch.equal(running, agent.target.action[0][0].running_mean)
    assert not agent.target.training
    assert not agent.policy.net.training


# -- exploration -------------------------------------------------------------------------------------


def test_whole_steps_explore():
    agent = built(DQN(exploration="steps", epsilon_start=0.5, epsilon_end=0.5))
    moved(agent.policy.net)
    seen, generator = observation(agent.policy, pools=8), torch.Generator().manual_seed(0)
    player = agent.player(Episode("train", "policy", 0), seed=0)
    assert isinstance(player, RandomSteps)
    own = agent.policy.scores(seen, generator)
    same = [torch.equal(player.scores(seen, generator), own) for _ in range(400)]
    assert 0.4 < sum(same) / 400 < 0.6
    assert agent.epsilon(0) == 0
    assert agent.player(Episode("validation", "policy", 0), seed=0) is agent.policy


def test_whole_episodes_explore_and_fewer_of_them_later():
    agent = built(DQN(exploration="perturbed", epsilon_start=1.0, epsilon_end=0.2, epsilon_decay=10.0), steps=4)

    def explored() -> float:
        players = [agent.player(Episode("train", "policy", draw), seed=0) for draw in range(200)]
        assert {type(player) for player in players} <= {Perturbed, type(agent.policy)}
        return sum(isinstance(player, Perturbed) for player in players) / 200

    assert explored() == 1
    first = agent.player(Episode("train", "policy", 0), seed=0)
    agent.num_steps = 3  # in the middle of an episode nothing changes
    assert agent.player(Episode("train", "policy", 0), seed=0).direction_seed == first.direction_seed
    agent.num_episodes = 100
    assert 0.1 < explored() < 0.3
    assert agent.epsilon(0) == 0
    assert agent.player(Episode("validation", "policy", 0), seed=0) is agent.policy


# -- going on ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"n_steps": 2}, {"rate_decay": 0.97, "exploration": "steps"}, {**PAPER, "pool_statistics": True}],
    ids=["ours", "two steps", "released rate", "released statistics"],
)
def test_a_run_that_was_cut_off_ends_the_same(tmp_path, options):
    def fresh(seed=0) -> tuple[DQN, torch.optim.Optimizer]:
        agent = built(DQN(batch_size=4, **options), seed, steps=3)
        return agent, agent.configure_optimizers()

    def go_on(agent, optimizer, first, last) -> None:
        for number in range(first, last):
            following = None if number % 3 == 2 else observation(agent.policy, pools=2, seed=number + 1)
            agent.remember(played(number % 3, 0.1 * number, agent.policy, seed=number), following)
            agent.learn(optimizer)

    whole, its_optimizer = fresh()
    go_on(whole, its_optimizer, 0, 12)
    cut, optimizer = fresh()
    go_on(cut, optimizer, 0, 7)
    torch.save([cut.state_dict(), optimizer.state_dict(), cut.memory()], tmp_path / "cut.pt")
    weights, optimizer_state, remembered = torch.load(tmp_path / "cut.pt", weights_only=True)
    again, optimizer = fresh()
    again.load_state_dict(weights)
    optimizer.load_state_dict(optimizer_state)
    again.load_memory(remembered)
    go_on(again, optimizer, 7, 12)
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in whole.state_dict().items())
    for name in ("num_steps", "num_episodes", "largest_reward", "largest_value", "updates", "loss"):
        assert getattr(again, name) == getattr(whole, name)
    assert again.share(again.num_steps) == whole.share(whole.num_steps)
    rate = its_optimizer.param_groups[0]["lr"]
    assert optimizer.param_groups[0]["lr"] == rate
    assert rate == pytest.approx(1e-3 * options.get("rate_decay", 1.0) ** (12 + 4))


# -- a world in which only one feature pays, and only later --------------------------------------------

POOLS, SIZE = 2, 4


class ToyWorld:
    """Two steps. A marked region in pool k pays nothing itself but puts a treasure into pool k of the next step."""

    def __init__(self, agent: DQN, seed: int) -> None:
        self.agent, self.generator = agent, torch.Generator().manual_seed(seed)
        self.mark = int(agent.policy.representation.time)  # the first column is taken where time is told
        self.treasure = self.mark + 1

    def pools(self, treasure: torch.Tensor | None) -> Observation:
        actions = torch.zeros(POOLS, SIZE, width(self.agent.policy) + 1)
        actions[..., self.mark + 2 : self.mark + 8] = torch.randn(POOLS, SIZE, 6, generator=self.generator)  # nothing
        if self.mark:
            actions[..., 0] = -0.5 if treasure is None else 0.0
        place = torch.randint(SIZE, (POOLS,), generator=self.generator)
        rows = torch.arange(POOLS)
        if treasure is None:
            actions[rows, place, self.mark] = 2.0
        else:
            actions[rows, place, self.treasure] = 2.0 * treasure
        num_features = self.agent.policy.representation.num_state_features(4)
        state = torch.randn(STATE_REGIONS, num_features, generator=self.generator)
        return Observation(state, torch.zeros(POOLS, SIZE), actions, actions[..., -1], torch.zeros(POOLS, SIZE, 4))

    def pick(self, seen: Observation, epsilon: float) -> torch.Tensor:
        return epsilon_greedy(self.agent.policy.scores(seen, self.generator), epsilon, self.generator)

    def play(self, epsilon: float) -> None:
        """Play an episode; the agent remembers it."""
        rows, first = torch.arange(POOLS), self.pools(None)
        one = self.pick(first, epsilon)
        second = self.pools((first.actions[rows, one][:, self.mark] > 0).float())
        two = self.pick(second, epsilon)
        reward = float((second.actions[rows, two][:, self.treasure] > 0).float().mean())
        self.agent.remember(PlayedStep(0, 0, 0.0, first.state, first.actions, one), second)
        self.agent.remember(PlayedStep(0, 1, reward, second.state, second.actions, two), None)

    def skill(self) -> float:
        """Share of pools whose marked region is picked."""
        hits = []
        for _ in range(100):
            seen = self.pools(None)
            hits.append(seen.actions[torch.arange(POOLS), self.pick(seen, 0.0)][:, self.mark] > 0)
        return float(torch.cat(hits).float().mean())


def train_in_toy_world(seed: int, **options) -> float:
    options = {"gamma": 0.9, "replay_size": 1600, "target_every": 10, "gradient_clip": 0} | options
    agent = built(DQN(**options), seed)
    world = ToyWorld(agent, seed)
    optimizer = torch.optim.Adam(agent.policy.net.parameters(), lr=3e-3, fused=True)
    for episode in range(150):
        world.play(epsilon=max(0.2, 1 - episode / 75))
        agent.learn(optimizer)
    return world.skill()


OLD = PAPER | {"gamma": 0.9}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, OLD], ids=["ours", "paper"])
def test_toy_world_is_solved(narrow, options):
    assert train_in_toy_world(seed=1, **options) > 0.9


@pytest.mark.slow
def test_toy_world_is_solved_by_returns_of_two_steps(narrow):
    assert train_in_toy_world(0, n_steps=2) > 0.9


def without_bootstrap(self, batch):
    return batch.value.clone()


def closed_gate(self, states, which, actions, real=None):
    return forward(self, states, which, actions, real) * 0.0


def shifted_pools(rows, experience, device, counted=None):
    return collate([(step, actions, k + 1) for step, actions, k in rows], experience, device, counted)


def value_alone(values, real=None):
    return values * 0.0


def wrong_pick(rows, experience, device, counted=None):
    return collate(rows, experience, device, [(place + 1) % SIZE for place in counted])


def clipped_to_nothing(self, steps_left):
    return steps_left * 0.0


forward = TwoPathNetwork.forward


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "mutant", "options"),
    [
        (DQN, "target_values", without_bootstrap, {}),
        (TwoPathNetwork, "forward", closed_gate, {}),
        (query_agent, "collate", shifted_pools, {}),
        (query_network, "centred", value_alone, {}),
        (query_agent, "collate", wrong_pick, {}),
        (DQN, "reachable", clipped_to_nothing, {}),
        (DQN, "target_values", without_bootstrap, OLD),
        (TwoPathNetwork, "forward", closed_gate, OLD),
        (query_agent, "collate", shifted_pools, OLD),
    ],
)
def test_toy_world_is_not_solved_by_a_broken_learner(monkeypatch, narrow, owner, name, mutant, options):
    monkeypatch.setattr(owner, name, mutant)
    # how far a broken learner gets depends on rounding, so on threads: any seed below the bar will do
    assert any(train_in_toy_world(seed, **options) < 0.9 for seed in (0, 1))
