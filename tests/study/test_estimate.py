from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.fake_study import ROWS, example_study, finish_cells
from mini_fsod.runs.estimate import RunEstimate, StageEstimate
from mini_fsod.study.estimate import Estimate, estimate_cells, estimated_rates, shared_seconds
from mini_fsod.study.plan import StudyPlan, plan_study
from mini_fsod.study.studies import Row

SETS = ("data.root=voc", "base.iterations=100", "transfer.iterations=40")


def planned(*sets: str, **changes: Any) -> StudyPlan:
    return plan_study(example_study(sets=(*SETS, *sets), **changes))


RATES = {("base", "iterations"): 0.25, ("transfer", "iterations"): 0.5, ("online", "iterations"): 2}


def estimated(
    folder: Path, plan: StudyPlan, rates: dict[tuple[str, str], float] = RATES
) -> list[Estimate]:
    return estimate_cells(plan, plan, folder, rates)


def test_estimated_rates_are_those_of_one_run() -> None:
    """Of a budget in seconds nothing is to be learnt, nor of a stage that trains nothing."""
    config = planned("base.minutes=8", "tune.data=none").configs["tfa-split1-1shot-seed0"]
    names = {"base": 8.0, "transfer": 1.0, "scan": 2.0, "mine": 0.5, "tune": 0.0}
    stages = [StageEstimate(name, minutes, 0, None, None, 0) for name, minutes in names.items()]
    found = estimated_rates(config, RunEstimate(tuple(stages), 0.0))
    assert found == {
        ("transfer", "iterations"): 60 / 40,
        ("scan", "runs"): 120,
        ("mine", "runs"): 30,
    }


def test_shared_seconds_are_those_of_the_longest_cell_at_least() -> None:
    times = [Estimate((), seconds, "rough") for seconds in (10.0, 20.0, 30.0)]
    times.append(Estimate((), 99.0, "finished"))
    assert [shared_seconds(times, n) for n in (1, 2, 8)] == [60, 30, 30]
    assert shared_seconds([], 4) == 0


def test_estimate_cells_counts_a_shared_stage_once(tmp_path: Path) -> None:
    assert estimated(tmp_path, planned()) == [
        Estimate(("base", "transfer"), 100 * 0.25 + 40 * 0.5, "estimated"),
        Estimate(("transfer",), 20, "estimated"),
    ]
    assert estimated(tmp_path, planned(), {})[1] == Estimate(("transfer",), 0, "at least")


def test_estimate_cells_says_where_all_stages_are_shared(tmp_path: Path) -> None:
    rows = (Row("TFA"), Row("base", last="base"))
    assert estimated(tmp_path, planned(rows=rows, shots=(1,)))[1] == Estimate((), 0, "shared")


def test_estimate_cells_takes_time_budgets(tmp_path: Path) -> None:
    plan = planned("base.minutes=8", rows=(Row("base", last="base"),), shots=(1,))
    assert estimated(tmp_path, plan) == [Estimate(("base",), 480, "budget")]


def test_estimate_cells_scales_what_was_measured(tmp_path: Path) -> None:
    plan = planned(shots=(1, 5))
    one, five = plan.cells
    base = {"base": {"seconds": 300.0}}
    finish_cells(
        tmp_path,
        plan,
        {
            one.name: {**base, "transfer": {"seconds": 8.0}},
            five.name: {**base, "transfer": {"seconds": 12.0}},
        },
    )
    rows = (Row("TFA"), Row("long", ("transfer.iterations=80",)))
    more = planned(rows=rows, shots=(1, 5, 10), splits=(1, 2))
    found = dict(zip([c.name for c in more.cells], estimated(tmp_path, more), strict=True))
    assert found["tfa-split1-1shot-seed0"] == Estimate(("base", "transfer"), 308, "finished")
    assert found["tfa-split1-5shot-seed0"] == Estimate(("transfer",), 12, "finished")
    assert found["tfa-split1-10shot-seed0"] == Estimate(("transfer",), 10, "measured")
    assert found["long-split1-1shot-seed0"] == Estimate(("transfer",), 20, "measured")
    assert found["tfa-split2-1shot-seed0"] == Estimate(("base", "transfer"), 310, "measured")


def test_estimate_cells_knows_nothing_of_mining_before_the_first_cell(tmp_path: Path) -> None:
    plan = planned(rows=ROWS[1:], shots=(1,))
    (cell,) = plan.cells
    (estimate,) = estimated(tmp_path, plan)
    assert (estimate.stages, estimate.how) == (("base", "transfer", "scan", "mine"), "at least")
    assert estimate.seconds == 100 * 0.25 + 40 * 0.5
    stages = {"base": 300.0, "transfer": 8.0, "scan": 60.0, "mine": 2.0}
    finish_cells(tmp_path, plan, {cell.name: {s: {"seconds": t} for s, t in stages.items()}})
    more = planned(rows=ROWS[1:], shots=(1, 5))
    assert estimated(tmp_path, more)[1] == Estimate(("transfer", "scan", "mine"), 70, "measured")


def test_estimate_cells_counts_nothing_for_given_or_skipped_training(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"")
    row = Row("tuned", (f"base.checkpoint={tmp_path / 'x.safetensors'}", "tune.data=none"), "tune")
    (estimate,) = estimated(tmp_path, planned("online.iterations=10", rows=(row,), shots=(1,)))
    assert estimate.seconds == 40 * 0.5 + 10 * 2
