"""How long a study will take: from what this folder has measured, else budgets, else a guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mini_fsod.study.plan import Unit
from mini_fsod.study.worker import is_done, results

# seconds an iteration at batch 16 and 320 pixels, evaluation included: an order of magnitude
ROUGH = {
    "cuda": {"base": 0.03, "transfer": 0.002, "online": 0.05, "tune": 0.002},
    "cpu": {"base": 15.0, "transfer": 0.05, "online": 25.0, "tune": 0.05},
}


How = Literal["finished", "measured", "budget", "rough", "unknown", "shared"]
SURENESS: tuple[How, ...] = ("unknown", "rough", "budget", "measured")


@dataclass(frozen=True, slots=True)
class Estimate:
    """`seconds` is None where nothing is known; of what is finished they are what it took."""

    seconds: float | None
    how: How


def estimates(
    units: Sequence[Unit], others: Sequence[Unit], folder: Path, device: str
) -> list[Estimate]:
    """One for each unit; `others` are all units of the folder, `device` is "cuda" or "cpu"."""
    rates = measured([*others, *units], folder)
    found = []
    for unit in units:
        if is_done(folder, unit):
            stages = results(folder, unit)["stages"]
            took = [stages.get(s, {}).get("seconds") or 0 for s in unit.stages]
            found.append(Estimate(sum(took), "finished"))
            continue
        parts = [_stage(unit, stage, rates, device) for stage in unit.stages]
        seconds = [part.seconds for part in parts if part.seconds is not None]
        # the least sure of its stages tells how sure the sum is
        hows: list[How] = [part.how for part in parts]
        how: How = min(hows, key=SURENESS.index, default="shared")
        found.append(Estimate(sum(seconds) if len(seconds) == len(parts) else None, how))
    return found


def measured(units: Sequence[Unit], folder: Path) -> dict[tuple[str, str], float]:
    """Seconds for one iteration, or one second of budget, of each stage: {(stage, kind): rate}."""
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for unit in {unit.name: unit for unit in units}.values():
        stages = results(folder, unit).get("stages", {})
        for stage in unit.stages:
            kind, amount = _amount(unit.parts.get(stage, {}))
            seconds = stages.get(stage, {}).get("seconds")
            if seconds and amount:
                spent, done = sums.get((stage, kind), (0.0, 0.0))
                sums[stage, kind] = spent + seconds, done + amount
    return {key: spent / done for key, (spent, done) in sums.items()}


def _stage(unit: Unit, stage: str, rates: dict[tuple[str, str], float], device: str) -> Estimate:
    section = unit.parts.get(stage, {})
    if section.get("checkpoint") is not None:
        return Estimate(0.0, "measured")  # given, nothing to train
    kind, amount = _amount(section)
    if not amount:
        return Estimate(None, "unknown")
    if (stage, kind) in rates:
        return Estimate(rates[stage, kind] * amount, "measured")
    if kind == "minutes":
        return Estimate(amount, "budget")
    rate = ROUGH[device].get(stage, ROUGH[device]["base"])
    return Estimate(rate * amount, "rough")


def _amount(section: dict[str, Any]) -> tuple[str, float]:
    """What a stage's length is set by: iterations, or seconds of a budget in minutes; 0 unknown."""
    if section.get("iterations"):
        return "iterations", section["iterations"]
    return "minutes", 60 * (section.get("minutes") or 0)
