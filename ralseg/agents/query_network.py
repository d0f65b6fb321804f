"""The query network: Q(s, a) of every candidate, by the paper's two paths and gate."""

from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ralseg.acquisition.features import KL_BINS
from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import Needs
from ralseg.acquisition.representation import FeatureSet, Prior, Representation
from ralseg.agents.base import LearnedPolicy
from ralseg.errors import ConfigError
from ralseg.runtime.seeding import stream_seed

Norm = Literal["layer", "batch", "none"]
STATE_WIDTHS = (256, 128, 1)
STATE_EMBEDDING = 128
ACTION_WIDTHS = (512, 256, 128)
VALUE_WIDTH = 64


class Layer(nn.Sequential):
    """BN-ReLU-FC, the paper's building block; another normalisation can take BN's place, or none.

    Examples:
        >>> [type(part).__name__ for part in Layer(4, 2, "layer")]
        ['LayerNorm', 'ReLU', 'Linear']
    """

    def __init__(self, width_in: int, width_out: int, norm: Norm = "batch", relu: bool = True) -> None:
        norms: dict[Norm, list[nn.Module]] = {
            "layer": [nn.LayerNorm(width_in)],
            "batch": [nn.BatchNorm1d(width_in)],
            "none": [],
        }
        activation = [nn.ReLU()] if relu else []
        super().__init__(*norms[norm], *activation, nn.Linear(width_in, width_out))


def path(widths: tuple[int, ...], norm: Norm) -> nn.Sequential:
    """Layers from each width to the next.

    Features come in through BN-ReLU like everything else in the paper's network. LayerNorm is for hidden layers: over
    the features of one region it would mix up their units, and ReLU would hide those below their mean.

    Examples:
        >>> [len(layer) for layer in path((8, 4, 2), "batch")], [len(layer) for layer in path((8, 4, 2), "layer")]
        ([3, 3], [1, 3])
    """
    layers = nn.Sequential()
    for number, (width_in, width_out) in enumerate(pairwise(widths)):
        is_plain = number == 0 and norm == "layer"
        layers.append(Layer(width_in, width_out, "none" if is_plain else norm, relu=not is_plain))
    return layers


class TwoPathNetwork(nn.Module):
    """The paper's network: a state path, an action path, and a gate on the divergence histograms.

    With ``dueling`` the score of a region counts only by how far it is above the mean of its pool (the advantage),
    and a head of its own tells how good the state is. A reward that comes whatever is chosen then changes no choice.

    Args:
        num_state_regions: R_S.
        num_state_features: F.
        num_action_features: A.
        action_widths: Widths of the action path; empty makes a linear model of the features.
        use_state: Have the state path.
        use_gate: Multiply the score by a sigmoid of the two divergence histograms.
        norm: What normalises hidden layers: ``layer``, ``batch`` as in the paper, or ``none``.
        dueling: Value of the state plus the advantage within the pool.
        time: The first feature of a sub-action is the share of the budget spent; the value of a state reads it too.

    Examples:
        >>> network = TwoPathNetwork(5, 20, 84, dueling=True).eval()
        >>> network(torch.zeros(1, 5, 20), torch.zeros(3, dtype=torch.int64), torch.zeros(3, 10, 84)).shape
        torch.Size([3, 10])
    """

    def __init__(
        self,
        num_state_regions: int,
        num_state_features: int,
        num_action_features: int,
        action_widths: tuple[int, ...] = ACTION_WIDTHS,
        use_state: bool = True,
        use_gate: bool = True,
        norm: Norm = "batch",
        dueling: bool = False,
        time: bool = False,
    ) -> None:
        super().__init__()
        self.use_state, self.use_gate, self.dueling, self.time = use_state, use_gate, dueling, time
        if use_state:
            self.state_regions = path((num_state_features, *STATE_WIDTHS), norm)
            self.state_set = path((num_state_regions, STATE_EMBEDDING), norm)[0]
        widths = (num_action_features, *action_widths)
        self.action = path(widths, norm)
        embedding = STATE_EMBEDDING if use_state else 0
        self.score = Layer(widths[-1] + embedding, 1, norm, relu=False)
        if use_gate:
            self.gate = path((2 * KL_BINS, 1), norm)[0]
        if dueling:
            self.value = path((embedding + 1, VALUE_WIDTH, 1), norm)

    def forward(self, states: Tensor, which: Tensor, actions: Tensor, real: Tensor | None = None) -> Tensor:
        """Scores of sub-actions.

        Args:
            states: [U, R_S, F], each state once.
            which: [B] the state of each row of ``actions``.
            actions: [B, M, A], M sub-actions in each row; with ``dueling`` a row is a pool.
            real: [B, M] 1, or 0 for what only fills up a row; None: all are real.

        Returns:
            [B, M].
        """
        rows, per_row, width = actions.shape
        flat = actions.reshape(rows * per_row, width)
        hidden, embedding = self.action(flat), actions.new_empty(rows, 0)
        if self.use_state:
            seen = self.state_regions(states.flatten(0, 1)).reshape(states.shape[:2])  # [U, R_S]
            embedding = self.state_set(seen[which])  # [B, 128]
            hidden = torch.cat([hidden, embedding.repeat_interleave(per_row, 0)], 1)
        score: Tensor = self.score(hidden)
        if self.use_gate:
            score = score * self.gate(flat[:, -2 * KL_BINS :]).sigmoid()
        score = score.reshape(rows, per_row)
        if not self.dueling:
            return score
        spent = actions[:, :1, 0] if self.time else actions.new_zeros(rows, 1)  # equal within a step
        value: Tensor = self.value(torch.cat([embedding, spent], 1))  # [B, 1]
        return value + centred(score, real)

    def start_at_zero(self) -> None:
        """Make every score zero; what is learned then grows from there."""
        for head in (self.score, *([self.value] if self.dueling else [])):
            last = [part for part in head.modules() if isinstance(part, nn.Linear)][-1]
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)


def centred(values: Tensor, real: Tensor | None = None) -> Tensor:
    """Values less the mean of their row: [B, M].

    Args:
        values: [B, M].
        real: [B, M] 1, or 0 for what only fills up a row and does not count; None: all count.

    Examples:
        >>> centred(torch.tensor([[1.0, 3.0, 9.0]]), torch.tensor([[1.0, 1.0, 0.0]])).tolist()
        [[-1.0, 1.0, 7.0]]
    """
    real = torch.ones_like(values) if real is None else real
    return values - (values * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)


class QueryNetwork(LearnedPolicy):
    """A policy that scores candidates by a network: Q = prior_weight times a prior + what the network has learned.

    Args:
        features: The paper's ``1H``, ``3H``, ``3H+KL``; or ours for few games, see :class:`Representation`.
        standardise: Z-score the features over each step's candidates ("ours").
        use_state: Have the state path.
        use_gate: Have the gate; needs ``3H+KL``.
        linear: Replace the action path by one linear layer.
        batch_norm: Older spelling, in files of earlier policies: true is ``norm: batch``, false ``norm: none``.
        prior: ``entropy``, ``margin`` or ``bald``: the heuristic that the policy starts from ("ours").
        prior_weight: Weight of the prior's standardised score. 0: none (paper).
        norm: What normalises hidden layers: ``layer`` ("ours"), ``batch`` (paper) or ``none``.
        dueling: Value of the state plus the advantage of a region within its pool ("ours").
        time: Tell the share of the budget spent ("ours").

    Examples:
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
        features: FeatureSet | list[str] = "3H+KL",
        standardise: bool = False,
        use_state: bool = True,
        use_gate: bool = True,
        linear: bool = False,
        batch_norm: bool | None = None,
        prior: Prior = "entropy",
        prior_weight: float = 0.0,
        norm: Norm = "layer",
        dueling: bool = False,
        time: bool = False,
    ) -> None:
        super().__init__()
        if use_gate and features != "3H+KL":
            raise ConfigError(f"agent use_gate needs features '3H+KL', not {features!r}; set use_gate to false")
        if prior != "entropy" and not prior_weight:
            raise ConfigError(f"agent prior {prior!r} has no effect at prior_weight 0; set prior_weight too")
        if batch_norm is not None:
            norm = "batch" if batch_norm else "none"
        kind = tuple(features) if isinstance(features, list) else features
        self.representation = Representation(kind, standardise, prior, time)
        self.use_state, self.use_gate, self.linear = use_state, use_gate, linear
        self.norm: Norm = norm
        self.prior_weight, self.dueling = prior_weight, dueling
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
            "prior": self.representation.prior,
            "prior_weight": self.prior_weight,
            "norm": self.norm,
            "dueling": self.dueling,
            "time": self.representation.time,
        }

    def fits(self) -> dict[str, Any]:
        """The classes, unless no feature depends on them and, with a state path, the number of state regions."""
        if self.use_state:
            return {"class_names": list(self.class_names), "num_state_regions": self.num_state_regions}
        return {} if self.representation.names else {"class_names": list(self.class_names)}

    def build(self, class_names: tuple[str, ...], num_state_regions: int, seed: int) -> None:
        """Make the network, once the number of classes and of state regions is known."""
        self.class_names, self.num_state_regions = tuple(class_names), num_state_regions
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, "query init"))
            self.net = self.make_network()
        if self.prior_weight or self.dueling:
            self.net.start_at_zero()  # the prior alone, or no preference: what is learned corrects it
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
            self.norm,
            self.dueling,
            self.representation.time,
        )

    def values(
        self, network: TwoPathNetwork, states: Tensor, which: Tensor, actions: Tensor, real: Tensor | None = None
    ) -> Tensor:
        """Q of sub-actions, prior included; shapes as in :meth:`TwoPathNetwork.forward`, plus the prior's column."""
        learned: Tensor = network(states, which, actions[..., :-1], real)
        if not self.prior_weight:
            return learned
        prior = centred(actions[..., -1], real) if self.dueling else actions[..., -1]
        return learned + self.prior_weight * prior

    @torch.no_grad()
    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Q of every candidate of a step; the state path runs once: [K, N]."""
        device = next(self.net.parameters()).device
        actions = observation.actions.to(device)
        rows = torch.zeros(len(actions), dtype=torch.int64, device=device)
        return self.values(self.net, observation.state[None].to(device), rows, actions).cpu()
