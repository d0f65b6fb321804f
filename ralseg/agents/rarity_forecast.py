"""Rarity forecast: supervised learning of how much a region holds of the classes that labels are short of."""

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from ralseg.acquisition.features import standardised
from ralseg.acquisition.observation import Observation
from ralseg.acquisition.representation import FeatureSet, Prior
from ralseg.agents.base import PlayedStep
from ralseg.agents.query_agent import QueryAgent
from ralseg.agents.query_network import QueryNetwork
from ralseg.agents.replay import Minibatch, StepMemory


class RarityForecast(QueryAgent):
    """Forecasts each candidate's rarity, which the train set's labels tell, and adds an uncertainty ("ours").

    Rewards are measured but not learned from: every candidate of a step, chosen or not, has a target of its own
    (``features.rarity``, in deviations within the step). The network is linear.

    Args:
        features: See ``Representation``.
        standardise: Z-score the features over each step's candidates.
        prior: ``entropy``, ``margin`` or ``bald``: the uncertainty that is added to the forecast.
        prior_weight: Weight of its standardised score. 0: none.
        epsilon_start: Share of random sub-actions at first.
        epsilon_end: Share of random sub-actions in the end.
        epsilon_decay: Training steps in which the excess over ``epsilon_end`` falls to 1/e.
        batch_size: Candidates in an update.
        updates_per_step: Updates for each step that enters the replay.
        replay_size: Candidates kept.
        gradient_clip: Largest norm of the gradient; 0 for none.
        shrinkage: Pull of the weights towards 0, worth so many steps of experience. 0: none.
        optimizer: Made for the network's parameters.

    Examples:
        >>> RarityForecast(prior="entropy").teacher
        'true_rarity'
    """

    teacher = "true_rarity"

    def __init__(
        self,
        features: FeatureSet = "summary+classes",
        standardise: bool = True,
        prior: Prior = "bald",
        prior_weight: float = 0.7,
        epsilon_start: float = 0.3,
        epsilon_end: float = 0.1,
        epsilon_decay: float = 200.0,
        batch_size: int = 1536,
        updates_per_step: int = 4,
        replay_size: int = 1_000_000,
        gradient_clip: float = 10.0,
        shrinkage: float = 1.0,
        optimizer: OptimizerCallable = lambda parameters: torch.optim.Adam(parameters, lr=3e-3, weight_decay=1e-3),
    ) -> None:
        super().__init__(
            QueryNetwork(features, standardise, False, False, True, False, prior, prior_weight),
            (epsilon_start, epsilon_end, epsilon_decay),
            batch_size,
            updates_per_step,
            replay_size,
            gradient_clip,
            shrinkage,
            optimizer,
        )

    def remember(self, step: PlayedStep, following: Observation | None) -> None:
        """Keep all candidates of the step with what the teacher said of them."""
        assert step.lesson is not None
        worth = standardised(step.lesson.flatten()[:, None])[:, 0]
        self.waiting.append(StepMemory(step.state, step.actions.flatten(0, 1), worth, 0.0))

    def draw(self, generator: torch.Generator) -> Minibatch:
        """Draw single candidates."""
        return self.draw_transitions(generator)

    def predicted_values(self, batch: Minibatch) -> Tensor:
        """The forecast alone: the prior is added where the policy chooses."""
        forecast: Tensor = self.policy.net(batch.states, batch.which, batch.actions[..., :-1])
        return forecast
