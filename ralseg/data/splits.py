"""The five sets of the game as lists of image names: disjoint, seeded, kept in a JSON file."""

import json
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from ralseg.data.base import SegmentationDataset
from ralseg.data.class_stats import choose_representative, class_counts, class_distance
from ralseg.errors import ConfigError, DataError
from ralseg.runtime.files import write_atomically

FORMAT = "ralseg.splits/1"
SETS = ("state_set", "train_set", "reward_set", "acquisition_set", "test_set")


@dataclass(frozen=True)
class SplitSizes:
    """How many images each set gets. The sets of one subset are drawn from it without overlap.

    Args:
        state: Images of D_S, chosen so that their classes are distributed like D_T's.
        train: Images of D_T, on which the policy plays. D_S and D_T come from the subset ``train``.
        reward: Images of D_R. None: the whole subset ``val`` if there is one.
        acquisition: Images of D_V. None: what is left of the subset ``train``.
        test: Images of the test set. None: the whole subset ``test`` or, where the reward set was
            taken from ``train`` (Cityscapes, whose test labels are withheld), the subset ``val``.
        reward_from_train: Take the reward set from ``train`` instead of ``val``, as on Cityscapes.
        seed: Seed of the draw.

    Example:
        >>> SplitSizes(state=2, train=20).acquisition is None  # all that is left
        True
    """

    state: int = 10
    train: int = 100
    reward: int | None = None
    acquisition: int | None = None
    test: int | None = None
    reward_from_train: bool = False
    seed: int = 0

    def check(self) -> None:
        """Refuse sizes that are negative or missing."""
        for key in ("state", "train", "reward", "acquisition", "test"):
            size = getattr(self, key)
            may_be_left_out = key in ("reward", "acquisition", "test")
            if not (size is None and may_be_left_out) and (size is None or size < 0):
                raise ConfigError(f"data.splits.{key}={size} must be a number of images, 0 or more")


@dataclass(frozen=True)
class Splits:
    """Indices into a data set, one list a set of the game; no image stands in two of them."""

    state_set: list[int]
    train_set: list[int]
    reward_set: list[int]
    acquisition_set: list[int]
    test_set: list[int]

    def __post_init__(self) -> None:
        owner: dict[int, str] = {}
        for name in SETS:
            for index in getattr(self, name):
                if index in owner:
                    raise DataError(f"image {index} stands in {owner[index]} and in {name}; sets must be disjoint")
                owner[index] = name

    def __getitem__(self, name: str) -> list[int]:
        """The indices of a set by its name."""
        if name not in SETS:
            raise ConfigError(f"there is no set {name!r}; the sets are {', '.join(SETS)}")
        return list(getattr(self, name))


def draw_splits(dataset: SegmentationDataset, sizes: SplitSizes) -> Splits:
    """Draw the five sets. Only D_S's and D_T's labels are read (to make D_S like D_T)."""
    rng = np.random.default_rng(sizes.seed)
    sizes.check()
    free = {subset: _shuffled(dataset, subset, rng) for subset in ("train", "val", "test")}
    # images without a mask can be nothing but acquired
    unlabelled = [i for i in free["train"] if not dataset.has_mask(i)]
    free["train"] = [i for i in free["train"] if dataset.has_mask(i)]

    known = _take(free["train"], sizes.state + sizes.train, "state + train", "train")
    reward_subset = "train" if sizes.reward_from_train else "val"
    if sizes.reward_from_train and sizes.reward is None:
        raise ConfigError("data.splits.reward must be given when reward_from_train is set")
    reward = _take(free[reward_subset], sizes.reward, "reward", reward_subset)
    acquisition = unlabelled + free["train"]
    acquisition = _take(acquisition, sizes.acquisition, "acquisition", "train")
    test_subset = "val" if sizes.reward_from_train and not free["test"] else "test"
    test = _take(free[test_subset], sizes.test, "test", test_subset)

    rows = list(range(sizes.state))
    if 0 < sizes.state < len(known):
        counts = np.stack([class_counts(dataset, i) for i in known])
        rows, _ = choose_representative(counts, sizes.state, rng)
    state = sorted(known[row] for row in rows)
    train = sorted(set(known) - set(state))
    return Splits(state, train, sorted(reward), sorted(acquisition), sorted(test))


def _shuffled(dataset: SegmentationDataset, subset: str, rng: np.random.Generator) -> list[int]:
    indices = [i for i, s in enumerate(dataset.subsets) if s == subset]
    return list(map(int, rng.permutation(indices)))


def _take(free: list[int], count: int | None, what: str, subset: str) -> list[int]:
    """Remove and return the first ``count`` of ``free``; all of them when None."""
    if count is None:
        count = len(free)
    if count > len(free):
        raise ConfigError(f"data.splits asks for {count} {what} images, but subset {subset!r} has {len(free)} left")
    taken, free[:] = free[:count], free[count:]
    return taken


def save_splits(path: Path, splits: Splits, dataset: SegmentationDataset) -> None:
    """Write the sets as image names, with the distance between D_S's and D_T's classes."""
    content: dict[str, object] = {"format": FORMAT}
    content |= {name: [dataset.names[i] for i in splits[name]] for name in SETS}
    content["state_train_distance"] = state_train_distance(dataset, splits)
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def state_train_distance(dataset: SegmentationDataset, splits: Splits) -> float | None:
    """Jensen-Shannon distance between the classes of D_S and D_T; None where one has no labels."""
    both = [*splits.state_set, *splits.train_set]
    if not splits.state_set or not splits.train_set or not all(map(dataset.has_mask, both)):
        return None
    state, train = (sum(class_counts(dataset, i) for i in s) for s in (splits.state_set, splits.train_set))
    return class_distance(np.asarray(state), np.asarray(train))


def load_splits(path: Path, dataset: SegmentationDataset) -> Splits:
    """Read sets from JSON: ours, or the paper's published ``state`` / ``train`` / ``acquisition``.

    A file that does not name reward or test images gets the official subsets ``val`` and ``test``.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such split file (data.splits)") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}; data.splits)") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: must be an object with lists of image names")
    position = {name: i for i, name in enumerate(dataset.names)}
    sets: dict[str, list[int]] = {}
    for field in fields(Splits):
        names = content.get(field.name, content.get(field.name.removesuffix("_set")))
        if names is None:
            subset = {"reward_set": "val", "test_set": "test"}.get(field.name)
            if subset is None:
                raise DataError(f"{path}: the list {field.name!r} is missing")
            sets[field.name] = [i for i, s in enumerate(dataset.subsets) if s == subset]
            continue
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise DataError(f"{path}: {field.name!r} must be a list of image names")
        unknown = [name for name in names if name not in position]
        if unknown:
            raise DataError(
                f"{path}: {len(unknown)} images of {field.name!r} are not in the data set "
                f"({type(dataset).__name__}), the first: {unknown[0]!r}"
            )
        sets[field.name] = [position[name] for name in names]
    return Splits(**sets)
