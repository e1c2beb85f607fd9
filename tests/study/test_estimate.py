from __future__ import annotations

from pathlib import Path

import pytest

from mini_fsod.study.estimate import ROUGH, Estimate, estimates
from mini_fsod.study.plan import Unit
from study import fake


def of(folder: Path, **changes: object) -> list[Estimate]:
    units = fake.planned(folder, fake.study(**changes)).units
    return estimates(units, [], folder, "cuda")


def test_a_guess_from_iterations(tmp_path: Path) -> None:
    base, one, five = of(tmp_path)
    assert base == Estimate(100 * ROUGH["cuda"]["base"], "rough")
    assert one == five == Estimate(40 * ROUGH["cuda"]["transfer"], "rough")


def test_a_budget_is_its_own_estimate(tmp_path: Path) -> None:
    base, one, _ = of(tmp_path, sets=("base.minutes=8", "base.iterations="))
    assert base == Estimate(480, "budget")
    assert one.how == "rough"


def test_what_was_measured_is_scaled_by_iterations(tmp_path: Path) -> None:
    fake.finish(tmp_path / "cells/tfa-split1-1shot-seed0", {"transfer": {"seconds": 8.0}})
    fake.finish(tmp_path / "cells/tfa-split1-5shot-seed0", {"transfer": {"seconds": 12.0}})
    base, one, five, ten = of(tmp_path, shots=(1, 5, 10))
    assert (one, five) == (Estimate(8, "finished"), Estimate(12, "finished"))
    assert ten == Estimate(10, "measured")
    assert base.how == "rough"
    rows = (fake.Row("long", ("transfer.iterations=80",)),)
    others = fake.planned(tmp_path).units
    units = fake.planned(tmp_path, fake.study(rows=rows)).units
    assert estimates(units, others, tmp_path, "cpu")[-1] == Estimate(20, "measured")


def test_stages_taken_over_cost_nothing_again(tmp_path: Path) -> None:
    units = fake.planned(tmp_path).units
    stages = {"base": {"seconds": 500.0}, "transfer": {"seconds": 8.0}}
    fake.finish(tmp_path / units[1].folder, stages)
    assert estimates(units, [], tmp_path, "cpu")[1] == Estimate(8, "finished")
    assert of(tmp_path, sets=("base.checkpoint=x",))[1].seconds == 8


@pytest.mark.parametrize("section", [{}, {"threshold": 0.7}])
def test_nobody_knows(tmp_path: Path, section: dict[str, float]) -> None:
    unit = Unit("a", "cells/a", ("transfer", "mine"), "mine", (), {"mine": section})
    assert estimates([unit], [], tmp_path, "cpu") == [Estimate(None, "unknown")]
