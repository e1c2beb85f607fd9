"""`mini demo-data` and `mini demo`: the embedded data set, and the project at work on it."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np

from mini_fsod import show
from mini_fsod.commands import check
from mini_fsod.commands import run as stages
from mini_fsod.config import resolve
from mini_fsod.data.dataset import Boxes
from mini_fsod.data.read import read
from mini_fsod.demo import LABELS, NOVEL, write_demo_data
from mini_fsod.files import write_bytes

SHOWN = 24  # test pictures on the sheet
SURE = 0.5  # the least score of a box on it


def write_data(out: Path) -> None:
    with show.progress("writing scenes") as done:
        written = write_demo_data(out, progress=done)
    show.note(f"demo data {'written to' if written else 'is there already:'} {out}")


def run(out: Path, seed: int) -> None:
    """Data, check, all stages of the preset `demo` and a sheet of pictures, into `out`."""
    place = out.parent / "demo-data"
    write_data(place)
    show.out.rule("[bold]mini check[/]: what the training images hold", align="left")
    check.run(place, ",".join(NOVEL), None, "train", None, False, None, out / "train.png", False)
    show.out.rule("[bold]mini run demo[/]: from nothing, then 3 new digits", align="left")
    config = resolve("demo", [f"data.root={place}", f"seed={seed}", f"shots.seed={seed}"])
    results = stages.run_into(config, out, last="transfer")
    show.table(stages.stage_table(results))
    detections_sheet(out, place)
    show.out.rule("[bold]What to look at[/]", align="left")
    for name, what in (
        ("train.png", "training scenes; novel digits (orange) were hidden"),
        ("detections.png", f"test scenes with what the detector finds, scores above {SURE}"),
        ("results.json", "all figures"),
    ):
        show.out.print(f"{show.plain(out / name)}  {what}")
    show.out.print(f"mini predict {show.plain(out)} PICTURES --draw seen  finds digits elsewhere")


def detections_sheet(out: Path, place: Path) -> None:
    """`detections.png`: some test pictures with the boxes that the run's detector draws."""
    import torch

    from mini_fsod import checkpoint
    from mini_fsod.draw import pick_images, sheet_of
    from mini_fsod.predict import Prediction, predict

    test = read(place, "test")
    test = test.select(pick_images(test, LABELS, SHOWN))
    saved = checkpoint.load(checkpoint.find(out))
    paths = [test.path(i) for i in range(len(test))]
    image, label, xywh = [], [], []
    for i, found in enumerate(predict(saved.detector, saved.labels, paths, torch.device("cpu"))):
        if isinstance(found, Prediction):
            sure = found.scores >= SURE
            image += [i] * int(sure.sum())
            label += [test.classes.index(saved.labels.classes[c]) for c in found.labels[sure]]
            xywh += found.xywh[sure].tolist()
    drawn = test.with_boxes(Boxes.of(image, np.reshape(xywh, (-1, 4)), label))
    content = BytesIO()
    sheet_of(drawn, LABELS, range(len(test))).save(content, "PNG")
    write_bytes(out / "detections.png", content.getvalue())
