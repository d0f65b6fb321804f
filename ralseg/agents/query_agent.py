"""Agents that train a query network on replayed steps: what all of them share."""

import math
from abc import abstractmethod
from typing import Any

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.nn import functional

from ralseg.agents.base import Agent
from ralseg.agents.query_network import QueryNetwork
from ralseg.agents.replay import Minibatch, ReplayBuffer, StepMemory, collate
from ralseg.errors import NotFiniteError
from ralseg.runtime import distributed
from ralseg.runtime.seeding import stream

SHARED_EVERY = 5
"""Updates after which processes of one run share their weights: rounding may differ between devices."""


class QueryAgent(Agent):
    """Regresses Q on targets that subclasses define, from a replay of steps.

    Args:
        policy: The query network.
        epsilon: Share of random sub-actions: at first, in the end, and the training steps in which the excess over
            the end falls to 1/e.
        batch_size: Transitions in an update.
        updates_per_step: Updates for each step that enters the replay.
        replay_size: Transitions kept.
        gradient_clip: Largest norm of the gradient; 0 for none.
        shrinkage: Strength of an L2 penalty on the weights, divided by the number of steps in the replay.
        optimizer: Made for the network's parameters.
    """

    policy: QueryNetwork

    def __init__(
        self,
        policy: QueryNetwork,
        epsilon: tuple[float, float, float],
        batch_size: int,
        updates_per_step: int,
        replay_size: int,
        gradient_clip: float,
        shrinkage: float,
        optimizer: OptimizerCallable,
    ) -> None:
        super().__init__()
        self.policy = policy
        self._epsilon = epsilon
        self.batch_size, self.updates_per_step, self.replay_size = batch_size, updates_per_step, replay_size
        self.gradient_clip, self.shrinkage = gradient_clip, shrinkage
        self._optimizer = optimizer
        self.replay = ReplayBuffer(replay_size)
        self.waiting: list[StepMemory] = []  # remembered, but not learned from yet
        self.updates = 0
        self.loss: float | None = None
        self.seed = 0

    def build(self, class_names: tuple[str, ...], num_state_regions: int, steps_per_episode: int, seed: int) -> None:
        """Make the network, and forget what another game has left."""
        super().build(class_names, num_state_regions, steps_per_episode, seed)
        self.replay, self.waiting = ReplayBuffer(self.replay_size), []
        self.updates, self.loss, self.seed = 0, None, seed

    def train(self, mode: bool = True) -> "QueryAgent":
        """Networks stay in evaluation mode except within an update."""
        super().train(False)
        return self

    def epsilon(self, training_steps: int) -> float:
        """Share of random sub-actions after so many training steps."""
        start, end, decay = self._epsilon
        return end + (start - end) * math.exp(-training_steps / decay)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Optimizer of the query network."""
        return self._optimizer(self.policy.net.parameters())

    # -- learning ---------------------------------------------------------------------------------

    def learn(self, optimizer: torch.optim.Optimizer) -> None:
        """Enter the waiting steps into the replay, with updates after each."""
        for memory in self.waiting:
            self.replay.add(memory)
            for _ in range(self.updates_per_step):
                if len(self.replay) >= self.batch_size:
                    self.update(optimizer)
        self.waiting = []

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """One gradient step of the query network."""
        batch = self.draw(stream(self.seed, "replay", self.updates))
        optimizer.zero_grad()
        loss = self.batch_loss(batch)
        loss.backward()  # not Lightning's, which would make processes wait for the segmenter's gradients
        if self.gradient_clip:
            torch.nn.utils.clip_grad_norm_(self.policy.net.parameters(), self.gradient_clip)
        optimizer.step()
        self.loss = float(loss.detach())
        if not math.isfinite(self.loss):
            message = f"the query network's loss is not finite after {self.updates} updates"
            raise NotFiniteError(message, {"updates": self.updates, "query_loss": self.loss})
        self.updates += 1
        if self.updates % SHARED_EVERY == 0:
            distributed.share(self.policy.net.state_dict().values())

    @abstractmethod
    def draw(self, generator: torch.Generator) -> Minibatch:
        """Draw what the next update learns from."""

    def draw_transitions(self, generator: torch.Generator) -> Minibatch:
        """Draw single sub-actions, each with its own target; where pools are kept, each comes with its pool."""
        drawn = self.replay.sample(self.batch_size, generator)
        experience = len(self.replay.steps)
        pools = [step.pools[k] for step, k in drawn if step.pools is not None]
        if len(pools) < len(drawn):
            return collate([(step, step.chosen[k : k + 1], k) for step, k in drawn], experience, self.device)
        rows = [(step, pool, k) for (step, k), pool in zip(drawn, pools, strict=True)]
        picked = [int(step.picked[k]) for step, k in drawn if step.picked is not None]
        return collate(rows, experience, self.device, picked)

    def target_values(self, batch: Minibatch) -> Tensor:
        """The value that each row of sub-actions should have: [B]."""
        return batch.value

    def predicted_values(self, batch: Minibatch) -> Tensor:
        """The value that the network gives to each sub-action: [B, M]."""
        return self.policy.values(self.policy.net, batch.states, batch.which, batch.actions, batch.real)

    def error(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Distance of predictions [B] from their targets [B]."""
        return functional.mse_loss(predicted, target)

    def batch_loss(self, batch: Minibatch) -> Tensor:
        """Error of the query network on a minibatch; targets come from networks in evaluation mode."""
        target = self.target_values(batch)
        self.policy.net.train()
        values = self.predicted_values(batch)
        predicted = (values * batch.counts).sum(1) / batch.counts.sum(1)
        self.policy.net.eval()
        loss = self.error(predicted, target)
        if self.shrinkage:
            weights = sum(p.square().sum() for p in self.policy.net.parameters())
            loss = loss + self.shrinkage / batch.experience * weights
        return loss

    # -- what is told and kept --------------------------------------------------------------------

    def metrics(self) -> dict[str, float]:
        """The loss of the last update."""
        return {} if self.loss is None else {"query/loss": self.loss}

    def context(self) -> dict[str, Any]:
        """Updates so far, and the last loss."""
        return {"updates": self.updates, "query_loss": self.loss}

    def rules(self) -> dict[str, Any]:
        """The agent, its block, and the policy's options."""
        return super().rules() | {"policy": self.policy.init_args()}

    def memory(self) -> dict[str, Any]:
        """Replay and counters."""
        return {"replay": self.replay.state_dict(), "updates": self.updates, "loss": self.loss}

    def load_memory(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`memory` left off."""
        self.replay.load_state_dict(state["replay"])
        self.updates, self.loss = state["updates"], state["loss"]
