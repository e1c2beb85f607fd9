"""Detections in files, folders, PIL images and arrays, equal to those of the evaluation."""

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
from mini_fsod.errors import UserError
from mini_fsod.eval.inference import detect_all
from mini_fsod.loader.cache import cached_pictures
from mini_fsod.loader.resident import Annotations, Resident
from mini_fsod.loader.schedule import each_once
from mini_fsod.predict.model import Model
from mini_fsod.predict.pictures import Unreadable, upright
from mini_fsod.predict.prediction import Prediction
from mini_fsod.predict.torch_model import TorchModel

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> Model:
    return TorchModel(tiny_detector(), LABELS, Path("tiny.safetensors"), "cpu")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def same(a: Any, b: Any) -> None:
    assert a.size == b.size
    assert a.names == b.names
    np.testing.assert_array_equal(a.xywh, b.xywh)
    np.testing.assert_array_equal(a.scores, b.scores)


# Detections


def test_predict_equals_the_evaluation(tmp_path: Path, model: TorchModel, photos: Path) -> None:
    data, _ = read_folder(photos)
    pictures = cached_pictures(data, tmp_path / "cache", 64, 96, workers=1)
    source = Resident(pictures, Annotations.of(NO_BOXES, len(data)), CPU)
    plans = each_once(pictures.sizes, 1, 64, 96, most_canvases=9)
    theirs = detect_all(model.detector, source.batches, plans, CPU, bf16=model.bf16)
    ours = list(model.predict_files(files(photos)))
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
        assert (found.boxes <= np.array(2 * found.size) + 1e-3).all()
        assert (found.boxes >= -1e-3).all()


def test_predict_of_an_image_does_not_depend_on_the_others(
    model: TorchModel, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks of any length and in any order, with unreadable files among them."""
    paths = files(photos)
    alone = [next(model.predict_files([path])) for path in paths]
    monkeypatch.setattr("mini_fsod.predict.model.CHUNK", 2)
    (photos / "bad.png").write_bytes(b"no picture")
    order = [*reversed(paths), photos / "bad.png", photos / "none.png", paths[0]]
    found = list(model.predict_files(order))
    for a, b in zip(found[:5], reversed(alone), strict=True):
        same(a, b)
    same(found[7], alone[0])
    assert found[5] == Unreadable(photos / "bad.png", "not a picture in a supported format.")
    assert isinstance(found[6], Unreadable)
    assert "does not exist" in found[6].why
    assert list(model.predict_files([])) == []


@pytest.mark.parametrize("orientation", [2, 3, 4, 5, 6, 7, 8])
def test_predict_and_upright_apply_the_exif_orientation(
    tmp_path: Path, model: TorchModel, photos: Path, orientation: int
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
        a, b = model.predict_files([tmp_path / "turned.png", tmp_path / "upright.png"])
        same(a, b)


# Python


def test_predict_takes_paths_images_and_arrays(model: Model, photos: Path) -> None:
    path = photos / "a.png"
    found = model.predict(path, score=0.3)
    assert isinstance(found, Prediction)
    assert len(found) > 0
    with Image.open(path) as image:
        array = np.asarray(image)
        for other in (str(path), image, array):
            same(model.predict(other, score=0.3), found)
        assert model.predict(image).path is None
        grey = image.convert("L")
        same(model.predict(np.asarray(grey), 0), model.predict(grey, 0))
        same(model.predict(grey, 0), model.predict(grey.convert("RGB"), 0))
    both = model.predict([path, array], score=0.2)
    assert isinstance(both, list)
    assert len(both) == 2
    same(both[0], both[1])
    assert len(both[0]) >= len(found)
    assert model.predict([]) == []


def test_predict_scores_are_a_threshold(model: Model, photos: Path) -> None:
    every = model.predict(photos / "a.png", score=0)
    some = model.predict(photos / "a.png", score=0.4)
    assert 0 < len(some) < len(every)
    same(every.above(0.4), some)
    assert every.scores.min() >= model.score_threshold
    with pytest.raises(UserError, match=r"score is 50"):
        model.predict(photos / "a.png", score=50)


def test_predict_of_large_arrays_reduces_them_as_files(model: Model, tmp_path: Path) -> None:
    array = np.random.RandomState(1).randint(0, 256, (150, 300, 3)).astype(np.uint8)
    Image.fromarray(array).save(tmp_path / "large.png")
    same(model.predict(array, score=0), model.predict(tmp_path / "large.png", score=0))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((4, 4, 3)), "array has the type float64"),
        (np.zeros((4, 4, 4), np.uint8), r"shape \(4, 4, 4\)"),
        (np.zeros((0, 4, 3), np.uint8), "array is empty"),
        (3, "int is not a picture"),
        ("none.jpg", "does not exist"),
        (".", "is a folder"),
    ],
)
def test_predict_refuses_what_is_no_picture(model: Model, image: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        model.predict(image)


def test_predict_folder_yields_by_name_and_warns_of_unreadable_files(
    model: Model, photos: Path
) -> None:
    (photos / "b2.png").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match=r"b2\.png: not a picture"):
        found = list(model.predict_folder(photos, score=0.3))
    assert [p.path for p in found] == files(photos)
    same(found[0], model.predict(photos / "a.png", score=0.3))


def test_model_shows_what_it_is(model: Model) -> None:
    assert repr(model) == "TorchModel(tiny.safetensors, on cpu: car, bus, bird)"
    assert model.names == ("car", "bus", "bird")
