"""What the study's pages say is what its script prints from every seed's scores."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
REPO = Path(__file__).parents[2]

FIGURES = re.compile(r"± |\[[+-]?\d")


@pytest.fixture(scope="module")
def printed() -> list[str]:
    run = [sys.executable, "benchmarks/study_results.py"]
    return subprocess.run(run, cwd=REPO, check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.parametrize("page", ["README.md", "docs/study/README.md", "docs/study/earlier.md"])
def test_tables_are_what_the_script_prints(page, printed):
    rows = [line for line in (REPO / page).read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [row for row in rows if FIGURES.search(row)]
    assert rows
    assert [row for row in rows if row not in printed] == []
