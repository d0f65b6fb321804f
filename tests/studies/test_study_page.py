"""What the study's pages say is what its script prints from every seed's scores."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
REPO = Path(__file__).parents[2]

SCORE = re.compile(r"\d\.\d\d")
INTERVAL = re.compile(r"[+-]\d+\.\d\d \[[+-]\d+\.\d\d, [+-]\d+\.\d\d\]|\d+ % \[-?\d+, \d+\]")
WIDEST = 100
STUDY = [f"docs/study/{name}.md" for name in ("README", "details", "earlier")]


def page(name: str) -> str:
    return (REPO / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def printed() -> list[str]:
    run = [sys.executable, "benchmarks/study_results.py"]
    return subprocess.run(run, cwd=REPO, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize("name", ["README.md", *STUDY])
def test_tables_are_what_the_script_prints(name, printed):
    rows = [line for line in page(name).splitlines() if line.startswith("| ") and SCORE.search(line)]
    assert rows
    assert [row for row in rows if row not in printed] == []


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", *STUDY[:2]])
def test_every_interval_in_the_text_is_one_that_the_script_prints(name, printed):
    quoted = INTERVAL.findall(" ".join(page(name).split()))
    assert quoted
    assert set(quoted) - set(INTERVAL.findall("\n".join(printed))) == set()


def test_the_readme_shows_the_studys_table():
    rows = [line for line in page("docs/study/README.md").splitlines() if line.startswith("| ") and SCORE.search(line)]
    assert len(rows) == 5
    assert "\n".join(rows) in page("README.md")


@pytest.mark.parametrize("name", ["README.md", *STUDY])
def test_no_line_is_wider_than_a_screen(name):
    lines = [line for line in page(name).splitlines() if not line.startswith("|")]
    assert [line for line in lines if len(line) > WIDEST] == []
