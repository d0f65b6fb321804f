"""Six things of one's own, in a file outside of ralseg: tests/test_plugins.py runs them through the commands."""

import numpy as np
import torch
from torch import nn

import ralseg


@ralseg.measure
def greenness(seen):
    """Mean of the second class's probability over each region: [r]."""
    return seen.mean(seen.logits.softmax(1)[:, 1])


class Greenest(ralseg.Policy):
    """An acquisition function with a measure of its own."""

    needs = ralseg.Needs(measures=("greenness",))

    def __init__(self, sign: float = 1.0) -> None:
        self.sign = sign

    def scores(self, observation, generator):
        return self.sign * observation.measures["greenness"]


class Diagonal(ralseg.Layout):
    """A region layout: two interlocking triangles, and a stripe whose width follows the image."""

    def segment(self, pixels):
        height, width = pixels.shape[1:]
        rows, columns = torch.arange(height)[:, None], torch.arange(width)[None]
        segments = (rows * width > columns * height).long()
        stripe = 8 + 8 * int(pixels.float().mean() > 110)
        segments[:stripe] = 2
        return segments


class Pixels(ralseg.Segmenter):
    """A segmenter: an nn.Module that sees a few pixels around each one."""

    def __init__(self, class_names: tuple[str, ...], width: int = 8, **options) -> None:
        super().__init__(class_names, **options)
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 5, padding=2), nn.ReLU(), nn.Dropout2d(0.3), nn.Conv2d(width, len(class_names), 1)
        )

    def forward(self, image):
        return self.net(image / 255)


class Weighted(ralseg.LearnedPolicy):
    """The policy of the agent below: a weighted sum of measures."""

    needs = ralseg.Needs(measures=("margin", "confidence"))

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.start = start
        self.weights = nn.Parameter(torch.full((2,), start))

    def init_args(self):
        return {"start": self.start}

    def build(self, class_names, num_state_regions, seed):
        nn.init.normal_(self.weights, generator=torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def scores(self, observation, generator):
        return torch.stack([observation.measures[name] for name in self.needs.measures], -1) @ self.weights


class HillClimber(ralseg.Agent):
    """An agent: it moves the weights up where a step's gain was positive, and back where it was not."""

    def __init__(self, rate: float = 0.1) -> None:
        super().__init__()
        self.policy, self.rate, self.gains = Weighted(), rate, []

    def remember(self, step, following):
        self.gains.append(step.gain)

    def configure_optimizers(self):
        return torch.optim.SGD(self.policy.parameters(), lr=self.rate)

    def learn(self, optimizer):
        optimizer.zero_grad()
        (-self.gains[-1] * self.policy.weights.sum()).backward()
        optimizer.step()

    def memory(self):
        return {"gains": list(self.gains)}

    def load_memory(self, state):
        self.gains = state["gains"]


class Service(ralseg.Oracle):
    """An annotation tool: it answers at most so many regions a step, all of one class."""

    def __init__(self, at_most: int = 3) -> None:
        self.at_most = at_most

    def label(self, regions):
        labels = torch.full((len(regions), *self.job.regions.box_size), 255, dtype=torch.uint8)
        for label, region in zip(labels, regions.tolist(), strict=True):
            inside = self.job.regions.inside(region)
            label[: inside.shape[0], : inside.shape[1]][inside] = region % 2
        return labels

    def ask(self, regions, step):
        answered = regions[: self.at_most]
        return ralseg.Answer(answered, self.label(answered))


class Noise(ralseg.SegmentationDataset):
    """A data set: images drawn from their number."""

    class_names, colours = ("dark", "light"), ((0, 0, 0), (255, 255, 255))

    def __init__(self, count: int = 8) -> None:
        self.names = [f"noise {i}" for i in range(count)]
        self.subsets = ["train"] * (count - 4) + ["val"] * 2 + ["test"] * 2

    def image_size(self, index):
        return 32, 48

    def read_mask(self, index):
        return np.random.default_rng(index).integers(0, 2, (32, 48), np.uint8)

    def read_image(self, index):
        noise = np.random.default_rng(index).integers(0, 120, (32, 48, 3), np.uint8)
        return noise + 100 * self.read_mask(index)[..., None]
