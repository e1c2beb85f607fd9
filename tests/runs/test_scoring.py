"""Scores on the test set, or on a sample of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers import shapes
from helpers.few_shot import DETECTOR
from helpers.run_data import run_data
from mini_fsod.data.subsets import spread
from mini_fsod.loader.cache import image_sizes
from mini_fsod.runs.data import RunData
from mini_fsod.runs.detectors import new_detector
from mini_fsod.runs.scoring import (
    TIMED_ELSEWHERE,
    batches_at_test,
    score_test_set,
    scoring_seconds,
)


def data_of(root: Path, **changes: Any) -> RunData:
    return run_data(root, **{f"detector__{k}": v for k, v in DETECTOR.items()}, **changes)


def test_score_test_set_says_how_many_images_it_saw(tmp_path: Path) -> None:
    data = data_of(shapes.write_data(tmp_path / "data"), data__test_most=2)
    detector = new_detector(data.config, len(data.labels.classes))
    of_run = data.config, data, detector, data.labels, False
    scores = score_test_set(*of_run)
    assert scores["images"] == 2
    assert data.test_set is not None
    assert scores["of_images"] == len(data.test_set)
    assert scoring_seconds(*of_run) > 0


def test_score_test_set_without_one_has_no_scores(tmp_path: Path) -> None:
    data = data_of(shapes.write_data(tmp_path / "data", ("train",)))
    detector = new_detector(data.config, len(data.labels.classes))
    of_run = data.config, data, detector, data.labels, False
    scores = score_test_set(*of_run)
    assert (scores["AP50"], scores["images"], scores["of_images"]) == (None, 0, 0)
    assert scoring_seconds(*of_run) == 0


def test_scoring_seconds_grow_with_the_test_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the pixels of all its batches; the start counts only once."""
    ticks = iter([0.0, 100.0, 100.0, 103.0])
    monkeypatch.setattr("mini_fsod.runs.scoring.clock", lambda: next(ticks))
    data = data_of(shapes.write_data(tmp_path / "data"))
    detector = new_detector(data.config, len(data.labels.classes))
    assert data.test is not None
    pixels = [
        sum(
            plan.batch * plan.canvas[0] * plan.canvas[1]
            for plan in batches_at_test(data.config, image_sizes(images), "cpu")
        )
        for images in (data.test, spread(data.test, TIMED_ELSEWHERE))
    ]
    seconds = scoring_seconds(data.config, data, detector, data.labels, False)
    assert seconds == pytest.approx(3.0 * pixels[0] / pixels[1])
