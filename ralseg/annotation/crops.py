"""Crops as files: regions go out as pictures, masks come back, and a run goes on when they are there."""

import json

from ralseg.annotation.people import PeopleOracle
from ralseg.annotation.request import Request
from ralseg.labels.oracle import LabelsNeeded
from ralseg.runtime.files import write_atomically

FORMAT = "ralseg.request/1"


class CropOracle(PeopleOracle):
    """Writes regions as crops to label, stops, and reads the masks that people put beside them.

    ``to_label/manifest.json`` lists what is wanted now in few words (``request.json`` in all), ``to_label/crops`` holds
    the pictures in the files' own resolution, ``to_label/masks`` is where an index PNG of the same name and size is
    expected: class numbers as in the manifest, 255 for what cannot be told; or the classes' colours. A mask that is
    replaced later is read again when the run is resumed. Whoever gives the command again says that the model shall go
    on: ``min_answers`` masks are enough then. A mask of a reserve takes the place of one that is missing.
    """

    def wait(self, request: Request) -> None:
        """Stop the run, unless so many masks are there that it may go on."""
        status = self.answers.status()
        if self.min_answers is not None and status.can_finish:
            self.answers.finish("")
            return
        self._write_manifest(request)
        is_less = self.min_answers is not None and self.min_answers < status.wanted
        enough = f"; {self.min_answers} are enough to go on" if is_less else ""
        raise LabelsNeeded(
            f"{status.open} of {status.wanted} regions wait for labels: {self.folder / 'manifest.json'} lists them"
            f"{enough}. Put an index PNG for each crop into {self.folder / 'masks'}, then give the same command with "
            "--ckpt last"
        )

    def _write_manifest(self, request: Request) -> None:
        """Say in few words what is wanted."""
        keys = ("image", "region", "x", "y", "width", "height", "crop", "mask", "prediction", "reserve")
        content = {
            "format": FORMAT,
            "classes": {entry.number: entry.name for entry in request.classes},
            "ignore": request.ignore,
            "regions": [{key: getattr(wanted, key) for key in keys} for wanted in request.regions],
        }
        write_atomically(self.folder / "manifest.json", json.dumps(content, indent=1) + "\n")
