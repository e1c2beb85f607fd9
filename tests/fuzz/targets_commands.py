"""Targets of the newer commands: init, review, report, doctor, convert, export, figures."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
from PIL import Image

from fuzz.target import Target, every, mini
from helpers import made_run, photos, shapes, tiny
from helpers.fake_study import example_study, finish_cells
from helpers.tiny_detector import LABELS, tiny_detector
from helpers.tiny_run import run, short_config
from mini_fsod.data.convert import FORMATS, SUFFIXES
from mini_fsod.data.official_shots import coco_test_images
from mini_fsod.data.read import read
from mini_fsod.errors import UserError
from mini_fsod.files import write_json
from mini_fsod.review.decisions import Decision, Journal, Place
from mini_fsod.review.drawing import drawing
from mini_fsod.review.items import Review
from mini_fsod.review.mined import reviewed_run
from mini_fsod.study.figures import draw_figures
from mini_fsod.study.plan import plan_study, read_plan, save_plan
from mini_fsod.study.studies import Row
from mini_fsod.study.tables import gather_results

ROWS = (Row("TFA", paper=("TFA Base",)), Row("MINI", ("seed=1",), "online", ("MINI",)))


# Photos and a few boxes


def _photos(folder: Path) -> None:
    photos.write_photos(folder / "photos", 4, (64, 48))
    boxes = photos.bolts((0, 1), (5, 6, 30, 20))
    photos.write_boxes(folder / "five.json", *boxes, size=(64, 48))
    place = Place("photo2.jpg", False, "bolt", (5.0, 6.0, 30.0, 20.0))
    _decide(folder / "drawn.jsonl", place, place._replace(picture="photo3.jpg"))
    (folder / "drawn.json").write_bytes((folder / "five.json").read_bytes())


def _decide(path: Path, *places: Place) -> None:
    """A journal: the first place accepted and moved, the others rejected, the last undone."""
    journal = Journal(path, sync=lambda _: None)
    first, *rest = places
    moved = Decision(first, "accept", as_box=(6.0, 7.0, 30.0, 20.0), score=0.5, mined=True)
    said = [moved, *(Decision(place, "reject", score=0.5) for place in rest)]
    journal.append([*said, Decision(first, "undo", of=len(said))])
    journal.close()


def _use_photos(folder: Path) -> None:
    words = ("init", folder / "photos", "--boxes", folder / "five.json", "--no-estimate")

    def draw() -> None:
        with drawing(folder / "photos", ("bolt",), folder / "drawn.json") as review:
            _look_at(review)

    every(lambda: mini(*words, "-o", folder / "photos.yaml"), draw)


def _look_at(review: Review) -> None:
    """What the page asks for, as JSON."""
    json.dumps(review.overview(), allow_nan=False)
    for name in (None, *review.classes):
        json.dumps(review.page(name), allow_nan=False)
    for number in range(min(len(review.items), 20)):
        json.dumps(review.shown(number), allow_nan=False)
        every(lambda n=number: review.jpeg(n, 100, False))


# Runs


def _mined_run(folder: Path) -> None:
    data = shapes.write_data(folder / "data")
    out = folder / "runs" / "shapes"
    run(short_config(data, mine__threshold=0.65), out, last="online")
    pool = json.loads((out / "pool.json").read_text())
    files = {image["id"]: image["file_name"] for image in pool["images"]}
    boxes = pool["annotations"]
    places = [Place(files[b["image_id"]], False, shapes.NOVEL, tuple(b["bbox"])) for b in boxes]
    _decide(out / "review.jsonl", *places)


def _review(folder: Path) -> None:
    home = folder / "runs" / "shapes"

    def look_at_run() -> None:
        with reviewed_run(home, folder / "shots.json") as review:
            _look_at(review)
            review.undo()

    every(look_at_run, lambda: mini("mine", home))
    _add_class(folder, home)


def _add_class(folder: Path, home: Path) -> None:
    boxes = folder / "nuts.json"
    content = json.loads(Path(home.parents[1] / "data/annotations/train.json").read_text())
    content["categories"][0]["name"] = "nut"
    for image in content["images"]:
        image["file_name"] = f"train/{image['file_name']}"
    boxes.write_text(json.dumps(content))
    words = ("--from", home, "--add", "nut", "--boxes", boxes, "--no-estimate")
    every(lambda: mini("init", *words, "-o", folder / "more.yaml"))


def _reported(folder: Path) -> None:
    """Two runs: one made of files as healthy runs leave them, one of the stages."""
    made_run.write_run(folder / "made")
    data = shapes.write_data(folder / "data")
    config = short_config(data, mine__threshold=0.65)
    run(config, folder / "runs" / "shapes", last="tune")


def _report(folder: Path) -> None:
    for home, other in (("made", "runs/shapes"), ("runs/shapes", "made")):
        every(
            lambda h=home: mini("doctor", folder / h),
            lambda h=home: _doctor_as_json(folder / h),
            lambda h=home: mini("report", folder / h, "-o", folder / "a.html"),
            lambda h=home, o=other: mini(
                *("report", folder / h, "--compare", folder / o, "-o", folder / "b.html")
            ),
        )


def _doctor_as_json(home: Path) -> None:
    with redirect_stdout(StringIO()) as said:
        mini("doctor", home, "--json")
    json.loads(said.getvalue())


# Formats of other tools


def _convertible(folder: Path) -> None:
    tiny.write_coco(folder / "data")
    content = tiny.coco()
    scored = [box | {"score": 0.5} for box in content["annotations"]]
    (folder / "data" / "scored.json").write_text(json.dumps(content | {"annotations": scored}))


def _convert(folder: Path) -> None:
    """What is written is read again, with as many boxes."""
    for source in ("annotations", "scored"):
        for to in FORMATS[: None if source == "annotations" else 4]:  # the others have no scores
            out = folder / f"{source}-{to}{SUFFIXES.get(to, '')}"
            every(lambda s=source, t=to, o=out: _convert_to(folder / "data" / f"{s}.json", t, o))


def _convert_to(source: Path, to: str, out: Path) -> None:
    data = read(source)
    mini("convert", source, out, "--to", to)
    usable = data.boxes.sound & ~data.boxes.ignore & ~data.boxes.crowd
    wanted = len(data.boxes) if to == "coco" else int(usable.sum())
    try:
        found = len(read(out, root=source.parent if to in SUFFIXES else None).boxes)
    except UserError as error:
        raise AssertionError(f"what was converted to {to} is refused: {error}") from error
    assert found == wanted, f"{found} boxes in {to}, {wanted} before"


def _coco_2014(folder: Path) -> None:
    home, ids = folder / "coco", {"train2014": [9, 25], "val2014": sorted(coco_test_images())[:2]}
    for part, numbers in ids.items():
        names = [f"COCO_{part}_{number:012}.jpg" for number in numbers]
        images = [
            {"id": n, "file_name": name, "width": 40, "height": 30}
            for n, name in zip(numbers, names, strict=True)
        ]
        boxes = [
            {"id": n, "image_id": n, "category_id": 16, "bbox": [1, 2, 9, 8], "iscrowd": 0}
            for n in numbers
        ]
        (home / part).mkdir(parents=True)
        for name in names:
            Image.new("RGB", (40, 30)).save(home / part / name)
        content = {"images": images, "annotations": boxes}
        content["categories"] = [{"id": 16, "name": "bird"}, {"id": 17, "name": "cat"}]
        write_json(home / "annotations" / f"instances_{part}.json", content)


def _arrange(folder: Path) -> None:
    mini("data", "coco", folder / "coco", "-o", folder / "out")
    read(folder / "out")


# ONNX files


def _onnx(folder: Path) -> None:
    from mini_fsod.export.write import to_onnx

    (folder / "model.onnx").write_bytes(to_onnx(tiny_detector(), LABELS))
    (folder / "photos").mkdir()
    rng = np.random.default_rng(0)
    for name, shape in (("a.png", (30, 40, 3)), ("b.png", (64, 48, 3))):
        pixels = rng.integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / name)


def _use_onnx(folder: Path) -> None:
    words = ("predict", folder / "model.onnx", folder / "photos", "--device", "cpu", "--score", 0.1)
    coco, csv = folder / "found.json", folder / "found.csv"
    mini(*words, "--coco", coco, "--csv", csv, "--draw", folder / "drawn")
    json.loads(coco.read_text())


# Figures of a study


def _figures(folder: Path) -> None:
    plan = plan_study(example_study(rows=ROWS, shots=(1, 5), splits=(1,)))
    out = folder / "study"
    finish_cells(out, plan, {c.name: {c.last: {"nAP50": 30.0, "bAP50": 60.0}} for c in plan.cells})
    for cell in plan.cells:
        if cell.row == "MINI":
            mine, online = (out / "cells" / cell.name / stage for stage in ("mine", "online"))
            mine.mkdir(parents=True)
            online.mkdir()
            write_json(mine / "thresholds.json", made_run.thresholds())
            write_json(mine / "audit.json", made_run.audit())
            lines = [json.dumps(line) for line in made_run.gauges()]
            (online / "log.jsonl").write_text("\n".join(lines))
    save_plan(out, example_study(rows=ROWS, shots=(1, 5), splits=(1,)), plan)


def _draw_figures(folder: Path) -> None:
    out, study = folder / "study", example_study(rows=ROWS, shots=(1, 5), splits=(1,))
    cells = read_plan(out)
    draw_figures(out, gather_results(out, study, cells), cells)


COMMANDS = (
    Target("photos", _photos, ("*.json", "*.jsonl", "photos/photo[02].jpg"), _use_photos, 20),
    Target(
        "review",
        _mined_run,
        (
            *("runs/shapes/review.jsonl", "runs/shapes/pool.json", "runs/shapes/config.yaml"),
            *("runs/.stages/mine-*/*.json", "runs/shapes/*.json", "runs/shapes/.*.json"),
        ),
        _review,
        6,
    ),
    Target(
        "report",
        _reported,
        (
            *("made/*.*", "made/*/*.*", "runs/shapes/*.*", "runs/.stages/*/*.json*"),
            "runs/.stages/*/*.npz",
        ),
        _report,
        6,
    ),
    Target("convert", _convertible, ("data/*.json",), _convert, 15),
    Target("coco 2014", _coco_2014, ("coco/annotations/*.json",), _arrange, 10),
    Target("onnx", _onnx, ("*.onnx",), _use_onnx, 10),
    Target("figures", _figures, ("study/*.json", "study/cells/*/*.*", "study/cells/*/*/*.*"),
           _draw_figures, 1),
)  # fmt: skip
