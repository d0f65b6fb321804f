"""Acquisition functions that learn nothing: the paper's three, and the field's usual others."""

import torch
from torch import Tensor

from ralseg.acquisition.features import rarity, standardised
from ralseg.acquisition.observation import Observation
from ralseg.acquisition.policy import Needs, Policy


class Uniform(Policy):
    """U: every region is as good as any other."""

    needs = Needs(looks=False)

    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Random scores."""
        return torch.rand(observation.pools.shape, generator=generator)


class Entropy(Policy):
    """H: the largest mean entropy of the pixels' predictions."""

    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Mean entropy of each region."""
        return observation.entropy


class Bald(Policy):
    """B: the largest mean mutual information between prediction and dropout (Gal et al. 2017)."""

    needs = Needs(measures=("bald",))

    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Mean BALD of each region."""
        return observation.measures["bald"]


class PowerBald(Bald):
    """BALD by sampling in proportion to a power of it instead of taking the best (Kirsch et al. 2023).

    Args:
        power: 0 samples uniformly; the larger, the greedier.
    """

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Logarithms plus Gumbel noise: their order is a sample without replacement."""
        noise = -torch.empty(observation.pools.shape).exponential_(generator=generator).log()
        return self.power * super().scores(observation, generator).clamp(min=1e-12).log() + noise


class Margin(Policy):
    """The smallest mean gap between the two most probable classes."""

    needs = Needs(measures=("margin",))

    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Negative mean margin of each region."""
        return -observation.measures["margin"]


class LeastConfidence(Policy):
    """The smallest mean probability of the predicted class."""

    needs = Needs(measures=("confidence",))

    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Negative mean confidence of each region."""
        return -observation.measures["confidence"]


class ClassBalancedEntropy(Policy):
    """Entropy in which a pixel counts by how rare its predicted class is among the labels so far."""

    needs = Needs(measures=("class_entropy",))

    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Mean entropy of each region, weighed by 1/sqrt of the class's labelled share (at least 1 %)."""
        by_class = observation.measures["class_entropy"]  # [K, N, C]
        labelled = observation.labelled
        if not len(labelled):
            return by_class.sum(-1)
        share = labelled.mean(0)
        return by_class @ share.clamp(min=0.01).rsqrt().to(by_class)


class RareBald(Policy):
    """Rare and not known yet: the network's guess of what labels are short of, plus BALD ("ours").

    What a ``RarityForecast`` with ``prior: bald`` comes to where nothing is learned.
    """

    needs = Needs(measures=("probability", "bald"))

    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """Sum of both, in deviations within the step."""
        guess = rarity(observation.measures["probability"].flatten(0, 1), observation.labelled)
        unsure = self.uncertainty(observation).flatten()
        return standardised(torch.stack([guess, unsure], 1)).sum(1).reshape(observation.pools.shape)

    def uncertainty(self, observation: Observation) -> Tensor:
        """Mean BALD of each region."""
        return observation.measures["bald"]


class Coreset(Policy):
    """k-center greedy: the region farthest from all labelled and just chosen ones (Sener and Savarese 2018).

    Regions are points in the space of the decoder's last map, averaged over the region. The choices of a
    step depend on each other, so they are made here, pool after pool, and scored highest.
    """

    needs = Needs(measures=("embedding",), labelled_measures=("embedding",))

    def scores(self, observation: Observation, generator: torch.Generator) -> Tensor:
        """At least 1 for what k-center greedy chooses, the earlier the more; else 0 to 1 by distance."""
        points = observation.measures["embedding"]  # [K, N, D]
        centres = observation.labelled_measures.get("embedding", points.new_empty(0, points.shape[-1]))
        distance = self._nearest(points, centres)
        chosen = torch.zeros(observation.pools.shape)
        for pool in range(len(points)):
            for rank in range(observation.picks):
                farthest = distance[pool].masked_fill(chosen[pool] > 0, -1).argmax()
                chosen[pool, farthest] = observation.picks - rank
                distance = torch.minimum(distance, self._nearest(points, points[pool, farthest][None]))
        return torch.where(chosen > 0, chosen, distance / (1 + distance))

    @staticmethod
    def _nearest(points: Tensor, centres: Tensor) -> Tensor:
        """Distance of [K, N, D] to the nearest of [M, D]: [K, N]; without centres all are infinitely far."""
        if not len(centres):
            return torch.full(points.shape[:-1], torch.inf)
        parts = [torch.cdist(part, centres).amin(1) for part in points.flatten(0, 1).split(4096)]
        return torch.cat(parts).reshape(points.shape[:-1])


HEURISTICS: dict[str, type[Policy]] = {
    "uniform": Uniform,
    "entropy": Entropy,
    "bald": Bald,
    "margin": Margin,
    "least_confidence": LeastConfidence,
    "coreset": Coreset,
    "power_bald": PowerBald,
    "class_balanced_entropy": ClassBalancedEntropy,
    "rare_bald": RareBald,
}
