"""How fast `mini review` shows pictures: from opening the page to the first one, from key to next.

    python benchmarks/review_speed.py RUN [--decisions 60] [--pause 0.4]

RUN is the folder of a run with mined boxes; its journal must be empty, and is emptied afterwards.
Chromium is driven by Playwright. A picture counts as shown when it is decoded and its box is drawn.
`pause` is the time a person takes for a decision; 0 asks for the next as soon as one is shown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import uvicorn
from playwright.sync_api import Page, sync_playwright

from mini_fsod.review.app import listen, make_app
from mini_fsod.review.decisions import JOURNAL
from mini_fsod.review.mined import reviewed_run

CHROMIUM = "/usr/bin/chromium"

# Milliseconds from a key to the next picture, noted in the page itself
WATCH = """() => {
  window.times = [];
  let pressed = 0;
  document.addEventListener("keydown", () => { pressed = performance.now(); }, true);
  new MutationObserver(() => window.times.push(performance.now() - pressed))
    .observe(document.getElementById("frame"), { attributeFilter: ["data-shown"] });
}"""


@contextmanager
def served(run: Path) -> Iterator[str]:
    with reviewed_run(run) as review, listen("127.0.0.1", 0) as listening:
        config = uvicorn.Config(make_app(review, "token"), log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/?token=token"
        finally:
            server.should_exit = True
            thread.join()


def measure(page: Page, address: str, decisions: int, pause: float) -> dict[str, Any]:
    begun = time.perf_counter()
    page.goto(address)
    page.wait_for_selector("#frame[data-shown]")
    first = time.perf_counter() - begun
    page.evaluate(WATCH)
    for n in range(decisions):
        shown = page.get_attribute("#frame", "data-shown")
        time.sleep(pause)
        page.keyboard.press("r" if n % 3 else "a")
        page.wait_for_selector(f"#frame:not([data-shown='{shown}'])")
    times = sorted(page.evaluate("window.times"))
    return {
        "pause": pause,
        "first picture, s": round(first, 3),
        "next picture, ms": {
            "median": round(statistics.median(times), 1),
            "90 %": round(times[int(0.9 * len(times))], 1),
            "slowest": round(times[-1], 1),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--decisions", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.4)
    asked = parser.parse_args()
    journal = asked.run / JOURNAL
    if journal.exists() and journal.read_text().count("\n") > 1:
        raise SystemExit(f"{journal} has decisions: copy the run first")
    try:
        with served(asked.run) as address, sync_playwright() as started:
            browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for pause in (asked.pause, 0.0):
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                print(json.dumps(measure(page, address, asked.decisions, pause)), flush=True)
                page.close()
            browser.close()
    finally:
        journal.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
