"""How a stage trains is what its keys say, and what is told of its end."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import pytest

from mini_fsod.config.load import resolve
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


@pytest.mark.parametrize(
    ("stage", "changes", "told"),
    [
        ("base", {}, []),
        ("transfer", {"transfer": (47.0, 76.0)}, []),
        ("transfer", {"transfer": (47.0, 74.9)}, ["lost 6.0 of bAP50 .* Lower transfer.rate"]),
        ("online", {"online": (45.0, 80.9)}, []),
        (
            "online",
            {"online": (23.7, 51.4)},
            ["lost 29.5 of bAP50 .* Lower online.rate", "had 47.0 of nAP50 behind the stage tran"],
        ),
        ("tune", {"tune": (57.0, 80.0)}, ["had 60.0 of nAP50 behind the stage online"]),
        ("tune", {"tune": (60.0, 74.0)}, ["lost 6.9 of bAP50 .* Lower tune.rate"]),
        ("tune", {"online": (60.0, 73.1), "tune": (60.0, 73.1)}, []),  # another's doing
        ("online", {"online": (None, None)}, []),  # without a test set nobody knows
        ("online", {"transfer": (None, None), "base": (None, None)}, []),
        ("mine", {"mine": (None, None)}, []),
    ],
)
def test_what_a_stage_spoils_is_told(
    stage: str, changes: dict[str, tuple[float | None, float | None]], told: list[str]
) -> None:
    pairs = {"base": (None, 80.9), "transfer": (47.0, 80.9), "online": (60.0, 80.9)} | changes
    figures = {name: {"nAP50": new, "bAP50": base} for name, (new, base) in pairs.items()}
    found = stages.spoilt(stage, figures)
    assert len(found) == len(told)
    for line, pattern in zip(found, told, strict=True):
        assert re.search(pattern, line), line


def test_an_oracle_from_nothing_has_no_stage_to_be_compared_with() -> None:
    assert stages.spoilt("online", {"online": {"nAP50": 1.0, "bAP50": 1.0}}) == []
