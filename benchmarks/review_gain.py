"""What a review brings: a simulated reviewer who knows the truth decides, and the run goes on.

    python benchmarks/review_gain.py RUN -o FOLDER [--orders page random] [--decisions 0 50 100 300]
        [--oracle 78.8] [--as-shots] [--no-training] [--seed 0]

RUN has mined; its data has annotations of the new classes. Each cell, an order and a number of
decisions, is a copy of RUN beside it, which shares all kept results up to `mine`, and is trained
from there. FOLDER/review-gain.jsonl gets a line for each cell; finished cells are not repeated, so
single cells can be given to single commands.

- page: the order of the page, page after page, as `mini review` offers it.
- random: mined boxes in random order, as somebody would who goes through the pool.

The reviewer accepts a box with an IoU of at least 0.7 with an object of its class, redraws it from
0.3 on, gives a box on an object of another new class that class, and rejects the rest, boxes on
objects that are accepted already among them. With --as-shots, accepted boxes are shots too, and
everything from the few-shot detector on is computed again. With --no-training only the pool is
measured, in seconds: precision, recall, and how many answers changed it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from mini_fsod import console
from mini_fsod.config.load import resolve
from mini_fsod.data.overlap import iou_of_two
from mini_fsod.files import CONFIG_FILE
from mini_fsod.mining.audit import SHOT, TRUE, GroundTruth, judge_candidates
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.pool_io import POOL, read_pool
from mini_fsod.review.decisions import JOURNAL, Place
from mini_fsod.review.items import DecisionRequest, Item
from mini_fsod.review.mined import MinedReview, reviewed_run
from mini_fsod.runs import stages

FITS = 0.7  # IoU from which the reviewer leaves a box as it is
SAME = 0.3  # IoU from which a box is on an object, and is redrawn
OTHER = 0.5  # IoU from which a box is on an object of another new class


class Reviewer:
    """Answers by the annotations, the shots included."""

    def __init__(self, review: MinedReview) -> None:
        self._review = review
        self.did: Counter[str] = Counter()
        self.changed = 0  # answers that changed the pool
        truth = self.truth = GroundTruth.of(review.data.mined, review.data.shots, review.labels)
        boxes, first = truth.boxes, len(review.labels.base)
        self._objects: dict[str, list[Place]] = {}
        columns = (boxes.image.tolist(), boxes.label.tolist(), boxes.xywh.tolist())
        for image, label, box in zip(*columns, strict=True):
            if label >= first:
                name = review.data.mined.files[image]
                place = Place(name, False, review.labels.classes[label], tuple(box))
                self._objects.setdefault(name, []).append(place)
        self._taken: set[Place] = set()

    def decide(self, number: int) -> None:
        item = self._review.items[number]
        request, verdict = self._answer(number, item)
        self._review.decide([DecisionRequest.model_validate(request)])
        self.did[verdict] += 1
        self.changed += (
            verdict in ("redrawn", "relabelled") or (verdict == "accepted") != item.mined
        )

    def _answer(self, number: int, item: Item) -> tuple[dict[str, Any], str]:
        objects = [o for o in self._objects.get(item.place.picture, ()) if o not in self._taken]
        fit = {o: iou_of_two(o.box, item.place.box) for o in objects}
        same = [o for o in objects if o.name == item.place.name and fit[o] >= SAME]
        other = [o for o in objects if o.name != item.place.name and fit[o] >= OTHER]
        for found, what in ((same, "accepted"), (other, "relabelled")):
            if not found:
                continue
            best = max(found, key=fit.__getitem__)
            self._taken.add(best)
            request: dict[str, Any] = {"item": number, "do": "accept"}
            if best.name != item.place.name:
                request["class"] = best.name
            if fit[best] < FITS:
                request["box"] = list(best.box)
                what = "redrawn" if what == "accepted" else what
            return request, what
        return {"item": number, "do": "reject"}, "rejected"


def in_order(review: MinedReview, order: str, seed: int) -> Iterator[int]:
    """The items that are offered; each must be decided before the next is asked for."""
    if order == "random":
        mined = [n for n, item in enumerate(review.items) if item.mined and item.decision is None]
        Random(seed).shuffle(mined)
        yield from mined
        return
    while items := review.page(None)["items"]:
        yield from (item["id"] for item in items)


def figures_of_pool(run: Path, review: MinedReview, truth: GroundTruth) -> dict[str, float]:
    """Precision and recall of the run's pool, in percent; boxes on the shots do not count."""
    pool = read_pool(run / POOL, review.data.mined, review.labels)
    found = Candidates(pool.image, pool.label, pool.xywh, pool.score, pool.score, None)
    kind = judge_candidates(found, truth).kind
    right, on_shots = int((kind == TRUE).sum()), int((kind == SHOT).sum())
    return {
        "boxes": len(pool),
        "precision": round(100 * right / max(len(pool) - on_shots, 1), 1),
        "recall": round(100 * right / max(len(truth.hidden), 1), 1),
    }


def measure(
    run: Path, order: str, decisions: int, seed: int, as_shots: bool, training: bool
) -> dict[str, Any]:
    """The figures of one cell."""
    suffix = f"{order}-{decisions}-seed{seed}{'-shots' * as_shots}{'' if training else '-pool'}"
    copy = run.with_name(f"{run.name}-{suffix}")
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(run, copy, symlinks=True, ignore=shutil.ignore_patterns(JOURNAL))
    shots = copy / "shots.json" if as_shots else None
    with reviewed_run(copy, shots) as review:
        reviewer = Reviewer(review)
        for number, item in enumerate(in_order(review, order, seed)):
            if number == decisions:
                break
            reviewer.decide(item)
    row: dict[str, Any] = {
        "order": order,
        "decisions": decisions,
        "as_shots": as_shots,
        "seed": seed,
        "said": dict(reviewer.did),
        "changed": reviewer.changed,
        "pool": figures_of_pool(copy, review, reviewer.truth),
    }
    if not training:
        shutil.rmtree(copy)
        return row
    changes = [] if shots is None else [f"shots.file={shots}", "shots.official=null"]
    config = resolve(str(copy / CONFIG_FILE), changes)
    results = stages.run(config, copy, command=f"review_gain.py {suffix}")
    trained = list(results["stages"].values())[-1]
    return row | {
        "edits": results["pool"],
        "nAP50": trained["nAP50"],
        "bAP50": trained["bAP50"],
        "per_class": trained["per_class"],
        "commit": results["commit"],
        "device": results["device"],
        "seconds": round(sum(s["seconds"] for s in results["stages"].values()), 1),
    }


def table(rows: list[dict[str, Any]], oracle: float | None) -> None:
    plain = [r for r in rows if not r["decisions"] and not r["as_shots"]]
    nothing = next((r["nAP50"] for r in plain if "nAP50" in r), None)
    content = console.columns(
        "order", ">decisions", "said", ">changed the pool", ">boxes", ">precision", ">recall",
        ">nAP50", ">bAP50", ">share of the gap",
    )  # fmt: skip
    for r in rows:
        share = "-"
        if oracle is not None and nothing is not None and oracle > nothing and "nAP50" in r:
            share = f"{100 * (r['nAP50'] - nothing) / (oracle - nothing):.0f} %"
        said = ", ".join(f"{n} {what}" for what, n in r["said"].items()) or "-"
        name = r["order"] + (", as shots" if r["as_shots"] else "")
        aps = [f"{r[key]:.1f}" if key in r else "-" for key in ("nAP50", "bAP50")]
        pool = [str(value) for value in r["pool"].values()]
        content.add_row(name, str(r["decisions"]), said, str(r["changed"]), *pool, *aps, share)
    console.table(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--orders", nargs="+", default=["page", "random"], metavar="ORDER")
    parser.add_argument("--decisions", nargs="+", type=int, default=[0, 50, 100, 300], metavar="N")
    parser.add_argument("--oracle", type=float, help="nAP50 with all hidden boxes")
    parser.add_argument("--as-shots", action="store_true")
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of the random order")
    asked = parser.parse_args()
    path = asked.out / "review-gain.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for order in asked.orders:
        for decisions in asked.decisions:
            if not decisions and order != asked.orders[0]:
                continue  # without decisions, the order does not matter
            cell = order, decisions, asked.as_shots, asked.seed
            keys = ("order", "decisions", "as_shots", "seed")
            if any(tuple(row[key] for key in keys) == cell for row in rows):
                continue
            training = not asked.no_training
            row = measure(asked.run, order, decisions, asked.seed, asked.as_shots, training)
            rows.append(row)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
    table(rows, asked.oracle)


if __name__ == "__main__":
    main()
