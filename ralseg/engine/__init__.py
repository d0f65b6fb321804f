"""Runs: sessions of labelling step by step, the loop and Trainers that drive them, and final trainings.

Here live the ActiveLearningLoop (a custom Lightning loop), what a step does in `fit` and in `acquire`, root
LightningModules, Trainers and their callbacks. Nothing here knows how an agent learns or how a study compares.
"""

from ralseg.engine.acquire_session import AcquisitionConfig
from ralseg.engine.acquire_trainer import AcquireTrainer
from ralseg.engine.final_training import FinalTraining
from ralseg.engine.fit_trainer import FitTrainer
from ralseg.engine.game import Game
from ralseg.engine.loop import ActiveLearningLoop
from ralseg.engine.session import Session, StepResult
from ralseg.engine.short_training import ShortTraining
from ralseg.engine.trainer import RunTrainer

__all__ = [
    "AcquireTrainer",
    "AcquisitionConfig",
    "ActiveLearningLoop",
    "FinalTraining",
    "FitTrainer",
    "Game",
    "RunTrainer",
    "Session",
    "ShortTraining",
    "StepResult",
]
