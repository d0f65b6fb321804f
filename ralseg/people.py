"""People as the oracle: crops go out, masks come back, and a run goes on when all are there."""

import json
import re
from pathlib import Path

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from ralseg.data.module import SegmentationData
from ralseg.data.readers import IGNORE, map_ids, read_index_mask
from ralseg.errors import DataError, RalsegError
from ralseg.files import read_json, write_atomically, write_png

FORMAT = "ralseg.request/1"
Box = tuple[int, int, int, int]


class LabelsNeeded(RalsegError):
    """Regions wait for people to label them: not a failure, but the run cannot go on."""

    exit_code = 0


class PeopleOracle:
    """Writes regions as crops to label, and reads the masks that people put beside them.

    ``to_label/manifest.json`` lists what is wanted now, ``to_label/crops`` holds the pictures in the files' own
    resolution, ``to_label/masks`` is where an index PNG of the same name and size is expected: class numbers as
    in the manifest, 255 for what cannot be told.

    Args:
        folder: The run's folder.
        data: The data; images need no masks.
        set_name: The set whose regions are labelled.
    """

    def __init__(self, folder: Path, data: SegmentationData, set_name: str) -> None:
        self.folder, self._data, self._set = folder / "to_label", data, set_name

    def label(self, regions: Tensor) -> Tensor:
        """The labels of regions; where some are missing, ask for them and raise :class:`LabelsNeeded`."""
        names = [self._name(region) for region in regions.tolist()]
        missing = [i for i, name in enumerate(names) if not (self.folder / "masks" / name).is_file()]
        if missing:
            self._ask(regions, names)
            raise LabelsNeeded(
                f"{len(missing)} of {len(names)} regions wait for labels: {self.folder / 'manifest.json'} lists them. "
                f"Put an index PNG for each crop into {self.folder / 'masks'}, then give the same command with "
                "--ckpt last"
            )
        grid = self._data.grid
        if not names:
            return torch.empty(0, grid.cell_height, grid.cell_width, dtype=torch.uint8)
        return torch.stack([self._read(name, self.box(r)) for name, r in zip(names, regions.tolist(), strict=True)])

    def asked(self) -> list[int]:
        """The regions of the last request."""
        content = read_json(self.folder / "manifest.json")
        try:
            return [int(entry["region"]) for entry in content["regions"]]
        except (ValueError, KeyError, TypeError):
            return []

    def box(self, region: int) -> Box:
        """x, y, width, height of a region in its file's own pixels."""
        return file_box(self._data, self._set, region)

    def _name(self, region: int) -> str:
        grid = self._data.grid
        image = self._data.splits[self._set][region // grid.cells]
        stem = re.sub(r"[^A-Za-z0-9.-]+", "_", self._data.dataset.names[image])[-60:]
        row, column = divmod(region % grid.cells, grid.columns)
        return f"{region:07d}_{stem}_row{row}_column{column}.png"

    def _read(self, name: str, box: Box) -> Tensor:
        path = self.folder / "masks" / name
        ids = read_index_mask(path)
        known = {i: i for i in (*range(len(self._data.class_names)), IGNORE)}
        mask = torch.from_numpy(map_ids(path, ids, known).copy())
        if mask.shape != (box[3], box[2]):
            raise DataError(
                f"{path}: mask has {mask.shape[0]}x{mask.shape[1]} pixels, its crop {box[3]}x{box[2]} (height x width)"
            )
        grid = self._data.grid
        size = [grid.cell_height, grid.cell_width]
        resized: Tensor = transforms.resize(mask[None], size, InterpolationMode.NEAREST_EXACT)[0]
        return resized

    def _ask(self, regions: Tensor, names: list[str]) -> None:
        """Write the crops and the manifest; masks that are there already stay."""
        data = self._data
        (self.folder / "masks").mkdir(parents=True, exist_ok=True)
        wanted = []
        for region, name in zip(regions.tolist(), names, strict=True):
            image = data.splits[self._set][region // data.grid.cells]
            x, y, width, height = self.box(region)
            crop = self.folder / "crops" / name
            if not crop.is_file():
                pixels = data.dataset.read_image(image)[y : y + height, x : x + width]
                write_png(crop, pixels)
            wanted.append(
                {
                    "image": data.dataset.names[image],
                    "region": region,
                    "x": x,
                    "y": y,
                    "width": width,
                    "height": height,
                    "crop": f"crops/{name}",
                    "mask": f"masks/{name}",
                }
            )
        content = {
            "format": FORMAT,
            "classes": dict(enumerate(data.class_names)),
            "ignore": IGNORE,
            "regions": wanted,
        }
        write_atomically(self.folder / "manifest.json", json.dumps(content, indent=1) + "\n")


def file_box(data: SegmentationData, set_name: str, region: int) -> Box:
    """x, y, width, height of a region in the pixels of its image file, whatever size the run works at."""
    image = data.splits[set_name][region // data.grid.cells]
    height, width = data.dataset.image_size(image)
    row, column = divmod(region % data.grid.cells, data.grid.columns)
    left, right = (round(width * c / data.grid.columns) for c in (column, column + 1))
    top, bottom = (round(height * r / data.grid.rows) for r in (row, row + 1))
    return left, top, right - left, bottom - top
