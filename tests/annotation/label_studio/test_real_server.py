"""The real Label Studio, in its own environment: tasks, drawing in its page, skips, order, and what comes back."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jsonargparse.typing import SecretStr

from ralseg.annotation import LabelStudioOracle
from ralseg.annotation.label_studio.brush import decode_alpha
from ralseg.annotation.label_studio.client import LabelStudioError
from ralseg.data import Folder, SegmentationData, SplitSizes
from ralseg.labels import GridLayout, LabellingJob, LabelsNeeded, Ranking
from support.browser import open_browser
from support.data import write_png
from support.jobs import quiet_job
from support.label_studio_server import Annotator, RealServer, environment, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
WIDTH, HEIGHT, GREY = 192, 144, 120
BOX_WIDTH, BOX_HEIGHT = WIDTH // 2, HEIGHT // 2
SCORES = {1: 0.9, 4: 0.8, 6: 0.7, 11: 0.6}
RANKED = [1, 4, 6]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    environment()
    with running(tmp_path_factory.mktemp("label_studio")) as server:
        yield server


def make_job(root: Path, run: Path, has_prediction: bool = True) -> LabellingJob:
    """Grey images of four regions each; ground is predicted on the left of each image's middle, plant on the right."""
    for subset, count in {"train": 6, "val": 2, "test": 2}.items():
        for i in range(count):
            write_png(root / "images" / subset / f"{i} ä.png", np.full((HEIGHT, WIDTH, 3), GREY, np.uint8))
            write_png(root / "masks" / subset / f"{i} ä.png", np.zeros((HEIGHT, WIDTH), np.uint8))
    (root / "dataset.yaml").write_text("classes: [ground, 'plant & <co>', stone]\n")
    data = SegmentationData(
        Folder(str(root)), SplitSizes(state=1, train=4), size=(96, 128), layout=GridLayout(2, 2), batch_size=2
    )
    data.setup()
    job = data.labelling_job("train_set", run)
    predicted = np.zeros((HEIGHT, WIDTH), np.uint8)
    for start in (0, BOX_WIDTH):  # in each region
        predicted[:, start + BOX_WIDTH // 2 : start + BOX_WIDTH] = 1
    shown = predicted if has_prediction else None
    return quiet_job(job, ranking=lambda: Ranking(SCORES, [11]), predict=lambda image: shown)


def oracle_of(server: RealServer, job: LabellingJob, **options: Any) -> LabelStudioOracle:
    options = {"wait": False, "reserves": 1, "reask": 0.0} | options
    oracle = LabelStudioOracle(server.url, SecretStr(server.token), **options)
    oracle.open(job)
    return oracle


def ask(oracle: LabelStudioOracle) -> Any:
    return oracle.ask(torch.tensor(RANKED), 0)


def put(oracle: LabelStudioOracle) -> int:
    """Put the request on the server; the project's number."""
    with pytest.raises(LabelsNeeded, match="3 of 3"):
        ask(oracle)
    return json.loads((oracle.folder / "label_studio.json").read_text())["project"]


def tasks_of(server: RealServer, project: int) -> list[dict]:
    """The tasks of a project with all that is in them, by their numbers."""
    client = server.client()
    listed = client.pages("/api/tasks", "tasks", project=project, fields="task_only")
    return [client.get(f"/api/tasks/{entry['id']}/") for entry in sorted(listed, key=lambda entry: entry["id"])]


def judged(results: list[dict], folder: Path) -> list[np.ndarray]:
    """Alpha of brush results, decoded by Label Studio's own converter."""
    script = (
        "import json, sys, numpy as np\n"
        "from label_studio_sdk.converter.brush import decode_rle\n"
        "for i, r in enumerate(json.load(open(sys.argv[1]))):\n"
        "    a = decode_rle(r['value']['rle']).reshape(r['original_height'], r['original_width'], 4)[..., 3]\n"
        "    np.save(f'{sys.argv[2]}/{i}.npy', a)\n"
    )
    (folder / "results.json").write_text(json.dumps(results))
    python = environment() / "bin" / "python"
    subprocess.run([str(python), "-c", script, str(folder / "results.json"), str(folder)], check=True, timeout=600)
    return [np.load(folder / f"{i}.npy") for i in range(len(results))]


def test_what_is_drawn_in_the_page_comes_back(server, tmp_path):
    """Project, tasks by rank, strokes with the mouse, a skip and its reserve, and a correction."""
    job = make_job(tmp_path / "data", tmp_path / "run")
    oracle = oracle_of(server, job)
    project = put(oracle)
    x, y, width, height = job.regions.file_box(1)
    middle, half = y + height // 2, x + width // 2
    titles = []
    with open_browser() as browser:
        ada = Annotator(browser, server, project)
        titles.append(ada.title)
        inside = ada.colours((x + 10, y + 10), (half + 10, y + 10))
        assert ada.colours((x - 30, y + 10)) == [(GREY, GREY, GREY)]
        assert len({(GREY, GREY, GREY), *inside}) == 3  # the prediction is shown, in its classes' colours
        ada.stroke("3", (x + 20, middle), (x - 30, middle))  # stone, out of the region
        ada.take_up("ground")
        ada.stroke(None, (half + 10, y + 12), (half + 30, y + 12))  # on with the ground's own brush, over plant
        ada.submit()
        titles.append(ada.title)
        ada.skip()
        titles.append(ada.title)
        ada.submit()
        with pytest.raises(LabelsNeeded, match="1 of 3"):
            ask(oracle)
        ada.come()
        titles.append(ada.title)
        ada.submit()
        assert ada.elsewhere == []
    assert [title.partition(":")[0] for title in titles] == [
        *("Region 1 of 3", "Region 2 of 3", "Region 3 of 3"),
        "Region 4, in place of a skipped one",
    ]
    answer = ask(oracle)
    assert sorted(answer.regions.tolist()) == [1, 6, 11]
    check_drawn(oracle.answers.mask(1), width, height)
    for region in (6, 11):
        assert (oracle.answers.mask(region) == oracle.answers.prediction(oracle.answers.wanted(region))).all()
    entries = {event: [] for event in ("saved", "skipped")}
    for entry in oracle.answers.journal.entries():
        entries.get(entry["event"], []).append(entry)
    assert [entry["region"] for entry in entries["saved"]] == [1, 6, 11]
    assert [entry["unchanged"] for entry in entries["saved"]] == [False, True, True]
    assert all(entry["who"] == server.email and entry["seconds"] > 0 for entry in entries["saved"])
    assert [entry["region"] for entry in entries["skipped"]] == [4]
    check_code(server, project, tmp_path)
    check_correction(server, project, oracle)


def check_drawn(mask: np.ndarray, width: int, height: int) -> None:
    """What the two strokes must have painted; their width is the page's own."""
    assert (mask[height // 2, 1:19] == 2).all()  # up to the region's edge
    assert (mask[height // 2, 40:48] == 0).all()
    assert (mask[12, width // 2 + 10 : width // 2 + 30] == 0).all()  # painted on, over what was predicted
    assert (mask[height // 2 + 15 :, : width // 2] == 0).all()
    assert (mask[height // 2 + 15 :, width // 2 :] == 1).all()
    assert set(np.unique(mask)) == {0, 1, 2}


def check_code(server: RealServer, project: int, folder: Path) -> None:
    """Our decoder agrees with Label Studio's; a drawn stroke has smooth edges."""
    results = tasks_of(server, project)[0]["annotations"][0]["result"]
    brushes = [result for result in results if result["type"] == "brushlabels"]
    alphas = judged(brushes, folder)
    for result, alpha in zip(brushes, alphas, strict=True):
        assert (decode_alpha(result["value"]["rle"], (HEIGHT, WIDTH)) == alpha).all()
    assert {result["origin"] for result in brushes} == {"prediction", "prediction-changed", "manual"}
    drawn = next(a for a, result in zip(alphas, brushes, strict=True) if result["origin"] == "manual")
    assert len(np.unique(drawn)) > 2  # trap 1 is met


def check_correction(server: RealServer, project: int, oracle: LabelStudioOracle) -> None:
    """What is changed on the server after the answers were taken is seen."""
    assert oracle.corrections(None).regions.tolist() == []
    annotation = tasks_of(server, project)[0]["annotations"][0]
    kept = [result for result in annotation["result"] if result.get("origin") != "manual"]
    server.client().patch(
        f"/api/annotations/{annotation['id']}/", {"result": kept, "lead_time": annotation["lead_time"] + 5}
    )
    assert oracle.corrections(None).regions.tolist() == [1]
    assert not (oracle.recall(torch.tensor([1])) == 2).any()
    last = [entry for entry in oracle.answers.journal.entries() if entry["event"] == "saved"][-1]
    assert (last["version"], last["seconds"]) == (2, pytest.approx(5, abs=0.01))


def test_a_frame_without_a_prediction_does_not_tint(server, tmp_path):
    """Trap 4: only the border of the frame is drawn."""
    job = make_job(tmp_path / "data", tmp_path / "run", has_prediction=False)
    project = put(oracle_of(server, job))
    x, y, width, height = job.regions.file_box(1)
    with open_browser() as browser:
        ada = Annotator(browser, server, project)
        inside, border = ada.colours((x + width // 2, y + height // 2), (x, y + height // 2))
        assert inside == (GREY, GREY, GREY)
        assert border[0] > 200 > 100 > border[2]  # yellow


@pytest.mark.parametrize("sampling", ["Sequential sampling", "Uncertainty sampling"])
def test_tasks_are_served_by_rank(server, tmp_path, sampling):
    """Trap 2: in the order of tasks, and in that of scores, of which the lowest is served first."""
    project = put(oracle_of(server, make_job(tmp_path / "data", tmp_path / "run")))
    client = server.client()
    client.patch(f"/api/projects/{project}/", {"sampling": sampling})
    served = []
    for _ in RANKED:
        task = client.get(f"/api/projects/{project}/next")
        served.append(task["data"]["region"])
        client.post(f"/api/tasks/{task['id']}/annotations/", {"result": [], "lead_time": 1.0})
    assert served == RANKED


def test_images_from_the_servers_own_disk(server, tmp_path):
    """Trap 5: they are not found until the project has a storage for their folder."""
    run = server.root / "a run"
    oracle = oracle_of(server, make_job(tmp_path / "data", run), images="local", document_root=str(server.root))
    project = put(oracle)
    client = server.client()
    addresses = {task["data"]["image"] for task in tasks_of(server, project)}
    assert len(addresses) == 2
    assert all(client.serves(address) for address in addresses)
    beside = server.root / "another run"
    beside.mkdir()
    (beside / "a.png").write_bytes((run / "to_label" / "images").iterdir().__next__().read_bytes())
    assert not client.serves("/data/local-files/?d=another%20run/a.png")
    elsewhere = oracle_of(server, make_job(tmp_path / "more", tmp_path / "b"), images="local", document_root="/tmp")
    with pytest.raises(LabelStudioError, match=r"400.*LOCAL_FILES_DOCUMENT_ROOT.*images: upload"):
        ask(elsewhere)


def test_what_the_run_never_heard_of_is_found(server, tmp_path):
    """Cut off after the project was made, and after the tasks were put in: both are there once."""
    job = make_job(tmp_path / "data", tmp_path / "run")
    project = put(oracle_of(server, job))
    memory = tmp_path / "run" / "to_label" / "label_studio.json"
    memory.write_text(json.dumps(json.loads(memory.read_text()) | {"project": None, "seen": {}}))
    assert put(oracle_of(server, job)) == project
    assert [task["data"]["region"] for task in tasks_of(server, project)] == RANKED
    assert len(server.client().entries(f"/api/projects/{project}/file-uploads", all="true")) == 2


def test_a_personal_token_is_taken(server, tmp_path):
    token = server.client().post("/api/token/", {})["token"]
    job = make_job(tmp_path / "data", tmp_path / "run")
    oracle = LabelStudioOracle(server.url, SecretStr(token), wait=False)
    oracle.open(job)
    assert put(oracle) > 0
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(token.encode() in path.read_bytes() for path in written)
