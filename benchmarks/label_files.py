"""Do files of labels hold the very masks, by the judgement of other libraries, and what do they cost?

python benchmarks/label_files.py FOLDER CLASSES [IMAGES]: a folder of index masks (255 = unknown), how many classes they
have, and how many masks to take. `make judges` installs the judges; RALSEG_JUDGES may name another place.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from ralseg.annotation.files import formats
from ralseg.annotation.files.container import opened, write_members
from ralseg.annotation.files.record import UNKNOWN, LabelRecord
from ralseg.annotation.request import ClassColour
from ralseg.data.description import default_colours
from ralseg.data.readers import read_index_mask

ROOT = Path(__file__).parents[1]
PYTHON = Path(os.environ.get("RALSEG_JUDGES") or ROOT / ".judges") / "bin/python"
THEIRS = {"cvat": "default.xml", "coco": "annotations/instances_default.json", "voc": ""}


def judge(*arguments: str | Path) -> None:
    """Have datumaro read or write."""
    command = [PYTHON, ROOT / "tests/support/judge.py", *arguments]
    subprocess.run([str(part) for part in command], check=True, stderr=subprocess.DEVNULL)


def differing(found: dict[str, np.ndarray], records: list[LabelRecord]) -> int:
    """Pixels that are not the same."""
    return sum(int((found[Path(record.image).stem] != record.mask).sum()) for record in records)


def measure(kind: str, masks: str, records: list[LabelRecord], classes: tuple[ClassColour, ...]) -> list[object]:
    """One row: pixels that differ three ways, seconds, size."""
    names = json.dumps([entry.name for entry in classes])
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        start = time.process_time()
        write_members(folder / "ours.zip", formats.encode(kind, records, classes, masks), False)
        writing, start = time.process_time() - start, time.process_time()
        with opened(folder / "ours.zip") as members:
            own = {Path(f.name).stem: f.record().mask for f in formats.decode(kind, members, classes)}
        reading = time.process_time() - start
        row: list[object] = [kind, masks if kind == "coco" else "", differing(own, records)]
        if kind in THEIRS:
            write_members(folder / "ours", formats.encode(kind, records, classes, masks), False)
            for record in records:
                path = folder / "ours" / (formats.IMAGE_FOLDERS[kind] or "images") / record.image
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (record.width, record.height)).save(path)
            judge("read", kind, folder / "ours", folder / "found.npz", names)
            row.append(differing(dict(np.load(folder / "found.npz")), records))
            np.savez(folder / "masks.npz", **{Path(record.image).stem: record.mask for record in records})
            judge("write", kind, folder / "masks.npz", folder / "theirs", names)
            with opened(folder / "theirs" / THEIRS[kind]) as members:
                theirs = {Path(f.name).stem: f.record().mask for f in formats.decode(kind, members, classes)}
            row.append(differing(theirs, records))
        else:
            row += ["", ""]
        size = (folder / "ours.zip").stat().st_size / 1024 / len(records)
        return [*row, f"{1000 * writing / len(records):.0f}", f"{1000 * reading / len(records):.0f}", f"{size:.1f}"]


def main() -> None:
    """Print a table."""
    folder, number, most = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 40
    colours = default_colours(number)
    classes = tuple(ClassColour(i, f"class {i}", "#" + bytes(colour).hex()) for i, colour in enumerate(colours))
    records = []
    for path in sorted(folder.rglob("*.png"))[:most]:
        mask = read_index_mask(path)
        mask = np.where(mask < number, mask, UNKNOWN).astype(np.uint8)
        height, width = mask.shape
        records.append(LabelRecord(f"{path.stem}.png", width, height, (0, 0, width, height), mask))
    print(f"{len(records)} masks, {sum(record.mask.size for record in records):,} pixels, {number} classes")
    print("| format | masks | we read ours | datumaro reads ours | we read datumaro's | ms to write | to read | KB |")
    for kind, masks in [
        ("cvat", ""),
        *(("coco", kind) for kind in ("rle", "counts", "polygons")),
        ("voc", ""),
        ("png", ""),
    ]:
        print("|", " | ".join(map(str, measure(kind, masks or "rle", records, classes))), "|", flush=True)


if __name__ == "__main__":
    main()
