"""Causes in mining: no candidates, a threshold too high or too low, one class that takes the pool.

They are in `thresholds.json`, in `audit.json` where hidden objects are annotated, and in what
people have corrected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from mini_fsod import console
from mini_fsod.config.schema import Config
from mini_fsod.mining.thresholds import FEW
from mini_fsod.report.finding import BLOCKS, MAJOR, SOME, Finding, new_setting
from mini_fsod.report.run_files import RunFiles

ENOUGH = 20  # boxes or hidden objects from which on a share means something
LOW_PRECISION, HIGH_PRECISION = 0.5, 0.85
LOW_RECALL = 0.35
LOW_CANDIDATE_RECALL = 0.5
REMOVED = 0.3  # share of the pool that a person removed
PLACED = 0.25  # share of the pool that is badly placed
EATS = 0.6  # share of the pool, and
TIMES = 5  # boxes per box of a usual class: one class takes the pool
MINED_SHOTS = "transfer.mined_shots=25"  # brought a pool most right boxes: decision 15


def mining_findings(run: RunFiles) -> Iterator[Finding]:
    if run.config is None or run.is_oracle or not run.thresholds:
        return
    given = run.figures.get("mine", {}).get("given")
    if given is None:  # else other settings of mining change nothing
        yield from _few_mined(run.thresholds, run.config)
        yield from _threshold_by_audit(run, run.config)
        yield from _removed_by_hand(run, run.config)
    yield from _one_class(run)


def _few_mined(table: Mapping[str, Any], config: Config) -> Iterator[Finding]:
    none = [name for name, row in table.items() if not row["candidates"]]
    few = {name: row for name, row in table.items() if row["candidates"] and row["kept"] < FEW}
    everything = BLOCKS if len(none) + len(few) == len(table) else MAJOR
    if none:
        yield Finding(
            everything,
            f"The few-shot detector finds no candidates of {', '.join(none)}",
            f"no score is above mine.min_score={config.mine.min_score:g} in the training pictures",
            (
                new_setting("mine.min_score", config.mine.min_score / 5),
                "larger or more typical shots",
                "more transfer.iterations",
            ),
        )
    if few:
        counts = ", ".join(
            f"{name} {row['kept']} of {console.count(row['candidates'], 'candidate')}"
            + ("" if row["delta"] is None else f" (threshold {row['delta']:.2f})")
            for name, row in few.items()
        )
        yield Finding(
            everything,
            f"Few boxes of {', '.join(few)} were mined: the threshold may be too high",
            f"mined: {counts}",
            lower_threshold(config),
        )


def lower_threshold(config: Config) -> tuple[str, ...]:
    """Settings that mine more boxes."""
    if config.mine.threshold != "adaptive":
        fixed = float(config.mine.threshold)
        return (new_setting("mine.threshold", round(0.6 * fixed, 3)), "mine.threshold=adaptive")
    changes = [new_setting("mine.alpha", round(config.mine.alpha - 0.75, 2))]
    if config.mine.mean_score is None:
        changes.append("mine.mean_score=0.8")
    return tuple(changes)


def more_boxes(config: Config, kept: int) -> tuple[str, ...]:
    """Settings that mine more boxes than the `kept` of a class. Where these are as many as may be
    mined, no threshold changes it.
    """
    if kept >= config.mine.per_class:
        return (new_setting("mine.per_class", 3 * config.mine.per_class),)
    return lower_threshold(config)


def higher_threshold(config: Config, kept: int) -> tuple[str, ...]:
    """Settings that mine fewer boxes, the surer ones, than the `kept` of a class."""
    if config.mine.threshold != "adaptive":
        fixed = float(config.mine.threshold)
        return (new_setting("mine.threshold", round(min(0.99, fixed + (1 - fixed) / 2), 3)),)
    changes = [
        new_setting("mine.alpha", round(config.mine.alpha + 0.75, 2)),
        new_setting("mine.per_class", max(FEW, min(config.mine.per_class, kept) // 2)),
    ]
    if not config.mine.drop_on_base:
        changes.append("mine.drop_on_base=true")
    return tuple(changes)


def _threshold_by_audit(run: RunFiles, config: Config) -> Iterator[Finding]:
    """Precision and recall of the pool, where the annotations tell."""
    table = {
        name: row
        for name, row in (run.audit or {}).get("classes", {}).items()
        if row.get("kept", 0) >= FEW and row["precision"] is not None
    }
    wrong = {name: row for name, row in table.items() if row["precision"] < LOW_PRECISION}
    lost = {name: row for name, row in wrong.items() if _surest(row) < LOW_PRECISION}
    if lost:
        yield Finding(
            MAJOR,
            f"Even the mined boxes of {', '.join(lost)} with the highest scores are wrong",
            "; ".join(
                f"{name}: {_surest(row):.0%} of the top 10 and {_right(row)}"
                for name, row in lost.items()
            ),
            _better_miner(config),
        )
    too_low = {name: row for name, row in wrong.items() if name not in lost}
    if too_low:
        yield Finding(
            MAJOR,
            f"Most mined boxes of {', '.join(too_low)} are wrong: the threshold is too low",
            "; ".join(f"{name}: {_right(row)}" for name, row in too_low.items()),
            higher_threshold(config, max(row["kept"] for row in too_low.values())),
        )
    yield from _low_recall(config, {n: row for n, row in table.items() if n not in wrong})
    for name, row in table.items():
        placed = row.get("false_on", {}).get("badly_placed", 0)
        if row["kept"] >= ENOUGH and placed > PLACED * row["kept"]:
            yield Finding(
                SOME,
                f"Mined boxes of {name} are badly placed",
                f"{placed} of {row['kept']} are on an object of the class, with an IoU below 0.5",
                ()
                if config.mine.segmenter is not None
                else ("mine.segmenter=mobile_sam.pt", "online.mined_boxes=none"),
            )


def _low_recall(config: Config, table: Mapping[str, Any]) -> Iterator[Finding]:
    """Classes of which few hidden objects are mined, although the pool is mostly right."""
    low = {
        name: row
        for name, row in table.items()
        if row.get("hidden", 0) >= ENOUGH and row["recall"] is not None
        if row["recall"] < LOW_RECALL
    }
    unseen = {
        name: row
        for name, row in low.items()
        if (row.get("candidates_recall") or 0.0) < LOW_CANDIDATE_RECALL
    }
    if unseen:
        test = config.views.test
        yield Finding(
            SOME,
            f"The few-shot detector does not find most objects of {', '.join(unseen)}",
            "its candidates cover "
            + ", ".join(
                f"{row.get('candidates_recall') or 0.0:.0%} of {row['hidden']:,} hidden objects of "
                f"{name}"
                for name, row in unseen.items()
            ),
            (
                *(() if config.transfer.mined_shots else (MINED_SHOTS,)),
                new_setting("mine.min_score", config.mine.min_score / 5),
                f"mine.scan_short=[{test}, {round(1.5 * test)}]",
                "more or more typical shots",
            ),
        )
    sure = {
        name: row
        for name, row in low.items()
        if name not in unseen and row["precision"] >= HIGH_PRECISION
    }
    if sure:
        most = max(row["kept"] for row in sure.values())
        yield Finding(
            SOME,
            f"The threshold of {', '.join(sure)} is too high: correct boxes are left out",
            "; ".join(
                f"{name}: {row['precision']:.0%} of {row['kept']:,} mined boxes are right, but "
                f"only {row['recall']:.0%} of {row['hidden']:,} hidden objects are mined"
                for name, row in sure.items()
            ),
            more_boxes(config, most),
        )


def _surest(row: Mapping[str, Any]) -> float:
    """Precision of the ten best candidates; that of the pool where it is not known."""
    known = row.get("precision_by_rank", {}).get("10")
    return float(row["precision"] if known is None else known)


def _right(row: Mapping[str, Any]) -> str:
    return f"{row['precision']:.0%} of all {row['kept']:,} are right{_mostly_on(row)}"


def _better_miner(config: Config) -> tuple[str, ...]:
    """What makes the few-shot detector, which mines, better."""
    changes = ["larger or more typical shots, or more of them (shots.k)"]
    if config.discriminator.weights == "none":
        changes.append("discriminator.weights=resnet50:IMAGENET1K_V1")
    if config.transfer.data != "known":
        changes.append("transfer.data=known")
    return (*changes, "a better base detector: a longer base training")


def _mostly_on(row: Mapping[str, Any]) -> str:
    """What the wrong boxes show most often."""
    false_on = row.get("false_on", {})
    others = {"background": false_on.get("background", 0), **false_on.get("classes", {})}
    name, number = max(others.items(), key=lambda item: item[1])
    return f", {number:,} are on {name}" if number else ""


def _removed_by_hand(run: RunFiles, config: Config) -> Iterator[Finding]:
    pool = run.results.get("pool", {})
    removed, boxes = pool.get("removed", 0), pool.get("boxes", 0)
    before = boxes - pool.get("added", 0) + removed
    if pool.get("edited") and before >= ENOUGH and removed > REMOVED * before:
        yield Finding(
            SOME,
            "Many mined boxes were removed by hand: the threshold is too low",
            f"{removed:,} of {before:,} mined boxes were removed",
            higher_threshold(config, max(row["kept"] for row in run.thresholds.values())),
        )


def _one_class(run: RunFiles) -> Iterator[Finding]:
    """One class with most of the pool; harmless where the annotations say that it is right."""
    kept = {name: row["kept"] for name, row in run.thresholds.items()}
    total, (name, most) = sum(kept.values()), max(kept.items(), key=lambda item: item[1])
    usual = median(kept.values())
    if len(kept) < 3 or total < ENOUGH or most <= EATS * total or most <= TIMES * usual:
        return
    precision = (run.audit or {}).get("classes", {}).get(name, {}).get("precision")
    if precision is None or precision < HIGH_PRECISION:
        right = "" if precision is None else f", {precision:.0%} of them right"
        yield Finding(
            SOME,
            f"Most boxes of the pool are {name}",
            f"{most:,} of {total:,} mined boxes are {name}{right}; the median class has "
            f"{usual:,.0f}",
            (
                new_setting("mine.per_class", max(FEW, round(2 * usual))),
                f"look at the sheet of {name} in the folder mine",
            ),
        )
