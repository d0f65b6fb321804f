"""The query network: Q(s, a) of every candidate, its target copy, and how it learns."""

from itertools import pairwise
from typing import Any, Literal, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.nn import functional

from ralseg.errors import ConfigError
from ralseg.features import KL_BINS
from ralseg.randomness import stream_seed
from ralseg.replay import ReplayBuffer, StepMemory
from ralseg.representation import FeatureSet, Observation, Prior, Representation

Credit = Literal["region", "step", "influence", "rarity"]
TAUGHT: tuple[Credit, ...] = ("influence", "rarity")
"""Credits that are told of every candidate, from the train set's labels."""
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


class Minibatch(NamedTuple):
    """Transitions ready for the network; B rows of M sub-actions that share a target."""

    states: Tensor  # [U, R_S, F]
    which: Tensor  # [B]
    actions: Tensor  # [B, M, A + 1]
    counts: Tensor  # [B, M] 1, or 0 for what only fills up a row
    value: Tensor  # [B]
    discount: Tensor  # [B]
    goes_on: Tensor  # [B] bool: whether anything follows
    next_states: Tensor  # [V, R_S, F]
    next_which: Tensor  # [b] the rows that go on
    next_actions: Tensor  # [b, N, A + 1]
    experience: Tensor  # [] number of steps in the replay


class QueryNetwork(pl.LightningModule):
    """Scores regions by what labelling them is worth, and learns that from replayed games.

    Args:
        features: The paper's ``1H``, ``3H``, ``3H+KL``; or ours for few games, see :class:`Representation`.
        standardise: Z-score the features over each step's candidates ("ours").
        use_state: Have the state path.
        use_gate: Have the gate; needs ``3H+KL``.
        linear: Replace the action path by one linear layer.
        batch_norm: Normalise inside the network, as the paper does.
        prior: ``entropy``, ``margin`` or ``bald``: the baseline that the policy starts from ("ours").
        prior_weight: Q = this times the prior's standardised score + what is learned. 0: none (paper). Where rewards
            teach, what is learned corrects the prior; where candidates' worth is told, it is added to their forecast.
        returns: ``one_step``, ``n_step`` (sum of ``n_steps`` rewards) or ``monte_carlo`` (all of them).
        n_steps: Rewards in an n-step return.
        bootstrap: Add the discounted value of where the return ends (paper). Not with ``monte_carlo``.
        double_dqn: ``standard``: the query network chooses, the target evaluates; ``paper``: the other way round.
        credit: ``region``: each sub-action's Q is to equal the return (paper). ``step``: their mean is. ``influence``:
            the Q of every candidate, chosen or not, is to equal what its labels are worth for the reward set to first
            order, in deviations within the step ("ours"; see ``influence.py``). ``rarity``: the same with how much it
            holds of the classes that labels are short of ("ours"; see ``features.rarity``). Rewards are then only
            reported.
        loss: Squared (paper) or Huber error.
        gamma: Discount.
        batch_size: Transitions in an update (paper's code: 16).
        updates_per_step: Updates for each step that enters the replay.
        target_every: Updates between copies to the target network.
        replay_size: Transitions kept (paper: 600 on CamVid, 3200 on Cityscapes).
        gradient_clip: Largest norm of the gradient; 0 for none.
        shrinkage: Pull of the weights towards 0 (towards the prior alone), worth so many steps of experience:
            it fades as the replay fills ("ours"; a Gaussian prior on the weights). 0: none.
        optimizer: Paper: SGD at the segmenter's learning rate, weight decay 1e-3.
    """

    net: TwoPathNetwork
    target: TwoPathNetwork

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
        returns: Literal["one_step", "n_step", "monte_carlo"] = "one_step",
        n_steps: int = 4,
        bootstrap: bool = True,
        double_dqn: Literal["standard", "paper"] = "standard",
        credit: Credit = "region",
        loss: Literal["squared", "huber"] = "squared",
        gamma: float = 0.999,
        batch_size: int = 16,
        updates_per_step: int = 1,
        target_every: int = 5,
        replay_size: int = 600,
        gradient_clip: float = 10.0,
        shrinkage: float = 0.0,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.SGD(
            parameters, lr=1e-3, momentum=0.95, weight_decay=1e-3
        ),
    ) -> None:
        super().__init__()
        if use_gate and features != "3H+KL":
            raise ConfigError(f"model.query use_gate needs features '3H+KL', not {features!r}; set use_gate to false")
        if credit != "region" and bootstrap:
            raise ConfigError(f"model.query credit {credit!r} needs bootstrap: false")
        if returns == "monte_carlo" and bootstrap:
            raise ConfigError(
                "model.query returns 'monte_carlo' needs bootstrap: false: nothing follows the last reward"
            )
        if prior != "entropy" and not prior_weight:
            raise ConfigError(f"model.query prior {prior!r} has no effect at prior_weight 0; set prior_weight too")
        self.representation = Representation(features, standardise, prior)
        self.use_state, self.use_gate, self.linear, self.batch_norm = use_state, use_gate, linear, batch_norm
        self.prior_weight = prior_weight
        self.returns, self.n_steps, self.bootstrap = returns, n_steps, bootstrap
        self.double_dqn, self.credit, self.loss, self.gamma = double_dqn, credit, loss, gamma
        self.batch_size, self.updates_per_step, self.target_every = batch_size, updates_per_step, target_every
        self.replay_size, self.gradient_clip, self.shrinkage = replay_size, gradient_clip, shrinkage
        self._optimizer = optimizer

    def build(self, class_names: tuple[str, ...], num_state_regions: int, seed: int) -> None:
        """Make the two networks, once the number of classes and of state regions is known."""
        self.class_names, self.num_state_regions = class_names, num_state_regions
        num_classes = len(class_names)

        def network() -> TwoPathNetwork:
            return TwoPathNetwork(
                num_state_regions,
                self.representation.num_state_features(num_classes),
                self.representation.num_action_features(num_classes),
                () if self.linear else ACTION_WIDTHS,
                self.use_state,
                self.use_gate,
                self.batch_norm,
            )

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, "query init"))
            self.net, self.target = network(), network()
        if self.prior_weight:
            # start as the prior alone: the learned part only has to correct it
            last = self.net.score[-1]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
        self.copy_to_target()
        self.target.requires_grad_(False)
        self.eval()

    def description(self) -> dict[str, Any]:
        """What a user of the policy must match, in plain values; goes into checkpoints."""
        return {
            "features": self.representation.kind,
            "standardise": self.representation.standardise,
            "use_state": self.use_state,
            "use_gate": self.use_gate,
            "linear": self.linear,
            "batch_norm": self.batch_norm,
            "prior": self.representation.prior,
            "prior_weight": self.prior_weight,
            "class_names": list(self.class_names),
            "num_state_regions": self.num_state_regions,
        }

    def copy_to_target(self) -> None:
        """Make the target network equal to the query network, statistics included."""
        self.target.load_state_dict(self.net.state_dict())
        self.target.eval()

    def train(self, mode: bool = True) -> "QueryNetwork":
        """Both networks stay in evaluation mode except within an update."""
        super().train(False)
        return self

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Optimizer of the query network alone."""
        return self._optimizer(self.net.parameters())

    # -- playing ---------------------------------------------------------------------------------

    def values(self, network: TwoPathNetwork, states: Tensor, which: Tensor, actions: Tensor) -> Tensor:
        """Q of sub-actions, prior included; shapes as in :meth:`TwoPathNetwork.forward`, plus the prior's column."""
        learned: Tensor = network(states, which, actions[..., :-1])
        return learned + self.prior_weight * actions[..., -1]

    @torch.no_grad()
    def forward(self, observation: Observation) -> Tensor:
        """Q of every candidate of a step; the state path runs once: [K, N]."""
        actions = observation.actions.to(self.device)
        rows = torch.zeros(1, dtype=torch.int64, device=self.device)
        states = observation.state[None].to(self.device)
        return self.values(self.net, states, rows, actions.flatten(0, 1)[None]).reshape(actions.shape[:2])

    # -- learning --------------------------------------------------------------------------------

    def td_target(self, batch: Minibatch) -> Tensor:
        """The value that each row of sub-actions should have: [B]."""
        target = batch.value.clone()
        if not len(batch.next_which):
            return target
        with torch.no_grad():
            chooser, judge = (self.net, self.target) if self.double_dqn == "standard" else (self.target, self.net)
            best = self.values(chooser, batch.next_states, batch.next_which, batch.next_actions).argmax(1)
            worth = self.values(judge, batch.next_states, batch.next_which, batch.next_actions)
        target[batch.goes_on] += batch.discount[batch.goes_on] * worth.gather(1, best[:, None])[:, 0]
        return target

    def batch_loss(self, batch: Minibatch) -> Tensor:
        """Error of the query network on a minibatch; targets come from networks in evaluation mode."""
        target = self.td_target(batch)
        self.net.train()
        if self.credit in TAUGHT:
            values = self.net(batch.states, batch.which, batch.actions[..., :-1])
        else:
            values = self.values(self.net, batch.states, batch.which, batch.actions)
        predicted = (values * batch.counts).sum(1) / batch.counts.sum(1)
        self.net.eval()
        error = functional.smooth_l1_loss if self.loss == "huber" else functional.mse_loss
        loss = error(predicted, target)
        if self.shrinkage:
            loss = loss + self.shrinkage / batch.experience * sum(p.square().sum() for p in self.net.parameters())
        return loss

    def draw_minibatch(self, replay: ReplayBuffer, generator: torch.Generator) -> Minibatch:
        """Sample transitions (``credit: region``) or whole steps (``credit: step``)."""
        if self.credit != "step":
            drawn = replay.sample(self.batch_size, generator)
            rows = [(step, step.chosen[k : k + 1], k) for step, k in drawn]
        else:
            per_step = max(len(replay) // max(len(replay.steps), 1), 1)
            steps = replay.sample_steps(max(self.batch_size // per_step, 2), generator)
            rows = [(step, step.chosen, 0) for step in steps]
        return self._collate(rows, len(replay.steps))

    def _collate(self, rows: list[tuple[StepMemory, Tensor, int]], experience: int) -> Minibatch:
        device = self.device
        states, which = _each_once([step.state for step, *_ in rows])
        going_on = [(step, k) for step, _, k in rows if step.next_actions is not None]
        next_states, next_which = _each_once([s.next_state for s, _ in going_on if s.next_state is not None])
        pools = [s.next_actions[k % len(s.next_actions)] for s, k in going_on if s.next_actions is not None]
        goes_on = torch.tensor([step.next_actions is not None for step, *_ in rows])
        most = max(len(actions) for _, actions, _ in rows)
        counts = torch.stack([(torch.arange(most) < len(actions)).float() for _, actions, _ in rows])
        batch = Minibatch(
            states,
            which,
            _stack_pools([actions for _, actions, _ in rows]),
            counts,
            torch.tensor([step.value_of(k) for step, _, k in rows]),
            torch.tensor([step.discount for step, *_ in rows]),
            goes_on,
            next_states,
            next_which,
            _stack_pools(pools),
            torch.tensor(float(experience)),
        )
        return Minibatch(*(tensor.to(device) for tensor in batch))


def _each_once(tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Stack the different ones among ``tensors`` and say which is whose: [U, ...], [len(tensors)]."""
    position: dict[int, int] = {}
    unique: list[Tensor] = []
    which = []
    for tensor in tensors:
        if id(tensor) not in position:
            position[id(tensor)] = len(unique)
            unique.append(tensor)
        which.append(position[id(tensor)])
    return (torch.stack(unique) if unique else torch.empty(0)), torch.tensor(which, dtype=torch.int64)


def _stack_pools(pools: list[Tensor]) -> Tensor:
    """Stack pools of different size; a small one repeats its first region, which changes no maximum."""
    if not pools:
        return torch.empty(0)
    size = max(map(len, pools))
    return torch.stack([torch.cat([pool, pool[:1].expand(size - len(pool), -1)]) for pool in pools])
