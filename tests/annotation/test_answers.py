"""Answers: what people give is kept or refused whole, nobody does another's work, and no version is lost."""

import hashlib
import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from ralseg.annotation import Answers, Cost, Request, WantedRegion
from ralseg.annotation.turns import is_drawn
from ralseg.errors import DataError
from support.label_requests import HEIGHT, WIDTH, make_answers, make_request, painted


def events(found: Answers, event: str) -> list[dict]:
    return [entry for entry in found.journal.entries() if entry["event"] == event]


def files_of(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# -- saving ----------------------------------------------------------------------------------------


def test_a_mask_is_kept_with_who_how_long_and_what_was_changed(tmp_path):
    found = make_answers(tmp_path)
    mask = painted(2, ground=5)
    mask[-1, -1] = 255
    assert found.save(11, mask, who="Ada", seconds=12.5, clicks=3, source="page") == 1
    assert (found.mask(11) == mask).all()
    assert found.mask(10) is None
    image = Image.open(tmp_path / "masks" / "11.png")
    assert (np.asarray(image) == mask).all()  # class numbers for programs
    assert image.convert("RGB").getpixel((WIDTH - 2, HEIGHT - 1)) == (0x96, 0x96, 0x96)  # colours for people
    (entry,) = events(found, "saved")
    assert entry | {"time": 0} == {
        "event": "saved",
        "time": 0,
        "region": 11,
        "image": "train/a.png",
        "who": "Ada",
        "seconds": 12.5,
        "clicks": 3,
        "source": "page",
        "changed": HEIGHT * WIDTH - 5,
        "pixels": HEIGHT * WIDTH,
        "unchanged": False,
        "version": 1,
        "sha256": hashlib.sha256(mask.tobytes()).hexdigest(),
    }


def test_an_accepted_prediction_says_so_and_haste_is_flagged(tmp_path):
    found = make_answers(tmp_path)
    found.save(10, painted(0), who="Ada", seconds=0.3, clicks=1, source="page")
    found.save(11, painted(0), who="Ada", seconds=9.0, clicks=1, source="page")
    assert [entry["unchanged"] for entry in events(found, "saved")] == [True, True]
    assert Cost.of(found.journal.entries()).hasty == 1


def test_a_correction_is_another_version_and_the_old_one_stays(tmp_path):
    found = make_answers(tmp_path)
    assert [found.save(10, painted(number), source="page") for number in (1, 2, 2, 1)] == [1, 2, 2, 3]
    assert (found.mask(10) == painted(1)).all()
    for version, number in ((1, 1), (2, 2), (3, 1)):
        assert (found.mask(10, version) == painted(number)).all()
        assert (tmp_path / "masks" / "old" / f"10.v{version}.png").is_file()
    assert found.status().answered == 1


def test_old_versions_may_be_deleted_but_for_what_nothing_can_replace(tmp_path):
    found = make_answers(tmp_path)
    found.save(10, painted(1), source="page")
    found.save(10, painted(2), source="page")
    for path in (tmp_path / "masks" / "old").iterdir():
        path.unlink()
    assert (found.mask(10) == painted(2)).all()
    with pytest.raises(DataError, match=r"10.v1.png: no such file; the run needs it"):
        found.mask(10, 1)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.zeros((HEIGHT, WIDTH + 1), np.uint8), r"mask has 6x9 pixels of uint8, its box 6x8"),
        (np.zeros((WIDTH, HEIGHT), np.uint8), r"mask has 8x6 pixels"),
        (np.zeros((HEIGHT, WIDTH, 3), np.uint8), r"mask has 6x8x3 pixels"),
        (np.zeros(0, np.uint8), r"mask has 0 pixels"),
        (np.zeros((HEIGHT, WIDTH), np.int64), r"of int64"),
        (np.full((HEIGHT, WIDTH), 3, np.uint8), r"the classes \[3\], but there are 0 to 2, and 255"),
        (np.full((HEIGHT, WIDTH), 254, np.uint8), r"the classes \[254\]"),
    ],
)
def test_a_mask_that_does_not_fit_changes_nothing(tmp_path, mask, message):
    found = make_answers(tmp_path)
    found.save(10, painted(1), source="page")
    before = files_of(tmp_path)
    with pytest.raises(DataError, match=message):
        found.save(10, mask, source="page")
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("region", [9, -1, 10**9])
def test_a_region_that_nobody_asked_for_is_refused(tmp_path, region):
    found = make_answers(tmp_path)
    for attempt in (
        lambda: found.save(region, painted(1), source="page"),
        lambda: found.skip(region, who="Ada"),
        lambda: found.claim(region, who="Ada"),
        lambda: found.mask(region),
    ):
        with pytest.raises(DataError, match="was never asked for"):
            attempt()
    assert len(found.journal.entries()) == 1


def test_pixels_outside_of_a_region_do_not_count(tmp_path):
    inside = np.zeros((HEIGHT, WIDTH), np.uint8)
    inside[:, :2] = 255
    (tmp_path / "shapes").mkdir()
    Image.fromarray(inside).save(tmp_path / "shapes" / "10.png")
    request = make_request(1)
    found = make_answers(tmp_path, regions=(replace(request.regions[0], inside="shapes/10.png"),))
    found.save(10, painted(1), source="page")
    assert (events(found, "saved")[0]["changed"], events(found, "saved")[0]["pixels"]) == (2 * HEIGHT, 2 * HEIGHT)


# -- who does what ---------------------------------------------------------------------------------


def test_regions_come_by_rank_and_a_claimed_one_stays_with_its_owner(tmp_path):
    found = make_answers(tmp_path)
    assert found.next_for("Ada").region == 10
    assert found.next_for("Ada").region == 10
    assert found.next_for("Bob").region == 11
    found.save(10, painted(1), who="Ada", source="page")
    assert found.next_for("Ada").region == 12
    assert not found.claim(11, who="Ada")
    assert found.claim(13, who="Bob")
    assert [found.next_for(who) for who in ("Cem", "Dee")] == [None, None]
    assert len(events(found, "claimed")) == 4


def test_a_claim_expires(tmp_path):
    found = make_answers(tmp_path, wanted=1)
    assert found.claim(10, who="Ada", seconds=0.05)
    assert found.next_for("Bob") is None
    time.sleep(0.06)
    assert found.next_for("Bob").region == 10
    assert found.next_for("Ada") is None
    found.save(10, painted(1), who="Ada", source="page")  # late, but her work is not thrown away
    assert found.status().is_complete


def test_a_reserve_takes_the_place_of_what_is_skipped(tmp_path):
    found = make_answers(tmp_path, wanted=2, reserves=1)
    found.next_for("Ada")
    found.skip(10, who="Ada")
    assert [found.next_for(who).region for who in ("Ada", "Bob")] == [11, 12]
    assert found.next_for("Cem") is None  # as many are under way as are missing: nobody needs the one that was put off
    found.save(11, painted(1), who="Ada", source="page")
    found.save(12, painted(1), who="Bob", source="page")
    status = found.status()
    assert (status.wanted, status.answered, status.skipped, status.open, status.is_complete) == (2, 2, 1, 0, True)
    assert status.by_whom == {"Ada": 1, "Bob": 1}
    assert list(found.take()) == [11, 12]


def test_what_was_put_off_comes_last_when_no_reserve_is_left(tmp_path):
    found = make_answers(tmp_path, wanted=2, reserves=1)
    for region in (10, 11):
        found.skip(region, who="Ada")
    assert found.next_for("Ada").region == 12
    found.save(12, painted(1), who="Ada", source="page")
    assert found.next_for("Ada").region == 10
    found.skip(10, who="Ada")
    assert found.next_for("Ada").region == 10  # nothing else is left
    assert not found.status().is_complete
    found.save(10, painted(255), who="Ada", source="page")
    assert found.status().is_complete


def test_an_answer_cannot_be_skipped(tmp_path):
    found = make_answers(tmp_path)
    found.save(10, painted(1), who="Ada", source="page")
    with pytest.raises(DataError, match="is answered already"):
        found.skip(10, who="Ada")


def test_no_more_than_wanted_are_taken_and_the_best_first(tmp_path):
    found = make_answers(tmp_path, wanted=2, reserves=2)
    for region in (13, 11, 10):
        found.save(region, painted(1), source="page")
    assert list(found.take()) == [10, 11]


def test_who_takes_first_decides(tmp_path):
    found = make_answers(tmp_path, wanted=3, min_answers=1)
    found.save(11, painted(1), source="page")
    found.finish("Ada")
    assert found.take() == {11: 1}
    found.save(10, painted(1), source="page")
    found.save(11, painted(2), source="page")
    assert Answers(tmp_path, Request.read(tmp_path)).take() == {11: 1}
    assert found.taken() == {0: {11: 1}}
    assert found.versions() == {10: 1, 11: 2}


def test_enough_answers_do_where_somebody_says_so(tmp_path):
    found = make_answers(tmp_path, wanted=4, min_answers=2)
    found.save(10, painted(1), source="page")
    assert not found.status().can_finish
    with pytest.raises(DataError, match="1 of 4 regions are answered, 2 must be"):
        found.finish("Ada")
    found.save(12, painted(1), source="page")
    assert found.status().can_finish
    assert not found.status().is_complete
    found.finish("Ada")
    assert found.status().is_complete
    assert found.next_for("Ada") is None


def test_without_min_answers_nobody_can_cut_a_request_short(tmp_path):
    found = make_answers(tmp_path, wanted=2)
    found.save(10, painted(1), source="page")
    with pytest.raises(DataError, match="1 of 2 regions are answered, 2 must be"):
        found.finish("Ada")


def test_tools_may_look_before_they_ask(tmp_path):
    found = make_answers(tmp_path, wanted=2, reserves=1, reask=1.0)
    assert [wanted.region for wanted in found.wanted_now()] == [10, 11]
    found.skip(10, who="Ada")
    assert [wanted.region for wanted in found.wanted_now()] == [11, 12]
    found.save(11, painted(1), who="Ada", source="page")
    assert [wanted.region for wanted in found.wanted_now()] == [12]
    assert [wanted.region for wanted in found.to_reask("Bob")] == [11]
    assert found.to_reask("Ada") == []
    assert (found.prediction(10) == 0).all()
    assert found.inside(found.wanted(10)).all()
    (tmp_path / "predictions" / "10.png").unlink()
    assert found.prediction(10) is None
    assert found.progress().skipped == {10}


# -- second opinions -------------------------------------------------------------------------------


def test_a_second_annotator_is_asked_blind_and_agreement_is_noted(tmp_path):
    found = make_answers(tmp_path, wanted=3, reask=1.0)
    found.save(10, painted(1), who="Ada", source="page")
    assert not found.next_for("Ada").blind  # nobody is asked about their own answers
    again = found.next_for("Bob")
    assert (again.region, again.blind, again.prediction) == (10, True, None)
    assert found.next_for("Bob") == again
    assert found.save(10, painted(1, ground=12), who="Bob", seconds=5.0, clicks=2, source="page", blind=True) == 1
    assert (found.mask(10) == painted(1)).all()  # the first one's mask stays
    (entry,) = events(found, "reask")
    assert (entry["first"], entry["who"], entry["agreement"]) == ("Ada", "Bob", 0.75)
    assert Cost.of(found.journal.entries()).agreement == 0.75
    following = found.next_for("Bob")
    assert (following.region, following.blind) == (12, False)  # each region once


def test_a_second_opinion_that_takes_long_stays_blind_and_its_annotator_s(tmp_path):
    found = make_answers(tmp_path, wanted=3, reask=1.0)
    found.save(10, painted(1), who="Ada", source="page")
    assert found.next_for("Bob").blind
    assert found.claim(10, who="Bob", seconds=1000.0)  # as the page does while somebody is at work
    again = found.next_for("Bob")
    assert (again.region, again.blind) == (10, True)
    assert found.next_for("Cleo").region != 10


def test_who_puts_off_a_second_opinion_is_not_asked_again(tmp_path):
    found = make_answers(tmp_path, wanted=3, reask=1.0)
    found.save(10, painted(1), who="Ada", source="page")
    assert found.next_for("Bob").blind
    found.skip(10, who="Bob")
    assert (found.next_for("Bob").region, found.status().answered, found.status().skipped) == (11, 1, 0)


def test_without_names_or_a_share_nobody_is_asked_twice(tmp_path):
    found = make_answers(tmp_path / "none", wanted=3)
    found.save(10, painted(1), who="Ada", source="page")
    assert found.next_for("Bob").region == 11
    found = make_answers(tmp_path / "nameless", wanted=3, reask=1.0)
    found.save(10, painted(1), source="page")
    assert found.next_for("Bob").region == 11


def test_about_the_share_is_asked_twice():
    drawn = [is_drawn(region, 0.1) for region in range(10_000)]
    assert 900 < sum(drawn) < 1100


# -- masks as files --------------------------------------------------------------------------------


def drop(folder, region: int, mask: np.ndarray) -> None:
    (folder / "masks").mkdir(exist_ok=True)
    Image.fromarray(mask).save(folder / "masks" / f"{region}.png")


def test_masks_that_people_put_there_are_taken_up_once(tmp_path):
    found = make_answers(tmp_path)
    drop(tmp_path, 10, painted(1))
    found.take_up()
    found.take_up()
    (entry,) = events(found, "saved")
    assert (entry["source"], entry["seconds"], entry["clicks"], entry["version"]) == ("files", None, None, 1)
    assert (found.mask(10) == painted(1)).all()


def test_a_mask_that_people_replace_is_a_version_and_the_old_one_is_not_lost(tmp_path):
    found = make_answers(tmp_path)
    found.save(10, painted(1), who="Ada", source="page")
    found.take_up()
    assert len(events(found, "saved")) == 1
    drop(tmp_path, 10, painted(2))
    found.take_up()
    assert found.versions() == {10: 2}
    assert (found.mask(10, 1) == painted(1)).all()


def test_a_mask_that_people_delete_is_no_answer_until_the_model_has_learned_from_it(tmp_path):
    found = make_answers(tmp_path, wanted=1)
    found.save(10, painted(1), source="page")
    (tmp_path / "masks" / "10.png").unlink()
    found.take_up()
    assert found.status().answered == 0
    assert found.mask(10) is None
    assert found.save(10, painted(2), source="page") == 2
    found.take()
    (tmp_path / "masks" / "10.png").unlink()
    found.take_up()
    assert (found.mask(10) == painted(2)).all()


def test_all_bad_masks_are_named_at_once_and_good_ones_are_taken(tmp_path):
    found = make_answers(tmp_path)
    drop(tmp_path, 10, painted(1))
    drop(tmp_path, 11, painted(9))
    drop(tmp_path, 12, np.zeros((3, 3), np.uint8))
    (tmp_path / "masks" / "13.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match="3 masks cannot be read") as caught:
        found.take_up()
    text = str(caught.value)
    assert "11.png: unknown mask ids: 9 x 48 pixels" in text
    assert "12.png: mask has 3x3 pixels, its crop 6x8" in text
    assert "13.png: not an image" in text
    assert "1 plant #288c3c" in text
    assert found.versions() == {10: 1}


def test_colours_are_read_where_all_of_them_are_classes(tmp_path):
    found = make_answers(tmp_path)
    colours = np.array([(0x78, 0x5A, 0x3C), (0x28, 0x8C, 0x3C), (0x96, 0x96, 0x96)], np.uint8)
    mask = np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).astype(np.uint8) % 3
    drop(tmp_path, 10, colours[mask])
    found.take_up()
    assert (found.mask(10) == mask).all()
    swapped = Image.fromarray(2 - mask)
    swapped.putpalette(colours[::-1].tobytes())  # a tool that numbers the classes the other way round
    swapped.save(tmp_path / "masks" / "11.png")
    found.take_up()
    assert (found.mask(11) == mask).all()
    antialiased = colours[mask]
    antialiased[0, 0] = (80, 100, 60)
    drop(tmp_path, 12, antialiased)
    with pytest.raises(DataError, match=r"12.png: colours that are not in the palette: \(80, 100, 60\) x 1 pixels"):
        found.take_up()


def test_the_data_sets_own_colours_are_known_too(tmp_path):
    found = make_answers(tmp_path)
    found = Answers(tmp_path, found.request, {(1, 2, 3): 1, (9, 9, 200): 255})
    picture = np.full((HEIGHT, WIDTH, 3), (1, 2, 3), np.uint8)
    picture[0, 0] = (9, 9, 200)
    drop(tmp_path, 10, picture)
    found.take_up()
    assert found.mask(10)[0, 0] == 255
    assert found.mask(10)[0, 1] == 1


# -- over requests ---------------------------------------------------------------------------------


def next_request(found: Answers, first: int = 11) -> Answers:
    """The next step asks for a region of the first one again, and for another one."""
    regions = tuple(
        replace(entry, region=entry.region + first - 10, mask=f"masks/{entry.region + first - 10}.png")
        for entry in make_request(2).regions
    )
    following = Answers(found.folder, make_request(regions=regions, step=1))
    following.open()
    return following


def test_a_region_of_an_earlier_request_can_be_corrected(tmp_path):
    found = make_answers(tmp_path, wanted=1)
    found.save(10, painted(1), source="page")
    following = next_request(found, first=11)
    assert following.wanted(10).mask == "masks/10.png"
    assert following.save(10, painted(2), source="page") == 2
    assert following.status().answered == 0
    with pytest.raises(DataError, match="belongs to an earlier request"):
        following.skip(10, who="Ada")
    assert set(following.known()) == {10, 11, 12}


def test_what_was_answered_earlier_is_answered(tmp_path):
    found = make_answers(tmp_path, wanted=1, reserves=1)
    found.save(11, painted(1), source="page")
    assert next_request(found).status().answered == 1


def test_skipped_regions_are_put_off_once_the_model_goes_on(tmp_path):
    found = make_answers(tmp_path, wanted=1, reserves=1)
    found.skip(10, who="Ada")
    assert found.put_off() == set()
    found.save(11, painted(1), source="page")
    found.take()
    assert found.put_off() == {10}
    following = next_request(found)
    assert following.put_off() == {10}
    assert following.status().skipped == 0


def test_a_request_is_noted_once(tmp_path):
    found = make_answers(tmp_path)
    found.skip(10, who="Ada")
    Answers(tmp_path, Request.read(tmp_path)).open()
    assert len(events(found, "asked")) == 1
    assert found.status().skipped == 1
    assert WantedRegion.from_json(events(found, "asked")[0]["regions"][0]) == found.wanted(10)


def test_a_line_that_cannot_be_meant_names_the_journal(tmp_path):
    found = make_answers(tmp_path)
    found.journal.append("claimed", region=10)
    with pytest.raises(DataError, match=r"journal.jsonl: a line does not say what it should"):
        found.status()


def test_lines_of_an_unknown_kind_change_nothing(tmp_path):
    found = make_answers(tmp_path)
    for event in ("imported", "thanked", "init__", "release", "_class__"):
        found.journal.append(event, region=10)
    assert found.status().open == 4


# -- threads, processes, kills ---------------------------------------------------------------------


def test_threads_do_no_work_twice(tmp_path):
    found = make_answers(tmp_path, wanted=24)

    def work(who: str) -> None:
        own = Answers(tmp_path, found.request)
        while (wanted := own.next_for(who)) is not None:
            own.save(wanted.region, painted(1), who=who, source="page")

    threads = [threading.Thread(target=work, args=(who,)) for who in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(entry["region"] for entry in events(found, "saved")) == list(range(10, 34))
    assert found.status().is_complete


def start_worker(folder, who: str, count: int) -> tuple[int, int]:
    """Fork a process that saves masks of region 10 and writes what it was promised: its id, and the pipe's end."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        own = Answers(folder, Request.read(folder))
        for number in range(count):
            version = own.save(10, painted(number % 3), who=who, source="page")
            os.write(writing, f"{version} {number % 3}\n".encode())
    finally:
        os._exit(0)


def promised_by(pid: int, reading: int, kill_after: int | None = None) -> list[tuple[int, ...]]:
    """Versions, and the class that each one shows, when the process has ended or was killed after so many of them."""
    with os.fdopen(reading) as pipe:
        lines = [] if kill_after is None else [pipe.readline() for _ in range(kill_after)]
        if kill_after is not None:
            time.sleep(0.007 * kill_after)  # somewhere in the middle of the next one
            os.kill(pid, signal.SIGKILL)
        lines += pipe.readlines()
    os.waitpid(pid, 0)
    return [tuple(map(int, line.split())) for line in lines]


def test_two_processes_that_save_at_once_lose_no_version(tmp_path):
    found = make_answers(tmp_path)
    workers = [start_worker(tmp_path, who, 30) for who in ("Ada", "Bob")]
    promised = [entry for worker in workers for entry in promised_by(*worker)]
    assert len(promised) == 60
    assert len(events(found, "saved")) == 60
    for version, number in promised:
        assert (found.mask(10, version) == painted(number)).all()


def test_a_kill_in_the_middle_of_saving_loses_nothing(tmp_path):
    found = make_answers(tmp_path)
    found.save(10, painted(2), source="page")
    promised: list[tuple[int, ...]] = []
    for count in range(1, 6):
        promised += promised_by(*start_worker(tmp_path, "Ada", 100_000), kill_after=count)
        found.take_up()  # what the killed process had written, but not noted
        version = found.versions()[10]
        assert (np.asarray(Image.open(tmp_path / "masks" / "10.png")) == found.mask(10, version)).all()
    assert len(promised) >= 15
    for version, number in promised:
        assert (found.mask(10, version) == painted(number)).all()
