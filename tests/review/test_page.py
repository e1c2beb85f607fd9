"""The page in a browser: keys, mouse, and a server that is killed in between."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import uvicorn

from helpers import shapes
from helpers.tiny_run import start_mini
from mini_fsod.data.read import read
from mini_fsod.review.app import listen, make_app
from mini_fsod.review.decisions import JOURNAL, Decision, read_decisions, settled
from mini_fsod.review.mined import reviewed_run

CHROMIUM = Path("/usr/bin/chromium")
MILLISECONDS = 60_000  # that the browser may take for one step on a loaded machine

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"needs {CHROMIUM}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        options = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
        browser = started.chromium.launch(executable_path=str(CHROMIUM), args=options)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(MILLISECONDS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if "Content" in said.text else None)
    yield page
    page.close()
    assert not errors


@contextmanager
def in_thread(mined: Path) -> Iterator[str]:
    """The address of a review, served by this process."""
    with reviewed_run(mined) as review, listen("127.0.0.1", 0) as listening:
        options = {"log_level": "error", "lifespan": "off", "ws": "none"}
        server = uvicorn.Server(uvicorn.Config(make_app(review, "token"), **options))
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/?token=token"
        finally:
            server.should_exit = True
            thread.join(60)


@contextmanager
def served(*words: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address that `mini review WORDS` prints, and its process."""
    arguments = ["review", *map(str, words), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with start_mini(arguments, **pipes) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 0


def opened(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#frame[data-shown]")


def saved(page: Any) -> None:
    page.wait_for_selector("#saved[data-state=saved]")


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)
    saved(page)


def current(page: Any) -> int:
    return int(page.get_attribute("#frame", "data-shown"))


def decisions(run: Path) -> list[Decision]:
    return read_decisions(run / JOURNAL)


def in_force(run: Path) -> list[str]:
    return [d.do for d in settled(decisions(run)).values() if d is not None]


def scores_of(run: Path) -> list[float]:
    content = json.loads((run / "pool.json").read_text())
    return sorted(box["score"] for box in content["annotations"])


def test_page_accepts_rejects_and_undoes_with_keys(page: Any, mined: Path) -> None:
    before = scores_of(mined)
    with in_thread(mined) as address:
        opened(page, address)
        assert page.inner_text("#question").startswith("Is this a blue, light?")
        first = current(page)
        press(page, "a")
        page.wait_for_selector(f"#frame[data-shown]:not([data-shown='{first}'])")
        assert [d.do for d in decisions(mined)] == ["accept"]  # on the disk, not at the end
        press(page, "r")
        assert in_force(mined) == ["accept", "reject"]
        press(page, "u")
        assert in_force(mined) == ["accept"]
        press(page, "Control+z")
        assert in_force(mined) == []
        page.wait_for_selector(f"#frame[data-shown='{first}']")
        press(page, "Shift+A")
        assert set(in_force(mined)) == {"accept"}
        accepted = len(in_force(mined))
        assert accepted > 3
        page.wait_for_selector("#empty:visible")
        assert "Nothing left to review" in page.inner_text("#question")
    after = scores_of(mined)
    assert after == [1.0] * len(after)
    assert len(after) == accepted > len(before)


def settled_frame(page: Any) -> dict[str, float]:
    """Where the picture is, once the page does not move any more."""
    before, now = None, page.locator("#frame").bounding_box()
    while now != before:
        page.wait_for_timeout(100)
        before, now = now, page.locator("#frame").bounding_box()
    return dict(now)


def test_page_redraws_and_adds_boxes(page: Any, mined: Path) -> None:
    with in_thread(mined) as address:
        opened(page, address)

        def drag(*corners: float) -> None:
            page.mouse.move(x + corners[0] * width, y + corners[1] * height)
            page.mouse.down()
            page.mouse.move(x + corners[2] * width, y + corners[3] * height, steps=3)
            page.mouse.up()

        view = page.evaluate("current().view")
        page.keyboard.press("e")
        page.wait_for_selector("#editing:visible")
        # by keys: to the right, then larger
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Shift+ArrowDown")
        page.keyboard.press("Enter")
        saved(page)
        redrawn = decisions(mined)[0]
        assert redrawn.do == "accept"
        assert redrawn.as_box is not None
        step = max(view[2], view[3]) / 60
        px, py, w, h = redrawn.place.box
        expected = (px + step, py, w, h + step)
        inside = min(py + h + step, page.evaluate("page.items[0].size[1]")) - py
        assert redrawn.as_box == pytest.approx((*expected[:3], inside), abs=0.02)

        second = page.evaluate("page.items[1].id")
        page.wait_for_selector(f"#frame[data-shown='{second}']")
        page.keyboard.press("d")
        page.wait_for_selector("#editing:visible")
        frame = settled_frame(page)
        x, y, width, height = (frame[key] for key in ("x", "y", "width", "height"))
        view = page.evaluate("current().view")
        drag(0.1, 0.2, 0.6, 0.7)
        saved(page)
        drawn = decisions(mined)[1]
        assert (drawn.do, drawn.score, drawn.as_box) == ("accept", None, None)
        wanted = (
            view[0] + 0.1 * view[2], view[1] + 0.2 * view[3], 0.5 * view[2], 0.5 * view[3],
        )  # fmt: skip
        assert drawn.place.box == pytest.approx(wanted, abs=1)
        page.click("#chips button")  # and away again
        saved(page)
        assert decisions(mined)[2].do == "reject"
        page.keyboard.press("e")
        page.keyboard.press("Escape")
        page.keyboard.press("z")
        page.keyboard.press("s")
        assert len(decisions(mined)) == 3  # none of these decides anything


def test_page_goes_on_after_the_server_was_killed(page: Any, browser: Any, mined: Path) -> None:
    with served(mined) as (address, process):
        opened(page, address)
        press(page, "a")
        press(page, "r")
        kept = decisions(mined)
        process.kill()
        process.wait()
        page.keyboard.press("a")
        page.wait_for_selector("#problem:visible")
        assert "not saved" in page.inner_text("#saved")
        assert decisions(mined) == kept
    with in_thread(mined) as again:
        other = browser.new_page()
        opened(other, again)
        assert other.inner_text("#total").endswith("✓ 1 · ✕ 1")
        state = {item["state"] for item in other.evaluate("page.items")}
        assert state == {"open"}
        press(other, "u")
        assert in_force(mined) == ["accept"]
        other.close()
    assert [d.do for d in decisions(mined)] == ["accept", "reject", "undo"]


def test_page_draws_the_first_boxes(page: Any, tmp_path: Path) -> None:
    shapes.pictures(tmp_path / "photos", 3, seed=0)
    out = tmp_path / "five.json"
    with served(tmp_path / "photos", "--novel", "bolt,nut", "-o", out) as (address, process):
        opened(page, address)
        assert page.inner_text("#question") == "Draw a box around each bolt"
        frame = settled_frame(page)
        for number in range(2):
            left = frame["x"] + frame["width"] * (0.1 + 0.4 * number)
            page.mouse.move(left, frame["y"] + frame["height"] * 0.2)
            page.mouse.down()
            page.mouse.move(left + frame["width"] * 0.3, frame["y"] + frame["height"] * 0.8)
            page.mouse.up()
            saved(page)
            page.keyboard.press("n")  # the next class
        page.wait_for_selector("#chips button >> nth=1")
        process.kill()
        process.wait()
    shots = read(out, root=tmp_path / "photos")
    assert shots.classes == ("bolt", "nut")
    assert len(shots.boxes) == 2
    assert len(shots) == 1
    with served(tmp_path / "photos", "--novel", "bolt,nut", "-o", out) as (again, _):
        opened(page, again)
        assert page.inner_text("#total") == "2 boxes drawn"
        press(page, "u")
    assert len(read(out, root=tmp_path / "photos").boxes) == 1


def test_page_fits_a_phone_and_works_without_keys(browser: Any, mined: Path) -> None:
    phone = browser.new_context(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True
    )
    page = phone.new_page()
    page.set_default_timeout(MILLISECONDS)
    with in_thread(mined) as address:
        opened(page, address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for name in ("accept", "reject"):
            box = page.locator(f"#{name}").bounding_box()
            assert box["y"] + box["height"] <= 844  # without scrolling
            assert box["height"] >= 44
        page.tap("#accept")
        saved(page)
        page.tap("#undo")
        saved(page)
    assert in_force(mined) == []
    phone.close()
