"""The detector on the test set: thresholds to use, confusions, the best and worst pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mini_fsod.eval.operating import ranked
from mini_fsod.report.charts import Part, histogram
from mini_fsod.report.detected import Detected, best_and_worst, draw_found, draw_truth, in_words
from mini_fsod.report.html import NONE, Html, aside, data_table, details, join, section, tag
from mini_fsod.report.pictures import RunPictures
from mini_fsod.report.run_files import RunFiles

BEST, WORST = 6, 12  # pictures
OPEN_WORST = 6
MOST_CHARTS = 24
CELL = (480, 480)  # pixels that a test picture fits
WORTH_A_COLUMN = 0.05  # share of a class's boxes or detections that is worth a column
MOST_COLUMNS = 6  # of the tables of confusions


def operating_section(run: RunFiles, detected: Detected | None) -> Html | None:
    """The threshold with the best F1 of each class, and the scores around it."""
    if run.errors is None:
        return None
    names = run.novel or list(run.errors["classes"])
    rows = []
    for name in names:
        row = run.errors["classes"].get(name)
        if row is None:
            continue
        best = row["best"]
        cells: list[object] = [name, NONE if best is None else f"{best['score']:.2f}"]
        keys = ("precision", "recall", "f1")
        cells += [NONE if best is None else f"{best[key]:.0%}" for key in keys]
        cells += [NONE if row["recall_any"] is None else f"{row['recall_any']:.0%}"]
        cells += [f"{row['boxes']:,}"]
        rows.append(cells)
    if not rows:
        return None
    head = ["class", "threshold", "precision", "recall", "F1", "highest recall", "boxes"]
    parts: list[object] = [
        aside(
            "The score threshold with the best F1 on the test set. It was chosen on the same "
            "pictures, so expect slightly less on others. Lower it for recall, raise it for "
            "precision. “Highest recall” counts all detections, at any score. ",
            tag("code", "mini predict --score"),
            " sets one threshold for all classes, 0.5 by default.",
        ),
        data_table("Suggested score threshold of each new class", head, rows),
    ]
    if detected is not None:
        known = [name for name in names if name in detected.labels.classes][:MOST_CHARTS]
        charts = [_scores(run, detected, name) for name in known]
        parts.append(tag("div", charts, class_="charts"))
        legend = [
            tag("li", tag("span", class_=f"key {style}"), words)
            for style, words in (("key-right", "right"), ("key-out", "wrong"))
        ]
        parts.append(tag("ul", legend, class_="legend"))
    return section("operating", "Which threshold to use", *parts)


def _scores(run: RunFiles, detected: Detected, name: str) -> Html:
    label = detected.labels.classes.index(name)
    one = ranked(detected.data, detected.everything, label)
    parts = [
        Part("right", "bar-right", one.score[one.tp].tolist()),
        Part("wrong", "bar-out", one.score[one.fp].tolist()),
    ]
    best = (run.errors or {})["classes"][name]["best"]
    return histogram(f"Test detections of {name}", parts, None if best is None else best["score"])


def confusion_section(run: RunFiles) -> Html | None:
    """Where the objects of new classes go, and what their detections are on."""
    errors = run.errors
    names = [name for name in run.novel if errors and name in errors["classes"]]
    if errors is None or not names:
        return None
    table_of = errors["classes"]
    parts = [
        aside(
            "At the thresholds above, with boxes matched at IoU 0.5. A badly placed box is on an "
            "object of its class, with a lower IoU."
        ),
        _confusions(
            "What the objects of each new class are detected as",
            [(name, table_of[name]["boxes"], _found(table_of[name])) for name in names],
            "boxes",
        ),
        _confusions(
            "What the detections of each new class are on",
            [(name, table_of[name]["detections"], _on(table_of[name])) for name in names],
            "detections",
        ),
    ]
    return section("confusion", "What is confused with what", *parts)


def _found(row: Mapping[str, Any]) -> dict[str, int]:
    missed = dict(row["missed_as"])
    background = missed.pop("background", 0)
    found = max(row["boxes"] - sum(missed.values()) - background, 0)
    return {"found": found, "not found": background} | missed


def _on(row: Mapping[str, Any]) -> dict[str, int]:
    other = dict(row["false_on"])
    background = other.pop("background", 0)
    return {"right": row["right"], "background": background, "found twice": row["twice"]} | other


def _confusions(
    caption: str, rows: Sequence[tuple[str, int, Mapping[str, int]]], whole: str
) -> Html:
    """Counts and shares; columns that matter for no class are one column, "other"."""
    first = list(rows[0][2])[:2]
    totals: dict[str, int] = {}
    for _, of, counts in rows:
        for name, number in counts.items():
            if name not in first and of and number >= max(WORTH_A_COLUMN * of, 1):
                totals[name] = totals.get(name, 0) + number
    columns = sorted(totals, key=lambda name: -totals[name])[:MOST_COLUMNS]
    others = [
        sum(n for name, n in counts.items() if name not in (*first, *columns))
        for _, _, counts in rows
    ]
    body = []
    for (name, of, counts), other in zip(rows, others, strict=True):
        numbers = [counts.get(column, 0) for column in (*first, *columns)]
        numbers += [other] if any(others) else []
        body.append([name, f"{of:,}", *(_with_share(number, of) for number in numbers)])
    head = ["class", whole, *first, *columns, *(["other"] if any(others) else [])]
    return data_table(caption, head, body)


def _with_share(number: int, of: int) -> Html:
    if not number:
        return tag("span", "0", class_="quiet")
    share = f"{number / of:.0%}" if of else NONE
    return join(f"{number:,} ", tag("span", share, class_="quiet"))


def pictures_section(pictures: RunPictures, detected: Detected | None, problem: str) -> Html | None:
    """The best and the worst test pictures beside the truth."""
    if detected is None:
        why = problem or pictures.problem
        if not why:
            return None
        return section("pictures", "Test pictures", tag("p", f"They cannot be shown: {why}"))
    best, worst = best_and_worst(detected, BEST, WORST)
    order = [*worst, *best]
    jobs = []
    for image in order:
        words = in_words(detected, image)
        jobs.append((partial(draw_truth, detected, image, CELL), f"Annotated boxes; {words}"))
        jobs.append((partial(draw_found, detected, image, CELL), f"Detected boxes; {words}"))
    images = pictures.draw(jobs)
    shown = [
        _pair(detected, image, images[2 * n], images[2 * n + 1]) for n, image in enumerate(order)
    ]
    bad, good = shown[: len(worst)], shown[len(worst) :]
    parts: list[object] = [
        aside(
            "On the left the annotated boxes, on the right the detections above the thresholds. "
            "Blue: correct. Dashed orange: missed or wrong. Pale: base classes."
        )
    ]
    parts.append(tag("h3", "Most errors"))
    parts.append(tag("ul", bad[:OPEN_WORST], class_="pairs") if bad else tag("p", "No errors."))
    if len(bad) > OPEN_WORST:
        rest = tag("ul", bad[OPEN_WORST:], class_="pairs")
        parts.append(details(f"{len(bad) - OPEN_WORST} more", rest))
    parts.append(tag("h3", "All new objects found"))
    parts.append(tag("ul", good, class_="pairs") if good else tag("p", "No such picture."))
    return section("pictures", "Test pictures and ground truth", *parts)


def _pair(detected: Detected, image: int, truth: Html, found: Html) -> Html:
    name = detected.data.path(image).name
    caption = tag("figcaption", tag("bdi", name, class_="file"), " ", in_words(detected, image))
    return tag("li", tag("figure", tag("div", truth, found, class_="pair"), caption))
