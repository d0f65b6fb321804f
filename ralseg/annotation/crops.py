"""Crops as files: regions go out as pictures, masks come back, and a run goes on when all are there."""

import json
import re
from pathlib import Path

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms

from ralseg.data.readers import map_ids, read_index_mask
from ralseg.errors import ConfigError, DataError
from ralseg.labels.layout import Box
from ralseg.labels.oracle import LabellingJob, LabelsNeeded, Oracle
from ralseg.labels.vault import IGNORE
from ralseg.runtime.files import read_json, write_atomically, write_png

FORMAT = "ralseg.request/1"


class CropOracle(Oracle):
    """Writes regions as crops to label, and reads the masks that people put beside them.

    ``to_label/manifest.json`` lists what is wanted now, ``to_label/crops`` holds the pictures in the files' own
    resolution, ``to_label/masks`` is where an index PNG of the same name and size is expected: class numbers as
    in the manifest, 255 for what cannot be told. A mask that is replaced later is read again when the run is resumed.
    """

    folder: Path

    def open(self, job: LabellingJob) -> None:
        """Take ``to_label`` in the run's folder."""
        super().open(job)
        if job.folder is None:
            raise ConfigError("--oracle crops writes into the run's folder, but this run has none")
        self.folder = job.folder / "to_label"

    def label(self, regions: Tensor) -> Tensor:
        """The labels of regions; where some are missing, ask for them and raise ``LabelsNeeded``."""
        names = [self._name(region) for region in regions.tolist()]
        missing = [i for i, name in enumerate(names) if not (self.folder / "masks" / name).is_file()]
        if missing:
            self._request(regions, names)
            raise LabelsNeeded(
                f"{len(missing)} of {len(names)} regions wait for labels: {self.folder / 'manifest.json'} lists them. "
                f"Put an index PNG for each crop into {self.folder / 'masks'}, then give the same command with "
                "--ckpt last"
            )
        if not names:
            return torch.empty(0, *self.job.regions.box_size, dtype=torch.uint8)
        return torch.stack([self._read(name, region) for name, region in zip(names, regions.tolist(), strict=True)])

    def asked(self, step: int) -> list[int]:
        """The regions of the last request."""
        content = read_json(self.folder / "manifest.json")
        try:
            return [int(entry["region"]) for entry in content["regions"]]
        except (ValueError, KeyError, TypeError):
            return []

    def _image(self, region: int) -> int:
        return int(self.job.regions.image_of(torch.tensor(region)))

    def _name(self, region: int) -> str:
        stem = re.sub(r"[^A-Za-z0-9.-]+", "_", self.job.image_names[self._image(region)])[-60:]
        regions = self.job.regions
        place = "".join(
            f"_{name}{number}" for name, number in zip(regions.place_names, regions.place(region), strict=True)
        )
        return f"{region:07d}_{stem}{place}.png"

    def _read(self, name: str, region: int) -> Tensor:
        path = self.folder / "masks" / name
        ids = read_index_mask(path)
        known = {i: i for i in (*range(len(self.job.class_names)), IGNORE)}
        mask = torch.from_numpy(map_ids(path, ids, known).copy())
        box: Box = self.job.regions.file_box(region)
        if mask.shape != (box[3], box[2]):
            raise DataError(
                f"{path}: mask has {mask.shape[0]}x{mask.shape[1]} pixels, its crop {box[3]}x{box[2]} (height x width)"
            )
        regions = self.job.regions
        width, height = regions.boxes(torch.tensor(region)).tolist()[2:]
        resized: Tensor = transforms.resize(mask[None], [height, width], InterpolationMode.NEAREST_EXACT)[0]
        inside = regions.inside(region)
        if inside is not None:
            resized = torch.where(inside, resized, IGNORE)
        return regions.fit_box(resized)

    def _request(self, regions: Tensor, names: list[str]) -> None:
        """Write the crops and the manifest; masks that are there already stay."""
        job = self.job
        (self.folder / "masks").mkdir(parents=True, exist_ok=True)
        wanted = []
        for region, name in zip(regions.tolist(), names, strict=True):
            image = self._image(region)
            x, y, width, height = job.regions.file_box(region)
            crop = self.folder / "crops" / name
            if not crop.is_file():
                write_png(crop, job.read_image(image)[y : y + height, x : x + width])
            wanted.append(
                {
                    "image": job.image_names[image],
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
            "classes": dict(enumerate(job.class_names)),
            "ignore": IGNORE,
            "regions": wanted,
        }
        write_atomically(self.folder / "manifest.json", json.dumps(content, indent=1) + "\n")
