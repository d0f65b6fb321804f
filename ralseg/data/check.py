"""`ralseg data check`: look at the data before a run depends on it."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ralseg.data.base import SegmentationDataset
from ralseg.data.canvas import Size
from ralseg.data.class_stats import class_distance
from ralseg.data.contact_sheet import contact_sheet
from ralseg.data.datamodule import SegmentationData
from ralseg.data.duplicates import Twins, across, same_look, same_pixels
from ralseg.data.splits import SETS, SUBSETS, unknown_subsets
from ralseg.data.survey import Readable, Survey, survey
from ralseg.errors import DataError, RalsegError
from ralseg.runtime.files import write_atomically, write_png

SHOWN = 5
"""Lines of one kind that are printed; report.json has all."""
MUCH_VOID = 0.5
"""More void than this share of a set's labelled pixels is worth a note."""
NOTED_DISTORTION = 1.1
"""Proportions that change more than this are worth a note."""
HELD_OUT = ("reward_set", "test_set", "val", "test")
"""Nothing that looks like their images should be trained on."""
_BAR_FROM = 50  # images

_Counts = Mapping[str, NDArray[np.int64]]  # of each set or subset: [classes + 1], void last


class _Findings:
    """Problems and notes by their kind; none is said twice."""

    def __init__(self) -> None:
        self.by_kind: dict[str, list[str]] = {}

    def add(self, kind: str, texts: Iterable[str]) -> None:
        """Keep texts that are not known yet."""
        known = set(self.texts())
        self.by_kind.setdefault(kind, []).extend(text for text in dict.fromkeys(texts) if text not in known)

    def texts(self) -> list[str]:
        """All of them."""
        return [text for texts in self.by_kind.values() for text in texts]

    def show(self, console: Console, word: str, style: str) -> None:
        """Print the first of each kind."""
        for texts in self.by_kind.values():
            for text in texts[:SHOWN]:
                console.print(f"{word}: {text}", style=style, soft_wrap=True, markup=False, highlight=False)
            if len(texts) > SHOWN:
                more = f"{word}: {len(texts) - SHOWN} more of this kind, all in report.json"
                console.print(more, style=style, soft_wrap=True, markup=False, highlight=False)


def check_data(data: SegmentationData, out: Path) -> int:
    """Read every image and mask once; show counts, classes and sizes; name every problem found.

    Writes ``report.json`` and ``contact_sheet.png`` into ``out``. Returns 0, or 3 when there are problems. Notes are
    worth knowing but need not be mended.
    """
    console = Console()
    dataset = data.dataset
    problems, notes = _Findings(), _Findings()

    found = survey(dataset, lambda images: _watched(images, console))
    problems.add("images", found.image_errors.values())
    problems.add("masks", found.mask_errors.values())
    problems.add("files", dataset.file_problems())
    if found.image_errors or found.mask_errors:
        data.dataset = Readable(dataset, found)

    _check_setup(data, found, problems, notes)
    sets = {name: data.splits[name] for name in SETS} if hasattr(data, "splits") else {}
    subsets = {name: [i for i, s in enumerate(dataset.subsets) if s == name] for name in _in_order(dataset.subsets)}
    _check_subsets(dataset, sets, problems)
    by_subset, by_set = _pixels(found, subsets), _pixels(found, sets)
    _check_classes(dataset, by_subset, by_set or by_subset, problems, notes)
    scenes = _check_scenes(dataset, sets, problems)
    twins = _check_twins(dataset, found, sets or subsets, problems, notes)
    size = _run_size(data, found)
    sizes = _sizes(data, found, size, notes)

    console.print(_class_table(dataset, "by subset", by_subset, subsets))
    if sets:
        console.print(_class_table(dataset, "by set of the game", by_set, sets))
    for line in _lines(sets, scenes, sizes, _distance(by_set)):
        console.print(line, soft_wrap=True, highlight=False)
    write_png(out / "contact_sheet.png", np.asarray(contact_sheet(data, found, sets or subsets, size)))
    console.print(f"contact sheet: {out / 'contact_sheet.png'}", soft_wrap=True)
    notes.show(console, "note", "yellow")
    problems.show(console, "problem", "red")
    report = {
        "dataset": type(dataset).__name__,
        "images": {name: len(indices) for name, indices in subsets.items()},
        "without_mask": {name: _without_mask(dataset, indices) for name, indices in subsets.items()},
        "pixels": _named(dataset, by_subset),
        "sets": {name: len(indices) for name, indices in sets.items()},
        "pixels_of_sets": _named(dataset, by_set),
        "scenes": scenes,
        "sizes": sizes,
        "same_pictures": [[dataset.names[pair.first], dataset.names[pair.second]] for pair in twins],
        "problems": problems.texts(),
        "notes": notes.texts(),
    }
    write_atomically(out / "report.json", json.dumps(report, indent=1) + "\n")
    said = f"{_count(notes.texts(), 'note')}, {_count(problems.texts(), 'problem')} in {len(dataset)} images"
    console.print(f"{said}; report: {out / 'report.json'}", soft_wrap=True)
    return DataError.exit_code if problems.texts() else 0


def _watched(images: range, console: Console) -> Iterable[int]:
    """With a bar that tells how far it is, where somebody can see it."""
    hidden = len(images) < _BAR_FROM or not console.is_terminal
    return track(images, "reading images and masks", console=console, transient=True, disable=hidden)


def _in_order(subsets: list[str]) -> list[str]:
    """train, val and test first."""
    known = set(subsets)
    return [name for name in SUBSETS if name in known] + sorted(known - set(SUBSETS))


def _count(things: list[str], word: str) -> str:
    return f"{len(things)} {word}{'' if len(things) == 1 else 's'}"


# -- splits and layout -------------------------------------------------------------------------------


def _check_setup(data: SegmentationData, found: Survey, problems: _Findings, notes: _Findings) -> None:
    """Draw the sets and make room for images, as a run does; what fails does not keep the rest from being checked."""
    try:
        data.setup()
    except RalsegError as error:
        problems.add("setup", [str(error)])
        _check_layout(data, found, problems)
    if not hasattr(data, "splits"):
        return
    for name in dict.fromkeys(["state_set", "reward_set", *data.fit_on, "test_set"]):
        try:
            data.labelled_images(name)
        except RalsegError as error:
            problems.add("labels", [str(error)])
    needed = [name for name in dict.fromkeys(["reward_set", *data.fit_on]) if name in SETS and not data.splits[name]]
    problems.add("empty sets", [f"the {name} is empty; check data.splits" for name in needed])
    for name, use in (("test_set", "nothing can be tested"), ("acquisition_set", "there is nothing to acquire")):
        if name not in needed and not data.splits[name]:
            notes.add("empty sets", [f"the {name} is empty: {use}"])


def _check_layout(data: SegmentationData, found: Survey, problems: _Findings) -> None:
    size = _run_size(data, found)
    if {data.canvas.content(*own) for own in found.sizes if own is not None} == {size}:
        try:
            data.layout.check(*size)
        except RalsegError as error:
            problems.add("setup", [str(error)])


def _check_subsets(dataset: SegmentationDataset, sets: Mapping[str, list[int]], problems: _Findings) -> None:
    """A subset of another name is of no use, unless a file of splits names its images."""
    used = {dataset.subsets[index] for indices in sets.values() for index in indices}
    if not set(dataset.subsets) - set(SUBSETS) <= used:
        problems.add("subsets", unknown_subsets(dataset))


def _check_scenes(dataset: SegmentationDataset, sets: Mapping[str, list[int]], problems: _Findings) -> dict[str, int]:
    """Number of scenes in each set; sets of which no scene is known are left out."""
    scenes: dict[int, str] = {}
    errors = []
    for index in range(len(dataset)):
        try:
            scene = dataset.scene(index)
        except RalsegError as error:
            errors.append(str(error))
            continue
        if scene is not None:
            scenes[index] = scene
    problems.add("scenes", errors)
    numbers = {name: len({scenes[i] for i in indices if i in scenes}) for name, indices in sets.items()}
    return {name: number for name, number in numbers.items() if number}


# -- classes -----------------------------------------------------------------------------------------


def _pixels(found: Survey, groups: Mapping[str, list[int]]) -> dict[str, NDArray[np.int64]]:
    return {name: found.pixels[indices].sum(0) for name, indices in groups.items()}


def _check_classes(
    dataset: SegmentationDataset, by_subset: _Counts, by_set: _Counts, problems: _Findings, notes: _Findings
) -> None:
    found = dataset.class_problems(by_subset)
    problems.add("classes", found)
    total = np.sum(list(by_subset.values()), axis=0)
    missing = [name for name, pixels in zip(dataset.class_names, total, strict=False) if not pixels]
    if missing and total.any() and not found:
        notes.add("classes", [f"no labelled image holds a pixel of class {', '.join(missing)}"])
    for name, pixels in by_set.items():
        if not pixels.any():
            continue
        lacking = [c for c, n in zip(dataset.class_names, pixels, strict=False) if not n and c not in missing]
        if lacking:
            notes.add("classes", [f"{name} has no pixel of class {', '.join(lacking)}"])
        if pixels[-1] > MUCH_VOID * pixels.sum() and not found:
            notes.add("void", [f"{pixels[-1] / pixels.sum():.0%} of the labelled pixels of {name} are void"])


def _distance(by_set: _Counts) -> float | None:
    """Between the classes of D_S and D_T; None where one has no labels."""
    if not by_set or not by_set["state_set"].any() or not by_set["train_set"].any():
        return None
    return class_distance(by_set["state_set"][:-1], by_set["train_set"][:-1])


def _named(dataset: SegmentationDataset, counts: _Counts) -> dict[str, dict[str, int]]:
    names = [*dataset.class_names, "void"]
    return {key: dict(zip(names, map(int, pixels), strict=True)) for key, pixels in counts.items()}


def _without_mask(dataset: SegmentationDataset, indices: list[int]) -> int:
    return sum(not dataset.has_mask(index) for index in indices)


def _class_table(dataset: SegmentationDataset, title: str, counts: _Counts, groups: Mapping[str, list[int]]) -> Table:
    table = Table(title=f"{type(dataset).__name__}: share of pixels in %, {title}")
    table.add_column("class")
    for name in counts:
        table.add_column(name.removesuffix("_set"), justify="right")
    for row, name in enumerate([*dataset.class_names, "void"]):
        shares = [100 * pixels[row] / max(pixels.sum(), 1) for pixels in counts.values()]
        table.add_row(name, *(f"{share:.2f}" for share in shares))
    table.add_section()
    table.add_row("images", *(str(len(indices)) for indices in groups.values()))
    table.add_row("without mask", *(str(_without_mask(dataset, indices)) for indices in groups.values()))
    return table


# -- the same picture twice --------------------------------------------------------------------------


def _check_twins(
    dataset: SegmentationDataset, found: Survey, sets: Mapping[str, list[int]], problems: _Findings, notes: _Findings
) -> list[Twins]:
    """The same pixels in two sets are a problem; inside of one, or nearly the same, a note."""
    set_of = {index: name for name, indices in sets.items() for index in indices}
    twins = same_pixels(found.digests, set_of)
    problems.add("same pictures", _twin_lines(dataset, [pair for pair in twins if across(pair)], "the same picture"))
    inside = [pair for pair in twins if not across(pair)]
    if inside:
        names = f"{dataset.names[inside[0].first]} and {dataset.names[inside[0].second]}"
        stand = "1 picture stands" if len(inside) == 1 else f"{len(inside)} pictures stand"
        notes.add("same pictures", [f"{stand} twice in one set, or in none, the first: {names}"])
    # frames of one film look alike; among images that are trained on that does no harm
    halves = {index: name if name in HELD_OUT else "the images that are trained on" for index, name in set_of.items()}
    near = same_look(found.looks, found.digests, halves)
    notes.add("similar pictures", _twin_lines(dataset, near, "nearly the same picture"))
    return twins


def _twin_lines(dataset: SegmentationDataset, twins: list[Twins], what: str) -> list[str]:
    """One line for each two sets."""
    pairs: dict[tuple[str, ...], list[Twins]] = {}
    for pair in twins:
        pairs.setdefault(tuple(sorted((str(pair.first_set), str(pair.second_set)))), []).append(pair)
    lines = []
    for (first_set, second_set), members in pairs.items():
        first, second = (dataset.names[index] for index in members[0][:2])
        times = "" if len(members) == 1 else f" {len(members)} times, first"
        lines.append(f"{what} stands in {first_set} and in {second_set}{times}: {first} and {second}")
    return lines


# -- sizes -------------------------------------------------------------------------------------------


def _run_size(data: SegmentationData, found: Survey) -> Size:
    """The size that the run works at, also where the data could not be set up."""
    known = [size for size in found.sizes if size is not None] or [(1, 1)]
    return data.canvas.size or (max(height for height, _ in known), max(width for _, width in known))


def _sizes(data: SegmentationData, found: Survey, run: Size, notes: _Findings) -> dict[str, Any]:
    """Sizes of files, and how they come to the size of the run."""
    known = {index: size for index, size in enumerate(found.sizes) if size is not None}
    if not known:
        return {}
    by_area = sorted(known.values(), key=lambda size: (size[0] * size[1], size))
    contents = {index: data.canvas.content(*size) for index, size in known.items()}
    scales = [(contents[i][0] * contents[i][1] / (size[0] * size[1])) ** 0.5 for i, size in known.items()]
    padding = [1 - height * width / (run[0] * run[1]) for height, width in contents.values()]
    changes = {
        index: contents[index][0] / height / (contents[index][1] / width) for index, (height, width) in known.items()
    }
    stretched = [index for index, change in changes.items() if not 1 / NOTED_DISTORTION <= change <= NOTED_DISTORTION]
    if stretched:
        name, (height, width) = data.dataset.names[stretched[0]], known[stretched[0]]
        notes.add(
            "sizes",
            [
                f"the proportions of {len(stretched)} of {len(known)} images change by more than a tenth, the first: "
                f"{name}, {height}x{width}, stretched to {run[0]}x{run[1]}; data.resize: pad keeps them"
            ],
        )
    return {
        "different": len(set(known.values())),
        "smallest": by_area[0],
        "median": by_area[len(by_area) // 2],
        "largest": by_area[-1],
        "landscape": sum(height < width for height, width in known.values()),
        "portrait": sum(height > width for height, width in known.values()),
        "square": sum(height == width for height, width in known.values()),
        "run": run,
        "resize": data.canvas.resize,
        "scaled": [round(min(scales), 3), round(max(scales), 3)],
        "padded": {"images": sum(share > 0 for share in padding), "share": round(float(np.mean(padding)), 4)},
        "stretched": len(stretched),
    }


def _lines(
    sets: Mapping[str, list[int]], scenes: Mapping[str, int], sizes: Mapping[str, Any], distance: float | None
) -> Iterable[str]:
    """What is said below the tables."""
    if sets:
        yield "sets: " + ", ".join(f"{name} {len(indices)}" for name, indices in sets.items())
    if scenes:
        yield "scenes: " + ", ".join(f"{name} {number}" for name, number in scenes.items())
    if distance is not None:
        yield f"Jensen-Shannon distance of state_set's classes from train_set's: {distance:.4f}"
    if not sizes:
        return
    smallest, median, largest = ("{}x{}".format(*sizes[key]) for key in ("smallest", "median", "largest"))
    shapes = Counter({key: sizes[key] for key in ("landscape", "portrait", "square")})
    kinds = ", ".join(f"{number} {shape}" for shape, number in shapes.items() if number)
    several = f"{sizes['different']} different, {smallest} to {largest}, median {median}"
    yield f"sizes (height x width): {smallest if sizes['different'] == 1 else several}; {kinds}"
    low, high = sizes["scaled"]
    scale = (
        "are not scaled" if low == high == 1 else f"are scaled by {low:g}" + (f" to {high:g}" if low != high else "")
    )
    padded = sizes["padded"]
    padding = f"; padding fills {padded['share']:.0%} ({padded['images']} images have some)" if padded["images"] else ""
    yield "run's size {}x{}, resize: {}: images {}{}".format(*sizes["run"], sizes["resize"], scale, padding)
