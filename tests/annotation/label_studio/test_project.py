"""A run's project: found or made, never twice; tasks in order, never twice; pictures that the server can show."""

import json

import pytest

from ralseg.annotation import ClassColour
from ralseg.annotation.label_studio.client import LabelStudioClient, LabelStudioError
from ralseg.annotation.label_studio.project import FILE, LabelStudioProject, TaskKey, file_name
from ralseg.annotation.label_studio.tasks import MODEL_VERSION
from ralseg.errors import ConfigError
from support.fake_label_studio import TOKEN, FakeLabelStudio

CLASSES = (ClassColour(0, "ground", "#785a3c"), ClassColour(1, "plant", "#288c3c"))


@pytest.fixture
def server():
    with FakeLabelStudio() as server:
        yield server


def project_of(server, folder, number: int | None = None) -> LabelStudioProject:
    return LabelStudioProject(LabelStudioClient(server.url, TOKEN, 5.0, 2, 0.01), folder, number)


def opened(server, folder, number: int | None = None) -> LabelStudioProject:
    project = project_of(server, folder, number)
    project.open("ralseg run", CLASSES)
    return project


def task(key: TaskKey) -> dict:
    prediction = {"model_version": MODEL_VERSION, "score": 0.5, "result": []}
    return {"data": {"image": "/data/a.png", "title": str(key.region)}, "predictions": [prediction]}


def keys(*regions: int, step: int = 0) -> list[TaskKey]:
    return [TaskKey(step, region) for region in regions]


def test_a_project_is_made_once_and_remembered(server, tmp_path):
    first = opened(server, tmp_path)
    assert opened(server, tmp_path).number == first.number == 1
    assert len(server.projects) == 1
    assert TOKEN not in (tmp_path / FILE).read_text()


def test_a_project_of_which_the_run_never_heard_is_found(server, tmp_path):
    server.faults = [None, "lost"]  # looked for, made, and then the connection ends
    with pytest.raises(LabelStudioError):
        opened(server, tmp_path)
    assert len(server.projects) == 1
    assert opened(server, tmp_path).number == 1
    assert len(server.projects) == 1


def test_a_run_of_another_folder_has_a_project_of_its_own(server, tmp_path):
    assert opened(server, tmp_path / "a").number != opened(server, tmp_path / "b").number


def test_a_project_that_was_deleted_is_said(server, tmp_path):
    opened(server, tmp_path)
    server.projects.clear()
    with pytest.raises(LabelStudioError, match="was it deleted"):
        opened(server, tmp_path)


def test_another_servers_project_of_the_same_number_is_refused(server, tmp_path):
    opened(server, tmp_path)
    server.projects[1]["description"] = "somebody else's"
    with pytest.raises(ConfigError, match=r"was not made by this run .*label_studio.json"):
        opened(server, tmp_path)


def test_a_project_that_is_given_is_taken_if_it_has_the_brushes(server, tmp_path):
    made = opened(server, tmp_path / "other").number
    assert opened(server, tmp_path / "own", made).number == made
    server.projects[7] = {"id": 7, "title": "mine", "label_config": "", "task_number": 0, "model_version": ""}
    assert opened(server, tmp_path / "own", 7).number == 7  # empty: it gets them
    assert "ground" in server.projects[7]["label_config"]
    server.projects[8] = {"id": 8, "title": "mine", "label_config": "", "task_number": 3, "model_version": ""}
    with pytest.raises(ConfigError, match="has not the brushes"):
        opened(server, tmp_path / "own", 8)


@pytest.mark.parametrize("content", ["", "[]", '{"format": "other"}', '{"format": "ralseg.label_studio/1", "seen": 3}'])
def test_a_damaged_memory_is_no_obstacle(server, tmp_path, content):
    (tmp_path / FILE).write_text(content)
    assert opened(server, tmp_path).number == 1


def test_tasks_go_in_by_rank_and_once(server, tmp_path):
    """Trap 2: in the browser tasks come by their numbers, so the best one goes in first."""
    project = opened(server, tmp_path)
    assert project.add(keys(*range(30, 10, -1)), task) == 20
    assert [server.tasks[number]["data"]["region"] for number in sorted(server.tasks)] == list(range(30, 10, -1))
    assert project.add(keys(*range(30, 8, -1)), task) == 2
    assert len(server.tasks) == 22
    assert server.projects[1]["model_version"] == MODEL_VERSION  # set after the import: before, it is refused


def test_the_version_of_predictions_is_refused_before_there_are_any(server, tmp_path):
    project = opened(server, tmp_path)
    with pytest.raises(LabelStudioError, match="400"):
        project.client.patch("/api/projects/1/", {"model_version": MODEL_VERSION})


def test_tasks_whose_import_was_never_confirmed_are_not_put_in_twice(server, tmp_path):
    project = opened(server, tmp_path)
    server.faults = [None, "lost"]  # the first eight are heard of, the others are not
    with pytest.raises(LabelStudioError, match="does not answer"):
        project.add(keys(*range(12)), task)
    again = opened(server, tmp_path)
    again.add(keys(*range(12)), task)
    assert [entry["data"]["region"] for entry in server.tasks.values()] == list(range(12))


def test_news_are_what_has_changed_since_it_was_settled(server, tmp_path):
    project = opened(server, tmp_path)
    project.add(keys(5, 6, 7), task)
    assert list(project.news()) == []
    server.annotate(2, [])
    server.annotate(3, [], skip=True)
    assert [(number, key.region) for number, key, _ in project.news()] == [(2, 6), (3, 7)]
    project.settle([2])
    again = opened(server, tmp_path)
    assert [number for number, _, _ in again.news()] == [3]
    server.correct(2, [])
    assert [number for number, _, _ in again.news()] == [2, 3]


def test_tasks_of_others_are_passed_over(server, tmp_path):
    project = opened(server, tmp_path)
    foreign = [{"data": data, "predictions": []} for data in ({"text": "x"}, {"run": project.run, "step": "0"})]
    project.client.post("/api/projects/1/import", foreign)
    project.refresh()
    assert project.tasks == {}


def test_tasks_of_earlier_steps_that_nobody_began_are_taken_away(server, tmp_path):
    project = opened(server, tmp_path)
    project.add(keys(1, 2, 3), task)
    server.annotate(1, [])
    server.tasks[2]["draft_exists"] = True
    project.refresh()
    project.retire(step=0)
    assert set(server.tasks) == {1, 2, 3}
    project.retire(step=1)
    assert set(server.tasks) == {1, 2}  # answered, begun


def test_an_image_is_sent_once(server, tmp_path):
    sent = []

    def picture() -> bytes:
        sent.append(1)
        return b"\x89PNG"

    project = opened(server, tmp_path)
    address = project.upload("a.png-00.png", picture)
    assert address.startswith("/data/upload/1/")
    assert address.endswith("-a.png-00.png")
    assert project.upload("a.png-00.png", picture) == address
    assert opened(server, tmp_path).upload("a.png-00.png", picture) == address
    assert len(sent) == len(server.files) == 1


def test_local_files_need_a_storage(server, tmp_path):
    """Trap 5: they are not shown until the project has a storage for their folder."""
    path = tmp_path / "run" / "to_label" / "images" / "a b.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    project = opened(server, tmp_path / "run")
    address = "/data/local-files/?d=run/to_label/images/a%20b.png"
    assert not project.client.serves(address)
    assert project.local(path, tmp_path) == address
    assert project.client.serves(address)
    project.local(path, tmp_path)
    assert [storage["path"] for storage in server.storages] == [str(path.parent)]


def test_local_files_that_the_server_cannot_show_are_said(server, tmp_path):
    path = tmp_path / "run" / "images" / "a.png"
    project = opened(server, tmp_path / "run")
    with pytest.raises(ConfigError, match="is not below"):
        project.local(path, tmp_path / "other")
    server.faults = [None, 400]
    with pytest.raises(LabelStudioError, match=r"400.*LOCAL_FILES_SERVING_ENABLED=true.*images: upload"):
        project.local(path, tmp_path)
    server.faults = [None, None, 404]
    with pytest.raises(LabelStudioError, match=r"does not show it; start it with"):
        project.local(path, tmp_path)


def test_names_of_files_are_plain_and_no_two_alike():
    names = [file_name(name) for name in ("a/b.png", "a_b.png", "../../x.png", '".png\r\n', "ä" * 200, ".hidden")]
    assert len(set(names)) == len(names)
    assert all(name.isascii() and "/" not in name and not name.startswith(".") for name in names)
    assert json.dumps(names[3]) == f'"{names[3]}"'
