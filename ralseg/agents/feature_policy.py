"""The feature policy: a small function of named features, which can be used on data with any classes."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import Needs, Reasons
from ralseg.acquisition.representation import FeatureSet, Representation
from ralseg.agents.base import LearnedPolicy
from ralseg.errors import ConfigError
from ralseg.runtime.seeding import stream_seed


class FeatureScore(nn.Module):
    """Scores regions by a weighted sum of their features, with weights that move with the situation.

    Args:
        num_features: A, number of features.
        hidden: Units of a hidden layer whose output is added; 0: the score is linear in the features.
        num_contexts: Numbers that describe the step as a whole, beside the share of the budget spent.
    """

    def __init__(self, num_features: int, hidden: int = 0, num_contexts: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_features))  # in the middle of the budget, where contexts are 0
        self.drift = nn.Parameter(torch.zeros(num_features))  # how the weights change from its begin to its end
        self.turn = nn.Parameter(torch.zeros(num_contexts, num_features)) if num_contexts else None
        self.num_situations = 1 + num_contexts
        self.hidden = nn.Linear(num_features + self.num_situations, hidden) if hidden else None
        if hidden:
            self.out = nn.Parameter(torch.zeros(hidden))

    def inputs(self, actions: Tensor) -> Tensor:
        """What the linear part weighs, in the order of its weights: features, times time, times each context.

        Args:
            actions: [..., 1 + contexts + A]. Gives [..., (2 + contexts) * A].
        """
        situation, features = actions[..., : self.num_situations], actions[..., self.num_situations :]
        moved = situation[..., :, None] * features[..., None, :]
        return torch.cat([features, moved.flatten(-2)], -1)

    def weights_in(self, situation: Tensor) -> Tensor:
        """What each feature counts in a situation, the hidden layer aside: [1 + contexts] -> [A]."""
        weights = self.weight + situation[0] * self.drift
        return weights if self.turn is None else weights + situation[1:] @ self.turn

    def forward(self, actions: Tensor) -> Tensor:
        """Scores by time (share of the budget spent, less 1/2), contexts and features: [..., 1 + c + A] -> [...]."""
        time, features = actions[..., :1], actions[..., self.num_situations :]
        score = features @ self.weight + (time * features) @ self.drift
        if self.turn is not None:
            score = score + ((actions[..., 1 : self.num_situations] @ self.turn) * features).sum(-1)
        return score if self.hidden is None else score + self.hidden(actions).tanh() @ self.out


class FeaturePolicy(LearnedPolicy):
    """A policy that reads named features, z-scored within the step, and how much of the budget is spent.

    It knows neither the number nor the names of the classes, so it can be used on other data than it was trained on.

    Args:
        features: Names of features, see ``ralseg/acquisition/named_features.py``; ``general``: all that ralseg has.
        hidden: Units of a hidden layer; 0: the score is linear in the features.
        start: Weights of single features before anything is learned, ``{rarity: 1.0, bald: 1.0}``. None: none, so
            that all regions are alike.
        context: Names of what describes the step as a whole, see ``ralseg/acquisition/contexts.py``; weights then
            depend on it. None: on the share of the budget spent alone.
        randomness: Size of the noise that is added to scores, so that a region whose score is higher by that much is
            preferred, and not always taken. Where scores hardly differ the choice is nearly uniform; 0: never.

    Examples:
        >>> policy = FeaturePolicy(["entropy", "novelty"], start={"entropy": 1.0})
        >>> policy.build(("road", "sky"), num_state_regions=0, seed=0)
        >>> seen = torch.tensor([[[-0.5, 1.0, 0.0, 0.0], [-0.5, 2.0, 0.0, 0.0]]])  # time, two features, the prior
        >>> nothing = torch.zeros(1, 2)
        >>> policy.scores(Observation(torch.zeros(0, 0), nothing, seen, nothing, nothing), torch.Generator()).tolist()
        [[1.0, 2.0]]
    """

    public_path = "ralseg.FeaturePolicy"
    net: FeatureScore

    def __init__(
        self,
        features: FeatureSet | list[str] = "general",
        hidden: int = 0,
        start: dict[str, float] | None = None,
        context: list[str] | None = None,
        randomness: float = 0.0,
    ) -> None:
        super().__init__()
        kind = features if isinstance(features, str) else tuple(features)
        self.representation = Representation(kind, standardise=True, time=True, context=tuple(context or ()))
        names = self.representation.names
        if not names:
            raise ConfigError(
                f"agent features {features!r} depend on the classes; give names of features, or 'general'"
            )
        unknown = [name for name in start or {} if name not in names]
        if unknown:
            raise ConfigError(
                f"agent start names {', '.join(unknown)}, which is none of the features {', '.join(names)}"
            )
        if hidden < 0:
            raise ConfigError(f"agent hidden={hidden} must be 0 (linear) or more")
        if not 0 <= randomness < math.inf:
            raise ConfigError(f"agent randomness={randomness} must be 0 (none) or more")
        self.hidden, self.start, self.randomness = hidden, dict(start or {}), randomness
        self.needs = Needs(self.representation.measures, representation=self.representation)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its features."""
        return self.representation.names

    def init_args(self) -> dict[str, Any]:
        """The arguments of this policy; names in full, whatever ``general`` will mean one day."""
        usual = {"context": list(self.context), "randomness": self.randomness}
        beyond = {key: value for key, value in usual.items() if value}
        return {"features": list(self.names), "hidden": self.hidden, "start": dict(self.start), **beyond}

    @property
    def context(self) -> tuple[str, ...]:
        """Names of what describes the step as a whole."""
        return self.representation.context

    def make_net(self) -> FeatureScore:
        """A score with as many weights as this policy has."""
        return FeatureScore(len(self.names), self.hidden, len(self.context))

    def build(self, class_names: tuple[str, ...], num_state_regions: int, seed: int) -> None:
        """Make the weights; they do not depend on the classes."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, "policy init"))
            self.net = self.make_net()
        with torch.no_grad():
            for name, weight in self.start.items():
                self.net.weight[self.names.index(name)] = weight
        self.eval()

    @torch.no_grad()
    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Scores of all candidates: [K, N]."""
        return self.scored(self.net, observation, generator)

    @torch.no_grad()
    def scored(self, net: FeatureScore, observation: Observation, generator: torch.Generator) -> Tensor:
        """Scores by weights that may be others than its own, with this policy's noise: [K, N]."""
        scores: Tensor = net(observation.actions[..., :-1].to(net.weight.device)).cpu()
        if self.randomness:
            # the largest of scores with Gumbel noise is drawn in proportion to exp(score / randomness)
            uniform = torch.rand(scores.shape, generator=generator).clamp(min=1e-12, max=1 - 1e-7)
            scores = scores - self.randomness * (-uniform.log()).log()
        return scores

    @torch.no_grad()
    def reasons(self, observation: Observation) -> Reasons:
        """The features and what each counts at this step: their products sum to the score, exactly where it is linear.

        Args:
            observation: What :meth:`scores` was given.
        """
        actions, situations = observation.actions[..., :-1].cpu(), self.net.num_situations
        weights = self.net.weights_in(actions[0, 0, :situations].to(self.net.weight.device))
        rest = ["a hidden layer"] * bool(self.hidden) + ["chance"] * bool(self.randomness)
        return Reasons(self.names, actions[..., situations:], weights.cpu(), " and ".join(rest))

    def weights(self) -> dict[str, tuple[float, float]]:
        """What each feature counts at the begin and at the end of the budget."""
        weight, half = self.net.weight.detach(), self.net.drift.detach() / 2
        begin, end = weight - half, weight + half
        return {name: (float(begin[i]), float(end[i])) for i, name in enumerate(self.names)}
