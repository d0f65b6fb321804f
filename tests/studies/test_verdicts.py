"""What a study says in words: each form of the headline, and no box that contradicts its verdict."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from ralseg.studies.report import make_report
from ralseg.studies.run import score_table
from ralseg.studies.statistics import MOST_MORE
from ralseg.studies.tables import Table, compare
from ralseg.studies.verdicts import headline, labels_said, said
from support.studies import fake_results

BUDGETS = [100, 200, 300]


def table_of(**curves) -> Table:
    """A table of [seeds, budgets] scores by method."""
    scores = {name: np.asarray(curve, float) for name, curve in curves.items()}
    seeds = list(range(len(next(iter(scores.values())))))
    return Table(BUDGETS, seeds, list(scores), scores, scores)


def noisy(mean: list[float], seeds: int, spread: float = 0.2, number: int = 0) -> np.ndarray:
    """Curves with exactly that mean and standard deviation; a seed is as much off at all budgets."""
    offsets = np.random.default_rng(number).normal(0, 1, seeds)
    offsets = spread * (offsets - offsets.mean()) / offsets.std(ddof=1)
    return np.asarray(mean)[None] + offsets[:, None]


def sentence_of(table: Table, ours: str, is_named: bool = True) -> str:
    others = [method for method in table.methods if method != ours]
    return headline(ours, [compare(table, ours, other) for other in others], is_named)


def test_ahead_with_labels_saved():
    table = table_of(uniform=noisy([40, 42, 44], 6, number=1), learned=noisy([42, 44, 46], 6, number=2))
    found = re.fullmatch(
        r"Use learned: it reached uniform's best score with (\d+) % fewer labels \((\d+) to (\d+) %\), 6 seeds\.",
        sentence_of(table, "learned"),
    )
    assert found
    saved, low, high = map(int, found.groups())
    assert 0 < low <= saved <= high
    assert saved == round(100 / 3)  # 200 labels instead of 300


def test_ahead_of_several():
    table = table_of(
        bald=noisy([41, 43, 45], 6, number=3),
        uniform=noisy([40, 42, 44], 6, number=1),
        learned=noisy([42, 44, 46], 6, number=2),
    )
    said_ = sentence_of(table, "learned")
    assert said_.startswith("Use learned: it reached uniform's best score with 33 % fewer labels")
    assert said_.endswith("and is ahead of all 2 others, 6 seeds.")


def test_ahead_with_too_few_seeds_for_labels_saved():
    table = table_of(
        uniform=noisy([40, 42, 44], 4, number=1),
        bald=noisy([41, 43, 45], 4, number=3),
        learned=noisy([42, 44, 46], 4, number=2),
    )
    assert re.fullmatch(
        r"Use learned: it is ahead of all 2 others, of the closest, bald, by 1\.00 points of mean IoU over the budget "
        r"curve \(0\.\d\d to 1\.\d\d\), 4 seeds\.",
        sentence_of(table, "learned"),
    )
    alone = table_of(uniform=noisy([40, 42, 44], 4, number=1), learned=noisy([42, 44, 46], 4, number=2))
    assert sentence_of(alone, "learned").startswith("Use learned: it is ahead of uniform by 2.00 points")


def test_behind():
    table = table_of(
        uniform=noisy([40, 42, 44], 6, number=1),
        bald=noisy([43, 45, 47], 6, number=3),
        margin=noisy([42.5, 44.5, 46.5], 6, number=4),
        learned=noisy([41, 43, 45], 6, number=2),
    )
    assert re.fullmatch(
        r"Use bald rather than learned: bald is ahead by 2\.00 points of mean IoU over the budget curve "
        r"\([12]\.\d\d to 2\.\d\d\), 6 seeds\.",
        sentence_of(table, "learned"),
    )


def test_undecided():
    table = table_of(uniform=noisy([40, 42, 44], 3, 0, 1), learned=noisy([40.5, 42.5, 44.5], 3, 0.5, 2))
    verdict = compare(table, "learned", "uniform")
    assert verdict.area.more is not None
    assert sentence_of(table, "learned") == (
        f"Undecided between learned and uniform after 3 seeds; about {verdict.area.more} more seeds would settle it."
    )


def test_undecided_against_some():
    table = table_of(
        uniform=noisy([30, 32, 34], 3, 0, 1),
        bald=noisy([40, 42, 44], 3, 0, 1),
        margin=noisy([40.2, 42.2, 44.2], 3, 0, 1),
        learned=noisy([40.5, 42.5, 44.5], 3, 0.4, 2),
    )
    more = [compare(table, "learned", other).area.more for other in ("bald", "margin")]
    assert None not in more
    assert more[0] != more[1]
    assert sentence_of(table, "learned") == (
        "Undecided between learned and bald or margin after 3 seeds, though learned is ahead of uniform; "
        f"about {max(more)} more seeds would settle it."
    )


def test_no_absurd_numbers_of_seeds():
    table = table_of(
        uniform=noisy([40, 42, 44], 3, 0, 1),
        equal=noisy([40.5, 42.5, 44.5], 3, 0.5, 2),
        learned=noisy([40.01, 42.01, 44.01], 3, 0.5, 3),
    )
    said_ = sentence_of(table, "learned")
    assert said_.endswith(f"more than {MOST_MORE} more seeds would be needed.")
    for text in (said_, *(said(compare(table, "learned", other)) for other in ("uniform", "equal"))):
        assert all(int(number) <= MOST_MORE for number in re.findall(r"(\d+) more", text))


def test_one_seed():
    table = table_of(uniform=[[40, 42, 44]], bald=[[40, 42, 44]], learned=[[42, 44, 46]])
    assert sentence_of(table, "learned") == (
        "Undecided between learned and uniform or bald: one seed says nothing about chance; run at least 3."
    )
    assert "one seed says nothing" in said(compare(table, "learned", "bald"))


def test_without_ours_the_best_by_the_mean_is_compared(tmp_path):
    results = fake_results(["uniform", "bald", "entropy"], range(6), effect=1.0)
    page, table, verdicts, sentence = make_report(results, ["bald", "entropy", "uniform"], tmp_path, "x")
    assert table.best() == "entropy"
    assert {(verdict.method, verdict.baseline) for verdict in verdicts} == {("entropy", "bald"), ("entropy", "uniform")}
    assert sentence.startswith("Use entropy, the best of 3 by the mean: it reached uniform's best score with")
    assert "The best of several looks better than it is" in " ".join(page.read_text().split())
    assert json.loads((tmp_path / "verdict.json").read_text())["ours_was_named"] is False
    close = table_of(uniform=noisy([40, 42, 44], 3, 0.5, 1), bald=noisy([40.1, 42.1, 44.1], 3, 0.5, 2))
    assert sentence_of(close, "bald", is_named=False).startswith(
        "Undecided between bald, the best of 2 by the mean, and uniform after 3 seeds;"
    )


def test_a_method_that_misses_seeds(tmp_path):
    results = fake_results(["uniform", "bald", "learned"], range(8), effect=1.0)
    results = [r for r in results if not (r["method"] == "bald" and r["seed"] in (2, 5))]
    page, table, _, sentence = make_report(
        results, ["uniform", "bald", "learned"], tmp_path, "x", "learned", missing=["bald/seed2", "bald/seed5"]
    )
    assert table.seeds == [0, 1, 3, 4, 6, 7]
    assert sentence.endswith("6 seeds.")  # of the eight that learned and uniform have
    text = page.read_text()
    assert "Incomplete: bald/seed2, bald/seed5 not finished; seeds without all methods are left out." in text
    assert text.index("Incomplete") < text.index("<details>")


def test_a_method_without_any_seed(tmp_path):
    results = fake_results(["uniform", "bald"], range(3))
    *_, verdicts, sentence = make_report(results, ["uniform", "bald", "learned"], tmp_path, "x", "learned")
    assert not verdicts
    assert sentence == "Nothing can be said yet: learned has no finished seed beside another method."
    *_, sentence = make_report(results[::2], ["uniform"], tmp_path, "x")
    assert sentence == "Nothing can be said yet: uniform has no finished seed beside another method."


# -- labels saved ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "seeds", "told"),
    [
        (
            [42, 44, 46],
            [40, 42, 44],
            6,
            r"Labels saved: 33 % \(\d+ to \d+ %\) for uniform's best score, 44\.0 points\.",
        ),
        ([42, 44, 46], [40, 42, 44], 4, r"Labels saved: cannot be told from fewer than 6 seeds\."),
        # ahead over the curve, but late to the baseline's best score, or never there: the curves cross
        (
            [46, 46.2, 46.4],
            [40, 46, 46.5],
            6,
            r"Labels saved: cannot be told from one score: the budget curves cross\.",
        ),
        ([44, 44.2, 46], [40, 45, 45], 6, r"Labels saved: cannot be told from one score: the budget curves cross\."),
        ([40, 42, 44], [42, 44, 46], 6, r"Labels saved: none; uniform's best score, 46\.0 points, was not reached .*"),
        ([40, 42, 47], [42, 45, 45], 6, r"Labels saved: none; 30 % \(\d+ to \d+ %\) more were needed for uniform's .*"),
        ([40, 42, 44], [40, 42, 44], 6, r"Labels saved: cannot be told while the verdict is undecided\."),
    ],
)
def test_labels_saved_are_said_where_they_agree_with_the_verdict(ours, theirs, seeds, told):
    table = table_of(uniform=noisy(theirs, seeds, 0), learned=noisy(ours, seeds, 0.1))
    assert re.fullmatch(told, labels_said(compare(table, "learned", "uniform")))


def test_labels_saved_from_one_budget():
    scores = {"uniform": np.array([[40.0], [41.0]]), "learned": np.array([[45.0], [46.1]])}
    table = Table([100], [0, 1], ["uniform", "learned"], scores, scores)
    assert labels_said(compare(table, "learned", "uniform")) == "Labels saved: cannot be told from one budget."


def test_no_box_contradicts_its_verdict():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(150):
        seeds = int(rng.integers(3, 9))
        shape, lift = rng.normal(0, 1.5, 3), rng.normal(0, 1)
        curves = {name: noisy([40, 43, 45], seeds, rng.uniform(0.1, 1), int(rng.integers(99))) for name in "ab"}
        verdict = compare(table_of(uniform=curves["a"], learned=curves["b"] + shape + lift), "learned", "uniform")
        labels, standing = labels_said(verdict), verdict.area.standing
        seen.add((standing, labels.split(";")[0].split("(")[0].rstrip("0123456789 %")))
        assert (" is ahead of " in said(verdict)) == (standing == "ahead")
        assert (" is behind " in said(verdict)) == (standing == "behind")
        assert ("settle" in said(verdict) or "needed" in said(verdict)) == (standing == "undecided")
        if "%" in labels:
            assert ("more were needed" in labels) == (standing == "behind")
            assert standing != "undecided"
        if standing == "ahead":
            assert "more" not in labels
            assert "none;" not in labels
        sentence = headline("learned", [verdict])
        assert sentence.startswith(
            {"ahead": "Use learned", "behind": "Use uniform", "undecided": "Undecided"}[standing]
        )
    assert {standing for standing, _ in seen} == {"ahead", "behind", "undecided"}
    assert len(seen) >= 6


# -- where it is said --------------------------------------------------------------------------------


class Outline(HTMLParser):
    """Which elements stand inside which, and what is asked of a browser."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, str]] = []
        self.found: list[tuple[str, list[tuple[str, str]], dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.found.append((tag, list(self.open), given))
        if tag not in ("meta", "img", "br", "link"):
            self.open.append((tag, given.get("class", "")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag


def test_the_page_begins_with_the_headline_and_the_curve(tmp_path):
    results = fake_results(["uniform", "bald", "learned"], range(6), effect=1.0)
    page, *_, sentence = make_report(results, ["uniform", "bald", "learned"], tmp_path, "x", "learned", full=60.0)
    text = page.read_text()
    outline = Outline(text)
    body = [(tag, given) for tag, inside, given in outline.found if [name for name, _ in inside] == ["html", "body"]]
    assert [tag for tag, _ in body[:3]] == ["h1", "p", "img"]
    assert body[1][1]["class"] == "headline"
    assert sentence.replace(" %", "\N{NO-BREAK SPACE}%") in text.replace("&#39;", "'")
    tables = [inside for tag, inside, _ in outline.found if tag == "table"]
    assert len(tables) >= 7
    for inside in tables:  # folded, and each scrolls in its own box
        assert inside[-1] == ("div", "wide")
        assert "details" in [name for name, _ in inside]
    assert ".wide { overflow-x: auto; }" in text
    assert "img { max-width: 100%;" in text
    assert 'name="viewport" content="width=device-width' in text
    sources = [given["src"] for tag, _, given in outline.found if tag == "img"]
    assert all(source.startswith("data:image/") for source in sources)
    for kept in (
        "reward-set mean IoU",
        "Full supervision: 60.00",
        "Labels saved",
        "class by class",
        "Cost",
        "paired by",
    ):
        assert kept in text


def test_the_screen_has_a_row_a_method_with_its_verdict(tmp_path):
    results = fake_results(["uniform", "learned"], range(6), effect=1.0)
    _, table, verdicts, _ = make_report(results, ["uniform", "learned"], tmp_path, "x", "learned")
    shown = score_table(table, verdicts)
    assert [str(cell) for cell in shown.columns[-1].cells] == ["ahead", ""]
