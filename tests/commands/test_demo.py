"""`mini demo` with trainings of a few iterations: which runs it leaves, and what it says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from mini_fsod.commands import demo
from mini_fsod.config.load import Config, resolve

SHORT = (
    *("base.iterations=3", "transfer.iterations=3", "online.iterations=3", "tune.iterations=3"),
    *("mine.cut=0.001", "views.test=96"),
)


@pytest.mark.slow
def test_the_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def shorter(name: str, sets: Sequence[str]) -> Config:
        return resolve(name, [*sets, *SHORT])

    monkeypatch.setattr(demo, "resolve", shorter)
    monkeypatch.setattr(demo, "SHOWN", 2)
    out = Path("runs/demo")
    demo.run(out, seed=3)
    said = capsys.readouterr().out
    for name in ("TFA", "offline mining", "MINI", "oracle"):
        assert f"\n{name}" in said
    for name in ("train.png", "detections.png", "mine/1-three.png", "results.json"):
        assert f"runs/demo/{name}" in said
        assert (out / name).stat().st_size > 100
    stages = {
        run: json.loads((out.parent / run / "results.json").read_bytes())["stages"]
        for run in ("demo", "demo-offline", "demo-oracle")
    }
    assert list(stages["demo"]) == ["base", "transfer", "mine", "online", "tune"]
    for row in ("demo-offline", "demo-oracle"):
        assert list(stages[row]) == ["base", "transfer", "mine", "online"]
        for stage in ("base", "transfer"):  # the same detectors, not trained again
            sums = {stages[run][stage]["checkpoint_sha256"] for run in ("demo", row)}
            assert len(sums) == 1
    demo.run(out, seed=3)  # what is finished is shown again
    assert said.splitlines()[-8:] == capsys.readouterr().out.splitlines()[-8:]
