"""Detections of any image files, equal to those of the evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.tiny_detector import LABELS, SIZES, files, tiny_detector, write_photos
from mini_fsod.data.dataset import NO_BOXES
from mini_fsod.data.folder import read_folder
from mini_fsod.detector.model import Detector
from mini_fsod.eval.inference import detect_all
from mini_fsod.loader.cache import cached_pictures
from mini_fsod.loader.resident import Annotations, Resident
from mini_fsod.loader.schedule import each_once
from mini_fsod.predict import Prediction, Unreadable, pictures_of, predict, upright

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def detector() -> Detector:
    return tiny_detector()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def same(a: Any, b: Any) -> None:
    assert a.size == b.size
    assert a.names == b.names
    np.testing.assert_array_equal(a.xywh, b.xywh)
    np.testing.assert_array_equal(a.scores, b.scores)


# Detections


def test_predict_equals_the_evaluation(tmp_path: Path, detector: Detector, photos: Path) -> None:
    data, _ = read_folder(photos)
    pictures = cached_pictures(data, tmp_path / "cache", 64, 96, workers=1)
    source = Resident(pictures, Annotations.of(NO_BOXES, len(data)), CPU)
    plans = each_once(pictures.sizes, 1, 64, 96, most_canvases=9)
    theirs = detect_all(detector, source.batches, plans, CPU, bf16=False)
    ours = list(predict(detector, LABELS, files(photos), CPU))
    assert len(theirs) > 20
    for n, (found, path) in enumerate(zip(ours, files(photos), strict=True)):
        assert isinstance(found, Prediction)
        mine = theirs.image == n
        assert found.path == path
        assert found.size == SIZES[path.stem]
        np.testing.assert_array_equal(found.xywh, theirs.xywh[mine])
        np.testing.assert_array_equal(found.scores, theirs.score[mine])
        assert found.names == tuple(LABELS.classes[c] for c in theirs.label[mine])
        assert (np.diff(found.scores) <= 0).all()
        assert (found.xyxy <= np.array(2 * found.size) + 1e-3).all()
        assert (found.xyxy >= -1e-3).all()


def test_predict_of_an_image_does_not_depend_on_the_others(
    detector: Detector, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks of any length and in any order, with unreadable files among them."""
    paths = files(photos)
    alone = [next(predict(detector, LABELS, [path], CPU)) for path in paths]
    monkeypatch.setattr("mini_fsod.predict.CHUNK", 2)
    (photos / "bad.png").write_bytes(b"no picture")
    order = [*reversed(paths), photos / "bad.png", photos / "none.png", paths[0]]
    found = list(predict(detector, LABELS, order, CPU))
    for a, b in zip(found[:5], reversed(alone), strict=True):
        same(a, b)
    same(found[7], alone[0])
    assert found[5] == Unreadable(photos / "bad.png", "not a picture of a format that is read.")
    assert isinstance(found[6], Unreadable)
    assert "does not exist" in found[6].why
    assert list(predict(detector, LABELS, [], CPU)) == []


@pytest.mark.parametrize("orientation", [2, 3, 4, 5, 6, 7, 8])
def test_predict_and_upright_apply_the_exif_orientation(
    tmp_path: Path, detector: Detector, photos: Path, orientation: int
) -> None:
    from PIL import ImageOps

    for stem in ("c", "b"):  # b is square; both are small: reducing rounds other bytes when turned
        exif = Image.Exif()
        exif[0x0112] = orientation
        with Image.open(photos / f"{stem}.png") as stored:
            stored.save(tmp_path / "turned.png", exif=exif)
        with Image.open(tmp_path / "turned.png") as turned:
            turned_back = ImageOps.exif_transpose(turned)
        turned_back.save(tmp_path / "upright.png", exif=b"")
        assert np.array_equal(np.asarray(upright(tmp_path / "turned.png")), np.asarray(turned_back))
        a, b = predict(detector, LABELS, [tmp_path / "turned.png", tmp_path / "upright.png"], CPU)
        same(a, b)


# Files


def test_pictures_of_searches_files_and_folders(tmp_path: Path) -> None:
    for name in ("x/1.jpg", "x/deep/2.PNG", "x/notes.txt", "x/.hidden/3.jpg", "y/1.jpg", "z/t"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def names(*paths: str, without: str | None = None) -> tuple[list[str], list[str]]:
        found, failed = pictures_of(
            [tmp_path / p for p in paths], without=tmp_path / without if without else None
        )
        return [p.name for p in found], [f.path.name for f in failed]

    assert names("x") == (["1.jpg", "deep/2.PNG"], [])
    assert names("x/1.jpg", "x/notes.txt") == (["1.jpg", "notes.txt"], [])  # named files are taken
    assert names("x", "x/1.jpg", "x/deep/../1.jpg") == (["1.jpg", "deep/2.PNG"], [])  # once
    assert names("x", "y") == (["x/1.jpg", "x/deep/2.PNG", "y/1.jpg"], [])  # both have a 1.jpg
    assert names("x/1.jpg", "y/1.jpg") == (["x/1.jpg", "y/1.jpg"], [])
    assert names("z", "gone.jpg") == (["gone.jpg"], ["z"])  # an empty folder is reported
    assert names("x", without="x/deep") == (["1.jpg"], [])  # drawings of an earlier run
    assert names("x/deep", without="x") == (["2.PNG"], [])  # the command refuses it later
    assert names("x", without="x") == (["1.jpg", "deep/2.PNG"], [])
