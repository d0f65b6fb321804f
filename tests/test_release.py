"""The release: one version everywhere, and a wheel that needs no repository."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import ralseg
from ralseg.agents.loading import load_policy
from ralseg.runtime.checkpoints import read_checkpoint

REPO = Path(ralseg.__file__).parent.parent
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def sections(changelog: str) -> dict[str, str]:
    """The text of each version."""
    parts = re.split(r"^## \[(.+?)\](?: - (\S+))?$", changelog, flags=re.M)
    return {f"{version} {date or ''}".strip(): text for version, date, text in zip(*[iter(parts[1:])] * 3, strict=True)}


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text())
    versions = list(sections((REPO / "CHANGELOG.md").read_text()))
    assert citation["version"] == ralseg.__version__
    assert versions[0] == "Unreleased"
    assert versions[1] == f"{ralseg.__version__} {citation['date-released']}"
    numbers = [tuple(map(int, version.split()[0].split("."))) for version in versions[1:]]
    assert numbers == sorted(numbers, reverse=True)


def test_the_changelog_sorts_changes_as_its_readers_know_it():
    for version, text in sections((REPO / "CHANGELOG.md").read_text()).items():
        headings = set(re.findall(r"^### (.+)$", text, re.M))
        assert headings <= KINDS, version
        assert headings or version == "Unreleased"


def test_the_workflow_calls_what_contributors_call():
    (job,) = yaml.safe_load((REPO / ".github/workflows/ci.yml").read_text())["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["make lint test docs"]
    targets = re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.M)
    assert {"lint", "test", "docs", "release-check", "notebook"} <= set(targets)


@pytest.mark.parametrize("form", sorted((REPO / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem)
def test_issue_templates_are_forms_that_a_forge_reads(form):
    content = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= content.keys()
    names = [field["id"] for field in content["body"]]
    assert len(set(names)) == len(names)
    for field in content["body"]:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes")
        assert field["attributes"]["label"]


KEPT = sorted((REPO / "docs/study").rglob("*.ckpt"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_policies_of_the_first_version_still_load(path):
    about = read_checkpoint(path)["ralseg"]
    assert about["version"] == "0.1.0"
    fits = about["policy"]["fits"]
    names, state = fits.get("class_names", ["a", "b"]), range(fits.get("num_state_regions", 1))
    data = SimpleNamespace(class_names=names, regions=lambda name: state, canvas=None)
    assert type(load_policy(path, data)).__name__ == about["policy"]["class_path"].rpartition(".")[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a minute by itself; a busy machine takes its time
def test_the_wheel_runs_where_there_is_no_repository():
    done = subprocess.run(
        [sys.executable, "tests/support/release.py", "--short"], cwd=REPO, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "$ ralseg acquire --config photos.yaml --policy ralseg" in done.stdout
    assert done.stdout.endswith("the wheel installs and runs\n")
