"""Runs that end early because going on would be wasted time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from helpers import shapes
from helpers.tiny_run import config, copy_runs, run, short_config, stamps
from mini_fsod.config.load import resolve
from mini_fsod.config.schema import Config
from mini_fsod.errors import HopelessError
from mini_fsod.runs import stages
from mini_fsod.runs.hopeless import why_hopeless

POOR = {"bAP50": 0.5, "images": 100, "iterations": 60, "training_seconds": 840.0}
NO_PAIRS = {"images": 300, "pairs": 0}
NO_BOXES = {"candidates": 40, "kept": 0, "best_score": 0.31}


def photos(*sets: str) -> Config:
    return resolve("photos", sets)


@pytest.mark.parametrize(
    ("stage", "figures", "sets", "what", "fix"),
    [
        (
            "base",
            POOR,
            (),
            r"bAP50 0\.5 on 100 test images; mining needs at least 5\. It trained for 60 "
            r"iterations \(14:00 min\), which showed each of 300 pictures 3\.2 times",
            r"raise base\.minutes \(it was 20\)",
        ),
        ("base", POOR, ("base.iterations=60",), "60 iterations", r"raise base\.iterations \(it w"),
        ("base", POOR | {"iterations": 600}, (), "32.0 times", r"base\.rate \(it was 0\.02\)"),
        ("base", POOR, ("detector.weights=null",), "60 iter", r"detector\.weights=IMAGENET1K_V2"),
        ("base", {"bAP50": 4.9, "images": 1}, (), "on 1 test image;", r"base\.checkpoint is a"),
        (
            "scan",
            NO_PAIRS,
            (),
            r"in none of 300 images has .* a score of 0\.05 or more\. Its nAP50 is 0\.1",
            r"transfer\.iterations \(\d[\d,]* now\), or lower mine\.min_score \(0\.05",
        ),
        (
            "scan",
            NO_PAIRS,
            ("mine.detections=other.json",),
            "other.json has no box of a new class",
            "check the class names",
        ),
        (
            "mine",
            NO_BOXES,
            (),
            r"none of 40 candidates \(the best has a score of 0\.31\)",
            r"mine\.alpha \(it was 1\.5\) or mine\.mean_score \(0\.75\)",
        ),
        ("mine", NO_BOXES, ("mine.threshold=0.9",), "none of 40", r"Lower mine\.threshold, or"),
        ("mine", {"given": "old/pool.json"}, (), r"old/pool\.json is empty", r"Set mine\.pool"),
    ],
)
def test_why_hopeless_names_cause_evidence_and_next_step(
    stage: str, figures: dict[str, Any], sets: tuple[str, ...], what: str, fix: str
) -> None:
    known = {"transfer": {"nAP50": 0.1}, stage: figures}
    found = why_hopeless(stage, known, photos(*sets), pictures=300, pool=0)
    assert found is not None
    assert re.search(what, found.what), found.what
    assert re.search(fix, found.fix), found.fix


@pytest.mark.parametrize(
    ("stage", "figures", "pool"),
    [
        ("base", {"bAP50": 5.0, "images": 100}, 0),
        ("base", {"bAP50": None, "images": 0}, 0),  # no test set
        ("transfer", {"nAP50": 0.0, "bAP50": 0.0}, 0),
        ("scan", {"images": 300, "pairs": 1}, 0),
        ("scan", {"images": 0, "pairs": 0, "extra_images": 50, "extra_pairs": 1}, 0),
        ("mine", NO_BOXES, 3),  # a person has added them
        ("online", {"nAP50": 0.0, "bAP50": 0.0}, 0),
    ],
)
def test_why_hopeless_allows_what_can_be_built_on(
    stage: str, figures: dict[str, Any], pool: int
) -> None:
    assert why_hopeless(stage, {stage: figures}, photos(), 300, pool) is None


def test_run_ends_after_a_base_detector_that_learnt_nothing(data: Path, finished: Path) -> None:
    """Its result and its score stay, so the same command ends at once."""
    results = shapes.json_of(finished / "results.json")["stages"]
    assert results["base"]["bAP50"] < 5  # twelve iterations
    for _ in range(2):
        before = stamps(finished.parent / ".stages")
        with pytest.raises(HopelessError, match="has learnt next to nothing: bAP50") as stop:
            run(config(data), finished.parent / "alone", anyway=False)
        assert "to go on with it, add --anyway" in stop.value.fix
        assert stop.value.stage == "base"  # type: ignore[attr-defined]  # for studies
        assert stamps(finished.parent / ".stages") == before
    kept = shapes.json_of(finished.parent / "alone" / "results.json")["stages"]
    assert kept == {"base": results["base"]}


def test_run_up_to_a_poor_base_detector_is_no_error(
    data: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = run(config(data), copied, last="base", anyway=False)
    assert results["stages"]["base"]["bAP50"] < 5
    assert "has learnt next to nothing" in capsys.readouterr().err


def test_run_ends_where_nothing_was_mined(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a person has added a box to the pool, or the run is to go on anyway."""
    monkeypatch.setattr("mini_fsod.runs.hopeless.LEAST_BAP50", 0.0)
    out = copy_runs(whole, tmp_path)
    none = short_config(data, mine__threshold=0.99)
    with pytest.raises(HopelessError, match="Nothing was mined: none of") as stop:
        stages.run(none, out)
    assert "Lower mine.threshold" in stop.value.fix
    assert set(shapes.json_of(out / "results.json")["stages"]) >= {"base", "transfer", "mine"}
    assert "online" in stages.run(none, out, last="online", anyway=True)["stages"]

    box = shapes.json_of(whole / "pool.json")
    shapes.rewrite(out / "pool.json", lambda pool: pool.update(annotations=box["annotations"]))
    assert "online" in stages.run(none, out, last="online")["stages"]


def test_run_ends_without_candidates(
    data: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mini_fsod.runs.hopeless.LEAST_BAP50", 0.0)
    out = copy_runs(whole, tmp_path)
    with pytest.raises(HopelessError, match=r"There are no candidates: .* 0\.95 or more"):
        stages.run(short_config(data, mine__min_score=0.95), out)


# What is kept already


def test_find_results_names_what_a_run_would_find(data: Path, copied_whole: Path) -> None:
    before = stamps(copied_whole.parent)
    _, found = stages.find_results(short_config(data), copied_whole)
    assert [*found] == ["base", "transfer", "scan", "mine", "online", "tune"]
    for stage, folder in found.items():
        assert folder == (copied_whole / stage).resolve()
    _, found = stages.find_results(short_config(data, transfer__iterations=3), copied_whole)
    kept = {stage for stage, folder in found.items() if folder is not None}
    assert kept == {"base", "scan", "mine"}  # the detections are another tool's
    _, found = stages.find_results(short_config(data), copied_whole, first="mine", last="online")
    assert [folder is not None for folder in found.values()] == [True, True, True, False, False]
    assert stamps(copied_whole.parent) == before


def test_find_results_follows_the_pool(data: Path, copied_whole: Path) -> None:
    """An edited pool counts; a run beside it finds what the mined pool gave."""
    shapes.rewrite(copied_whole / "pool.json", lambda pool: pool["annotations"].pop())
    _, found = stages.find_results(short_config(data), copied_whole)
    assert found["mine"] is not None
    assert found["online"] is None
    _, beside = stages.find_results(short_config(data), copied_whole.parent / "new")
    assert all(beside.values())
    assert not (copied_whole.parent / "new").exists()
