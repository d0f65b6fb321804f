"""Runs examples/tour.py cell by cell and keeps it with its outputs as examples/tour.ipynb: `make notebook`.

The script is the source: it can be read in a diff, linted, and run. tests/test_examples.py compares the two.
"""

import os
import re
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"
SOURCE, NOTEBOOK = EXAMPLES / "tour.py", EXAMPLES / "tour.ipynb"


def cells(script: str) -> list[tuple[str, str]]:
    r"""The cells of a script in the percent format: their kind, ``markdown`` or ``code``, and their text.

    Examples:
        >>> cells("# %% [markdown]\n# # Title\n#\n# Text\n\n# %%\nx = 1\n")
        [('markdown', '# Title\n\nText'), ('code', 'x = 1')]
    """
    found = []
    for cell in re.split(r"^# %%", script, flags=re.M)[1:]:
        head, _, text = cell.partition("\n")
        if head.strip() == "[markdown]":
            found.append(("markdown", re.sub(r"^# ?", "", text, flags=re.M).strip()))
        else:
            found.append(("code", text.strip()))
    return found


def build() -> None:
    """Run all cells in a folder that is thrown away, and write the notebook."""
    import nbformat
    from nbclient import NotebookClient

    made = nbformat.v4.new_notebook()
    made.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for number, (kind, text) in enumerate(cells(SOURCE.read_text(encoding="utf-8"))):
        made.cells.append(getattr(nbformat.v4, f"new_{kind}_cell")(text, id=f"cell{number}"))
    os.environ["PYTHONWARNINGS"] = "ignore"  # of libraries, for the kernel
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(made, timeout=1800, resources={"metadata": {"path": folder}}, record_timing=False).execute()
        text = nbformat.writes(made)
        stray = [place for place in (folder, str(Path.home()), str(EXAMPLES.parent)) if place in text]
        if stray or '"stderr"' in text:
            raise SystemExit(f"not kept: an output names a path of this machine ({stray}) or holds warnings:\n{text}")
    made.metadata = {"kernelspec": made.metadata["kernelspec"]}
    NOTEBOOK.write_text(nbformat.writes(made) + "\n", encoding="utf-8")


if __name__ == "__main__":
    build()
