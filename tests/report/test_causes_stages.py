"""What is said of the scores of a stage while a run goes on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mini_fsod.report.causes_stages import stage_findings


def figures(**stages: tuple[float | None, float | None]) -> dict[str, dict[str, Any]]:
    return {s: {"nAP50": nap, "bAP50": bap} for s, (nap, bap) in stages.items()}


@pytest.mark.parametrize(
    ("stage", "stages", "message"),
    [
        ("base", {"base": (None, 4.0)}, "mining depends on it: bAP50 is 4.0"),
        ("base", {"base": (None, 40.0)}, None),
        ("base", {"base": (None, None)}, None),
        ("transfer", {"base": (None, 70), "transfer": (30, 60)}, "transfer lowered .* 10.0 points"),
        ("transfer", {"base": (None, 70), "transfer": (30, 66)}, None),
        (
            "tune",
            {"base": (None, 70), "online": (50, 68), "tune": (50, 60)},
            r"10\.0 points lower than that of the base detector\. Try a lower tune\.rate",
        ),
        # what the stage before has lost is not the last fine-tuning's fault
        ("tune", {"base": (None, 70), "online": (50, 60), "tune": (50, 59)}, None),
        (
            "online",
            {"transfer": (40, 70), "online": (35, 70)},
            "nAP50 was 40.0 after the stage tra",
        ),
        ("online", {"online": (35, 70)}, None),
    ],
)
def test_stage_findings_name_what_a_stage_has_lost(
    stage: str, stages: dict[str, Any], message: str | None
) -> None:
    lines = [finding.line() for finding in stage_findings(stage, figures(**stages))]
    if message is None:
        assert lines == []
    else:
        assert len(lines) == 1
        assert re.search(message, lines[0])
