"""`ralseg explain`: the page about why regions were chosen, and what it says where there is nothing to tell."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ralseg.cli import main
from ralseg.engine.reasons import FILE, read_reasons
from ralseg.studies.explanation import page, wanted_steps
from support.configs import ACQUIRE


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A finished run of the built-in policy, in a folder of its own."""
    folder = tmp_path_factory.mktemp("explain")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("tiny.yaml").write_text(ACQUIRE)
        assert (
            main(["acquire", "--config", "tiny.yaml", "--policy", "ralseg", "--trainer.default_root_dir", "run"]) == 0
        )
    return folder / "run"


class _Links(HTMLParser):
    """What a page would load, and the text that people read."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads, self.said, self.tags = [], "", set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.loads += [value for name, value in attributes if name in ("src", "href", "action", "data", "srcset")]

    def handle_data(self, data):
        self.said += data


def test_the_page_of_a_run(run, capsys):
    assert main(["explain", str(run)]) == 0
    steps = read_reasons(run / FILE)
    chosen = sum(len(step.regions) for step in steps)
    assert f"explain.html: why {chosen} of {chosen} regions were chosen" in capsys.readouterr().out
    text = (run / "explain.html").read_text()
    found = _Links(text)
    assert all(link.startswith("data:image/") for link in found.loads)
    assert len(found.loads) == 4 * chosen
    assert not {"script", "link", "iframe"} & found.tags
    assert "url(" not in text
    for step in steps:
        for region in step.regions:
            assert f"Region {region.region}: {region.image}, {region.place}" in found.said
            assert f"number {region.rank} of " in found.said
    assert f"{chosen} regions in {len(steps)} steps, chosen above all for" in found.said
    assert "of the pixels were right" in found.said


def test_single_steps_and_regions(run, tmp_path, capsys):
    steps = read_reasons(run / FILE)
    last, some = steps[-1], [steps[0].regions[0].region, steps[-1].regions[-1].region]
    out = str(tmp_path / "page.html")
    for options, expected in (
        (["--step", str(len(steps))], [one.region for one in last.regions]),
        (["--regions", ",".join(map(str, some))], some),
        (["--most", "1"], [max(steps[0].regions, key=lambda region: region.score).region]),
    ):
        assert main(["explain", str(run), "--out", out, *options]) == 0
        shown = re.findall(r'id="region-(\d+)"', Path(out).read_text())
        assert sorted(shown) == sorted(map(str, expected))
    capsys.readouterr()
    for options, said in (
        (["--step", "99"], "--step 99: the run has no record of that step"),
        (["--regions", "99999"], "--regions 99999: not chosen"),
        (["--regions", "a"], "--regions a: is no list of numbers"),
        (["--most", "0"], "at least 1 region"),
    ):
        assert main(["explain", str(run), "--out", out, *options]) == 2
        assert said in capsys.readouterr().err


def test_a_run_in_the_midst_of_its_work(run, tmp_path):
    """Half a line may stand at the end, and there are no results yet."""
    folder = tmp_path / "running"
    folder.mkdir()
    shutil.copy(run / "config.yaml", folder)
    first, rest = (run / FILE).read_text().split("\n", 1)
    (folder / FILE).write_text(f"{first}\n{rest[:40]}")
    assert main(["explain", str(folder)]) == 0
    assert "regions in 1 step, chosen" in (folder / "explain.html").read_text()


def test_names_are_text_and_nothing_else(run):
    evil = '"><script src=//evil.example>&'
    entries = [json.loads(line) for line in (run / FILE).read_text().splitlines()]
    for entry in entries:
        entry["classes"] = [f"{evil}{name}" for name in entry["classes"]]
        entry["rest"] = evil
        for feature in entry["features"]:
            feature["name"] = evil + feature["name"]
        for region in entry["regions"]:
            region |= {"image": evil, "place": evil}
    path = run.parent / "evil.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    steps = read_reasons(path)
    text = page(steps, wanted_steps(steps), evil, None)
    found = _Links(text)
    assert "script" not in found.tags
    assert found.said.count(evil) > len(entries)
    assert all(link.startswith("data:image/png") for link in found.loads)
    assert "The data were not at hand" in found.said


def test_data_that_are_not_at_hand_cost_the_images_alone(run, tmp_path, caplog):
    folder = tmp_path / "moved"
    folder.mkdir()
    shutil.copy(run / FILE, folder)
    config = (run / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("ralseg.data.SyntheticStreets", "ralseg.data.Folder"))
    assert main(["explain", str(folder)]) == 0
    assert "the data are not at hand" in caplog.text
    assert "The data were not at hand" in (folder / "explain.html").read_text()


def test_folders_without_reasons(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "before", "fresh", "study/cells", "fit"):
        Path(name).mkdir(parents=True)
    Path("before/selection.csv").write_text("step,image\n")
    for name in ("fresh", "fit"):
        shutil.copy(run / "config.yaml", name)
    Path("fit/history.json").write_text("[]")
    for name, said in (
        ("nowhere", "nowhere: no such folder"),
        ("empty", "empty: holds no run of `ralseg acquire`"),
        ("fit", "fit: holds no run of `ralseg acquire`"),
        ("before", "before: holds no reasons.jsonl; the run was made by a ralseg that did not keep why"),
        ("fresh", "fresh: no step of this run is done yet"),
        ("study", "study: holds a study; give one of its cells"),
    ):
        assert main(["explain", name]) == 2
        assert said in capsys.readouterr().err
    assert main(["explain"]) == 2
    assert "run" in capsys.readouterr().err
