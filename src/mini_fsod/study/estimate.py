"""How long a study will take: by its finished runs, by time budgets, or by one run's estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mini_fsod.config.schema import Config, Training
from mini_fsod.study.plan import StudyPlan
from mini_fsod.study.worker import cell_results, is_cell_finished

if TYPE_CHECKING:
    from mini_fsod.runs.estimate import RunEstimate

How = Literal["at least", "rough", "estimated", "budget", "measured", "shared", "finished"]
LEAST_SURE_FIRST: tuple[How, ...] = (
    "at least", "rough", "estimated", "budget", "measured", "shared",
)  # fmt: skip
Rates = Mapping[tuple[str, str], float]  # seconds per unit of a stage's length, by (stage, unit)

# An order of magnitude where the data are not here: batch 16 at 320 pixels, on an H200 or two cores
_ROUGH = {
    "cuda": {"base": 0.03, "transfer": 0.002, "online": 0.05, "tune": 0.002},
    "cpu": {"base": 15.0, "transfer": 0.05, "online": 25.0, "tune": 0.05},
}
ROUGH: Mapping[str, Rates] = {
    device: {(stage, "iterations"): seconds for stage, seconds in rates.items()}
    for device, rates in _ROUGH.items()
}


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of the stages that a cell computes itself; of a finished cell, what they took.

    "at least": nothing is known of some of these stages. "estimated": from the speed of this
    machine (`runs/estimate.py`). "shared": earlier cells compute them all.
    """

    stages: tuple[str, ...]
    seconds: float
    how: How


def estimate_cells(
    plan: StudyPlan, whole: StudyPlan, folder: Path, others: Rates, how: How = "estimated"
) -> list[Estimate]:
    """One for each cell of the plan. `whole` has all cells of the folder; where none of them is
    finished the rates `others` are used, and `how` says what they are.

    A stage that several cells share counts for the first of them. Results that other runs have kept
    in the same store are not looked for.
    """
    rates = _measured_rates(whole, folder)
    finished = {cell.name for cell in whole.cells if is_cell_finished(folder, cell)}
    computed = {item for c in whole.cells if c.name in finished for item in c.keys.items()}
    counted: set[tuple[str, str]] = set()  # stages of finished cells
    estimates = []
    for cell in plan.cells:
        known = counted if cell.name in finished else computed
        stages = tuple(stage for stage, key in cell.keys.items() if (stage, key) not in known)
        known.update(cell.keys.items())
        if cell.name in finished:
            results = cell_results(folder, cell)["stages"]
            took = sum(results.get(stage, {}).get("seconds") or 0 for stage in stages)
            estimates.append(Estimate(stages, took, "finished"))
            continue
        parts = [_stage(plan.configs[cell.name], stage, rates, others, how) for stage in stages]
        least: How = min((h for _, h in parts), key=LEAST_SURE_FIRST.index, default="shared")
        estimates.append(Estimate(stages, sum(seconds for seconds, _ in parts), least))
    return estimates


def shared_seconds(estimates: Sequence[Estimate], workers: int) -> float:
    """How long so many processes take together: no cell is shorter than itself. At the start, some
    wait for stages that they share, which is not counted.
    """
    left = [one.seconds for one in estimates if one.how != "finished"]
    return max(sum(left) / workers, max(left, default=0.0))


def estimated_rates(config: Config, estimate: RunEstimate) -> dict[tuple[str, str], float]:
    """The speed of other runs, from the estimate of one of them."""
    rates = {}
    for stage in estimate.stages:
        unit, length = _length(config, stage.stage)
        if length and unit != "seconds":
            rates[stage.stage, unit] = 60 * stage.minutes / length
    return rates


def _measured_rates(plan: StudyPlan, folder: Path) -> dict[tuple[str, str], float]:
    """Seconds per unit of a stage's length, by (stage, unit): the means over finished cells."""
    measured: dict[tuple[str, str], tuple[str, float, float]] = {}  # shared stages count once
    for cell in plan.cells:
        results = cell_results(folder, cell)["stages"] if is_cell_finished(folder, cell) else {}
        for stage, key in cell.keys.items():
            unit, length = _length(plan.configs[cell.name], stage)
            seconds = results.get(stage, {}).get("seconds")
            if seconds and length:
                measured.setdefault((stage, key), (unit, seconds, length))
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for (stage, _), (unit, seconds, length) in measured.items():
        spent, done = sums.get((stage, unit), (0.0, 0.0))
        sums[stage, unit] = spent + seconds, done + length
    return {key: spent / done for key, (spent, done) in sums.items()}


def _stage(config: Config, stage: str, rates: Rates, others: Rates, how: How) -> tuple[float, How]:
    unit, length = _length(config, stage)
    if not length:
        return 0.0, "measured"
    if (stage, unit) in rates:
        return rates[stage, unit] * length, "measured"
    if unit == "seconds":
        return length, "budget"
    if (stage, unit) in others:
        return others[stage, unit] * length, how
    return 0.0, "at least"


def _length(config: Config, stage: str) -> tuple[str, float]:
    """What a stage's time is in proportion to: its iterations, or the seconds of its budget.

    Mining has neither and counts as one unit. 0: nothing to compute.
    """
    section = getattr(config, stage, None)
    if not isinstance(section, Training):
        return "runs", 1.0
    given = getattr(section, "checkpoint", None) is not None
    if given or (stage == "tune" and config.tune.data == "none"):
        return "iterations", 0.0
    if section.iterations:
        return "iterations", section.iterations
    return "seconds", 60 * section.budget_minutes
