"""The five sets of the game as lists of image names: disjoint, seeded, kept in a JSON file."""

import json
import logging
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ralseg.data.base import SegmentationDataset
from ralseg.data.class_stats import choose_representative, class_counts, class_distance
from ralseg.errors import ConfigError, DataError
from ralseg.runtime import distributed
from ralseg.runtime.files import write_atomically

log = logging.getLogger(__name__)
FORMAT = "ralseg.splits/1"
SUBSETS = ("train", "val", "test")
SETS = ("state_set", "train_set", "reward_set", "acquisition_set", "test_set")


@dataclass(frozen=True)
class SplitSizes:
    """How many images each set gets. The sets of one subset are drawn from it without overlap.

    Args:
        state: Images of D_S, chosen so that their classes are distributed like D_T's.
        train: Images of D_T, on which the policy plays. D_S and D_T come from the subset ``train``. None: all that
            the other sets leave.
        reward: Images of D_R. None: the whole subset ``val``.
        acquisition: Images of D_V. None: what is left of the subset ``train``; nothing where D_T takes all.
        test: Images of the test set. None: the whole subset ``test`` or, where the reward set was
            taken from ``train`` (Cityscapes, whose test labels are withheld), the subset ``val``.
        reward_from_train: Take the reward set from ``train`` instead of ``val``, as on Cityscapes.
        test_from_train: Take the test set from ``train`` too, where there is neither ``val`` nor ``test``.
        seed: Seed of the draw.

    Examples:
        >>> SplitSizes(state=2, train=20).acquisition is None  # all that is left
        True
    """

    state: int = 10
    train: int | None = 100
    reward: int | None = None
    acquisition: int | None = None
    test: int | None = None
    reward_from_train: bool = False
    test_from_train: bool = False
    seed: int = 0

    def check(self) -> None:
        """Refuse sizes that are negative or missing."""
        for key in ("state", "train", "reward", "acquisition", "test"):
            size = getattr(self, key)
            may_be_left_out = key != "state"
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
    free = {subset: _shuffled(dataset, subset, rng) for subset in SUBSETS}
    # images without a mask can be nothing but acquired
    unlabelled = [i for i in free["train"] if not dataset.has_mask(i)]
    free["train"] = [i for i in free["train"] if dataset.has_mask(i)]

    def take(images: list[int], count: int | None, what: str, subset: str) -> list[int]:
        try:
            return _take(images, count, what, subset)
        except ConfigError as error:
            elsewhere = [_REWARD_ELSEWHERE] if what == "reward" and subset == "val" else []
            raise ConfigError("; ".join([str(error), *_why_few(dataset, subset), *elsewhere])) from None

    known = take(free["train"], sizes.state + (sizes.train or 0), "state + train", "train")
    reward_subset = "train" if sizes.reward_from_train else "val"
    if sizes.reward is None:
        _check_reward_subset(dataset, sizes, free["val"])
    reward = take(free[reward_subset], sizes.reward, "reward", reward_subset)
    test_subset = _test_subset(sizes, any(map(dataset.has_mask, free["test"])))
    test = take(free[test_subset], sizes.test, "test", test_subset)
    takes_all = sizes.train is None and sizes.acquisition is None
    acquisition = take(unlabelled + free["train"], 0 if takes_all else sizes.acquisition, "acquisition", "train")
    if sizes.train is None:
        known += [index for index in free["train"] if index not in set(acquisition)]

    rows = list(range(sizes.state))
    if 0 < sizes.state < len(known):
        counts = np.stack([class_counts(dataset, i) for i in known])
        _warn_of_missing_classes(dataset, counts)
        rows, _ = choose_representative(counts, sizes.state, rng)
    state = sorted(known[row] for row in rows)
    train = sorted(set(known) - set(state))
    return Splits(state, train, sorted(reward), sorted(acquisition), sorted(test))


def _warn_of_missing_classes(dataset: SegmentationDataset, counts: NDArray[np.int64]) -> None:
    """Say so where D_S and D_T, [images, classes], have nothing of a class: often masks are read wrongly."""
    missing = [name for name, pixels in zip(dataset.class_names, counts.sum(0), strict=True) if not pixels]
    if missing and distributed.rank() == 0:
        log.warning(
            "the %d images of the state and train sets hold no pixel of class %s; `ralseg data check` says more",
            *(len(counts), ", ".join(missing)),
        )


def _test_subset(sizes: SplitSizes, has_labelled_test: bool) -> str:
    """The subset that the test set is taken from; labels of a subset ``test`` may be withheld."""
    if sizes.test_from_train and sizes.test is None:
        raise ConfigError("data.splits.test must be given when test_from_train is set")
    if sizes.test_from_train:
        return "train"
    return "val" if sizes.reward_from_train and not has_labelled_test else "test"


def _check_reward_subset(dataset: SegmentationDataset, sizes: SplitSizes, val: list[int]) -> None:
    """Where no number of reward images is given, there must be images that nobody has to count."""
    if sizes.reward_from_train:
        raise ConfigError("data.splits.reward must be given when reward_from_train is set")
    if not val:
        why = ["the reward set is the subset 'val', which has no images", *_why_few(dataset, "val")]
        raise ConfigError("; ".join([*why, _REWARD_ELSEWHERE]))


_REWARD_ELSEWHERE = (
    "put labelled images there (of a Folder: images/val and masks/val), or take the reward set from train: "
    "data.splits.reward_from_train: true with data.splits.reward: 10 for example"
)


def _why_few(dataset: SegmentationDataset, subset: str) -> list[str]:
    """What may be the reason that a subset has too few labelled images."""
    indices = [i for i, s in enumerate(dataset.subsets) if s == subset]
    without = sum(not dataset.has_mask(i) for i in indices)
    reasons = [f"{without} of its {len(indices)} images have no mask"] if without else []
    return reasons + unknown_subsets(dataset) + dataset.file_problems()


def unknown_subsets(dataset: SegmentationDataset) -> list[str]:
    """One message for each subset whose name is none of the three, so that no set is drawn from it."""
    messages = []
    for name in sorted(set(dataset.subsets) - set(SUBSETS)):
        close = _USUAL_NAMES.get(name.lower()) or next(iter(get_close_matches(name.lower(), SUBSETS, 1)), None)
        hint = f"; rename it to {close!r}" if close else ""
        number = dataset.subsets.count(name)
        messages.append(f"subset {name!r} ({number} images) is not used: subsets are {', '.join(SUBSETS)}{hint}")
    return messages


_USUAL_NAMES = {"training": "train", "validation": "val", "valid": "val", "dev": "val", "testing": "test"}


def _shuffled(dataset: SegmentationDataset, subset: str, rng: np.random.Generator) -> list[int]:
    indices = [i for i, s in enumerate(dataset.subsets) if s == subset]
    return list(map(int, rng.permutation(indices)))


def _take(free: list[int], count: int | None, what: str, subset: str) -> list[int]:
    """Remove and return the first ``count`` of ``free``; all of them when None."""
    if count is None:
        count = len(free)
    if count > len(free):
        raise ConfigError(
            f"data.splits asks for {count} {what} images, but subset {subset!r} has {len(free)} left; set "
            f"{' and '.join(f'data.splits.{key}' for key in what.split(' + '))} to fewer{_what_fits(what, len(free))}"
        )
    taken, free[:] = free[:count], free[count:]
    return taken


def _what_fits(what: str, number: int) -> str:
    """Sizes that leave more than half of so many images to acquire from, for a message."""
    if what != "state + train" or number < 4:
        return ""
    known = max(2, round(0.45 * number))
    state = max(1, known // 5)
    return f", for example data.splits: {{state: {state}, train: {known - state}}}"


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
