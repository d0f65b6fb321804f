"""The page's server: who may ask, what is given, what is taken, and what is refused."""

import io
import json
import threading
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from ralseg.annotation import Answers
from ralseg.annotation.page.server import FILES, HEADERS, Hosts
from ralseg.annotation.page.superpixels import PATCHES
from ralseg.labels.news import News
from support.label_requests import HEIGHT, WIDTH, make_answers, painted
from support.page import TOKEN, make_desk, make_page

ADA = "?who=Ada"
PIXELS = HEIGHT * WIDTH


@pytest.fixture
def answers(tmp_path) -> Answers:
    return make_answers(tmp_path / "run" / "to_label", wanted=4, reserves=2)


@pytest.fixture
def desk(answers):
    return make_desk(answers)


@pytest.fixture
def client(desk) -> TestClient:
    return TestClient(make_page(desk), base_url="http://127.0.0.1:8808")


def at(path: str) -> str:
    return f"/{TOKEN}/{path}"


def save(client, region: int, mask: np.ndarray, query: str = ADA):
    return client.post(at(f"api/regions/{region}/mask{query}"), content=mask.tobytes())


def is_saved(answers: Answers) -> bool:
    return any(entry["event"] == "saved" for entry in answers.journal.entries())


# -- who may ask -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/api/state", "/main.js", f"/{TOKEN}", f"/{TOKEN[:-1]}/", f"/{TOKEN}x/", "//", "/%00/", "/é/", "/../"]
)
def test_without_the_token_nothing_is_given(client, path):
    reply = client.get(path)
    assert reply.status_code == 403
    assert "ralseg label" in reply.json()["error"]
    assert TOKEN not in reply.text


def test_the_token_alone_opens_nothing_but_the_page(client):
    for path in ("../../etc/passwd", "..%2f..%2fetc/passwd", "static/index.html", "desk.py", "api", "api/regions/10"):
        reply = client.get(at(path))
        assert reply.status_code in (403, 404), path
        assert "error" in reply.json()
    assert client.post(at("")).status_code == 405
    assert client.get(at("api/next")).status_code == 405


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8808", "", "a b", "[::2]", "127.0.0.1@x"]
)
def test_a_foreign_host_is_refused_even_with_the_token(client, host):
    reply = client.get(at("api/state"), headers={"Host": host})
    assert reply.status_code == 400
    assert "does not go by that name" in reply.json()["error"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8808", "LOCALHOST", "[::1]:9"])
def test_this_machine_is_not_foreign(client, host):
    assert client.get(at("api/state"), headers={"Host": host}).status_code == 200


def test_two_host_headers_are_refused(client):
    assert client.get(at(""), headers=[("Host", "127.0.0.1"), ("Host", "evil.example")]).status_code == 400


def test_who_listens_everywhere_takes_numbers_and_its_own_name_only():
    everywhere, one = Hosts("0.0.0.0"), Hosts("192.168.1.5")
    assert everywhere.knows("192.168.1.5:8808")
    assert not everywhere.knows("evil.example")
    assert one.knows("192.168.1.5:8808")
    assert not one.knows("192.168.1.6")


def test_browsers_are_told_to_load_nothing_from_elsewhere(client):
    for reply in (client.get(at("")), client.get("/"), client.get(at("nothing")), client.get(at("api/state"))):
        assert {name: reply.headers[name] for name in HEADERS} == HEADERS
    assert "default-src 'none'" in HEADERS["Content-Security-Policy"]
    for name in FILES:
        text = client.get(at(name)).text
        assert "://" not in text.replace("http://www.w3.org/2000/svg", ""), name  # the name of a format, not asked for
        assert "eval(" not in text
        assert not name.endswith(".js") or "innerHTML" not in text


# -- what is given ---------------------------------------------------------------------------------


def test_the_state_of_a_request(client, desk):
    state = client.get(at(f"api/state{ADA}")).json()
    assert (state["phase"], state["run"], state["labelled"]) == ("label", "test/run", None)
    assert state["classes"][1] == {"number": 1, "name": "plant", "colour": "#288c3c"}
    assert [entry["region"] for entry in state["request"]["regions"]] == [10, 11, 12, 13]
    desk.tell(News("choosing", 24, (50, 150), (0.5, 0.0, 0.625)))
    state = client.get(at(f"api/state{ADA}")).json()
    assert (state["labelled"], state["budgets"], state["scores"]) == (24, [50, 150], [0.5, None, 0.625])
    desk.take()
    desk.tell(News("final", 50, (50, 150), budget=50, share=0.25))
    state = client.get(at(f"api/state{ADA}")).json()
    assert (state["phase"], state["model"]["doing"], state["model"]["share"]) == ("model", "final", 0.25)
    scores = {"test_set/miou": 0.75, "test_set/iou/plant": 0.5, "reward_set/miou": 0.7}
    desk.tell(News("done", 50, (50,), result={"budgets": {"50": scores}}))
    state = client.get(at(f"api/state{ADA}")).json()
    assert state["phase"] == "done"
    assert state["result"]["budgets"] == [{"budget": 50, "miou": 0.75, "classes": {"plant": 0.5}}]
    assert state["result"]["command"].startswith("ralseg predict --ckpt ")


def test_a_region_and_its_pictures(client):
    about = client.post(at(f"api/next{ADA}")).json()["region"]
    assert about["region"] == 10
    assert about["box"] == [0, 0, WIDTH, HEIGHT]
    *_, width, height = about["view"]
    view = Image.open(io.BytesIO(client.get(at("api/regions/10/view.png")).content))
    assert view.size == (width, height)
    assert Image.open(io.BytesIO(client.get(at("api/regions/10/image.jpg")).content)).size == tuple(about["image_size"])
    assert client.get(at("api/regions/10/start")).content == bytes(PIXELS)  # the prediction
    assert client.get(at("api/regions/10/start?blind=1")).content == b"\xff" * PIXELS
    assert client.get(at("api/regions/10/prediction")).content == bytes(PIXELS)
    assert client.get(at("api/regions/10/inside")).content == b"\x01" * PIXELS
    assert Image.open(io.BytesIO(client.get(at("api/regions/10/thumbnail.png")).content)).size == (WIDTH, HEIGHT)


def test_patches_cover_a_region(client):
    for level in range(len(PATCHES)):
        content = client.get(at(f"api/regions/10/superpixels/{level}")).content
        assert len(content) == 2 * PIXELS
        numbers = set(np.frombuffer(content, "<u2").tolist())
        assert numbers == set(range(len(numbers)))
    reply = client.get(at(f"api/regions/10/superpixels/{len(PATCHES)}"))
    assert reply.status_code == 400
    assert "levels 0 to" in reply.json()["error"]


@pytest.mark.parametrize("region", ["99", "-1", "10.5", "9" * 5000, "x", "10%00", "..", "%2e%2e%2f10"])
def test_regions_that_nobody_asked_for(client, answers, region):
    for path, method in (("view.png", "get"), ("start", "get"), (f"mask{ADA}", "post"), (f"open{ADA}", "post")):
        reply = getattr(client, method)(at(f"api/regions/{region}/{path}"))
        assert reply.status_code == 404, path
        assert "error" in reply.json()
    assert not is_saved(answers)


# -- what is taken ---------------------------------------------------------------------------------


def test_a_mask_is_saved_as_it_was_sent(client, answers):
    mask = painted(2, ground=7)
    mask[0, 0] = 255
    reply = save(client, 10, mask, "?who=Ada&seconds=12.5&clicks=3")
    assert reply.json() == {"version": 1}
    assert (answers.mask(10) == mask).all()
    (entry,) = [entry for entry in answers.journal.entries() if entry["event"] == "saved"]
    assert (entry["who"], entry["seconds"], entry["clicks"], entry["source"]) == ("Ada", 12.5, 3, "page")
    assert entry["changed"] == int((mask != 0).sum())
    assert client.get(at("api/regions/10/start")).content == mask.tobytes()


def test_a_mask_that_is_saved_twice_and_one_that_is_corrected(client, answers):
    assert save(client, 10, painted(1)).json() == {"version": 1}
    assert save(client, 10, painted(1)).json() == {"version": 1}
    assert save(client, 10, painted(2)).json() == {"version": 2}
    assert (answers.mask(10, 1) == 1).all()
    assert (answers.mask(10) == 2).all()
    state = client.get(at(f"api/state{ADA}")).json()
    assert (state["request"]["answered"], state["request"]["wanted"]) == (1, 4)


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"", 400, "0 bytes"),
        (bytes(PIXELS - 1), 400, f"{PIXELS - 1} bytes"),
        (bytes(PIXELS + 1), 413, "nothing was saved"),
        (bytes(10_000_000), 413, "nothing was saved"),
        (b"\x03" * PIXELS, 400, "classes [3]"),
        (bytes(range(PIXELS)), 400, "classes [3, 4"),
    ],
)
def test_masks_that_cannot_be_right(client, answers, content, status, said):
    reply = client.post(at(f"api/regions/10/mask{ADA}"), content=content)
    assert reply.status_code == status
    assert said in reply.json()["error"]
    assert not is_saved(answers)
    assert not list((answers.folder / "masks").rglob("*.png"))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "who are you"),
        ("?who=%20", "who are you"),
        ("?who=" + "x" * 41, "at most 40 letters"),
        ("?who=a%0ab", "in one line"),
        ("?who=Ada&seconds=nan", "cannot be right"),
        ("?who=Ada&seconds=-1", "cannot be right"),
        ("?who=Ada&clicks=1e9", "is not a number"),
        ("?who=Ada&clicks=" + "9" * 5000, "is not a number"),
        ("?who=Ada&seconds=soon", "is not a number"),
    ],
)
def test_nobody_and_impossible_figures(client, answers, query, said):
    reply = save(client, 10, painted(1), query)
    assert reply.status_code == 400
    assert said in reply.json()["error"]
    assert not is_saved(answers)


def test_names_of_all_kinds_are_kept(client, answers):
    name = "Zoë <script>alert(1)</script> 李"
    reply = client.post(at("api/regions/10/mask"), params={"who": name}, content=painted(1).tobytes())
    assert reply.status_code == 200
    state = client.get(at(f"api/state{ADA}")).json()
    assert state["request"]["regions"][0]["who"] == name


def test_two_annotators_do_not_get_the_same_region(client):
    first = client.post(at("api/next?who=Ada")).json()["region"]["region"]
    second = client.post(at("api/next?who=Bob")).json()["region"]["region"]
    assert (first, second) == (10, 11)
    assert client.post(at("api/next?who=Ada")).json()["region"]["region"] == 10  # a page that was loaded again
    reply = client.post(at("api/regions/10/open?who=Bob"))
    assert reply.status_code == 400
    assert "somebody else" in reply.json()["error"]
    assert client.post(at("api/regions/10/claim?who=Bob")).json() == {"yours": False}
    states = [entry["state"] for entry in client.get(at("api/state?who=Bob")).json()["request"]["regions"]]
    assert states == ["theirs", "mine", "open", "open"]


def test_a_skipped_region_is_replaced_by_a_reserve(client):
    assert client.post(at(f"api/regions/10/skip{ADA}")).status_code == 200
    request = client.get(at(f"api/state{ADA}")).json()["request"]
    assert [entry["state"] for entry in request["regions"]] == ["skipped", "open", "open", "open", "open"]
    assert (request["skipped"], request["wanted"]) == (1, 4)
    save(client, 11, painted(1))
    reply = client.post(at(f"api/regions/11/skip{ADA}"))
    assert reply.status_code == 400
    assert "answered already" in reply.json()["error"]


def test_the_model_goes_on_when_somebody_says_so(tmp_path):
    answers = make_answers(tmp_path / "to_label", wanted=4, min_answers=2)
    client = TestClient(make_page(make_desk(answers)), base_url="http://127.0.0.1")
    save(client, 10, painted(1))
    reply = client.post(at(f"api/finish{ADA}"))
    assert reply.status_code == 400
    assert "1 of 4 regions are answered" in reply.json()["error"]
    save(client, 11, painted(1))
    assert client.get(at(f"api/state{ADA}")).json()["request"]["can_finish"]
    assert client.post(at(f"api/finish{ADA}")).status_code == 200
    assert answers.status().is_complete


def test_a_second_opinion_is_given_without_seeing_the_first(tmp_path):
    answers = make_answers(tmp_path / "to_label", wanted=2, reask=1.0)
    client = TestClient(make_page(make_desk(answers)), base_url="http://127.0.0.1")
    save(client, 10, painted(1))
    about = client.post(at("api/next?who=Bob")).json()["region"]
    assert (about["region"], about["blind"], about["has_prediction"], about["version"]) == (10, True, False, 0)
    assert client.post(at("api/regions/10/claim?who=Bob")).json()["yours"]
    assert client.post(at("api/next?who=Bob")).json()["region"]["blind"]
    assert save(client, 10, painted(2), "?who=Bob&blind=1").status_code == 200
    assert (answers.mask(10) == 1).all()
    (again,) = [entry for entry in answers.journal.entries() if entry["event"] == "reask"]
    assert (again["who"], again["agreement"]) == ("Bob", 0.0)


def test_what_lies_outside_of_a_region_stays_out(tmp_path):
    answers = make_answers(tmp_path / "to_label", wanted=1)
    shape = np.zeros((HEIGHT, WIDTH), np.uint8)
    shape[:, :4] = 255
    (answers.folder / "shapes").mkdir()
    Image.fromarray(shape).save(answers.folder / "shapes" / "10.png")
    wanted = replace(answers.request.regions[0], inside="shapes/10.png")
    answers = Answers(answers.folder, replace(answers.request, regions=(wanted,)))
    answers.open()
    client = TestClient(make_page(make_desk(answers)), base_url="http://127.0.0.1")
    assert client.post(at(f"api/next{ADA}")).json()["region"]["has_shape"]
    assert np.frombuffer(client.get(at("api/regions/10/inside")).content, np.uint8).sum() == 4 * HEIGHT
    save(client, 10, painted(1))
    assert (answers.mask(10) == np.where(shape > 0, 1, 255)).all()


def test_regions_of_earlier_requests_can_be_corrected(client, desk, answers):
    save(client, 10, painted(1))
    later = replace(answers.request, step=1, regions=answers.request.regions[2:])
    now = Answers(answers.folder, later)
    now.open()
    desk.ask(now)
    (earlier,) = client.get(at(f"api/state{ADA}")).json()["earlier"]
    assert (earlier["region"], earlier["who"], earlier["version"]) == (10, "Ada", 1)
    about = client.post(at(f"api/regions/10/open{ADA}")).json()
    assert about["saved"]
    assert save(client, 10, painted(2)).json() == {"version": 2}


def test_many_at_once(client, answers):
    def label(region: int) -> None:
        for number in range(3):
            assert save(client, region, painted(number)).status_code == 200

    threads = [threading.Thread(target=label, args=(region,)) for region in (10, 11, 12, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.versions() == {10: 3, 11: 3, 12: 3, 13: 3}
    assert answers.status().is_complete


def test_an_error_that_nobody_expected_is_a_sentence(desk, caplog):
    desk.job.read_image = lambda position: 1 / 0
    client = TestClient(make_page(desk), base_url="http://127.0.0.1", raise_server_exceptions=False)
    reply = client.get(at("api/regions/10/view.png"))
    assert reply.status_code == 500
    assert "its terminal says what" in json.loads(reply.text)["error"]
    assert "ZeroDivisionError" in caplog.text


def test_open_pages_hear_of_the_end(client, desk):
    client.get(at(f"api/state{ADA}&page=one"))
    client.get(at(f"api/state{ADA}&page=two"))
    desk.wait_until_told(0.1)  # not over yet: at once
    desk.tell(News("done", 4, (4,), result={"budgets": {}}))
    client.get(at(f"api/state{ADA}&page=one"))
    assert desk._untold() == {"two"}
    client.post(at("api/leave?page=two"))
    assert desk._untold() == set()
    desk.wait_until_told(60)
