"""Small agents and what they see: four classes, five regions of the state set, random features."""

import torch

from ralseg.acquisition.observation import Observation
from ralseg.agents import DQN, PairedBlocks, QueryNetwork
from ralseg.agents.replay import StepMemory

CLASSES = ("a", "b", "c", "d")
STATE_REGIONS = 5


def network(seed=0, **options) -> QueryNetwork:
    policy = QueryNetwork(**options)
    policy.build(CLASSES, STATE_REGIONS, seed)
    return policy


def built(agent: DQN | PairedBlocks, seed=0, steps=2):
    agent.build(CLASSES, STATE_REGIONS, steps, seed)
    return agent


def width(policy: QueryNetwork) -> int:
    return policy.representation.num_action_features(len(CLASSES))


def observation(policy: QueryNetwork, pools=6, size=3, seed=0) -> Observation:
    generator = torch.Generator().manual_seed(seed)
    num_features = policy.representation.num_state_features(len(CLASSES))
    state = torch.randn(STATE_REGIONS, num_features, generator=generator)
    actions = torch.randn(pools, size, width(policy) + 1, generator=generator)
    numbers = torch.arange(pools * size).reshape(pools, size)
    return Observation(state, numbers, actions, actions[..., -1], torch.rand(pools, size, 4, generator=generator))


def memory(policy: QueryNetwork, seed, value=1.0, follow=True, size=3, pools=2) -> StepMemory:
    seen, after = observation(policy, pools, size, seed), observation(policy, pools, size, seed + 100)
    following = (after.state, after.actions) if follow else (None, None)
    known = {"pools": seen.actions, "picked": torch.zeros(pools, dtype=torch.int64)} if policy.dueling else {}
    return StepMemory(seen.state, seen.actions[:, 0], value, 0.9, *following, **known)
