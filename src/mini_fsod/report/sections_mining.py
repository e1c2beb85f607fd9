"""The shots, and what was mined: score histograms, the best and worst boxes, near misses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from PIL import Image

from mini_fsod import console
from mini_fsod.data.dataset import Bools, Dataset, Ints
from mini_fsod.data.subsets import is_target
from mini_fsod.draw import NOVEL_COLOUR
from mini_fsod.mining.audit import DUPLICATE, FALSE, SHOT, TRUE
from mini_fsod.mining.contact_sheet import KINDS, crop_with_box, verdict_word
from mini_fsod.report.charts import Part, histogram
from mini_fsod.report.html import NONE, Html, aside, data_table, details, join, section, tag
from mini_fsod.report.mined import Mined
from mini_fsod.report.pictures import Draw, RunPictures
from mini_fsod.report.run_files import RunFiles

TILE = 192  # pixels of a crop's side
SHOTS = 240  # shown, over all classes
MOST_CLASSES = 40  # shown with pictures
TILES = 400  # of mining, over all classes
MOST_EACH, LEAST_EACH = 12, 3  # tiles of each kind, by the number of classes
GROUPS = 4  # kinds of tiles: highest scores, in between, lowest scores, near misses
MARKS = {TRUE: "✓", DUPLICATE: "=", FALSE: "✗", SHOT: "·"}

Tile = tuple[Draw, str, list[Html]]  # how it is drawn, its alternative text, what is below it


def shots_section(run: RunFiles, pictures: RunPictures) -> Html | None:
    uses = {"transfer", "mine", "tune"} & run.stages.keys()
    if not uses:
        return None
    shots, labels = pictures.shots, pictures.labels
    if shots is None or labels is None:
        words = f"The shots cannot be shown: {pictures.problem}"
        return section("shots", "The shots", tag("p", words))
    target = is_target(shots)
    parts: list[Html] = []
    each = max(1, SHOTS // max(len(labels.novel), 1))
    for name in labels.novel[:MOST_CLASSES]:
        label = shots.classes.index(name)
        rows = np.flatnonzero((shots.boxes.label == label) & target).tolist()
        tiles = [
            (
                partial(_crop, shots, int(shots.boxes.image[b]), b),
                f"Shot {n} of {name}",
                [tag("span", _size(shots, b)), _file(shots, int(shots.boxes.image[b]))],
            )
            for n, b in enumerate(rows[:each], start=1)
        ]
        parts += [tag("h3", name), _grid(pictures, tiles)]
    return section("shots", "The shots", aside(_source(run)), *parts, _others(labels.novel))


def _others(names: Sequence[str]) -> Html | None:
    """That not all classes are shown."""
    left = len(names) - MOST_CLASSES
    return aside(f"{console.count(left, 'more class')} not shown.") if left > 0 else None


def _crop(data: Dataset, image: int, box: int) -> Image.Image:
    return crop_with_box(data, image, data.boxes.xywh[box], NOVEL_COLOUR, TILE)


def _size(data: Dataset, box: int) -> str:
    width, height = data.boxes.xywh[box, 2:].tolist()
    return f"{width:.0f} x {height:.0f} px"


def _source(run: RunFiles) -> str:
    shots = run.results.get("shots", {})
    if shots.get("file"):
        return f"From the file {shots['file']}."
    k = f"{console.count(shots['k'], 'box')} of each class, " if "k" in shots else ""
    if shots.get("official"):
        return f"{k}from published lists ({shots['official']}), seed {shots.get('seed')}."
    return f"{k}drawn at random with seed {shots.get('seed')}."


def _file(data: Dataset, image: int) -> Html:
    name = data.path(image).name
    return tag("span", tag("bdi", name), class_="file", title=name)


def _grid(pictures: RunPictures, tiles: Sequence[Tile]) -> Html:
    images = pictures.draw([(draw, alt) for draw, alt, _ in tiles])
    items = [
        tag("li", tag("figure", image, tag("figcaption", below)))
        for image, (_, _, below) in zip(images, tiles, strict=True)
    ]
    return tag("ul", items, class_="tiles")


def mining_section(
    run: RunFiles, pictures: RunPictures, mined: Mined | None, problem: str
) -> Html | None:
    if "mine" not in run.stages:
        if run.is_oracle:
            words = "An oracle is trained on all hidden objects: nothing is mined."
            return section("mining", "What was mined", tag("p", words))
        return None
    parts: list[object] = [_overview(run), _edits(run)]
    given = run.figures.get("mine", {}).get("given")
    if given:
        parts.append(aside(f"The pool was mined elsewhere: {given}."))
    if mined is None:
        why = problem or pictures.problem or "there are no candidates"
        parts.append(tag("p", f"Mined boxes cannot be shown: {why}"))
        return section("mining", "What was mined", *parts)
    parts.append(_legend(mined))
    each = max(LEAST_EACH, min(MOST_EACH, TILES // GROUPS // max(len(mined.labels.novel), 1)))
    for index in range(len(mined.labels.novel[:MOST_CLASSES])):
        parts.append(_class(run, pictures, mined, index, each))
    parts.append(_others(mined.labels.novel))
    return section("mining", "What was mined", *parts)


def _overview(run: RunFiles) -> Html | None:
    """Candidates, threshold and pool of each class."""
    if not run.thresholds:
        return None
    audit = (run.audit or {}).get("classes", {})
    head = ["class", "candidates", "threshold", "mined"]
    head += ["precision", "recall", "wrong boxes: mostly"] if audit else []
    rows = []
    for name, row in run.thresholds.items():
        delta = NONE if row["delta"] is None else f"{row['delta']:.3f}"
        cells: list[object] = [name, f"{row['candidates']:,}", delta, f"{row['kept']:,}"]
        if audit:
            figures = audit.get(name, {})
            cells += [_percent(figures.get("precision")), _percent(figures.get("recall"))]
            cells.append(_worst(figures.get("false_on", {})))
        rows.append(cells)
    return data_table("The pool, class by class", head, rows)


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.0%}"


def _worst(false_on: dict[str, object]) -> str:
    classes = false_on.get("classes")
    counts = dict(classes) if isinstance(classes, dict) else {}
    counts |= {
        word: false_on.get(key)
        for key, word in (("background", "background"), ("badly_placed", "badly placed"))
    }
    known = {name: n for name, n in counts.items() if isinstance(n, int) and n}
    if not known:
        return NONE
    name, number = max(known.items(), key=lambda item: item[1])
    return f"{name} ({number:,})"


def _edits(run: RunFiles) -> Html | None:
    pool = run.results.get("pool", {})
    if not pool.get("edited"):
        return None
    changes = ", ".join(f"{pool.get(key, 0):,} {key}" for key in ("removed", "added", "relabelled"))
    return aside(
        f"The pool was corrected by hand: {pool.get('boxes', 0):,} boxes, {changes}. Below is what "
        "was mined, before these corrections."
    )


def _legend(mined: Mined) -> Html:
    if mined.verdict is None:
        return aside(mined.why_not)
    kinds = mined.verdict.kind[mined.kept]
    known = [tag("li", f"{MARKS[k]} {KINDS[k][0]}") for k in KINDS if (kinds == k).any()]
    return join(
        aside("Judged by the annotations, which training never sees. Wrong boxes are dashed."),
        tag("ul", known, class_="legend"),
    )


def _class(run: RunFiles, pictures: RunPictures, mined: Mined, index: int, each: int) -> Html:
    name = mined.labels.novel[index]
    pool, left_out = mined.ranked(index, kept=True), mined.ranked(index, kept=False)
    title = tag("h3", name, " ", tag("small", f"{len(pool):,} mined"))
    parts: list[object] = [title, _histogram(run, mined, index)]
    groups: list[tuple[str, Ints, int]] = []
    if len(pool) > 3 * each:
        middle = np.linspace(each, len(pool) - each, each, endpoint=False).astype(np.int64)
        groups += [("Highest scores", pool[:each], 1)]
        groups += [("In between, evenly spaced", pool[middle], 0)]
        groups += [("Lowest scores", pool[-each:], len(pool) - each + 1)]
    elif len(pool):
        groups += [("All, from the highest to the lowest score", pool, 1)]
    misses = left_out[: each if len(pool) else 2 * each]
    if len(misses):
        why = "Near misses" if len(pool) else "Nothing was mined. Near misses"
        groups.append((f"{why}: the best candidates that were left out", misses, 1))
    elif not len(pool):
        parts.append(tag("p", "Nothing was mined, and there are no candidates."))
    for n, (heading, rows, first) in enumerate(groups):
        tiles = [
            _tile(mined, int(row), name, first + k if first else None) for k, row in enumerate(rows)
        ]
        grid = _grid(pictures, tiles)
        parts += [details(heading, grid, open_=n in (0, len(groups) - 1) or not len(pool))]
    return tag("article", *parts, aria_label=f"Mined boxes of {name}")


def _tile(mined: Mined, row: int, name: str, rank: int | None) -> Tile:
    found, verdict = mined.found, mined.verdict
    image = int(found.image[row])
    colour, dashed, words = NOVEL_COLOUR, False, ""
    if verdict is not None:
        kind = int(verdict.kind[row])
        colour, dashed = KINDS[kind][1], kind == FALSE
        word = verdict_word(verdict, row, mined.labels)
        words = f"{MARKS[kind]} {word}"
    draw = partial(crop_with_box, mined.data, image, found.xywh[row], colour, TILE, dashed=dashed)
    number = "" if rank is None else f"{rank:,}"
    alt = f"Candidate of {name}, score {found.score[row]:.3f}" + (f", {words[2:]}" if words else "")
    below = [
        tag("span", tag("span", number, class_="place"), f" {found.score[row]:.3f}"),
        tag("span", words, class_="verdict") if words else None,
        _file(mined.data, image),
    ]
    return draw, alt, [part for part in below if part is not None]


def _histogram(run: RunFiles, mined: Mined, index: int) -> Html:
    name = mined.labels.novel[index]
    mine = mined.found.label == index
    scores = mined.found.score

    def part(words: str, style: str, mask: Bools) -> Part:
        return Part(words, style, scores[mine & mask].tolist())

    if mined.verdict is None:
        parts = [
            part("mined", "bar-right", mined.kept),
            part("left out", "bar-out", ~mined.kept),
        ]
        legend = [("key-right", "mined"), ("key-out", "left out")]
    else:
        right = np.isin(mined.verdict.kind, (TRUE, SHOT))
        parts = [
            part("mined and right", "bar-right", mined.kept & right),
            part("mined and wrong", "bar-wrong", mined.kept & ~right),
            part("left out but right", "bar-out-right", ~mined.kept & right),
            part("left out", "bar-out", ~mined.kept & ~right),
        ]
        legend = [
            ("key-right", "mined, right"),
            ("key-wrong", "mined, wrong"),
            ("key-out-right", "left out, right"),
            ("key-out", "left out, wrong"),
        ]
    row = run.thresholds.get(name, {})
    drawn = histogram(f"Candidates of {name}", parts, row.get("delta"))
    keys = [tag("li", tag("span", class_=f"key {style}"), words) for style, words in legend]
    return tag("div", drawn, tag("ul", keys, class_="legend"), class_="chart-row")
