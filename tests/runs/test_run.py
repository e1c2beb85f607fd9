"""How a stage trains is what its keys say, and what is told of its end."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from mini_fsod.config import resolve
from mini_fsod.runs import stages
from mini_fsod.runs.run import recipe_of

# none of them a default
TRAINING = {
    "iterations": 7,
    "batch": 3,
    "rate": 0.5,
    "warm_up": 5,
    "decay": (0.25, 0.5),
    "momentum": 0.75,
    "weight_decay": 0.125,
    "clip": 2.5,
    "ema": 0.625,
    "ema_growth": 0.5,
    "accumulate": 3,
    "save_seconds": 9.0,
}


@pytest.mark.parametrize("stage", ["base", "transfer", "online", "tune"])
def test_how_a_stage_trains(stage: str) -> None:
    def text(value: Any) -> str:
        return str([*value]) if isinstance(value, tuple) else str(value)

    usual = resolve("demo")
    config = resolve("demo", [f"{stage}.{key}={text(value)}" for key, value in TRAINING.items()])
    found = asdict(recipe_of(getattr(config, stage), bf16=True))
    assert found == {"minutes": None, "bf16": True, **TRAINING}
    before = asdict(recipe_of(getattr(usual, stage), bf16=False))
    assert all(before[key] != value for key, value in TRAINING.items())


@pytest.mark.parametrize(
    ("stage", "figure", "little"),
    [("base", 1.8, True), ("base", 60.0, False), ("base", None, False), ("transfer", 1.8, False)],
)
def test_a_base_detector_that_has_learnt_little_is_told_of(
    stage: str, figure: float | None, little: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    stages._tell(stage, {"bAP50": figure, "seconds": 1.0})
    assert ("Train it longer" in capsys.readouterr().err) == little
