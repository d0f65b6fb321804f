"""Agents that learn a feature policy from whole games: what they learn by hand, and what they keep."""

import math

import pytest
import torch
from sklearn.linear_model import Ridge

from ralseg.acquisition.features import standardised
from ralseg.acquisition.heuristics import Entropy
from ralseg.acquisition.observation import Observation
from ralseg.agents import CreditRegression, Episode, FeaturePolicy, GroupAdvantage, PlayedStep, PolicySearch
from ralseg.agents.feature_agent import Shifted, all_weights, set_gradient, set_weights
from ralseg.agents.group_advantage import leave_one_out
from ralseg.agents.loading import load_policy, save_policy
from ralseg.errors import ConfigError
from support.agents import built
from support.data import small_data
from support.games import assert_same, game, play

NAMES = ["entropy", "bald", "side"]
SEED = 5


def sgd(rate=1.0):
    return lambda parameters: torch.optim.SGD(parameters, lr=rate)


def search(**options) -> PolicySearch:
    return built(PolicySearch(**({"features": NAMES, "pairs": 2, "optimizer": sgd()} | options)), SEED)


def group(**options) -> GroupAdvantage:
    return built(
        GroupAdvantage(**({"features": NAMES, "group_size": 3, "groups": 2, "optimizer": sgd()} | options)), SEED
    )


def credit(**options) -> CreditRegression:
    return built(CreditRegression(**({"features": NAMES, "episodes_per_update": 2} | options)), SEED)


AGENTS = {"search": search, "group": group, "credit": credit}


def seen(number=0, pools=2, size=4) -> Observation:
    """Random features in the middle of the budget, or a little after."""
    actions = torch.randn(pools, size, 1 + len(NAMES) + 1, generator=torch.Generator().manual_seed(number))
    actions[..., 0] = 0.1 * (number % 4)
    nothing = torch.zeros(pools, size)
    return Observation(torch.zeros(0, 0), nothing, actions, nothing, nothing)


def played(member, step, gain, number=0) -> PlayedStep:
    lesson = torch.randn(2, 4, generator=torch.Generator().manual_seed(100 + number))
    picked = torch.zeros(2, dtype=torch.int64)
    return PlayedStep(member, step, gain, torch.zeros(0, 0), seen(number).actions, picked, lesson=lesson)


def episodes(agent, gains) -> list[tuple[PlayedStep, Observation | None]]:
    """Steps of episodes one after another, with what follows each."""
    steps = []
    for number, episode in enumerate(gains):
        for step, gain in enumerate(episode):
            is_last = step == len(episode) - 1
            told = played(number % len(agent.block), step, gain, 10 * number + step)
            steps.append((told, None if is_last else seen(number)))
    return steps


def teach(agent, steps, optimizer=None):
    optimizer = optimizer or agent.configure_optimizers()
    for step, following in steps:
        agent.remember(step, following)
        agent.learn(optimizer)
    return optimizer


# -- the policy -----------------------------------------------------------------------------------


def policy(**options) -> FeaturePolicy:
    found = FeaturePolicy(NAMES, **options)
    found.build(("a", "b"), num_state_regions=0, seed=0)
    return found


def test_a_policy_starts_as_it_is_told_to():
    looked_at = seen(2)
    assert (policy().scores(looked_at, torch.Generator()) == 0).all()
    scores = policy(start={"bald": 2.0, "side": -1.0}).scores(looked_at, torch.Generator())
    assert torch.allclose(scores, 2 * looked_at.actions[..., 2] - looked_at.actions[..., 3])


def test_weights_move_as_the_budget_is_spent():
    found = policy(start={"entropy": 1.0})
    with torch.no_grad():
        found.net.drift[1] = 3.0
    assert found.weights() == {"entropy": (1.0, 1.0), "bald": (-1.5, 1.5), "side": (0.0, 0.0)}
    looked_at = seen(2)
    time, entropy, bald = looked_at.actions[..., 0], looked_at.actions[..., 1], looked_at.actions[..., 2]
    assert torch.allclose(found.scores(looked_at, torch.Generator()), entropy + 3 * time * bald)
    looked_at.actions[..., -1] = 7.0  # the prior, which it does not read
    assert torch.allclose(found.scores(looked_at, torch.Generator()), entropy + 3 * time * bald)


def test_a_hidden_layer_begins_with_nothing_to_add():
    found, linear, looked_at = policy(hidden=4, start={"bald": 1.0}), policy(start={"bald": 1.0}), seen()
    assert torch.equal(found.scores(looked_at, torch.Generator()), linear.scores(looked_at, torch.Generator()))
    with torch.no_grad():
        found.net.out[2] = 0.5
    hidden = (looked_at.actions[..., :-1] @ found.net.hidden.weight[2] + found.net.hidden.bias[2]).tanh().detach()
    added = found.scores(looked_at, torch.Generator()) - linear.scores(looked_at, torch.Generator())
    assert torch.allclose(added, 0.5 * hidden, atol=1e-6)
    assert all_weights(found).shape == (3 + 3 + 4 + 4 * 4 + 4,)


def test_weights_turn_with_the_context():
    found = policy(start={"entropy": 1.0}, context=["variety", "confidence"])
    with torch.no_grad():
        found.net.turn[1, 2] = 2.0  # what confidence does to the weight of side
    actions = torch.randn(2, 4, 1 + 2 + 3 + 1)
    nothing = torch.zeros(2, 4)
    looked_at = Observation(torch.zeros(0, 0), nothing, actions, nothing, nothing)
    expected = actions[..., 3] + 2 * actions[..., 2] * actions[..., 5]
    assert torch.allclose(found.scores(looked_at, torch.Generator()), expected, atol=1e-6)
    weighed = found.net.inputs(actions[..., :-1]) @ all_weights(found)
    assert torch.allclose(weighed, expected, atol=1e-6)
    assert found.init_args()["context"] == ["variety", "confidence"]
    assert "context" not in policy().init_args()  # files of policies without one stay what they were


def test_a_random_policy_prefers_by_as_much_as_scores_differ():
    looked_at, draws = seen(2, pools=4000, size=2), torch.Generator().manual_seed(0)
    looked_at.actions[..., 0] = 0.0
    looked_at.actions[:, 0, 1], looked_at.actions[:, 1, 1] = 1.0, 0.0  # entropy is higher by 1
    first = policy(start={"entropy": 1.0}, randomness=1.0).scores(looked_at, draws).argmax(1) == 0
    assert float(first.float().mean()) == pytest.approx(math.e / (1 + math.e), abs=0.03)
    bolder = policy(start={"entropy": 1.0}, randomness=4.0).scores(looked_at, draws).argmax(1) == 0
    assert float(bolder.float().mean()) == pytest.approx(1 / (1 + math.exp(-0.25)), abs=0.03)
    again = [policy(start={"entropy": 1.0}, randomness=1.0).scores(seen(), torch.Generator()) for _ in range(2)]
    assert torch.equal(*again)  # the game's generator decides


@pytest.mark.parametrize("hidden", [0, 4])
def test_weights_in_a_row_go_where_they_came_from(hidden):
    found, copy = policy(hidden=hidden, start={"side": 1.0}), policy(hidden=hidden)
    row = torch.randn(all_weights(found).shape, generator=torch.Generator().manual_seed(0))
    set_weights(copy.net, row)
    assert torch.equal(all_weights(copy), row)
    set_gradient(copy.net, 2 * row)
    torch.optim.SGD(copy.net.parameters(), lr=0.5).step()
    assert (all_weights(copy) == 0).all()
    shifted = Shifted(found, lambda: row)
    set_weights(copy.net, row)
    before = all_weights(found)
    assert torch.equal(shifted.scores(seen(), torch.Generator()), copy.scores(seen(), torch.Generator()))
    assert torch.equal(all_weights(found), before)  # the policy itself stays as it is
    assert shifted.needs is found.needs


def test_a_policy_fits_data_with_other_classes(tmp_path):
    agent = search(start={"bald": 0.5})
    set_weights(agent.policy.net, torch.arange(6.0))
    assert agent.policy.fits() == {}
    content = {
        "ralseg": {"version": "1", "policy": agent.policy.description()},
        "state_dict": agent.policy.state_dict(),
    }
    save_policy(content, tmp_path / "policy.ckpt")
    data = small_data()
    data.setup()
    assert len(data.class_names) > 4  # it was built with four
    found = load_policy(tmp_path / "policy.ckpt", data)
    assert isinstance(found, FeaturePolicy)
    assert found.weights() == agent.policy.weights()
    assert found.init_args() == {"features": NAMES, "hidden": 0, "start": {"bald": 0.5}}


def test_learning_goes_on_from_the_policy_of_a_file(tmp_path):
    file = str(tmp_path / "policy.ckpt")
    first = search(hidden=2)
    row = torch.randn(all_weights(first.policy).shape, generator=torch.Generator().manual_seed(0))
    set_weights(first.policy.net, row)
    content = {
        "ralseg": {"version": "1", "policy": first.policy.description()},
        "state_dict": first.policy.state_dict(),
    }
    save_policy(content, file)
    second = search(hidden=2, start_from=file)
    assert torch.equal(all_weights(second.policy), row)
    assert torch.equal(second.centre, row)  # pairs are drawn around it
    assert torch.equal(all_weights(group(hidden=2, start_from=file).policy), row)
    like_it = built(PolicySearch(start_from=file), SEED)  # what is left out is as in the file
    assert (like_it.policy.names, like_it.policy.hidden) == (tuple(NAMES), 2)
    for options, key in (
        ({"hidden": 3}, "hidden=3"),
        ({"features": NAMES[::-1]}, "features="),
        ({"randomness": 1.0}, "r"),
    ):
        with pytest.raises(ConfigError, match=rf"agent {key}.* is not that of the policy in start_from"):
            search(**options, start_from=file)
    with pytest.raises(ConfigError, match=r"has a hidden layer, and a regression is linear"):
        credit(start_from=file)
    other = str(tmp_path / "other.ckpt")
    save_policy({"ralseg": {"version": "1", "policy": {"class_path": "ralseg.QueryNetwork"}}, "state_dict": {}}, other)
    with pytest.raises(ConfigError, match=r"start_from: .*other\.ckpt holds no policy of named features"):
        search(start_from=other)
    with pytest.raises(ConfigError, match=r"start_from: no policy at 'nowhere\.ckpt'"):
        group(start_from="nowhere.ckpt")


# -- policy search --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [search, credit])
def test_the_policy_that_learning_began_with_plays_beside_it(tmp_path, make):
    begun = search(start={"entropy": 1.0, "bald": -2.0})
    save_policy(
        {"ralseg": {"policy": begun.policy.description()}, "state_dict": begun.policy.state_dict()},
        tmp_path / "policy.ckpt",
    )
    assert make().references == ("uniform", "entropy")
    agent, looked_at = make(start_from=str(tmp_path / "policy.ckpt")), seen()
    assert agent.references == ("uniform", "entropy", "start")
    set_weights(agent.policy.net, torch.ones(6))
    scores = agent.player(Episode("validation", "start", 0), SEED).scores(looked_at, torch.Generator())
    assert torch.allclose(scores, looked_at.actions[..., 1] - 2 * looked_at.actions[..., 2], atol=1e-6)


def test_policy_search_goes_where_the_better_of_each_pair_lies():
    agent = search(deviation=0.5, average=0.25, start={"bald": 2.0})
    start = agent.centre.clone()
    # mean gains over the steps of 2 and 1, then 3 and 7 points
    teach(agent, episodes(agent, [[0.01, 0.02], [0.01, 0.0], [0.03, 0.0], [0.07, 0.0]]))
    pushes = [agent.push(draw, SEED) for draw in (0, 1)]
    slope = (1.0 * pushes[0] - 4.0 * pushes[1]) / 2  # (plus - minus) / (2 * 0.5), mean over pairs
    assert torch.allclose(agent.centre, start + slope, atol=1e-5)
    assert torch.allclose(all_weights(agent.policy), start + 0.25 * slope, atol=1e-5)  # what is validated and kept
    assert agent.metrics()["policy/slope"] == pytest.approx(float(slope.norm()), rel=1e-5)
    assert agent.updates == 1
    assert agent.gains == []


def test_the_next_group_draws_other_pushes_around_the_new_centre():
    agent = search(deviation=0.5, average=0.25)
    optimizer = teach(agent, episodes(agent, [[0.02], [0.01], [0.0], [0.0]]))
    centre, mean = agent.centre.clone(), all_weights(agent.policy)
    teach(agent, episodes(agent, [[0.0], [0.0], [0.02], [0.01]]), optimizer)
    slope = agent.push(3, SEED) / 2  # the second pair of the second group
    assert torch.allclose(agent.centre, centre + slope, atol=1e-5)
    assert torch.allclose(all_weights(agent.policy), 0.75 * mean + 0.25 * agent.centre, atol=1e-5)


def test_the_players_of_a_pair_mirror_each_other():
    agent = search(deviation=0.5, start={"side": 1.0})
    plus, minus = (agent.player(Episode("train", role, 3, i), SEED) for i, role in enumerate(agent.block))
    push = agent.push(3, SEED)
    assert torch.allclose(plus.weights(), agent.centre + 0.5 * push)
    assert torch.allclose(minus.weights(), agent.centre - 0.5 * push)
    assert not torch.equal(push, agent.push(4, SEED))
    assert not torch.equal(push, agent.push(3, SEED + 1))
    assert agent.player(Episode("validation", "policy", 3), SEED) is agent.policy
    assert isinstance(agent.player(Episode("validation", "entropy", 3), SEED), Entropy)


# -- group advantage ------------------------------------------------------------------------------


def test_an_advantage_is_over_the_others_of_the_group():
    assert leave_one_out(torch.tensor([[3.0, 1.0, 2.0], [5.0, 5.0, 5.0]])).tolist() == [[1.5, -1.5, 0], [0, 0, 0]]
    assert leave_one_out(torch.tensor([[4.0, 1.0]])).tolist() == [[3, -3]]


def test_group_advantage_follows_the_gradient_of_a_normal_distribution():
    agent = group(deviation=0.5, start={"bald": 2.0}, optimizer=sgd(0.1))
    start = all_weights(agent.policy)
    areas = torch.tensor([[1.0, 2.0, 6.0], [4.0, 0.0, 2.0]])
    teach(agent, episodes(agent, [[gain / 100] for gain in areas.flatten().tolist()]))
    mean, log_deviation = start.clone().requires_grad_(), torch.full_like(start, math.log(0.5)).requires_grad_()
    total = 0.0
    for draw in (0, 1):
        for member in range(3):
            others = [areas[draw, i] for i in range(3) if i != member]
            weights = start + 0.5 * agent.noise(draw, member, SEED)
            likelihood = torch.distributions.Normal(mean, log_deviation.exp()).log_prob(weights).sum()
            total = total + (areas[draw, member] - sum(others) / 2) * likelihood / 6
    total.backward()
    assert torch.allclose(all_weights(agent.policy), start + 0.1 * mean.grad, atol=1e-4)
    expected = math.log(0.5) + 0.1 * log_deviation.grad
    assert torch.allclose(agent.log_deviation.detach(), expected.clamp(min=math.log(0.05)), atol=1e-4)
    assert agent.metrics()["policy/spread"] == pytest.approx(float(areas.std(1).mean()), rel=1e-5)


def test_luck_of_a_whole_group_teaches_nothing():
    one, two = group(), group()
    gains = [0.01, 0.02, 0.06, 0.04, 0.0, 0.02]
    teach(one, episodes(one, [[gain] for gain in gains]))
    teach(two, episodes(two, [[gain + (0.5 if i < 3 else -0.3)] for i, gain in enumerate(gains)]))
    assert torch.allclose(all_weights(one.policy), all_weights(two.policy), atol=1e-3)
    assert all_weights(one.policy).abs().max() > 0.1


def test_deviations_do_not_fall_below_the_smallest():
    agent = group(smallest_deviation=0.2, optimizer=sgd(100.0))
    teach(agent, episodes(agent, [[gain] for gain in (0.01, 0.02, 0.06, 0.04, 0.0, 0.02)]))
    deviations = agent.log_deviation.detach().exp()
    assert float(deviations.min()) == pytest.approx(0.2)
    assert float(deviations.max()) > 0.25


def test_the_players_of_a_group_draw_weights_of_their_own():
    agent = group(deviation=0.5, start={"side": 1.0})
    rows = [
        agent.player(Episode("train", "sampled", draw, member), SEED).weights()
        for draw, member in [(0, 0), (0, 1), (1, 0)]
    ]
    assert len({tuple(row.tolist()) for row in rows}) == 3
    assert torch.allclose(rows[1], all_weights(agent.policy) + 0.5 * agent.noise(0, 1, SEED))
    assert agent.player(Episode("validation", "policy", 0), SEED) is agent.policy


# -- credit regression ----------------------------------------------------------------------------


def rows_of(steps):
    """Inputs and targets of a regression, as the agent should see them."""
    inputs, targets = [], []
    for step, _ in steps:
        time, features = step.actions[..., :1].flatten(0, 1), step.actions[..., 1:-1].flatten(0, 1)
        inputs.append(torch.cat([features, time * features], 1))
        targets.append(standardised(step.lesson.flatten()[:, None])[:, 0])
    return torch.cat(inputs).double(), torch.cat(targets).double()


def ridge(inputs, targets, weights, shrinkage):
    found = Ridge(alpha=shrinkage, fit_intercept=False).fit(inputs.numpy(), targets.numpy(), weights.numpy())
    return torch.from_numpy(found.coef_).float()


@pytest.mark.parametrize("shrinkage", [0.5, 10.0])
def test_credit_regression_is_ridge_regression(shrinkage):
    agent = credit(shrinkage=shrinkage)
    steps = episodes(agent, [[0.0, 0.0, 0.0], [0.0, 0.0]])
    teach(agent, steps)
    inputs, targets = rows_of(steps)
    expected = ridge(inputs, targets, torch.full_like(targets, 1 / 8), shrinkage)  # a step has eight candidates
    assert torch.allclose(all_weights(agent.policy), expected, atol=1e-5)
    assert expected.abs().max() > 0.01


def test_it_shrinks_towards_where_it_starts():
    agent = credit(shrinkage=2.0, start={"bald": 0.7})
    start = torch.tensor([0.0, 0.7, 0.0, 0.0, 0.0, 0.0])
    assert torch.equal(all_weights(agent.policy), start)
    steps = episodes(agent, [[0.0, 0.0], [0.0, 0.0]])
    teach(agent, steps)
    inputs, targets = rows_of(steps)
    rest = targets - inputs @ start.double()
    expected = start + ridge(inputs, rest, torch.full_like(rest, 1 / 8), 2.0)
    assert torch.allclose(all_weights(agent.policy), expected, atol=1e-5)


def test_older_experience_counts_less():
    agent = credit(shrinkage=1.0, forget=0.5)
    old, new = (episodes(agent, [[0.0] * count, [0.0]]) for count in (2, 3))
    optimizer = teach(agent, old)
    teach(agent, new, optimizer)
    inputs, targets = rows_of(old + new)
    weights = torch.tensor([0.5] * 8 * len(old) + [1.0] * 8 * len(new)) / 8
    assert torch.allclose(all_weights(agent.policy), ridge(inputs, targets, weights, 1.0), atol=1e-5)


def test_a_step_in_which_all_are_alike_teaches_nothing():
    agent = credit()
    step, _ = episodes(agent, [[0.0]])[0]
    alike = PlayedStep(0, 0, 0.0, step.state, step.actions, step.picked, lesson=torch.full((2, 4), 0.3))
    teach(agent, [(alike, None), (alike, None)])
    assert (all_weights(agent.policy) == 0).all()
    assert agent.metrics()["policy/correlation"] == 0


def test_forecasts_are_compared_with_what_came():
    agent = credit(start={"side": 1.0})
    step, _ = episodes(agent, [[0.0]])[0]
    for sign, expected in ((1, 0.02), (-1, 0.02 * 0.98 - 0.02)):
        told = PlayedStep(0, 0, 0.0, step.state, step.actions, step.picked, lesson=sign * step.actions[..., 3])
        agent.remember(told, seen())
        assert agent.metrics()["policy/correlation"] == pytest.approx(expected, abs=1e-5)


# -- what all of them keep ------------------------------------------------------------------------


def fresh(name):
    agent = AGENTS[name](**({} if name == "credit" else {"optimizer": lambda p: torch.optim.Adam(p, lr=0.1)}))
    return agent, agent.configure_optimizers()


@pytest.mark.parametrize("stop", [3, 9])
@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_that_was_cut_off_amid_a_group_goes_on(name, stop):
    (whole, one), (cut, two), (resumed, three) = (fresh(name) for _ in range(3))
    number = 2 * len(whole.block) * whole.learns_after_blocks
    gains = torch.rand(number, 3, generator=torch.Generator().manual_seed(0)).tolist()
    steps = episodes(whole, gains)
    teach(whole, steps, one)
    teach(cut, steps[:stop], two)
    assert cut.gains  # a group is not complete
    resumed.load_state_dict(cut.state_dict())
    resumed.load_memory(cut.memory())
    three.load_state_dict(two.state_dict())
    teach(resumed, steps[stop:], three)
    assert whole.updates == 2
    assert_same(dict(whole.state_dict()), dict(resumed.state_dict()))
    assert_same(whole.memory(), resumed.memory())
    assert whole.metrics() == resumed.metrics()
    assert all_weights(whole.policy).abs().max() > 0.01


@pytest.mark.parametrize("name", AGENTS)
def test_nothing_is_learned_before_a_group_is_complete(name):
    agent, optimizer = fresh(name)
    number = len(agent.block) * agent.learns_after_blocks
    steps = episodes(agent, torch.rand(number, 2, generator=torch.Generator().manual_seed(0)).tolist())
    start = all_weights(agent.policy)
    teach(agent, steps[:-1], optimizer)
    assert torch.equal(all_weights(agent.policy), start)
    teach(agent, steps[-1:], optimizer)
    assert not torch.equal(all_weights(agent.policy), start)
    agent.build(("a", "b"), 0, 3, SEED)  # another game
    assert torch.equal(all_weights(agent.policy), start)
    assert (agent.updates, agent.gains) == (0, [])


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (FeaturePolicy, {"features": "summary"}, "agent features 'summary' depend on the classes"),
        (FeaturePolicy, {"features": ["bald"], "start": {"side": 1.0}}, "start names side, which is none of .* bald"),
        (FeaturePolicy, {"hidden": -1}, "hidden=-1 must be 0"),
        (PolicySearch, {"deviation": 0.0}, r"agent deviation=0\.0 must be above 0"),
        (PolicySearch, {"pairs": 0}, "agent pairs=0 must be at least 1"),
        (PolicySearch, {"average": 0.0}, r"agent average=0\.0 must lie in \(0, 1\]"),
        (PolicySearch, {"average": 1.5}, r"agent average=1\.5 must lie in \(0, 1\]"),
        (GroupAdvantage, {"deviation": -1.0}, r"agent deviation=-1\.0 must be above 0"),
        (GroupAdvantage, {"smallest_deviation": 0.0}, r"agent smallest_deviation=0\.0 must be above 0"),
        (GroupAdvantage, {"group_size": 1}, "agent group_size=1 must be at least 2"),
        (GroupAdvantage, {"groups": 0}, "agent groups=0 must be at least 1"),
        (CreditRegression, {"shrinkage": 0.0}, r"agent shrinkage=0\.0 must be above 0"),
        (CreditRegression, {"forget": 1.1}, r"agent forget=1\.1 must lie in \(0, 1\]"),
        (CreditRegression, {"epsilon": -0.1}, r"agent epsilon=-0\.1 must lie in \[0, 1\]"),
        (CreditRegression, {"episodes_per_update": 0}, "agent episodes_per_update=0 must be at least 1"),
    ],
)
def test_options_that_cannot_work_are_refused(make, options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("agent", "episodes_", "message"),
    [
        (search, 6, "episodes=6 are 3 blocks, and PolicySearch learns after every 2 of them; .* a multiple of 4"),
        (group, 9, "episodes=9 are 3 blocks, and GroupAdvantage learns after every 2 of them; .* a multiple of 6"),
        (credit, 3, "episodes=3 are 3 blocks, and CreditRegression learns after every 2 of them; .* a multiple of 2"),
    ],
)
def test_episodes_that_are_no_whole_groups_are_refused(tmp_path, agent, episodes_, message):
    with pytest.raises(ConfigError, match=message):
        play(tmp_path, game(episodes=episodes_), agent())
