"""The page in Chromium: it asks for nothing, reports no error, and fits a phone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mini_fsod.report.page import write_report

CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip("needs Chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_report_in_a_browser(
    browser: Any, hostile_run: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    path = write_report(hostile_run, out=tmp_path / "report.html")
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("dialog", lambda dialog: messages.append(dialog.message))
    page.on(
        "request",
        lambda request: (
            messages.append(request.url) if not request.url.startswith(("file:", "data:")) else None
        ),
    )
    page.goto(path.as_uri())
    assert messages == []  # no script, no style that the policy refuses, no request
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelectorAll('script').length") == 0
    ground, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    dark = "rgb(20, 23, 26)"
    assert (ground == dark) == (scheme == "dark")
    assert ink != ground
    # each cell is below its head, also where the column of bars is hidden
    cells = "[...document.querySelector('#results table').rows].map(r => [...r.cells]"
    lefts = page.evaluate(
        f"{cells}.filter(c => c.offsetWidth).map(c => c.getBoundingClientRect().left))"
    )
    assert all(row == lefts[0] for row in lefts)
    assert len(page.query_selector_all("#results .bar")) > 0
    assert page.is_visible("#results .bar") == (width > 500)
    # the keyboard reaches the content
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "#content"
    assert page.evaluate("document.images.length") > 0
    page.wait_for_function("[...document.images].every(i => i.complete && i.naturalWidth)")
    context.close()
