"""The page in a real browser: what people draw with a mouse, keys, fingers and a pen is what lies on disk."""

import io
import time

import numpy as np
import pytest
from matplotlib.path import Path as Outline
from PIL import Image

from ralseg.annotation import Answers
from ralseg.labels.news import News
from support.browser import open_browser
from support.page import BOX, COLOURS, Person, guess, make_desk, photo_answers, serve, stroke

SIZES = {
    "desktop": {"width": 1280, "height": 800},
    "tablet": {"width": 820, "height": 1180},
    "tablet, lengthwise": {"width": 1024, "height": 768},
    "small": {"width": 800, "height": 600},
}
STONE = 2
IS_IN_SIGHT = """(element) => {
  const { left, right, top, bottom } = element.getBoundingClientRect();
  return left >= 0 && top >= 0 && right <= innerWidth && bottom <= innerHeight;
}"""


@pytest.fixture(scope="module")
def browser():
    with open_browser() as found:
        yield found


@pytest.fixture
def answers(tmp_path) -> Answers:
    return photo_answers(tmp_path / "run" / "to_label")


@pytest.fixture
def url(tmp_path, answers):
    address, server = serve(tmp_path, make_desk(answers))
    yield address.url()
    server.stop()


@pytest.fixture
def context(browser):
    made = browser.new_context(viewport=SIZES["desktop"])
    yield made
    made.close()


@pytest.fixture
def ada(context, url):
    person = Person(context.new_page(), url)
    assert person.wait_for_region() == 0
    yield person
    assert person.problems == []
    assert {host.partition(":")[0] for host in person.asked} == {"127.0.0.1"}


def on_disk(answers: Answers, region: int) -> np.ndarray:
    """The mask as a file that any program reads."""
    return np.asarray(Image.open(answers.folder / f"masks/{region}.png"))


# -- the first screen ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_the_first_screen_explains_itself_and_everything_fits(browser, url, size):
    has_touch = size != "desktop"
    context = browser.new_context(viewport=SIZES[size], has_touch=has_touch, is_mobile=has_touch)
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("#help[open]")
    said = page.inner_text("#help")
    for word in ("Colour the framed region", "The model has guessed", "cannot tell", "Your name", "Save and next"):
        assert word in said
    page.keyboard.press("Escape")  # a name is needed first
    assert page.locator("#help[open]").count() == 1
    page.click("#start")
    assert page.locator("#help[open]").count() == 1
    assert all(page.locator(name).evaluate(IS_IN_SIGHT) for name in ("#help h1", "#name", "#start"))
    page.close()
    person = Person(context.new_page(), url)
    person.wait_for_region()
    page = person.page
    wide, tall = (SIZES[size][side] for side in ("width", "height"))
    assert page.locator("html").evaluate("(page) => [page.scrollWidth, page.scrollHeight]") == [wide, tall]
    for button in page.locator("button:visible, input[type=range]:visible").all():
        box = button.bounding_box()
        assert box["x"] >= 0, button
        assert box["x"] + box["width"] <= wide, button
        assert box["y"] + box["height"] <= tall, button
        assert box["height"] >= (44 if button.evaluate("({tagName}) => tagName") == "BUTTON" else 32), button
    for name in ("#classes", "#tools", "#chips", "#side"):
        over = page.locator(name).evaluate("(e) => [e.scrollWidth - e.clientWidth, e.scrollHeight - e.clientHeight]")
        assert max(over) <= 0, name
    stage = page.locator("#stage").bounding_box()
    assert stage["width"] * stage["height"] >= 0.45 * wide * tall  # most of the screen is for the picture
    context.close()


def test_what_people_see(ada):
    page = ada.page
    assert page.inner_text("#request-text") == "0 of 3 regions done"
    assert page.inner_text("#image-name") == "train/0.png"
    assert [button.inner_text().split("\n")[0] for button in page.locator("#classes button").all()] == [
        *(entry.name for entry in COLOURS),
        "cannot tell",
    ]
    assert page.locator(".chip").count() == 3
    ada.press("?")
    assert page.locator("#help[open]").count() == 1
    page.click("#start")
    assert page.locator("#help[open]").count() == 0


def test_colours_lie_over_the_picture_and_can_be_hidden(ada):
    def colour(x, y):
        x, y = ada.pixel(x, y)
        shot = ada.page.screenshot(clip={"x": x, "y": y, "width": 1, "height": 1})
        return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB"))[0, 0].astype(int)

    ada.page.mouse.move(5, 5)
    ada.press("h")
    bare = colour(30, 10)
    ada.press("h")
    shown = colour(30, 10)
    orange = np.array(COLOURS[1].rgb)
    assert np.abs(shown - (0.55 * bare + 0.45 * orange)).max() <= 3


# -- with a mouse ----------------------------------------------------------------------------------


def test_strokes_of_the_brush(ada, answers):
    expected = guess()
    ada.press("3")
    ada.draw((4, 5), (20, 9), (12, 25))
    stroke(expected, [(4, 5), (20, 9), (12, 25)], 9, STONE)
    ada.press("[", "[", "[", "[", "1")
    ada.draw((30, 3), (38, 28))
    stroke(expected, [(30, 3), (38, 28)], 1, 0)
    ada.press("]", "]", "0")
    ada.draw((-6, 16), (3, 16))  # begins outside: only what is inside counts
    stroke(expected, [(-6, 16), (3, 16)], 5, 255)
    ada.save()
    assert (on_disk(answers, 0) == expected).all()
    (entry,) = [entry for entry in answers.journal.entries() if entry["event"] == "saved"]
    assert (entry["who"], entry["clicks"], entry["changed"]) == ("Ada", 3, int((expected != guess()).sum()))
    assert entry["seconds"] > 0


def test_polygon_fill_and_all(ada, answers):
    expected = guess()
    ada.press("p", "3")
    corners = [(3, 2), (22, 6), (15, 28), (6, 20)]
    for corner in corners:
        ada.page.mouse.click(*ada.place(*corner))
    ada.page.mouse.click(*ada.place(*corners[0]))
    rows, columns = np.indices(expected.shape)
    inside = Outline(corners).contains_points(np.stack([columns.ravel() + 0.5, rows.ravel() + 0.5], 1))
    expected[inside.reshape(expected.shape)] = STONE
    ada.press("f", "0")
    ada.click(1, 1)  # all ground around the polygon hangs together
    expected[expected == 0] = 255
    ada.save()
    assert (on_disk(answers, 0) == expected).all()
    ada.wait_for_region()
    ada.press("2", "Shift+F")
    ada.save()
    assert (on_disk(answers, 1) == 1).all()


def test_patches(ada, answers):
    ada.press("s", "3")
    ada.wait(patches=2)
    ada.press("]", "]", "]", "]")  # larger ones
    ada.wait(patches=4)
    ada.click(8, 8)
    ada.save()
    painted = on_disk(answers, 0) == STONE
    patches = np.frombuffer(make_desk(answers).patches(0, 4), "<u2").reshape(painted.shape)
    assert (painted == (patches == patches[8, 8])).all()


def test_undo_redo_reset_and_pick(ada, answers):
    ada.press("3")
    ada.draw((10, 10), (14, 10))
    ada.draw((10, 20), (14, 20))
    ada.press("z")
    one = guess()
    stroke(one, [(10, 10), (14, 10)], 9, STONE)
    ada.page.click("[data-act=undo]")
    ada.page.click("[data-act=redo]")
    ada.press("1")
    ada.page.mouse.move(*ada.pixel(11, 10))
    ada.press("i")
    assert ada.value("value") == str(STONE)
    ada.save()
    assert (on_disk(answers, 0) == one).all()
    ada.wait_for_region()
    ada.press("Shift+F", "t")
    ada.save()
    assert (on_disk(answers, 1) == guess()).all()


def test_zoom_and_pan_change_nothing_but_the_view(ada, answers):
    before = ada.place(20, 16)
    ada.page.mouse.move(*before)
    scale = ada.page.get_attribute("#canvas", "data-scale")
    ada.page.mouse.wheel(0, -300)
    ada.page.wait_for_selector(f'#canvas:not([data-scale="{scale}"])')
    assert ada.place(20, 16) == pytest.approx(before, abs=1.5)
    wide = ada.place(30, 16)[0] - ada.place(20, 16)[0]
    ada.page.mouse.down(button="right")
    ada.page.mouse.move(before[0] + 50, before[1] - 30)
    ada.page.mouse.up(button="right")
    ada.settle()
    assert ada.place(20, 16) == pytest.approx((before[0] + 50, before[1] - 30), abs=1.5)
    ada.press("3")
    ada.draw((20, 16), (22, 16))
    ada.press("r")
    assert ada.place(30, 16)[0] - ada.place(20, 16)[0] < wide
    expected = guess()
    stroke(expected, [(20, 16), (22, 16)], 9, STONE)
    ada.save()
    assert (on_disk(answers, 0) == expected).all()


# -- without a mouse -------------------------------------------------------------------------------


def test_everything_by_keys(context, url, answers):
    page = context.new_page()
    page.goto(url)
    page.wait_for_selector("#help[open]")
    page.keyboard.type("Ada")
    page.keyboard.press("Enter")
    ada = Person.__new__(Person)
    ada.page = page
    assert ada.wait_for_region() == 0
    expected = guess()
    ada.press("3", "[", "[")  # a brush of 5 pixels; the cursor starts in the middle
    ada.press(*["ArrowLeft"] * 4, "Shift+ArrowLeft", *["ArrowUp"] * 6)
    page.keyboard.down("Space")
    ada.press(*["ArrowRight"] * 3, *["ArrowDown"] * 2)
    page.keyboard.up("Space")
    x, y = BOX[0] // 2 - 14, BOX[1] // 2 - 6
    stroke(expected, [(x, y), (x + 3, y), (x + 3, y + 2)], 5, STONE)
    ada.press("p", "1", *["Shift+ArrowRight"] * 5, *["Shift+ArrowUp"] * 5)  # the corner at the top right
    ada.press("Space", *["ArrowLeft"] * 6, "Space", *["ArrowRight"] * 6, "Shift+ArrowDown", "Space", "Enter")
    corners = [(BOX[0], 0), (BOX[0] - 6, 0), (BOX[0], 10)]
    rows, columns = np.indices(expected.shape)
    inside = Outline(corners).contains_points(np.stack([columns.ravel() + 0.5, rows.ravel() + 0.5], 1), radius=-1e-6)
    inside |= Outline(corners).contains_points(np.stack([columns.ravel() + 0.5, rows.ravel() + 0.5], 1), radius=1e-6)
    expected[inside.reshape(expected.shape)] = 0
    ada.press("f", "0", *["Shift+ArrowDown"] * 5, "Space")  # what is plant on the right
    expected[(expected == 1)] = 255
    ada.press("b", ",", ".", "+", "-", "Alt+ArrowLeft", "r", "h", "h")
    ada.save()
    found = on_disk(answers, 0)
    assert (found == expected).all(), np.argwhere(found != expected)
    assert ada.wait_for_region() == 1
    ada.press("x")
    ada.wait(region=2, busy="false")
    ada.press("PageUp")
    ada.wait(region=1, busy="false")
    ada.press("PageUp")
    ada.wait(region=0, busy="false")


def test_a_mouse_that_moves_does_not_disturb_the_keys(ada, answers):
    ada.press("3", "ArrowUp")
    ada.page.keyboard.down("Space")
    ada.press("ArrowRight")
    ada.page.mouse.move(*ada.pixel(2, 2))
    ada.press("ArrowRight", "ArrowRight")
    ada.page.keyboard.up("Space")
    ada.save()
    expected = guess()
    stroke(expected, [(20, 15), (23, 15)], 9, STONE)
    assert (on_disk(answers, 0) == expected).all()


# -- with fingers and a pen ------------------------------------------------------------------------


@pytest.fixture
def tablet(browser, url):
    context = browser.new_context(viewport=SIZES["tablet"], has_touch=True, is_mobile=True, device_scale_factor=2)
    person = Person(context.new_page(), url)
    person.line = context.new_cdp_session(person.page)
    person.wait_for_region()
    yield person
    assert person.problems == []
    context.close()


def touch(person: Person, kind: str, *points: tuple[float, float], **about: float) -> None:
    places = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
    person.line.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places, **about})


def pen(person: Person, kind: str, x: float, y: float) -> None:
    about = {"type": kind, "x": x, "y": y, "pointerType": "pen", "button": "left", "clickCount": 1}
    about["buttons"] = int(kind != "mouseReleased")
    person.line.send("Input.dispatchMouseEvent", about)


def test_a_finger_paints_and_two_fingers_move_and_zoom(tablet, answers):
    tablet.page.tap("#classes button:nth-child(3)")
    tablet.wait(value=STONE)
    touch(tablet, "touchStart", tablet.pixel(5, 5))
    touch(tablet, "touchMove", tablet.pixel(15, 12))
    touch(tablet, "touchEnd")
    expected = guess()
    stroke(expected, [(5, 5), (15, 12)], 9, STONE)
    one, two = tablet.pixel(12, 16), tablet.pixel(28, 16)
    scale = (two[0] - one[0]) / 16
    touch(tablet, "touchStart", one)
    touch(tablet, "touchStart", one, two)
    for step in range(1, 6):
        touch(tablet, "touchMove", (one[0] - 12 * step, one[1] + 10), (two[0] + 12 * step, two[1] + 10))
    touch(tablet, "touchEnd")
    tablet.settle()
    wider = (tablet.pixel(28, 16)[0] - tablet.pixel(12, 16)[0]) / 16
    assert wider == pytest.approx(scale * (16 * scale + 120) / (16 * scale), rel=0.05)
    tablet.page.tap("#save")
    tablet.wait(saved=0, busy="false")
    assert (on_disk(answers, 0) == expected).all()  # the first of two fingers painted nothing


def test_once_a_pen_was_seen_a_finger_moves_the_picture(tablet, answers):
    tablet.page.tap("#classes button:nth-child(3)")
    tablet.wait(value=STONE)
    pen(tablet, "mousePressed", *tablet.pixel(8, 20))
    pen(tablet, "mouseMoved", *tablet.pixel(12, 24))
    pen(tablet, "mouseReleased", *tablet.pixel(12, 24))
    before = tablet.pixel(20, 16)
    touch(tablet, "touchStart", before)
    touch(tablet, "touchMove", (before[0] + 30, before[1] + 20))
    touch(tablet, "touchEnd")
    tablet.settle()
    assert tablet.pixel(20, 16) == pytest.approx((before[0] + 30, before[1] + 20), abs=1.5)
    tablet.page.tap("#save")
    tablet.wait(saved=0, busy="false")
    expected = guess()
    stroke(expected, [(8, 20), (12, 24)], 9, STONE)
    assert (on_disk(answers, 0) == expected).all()


def test_a_tap_right_after_a_swing_counts(tablet, answers):
    """A finger that is lifted while it moves sets a page in motion, and browsers take the next tap for a halt."""
    for region in range(3):
        start, end, begin = tablet.pixel(5, 5), tablet.pixel(35, 25), time.time()
        touch(tablet, "touchStart", start, timestamp=begin)
        for step in range(1, 6):  # in 50 ms, however slow this machine is
            x, y = (a + (b - a) * step / 5 for a, b in zip(start, end, strict=True))
            touch(tablet, "touchMove", (x, y), timestamp=begin + step / 100)
        touch(tablet, "touchEnd", timestamp=begin + 0.055)
        tablet.page.tap("#save")
        tablet.wait(saved=region)
        if region < 2:
            tablet.wait_for_region()
    assert answers.status().is_complete


# -- several regions, several people ---------------------------------------------------------------


def test_skip_and_correct(ada, answers):
    ada.press("3", "Shift+F")
    ada.save()
    assert ada.wait_for_region() == 1
    ada.press("x")
    ada.wait(region=2, busy="false")
    chips = ada.page.locator(".chip")
    chips.nth(3).wait_for()  # the reserve comes with the next news of the run
    assert [chip.get_attribute("class").split()[1] for chip in chips.all()] == ["saved", "skipped", "mine", "open"]
    chips.nth(0).click()
    ada.wait(region=0, busy="false")
    assert ada.page.inner_text("#save").startswith("Save correction")
    ada.press("1")
    ada.draw((5, 5), (9, 5))
    ada.save()
    expected = np.full_like(guess(), STONE)
    stroke(expected, [(5, 5), (9, 5)], 9, 0)
    assert (on_disk(answers, 0) == expected).all()
    assert answers.versions() == {0: 2}
    assert (answers.mask(0, 1) == STONE).all()
    assert ada.wait_for_region() == 2  # back to what was open


def test_a_look_at_the_run_changes_no_choice(ada, answers):
    ada.press("p", "0", "]")
    chosen = [ada.value(name) for name in ("tool", "value", "size")]
    assert chosen == ["polygon", "255", "13"]
    ada.look()
    ada.look()
    assert [ada.value(name) for name in ("tool", "value", "size")] == chosen


def test_two_people_share_a_request(ada, browser, url, answers):
    context = browser.new_context(viewport=SIZES["tablet"])
    bob = Person(context.new_page(), url, "Bob")
    assert bob.wait_for_region() == 1
    bob.save()
    assert bob.wait_for_region() == 2
    bob.save()
    bob.page.wait_for_selector("#turn:not([hidden])")
    assert "Others have the last regions in hand" in bob.page.inner_text("#turn-text")
    ada.save()
    bob.page.wait_for_selector("text=3 of 3 regions done")
    assert answers.status().by_whom == {"Ada": 1, "Bob": 2}
    assert answers.status().is_complete
    context.close()


def test_a_second_opinion_shows_neither_mask_nor_prediction(browser, tmp_path):
    answers = photo_answers(tmp_path / "run" / "to_label", reask=1.0)
    address, server = serve(tmp_path, make_desk(answers))
    ada, bob = (Person(browser.new_context().new_page(), address.url(), name) for name in ("Ada", "Bob"))
    assert ada.wait_for_region() == 0
    assert bob.wait_for_region() == 1
    ada.save()
    bob.save()
    assert bob.wait_for_region() == 0
    assert "A second opinion" in bob.page.inner_text("#note")
    assert "100 % without a class" in bob.page.inner_text("#status")
    bob.press("1", "Shift+F")
    bob.save()
    (again,) = [entry for entry in answers.journal.entries() if entry["event"] == "reask"]
    assert (again["region"], again["first"], again["who"]) == (0, "Ada", "Bob")
    assert again["agreement"] == (guess() == 0).mean()
    assert (on_disk(answers, 0) == guess()).all()  # Ada's stays
    for person in (ada, bob):
        assert person.problems == []
        person.page.context.close()
    server.stop()


def test_what_was_drawn_outlives_the_browser_and_the_server(context, tmp_path, answers):
    desk = make_desk(answers)
    address, server = serve(tmp_path, desk)
    ada = Person(context.new_page(), address.url())
    ada.wait_for_region()
    ada.press("3")
    ada.draw((5, 5), (20, 9))
    ada.page.reload()
    ada.wait_for_region()
    server.stop()
    ada.wait(away="true")
    assert "What you drew is kept" in ada.page.inner_text("#note")
    ada.press("1")
    ada.draw((5, 20), (20, 25))  # goes on meanwhile
    ada.page.keyboard.press("Enter")
    ada.wait(busy="false")
    assert "What you drew is kept here" in ada.page.inner_text("#note")
    assert answers.mask(0) is None
    again, server = serve(tmp_path, make_desk(answers))
    assert again.url() == address.url()
    ada.wait(away="false")
    ada.save()
    server.stop()
    expected = guess()
    stroke(expected, [(5, 5), (20, 9)], 9, STONE)
    stroke(expected, [(5, 20), (20, 25)], 9, 0)
    assert (on_disk(answers, 0) == expected).all()


def test_what_was_begun_outlives_a_look_at_another_region(ada, answers):
    ada.press("3")
    ada.draw((5, 5), (20, 9))
    for region in (1, 2):
        ada.page.click(f'.chip[data-region="{region}"]')
        ada.wait(region=region, busy="false")
        ada.press("Shift+F")
    ada.save()
    assert ada.wait_for_region() == 0
    ada.save()
    expected = guess()
    stroke(expected, [(5, 5), (20, 9)], 9, STONE)
    assert (on_disk(answers, 0) == expected).all()
    assert ada.wait_for_region() == 1
    ada.save()
    assert (on_disk(answers, 1) == STONE).all()
    assert ada.page.evaluate("() => localStorage.length") == 1  # the name: no draft is left behind


def test_enough_is_enough(context, tmp_path):
    answers = photo_answers(tmp_path / "run" / "to_label", min_answers=1)
    address, server = serve(tmp_path, make_desk(answers))
    ada = Person(context.new_page(), address.url())
    ada.wait_for_region()
    assert not ada.page.locator("#finish").is_visible()
    ada.save()
    ada.page.click("#finish")
    ada.page.wait_for_selector("#finish", state="hidden")
    assert answers.status().is_complete
    assert ada.problems == []
    server.stop()


# -- the model's turn and the end ------------------------------------------------------------------


def test_the_model_s_turn_may_begin_before_the_page_knows_that_all_is_saved(context, tmp_path, answers):
    desk = make_desk(answers)
    address, server = serve(tmp_path, desk)
    ada = Person(context.new_page(), address.url())
    ada.wait_for_region()
    ada.press("3", "Shift+F")

    def answer_late(route):
        reply = route.fetch()
        desk.take()
        ada.look()
        route.fulfill(response=reply)

    ada.page.route("**/mask?*", answer_late)
    ada.save()
    assert (on_disk(answers, 0) == STONE).all()
    ada.page.wait_for_selector("#turn:not([hidden])")
    assert ada.page.evaluate("() => localStorage.length") == 1  # the name: no draft is left behind
    assert ada.problems == []
    server.stop()


def test_the_model_s_turn_and_the_end(context, tmp_path, answers):
    desk = make_desk(answers)
    address, server = serve(tmp_path, desk)
    ada = Person(context.new_page(), address.url())
    ada.wait_for_region()
    ada.save()
    desk.tell(News("training", 3, (3, 6), (0.5, 0.55)))
    desk.take()
    ada.wait(phase="model")
    ada.page.wait_for_selector("#turn:not([hidden]) >> text=The model learns")
    assert ada.page.inner_text("#miou") == "55.0 %"
    assert ada.page.inner_text("#next-budget") == "6"
    ada.page.locator(".chip").first.click()  # corrections are welcome meanwhile
    ada.wait(region=0, busy="false")
    ada.press("3", "Shift+F")
    ada.save()
    assert answers.versions() == {0: 2}
    ada.page.wait_for_selector("#turn:not([hidden])")
    desk.tell(News("final", 3, (3, 6), (0.5, 0.55), budget=3, share=0.5))
    ada.page.wait_for_selector("#turn-title:text-is('Final training')")
    assert ada.page.locator("#turn-bar").evaluate("(bar) => bar.style.width") == "50%"
    scores = {"test_set/miou": 0.625, "test_set/iou/stone": 0.5}
    desk.tell(News("done", 6, (3, 6), (0.5, 0.55), result={"budgets": {"6": scores}}))
    ada.wait(phase="done")
    desk.wait_until_told(10)
    assert desk._untold() == set()
    server.stop()
    looks = ada.value("looks")
    ada.page.evaluate("() => { document.dispatchEvent(new Event('visibilitychange')) }")  # it looks no more
    ada.settle()
    assert (ada.value("looks"), ada.value("away")) == (looks, "false")
    said = ada.page.inner_text("#over")  # stays when the server is gone
    for word in ("All done", "62.50 %", "stone", "ralseg predict --ckpt"):
        assert word in said
    assert ada.problems == []
