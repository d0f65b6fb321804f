"""Known holes in what ralseg stands on: neither the pinned versions nor the allowed ranges may have them.

`make audit` asks the public advisory database, which needs the internet; this list works without.
"""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

REPO = Path(__file__).parents[2]
FIXED_IN = [
    ("lightning", "2.6.4", "GHSA-w37p-236h-pfx3: 2.6.2 and 2.6.3 steal credentials when imported"),
    ("lightning", "2.6.6", "CVE-2026-58659: a checkpoint's _instantiator runs code in spite of weights_only"),
    ("torch", "2.6.0", "CVE-2025-32434: code execution with weights_only"),
    ("torch", "2.10.0", "CVE-2026-24747: memory corruption with weights_only"),
    ("mlflow", "3.8.1", "CVE-2026-2033, CVE-2026-0596: code execution through artifacts, command injection"),
    ("mlflow", "3.10.0", "CVE-2026-2614: arbitrary files can be read"),
    ("mlflow", "3.13.0", "CVE-2026-8147: authorization of traces"),
    ("mlflow", "3.16.0", "CVE-2026-71211: server-side request forgery"),
    ("pillow", "12.1.1", "CVE-2026-25990: PSD, write out of bounds"),
    ("pillow", "12.2.0", "CVE-2026-40192: FITS bomb"),
    ("pillow", "12.3.0", "CVE-2026-59199 and others: heap writes"),
    ("starlette", "0.49.1", "CVE-2025-62727: a Range header that keeps the server busy"),
    ("jinja2", "3.1.6", "CVE-2025-27516: escape from the sandbox"),
]


def pins() -> dict[str, Version]:
    lines = (REPO / "constraints.txt").read_text().splitlines()
    found = [re.match(r"([\w.-]+)==([\w.+!]+)", line) for line in lines]
    return {match[1].lower(): Version(match[2]) for match in found if match}


@pytest.mark.parametrize(("package", "fixed", "advisory"), FIXED_IN)
def test_pins_and_ranges_are_beyond_known_holes(package, fixed, advisory):
    assert pins()[package] >= Version(fixed), advisory
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    allowed = {Requirement(text).name: Requirement(text).specifier for text in project["dependencies"]}
    lowest = min(Version(part.version) for part in allowed[package] if part.operator == ">=")
    assert lowest >= Version(fixed), advisory


def test_everything_that_is_installed_is_pinned():
    wanted, seen = ["ralseg"], set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        for text in metadata.requires(name) or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                wanted.append(re.sub(r"[-_.]+", "-", needed.name).lower())
    names = {re.sub(r"[-_.]+", "-", name) for name in pins()}
    assert seen - {"ralseg"} <= names


def test_nothing_under_the_agpl_is_needed():
    for name in pins():
        try:
            about = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue  # of another platform
        said = " ".join([about.get("License-Expression") or "", *(about.get_all("Classifier") or [])])
        assert "AGPL" not in said, name
        assert "Affero" not in said, name
