"""The page of `ralseg dashboard`: studies with headline, curve and report, and nothing else of the machine."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request

import pytest
from mlflow.tracking import MlflowClient

from ralseg.studies.dashboard import serve, study_pages
from ralseg.studies.mlflow_sync import Mirror
from ralseg.studies.plan import Study, make_cells
from support.studies import fake_results, upload_fake_report

MLFLOW = "http://127.0.0.1:5000"


def mirrored(methods=("uniform", "entropy"), seeds=(0, 1)):
    """A study in MLflow, but for its report."""
    study = Study(
        name="shown", acquire="tiny.yaml", folder="out", methods=dict.fromkeys(methods, "uniform"), seeds=seeds
    )
    cells, results = make_cells(study), fake_results(methods, seeds, effect=2.0)
    mirror = Mirror("shown")
    for cell, result in zip(cells, results, strict=True):
        cell.folder.mkdir(parents=True, exist_ok=True)
        mirror.upload(cell, result)
    return mirror, cells, results


def test_studies_with_their_reports_and_charts(study_folder):
    mirror, cells, results = mirrored()
    page = upload_fake_report(mirror, cells, results)
    pages = study_pages(mirror.uri, MLFLOW)
    number = mirror.experiment_id()
    assert set(pages) == {"/", f"/{number}/report.html"}
    assert pages[f"/{number}/report.html"] == page.read_text()
    headline = json.loads((page.parent / "verdict.json").read_text())["headline"]
    assert headline in pages["/"].replace("&#39;", "'")
    assert 'src="data:image/svg+xml' in pages["/"]
    link = re.search(r'href="([^"]+)">Budget curves in MLflow', pages["/"])[1].replace("&amp;", "&")
    place, _, asked = link.partition("?")
    assert place == f"{MLFLOW}/#/experiments/{number}/runs"
    asked = urllib.parse.parse_qs(asked)
    assert asked["compareRunsMode"] == ["CHART"]
    tags = MlflowClient(mirror.uri).get_experiment(number).tags
    view = json.loads(tags[f"mlflow.sharedViewState.{asked['viewStateShareKey'][0]}"])
    (chart,) = view["compareRunCharts"]
    assert (chart["metricKey"], chart["xAxisKey"], chart["lineSmoothness"]) == ("test_set/miou", "step", 0)
    shown = MlflowClient(mirror.uri).search_runs([number], view["searchFilter"])
    assert {run.info.run_name for run in shown} == {cell.title for cell in cells}
    (key,) = view["groupBy"]["groupByKeys"]
    assert {run.data.params[key["groupByData"]] for run in shown} == {"uniform", "entropy"}
    scores = [run.data.metrics[chart["metricKey"]] for run in shown]
    assert chart["range"]["yMin"] < min(scores) < max(scores) < chart["range"]["yMax"]


def test_cells_of_former_options_are_not_on_the_chart(study_folder):
    mirror, former, _ = mirrored()
    tiny = study_folder / "tiny.yaml"
    tiny.write_text(tiny.read_text().replace("seed_everything: 1", "seed_everything: 7"))
    mirror, cells, results = mirrored()
    assert not {cell.identity() for cell in former} & {cell.identity() for cell in cells}
    upload_fake_report(mirror, cells, results)
    found = MlflowClient(mirror.uri).search_runs([mirror.experiment_id()], "tags.`ralseg.is_reported` = 'True'")
    assert {run.data.tags["ralseg.cell"] for run in found} == {cell.identity() for cell in cells}
    assert len(mirror.finished()) == 8  # none is lost


def test_a_study_without_a_report_at_hand(study_folder, caplog):
    mirror, *_ = mirrored()
    pages = study_pages(mirror.uri, MLFLOW)
    assert set(pages) == {"/"}
    assert "Its report is not at hand" in pages["/"]
    assert "viewStateShareKey" not in pages["/"]  # MLflow would complain about a view that is not there


def test_a_store_without_studies(study_folder):
    assert "No study has been run in this folder yet" in study_pages(Mirror("x").uri, MLFLOW)["/"]


def test_only_the_pages_are_served():
    server = serve(lambda: {"/": "<p>first</p>", "/1/report.html": "<p>\N{GREEK SMALL LETTER THETA}</p>"}, 5001)
    second = serve(lambda: {}, server.server_port)  # a port that is taken
    try:
        assert server.server_address[0] == "127.0.0.1"
        assert second.server_port != server.server_port
        address = f"http://127.0.0.1:{server.server_port}"
        assert (
            urllib.request.urlopen(f"{address}/1/report.html?a=b").read().decode()
            == "<p>\N{GREEK SMALL LETTER THETA}</p>"
        )
        assert urllib.request.urlopen(address).read() == b"<p>first</p>"
        for path in ("/../../etc/passwd", "/1/../1/report.html", "/1/", "/1", "//etc/passwd", "/%2e%2e/etc/passwd"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(address + path)
        with pytest.raises(urllib.error.HTTPError, match="501"):
            urllib.request.urlopen(address, data=b"x")
    finally:
        for each in (server, second):
            each.shutdown()
            each.server_close()


def test_pages_are_made_when_they_are_asked_for(study_folder):
    mirror, cells, results = mirrored()
    server = serve(lambda: study_pages(mirror.uri, MLFLOW), 5001)
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        assert b"not at hand" in urllib.request.urlopen(address).read()
        upload_fake_report(mirror, cells, results)
        assert b"not at hand" not in urllib.request.urlopen(address).read()
    finally:
        server.shutdown()
        server.server_close()


def test_names_are_escaped(study_folder, tmp_path):
    mirror, cells, results = mirrored()
    mirror.client.rename_experiment(mirror.experiment_id(), "<script>x</script>")
    mirror = Mirror("<script>x</script>")
    upload_fake_report(mirror, cells, results)
    page = study_pages(mirror.uri, MLFLOW)["/"]
    assert "<script>" not in page
    assert "&lt;script&gt;x" in page
