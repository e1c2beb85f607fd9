"""Detections beside a score: the same after reading, and damaged files refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_fsod.data.dataset import NO_BOXES, Dataset
from mini_fsod.errors import UserError
from mini_fsod.eval import kept_detections
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.eval.kept_detections import detections_file, read_kept_detections, write_detections

NAMES = ("a.png", "b.png")
DATA = Dataset(
    "coco", Path(), ("car", "owl"), (1, 2), (1, 2), NAMES, np.zeros((2, 2)), NO_BOXES, NAMES
)


def detections(n: int) -> DatasetDetections:
    rng = np.random.default_rng(0)
    xywh = rng.random((n, 4)).astype(np.float32)
    score = rng.random(n).astype(np.float32)
    return DatasetDetections.of(rng.integers(0, 2, n), rng.integers(0, 2, n), xywh, score)


@pytest.mark.parametrize("n", [0, 1, 50])
def test_kept_detections_are_what_was_written(tmp_path: Path, n: int) -> None:
    path = tmp_path / "detections-0.npz"
    written = detections(n)
    write_detections(path, written, DATA)
    read = read_kept_detections(path, DATA)
    assert read is not None
    for name in ("image", "label", "xywh", "score"):
        assert np.array_equal(getattr(read, name), getattr(written, name))
        assert getattr(read, name).dtype == getattr(written, name).dtype


def test_detections_file_is_beside_the_score() -> None:
    assert detections_file(Path("tune/score-1a2b.json")) == Path("tune/detections-1a2b.npz")


def test_read_kept_detections_without_a_file(tmp_path: Path) -> None:
    assert read_kept_detections(tmp_path / "detections-0.npz", DATA) is None


def damaged(**changes: Any) -> bytes:
    columns = {
        "image": np.zeros(2, np.int32),
        "label": np.zeros(2, np.int32),
        "xywh": np.ones((2, 4), np.float32),
        "score": np.ones(2, np.float32),
        "format": np.int64(kept_detections.FORMAT),
        "sizes": np.array([2, 2]),
    } | changes
    content = io.BytesIO()
    np.savez(content, **{k: v for k, v in columns.items() if v is not None})
    return content.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no zip",
        damaged()[:-30],
        damaged(format=np.int64(99)),
        damaged(sizes=np.array([3, 2])),
        damaged(score=None),
        damaged(score=np.ones(3, np.float32)),
        damaged(score=np.ones(2)),
        damaged(score=np.array([np.nan, 1], np.float32)),
        damaged(xywh=np.ones((2, 3), np.float32)),
        damaged(image=np.array([0, 2], np.int32)),
        damaged(label=np.array([-1, 0], np.int32)),
        damaged(image=np.array([{}, {}], dtype=object)),
        damaged().replace(b"{'descr'", b"{'d(\0cr'"),
    ],
)
def test_read_kept_detections_refuses_damaged_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "detections-0.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not the detections on this test set"):
        read_kept_detections(path, DATA)


def test_read_kept_detections_refuses_files_that_unpack_to_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "detections-0.npz"
    write_detections(path, detections(50), DATA)
    monkeypatch.setattr(kept_detections, "KEPT_DETECTIONS_BYTES", 100)
    with pytest.raises(UserError, match="more than 100 bytes"):
        read_kept_detections(path, DATA)
