"""Draws the figures and pictures of docs/ from a run of the demo, into docs/images/.

mini demo-data digits
mini run demo --set data.root=digits -o runs/digits
python benchmarks/doc_pictures.py digits runs/digits

The figures are SVG and follow the light and dark theme of the reader. The picture of the report is
left out without playwright and Chromium.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from html import unescape
from pathlib import Path

import numpy as np
from PIL import Image

from mini_fsod.commands.check import check_command
from mini_fsod.demo import NOVEL
from mini_fsod.errors import UserError
from mini_fsod.mining.audit import SHOT, TRUE
from mini_fsod.report.charts import Part, Series, histogram, lines
from mini_fsod.report.html import Html, join, tag
from mini_fsod.report.mined import read_mined
from mini_fsod.report.page import REPORT
from mini_fsod.report.pictures import RunPictures
from mini_fsod.report.run_files import RunFiles, read_run
from mini_fsod.train.log import FILE as LOG
from mini_fsod.train.log import read_log

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
MOST_BYTES = 150_000  # of a picture
SIDE = 1000  # pixels of its width
SMOOTH = 6  # readings of the log in one point of a line

STYLE = """
:root { --paper: #fff; --card: #f3f5f7; --ink: #1c2024; --quiet: #4f5963; --line: #d3d8dd;
  --right: #0b72b9; --wrong: #c4500a; --out: #c3c9cf; --out-right: #7d8a96; }
@media (prefers-color-scheme: dark) { :root { --paper: #171a1f; --card: #22272e; --ink: #e7eaed;
  --quiet: #a5afb9; --line: #3b434c; --right: #4aa8ec; --wrong: #f08c4a; --out: #4a535b;
  --out-right: #8d99a4; } }
text { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif;
  fill: var(--quiet); text-anchor: middle; }
.page { fill: var(--paper); } .start { text-anchor: start; } .end { text-anchor: end; }
.big { font-size: 15px; font-weight: 600; fill: var(--ink); } .title { font-weight: 600; }
.words { font-size: 12.5px; } .title, .mark, .name-0 { fill: var(--ink); }
.grid { stroke: var(--line); } .axis { stroke: var(--out-right); }
.threshold { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 4 3; }
.cut { fill: none; stroke: var(--paper); stroke-width: 2.5; }
.bar-right { fill: var(--right); } .bar-out { fill: var(--out); }
.bar-wrong { fill: var(--paper); stroke: var(--wrong); stroke-width: 1.5; }
.bar-out-right { fill: var(--out-right); }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; } .line-0 { stroke: var(--ink); }
.line-1 { stroke: var(--right); stroke-dasharray: 6 3; } .name-1 { fill: var(--right); }
.name { text-anchor: start; font-size: 11px; }
.box { fill: var(--card); stroke: var(--line); } .new { stroke: var(--wrong); stroke-width: 1.6; }
.arrow { fill: none; stroke: var(--quiet); stroke-width: 1.4; marker-end: url(#head); }
.head { fill: var(--quiet); }
"""

# Of the figure of the stages: left, top, width, height; name; two lines; style
Stage = tuple[tuple[int, int, int, int], str, tuple[str, ...], str]
STAGES: tuple[Stage, ...] = (
    ((15, 52, 150, 86), "base", ("a detector of", "the base classes"), "box"),
    ((195, 52, 150, 86), "transfer", ("TFA: fine-tuned", "on the K boxes"), "box"),
    ((375, 52, 150, 86), "scan", ("it looks at all", "training pictures"), "box"),
    ((555, 52, 150, 86), "mine", ("a threshold for", "each new class"), "box new"),
    ((555, 218, 150, 86), "student", ("trains on base boxes", "and mined ones"), "box"),
    ((375, 218, 150, 86), "teacher", ("the student's average,", "mines in each batch"), "box new"),
    ((195, 218, 150, 86), "tune", ("fine-tuned on the", "K boxes once more"), "box"),
    ((15, 218, 150, 86), "detector", ("of base and", "new classes"), "box"),
)
ARROWS = (
    *("M165 95H190", "M345 95H370", "M525 95H550", "M630 138V213"),
    *("M555 245H530", "M525 285H550", "M375 261H350", "M195 261H170"),
    *("M90 34V48", "M270 34V48", "M450 168V142"),
)
WORDS = (  # x, y, text, style
    (90, 26, "labels of base classes", "words"),
    (270, 26, "K boxes of new classes", "words"),
    (450, 184, "discriminator: are crops", "words"),
    (450, 200, "like those of the K boxes?", "words"),
    (622, 192, "the pool", "words end"),
    (540, 330, "online", "big"),
)


def svg(width: int, height: int, title: str, *content: object) -> str:
    head = tag("path", d="M0 0L8 4L0 8Z", class_="head")
    attributes = {"markerWidth": 8, "markerHeight": 8, "refX": 6, "refY": 4}
    marker = tag("marker", head, id="head", orient="auto", **attributes)
    page = tag("rect", class_="page", width=width, height=height, rx=8)
    body = join(tag("title", title), tag("style", Html(STYLE)), tag("defs", marker), page, content)
    size = {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}
    return str(tag("svg", body, xmlns="http://www.w3.org/2000/svg", role="img", **size)) + "\n"


def label(x: float, y: float, words: str, style: str) -> Html:
    return tag("text", words, x=x, y=y, class_=style)


def stages_figure() -> str:
    shapes: list[Html] = []
    for (left, top, width, height), name, words, style in STAGES:
        box = {"x": left, "y": top, "width": width, "height": height, "rx": 6}
        shapes.append(tag("rect", class_=style, **box))
        middle = left + width / 2
        shapes.append(label(middle, top + 28, name, "big"))
        shapes += [label(middle, top + 50 + 17 * n, text, "words") for n, text in enumerate(words)]
    group = {"x": 365, "y": 208, "width": 350, "height": 132, "rx": 8}
    around = tag("rect", class_="axis", fill="none", stroke_dasharray="5 4", **group)
    arrows = [tag("path", d=path, class_="arrow") for path in ARROWS]
    words_ = [label(*row) for row in WORDS]
    said = "The stages of a run: base, transfer, scan, mine, online with student and teacher, tune."
    return svg(720, 352, said, around, shapes, arrows, words_)


def chart(drawn: Html, x: float, y: float, width: float) -> Html:
    """A chart of the report, as a part of a figure: its caption above it."""
    caption = re.search(r"<figcaption>(.*?)</figcaption>", drawn, re.DOTALL)
    inner = re.search(r"<svg[^>]*>(.*)</svg>", drawn, re.DOTALL)
    assert caption is not None
    assert inner is not None
    box = {"x": x, "y": y + 8, "width": width, "height": width / 2, "viewBox": "0 0 340 170"}
    title = label(x + 8, y, unescape(caption[1]), "title start")
    return join(title, tag("svg", Html(inner[1]), **box))


def legend(x: float, y: float, entries: Sequence[tuple[str, str]]) -> list[Html]:
    parts: list[Html] = []
    for n, (style, words) in enumerate(entries):
        below = y + 24 * n
        parts.append(tag("rect", class_=style, x=x, y=below - 10, width=11, height=11))
        parts.append(label(x + 19, below, words, "words start"))
    return parts


def thresholds_figure(run: RunFiles, pictures: RunPictures) -> str:
    """Scores of the candidates of each new class, right and wrong, and the threshold (Eq. 5)."""
    mined = read_mined(run, pictures)
    assert mined is not None
    assert mined.verdict is not None
    right = np.isin(mined.verdict.kind, (TRUE, SHOT))
    kinds = (
        ("bar-right", "mined, right", mined.kept & right),
        ("bar-wrong", "mined, wrong", mined.kept & ~right),
        ("bar-out-right", "left out, right", ~mined.kept & right),
        ("bar-out", "left out, wrong", ~mined.kept & ~right),
    )
    shapes: list[Html] = []
    for n, name in enumerate(mined.labels.novel):
        ours = mined.found.label == n
        parts = [Part(w, style, mined.found.score[ours & m].tolist()) for style, w, m in kinds]
        drawn = histogram(name, parts, run.thresholds[name]["delta"], bins=20)
        shapes.append(chart(drawn, 12 + 354 * (n % 2), 26 + 200 * (n // 2), 340))
    shapes += legend(420, 270, [(style, words) for style, words, _ in kinds])
    return svg(720, 408, "Scores of candidates of three new classes, with thresholds.", shapes)


def mingling_figure(run: Path) -> str:
    """Mined boxes for each image of a batch: those of the pool, and the teacher's."""
    readings = [line for line in read_log(run / "online" / LOG) if "offline" in line]
    groups = [readings[n : n + SMOOTH] for n in range(0, len(readings), SMOOTH)]
    series = [
        Series(
            words,
            [(g[-1]["step"], sum(line[key] for line in g) / len(g)) for g in groups],
        )
        for words, key in (("of the pool", "offline"), ("the teacher's", "online"))
    ]
    drawn = lines("Mined boxes in a picture, over the iterations of re-training", series)
    return svg(400, 226, "Mined boxes over iterations.", chart(drawn, 10, 26, 380))


def save(picture: Image.Image, name: str, width: int = SIDE) -> None:
    """As JPEG, small enough to be loaded quickly."""
    if picture.width > width:
        size = (width, round(picture.height * width / picture.width))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    path = IMAGES / name
    for quality in range(88, 30, -6):
        picture.convert("RGB").save(path, quality=quality, optimize=True, progressive=True)
        if path.stat().st_size <= MOST_BYTES:
            break
    print(f"{path}  {path.stat().st_size / 1000:.0f} kB")


def report_picture(run: Path) -> Image.Image | None:
    """The top of the report in a browser."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    options = "--no-sandbox --disable-gpu --disable-background-networking --disable-sync".split()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=options)
        page = browser.new_page(viewport={"width": 1120, "height": 770})
        page.goto((run / REPORT).resolve().as_uri())
        path = Path(folder) / "page.png"
        page.screenshot(path=path)
        browser.close()
        with Image.open(path) as shot:
            return shot.convert("RGB")


def main(data: Path, run: Path) -> None:
    IMAGES.mkdir(exist_ok=True)
    files = read_run(run)
    figures = {
        "stages": stages_figure(),
        "thresholds": thresholds_figure(files, RunPictures(files)),
        "mingling": mingling_figure(run),
    }
    for name, text in figures.items():
        (IMAGES / f"{name}.svg").write_text(text, encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        sheet = Path(folder) / "train.png"
        check_command(data, novel=list(NOVEL), subset="train", sheet=sheet)
        with Image.open(sheet) as whole:  # four columns of two rows
            upper = (0, 0, round(whole.width * 0.662), round(whole.height * 0.515))
            save(whole.crop(upper), "check.jpg")
    with Image.open(run / "mine" / "1-three.png") as sheet_of_class:
        save(sheet_of_class, "mined.jpg")
    with Image.open(run / "detections.png") as tested:  # the first three rows
        save(tested.crop((0, 0, tested.width, round(tested.width * 0.617))), "detections.jpg")
    report = report_picture(run)
    if report is not None:
        save(report, "report.jpg")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except (IndexError, UserError) as error:
        sys.exit(f"{error}\n{__doc__}")
