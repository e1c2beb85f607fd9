"""results.json, and what is said of a stage's figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mini_fsod.runs import results
from mini_fsod.runs.results import advice, say_figures


def figures(**stages: tuple[float | None, float | None]) -> dict[str, dict[str, Any]]:
    return {s: {"nAP50": nap, "bAP50": bap} for s, (nap, bap) in stages.items()}


@pytest.mark.parametrize(
    ("stage", "stages", "message"),
    [
        ("base", {"base": (None, 7.0)}, "mining needs what the base detector has learned"),
        ("base", {"base": (None, 4.9)}, None),  # `hopeless` says more
        ("base", {"base": (None, 40.0)}, None),
        ("base", {"base": (None, None)}, None),
        ("transfer", {"base": (None, 70), "transfer": (30, 60)}, "lost 10.0 of bAP50.*transfer"),
        ("transfer", {"base": (None, 70), "transfer": (30, 66)}, None),
        (
            "tune",
            {"base": (None, 70), "online": (50, 68), "tune": (50, 60)},
            r"lost 10\.0 of bAP50 since the base detector\. Lower tune\.rate",
        ),
        # what the stage before has lost is not the last fine-tuning's fault
        ("tune", {"base": (None, 70), "online": (50, 60), "tune": (50, 59)}, None),
        ("online", {"transfer": (40, 70), "online": (35, 70)}, "nAP50 of 40.0 after the stage tra"),
        ("online", {"online": (35, 70)}, None),
    ],
)
def test_advice_names_what_a_stage_has_lost(
    stage: str, stages: dict[str, Any], message: str | None
) -> None:
    lines = advice(stage, figures(**stages))
    if message is None:
        assert lines == []
    else:
        assert len(lines) == 1
        assert re.search(message, lines[0])


def test_commit_is_of_this_checkout_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = results.commit()
    assert found is None or len(found.rstrip("+")) == 10
    elsewhere = tmp_path / "site" / "mini_fsod" / "runs" / "results.py"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.touch()
    monkeypatch.setattr(results, "__file__", str(elsewhere))
    assert results.commit() is None


def test_versions_name_what_figures_depend_on() -> None:
    assert set(results.versions()) == {"mini", "python", "torch", "torchvision", "numpy"}


def test_say_figures_tells_of_a_sample(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"nAP50": None, "bAP50": 61.25, "seconds": 4.0, "images": 500, "of_images": 4952}
    say_figures("base", figures)
    say_figures("base", figures | {"images": 4952})
    assert capsys.readouterr().err == (
        "base: bAP50 61.2 on 500 of 4,952 images in 4 s\nbase: bAP50 61.2 in 4 s\n"
    )
