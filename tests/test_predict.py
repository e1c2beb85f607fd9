"""Pictures in, detections out: the same as in evaluation, for any files a person has."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mini_fsod import checkpoint, draw
from mini_fsod.commands import predict as command
from mini_fsod.commands.predict import result_table, run, to_json
from mini_fsod.data.dataset import NO_BOXES
from mini_fsod.data.folder import read_folder
from mini_fsod.detector.model import Detector
from mini_fsod.detector.settings import (
    BackboneSettings,
    DetectorSettings,
    RoISettings,
    RPNSettings,
    TestSettings,
)
from mini_fsod.draw import BASE_COLOUR, NOVEL_COLOUR
from mini_fsod.errors import UserError
from mini_fsod.eval.inference import detect_all
from mini_fsod.labels import LabelMap
from mini_fsod.loader.cache import cached_pictures
from mini_fsod.loader.resident import Annotations, Resident
from mini_fsod.loader.schedule import each_once
from mini_fsod.predict import Prediction, Unreadable, pictures_of, predict, upright

CPU = torch.device("cpu")
LABELS = LabelMap(("car", "bus"), ("bird",))
SIZES = {"a": (100, 80), "b": (60, 60), "c": (90, 50), "d": (50, 90), "e": (200, 50)}


@pytest.fixture(scope="module")
def detector() -> Detector:
    torch.manual_seed(0)
    settings = DetectorSettings(
        num_classes=3,
        backbone=BackboneSettings("resnet18", norm="group"),
        channels=16,
        rpn=RPNSettings(before_nms_test=50, after_nms_test=20),
        roi=RoISettings(width=16),
        test=TestSettings(min_size=64, max_size=96, detections=20),
    )
    made = Detector(settings)
    with torch.no_grad():
        made.predictor.classifier.weight.normal_(std=0.3)
        made.predictor.boxes.weight.normal_(std=0.2)
    return made.eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, detector: Detector) -> Path:
    """A run whose base is finished."""
    home = tmp_path_factory.mktemp("run")
    checkpoint.save(home / "base" / "checkpoint.safetensors", detector, LABELS, {"weights": None})
    return home


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Noise of five sizes: no two pictures, and no two turns of one, look same_content."""
    folder = tmp_path / "photos"
    folder.mkdir()
    random = np.random.RandomState(0)
    for stem, (width, height) in SIZES.items():
        small = random.randint(0, 256, (4, 5, 3)).astype(np.uint8)
        Image.fromarray(small).resize((width, height)).save(folder / f"{stem}.png")
    return folder


def files(folder: Path) -> list[Path]:
    return [folder / f"{stem}.png" for stem in SIZES]


def same(a: Any, b: Any) -> None:
    assert a.size == b.size
    assert a.names == b.names
    np.testing.assert_array_equal(a.xywh, b.xywh)
    np.testing.assert_array_equal(a.scores, b.scores)


# Detections


def test_detections_are_those_of_the_evaluation(
    tmp_path: Path, detector: Detector, photos: Path
) -> None:
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


def test_a_picture_does_not_depend_on_the_others(
    detector: Detector, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks of any length, in any order; and one that fails leaves the others alone."""
    paths = files(photos)
    alone = [next(predict(detector, LABELS, [path], CPU)) for path in paths]
    monkeypatch.setattr("mini_fsod.predict.CHUNK", 2)
    (photos / "bad.png").write_bytes(b"no picture")
    order = [*reversed(paths), photos / "bad.png", photos / "none.png", paths[0]]
    found = list(predict(detector, LABELS, order, CPU))
    for a, b in zip(found[:5], reversed(alone), strict=True):
        same(a, b)
    same(found[7], alone[0])
    assert found[5] == Unreadable(photos / "bad.png", "not a picture that can be read.")
    assert isinstance(found[6], Unreadable)
    assert "does not exist" in found[6].why
    assert list(predict(detector, LABELS, [], CPU)) == []


@pytest.mark.parametrize("orientation", [2, 3, 4, 5, 6, 7, 8])
def test_pictures_are_meant_as_viewers_show_them(
    tmp_path: Path, detector: Detector, photos: Path, orientation: int
) -> None:
    from PIL import ImageOps

    for stem in ("c", "b"):  # b is square; both are small: reducing rounds other bytes when turned
        exif = Image.Exif()
        exif[0x0112] = orientation
        with Image.open(photos / f"{stem}.png") as stored:
            stored.save(tmp_path / "turned.png", exif=exif)
        with Image.open(tmp_path / "turned.png") as turned:
            seen = ImageOps.exif_transpose(turned)
        seen.save(tmp_path / "seen.png", exif=b"")
        assert np.array_equal(np.asarray(upright(tmp_path / "turned.png")), np.asarray(seen))
        a, b = predict(detector, LABELS, [tmp_path / "turned.png", tmp_path / "seen.png"], CPU)
        same(a, b)


# Files


def test_files_and_folders_are_searched(tmp_path: Path) -> None:
    for name in ("x/1.jpg", "x/deep/2.PNG", "x/notes.txt", "x/.hidden/3.jpg", "y/1.jpg", "z/t"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def names(*places: str, without: str | None = None) -> tuple[list[str], list[str]]:
        found, failed = pictures_of(
            [tmp_path / p for p in places], without=tmp_path / without if without else None
        )
        return [p.name for p in found], [f.path.name for f in failed]

    assert names("x") == (["1.jpg", "deep/2.PNG"], [])
    assert names("x/1.jpg", "x/notes.txt") == (["1.jpg", "notes.txt"], [])  # named: tried
    assert names("x", "x/1.jpg", "x/deep/../1.jpg") == (["1.jpg", "deep/2.PNG"], [])  # once
    assert names("x", "y") == (["x/1.jpg", "x/deep/2.PNG", "y/1.jpg"], [])  # both have a 1.jpg
    assert names("x/1.jpg", "y/1.jpg") == (["x/1.jpg", "y/1.jpg"], [])
    assert names("z", "gone.jpg") == (["gone.jpg"], ["z"])  # an empty folder is told
    assert names("x", without="x/deep") == (["1.jpg"], [])  # drawings of an earlier time
    assert names("x/deep", without="x") == (["2.PNG"], [])  # which are refused later
    assert names("x", without="x") == (["1.jpg", "deep/2.PNG"], [])


# The command


def test_json_has_every_detection(
    saved: Path, photos: Path, detector: Detector, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(saved, [photos], True, None, None, "cpu")
    records = json.loads(capsys.readouterr().out)
    theirs = list(predict(detector, LABELS, files(photos), CPU))
    assert [r["file"] for r in records] == [str(path) for path in files(photos)]
    assert [(r["width"], r["height"]) for r in records] == list(SIZES.values())
    for record, prediction in zip(records, theirs, strict=True):
        assert isinstance(prediction, Prediction)
        assert len(record["detections"]) == len(prediction.scores)
        for d, name, box, score in zip(
            record["detections"],
            prediction.names,
            prediction.xywh,
            prediction.scores,
            strict=True,
        ):
            assert d["category"] == name
            np.testing.assert_allclose(d["bbox"], box, atol=0.0006)
            assert abs(d["score"] - score) < 1e-6
    assert run(saved, [photos / "a.png"], True, None, 0.4, "cpu")
    (record,) = json.loads(capsys.readouterr().out)
    first = theirs[0]
    assert isinstance(first, Prediction)
    assert 0 < len(record["detections"]) < len(first.scores)
    assert all(d["score"] >= 0.4 for d in record["detections"])


def by_hand(path: Path = Path("a.jpg")) -> Prediction:
    return Prediction(
        path,
        (200, 100),
        np.array([[10, 20, 60, 50], [100, 30, 50, 40], [5, 5, 9, 9]], dtype=float),
        np.array([2, 0, 0]),
        np.array([0.91, 0.62, 0.30]),
        ("bird", "car", "car"),
    )


def test_the_table_counts_by_class(capsys: pytest.CaptureFixture[str]) -> None:
    from mini_fsod import console

    nothing = Prediction(Path("b.jpg"), (9, 9), np.zeros((0, 4)), np.zeros(0, int), np.zeros(0), ())
    console.table(result_table([by_hand(), nothing], LABELS, 0.5))
    lines = [re.sub(r" {2,}", "|", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "2 pictures|detections of score 0.5 and above (--score)|best",
        "a.jpg|1 bird, 1 car|0.91",
        "b.jpg|none|-",
        "all|1 bird, 1 car",
    ]
    assert to_json(by_hand())["detections"][0] == {
        "category": "bird",
        "bbox": [10.0, 20.0, 60.0, 50.0],
        "score": 0.91,
    }


def test_what_cannot_be_read_is_told_and_the_rest_is_done(
    saved: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "bad.jpg").write_bytes(b"\xff\xd8\xff")
    whole = (photos / "a.png").read_bytes()
    (photos / "cut.png").write_bytes(whole[: len(whole) // 2])
    assert not run(saved, [photos, photos / "gone.jpg"], True, None, None, "cpu")
    said = capsys.readouterr()
    assert len(json.loads(said.out)) == 5
    for name in ("bad.jpg", "cut.png", "gone.jpg"):
        assert re.search(f"Error .*{name}: ", said.err), name
    assert not run(saved, [photos / "gone.jpg"], True, None, None, "cpu")
    assert json.loads(capsys.readouterr().out) == []
    assert not run(saved, [photos / "gone.jpg"], False, None, None, "cpu")


def test_pictures_of_other_kinds_are_noted(
    saved: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x.heic", "y.GIF"):
        (photos / name).write_bytes(b"\0\0\0\x18ftypheic")
    assert run(saved, [photos], True, None, None, "cpu")
    said = capsys.readouterr()
    assert len(json.loads(said.out)) == len(SIZES)
    note = "2 files are pictures of kinds that are not read: 1 x .gif, 1 x .heic; save them as JPEG"
    assert note in said.err
    assert not run(saved, [photos / "x.heic"], True, None, None, "cpu")
    assert "x.heic: a picture of a kind that is not read (.heic)." in capsys.readouterr().err


def test_drawings_show_what_is_above_the_score(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, saved: Path
) -> None:
    def known(*_: Any) -> Any:
        return iter([by_hand(tmp_path / "white.png")])

    Image.new("RGB", (200, 100), "white").save(tmp_path / "white.png")
    captions: list[str] = []

    def draw_boxes(picture: Image.Image, boxes: Any, words: list[str], colours: Any) -> Any:
        captions[:] = words
        return draw.draw_boxes(picture, boxes, words, colours)

    monkeypatch.setattr(command, "predict", known)
    monkeypatch.setattr(command, "draw_boxes", draw_boxes)
    out = tmp_path / "out"
    for score, left in ((None, {NOVEL_COLOUR, BASE_COLOUR}), (0.7, {NOVEL_COLOUR}), (0.95, set())):
        assert run(saved, [tmp_path / "white.png"], False, out, score, "cpu")
        with Image.open(out / "white.png") as drawn:
            assert drawn.size == (800, 400)  # enlarged for captions, all same_content
            pixels = np.asarray(drawn)
        shown = {c for c in (NOVEL_COLOUR, BASE_COLOUR) if (pixels == c).all(-1).any()}
        assert shown == left
        assert captions == ["bird 0.91", "car 0.62"][: len(left)]


@pytest.mark.slow
def test_drawings_keep_names_and_replace_only_drawings(
    tmp_path: Path, saved: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Image.open(photos / "a.png") as picture:
        (photos / "more").mkdir()
        for name in ("more/x.JPG", "y.bmp", "z.webp", "w.avif", "v.tif", "u.jpeg"):
            picture.convert("RGB").save(photos / name)
    before = {path: path.read_bytes() for path in photos.rglob("*") if path.is_file()}
    out = photos / "drawn"
    for _ in range(2):  # the second time the drawings are neither searched nor in the way
        assert run(saved, [photos], False, out, 0.3, "cpu")
        assert {path: path.read_bytes() for path in before} == before
        made = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
        assert made == sorted(
            [f"{s}.png" for s in SIZES]
            + ["more/x.JPG", "y.bmp.png", "z.webp", "w.avif", "v.tif", "u.jpeg"]
        )
    capsys.readouterr()
    refused: list[Callable[[], Any]] = [
        lambda: run(saved, [photos], False, photos, None, "cpu"),
        lambda: run(saved, [photos / "a.png"], False, photos, None, "cpu"),
        lambda: run(saved, [out / "a.png"], False, out, None, "cpu"),  # a drawing, but a source
        lambda: run(saved, [tmp_path / "elsewhere" / "a.png"], False, photos, None, "cpu"),
    ]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.png").write_bytes((photos / "b.png").read_bytes())
    for call in refused:
        with pytest.raises(UserError, match=r"is there already and would be lost"):
            call()
    with pytest.raises(UserError, match="is no folder"):
        run(saved, [photos], False, photos / "a.png", None, "cpu")
    assert {path: path.read_bytes() for path in before} == before


def test_a_score_below_the_detectors_own_is_told(
    saved: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(saved, [photos / "a.png"], False, None, 0.01, "cpu")
    assert "nothing below a score of 0.05" in capsys.readouterr().err
