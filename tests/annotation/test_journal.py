"""The journal: every line that was promised is there, whatever was killed, and costs are summed from them."""

import logging
import os
import signal
import threading
import time

import pytest

from ralseg.annotation import Cost, Journal
from ralseg.annotation.journal import is_hasty
from ralseg.errors import DataError


@pytest.fixture
def journal(tmp_path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


def numbers(journal: Journal) -> list[int]:
    return [entry["number"] for entry in journal.entries()]


def test_lines_come_back_in_their_order(journal):
    assert journal.entries() == []
    for number in range(3):
        journal.append("counted", number=number, text="line\nbreak, ä")
    assert numbers(journal) == numbers(Journal(journal.path)) == [0, 1, 2]
    assert len(journal.path.read_bytes().splitlines()) == 3
    assert journal.entries()[0]["text"] == "line\nbreak, ä"
    assert abs(journal.entries()[0]["time"] - time.time()) < 60


@pytest.mark.parametrize("torn", [b'{"event": "counted", "ti', b"{", b'{"event": "counted", "time": 1, "number": 9}'])
def test_half_a_line_at_the_end_counts_for_nothing_and_is_cut_off(journal, torn):
    journal.append("counted", number=0)
    with journal.path.open("ab") as file:
        file.write(torn)
    other = Journal(journal.path)
    assert numbers(journal) == numbers(other) == [0]
    other.append("counted", number=1)
    assert numbers(journal) == numbers(other) == numbers(Journal(journal.path)) == [0, 1]
    assert len(journal.path.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("line", [b"{", b"[]", b"3", b'{"event": 3}', b'{"event": "a"}', b"\xff\xfe", b""])
def test_a_damaged_line_in_the_middle_is_told_and_left_out(journal, line, caplog):
    journal.append("counted", number=0)
    with journal.path.open("ab") as file:
        file.write(line + b"\n")
    with caplog.at_level(logging.WARNING):
        journal.append("counted", number=1)
        assert numbers(journal) == numbers(Journal(journal.path)) == [0, 1]
    assert "line 2 is damaged" in caplog.text


def test_a_journal_that_another_has_taken_the_place_of_is_read_anew(journal):
    for number in range(5):
        journal.append("counted", number=number)
    journal.path.unlink()
    assert journal.entries() == []
    Journal(journal.path).append("counted", number=7)
    assert numbers(journal) == [7]


def test_numbers_that_are_none_are_refused(journal):
    with pytest.raises(ValueError, match="JSON compliant"):
        journal.append("counted", number=float("nan"))
    assert journal.entries() == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="nothing can be written there"):
        Journal(tmp_path / "file" / "journal.jsonl").append("counted", number=0)


def test_threads_lose_no_line(journal):
    def write(first: int) -> None:
        own = Journal(journal.path) if first % 2 else journal
        for number in range(first, first + 20):
            own.append("counted", number=number)

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 21, 40, 61)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers(journal)) == [*range(20), *range(21, 41), *range(40, 60), *range(61, 81)]


def test_a_killed_process_loses_no_line_that_it_was_promised(journal):
    for count in (1, 2, 5):
        journal.path.unlink(missing_ok=True)
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                for number in range(100_000):
                    journal.append("counted", number=number, text="x" * 5000)
                    os.write(writing, f"{number}\n".encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            for _ in range(count):
                pipe.readline()
            time.sleep(0.003 * count)  # somewhere in the middle of the next one
            os.kill(pid, signal.SIGKILL)
            promised = count + len(pipe.readlines())
        os.waitpid(pid, 0)
        found = numbers(Journal(journal.path))
        assert found == list(range(len(found)))
        assert promised <= len(found) <= promised + 1
        Journal(journal.path).append("counted", number=-1)
        assert numbers(Journal(journal.path)) == [*found, -1]


# -- costs -----------------------------------------------------------------------------------------


def saved(region: int, **values):
    return {"event": "saved", "time": 0.0, "region": region, "pixels": 48, "seconds": 30.0, "clicks": 4} | values


def test_costs_are_sums_and_corrections_cost_too():
    cost = Cost.of([saved(1, changed=5), saved(2, changed=0), saved(1, changed=7), {"event": "skipped", "time": 0.0}])
    assert (cost.regions, cost.pixels, cost.clicks, cost.minutes) == (2, 96, 12, 1.5)
    assert (cost.changed, cost.answers) == (7, 3)


def test_what_nobody_has_counted_is_not_zero():
    cost = Cost.of([saved(1, seconds=None, clicks=None)])
    assert (cost.regions, cost.pixels, cost.clicks, cost.minutes, cost.changed) == (1, 48, None, None, None)
    mixed = Cost.of([saved(1, seconds=None, clicks=None), saved(2)])
    assert (mixed.clicks, mixed.minutes, mixed.answers, mixed.counted, mixed.timed) == (4, 0.5, 2, 1, 1)


def test_costs_of_some_regions():
    assert Cost.of([saved(1), saved(2), saved(3)], {1, 3, 9}).regions == 2
    assert Cost.of([]) == Cost()


def test_second_opinions_cost_time_and_give_the_agreement():
    again = {"event": "reask", "time": 0.0, "region": 1, "pixels": 48, "agreement": 0.5, "seconds": 60.0, "clicks": 1}
    cost = Cost.of([saved(1), saved(2), again, again | {"region": 2, "agreement": 1.0}])
    assert (cost.regions, cost.reasked, cost.agreement, cost.minutes, cost.clicks) == (2, 2, 0.75, 3.0, 10)


def test_hasty_answers_are_counted():
    assert is_hasty(saved(1, seconds=0.4, unchanged=True))
    assert not is_hasty(saved(1, seconds=0.4, unchanged=False))
    assert not is_hasty(saved(1, seconds=1.0, unchanged=True))
    assert not is_hasty(saved(1, seconds=None, unchanged=True))
    assert Cost.of([saved(1, seconds=0.4, unchanged=True), saved(2)]).hasty == 1
