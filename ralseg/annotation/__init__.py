"""Oracles that need people: they ask for labels, and a run goes on when the answers are there.

Here live the ways to ask: crops as files, and what later tools need. Nothing here chooses or trains.
"""

from ralseg.annotation.crops import CropOracle

__all__ = ["CropOracle"]
