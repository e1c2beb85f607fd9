"""`base.minutes`: start and scoring are in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers.tiny_run import config, run
from mini_fsod.runs import run as module


def test_a_stage_in_minutes_leaves_time_for_scoring(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the loop is told: when the stage began, and how long scoring will take."""
    told: list[dict[str, Any]] = []
    train = module.train

    def record(*given: Any, **more: Any) -> Any:
        told.append(more)
        return train(*given, **more)

    monkeypatch.setattr(module, "train", record)
    monkeypatch.setattr(module, "scoring_seconds", lambda *_: 0.125)
    limited = config(data, base__iterations="null", base__minutes=0.02)
    results = run(limited, tmp_path / "run", last="base")["stages"]["base"]
    assert told[0]["reserve"] == 0.125
    assert told[0]["began"] is not None
    assert results["iterations"] > 0
    assert results["training_seconds"] < results["seconds"]


def test_a_later_stage_knows_how_long_scoring_took(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[object] = []
    monkeypatch.setattr(module, "scoring_seconds", lambda *_: measured.append(1) or 0.0)
    limits = {
        f"{stage}__{key}": value
        for stage in ("base", "online")
        for key, value in {"iterations": "null", "minutes": 0.02}.items()
    }
    oracle = {"online__oracle": True, "online__start": "transfer", "transfer__iterations": 2}
    run(config(data, **limits, **oracle), tmp_path / "run", last="online")
    assert len(measured) == 1


def test_a_stage_in_iterations_does_not_measure_scoring(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "scoring_seconds", lambda *_: pytest.fail("measured"))
    run(config(data, base__iterations=2), tmp_path / "run", last="base")
