"""A small study, and a way to run it without waiting for processes."""

from ralseg import study

STUDY = """
name: small study
folder: out
acquire: tiny.yaml
methods: {uniform: uniform, entropy: entropy}
ours: entropy
seeds: [0, 1]
jobs: 2
"""


def run_here(cells, engine, run_command, retries, say=print):
    """Cells in this process: workers need seconds to start."""
    problems = {cell.title: study.run_cell(cell, run_command) for cell in cells}
    return {title: problem for title, problem in problems.items() if problem}
