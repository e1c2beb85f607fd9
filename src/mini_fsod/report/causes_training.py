"""Causes in training: losses that still fall or jump, unusual learning rates, and the teacher.

They are in `log.jsonl` of each stage. The rules on the teacher are those that watch it while it
trains (`online/health.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from statistics import fmean
from typing import Any

from mini_fsod.config.schema import REFERENCE_BATCH, TRAINED, Config, TimedTraining, Training
from mini_fsod.online.health import (
    MIN_READINGS,
    Setup,
    find_collapse,
    find_warnings,
    latest,
    mean,
    readings_of,
)
from mini_fsod.online.mingling import MAX_INSTANCES
from mini_fsod.report.causes_stages import stage_findings
from mini_fsod.report.finding import BLOCKS, MAJOR, SOME, WORTH_KNOWING, Finding, new_setting
from mini_fsod.report.run_files import RunFiles

FALLING = 0.10  # of the loss, over a fifth of the training at the full learning rate
RISING = 1.3  # times the lowest loss: the training has diverged
BATCHES = 100  # iterations from which on such a comparison means something
MANY_TIMES = 4.0  # the default learning rate, or a fraction of it
IGNORED = 0.02  # boxes of the teacher per mined box


def training_findings(run: RunFiles) -> Iterator[Finding]:
    yield from _unfinished(run)
    for stage in run.figures:
        yield from stage_findings(stage, run.figures)
    if run.config is None:
        return
    for stage, files in run.stages.items():
        if stage in TRAINED:
            section: Training = getattr(run.config, stage)
            if files.log and not files.figures.get("checkpoint"):
                yield from _losses(stage, files.log, section)
            if files.log:
                yield from _learning_rate(stage, section)
    yield from _teacher(run, run.config)


def _unfinished(run: RunFiles) -> Iterator[Finding]:
    stage = run.unfinished
    if stage is None:
        return
    log = run.stages[stage].log
    done = f" after {log[-1]['step']:,} iterations" if log else ""
    yield Finding(
        BLOCKS,
        "The run is not finished",
        f"it stopped in the stage {stage}{done}, or is still running",
        (f"mini run {run.folder}",),
    )


def _window(log: Sequence[dict[str, Any]], start: float, end: float) -> float | None:
    """The mean loss between two fractions of the training."""
    last = log[-1]["step"]
    values = [line["loss"] for line in log if start * last < line["step"] <= end * last]
    return fmean(values) if len(values) >= MIN_READINGS else None


def _losses(stage: str, log: list[dict[str, Any]], section: Training) -> Iterator[Finding]:
    if any("loss" not in line for line in log) or log[-1]["step"] < BATCHES:
        return
    if not all(isfinite(line["loss"]) for line in log):
        return  # the training has stopped with a message of its own
    first = min(section.decay, default=1.0)
    before, after = _window(log, first - 0.3, first - 0.2), _window(log, first - 0.1, first)
    if isinstance(section, TimedTraining) and before and after and after < (1 - FALLING) * before:
        length = (
            new_setting(f"{stage}.minutes", round(2 * section.minutes))
            if section.minutes
            else new_setting(f"{stage}.iterations", 2 * (section.iterations or log[-1]["step"]))
        )
        yield Finding(
            SOME,
            f"The training of {stage} was too short: its loss was still falling",
            f"the loss fell from {before:.3f} to {after:.3f} within a fifth of the training, "
            "before the learning rate was lowered",
            (length,),
        )
    parts = [_window(log, n / 10, (n + 1) / 10) for n in range(10)]
    known = [part for part in parts if part is not None]
    # of the detector's first steps nothing is taken for a minimum: everything is background then
    if len(known) == len(parts) and stage == "transfer" and known[-1] > RISING * min(known):
        yield Finding(
            MAJOR,
            f"The loss of {stage} rose",
            f"it is {known[-1]:.3f} at the end, and was {min(known):.3f} at its lowest",
            (new_setting(f"{stage}.rate", section.learning_rate / 3), f"{stage}.clip=10"),
        )


def _learning_rate(stage: str, section: Training) -> Iterator[Finding]:
    usual = section.reference_rate * section.batch / REFERENCE_BATCH
    ratio = section.learning_rate / usual
    if not 1 / MANY_TIMES <= ratio <= MANY_TIMES:
        times = f"{ratio:.3g} times" if ratio > 1 else f"1/{1 / ratio:.3g} of"
        yield Finding(
            SOME,
            f"The learning rate of {stage} does not fit its batch size",
            f"{stage}.rate is {section.learning_rate:g} with a batch of {section.batch}: {times} "
            f"the default of {usual:g}",
            (new_setting(f"{stage}.rate", usual),),
        )


def _teacher(run: RunFiles, config: Config) -> Iterator[Finding]:
    stage = run.stages.get("online")
    readings = readings_of([line for line in stage.log if "confidence" in line]) if stage else []
    if len(readings) < MIN_READINGS or "pool" not in readings[-1].means:
        return
    section = config.online
    kept = {name: row["kept"] for name, row in run.thresholds.items()}
    shown, total = mean(readings, "pool"), max(sum(kept.values()), 1)
    pool = {name: shown * number / total for name, number in kept.items()}
    setup = Setup.of(section.batch, MAX_INSTANCES, pool, section.iterations)
    collapse = find_collapse(readings, setup)
    if collapse is not None:
        what, fix = collapse
        yield Finding(
            BLOCKS,
            "The teacher has collapsed",
            f"at iteration {readings[-1].step:,}, {what}",
            (new_setting("online.rate", section.learning_rate / 3), fix),
        )
        return
    for name, text in find_warnings(readings, setup).items():
        evidence, _, advice = text.partition(". ")
        kind = name.partition(" ")[0]
        yield Finding(
            MAJOR if kind in ("nothing", "precision", "lost") else SOME,
            "The teacher's metrics look wrong",
            evidence,
            (*_setting_for(kind, config), *((advice,) if advice else ())),
        )
    window = latest(readings, setup.long_window)
    if window and section.mingle.rcnn and mean(window, "mined") > 0:
        share = mean(window, "online") / mean(window, "mined")
        if share < IGNORED:
            yield Finding(
                WORTH_KNOWING,
                "The teacher adds nothing to the pool",
                f"{share:.1%} of the boxes that were trained on at the end are the teacher's",
                (new_setting("online.delta", round(max(section.delta - 0.2, 0.3), 2)),),
            )


def _setting_for(kind: str, config: Config) -> tuple[str, ...]:
    """The first setting to try against a warning of `online/health.py`."""
    section = config.online
    higher_delta = new_setting("online.delta", round(min(section.delta + 0.1, 0.95), 2))
    lower_delta = new_setting("online.delta", round(max(section.delta - 0.2, 0.3), 2))
    lower_rate = new_setting("online.rate", section.learning_rate / 3)
    changes = {
        "many": higher_delta,
        "share": new_setting("online.mined_weight", section.mined_weight / 2),
        "nothing": lower_delta,
        "agreement": lower_rate,
        "precision": higher_delta,
        "placement": "online.mined_boxes=pool",
        "unfound": lower_delta,
        "lost": lower_rate,
    }
    return (changes[kind],)
