"""Oracles that need people: they ask for labels, and a run goes on when the answers are there.

Here live the request as a file, the journal of answers, and the ways to ask: crops as files, a page of our own, Label
Studio, and the files of other tools. Nothing here chooses or trains.
"""

from ralseg.annotation.answers import Answers
from ralseg.annotation.crops import CropOracle
from ralseg.annotation.journal import Cost, Journal
from ralseg.annotation.label_studio.oracle import LabelStudioOracle
from ralseg.annotation.page_oracle import PageOracle
from ralseg.annotation.people import PeopleOracle
from ralseg.annotation.request import ClassColour, Request, WantedRegion
from ralseg.annotation.turns import Status

__all__ = [
    "Answers",
    "ClassColour",
    "Cost",
    "CropOracle",
    "Journal",
    "LabelStudioOracle",
    "PageOracle",
    "PeopleOracle",
    "Request",
    "Status",
    "WantedRegion",
]
