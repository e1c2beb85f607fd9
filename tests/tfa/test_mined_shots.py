"""Mined boxes as further shots: which ones are taken, and the second fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers import shapes
from helpers.few_shot import make_run, save_detector
from mini_fsod.data.subsets import is_of
from mini_fsod.files import CHECKPOINT_FILE
from mini_fsod.mining.pairs import Pairs
from mini_fsod.mining.scan import PAIRS
from mini_fsod.runs.run import Run
from mini_fsod.tfa.mined_shots import with_mined_shots
from mini_fsod.tfa.transfer import transfer


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return shapes.write_data(tmp_path / "data")


def run_of(data: Path, folder: Path, **changes: Any) -> Run:
    keys = {"shots__k": 1, "mine__threshold": 0.5, "transfer__mined_shots": 2} | changes
    return make_run(data, folder, **keys)


def save_scan(
    run: Run, folder: Path, xywh: list[Any], image: list[int], score: list[float]
) -> None:
    pairs = Pairs.of(image, [0] * len(image), score, xywh, range(len(image)))
    folder.mkdir(parents=True)
    replace(pairs, files=run.data.mined.files).save(folder / PAIRS)


def novel_boxes(data: Any) -> set[tuple[str, tuple[float, ...]]]:
    rows = np.flatnonzero(is_of(data, (shapes.NOVEL,)))
    return {(data.files[data.boxes.image[r]], tuple(data.boxes.xywh[r])) for r in rows}


def test_with_mined_shots_takes_the_best_of_the_pool(data: Path, tmp_path: Path) -> None:
    run = run_of(data, tmp_path / "run")
    places = [[1, 1, 12, 12], [2, 2, 13, 13], [3, 3, 14, 14], [4, 4, 15, 15]]
    save_scan(run, tmp_path / "scan", places, [4, 5, 6, 7], [0.6, 0.9, 0.4, 0.8])
    shots, found = with_mined_shots(run, tmp_path / "scan", 2)
    assert found == {shapes.NOVEL: 2}
    files = run.data.mined.files
    mined = {(files[5], (2.0, 2.0, 13.0, 13.0)), (files[7], (4.0, 4.0, 15.0, 15.0))}
    assert novel_boxes(shots) == novel_boxes(run.data.shots) | mined
    counts = np.bincount(shots.boxes.label, minlength=3)
    assert counts.tolist() == [3, 3, 3]  # K and the mined ones, of each class


def test_with_mined_shots_leaves_out_what_lies_on_a_shot(data: Path, tmp_path: Path) -> None:
    run = run_of(data, tmp_path / "run")
    ((file, box),) = novel_boxes(run.data.shots)
    image = run.data.mined.files.index(file)
    moved = [box[0] + 1, box[1], box[2], box[3]]
    save_scan(run, tmp_path / "scan", [moved, [1, 1, 6, 6]], [image, (image + 1) % 8], [0.9, 0.8])
    shots, found = with_mined_shots(run, tmp_path / "scan", 5)
    assert found == {shapes.NOVEL: 1}
    assert (file, tuple(moved)) not in novel_boxes(shots)


def test_with_mined_shots_keeps_the_shots_if_nothing_was_mined(data: Path, tmp_path: Path) -> None:
    run = run_of(data, tmp_path / "run")
    save_scan(run, tmp_path / "scan", [[1, 1, 12, 12]], [4], [0.3])
    shots, found = with_mined_shots(run, tmp_path / "scan", 2)
    assert found == {shapes.NOVEL: 0}
    assert novel_boxes(shots) == novel_boxes(run.data.shots)


def test_transfer_fine_tunes_again_with_mined_shots(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run" / "transfer"
    few = {"mine__min_score": 0.01, "mine__threshold": 0.02}  # after 12 iterations
    run = run_of(data, tmp_path / "run", **few)
    save_detector(run, "base")
    folder.mkdir(parents=True)
    figures = transfer(run, folder)
    assert figures["mined_shots"][shapes.NOVEL] > 0
    assert figures["iterations"] == 12
    weights = load_file(folder / CHECKPOINT_FILE)
    assert not (folder / "first" / CHECKPOINT_FILE).exists()

    # the scan of the first detector is there: only the second fine-tuning is repeated
    for path in folder.glob("*.*"):
        path.unlink()
    log = (folder / "first" / "log.jsonl").read_bytes()
    assert transfer(run, folder)["mined_shots"] == figures["mined_shots"]
    repeated = load_file(folder / CHECKPOINT_FILE)
    assert all(torch.equal(weights[name], repeated[name]) for name in weights)
    assert (folder / "first" / "log.jsonl").read_bytes() == log

    once = run_of(data, tmp_path / "once", transfer__mined_shots=0, **few)
    save_detector(once, "base")
    (tmp_path / "once" / "transfer").mkdir(parents=True)
    assert "mined_shots" not in transfer(once, tmp_path / "once" / "transfer")
    plain = load_file(tmp_path / "once" / "transfer" / CHECKPOINT_FILE)
    assert not torch.equal(
        plain["predictor.classifier.weight"], weights["predictor.classifier.weight"]
    )
