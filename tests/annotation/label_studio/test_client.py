"""Plain HTTP to Label Studio: what is tried again, what is said, and where the token never goes."""

import logging
import traceback

import pytest

from ralseg.annotation.label_studio.client import LabelStudioClient, LabelStudioError, checked_url
from ralseg.errors import ConfigError
from support.fake_label_studio import TOKEN, FakeLabelStudio


@pytest.fixture
def server():
    with FakeLabelStudio() as server:
        server.projects[1] = {"id": 1, "title": "one"}
        yield server


def client_of(server, token: str = TOKEN, **options) -> LabelStudioClient:
    return LabelStudioClient(server.url, token, **{"timeout": 5.0, "pause": 0.01} | options)


@pytest.mark.parametrize("fault", ["drop", "cut", 429, 502, 503, 504])
def test_what_fails_by_chance_is_asked_again(server, fault):
    server.faults = [fault, fault]
    assert client_of(server).get("/api/projects/1/")["title"] == "one"
    assert len(server.requests) == 3


@pytest.mark.parametrize(("fault", "said"), [("drop", "does not answer"), (503, r"refused \(503")])
def test_the_tries_are_limited(server, fault, said):
    server.faults = [fault] * 9
    with pytest.raises(LabelStudioError, match=said):
        client_of(server, retries=2).get("/api/projects/1/")
    assert len(server.requests) == 3


@pytest.mark.parametrize("fault", ["drop", "lost", 500, 502])
def test_what_may_have_been_made_is_not_made_again(server, fault):
    server.faults = [fault]
    with pytest.raises(LabelStudioError):
        client_of(server).post("/api/projects/", {"title": "two"})
    assert len(server.requests) == 1


def test_what_has_not_arrived_is_sent_again(server):
    server.faults = [503, 429]
    assert client_of(server).post("/api/projects/", {"title": "two"})["id"] == 2
    assert len(server.projects) == 2


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_refusal_is_one_although_its_body_has_an_id(server, status):
    """Trap 5: bodies of errors carry an `id`, as things that were made do."""
    server.faults = [status]
    with pytest.raises(LabelStudioError, match=str(status)) as caught:
        client_of(server).post("/api/projects/", {"title": "two"})
    assert caught.value.status == status


def test_what_is_not_there_is_said(server):
    with pytest.raises(LabelStudioError, match=r"api/projects/7/: not found \(404: No Project matches.\)"):
        client_of(server).get("/api/projects/7/")


def test_a_server_that_is_not_there_is_said():
    with FakeLabelStudio() as server:
        client = client_of(server, retries=1)
    with pytest.raises(LabelStudioError, match=r"does not answer .* Nothing is lost.*--ckpt last"):
        client.get("/api/projects/1/")


def test_what_is_no_label_studio_is_said(server):
    server.faults = ["garbage"]
    with pytest.raises(LabelStudioError, match="no JSON; is a Label Studio server there"):
        client_of(server).get("/api/projects/1/")
    with pytest.raises(LabelStudioError, match="has no 'results'"):
        list(client_of(server).pages("/api/projects/1/", "results"))


def test_a_slow_server_is_not_waited_for_for_ever(server):
    server.faults = ["slow"]
    with pytest.raises(LabelStudioError, match="does not answer"):
        client_of(server, timeout=0.2, retries=0).get("/api/projects/1/")


def test_a_wrong_token_is_said_without_it(server):
    with pytest.raises(ConfigError, match="LABEL_STUDIO_TOKEN") as caught:
        client_of(server, "not-the-right-one").get("/api/projects/1/")
    assert "not-the-right-one" not in str(caught.value)


def test_the_token_is_in_no_message(server, caplog):
    caplog.set_level(logging.DEBUG)
    for faults in (["echo"], ["drop"] * 3, [302], [503] * 3, ["garbage"]):
        server.faults = list(faults)
        with pytest.raises((LabelStudioError, ConfigError)) as caught:
            client_of(server, retries=2).get("/api/projects/1/")
        assert TOKEN not in "".join(traceback.format_exception(caught.value))
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(client_of(server))


def test_redirections_are_not_followed(server):
    """They would carry the token to another address."""
    server.faults = [302]
    with pytest.raises(ConfigError, match="answers from another address"):
        client_of(server).get("/api/projects/1/")


def test_a_personal_token_is_exchanged_when_it_has_run_out(server):
    server.token = "head.body.signature"
    client = client_of(server, server.token)
    assert client.get("/api/projects/1/")["id"] == 1
    server.access = "another one"  # minutes have gone by
    assert client.get("/api/projects/1/")["id"] == 1
    with pytest.raises(ConfigError, match=r"401: Token is invalid"):
        client_of(server, "head.body.forged").get("/api/projects/1/")


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "ümlaut"])
def test_what_is_no_token_is_refused(token):
    with pytest.raises(ConfigError, match="is no token") as caught:
        LabelStudioClient("http://127.0.0.1:8080", token)
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8080", "ftp://a", "file:///etc/passwd", "http://", "http://a:x", "http://a b", "http://ä"]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ConfigError, match="must be like"):
        checked_url(url)


@pytest.mark.parametrize("url", ["http://me:secret@a", "http://a?token=secret", "http://a#secret"])
def test_secrets_in_the_address_are_refused_and_not_repeated(url):
    with pytest.raises(ConfigError, match="only the address") as caught:
        checked_url(url)
    assert "secret" not in str(caught.value)


def test_lists_come_in_pages(server, monkeypatch):
    monkeypatch.setattr("ralseg.annotation.label_studio.client._PAGE", 2)
    client = client_of(server)
    for _ in range(3):
        client.post("/api/projects/", {"title": "more"})
    assert [project["id"] for project in client.pages("/api/projects", "results")] == [1, 2, 3, 4]


def test_oversized_answers_are_refused(server, monkeypatch):
    monkeypatch.setattr("ralseg.annotation.label_studio.client._LARGEST", 10)
    with pytest.raises(LabelStudioError, match="an answer of more than"):
        client_of(server).get("/api/projects/1/")
