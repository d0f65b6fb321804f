"""Shared fixtures. The OpenMP settings must stand before torch is imported."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import pytest
from hypothesis import settings

from ralseg.data import SegmentationData
from ralseg.runtime.allowed_imports import VARIABLE
from ralseg.runtime.signals import interrupts
from support.configs import ACQUIRE, STUDY
from support.data import small_data
from support.forge import Forge, open_forge

settings.register_profile("ralseg", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("ralseg")


def pytest_collection_modifyitems(items):
    """The longest tests, which may take longer than others, begin first: else one process would wait for another."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


def pytest_collection_finish(session):
    """What is imported by now stays: looking through it again and again would be a twentieth of all time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def cache_of_tests(tmp_path_factory):
    """Copies of images go to a folder of the tests'."""
    os.environ["RALSEG_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def disks_are_not_waited_for():
    """Files are written and renamed as ever; no test takes the power away, so nothing has to reach the disk."""
    patch = pytest.MonkeyPatch()
    patch.setattr(os, "fsync", lambda descriptor: None)
    yield
    patch.undo()


@pytest.fixture(scope="session")
def forge() -> Iterator[Forge]:
    """Commands in processes of their own, without the seconds that a start takes."""
    with open_forge() as forge:
        yield forge


@pytest.fixture(autouse=True)
def nobody_asked_to_stop(monkeypatch):
    """A signal of an earlier test is not this one's."""
    monkeypatch.setattr(interrupts, "asked", None)


@pytest.fixture(autouse=True)
def nothing_of_others_is_allowed(monkeypatch):
    """What a command of an earlier test was allowed to import, by the environment, is not this one's."""
    monkeypatch.setenv(VARIABLE, "")


@pytest.fixture(scope="session")
def camvid_root() -> str:
    root = os.environ.get("RALSEG_CAMVID", "")
    if not Path(root, "trainannot").is_dir():
        pytest.skip("real CamVid is absent: RALSEG_CAMVID does not name its folder")
    return root


@pytest.fixture
def data() -> SegmentationData:
    module = small_data()
    module.setup()
    return module


@pytest.fixture
def study_folder(tmp_path, monkeypatch) -> Path:
    """The current folder for a test, with a small study and its configuration of `acquire` in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "tiny.yaml").write_text(ACQUIRE)
    (tmp_path / "study.yaml").write_text(STUDY)
    return tmp_path
