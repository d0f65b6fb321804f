"""`ralseg compare`: paired cells, resuming, MLflow as a mirror, and the page in a real browser."""

import html
import json
import multiprocessing
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch
from mlflow.tracking import MlflowClient

from ralseg.cli import main
from ralseg.errors import ConfigError, DataError
from ralseg.studies import executors, run
from ralseg.studies.executors import Local
from ralseg.studies.mlflow_sync import Mirror
from ralseg.studies.plan import Study, find_cell, make_cells, run_cell
from ralseg.studies.report import make_report
from ralseg.studies.tables import Table, class_table
from support.configs import ACQUIRE, STUDY
from support.studies import die_or_live, fake_results, run_here, upload_fake_report

HANG = 400.0
"""Seconds: what is waited for is an event; this ends a wait that would have no end."""


def page() -> str:
    """The report without what names a commit."""
    return Path("out/report/report.html").read_text()


@pytest.fixture
def forked_cells(monkeypatch):
    """Cells are processes of their own, but one for all tests imports torch: a start costs more than a cell.

    (`runtime/test_kills.py` starts them as `ralseg compare` does.)
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ralseg.commands", "support.studies", "torch._dynamo", "mlflow.tracking"])
    monkeypatch.setattr(executors, "get_context", lambda method: context)


@pytest.mark.slow
def test_a_study_from_start_to_end_and_again(study_folder, monkeypatch, capsys, forked_cells):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # for the workers; this process has its own number
    torch.set_num_threads(1)
    assert main(["compare", "--config", "study.yaml"]) == 0  # in two worker processes
    said = capsys.readouterr().out
    assert "4 cells, 0 finished" in said
    assert said.rstrip().endswith("dashboard: ralseg dashboard")
    headline = json.loads(Path("out/report/verdict.json").read_text())["headline"]
    assert said.index(headline) < said.index("test mean IoU at so many labelled regions")
    assert len(re.findall("Undecided|Use |settle", said)) <= 2  # one sentence, not a wall of them
    row = next(line for line in said.splitlines() if line.startswith("│ uniform"))
    assert re.findall(r"\d+\.\d\d ± \d+\.\d\d", row) == mean_scores("uniform")
    for name in ("report.html", "results.csv", "classes.csv", "verdict.json", "budget_curves.svg", "budget_curves.png"):
        assert (study_folder / "out" / "report" / name).is_file()
    kept = [json.loads(line) for line in Path("out/report/cells.jsonl").read_text().splitlines()]
    assert [line["cell"] for line in kept] == ["uniform/seed0", "entropy/seed0", "uniform/seed1", "entropy/seed1"]
    assert kept[1]["result"] == json.loads(Path("out/cells/entropy/seed0/result.json").read_text())
    assert len({line["identity"] for line in kept}) == 4
    assert "<script" not in page()
    assert "http://" not in page().replace("http://www.w3.org", "")  # nothing is loaded from anywhere

    client = MlflowClient(f"sqlite:///{study_folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("small study").experiment_id
    runs = {run.info.run_name: run for run in client.search_runs([experiment])}
    assert set(runs) == {"small study", "uniform/seed0", "uniform/seed1", "entropy/seed0", "entropy/seed1"}
    child = runs["entropy/seed1"]
    assert child.data.tags["mlflow.parentRunId"] == runs["small study"].info.run_id
    assert child.data.tags["ralseg.method"] == "entropy"
    history = client.get_metric_history(child.info.run_id, "test_set/miou")
    assert [point.step for point in history] == [4, 6]  # the axis is labelled regions
    parts = {item.path for item in client.list_artifacts(runs["small study"].info.run_id, "report")}
    assert "report/report.html" in parts

    # half of it lost: only that is run again, and the report is the same
    first, numbers = page(), Path("out/report/results.csv").read_text()
    shutil.rmtree("out/cells/uniform/seed1")
    client.delete_run(runs["uniform/seed1"].info.run_id)
    asked = []

    def spy(cells, *rest):
        asked.extend(cell.title for cell in cells)
        return run_here(cells, *rest)

    monkeypatch.setattr(run, "run_cells", spy)
    assert main(["compare", "--config", "study.yaml"]) == 0
    assert asked == ["uniform/seed1"]
    assert Path("out/report/results.csv").read_text() == numbers
    assert _lasting(page()) == _lasting(first)

    # another machine: nothing here, all of it in MLflow, and other theta_0s
    shutil.rmtree("out")
    Path("tiny.yaml").write_text(ACQUIRE.replace("seed_everything: 1", "seed_everything: 7"))
    assert main(["compare", "--config", "study.yaml", "--report_only"]) == 0
    assert Path("out/report/results.csv").read_text() == numbers


def mean_scores(method: str) -> list[str]:
    """A method's means and deviations by the files of its cells: at each budget, and in area between the two."""
    results = [json.loads(Path(f"out/cells/{method}/seed{seed}/result.json").read_text()) for seed in (0, 1)]
    scores = 100 * np.array([[r["budgets"][budget]["test_set/miou"] for budget in ("4", "6")] for r in results])
    columns = [*scores.T, scores.mean(1)]
    return [f"{column.mean():.2f} ± {column.std(ddof=1):.2f}" for column in columns]


def _lasting(text: str) -> str:
    """A report without times, and without commits: somebody may commit while the test runs."""
    return re.sub("commit [0-9a-f, ]+", "commit", text[: text.index("<summary>Cost</summary>")])


def test_a_failed_cell_does_not_stop_the_others(study_folder, monkeypatch, capsys):
    monkeypatch.setattr(run, "run_cells", run_here)
    Path("study.yaml").write_text(
        STUDY.replace("seeds: [0, 1]", "seeds: [0]").replace("entropy: entropy", "entropy: entropi")
    )
    assert main(["compare", "--config", "study.yaml"]) == 1
    said = capsys.readouterr().out
    assert "FAILED entropy/seed0" in said
    assert "neither a file nor one of" in said
    assert "Incomplete: entropy/seed0 not finished" in page()


def test_a_study_whose_files_are_missing_runs_nothing(study_folder, capsys):
    Path("study.yaml").write_text(STUDY.replace("entropy: entropy", "entropy: none.ckpt"))
    assert main(["compare", "--config", "study.yaml"]) == 2
    assert "methods.entropy: no policy at 'none.ckpt'; `ralseg fit` makes them" in capsys.readouterr().err
    assert not Path("out/cells").exists()


@pytest.mark.slow
def test_a_store_that_is_away_costs_no_result(study_folder, monkeypatch, caplog):
    monkeypatch.setattr(run, "run_cells", run_here)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    Path("study.yaml").write_text(STUDY.replace("seeds: [0, 1]", "seeds: [0]"))
    assert main(["compare", "--config", "study.yaml"]) == 0
    warnings = [record for record in caplog.records if "MLflow at http://127.0.0.1:9 failed" in record.getMessage()]
    assert len(warnings) == 1
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{study_folder / 'later.db'}")
    assert main(["compare", "--config", "study.yaml", "--report_only"]) == 0
    assert len(Mirror("small study").finished()) == 2


def test_cells_are_paired_and_know_what_they_depend_on(study_folder):
    Path("weights0").write_text("a")
    Path("weights1").write_text("b")
    options = {"acquire": "tiny.yaml", "seeds": [0, 1], "initial_weights": "weights{seed}"}
    cells = make_cells(Study(methods={"a": "uniform", "b": "bald"}, **options))
    assert [(cell.method, cell.seed) for cell in cells] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    before = [cell.identity() for cell in cells]
    assert len(set(before)) == 4
    Path("weights0").write_text("c")
    assert [cell.identity() != old for cell, old in zip(cells, before, strict=True)] == [True, True, False, False]
    for wrong, message in (
        ({"seeds": [1, 1]}, "each may stand there once"),
        ({"ours": "c"}, "is none of the methods"),
        ({"methods": {"../x": "uniform"}}, "letters, digits"),
        ({"method_options": {"x": {}}}, "none of the methods"),
        ({"jobs": 0}, "at least 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            Study(**wrong)
    cells = make_cells(Study(methods={"learned": "no.ckpt", "a": "uniform"}, **options))
    with pytest.raises(ConfigError, match=r"no policy at 'no\.ckpt'"):
        find_cell(cells, "learned/seed0")
    assert find_cell(cells, "a/seed0").policy == "uniform"
    Path("weights0").unlink()
    with pytest.raises(ConfigError, match=r"no checkpoint at 'weights0'"):
        find_cell(cells, "a/seed0")


def test_commands_can_be_emitted(study_folder, monkeypatch, capsys):
    assert main(["compare", "--config", "study.yaml", "--emit", "commands"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 4
    assert lines[0] == "ralseg compare --config study.yaml --cell uniform/seed0"
    assert main(lines[0].split()[1:]) == 0
    assert main(["compare", "--config", "study.yaml", "--cell", "uniform/seed7"]) == 2
    assert "the cells are uniform/seed0" in capsys.readouterr().err
    monkeypatch.setattr(run, "run_cells", lambda cells, *_: asked.extend(c.title for c in cells) or {})
    asked = []
    main(["compare", "--config", "study.yaml"])
    assert asked == ["entropy/seed0", "uniform/seed1", "entropy/seed1"]  # what a scheduler has run is finished


def test_the_report_says_what_the_numbers_say(tmp_path):
    results = fake_results(["uniform", "entropy", "learned"], range(8), effect=1.0)
    for result in results:
        for scores in result["budgets"].values():  # twice the difference on the reward set
            scores["reward_set/miou"] = 2 * scores["test_set/miou"]
    path, table, verdicts, headline = make_report(
        results, ["uniform", "entropy", "learned"], tmp_path, "fake <i>", ours="learned"
    )
    assert json.loads((tmp_path / "verdict.json").read_text())["headline"] == headline
    assert [v.baseline for v in verdicts] == ["uniform", "entropy"]
    assert verdicts[0].area.mean == pytest.approx(2, abs=0.2)
    assert verdicts[0].area.is_clear
    assert verdicts[0].reward_area.mean == pytest.approx(2 * verdicts[0].area.mean)
    said = {d["what"]: d["mean"] for d in json.loads((tmp_path / "verdict.json").read_text())["differences"][:8]}
    assert said["reward set, budget 300"] == pytest.approx(2 * said["budget 300"])
    assert verdicts[0].savings[-1].percent == pytest.approx(100 / 3, abs=6)
    text = path.read_text()
    assert "fake &lt;i&gt;" in text
    assert "&lt;b&gt;tree&lt;/b&gt;" in text
    assert "<b>tree</b>" not in text
    best = max(np.mean(table.test[m][:, -1]) for m in table.methods)
    assert f"<b>{best:.2f}</b>" in text
    assert len(class_table(results, table)) == 2


def test_the_report_shows_what_labels_cost_as_far_as_it_is_known(tmp_path):
    results = fake_results(["uniform", "people"], [0, 1])
    for result in results:
        for budget, scores in result["budgets"].items():
            cost = {"regions": int(budget), "pixels": 64 * int(budget), "clicks": None, "minutes": None}
            if result["method"] == "people":
                cost |= {"clicks": 3 * int(budget), "minutes": int(budget) / 8}
            scores["cost"] = cost
    results[1]["budgets"]["200"]["stale"] = [3, 7]
    text = make_report(results, ["uniform", "people"], tmp_path, "costs")[0].read_text()
    assert "<tr><td>uniform</td><td>300</td><td>300</td><td>19200</td><td>-</td><td>-</td></tr>" in text
    assert "<tr><td>people</td><td>300</td><td>300</td><td>19200</td><td>900</td><td>37.5</td></tr>" in text
    assert "Made with labels that were corrected since: people/seed0 at 200." in text
    rows = (tmp_path / "results.csv").read_text().splitlines()
    assert rows[0].endswith(",class_entropy,pixels,clicks,minutes")
    assert rows[1].endswith(",6400,300,12.5")
    assert rows[-1].endswith(",19200,,")


def test_results_of_earlier_versions_have_no_costs(tmp_path):
    text = make_report(fake_results(["uniform", "entropy"], [0]), ["uniform", "entropy"], tmp_path, "old")[
        0
    ].read_text()
    assert "<tr><td>uniform</td><td>100</td><td>-</td><td>-</td><td>-</td><td>-</td></tr>" in text
    assert "corrected since" not in text


def test_seeds_without_all_methods_are_left_out(tmp_path):
    results = fake_results(["uniform", "learned"], range(3))
    assert Table.of(results[:-1], ["uniform", "learned"]).seeds == [0, 1]
    with pytest.raises(DataError, match="no seed is finished for every method"):
        Table.of([results[0], results[3]], ["uniform", "learned"])


def test_a_policy_trained_per_seed(study_folder):
    for seed in (0, 1):
        Path(f"policy{seed}.ckpt").write_text(str(seed))
    cells = make_cells(Study(acquire="tiny.yaml", methods={"learned": "policy{seed}.ckpt"}, seeds=[0, 1]))
    assert [cell.policy for cell in cells] == ["policy0.ckpt", "policy1.ckpt"]


def test_policies_of_one_recipe_take_turns(study_folder):
    methods = {"learned": ["random_a.ckpt", "random_b.ckpt"], "uniform": "uniform"}
    study = Study(acquire="tiny.yaml", methods=methods, seeds=[5, 6, 7])
    cells = make_cells(study)
    played = {(cell.method, cell.seed): cell.policy for cell in cells}
    assert [played["learned", seed] for seed in (5, 6, 7)] == ["random_a.ckpt", "random_b.ckpt", "random_a.ckpt"]
    assert {played["uniform", seed] for seed in (5, 6, 7)} == {"uniform"}
    with pytest.raises(ConfigError, match=r"methods\.learned names no policy"):
        Study(methods={"learned": []})


@pytest.mark.slow
def test_a_process_that_dies_takes_no_other_cell_along(study_folder, forked_cells):
    cells = make_cells(Study(acquire="tiny.yaml", folder="out", seeds=[0]))
    failures = run.run_cells(cells, Local(jobs=1), die_or_live, 0, lambda text: None)
    assert {title: text.split(" (")[0].split(":")[0] for title, text in failures.items()} == {
        "uniform/seed0": "the process died",
        "entropy/seed0": "as it should",
    }


def test_a_cell_of_other_options_is_moved_aside(study_folder):
    def only_cell():
        (cell,) = make_cells(Study(acquire="tiny.yaml", folder="out", methods={"uniform": "uniform"}, seeds=[0]))
        return cell

    cell = only_cell()
    cell.folder.mkdir(parents=True)
    (cell.folder / "precious").touch()
    assert run_cell(cell, lambda config: 0) == "it ended without a result"
    assert [path.name for path in cell.folder.parent.glob("*/precious")] == ["precious"]
    assert not (cell.folder / "precious").exists()
    Path("tiny.yaml").write_text("# only a comment\n" + ACQUIRE)
    assert only_cell().identity() == cell.identity()
    Path("tiny.yaml").write_text(ACQUIRE.replace("max_steps: 2", "max_steps: 4"))
    assert only_cell().identity() != cell.identity()


def browser() -> str:
    """Debian's Chromium; installed where packages can be had, else the test is skipped and says why."""
    found = shutil.which("chromium")
    if found is None and shutil.which("apt-get"):
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
            subprocess.run(command, capture_output=True, timeout=400, check=False)
        found = shutil.which("chromium")
    if found is None:
        pytest.skip("no browser: chromium is not installed, and apt-get cannot install it here")
    return found


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path, width):
    path, *_ = make_report(
        fake_results(["uniform", "learned"], range(6), 1.0), ["uniform", "learned"], tmp_path, "page", ours="learned"
    )
    picture = tmp_path / "page.png"
    command = [
        *(browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"),
        *(f"--screenshot={picture}", f"--window-size={width},2600", "--dump-dom", path.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=True)
    assert "CONSOLE" not in done.stderr
    assert "learned is ahead of uniform" in done.stdout
    assert picture.stat().st_size > 20_000


def test_the_dashboard_needs_a_store(study_folder, capsys):
    assert main(["dashboard"]) == 2
    assert "no runs have been tracked" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a machine that others keep busy needs minutes
def test_the_dashboard_in_a_browser(study_folder):
    chromium = browser()
    cells = make_cells(Study(name="shown", acquire="tiny.yaml", folder="out", seeds=[0]))
    mirror = Mirror("shown")
    results = fake_results(["uniform", "entropy"], [0])
    for cell, result in zip(cells, results, strict=True):
        cell.folder.mkdir(parents=True)
        mirror.upload(cell, result)
    upload_fake_report(mirror, cells, results)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "ralseg", "dashboard", "--port", str(port)]
    # a session of its own: the server has children that must end with it
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        first = server.stdout.readline().strip()
        studies = first.removeprefix("studies and their reports: ")
        assert studies.startswith("http://127.0.0.1:")
        listed = urllib.request.urlopen(studies, timeout=HANG).read().decode()
        assert "Undecided between entropy and uniform: one seed" in listed
        link = html.unescape(re.search(r'href="([^"]+)">Budget curves in MLflow', listed)[1])
        assert link.startswith(f"http://127.0.0.1:{port}/#/experiments/")
        wait_until(lambda: answers(f"http://127.0.0.1:{port}/health"), server)
        with Page(chromium, link) as page:
            wait_until(
                lambda: all(part in page.text() for part in ("Budget curves", "entropy (test_set/miou)")), server
            )
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(HANG)


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=HANG).read()
    except OSError:
        return False
    return True


def wait_until(is_so, process: subprocess.Popen) -> None:
    end = time.monotonic() + HANG
    while not is_so():
        assert process.poll() is None, "the server has ended"
        assert time.monotonic() < end, "it never came"
        time.sleep(0.2)


class Page:
    """A page in a browser that stays open: it is asked for its text until that is there.

    Chromium's DevTools protocol over two pipes, its descriptors 3 and 4; a message ends with a zero byte.
    """

    def __init__(self, chromium: str, address: str) -> None:
        from_us, self._to = os.pipe()
        self._from, to_us = os.pipe()
        options = "--headless --no-sandbox --disable-gpu --window-size=1400,1000 --remote-debugging-pipe"
        # the shell puts the pipes where Chromium looks for them
        shell = f'exec "$0" "$@" 3<&{from_us} 4>&{to_us}'
        self._browser = subprocess.Popen(
            ["bash", "-c", shell, chromium, *options.split(), "about:blank"],
            pass_fds=(from_us, to_us),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(from_us)
        os.close(to_us)
        self._number, self._read, self._session = 0, b"", {}
        target = self._call("Target.createTarget", url=address)["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}

    def _call(self, method: str, **parameters) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters} | self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            line, found, rest = self._read.partition(b"\0")
            if found:
                self._read, said = rest, json.loads(line)
                if said.get("id") == self._number:
                    return said["result"]
                continue
            ready, _, _ = select.select([self._from], [], [], HANG)
            assert ready, f"the browser does not answer to {method}"
            more = os.read(self._from, 1 << 16)
            assert more, "the browser has ended"
            self._read += more

    def text(self) -> str:
        """What stands on the page now."""
        found = self._call("Runtime.evaluate", expression="document.documentElement.outerHTML", returnByValue=True)
        return found["result"].get("value", "")

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._browser.pid, signal.SIGKILL)
        self._browser.wait()
        os.close(self._to)
        os.close(self._from)
