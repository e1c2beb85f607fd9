"""`mini demo` with trainings of a few iterations, and `mini demo-data`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.shapes import json_of
from mini_fsod.config import load
from mini_fsod.config.load import Config

SHORT = (
    *("base.iterations=3", "transfer.iterations=3", "online.iterations=3", "tune.iterations=3"),
    *("mine.min_score=0.001", "views.test=96"),
)


def test_demo_asks_for_mini_and_two_ablations(
    mini: Any, stages: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    figures = {"nAP50": 1.0, "bAP50": 2.0}
    stages.results = {"stages": dict.fromkeys(("transfer", "online", "tune"), figures)}
    monkeypatch.setattr("mini_fsod.commands.demo.mined_table", lambda _: "mined boxes")
    monkeypatch.setattr("mini_fsod.commands.demo.check_command", lambda *_, **__: True)
    monkeypatch.setattr("mini_fsod.demo.write_demo_data", lambda *_, **__: True)
    monkeypatch.setattr("mini_fsod.console.table", lambda _: None)
    code, _, err = mini("demo", "--seed", 3, "-o", tmp_path / "out")
    assert code == 0, err
    whole, offline, oracle = stages.calls
    assert [call.out.name for call in stages.calls] == ["out", "out-offline", "out-oracle"]
    assert [call.last for call in stages.calls] == [None, "online", "online"]
    sets = [f"data.root={tmp_path / 'demo-data'}", "seed=3", "shots.seed=3"]
    assert whole.config == load.resolve("demo", sets)
    assert not offline.config.online.teacher
    assert not offline.config.online.oracle
    assert oracle.config.online.oracle
    for other in (offline, oracle):  # what the stages before re-training depend on is the same
        assert other.config.model_copy(update={"online": whole.config.online}) == whole.config


@pytest.mark.slow
def test_demo_leaves_pictures_and_comparable_runs(
    mini: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    resolve = load.resolve

    def shorter(name: str, sets: Sequence[str]) -> Config:
        return resolve(name, [*sets, *SHORT])

    monkeypatch.setattr(load, "resolve", shorter)
    # so short a training teaches nothing
    monkeypatch.setattr("mini_fsod.runs.stages.why_hopeless", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    code, said, err = mini("demo", "--seed", 3)
    assert code == 0, err
    out = Path("runs/demo")
    for name in ("TFA", "offline mining", "MINI", "oracle"):
        assert f"\n{name}" in said
    files = ("train.png", "report.html", "detections.png", "mine/1-three.png", "results.json")
    for name in files:
        assert f"runs/demo/{name}" in said
        assert (out / name).stat().st_size > 100
    stages = {
        run: json_of(out.parent / run / "results.json")["stages"]
        for run in ("demo", "demo-offline", "demo-oracle")
    }
    assert list(stages["demo"]) == ["base", "transfer", "scan", "mine", "online", "tune"]
    for row in ("demo-offline", "demo-oracle"):
        assert list(stages[row])[-1] == "online"
        for stage in {"base", "transfer"} & {*stages[row]}:  # the same detectors, not trained again
            assert stages[row][stage] == stages["demo"][stage]
    assert said.splitlines()[-8:] == mini("demo", "--seed", 3)[1].splitlines()[-8:]


def test_demo_data_is_written_once(mini: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, False])
    monkeypatch.setattr("mini_fsod.demo.write_demo_data", lambda *_, **__: next(answers))
    assert "demo data written to digits" in mini("demo-data", "digits")[2]
    assert "demo data exists in digits" in mini("demo-data", "digits")[2]


def test_demo_data_has_as_many_pictures_as_asked_for(mini: Any, tmp_path: Path) -> None:
    pytest.importorskip("skimage", reason="needs mini-fsod[demo]")
    pytest.importorskip("sklearn", reason="needs mini-fsod[demo]")
    code, _, err = mini("demo-data", tmp_path / "digits", "--scale", "0.01")
    assert code == 0, err
    assert len(list((tmp_path / "digits/train").iterdir())) == 10
    code, _, err = mini("demo-data", tmp_path / "digits", "--scale", "0")
    assert code == 2
    assert "0 < scale" in err
