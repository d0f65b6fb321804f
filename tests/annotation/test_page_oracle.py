"""The page as an oracle: it waits for people, hears signals, and shows what the run does."""

import json
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress

import numpy as np
import pytest
import torch

from ralseg.annotation import PageOracle
from ralseg.engine.acquire_session import SET
from ralseg.errors import ConfigError
from ralseg.labels.news import News
from ralseg.runtime.signals import Interrupted, interrupts
from support.games import acquire, segmenter, selected


@pytest.fixture
def oracle(data, tmp_path):
    made = PageOracle(reserves=0)
    made.open(data.labelling_job(SET, tmp_path / "run"))
    yield made
    made.close()


def ask(oracle: PageOracle, path: str, body: bytes | None = None):
    url = f"{oracle.address.url()}api/{path}"
    return json.load(urllib.request.urlopen(urllib.request.Request(url, body)))


def label_all(oracle: PageOracle, value: int = 1) -> None:
    """Answer until the run is over or the page is gone."""
    with suppress(urllib.error.URLError):
        _label_all(oracle, value)


def _label_all(oracle: PageOracle, value: int) -> None:
    while True:
        if ask(oracle, "state")["phase"] == "done":
            return
        about = ask(oracle, "next?who=Ada", b"")["region"]
        if about is None:
            time.sleep(0.02)
            continue
        *_, width, height = about["box"]
        ask(oracle, f"regions/{about['region']}/mask?who=Ada&seconds=6&clicks=2", bytes([value]) * (width * height))


def test_it_waits_until_all_is_answered(oracle, capsys):
    assert ask(oracle, "state")["phase"] == "model"
    person = threading.Thread(target=label_all, args=(oracle,), daemon=True)
    person.start()
    answer = oracle.ask(torch.tensor([3, 0, 7]), step=0)
    assert answer.regions.tolist() == [3, 0, 7]
    assert (answer.labels == 1).all()
    assert ask(oracle, "state")["phase"] == "model"
    oracle.tell(News("done", 3, (3,), result={"budgets": {}}))
    person.join(10)
    assert not person.is_alive()


@pytest.mark.parametrize("number", [2, 15])
def test_a_signal_ends_the_waiting(oracle, monkeypatch, number):
    threading.Timer(0.3, monkeypatch.setattr, (interrupts, "asked", number)).start()
    with pytest.raises(Interrupted):
        oracle.ask(torch.tensor([3, 0]), step=0)
    assert ask(oracle, "state")["phase"] == "model"


def test_what_was_saved_before_is_not_asked_again(oracle, data, tmp_path):
    oracle.folder.mkdir(parents=True, exist_ok=True)
    threading.Timer(0.3, setattr, (interrupts, "asked", 2)).start()
    try:
        with pytest.raises(Interrupted):
            oracle.ask(torch.tensor([3, 0]), step=0)
    finally:
        interrupts.asked = None
    wanted = oracle.answers.wanted(3)
    oracle.answers.save(3, np.zeros(wanted.shape, np.uint8), who="Ada", source="page")
    url = oracle.address.url()
    oracle.close()
    again = PageOracle(reserves=0)
    again.open(data.labelling_job(SET, tmp_path / "run"))
    assert again.address.url() == url
    person = threading.Thread(target=label_all, args=(again,), daemon=True)
    person.start()
    answer = again.ask(torch.tensor([3, 0]), step=0)
    assert [label.unique().tolist() for label in answer.labels] == [[0], [1]]
    again.close()


def test_several_processes_are_refused(data, tmp_path, monkeypatch):
    monkeypatch.setattr("ralseg.runtime.distributed.size", lambda: 2)
    with pytest.raises(ConfigError, match="2 processes would wait for people"):
        PageOracle().open(data.labelling_job(SET, tmp_path / "run"))


def test_a_closed_oracle_serves_no_more(oracle):
    url = oracle.address.url()
    assert urllib.request.urlopen(url).status == 200
    oracle.close()
    oracle.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)


@pytest.mark.slow
def test_a_whole_run_tells_what_it_does(tmp_path):
    heard: list[News] = []

    class Listening(PageOracle):
        def open(self, job):
            super().open(job)
            threading.Thread(target=label_all, args=(self,), daemon=True).start()

        def tell(self, news):
            heard.append(news)
            super().tell(news)

    oracle = Listening(reserves=0)
    rules = {"budgets": [4, 6], "regions_per_step": 4, "score_steps": True}
    _, result = acquire(tmp_path / "run", model=segmenter(), oracle=oracle, **rules)
    assert len(selected(tmp_path / "run")) == 6
    doing = [news.doing for news in heard]
    assert doing[0] == "choosing"
    assert doing[-1] == "done"
    assert [news.labelled for news in heard if news.doing == "training"] == [4, 6]
    shares = [(news.budget, news.share) for news in heard if news.doing == "final"]
    assert shares[0] == (4, 0.0)
    assert shares[-1] == (6, 1.0)
    assert len(heard[-1].scores) == 3
    assert heard[-1].result is result
    assert (result["cost"]["regions"], result["cost"]["clicks"]) == (6, 12)
    assert result["cost"]["minutes"] == pytest.approx(0.6)
