"""Labelling jobs that tests may change and fail with."""

from dataclasses import fields
from typing import Any

from ralseg.labels import LabellingJob


class QuietJob(LabellingJob):
    """A job that says little: the words for all its images take minutes, and pytest asks for them on a failure."""

    def __repr__(self) -> str:
        return "job"


def quiet_job(job: LabellingJob, **changes: Any) -> LabellingJob:
    """The same job with changes."""
    return QuietJob(**{field.name: getattr(job, field.name) for field in fields(job)} | changes)
