"""`mini predict`: JSON, the table, drawings, and images that cannot be read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.tiny_detector import LABELS, SIZES, files, tiny_detector, write_photos
from mini_fsod import checkpoint, console, draw
from mini_fsod.commands.predict import detections_table, to_json
from mini_fsod.draw import BASE_COLOUR, NOVEL_COLOUR
from mini_fsod.files import CHECKPOINT_FILE
from mini_fsod.predict import Prediction, predict


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
    expected = list(predict(tiny_detector(), LABELS, files(photos), torch.device("cpu")))
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


def test_to_json_gives_coco_boxes() -> None:
    assert to_json(prediction())["detections"][0] == {
        "category": "bird",
        "bbox": [10.0, 20.0, 60.0, 50.0],
        "score": 0.91,
    }


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
        "mini_fsod.predict.predict", lambda *_: iter([prediction(tmp_path / "white.png")])
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
