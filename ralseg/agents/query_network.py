"""The query network: Q(s, a) of every candidate, by the paper's two paths and gate."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ralseg.acquisition.features import KL_BINS
from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import Needs
from ralseg.acquisition.representation import FeatureSet, Prior, Representation
from ralseg.agents.base import LearnedPolicy
from ralseg.errors import ConfigError
from ralseg.runtime.seeding import stream_seed

STATE_WIDTHS = (256, 128, 1)
STATE_EMBEDDING = 128
ACTION_WIDTHS = (512, 256, 128)


class Layer(nn.Sequential):
    """BN-ReLU-FC, the paper's building block; its normalisation and activation can be left out."""

    def __init__(self, width_in: int, width_out: int, batch_norm: bool = True, relu: bool = True) -> None:
        norm = [nn.BatchNorm1d(width_in)] if batch_norm else []
        activation = [nn.ReLU()] if relu else []
        super().__init__(*norm, *activation, nn.Linear(width_in, width_out))


def path(widths: tuple[int, ...], batch_norm: bool) -> nn.Sequential:
    """Layers from each width to the next."""
    return nn.Sequential(*(Layer(a, b, batch_norm) for a, b in pairwise(widths)))


class TwoPathNetwork(nn.Module):
    """The paper's network: a state path, an action path, and a gate on the divergence histograms.

    Args:
        num_state_regions: R_S.
        num_state_features: F.
        num_action_features: A.
        action_widths: Widths of the action path; empty makes a linear model of the features.
        use_state: Have the state path.
        use_gate: Multiply the score by a sigmoid of the two divergence histograms.
        batch_norm: Normalise as the paper does.
    """

    def __init__(
        self,
        num_state_regions: int,
        num_state_features: int,
        num_action_features: int,
        action_widths: tuple[int, ...] = ACTION_WIDTHS,
        use_state: bool = True,
        use_gate: bool = True,
        batch_norm: bool = True,
    ) -> None:
        super().__init__()
        self.use_state, self.use_gate = use_state, use_gate
        if use_state:
            self.state_regions = path((num_state_features, *STATE_WIDTHS), batch_norm)
            self.state_set = Layer(num_state_regions, STATE_EMBEDDING, batch_norm)
        widths = (num_action_features, *action_widths)
        self.action = path(widths, batch_norm)
        joined = widths[-1] + (STATE_EMBEDDING if use_state else 0)
        self.score = Layer(joined, 1, batch_norm, relu=False)
        if use_gate:
            self.gate = Layer(2 * KL_BINS, 1, batch_norm)

    def forward(self, states: Tensor, which: Tensor, actions: Tensor) -> Tensor:
        """Scores of sub-actions.

        Args:
            states: [U, R_S, F], each state once.
            which: [B] the state of each row of ``actions``.
            actions: [B, M, A], M sub-actions in each row.

        Returns:
            [B, M].
        """
        rows, per_row, width = actions.shape
        flat = actions.reshape(rows * per_row, width)
        hidden = self.action(flat)
        if self.use_state:
            seen = self.state_regions(states.flatten(0, 1)).reshape(states.shape[:2])  # [U, R_S]
            embedding = self.state_set(seen[which])  # [B, 128]
            hidden = torch.cat([hidden, embedding.repeat_interleave(per_row, 0)], 1)
        score: Tensor = self.score(hidden)
        if self.use_gate:
            score = score * self.gate(flat[:, -2 * KL_BINS :]).sigmoid()
        return score.reshape(rows, per_row)


class QueryNetwork(LearnedPolicy):
    """A policy that scores candidates by a network: Q = prior_weight times a prior + what the network has learned.

    Args:
        features: The paper's ``1H``, ``3H``, ``3H+KL``; or ours for few games, see :class:`Representation`.
        standardise: Z-score the features over each step's candidates ("ours").
        use_state: Have the state path.
        use_gate: Have the gate; needs ``3H+KL``.
        linear: Replace the action path by one linear layer.
        batch_norm: Normalise inside the network, as the paper does.
        prior: ``entropy``, ``margin`` or ``bald``: the heuristic that the policy starts from ("ours").
        prior_weight: Weight of the prior's standardised score. 0: none (paper).

    Example:
        >>> network = QueryNetwork("summary", use_state=False, use_gate=False, linear=True)
        >>> network.build(("road", "sky"), num_state_regions=0, seed=0)
        >>> seen = Observation(torch.zeros(0, 0), *(torch.zeros(3, 5), torch.zeros(3, 5, 11), *[torch.zeros(3, 5)] * 2))
        >>> network.scores(seen, torch.Generator()).shape  # K = 3 pools of N = 5
        torch.Size([3, 5])
    """

    public_path = "ralseg.QueryNetwork"  # it outlives the next move of this module
    net: TwoPathNetwork

    def __init__(
        self,
        features: FeatureSet = "3H+KL",
        standardise: bool = False,
        use_state: bool = True,
        use_gate: bool = True,
        linear: bool = False,
        batch_norm: bool = True,
        prior: Prior = "entropy",
        prior_weight: float = 0.0,
    ) -> None:
        super().__init__()
        if use_gate and features != "3H+KL":
            raise ConfigError(f"agent use_gate needs features '3H+KL', not {features!r}; set use_gate to false")
        if prior != "entropy" and not prior_weight:
            raise ConfigError(f"agent prior {prior!r} has no effect at prior_weight 0; set prior_weight too")
        self.representation = Representation(features, standardise, prior)
        self.use_state, self.use_gate, self.linear, self.batch_norm = use_state, use_gate, linear, batch_norm
        self.prior_weight = prior_weight
        self.class_names: tuple[str, ...] = ()
        self.num_state_regions = 0
        self.needs = Needs(self.representation.measures, representation=self.representation, state=use_state)

    def init_args(self) -> dict[str, Any]:
        """The arguments of this network."""
        return {
            "features": self.representation.option,
            "standardise": self.representation.standardise,
            "use_state": self.use_state,
            "use_gate": self.use_gate,
            "linear": self.linear,
            "batch_norm": self.batch_norm,
            "prior": self.representation.prior,
            "prior_weight": self.prior_weight,
        }

    def fits(self) -> dict[str, Any]:
        """The classes that it knows and, with a state path, the number of state regions."""
        regions = {"num_state_regions": self.num_state_regions} if self.use_state else {}
        return {"class_names": list(self.class_names), **regions}

    def build(self, class_names: tuple[str, ...], num_state_regions: int, seed: int) -> None:
        """Make the network, once the number of classes and of state regions is known."""
        self.class_names, self.num_state_regions = tuple(class_names), num_state_regions
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, "query init"))
            self.net = self.make_network()
        if self.prior_weight:
            # start as the prior alone: the learned part only has to correct it
            last = self.net.score[-1]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        self.eval()

    def make_network(self) -> TwoPathNetwork:
        """A network of this shape with fresh weights."""
        num_classes = len(self.class_names)
        return TwoPathNetwork(
            self.num_state_regions,
            self.representation.num_state_features(num_classes),
            self.representation.num_action_features(num_classes),
            () if self.linear else ACTION_WIDTHS,
            self.use_state,
            self.use_gate,
            self.batch_norm,
        )

    def values(self, network: TwoPathNetwork, states: Tensor, which: Tensor, actions: Tensor) -> Tensor:
        """Q of sub-actions, prior included; shapes as in :meth:`TwoPathNetwork.forward`, plus the prior's column."""
        learned: Tensor = network(states, which, actions[..., :-1])
        return learned + self.prior_weight * actions[..., -1]

    @torch.no_grad()
    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Q of every candidate of a step; the state path runs once: [K, N]."""
        device = next(self.net.parameters()).device
        actions = observation.actions.to(device)
        rows = torch.zeros(1, dtype=torch.int64, device=device)
        states = observation.state[None].to(device)
        values = self.values(self.net, states, rows, actions.flatten(0, 1)[None])
        return values.reshape(actions.shape[:2]).cpu()
