"""Why regions were chosen: a line for each step of an acquisition, kept beside the table of what was chosen.

A line holds what cannot be computed later, when the segmenter has learned on: what the policy saw of the chosen
regions, where that lay among all candidates, and which classes the segmenter took their pixels for. Its size depends
on the number of regions chosen, and not on the number of candidates or the size of images.
"""

import base64
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ralseg.acquisition.observation import Observation
from ralseg.acquisition.pictures import LARGEST, MEMORY
from ralseg.acquisition.policy import Reasons
from ralseg.errors import DataError
from ralseg.labels.layout import Box
from ralseg.runtime.files import append_durably, write_atomically

FILE = "reasons.jsonl"
ClassMap = NDArray[np.uint8]
"""[height, width] class numbers; 255 for what cannot be told, and outside of a region."""


@dataclass(frozen=True)
class Feature:
    """What a policy looked at: its distribution among the candidates of a step, and its weight in the score."""

    name: str
    spread: tuple[float, ...]  # smallest, quarter, half, three quarters, largest of all candidates
    weight: float | None  # None: the score is no sum of features


@dataclass(frozen=True)
class ChosenRegion:
    """A region that was labelled at a step."""

    region: int
    image: str
    place: str  # row 2, column 5
    box: Box  # in the pixels of the image's file
    score: float
    rank: int  # of its score among all candidates, from 1
    pool_rank: int  # and in its pool
    values: tuple[float, ...]  # of each feature
    below: tuple[float, ...]  # share of the candidates that had less of it
    predicted: ClassMap  # what the segmenter took its pixels for
    labelled: ClassMap  # what the label said, at the same pixels


@dataclass(frozen=True)
class StepReasons:
    """A step of an acquisition. Pools may share no region; ``pool_size`` is that of the largest."""

    step: int  # from 0
    policy: str
    classes: tuple[str, ...]
    spent: float  # share of the budget, before the step
    pools: int
    pool_size: int
    score: tuple[float, ...]  # spread of the scores
    features: tuple[Feature, ...]
    rest: str  # what the score holds beside the features' sum
    regions: tuple[ChosenRegion, ...]


def among_candidates(observation: Observation, scores: Tensor, reasons: Reasons, chosen: list[int]) -> dict[str, Any]:
    """What can be said of chosen regions against the candidates of their step.

    Args:
        observation: What the policy saw.
        scores: [K, N] what it made of that.
        reasons: What the scores follow from.
        chosen: Numbers of regions, all among the candidates.
    """
    numbers, scores = observation.pools.flatten(), scores.float().cpu()
    places = {region: place for place, region in enumerate(numbers.tolist())}
    at = torch.tensor([places[region] for region in chosen])
    columns = torch.cat([scores.flatten()[:, None], reasons.values.flatten(0, 1).float()], 1).T.contiguous()
    ordered, own = columns.sort(1).values, columns[:, at].contiguous()
    lower, upto = (torch.searchsorted(ordered, own, right=right) for right in (False, True))
    below = (lower + upto - 1) / (2 * max(len(numbers) - 1, 1))  # equal values share theirs
    spread = ordered[:, [round(quarter * (len(numbers) - 1) / 4) for quarter in range(5)]]
    in_pool = (scores[at // scores.shape[1]] > own[0][:, None]).sum(1) + 1
    weights = [None] * len(reasons.names) if reasons.weights is None else _short(reasons.weights)
    described = zip(reasons.names, spread[1:], weights, strict=True)
    return {
        "pools": scores.shape[0],
        "pool_size": scores.shape[1],
        "score": _short(spread[0]),
        "features": [{"name": name, "spread": _short(s), "weight": weight} for name, s, weight in described],
        "rest": reasons.rest,
        "regions": [
            {
                "region": region,
                "score": _short(own[:1, i])[0],
                "rank": len(numbers) - int(upto[0, i]) + 1,
                "pool_rank": int(in_pool[i]),
                "values": _short(own[1:, i]),
                "below": [round(share, 4) for share in below[1:, i].tolist()],
            }
            for i, region in enumerate(chosen)
        ],
    }


def _short(values: Tensor) -> list[float]:
    """Numbers as they are written: six digits."""
    return [float(f"{value:.6g}") for value in values.tolist()]


def packed(maps: Tensor) -> dict[str, Any]:
    """Maps of classes of uint8, as they are written.

    Examples:
        >>> unpacked(packed(torch.tensor([[1, 2], [255, 0]], dtype=torch.uint8))).tolist()
        [[1, 2], [255, 0]]
    """
    content = zlib.compress(maps.contiguous().cpu().numpy().tobytes(), level=1)
    return {"size": list(maps.shape), "zlib": base64.b64encode(content).decode()}


def unpacked(entry: dict[str, Any]) -> ClassMap:
    """Maps as they were packed; no more memory is taken than their size says."""
    size = [int(side) for side in entry["size"]]
    if min(size) < 1 or max(size[-2:]) > LARGEST or math.prod(size) > MEMORY:
        raise ValueError(f"maps of {size}")
    content = zlib.decompressobj().decompress(base64.b64decode(entry["zlib"], validate=True), math.prod(size))
    return np.frombuffer(content, np.uint8).reshape(size)


class ReasonsFile:
    """The lines of a run, step after step; a run that was cut off writes on where its checkpoint stands.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_begun = False

    def write(self, entry: dict[str, Any]) -> None:
        """Write the line of a step; lines of this step or later ones are of a run that was cut off, and go."""
        line = json.dumps(entry, separators=(",", ":")) + "\n"
        if self._is_begun:
            append_durably(self.path, line.encode())
            return
        earlier = [kept for kept, known in _lines(self.path) if known["step"] < entry["step"]]
        write_atomically(self.path, "".join([*earlier, line]))
        self._is_begun = True


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The whole lines of a file; what a killed process has left of a line at its end is none."""
    if not path.is_file():
        return
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            return
        try:
            text = line.decode()
            entry = json.loads(text)
            int(entry["step"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(f"{path}: line {number} is damaged; delete the file, the run goes on without it") from error
        yield text, entry


def read_reasons(path: Path) -> list[StepReasons]:
    """The steps of a run, in their order."""
    steps = []
    for number, (_, entry) in enumerate(_lines(path), start=1):
        try:
            steps.append(_step(entry))
        except (ValueError, TypeError, KeyError, AttributeError, zlib.error, OverflowError) as error:
            raise DataError(f"{path}: line {number} is none that ralseg has written ({error})") from error
    return steps


def _step(entry: dict[str, Any]) -> StepReasons:
    features = tuple(
        Feature(str(f["name"]), _numbers(f["spread"], 5), None if f["weight"] is None else float(f["weight"]))
        for f in entry["features"]
    )
    maps, regions = unpacked(entry["maps"]), entry["regions"]
    if maps.shape[:2] != (len(regions), 2):
        raise ValueError(f"{len(maps)} maps of {len(regions)} regions")
    return StepReasons(
        int(entry["step"]),
        str(entry["policy"]),
        tuple(map(str, entry["classes"])),
        float(entry["spent"]),
        int(entry["pools"]),
        int(entry["pool_size"]),
        _numbers(entry["score"], 5),
        features,
        str(entry["rest"]),
        tuple(_region(region, len(features), *both) for region, both in zip(regions, maps, strict=True)),
    )


def _region(entry: dict[str, Any], features: int, predicted: ClassMap, labelled: ClassMap) -> ChosenRegion:
    x, y, width, height = map(int, entry["box"])
    if min(x, y) < 0 or min(width, height) < 1:
        raise ValueError(f"region {entry['region']}")
    return ChosenRegion(
        int(entry["region"]),
        str(entry["image"]),
        str(entry["place"]),
        (x, y, width, height),
        float(entry["score"]),
        int(entry["rank"]),
        int(entry["pool_rank"]),
        _numbers(entry["values"], features),
        _numbers(entry["below"], features),
        predicted,
        labelled,
    )


def _numbers(values: Any, count: int) -> tuple[float, ...]:
    found = tuple(map(float, values))
    if len(found) != count:
        raise ValueError(f"{len(found)} numbers in place of {count}")
    return found
