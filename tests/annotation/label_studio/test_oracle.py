"""Label Studio as an oracle: asked, answered, skipped, corrected, and cut off at every point in between."""

import json
import logging
import threading
import time

import numpy as np
import pytest
import torch
from jsonargparse.typing import SecretStr

from ralseg.annotation import LabelStudioOracle
from ralseg.annotation.label_studio.brush import encode_mask
from ralseg.annotation.label_studio.client import LabelStudioClient, LabelStudioError
from ralseg.annotation.label_studio.project import LabelStudioProject
from ralseg.errors import ConfigError, DataError
from ralseg.labels import LabelsNeeded, Ranking
from ralseg.runtime.signals import Interrupted, interrupts
from support.data import small_data
from support.fake_label_studio import TOKEN, FakeLabelStudio
from support.games import acquire
from support.jobs import quiet_job

ASKED = [3, 9, 4]  # by rank: 9, 4, 3
SCORES = {3: 0.1, 9: 0.9, 4: 0.5, 20: 0.4, 21: 0.3}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("LABEL_STUDIO_TOKEN", TOKEN)
    with FakeLabelStudio() as server:
        yield server


@pytest.fixture
def job(tmp_path):
    data = small_data()
    data.setup()
    job = data.labelling_job("train_set", tmp_path / "run")
    predicted = np.zeros((64, 96), np.uint8)
    predicted[:, 40:] = 1
    return quiet_job(job, predict=lambda image: predicted, ranking=lambda: Ranking(SCORES, [20, 21]))


def oracle_of(server, job, **options) -> LabelStudioOracle:
    options = {"wait": False, "reserves": 0, "retries": 0, "timeout": 5.0, "poll_seconds": 0.01} | options
    oracle = LabelStudioOracle(server.url, **options)
    oracle.open(job)
    return oracle


def ask(oracle, regions=ASKED, step: int = 0):
    return oracle.ask(torch.tensor(regions), step)


def result_of(server, task: int, job, region: int, number: int) -> list[dict]:
    """A task's prediction with a stroke of a class over its upper half, which leaves the region."""
    shown = server.tasks[task]["predictions"][0]["result"]
    x, y, width, height = job.regions.file_box(region)
    stroke = np.zeros((64, 96), np.bool_)
    stroke[max(0, y - 3) : y + height // 2, max(0, x - 3) : x + width + 3] = True
    value = {"format": "rle", "rle": encode_mask(stroke), "brushlabels": [job.class_names[number]]}
    return [*shown, shown[-1] | {"id": "drawn", "value": value}]


def journal(oracle, event: str) -> list[dict]:
    return [entry for entry in oracle.answers.journal.entries() if entry["event"] == event]


def test_regions_go_out_by_rank_and_come_back_as_painted(server, job):
    oracle = oracle_of(server, job)
    with pytest.raises(LabelsNeeded, match=rf"3 of 3 regions wait .*{server.url}/projects/1/data\?labeling=1"):
        ask(oracle)
    assert [task["data"]["region"] for task in server.tasks.values()] == [9, 4, 3]
    scores = [task["predictions"][0]["score"] for task in server.tasks.values()]
    assert scores == sorted(scores)  # trap 2: the lowest is served first
    assert scores == pytest.approx([1 / 3, 2 / 3, 1])
    assert "1 of 3" in server.tasks[1]["data"]["title"]
    server.annotate(1, result_of(server, 1, job, 9, 2))
    with pytest.raises(LabelsNeeded, match="2 of 3"):
        ask(oracle)
    server.annotate(2)
    server.annotate(3, user=2, seconds=7.5)
    answer = ask(oracle_of(server, job))  # another process
    assert answer.regions.tolist() == ASKED
    painted = answer.labels[1]
    assert (painted[:16] == 2).all()
    x = int(job.regions.file_box(9)[0])
    assert (painted[16:, :] == torch.tensor([1 if x + i >= 40 else 0 for i in range(32)], dtype=torch.uint8)).all()
    saved = {entry["region"]: entry for entry in journal(oracle, "saved")}
    assert (saved[3]["who"], saved[3]["seconds"], saved[3]["source"]) == ("bob@example.org", 7.5, "label_studio")
    assert saved[4]["unchanged"]
    assert saved[9]["changed"] > 0
    assert len(server.projects) == 1
    assert len(server.tasks) == 3


def test_a_run_that_waits_goes_on_when_all_is_painted(server, job, capsys):
    oracle = oracle_of(server, job, wait=True)

    def people() -> None:
        for task in (1, 2, 3):
            while task not in server.tasks:
                time.sleep(0.01)
            server.annotate(task)

    threading.Thread(target=people, daemon=True).start()
    assert ask(oracle).regions.tolist() == ASKED
    assert "label them at" in capsys.readouterr().out


def test_a_skipped_region_is_replaced_by_a_reserve(server, job):
    oracle = oracle_of(server, job, reserves=2)
    with pytest.raises(LabelsNeeded):
        ask(oracle)
    assert len(server.tasks) == 3  # reserves are only asked for in place of others
    server.annotate(server.task_of(9), skip=True)
    with pytest.raises(LabelsNeeded, match="3 of 3"):
        ask(oracle)
    assert journal(oracle, "skipped")[0]["who"] == "ada@example.org"
    assert [task["data"]["region"] for task in server.tasks.values()] == [9, 4, 3, 20]
    assert "in place of a skipped one" in server.tasks[4]["data"]["title"]
    for region in (4, 3, 20):
        server.annotate(server.task_of(region))
    assert sorted(ask(oracle).regions.tolist()) == [3, 4, 20]
    assert len(journal(oracle, "skipped")) == 1


def test_a_region_that_was_put_off_and_then_painted_counts(server, job):
    oracle = oracle_of(server, job)
    with pytest.raises(LabelsNeeded):
        ask(oracle)
    server.annotate(1, skip=True)
    with pytest.raises(LabelsNeeded, match="3 of 3"):
        ask(oracle)
    for task in (1, 2, 3):
        server.annotate(task)
    assert ask(oracle).regions.tolist() == ASKED


def answered(server, job, **options) -> LabelStudioOracle:
    """An oracle all of whose tasks are accepted as predicted."""
    oracle = oracle_of(server, job, **options)
    with pytest.raises(LabelsNeeded):
        ask(oracle)
    for task in server.tasks:
        server.annotate(task)
    ask(oracle)
    return oracle


def test_corrections_on_the_server_are_seen(server, job):
    oracle = answered(server, job)
    assert oracle.corrections(None).regions.tolist() == []
    server.correct(1, result_of(server, 1, job, 9, 2), more_seconds=4.0)
    assert oracle.corrections(None).regions.tolist() == [9]
    labels = oracle.recall(torch.tensor([9, 4]))
    assert (labels[0, :16] == 2).all()
    assert (labels[1] != 2).all()
    last = journal(oracle, "saved")[-1]
    assert (last["version"], last["seconds"]) == (2, 4.0)  # the server's time is a sum
    again = oracle_of(server, job)  # a run that is resumed
    assert (again.recall(torch.tensor([9]))[0, :16] == 2).all()
    assert len(journal(again, "saved")) == 4


def test_a_correction_on_disk_is_not_undone_by_an_old_answer(server, job):
    oracle = answered(server, job)
    mask = np.full((32, 32), 3, np.uint8)
    oracle.answers.save(9, mask, who="here", source="page")
    again = oracle_of(server, job)
    assert (again.recall(torch.tensor([9])) == 3).all()
    server.correct(1, result_of(server, 1, job, 9, 2))
    assert not (again.recall(torch.tensor([9])) == 3).any()


def test_while_the_server_is_away_a_run_goes_on_with_what_it_has(server, job, caplog):
    answered(server, job)
    server.go_away()
    again = oracle_of(server, job)
    with caplog.at_level(logging.WARNING):
        assert again.recall(torch.tensor(ASKED)).shape == (3, 32, 32)
    assert "corrections on the server are not seen" in caplog.text
    assert ask(again).regions.tolist() == ASKED  # was taken before
    server.come_back()


def test_a_server_that_goes_away_in_the_middle_loses_nothing(server, job):
    oracle = oracle_of(server, job, wait=True)

    def people() -> None:
        while 3 not in server.tasks:
            time.sleep(0.01)
        server.annotate(1)
        while not journal(oracle, "saved"):
            time.sleep(0.01)
        server.go_away()

    threading.Thread(target=people, daemon=True).start()
    with pytest.raises(LabelStudioError, match=r"does not answer .*Nothing is lost.*--ckpt last") as caught:
        ask(oracle)
    assert caught.value.exit_code == 3
    server.come_back()
    again = oracle_of(server, job)
    with pytest.raises(LabelsNeeded, match="2 of 3"):
        ask(again)
    for task in (2, 3):
        server.annotate(task)
    assert ask(again).regions.tolist() == ASKED
    assert len(server.tasks) == len(journal(again, "saved")) == 3


@pytest.mark.parametrize("fault", ["lost", "cut", "drop", 500])
def test_cut_off_at_any_request_the_same_command_goes_on(server, job, fault):
    """Every request of a whole round fails once; each time the command is given again."""
    met, rounds = set(), 0
    while rounds < 60:
        rounds += 1
        start = len(server.requests)
        place = next(n for n in range(100) if n not in met)
        server.faults = [None] * place + [fault]
        try:
            ask(oracle_of(server, job))
            break
        except LabelStudioError:
            met.add(place)
        except LabelsNeeded:
            if len(server.requests) - start <= place:  # the round is shorter than that: people go on
                met = set()
                server.faults = []
                todo = [task for task in sorted(server.tasks) if not server.tasks[task]["annotations"]]
                server.annotate(todo[0])
            else:
                met.add(place)
    assert sum(fault is not None for _, _, fault in server.requests) > 15
    server.faults = []
    oracle = oracle_of(server, job)
    assert ask(oracle).regions.tolist() == ASKED
    assert [project["model_version"] for project in server.projects.values()] == ["ralseg"]
    assert [task["data"]["region"] for task in server.tasks.values()] == [9, 4, 3]
    assert len(journal(oracle, "saved")) == 3


def test_an_answer_that_was_kept_but_not_noted_is_not_counted_twice(server, job, monkeypatch):
    oracle = oracle_of(server, job)
    with pytest.raises(LabelsNeeded):
        ask(oracle)
    server.annotate(1)
    monkeypatch.setattr(LabelStudioProject, "settle", lambda *_: 1 / 0)  # stands for a kill
    with pytest.raises(ZeroDivisionError):
        ask(oracle)
    monkeypatch.undo()
    monkeypatch.setenv("LABEL_STUDIO_TOKEN", TOKEN)
    with pytest.raises(LabelsNeeded, match="2 of 3"):
        ask(oracle_of(server, job))
    assert len(journal(oracle, "saved")) == 1


def test_a_task_that_somebody_deleted_is_made_anew(server, job):
    oracle = oracle_of(server, job)
    with pytest.raises(LabelsNeeded):
        ask(oracle)
    del server.tasks[2]
    with pytest.raises(LabelsNeeded):
        ask(oracle)
    assert [task["data"]["region"] for task in server.tasks.values()] == [9, 3, 4]


def test_an_answer_that_cannot_be_read_is_said_with_its_address(server, job, caplog):
    oracle = oracle_of(server, job)
    with pytest.raises(LabelsNeeded):
        ask(oracle)
    polygon = {"type": "polygonlabels", "from_name": "label", "value": {}}
    server.annotate(1, [polygon])
    server.annotate(2, [polygon])
    server.annotate(3)
    both = r"2 of 3 .*data\?task=1 cannot be read: .*brushes.*data\?task=2 cannot be read: "
    with pytest.raises(LabelsNeeded, match=both):
        ask(oracle)
    assert caplog.text.count("task=1 cannot be read") == 1
    server.correct(1, result_of(server, 1, job, 9, 2))
    server.correct(2, result_of(server, 2, job, 4, 2))
    assert ask(oracle).regions.tolist() == ASKED


def test_a_second_opinion_is_asked_for_blind_once_there_are_two(server, job):
    oracle = oracle_of(server, job, reask=1.0)
    with pytest.raises(LabelsNeeded):
        ask(oracle)
    server.annotate(1, user=1)
    with pytest.raises(LabelsNeeded):
        ask(oracle)
    assert len(server.tasks) == 3
    server.annotate(2, user=2)
    with pytest.raises(LabelsNeeded):
        ask(oracle)
    blind = server.task_of(9, blind=True)
    assert [result["from_name"] for result in server.tasks[blind]["predictions"][0]["result"]] == ["frame"]
    server.annotate(blind, result_of(server, 1, job, 9, 2)[1:], user=2)
    server.annotate(server.task_of(4, blind=True), user=2)  # the same person: no second opinion
    server.annotate(3)
    answer = ask(oracle)
    assert not (answer.labels == 2).any()  # the first one's mask stays
    opinions = journal(oracle, "reask")
    assert [(entry["region"], entry["who"], entry["agreement"]) for entry in opinions] == [(9, "bob@example.org", 0.5)]


def test_few_answers_are_enough_where_the_command_is_given_again(server, job):
    oracle = oracle_of(server, job, min_answers=2)
    with pytest.raises(LabelsNeeded):
        ask(oracle)
    server.annotate(1)
    with pytest.raises(LabelsNeeded, match="2 of 3"):
        ask(oracle)
    server.annotate(3)
    assert sorted(ask(oracle_of(server, job, min_answers=2)).regions.tolist()) == [3, 9]
    with pytest.raises(LabelsNeeded):
        ask(oracle, [7], step=1)
    assert [task["data"]["region"] for task in server.tasks.values()] == [9, 3, 7]  # 4 is not served first


@pytest.mark.parametrize("images", ["upload", "local", "crops"])
def test_pictures_get_to_the_server(server, job, tmp_path, images):
    oracle = oracle_of(server, job, images=images, document_root=str(tmp_path))
    with pytest.raises(LabelsNeeded):
        ask(oracle)
    data = [task["data"] for task in server.tasks.values()]
    if images == "local":
        assert not server.files
        files = {path.name for path in (tmp_path / "run" / "to_label" / "images").iterdir()}
        assert {entry["image"].rpartition("/")[2] for entry in data} == files
        assert len(server.storages) == 1
    else:
        assert {entry["image"].removeprefix("/data/") for entry in data} == {f["file"] for f in server.files.values()}
        assert len(server.files) == (3 if images == "crops" else 2)  # regions 3 and 4 are of one image
    size = server.tasks[1]["predictions"][0]["result"][0]
    assert size["original_width"] == (32 if images == "crops" else 96)
    for task in server.tasks:
        server.annotate(task)
    answer = ask(oracle_of(server, job, images="upload"))  # another choice later changes nothing
    assert set(answer.labels.unique().tolist()) == {0, 1}


def test_a_signal_ends_the_waiting(server, job, monkeypatch):
    monkeypatch.setattr(interrupts, "asked", 15)
    with pytest.raises(Interrupted):
        ask(oracle_of(server, job, wait=True, poll_seconds=60.0))
    assert len(server.tasks) == 3


def test_the_token_is_asked_for_before_anything_is_computed(server, job, monkeypatch):
    monkeypatch.delenv("LABEL_STUDIO_TOKEN")
    with pytest.raises(ConfigError, match="LABEL_STUDIO_TOKEN"):
        oracle_of(server, job)
    oracle_of(server, job, token=SecretStr(TOKEN))
    with pytest.raises(ConfigError, match="LABEL_STUDIO_TOKEN"):
        oracle_of(server, job, token=SecretStr("**********"))  # from the configuration in a run's folder


def test_local_files_need_a_root(server, job, monkeypatch):
    monkeypatch.delenv("LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT", raising=False)
    with pytest.raises(ConfigError, match="needs document_root"):
        oracle_of(server, job, images="local")


@pytest.mark.parametrize("options", [{"poll_seconds": 0.0}, {"timeout": -1.0}, {"retries": -1}, {"url": "x"}])
def test_values_that_cannot_work_are_refused(options):
    with pytest.raises(ConfigError):
        LabelStudioOracle(**options)


def test_unknown_regions_of_a_task_are_no_answers(server, job):
    oracle = answered(server, job)
    server.tasks[1]["data"]["region"] = 33
    server.correct(1, [])
    assert oracle.corrections(None).regions.tolist() == []
    assert "never asked for" in next(iter(oracle._problems.values()))


@pytest.mark.slow
def test_a_whole_run_on_a_server(server, tmp_path):
    """Ten regions in steps of 4, 4 and 2, predictions accepted, one correction on the way."""
    oracle = LabelStudioOracle(server.url, wait=False, retries=0)
    folder, result, rounds = tmp_path / "run", None, 0
    while result is None:
        _, result = acquire(folder, oracle=oracle, ckpt="last")
        todo = [task for task in sorted(server.tasks) if not server.tasks[task]["annotations"]]
        for task in todo:
            server.annotate(task)
        rounds += 1
        if rounds == 2:
            entry = server.tasks[1]["data"]
            frame = server.tasks[1]["predictions"][0]["result"][:1]
            server.correct(1, frame)  # all of it rubbed out
            corrected = entry["region"]
    assert rounds == 4
    assert result["corrected"] == [corrected]
    assert result["budgets"]["10"]["test_set/miou"] >= 0
    assert TOKEN not in "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())
    assert len(server.tasks) == 10
    assert json.loads((folder / "to_label" / "label_studio.json").read_text())["project"] == 1


def test_errors_of_the_server_are_data_errors(server):
    server.faults = [500]
    with pytest.raises(DataError):
        LabelStudioClient(server.url, TOKEN).get("/api/projects/1/")
