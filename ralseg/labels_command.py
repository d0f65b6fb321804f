"""`ralseg labels`: a run's labels as files of other tools, and answers out of such files."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser

from ralseg.annotation.answers import Answers
from ralseg.annotation.files.coco import KINDS
from ralseg.annotation.files.container import Member, check_free, opened, write_members
from ralseg.annotation.files.exchange import Answered, labelled_records, read_answers, wanted_records
from ralseg.annotation.files.formats import ENDINGS, FORMATS, IMAGE_FOLDERS, Format, decode, encode
from ralseg.annotation.files.images import find_images, full_name, image_members
from ralseg.annotation.files.own_masks import own_masks
from ralseg.annotation.files.pictures import Meaning
from ralseg.annotation.files.record import LabelRecord
from ralseg.annotation.files.revealed import LoadData, revealed_records, run_data
from ralseg.annotation.people import FOLDER
from ralseg.annotation.request import FILE, ClassColour, Request
from ralseg.config_errors import parsed
from ralseg.errors import ConfigError, DataError
from ralseg.predict_command import add_switch
from ralseg.runtime.files import write_atomically

What = Literal["request", "labelled"]
_USAGE = """usage: ralseg labels export RUN --format {formats} --what request|labelled --out FILE_OR_FOLDER
       ralseg labels import RUN FILE --format {formats} [--who NAME]
`ralseg labels export --help` and `ralseg labels import --help` list every option.""".format(formats="|".join(FORMATS))


def run_labels(arguments: list[str], load_data: LoadData) -> int:
    """Run `labels export` or `labels import` with what was typed.

    Args:
        arguments: What was typed.
        load_data: Makes the data of a run's configuration.
    """
    if arguments[:1] in (["-h"], ["--help"]):
        print(_USAGE)
        return 0
    if arguments[:1] == ["export"]:
        return _run_export(arguments[1:], load_data)
    if arguments[:1] == ["import"]:
        return _run_import(arguments[1:])
    raise ConfigError(_USAGE)


def _parser(command: str, description: str) -> ArgumentParser:
    parser = ArgumentParser(prog=f"ralseg labels {command}", description=description, exit_on_error=False)
    parser.add_argument("run", type=str, help="The folder of an acquire run.")
    return parser


def _format(value: str | None) -> str:
    if value is None:
        raise ConfigError(f"--format is missing: one of {', '.join(FORMATS)}")
    return value


# -- export ----------------------------------------------------------------------------------------


def _run_export(arguments: list[str], load_data: LoadData) -> int:
    parser = _parser("export", "Write what is wanted, or what is labelled, in a format of another tool.")
    parser.add_argument("--format", type=Format | None, help=f"One of {', '.join(FORMATS)}.")
    parser.add_argument(
        *("--what",), type=What, default="request",
        help="request: the regions that wait for labels, with predictions. labelled: all labels so far.",
    )  # fmt: skip
    parser.add_argument("--out", type=str | None, help="A file (.xml of cvat, .json of coco), a .zip, or a folder.")
    parser.add_argument("--images", type=str | None, help="The folder of the images: puts them beside the labels.")
    parser.add_argument("--masks", type=str, default=KINDS[0], help=f"How coco has masks: {', '.join(KINDS)}.")
    add_switch(parser, "--like_data", "Write png masks as the run's data set has its own: to put them into it.")
    add_switch(parser, "--overwrite", "Replace what is there.")
    config = parsed(parser, "labels export", arguments)
    kind = _format(config.format)
    out = Path(config.out or f"{config.what}{ENDINGS.get(kind, '.zip')}")
    images = None if config.images is None else Path(config.images)
    options = (config.what, images, config.masks, config.like_data, config.overwrite)
    export_labels(Path(config.run), load_data, kind, out, *options)
    return 0


def export_labels(
    run: Path,
    load_data: LoadData,
    kind: str,
    out: Path,
    what: str = "request",
    images: Path | None = None,
    masks: str = KINDS[0],
    like_data: bool = False,
    overwrite: bool = False,
) -> None:
    """Write labels of a run as files of another tool.

    Args:
        run: The folder of an `acquire` run.
        load_data: Makes the data of the run's configuration, where labels were revealed from their masks.
        kind: ``cvat``, ``coco``, ``voc`` or ``png``.
        out: A file (.xml of CVAT, .json of COCO), an archive (.zip), or a folder.
        what: ``request``: what waits for labels, with predictions. ``labelled``: all labels so far.
        images: The folder that the images' names begin in: puts the images beside the labels.
        masks: How COCO has masks: ``rle``, ``counts`` or ``polygons``.
        like_data: Write masks of ``png`` as the run's data set has its own, so that they can be put into it.
        overwrite: Replace what is there.
    """
    if masks not in KINDS:
        raise ConfigError(f"--masks {masks}: is none of {', '.join(KINDS)}")
    if like_data and (kind, what) != ("png", "labelled"):
        raise ConfigError("--like_data goes with --format png --what labelled")
    _check_out(out, kind, images is not None)
    check_free(out, overwrite)
    records, classes = _records(run, what, load_data)
    pictures: Iterable[Member] = ()
    if images is not None:
        files = find_images(images, dict.fromkeys(record.image for record in records))
        records = [replace(record, image=full_name(record.image, files[record.image])) for record in records]
        pictures = image_members(files, IMAGE_FOLDERS[kind])
    labels = encode(kind, records, classes, masks)
    if like_data:
        labels = own_masks(records, run_data(run, load_data).dataset)
    _write(out, chain(labels, pictures), overwrite)
    number = len({record.image for record in records})
    if what == "request":
        print(f"{out}: {len(records)} regions of {number} images, the most wanted first")
        print(f"when they are labelled: ralseg labels import {run} FILE --format {kind}")
    else:
        print(f"{out}: the labels of {number} images")


def _check_out(out: Path, kind: str, with_images: bool) -> None:
    ending = out.suffix.lower()
    known = {".zip", ENDINGS.get(kind, ".zip")}
    if ending in {*ENDINGS.values(), ".png"} - known:
        raise ConfigError(f"--out {out}: {kind} is a folder, or a file that ends in {' or '.join(sorted(known))}")
    if ending in ENDINGS.values() and with_images:
        raise ConfigError(f"--out {out}: one file has no room for --images; give {out.with_suffix('.zip')} instead")


def _write(out: Path, members: Iterable[Member], overwrite: bool) -> None:
    """Into a folder or an archive; a format of one file goes to that file, and what else it has beside it."""
    if out.suffix.lower() not in ENDINGS.values():
        write_members(out, members, overwrite)
        return
    for place, (name, content) in enumerate(members):
        write_atomically(out.with_name(f"{out.stem}_{Path(name).name}") if place else out, content)


def _records(run: Path, what: str, load_data: LoadData) -> tuple[list[LabelRecord], tuple[ClassColour, ...]]:
    """What is to be written, and its classes."""
    folder = run / FOLDER
    if what == "labelled" and not (folder / FILE).is_file():
        records, classes = revealed_records(run, load_data)
    else:
        answers = Answers(folder, Request.read(folder))
        records = wanted_records(answers) if what == "request" else labelled_records(answers)
        classes = answers.request.classes
    if not records:
        done = "all that the request wants is answered" if what == "request" else "nothing is labelled yet"
        raise DataError(f"{run}: {done}; go on with `ralseg acquire` and --ckpt last")
    return records, classes


# -- import ----------------------------------------------------------------------------------------


def _run_import(arguments: list[str]) -> int:
    parser = _parser("import", "Read what people have labelled with another tool, as answers to a run's request.")
    parser.add_argument("file", type=str, help="What the tool has exported: a file, a .zip, or a folder.")
    parser.add_argument("--format", type=Format | None, help=f"One of {', '.join(FORMATS)}.")
    parser.add_argument("--who", type=str, default="", help="Who has labelled, for the journal.")
    parser.add_argument("--rest", type=str | None, help="Class of pixels that nothing is drawn on; else unknown.")
    parser.add_argument(
        "--pixels", type=Meaning, default="auto", help="What pixels of voc and png are: numbers or colours of classes."
    )
    add_switch(parser, "--nearest", "Take the nearest class for colours of none (voc, png): edges were smoothed.")
    add_switch(parser, "--changed_only", "Leave regions open whose labels are still the prediction.")
    add_switch(parser, "--overwrite", "Also correct regions that are answered already.")
    config = parsed(parser, "labels import", arguments)
    import_labels(
        Path(config.run), Path(config.file), _format(config.format), config.who, config.rest,
        config.pixels, config.nearest, config.changed_only, config.overwrite,
    )  # fmt: skip
    return 0


def import_labels(
    run: Path,
    file: Path,
    kind: str,
    who: str = "",
    rest: str | None = None,
    pixels: Meaning = "auto",
    nearest: bool = False,
    changed_only: bool = False,
    overwrite: bool = False,
) -> Answered:
    """Read answers to a run's request out of files. All are read and checked before the first one is kept.

    Args:
        run: The folder of an `acquire` run.
        file: What a tool has exported: a file, an archive, or a folder.
        kind: ``cvat``, ``coco``, ``voc`` or ``png``.
        who: Who has labelled.
        rest: Class of pixels that nothing is drawn on; None: they are unknown.
        pixels: What pixels of pictures stand for: ``numbers``, ``colours``, or ``auto``.
        nearest: Take the nearest class where a pixel of a picture has the colour of none.
        changed_only: Leave regions open whose labels are still the model's prediction.
        overwrite: Also correct regions that are answered already.
    """
    folder = run / FOLDER
    answers = Answers(folder, Request.read(folder))
    numbers = {entry.name: entry.number for entry in answers.request.classes}
    if rest is not None and rest not in numbers:
        raise ConfigError(f"--rest {rest}: is none of the classes {', '.join(numbers)}")
    known = answers.versions()
    before = 0 if overwrite else sum(wanted.region in known for wanted in answers.request.regions)
    with opened(file) as members:
        found = decode(kind, members, answers.request.classes, pixels, nearest)
        answered = read_answers(answers, found, str(file), None if rest is None else numbers[rest], overwrite)
    left = set(answered.as_predicted) if changed_only else set()
    kept = [region for region in answered.masks if region not in left]
    for region in kept:
        answers.save(region, answered.masks[region], who=who, source=kind)
    answers.journal.append("imported", file=file.name, format=kind, who=who, regions=kept)
    _report(file, answers, answered, kept, len(left))
    if before:
        print(f"{before} regions were answered before and stay as they are; --overwrite true corrects them")
    return answered


def _report(file: Path, answers: Answers, answered: Answered, kept: list[int], left: int) -> None:
    same = len(set(kept) & set(answered.as_predicted))
    print(f"{file}: {len(kept)} regions answered{f', {same} of them as predicted' if same else ''}")
    reasons = {
        "image not in the file": len(answered.absent),
        "nothing drawn": len(answered.empty),
        "as predicted": left,
    }
    listed = ", ".join(f"{number} {reason}" for reason, number in reasons.items() if number)
    if listed:
        print(f"left open: {listed}")
    status = answers.status()
    if status.is_complete:
        print("the request is complete: `ralseg acquire` with --ckpt last goes on")
    else:
        print(f"{status.open} of {status.wanted} regions still wait for labels")
