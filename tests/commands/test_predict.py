"""`mini predict`: JSON, the table, drawings, and images that cannot be read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.tiny_detector import LABELS, SIZES, files, tiny_detector, write_photos
from mini_fsod import checkpoint, console, draw
from mini_fsod.commands.predict import detections_table
from mini_fsod.draw import BASE_COLOUR, NOVEL_COLOUR
from mini_fsod.files import CHECKPOINT_FILE
from mini_fsod.predict.prediction import Prediction
from mini_fsod.predict.torch_model import TorchModel


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint."""
    folder = tmp_path_factory.mktemp("stage")
    checkpoint.save(folder / CHECKPOINT_FILE, tiny_detector(), LABELS, {"weights": None})
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def prediction(path: Path = Path("a.jpg")) -> Prediction:
    return Prediction(
        path,
        (200, 100),
        np.array([[10, 20, 60, 50], [100, 30, 50, 40], [5, 5, 9, 9]], dtype=float),
        np.array([2, 0, 0]),
        np.array([0.91, 0.62, 0.30]),
        ("bird", "car", "car"),
    )


def test_predict_prints_every_detection_as_json(saved: Path, photos: Path, mini: Any) -> None:
    code, out, err = mini("predict", saved, photos, "--json", "--device", "cpu")
    assert code == 0, err
    assert f"detector: {saved / CHECKPOINT_FILE}" in err
    records = json.loads(out)
    model = TorchModel(tiny_detector(), LABELS, saved, "cpu")
    expected = list(model.predict_files(files(photos)))
    assert [r["file"] for r in records] == [str(path) for path in files(photos)]
    assert [(r["width"], r["height"]) for r in records] == list(SIZES.values())
    for record, found in zip(records, expected, strict=True):
        assert isinstance(found, Prediction)
        assert [d["category"] for d in record["detections"]] == list(found.names)
        boxes = np.reshape([d["bbox"] for d in record["detections"]], (-1, 4))
        np.testing.assert_allclose(boxes, found.xywh, atol=0.0006)
        scores = [d["score"] for d in record["detections"]]
        np.testing.assert_allclose(scores, found.scores, atol=1e-6)


def test_predict_score_is_a_threshold_for_json_too(saved: Path, photos: Path, mini: Any) -> None:
    words = ["predict", saved, photos / "a.png", "--json", "--device", "cpu"]
    (every,) = json.loads(mini(*words)[1])
    (above,) = json.loads(mini(*words, "--score", 0.4)[1])
    expected = [d for d in every["detections"] if d["score"] >= 0.4]
    assert 0 < len(expected) < len(every["detections"])
    assert above["detections"] == expected


def test_detections_table_counts_by_class(capsys: pytest.CaptureFixture[str]) -> None:
    empty = Prediction(Path("b.jpg"), (9, 9), np.zeros((0, 4)), np.zeros(0, int), np.zeros(0), ())
    console.table(detections_table([prediction(), empty], LABELS, 0.5))
    lines = [re.sub(r" {2,}", "|", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "2 images|detections of score 0.5 or more (--score)|best score",
        "a.jpg|1 bird, 1 car|0.91",
        "b.jpg|none|-",
        "all|1 bird, 1 car",
    ]


def test_predict_reports_unreadable_images_and_processes_the_rest(
    saved: Path, photos: Path, mini: Any
) -> None:
    (photos / "bad.jpg").write_bytes(b"\xff\xd8\xff")
    whole = (photos / "a.png").read_bytes()
    (photos / "cut.png").write_bytes(whole[: len(whole) // 2])
    words = ["--device", "cpu"]
    code, out, err = mini("predict", saved, photos, photos / "gone.jpg", "--json", *words)
    assert code == 2
    assert len(json.loads(out)) == len(SIZES)
    for name in ("bad.jpg", "cut.png", "gone.jpg"):
        assert re.search(f"Error .*{name}: ", err), name
    code, out, _ = mini("predict", saved, photos / "gone.jpg", "--json", *words)
    assert (code, json.loads(out)) == (2, [])
    assert mini("predict", saved, photos / "gone.jpg", *words)[:2] == (2, "")


def test_predict_notes_images_of_formats_it_cannot_read(
    saved: Path, photos: Path, mini: Any
) -> None:
    for name in ("x.heic", "y.GIF"):
        (photos / name).write_bytes(b"\0\0\0\x18ftypheic")
    code, out, err = mini("predict", saved, photos, "--json", "--device", "cpu")
    assert code == 0
    assert len(json.loads(out)) == len(SIZES)
    assert "1 x .gif, 1 x .heic" in err
    code, _, err = mini("predict", saved, photos / "x.heic", "--device", "cpu")
    assert code == 2
    assert re.search(r"Error .*x\.heic: .*\(\.heic\)\.", err)


def test_predict_draws_detections_above_the_score(
    tmp_path: Path, mini: Any, monkeypatch: pytest.MonkeyPatch, saved: Path
) -> None:
    Image.new("RGB", (200, 100), "white").save(tmp_path / "white.png")
    captions: list[str] = []

    def draw_boxes(image: Image.Image, boxes: Any, texts: Sequence[str], colours: Any) -> Any:
        captions[:] = texts
        return draw.draw_boxes(image, boxes, texts, colours)

    monkeypatch.setattr(
        "mini_fsod.predict.model.Model.predict_files",
        lambda *_: iter([prediction(tmp_path / "white.png")]),
    )
    monkeypatch.setattr("mini_fsod.commands.drawings.draw_boxes", draw_boxes)
    out = tmp_path / "out"
    for score, colours in (
        ([], {NOVEL_COLOUR, BASE_COLOUR}),
        (["--score", 0.7], {NOVEL_COLOUR}),
        (["--score", 0.95], set()),
    ):
        words = ["--draw", out, "--device", "cpu", *score]
        code, _, err = mini("predict", saved, tmp_path / "white.png", *words)
        assert code == 0, err
        with Image.open(out / "white.png") as drawn:
            assert drawn.size == (800, 400)  # enlarged, so that captions fit
            pixels = np.asarray(drawn)
        drawn_colours = {c for c in (NOVEL_COLOUR, BASE_COLOUR) if (pixels == c).all(-1).any()}
        assert drawn_colours == colours
        assert captions == ["bird 0.91", "car 0.62"][: len(colours)]


@pytest.mark.slow
def test_predict_draw_keeps_names_and_overwrites_drawings_only(
    tmp_path: Path, saved: Path, photos: Path, mini: Any
) -> None:
    with Image.open(photos / "a.png") as image:
        (photos / "more").mkdir()
        for name in ("more/x.JPG", "y.bmp", "z.webp", "w.avif", "v.tif", "u.jpeg"):
            image.convert("RGB").save(photos / name)
    before = {path: path.read_bytes() for path in photos.rglob("*") if path.is_file()}
    out = photos / "drawn"
    words = ["--device", "cpu", "--score", 0.3]
    for _ in range(2):  # the second time, drawings are not searched and may be overwritten
        code, _, err = mini("predict", saved, photos, "--draw", out, *words)
        assert code == 0, err
        assert {path: path.read_bytes() for path in before} == before
        made = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
        assert made == sorted(
            [f"{s}.png" for s in SIZES]
            + ["more/x.JPG", "y.bmp.png", "z.webp", "w.avif", "v.tif", "u.jpeg"]
        )
    elsewhere = tmp_path / "elsewhere" / "a.png"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes((photos / "b.png").read_bytes())
    for image_path, folder in (
        (photos, photos),
        (photos / "a.png", photos),
        (out / "a.png", out),  # a drawing, but also the image to draw
        (elsewhere, photos),
    ):
        code, _, err = mini("predict", saved, image_path, "--draw", folder, *words)
        assert code == 2
        assert "exists and would be overwritten" in err
    code, _, err = mini("predict", saved, photos, "--draw", photos / "a.png", *words)
    assert code == 2
    assert "is not a folder" in err
    assert {path: path.read_bytes() for path in before} == before


def test_predict_notes_a_score_below_the_detectors_threshold(
    saved: Path, photos: Path, mini: Any
) -> None:
    _, _, err = mini("predict", saved, photos / "a.png", "--score", 0.01, "--device", "cpu")
    assert "the detector drops detections with a score below 0.05" in err


def test_predict_writes_coco_that_pycocotools_reads(
    saved: Path, photos: Path, tmp_path: Path, mini: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from pycocotools.coco import COCO

    (photos / "deep").mkdir()
    (photos / "deep" / "f.png").write_bytes((photos / "a.png").read_bytes())
    target = tmp_path / "found.json"
    code, _, err = mini("predict", saved, photos, "--coco", target, "--device", "cpu")
    assert code == 0, err
    read = COCO(str(target))
    capsys.readouterr()
    content = json.loads(target.read_text())
    assert len(read.anns) == len(content["annotations"]) > 20  # so ids are unique
    assert len(read.imgs) == len(SIZES) + 1
    names = {i["file_name"]: i["id"] for i in content["images"]}
    assert set(names) == {*(f"{stem}.png" for stem in SIZES), "deep/f.png"}
    found = TorchModel(tiny_detector(), LABELS, saved, "cpu").predict(photos / "a.png", score=0)
    for name in ("a.png", "deep/f.png"):
        records = read.loadAnns(read.getAnnIds(imgIds=names[name]))
        assert [r["score"] for r in records] == pytest.approx(found.scores.tolist(), abs=1e-6)
        assert [read.cats[r["category_id"]]["name"] for r in records] == list(found.names)
        np.testing.assert_allclose([r["bbox"] for r in records], found.xywh, atol=0.0006)


def test_predict_writes_csv_above_the_score(
    saved: Path, photos: Path, tmp_path: Path, mini: Any
) -> None:
    import csv

    target = tmp_path / "found.csv"
    words = ["--csv", target, "--score", "0.4", "--device", "cpu"]
    code, _, err = mini("predict", saved, photos / "a.png", *words)
    assert code == 0, err
    rows = list(csv.DictReader(target.read_text().splitlines()))
    model = TorchModel(tiny_detector(), LABELS, saved, "cpu")
    found = model.predict(photos / "a.png", score=0.4)
    assert [row["category"] for row in rows] == list(found.names)
    assert [float(row["width"]) for row in rows] == pytest.approx(found.xywh[:, 2], abs=6e-4)
    assert {row["file"] for row in rows} == {"a.png"}


def test_predict_writes_an_overview(saved: Path, photos: Path, tmp_path: Path, mini: Any) -> None:
    target = tmp_path / "sheet.png"
    words = ["--sheet", target, "--score", "0.4", "--device", "cpu"]
    code, _, err = mini("predict", saved, photos, *words)
    assert code == 0, err
    with Image.open(target) as sheet:
        assert sheet.width > 1500  # five cells of 320 pixels
        pixels = np.asarray(sheet)
    assert (pixels == NOVEL_COLOUR).all(-1).any()
    assert (pixels == BASE_COLOUR).all(-1).any()


@pytest.mark.parametrize("option", ["--coco", "--csv", "--sheet"])
def test_predict_refuses_other_names_of_its_files(
    saved: Path, photos: Path, tmp_path: Path, mini: Any, option: str
) -> None:
    code, _, err = mini("predict", saved, photos, option, tmp_path / "found.txt")
    assert code == 2
    assert f"{option} " in err
    assert not (tmp_path / "found.txt").exists()


def test_predict_of_a_video_says_that_opencv_is_missing(
    saved: Path, tmp_path: Path, mini: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cv2", None)
    (tmp_path / "clip.MP4").write_bytes(b"ftyp")
    code, out, err = mini("predict", saved, tmp_path / "clip.MP4", "--device", "cpu")
    assert (code, out) == (2, "")
    assert "Videos need OpenCV, which is not installed." in err
    assert "pip install opencv-python-headless" in err
