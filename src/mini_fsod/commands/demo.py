"""`mini demo-data` and `mini demo`: the embedded data set, and the project at work on it."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from mini_fsod import console
from mini_fsod.commands import check
from mini_fsod.commands import run as stages
from mini_fsod.commands.mine import class_table
from mini_fsod.config.load import resolve
from mini_fsod.data.dataset import Boxes
from mini_fsod.data.read import read
from mini_fsod.demo import LABELS, NOVEL, write_demo_data
from mini_fsod.files import write_bytes

# What MINI is compared with, by its switches
OFFLINE = ("online.teacher=false", "online.iou_branch=false")
OTHER_ROWS = {"offline": OFFLINE, "oracle": (*OFFLINE, "online.oracle=true")}
SHOWN = 24  # test pictures on the sheet
SURE = 0.5  # the least score of a box on it


def write_data(out: Path) -> None:
    with console.progress("writing scenes") as done:
        written = write_demo_data(out, progress=done)
    console.note(f"demo data {'written to' if written else 'is there already:'} {out}")


def run(out: Path, seed: int) -> None:
    """Data, check, all of MINI into `out`, the rows to compare it with beside it, pictures."""
    place = out.parent / "demo-data"
    write_data(place)
    console.out.rule("[bold]mini check[/]: what the training images hold", align="left")
    check.run(place, ",".join(NOVEL), None, "train", None, False, None, out / "train.png", False)
    console.out.rule("[bold]mini run demo[/]: from nothing, then 3 new digits", align="left")
    sets = [f"data.root={place}", f"seed={seed}", f"shots.seed={seed}"]
    whole = resolve("demo", sets)
    stages.run_into(whole, out, last="mine")
    console.table(class_table(out / "mine"))
    shared = [
        f"base.checkpoint={out}",
        f"transfer.checkpoint={out}",
        f"mine.given={out / 'mine' / 'pool.json'}",
    ]
    figures = {}
    for row, switches in OTHER_ROWS.items():
        config = resolve("demo", [*sets, *shared, *switches])
        other = out.parent / f"{out.name}-{row}"
        figures[row] = stages.run_into(config, other, last="online")["stages"]
    figures["MINI"] = stages.run_into(whole, out)["stages"]
    detections_sheet(out, place)
    console.out.rule("[bold]Three new digits, five boxes of each[/]", align="left")
    console.table(rows_table(figures))
    console.out.rule("[bold]What to look at[/]", align="left")
    for name, what in (
        ("train.png", "training scenes; novel digits (orange) were hidden"),
        ("mine/1-three.png", "mined boxes, the best and the worst"),
        ("detections.png", f"test scenes, boxes that score above {SURE}"),
        ("results.json", "all figures"),
    ):
        console.out.print(f"{console.plain(out / name)}  {what}")
    console.out.print(
        f"mini predict {console.plain(out)} PICTURES --draw seen  finds digits elsewhere"
    )


def rows_table(figures: dict[str, dict[str, Any]]) -> Table:
    """TFA, and what mining adds to it; the ceiling last."""
    lines = (
        ("TFA", "fine-tuned on five boxes, base boxes known", "MINI", "transfer"),
        ("offline mining", "re-trained on mined boxes", "offline", "online"),
        ("MINI", "with a teacher that mines on", "MINI", "tune"),
        ("oracle", "had all hidden boxes been given", "oracle", "online"),
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    table.add_column("nAP50", justify="right")
    table.add_column("bAP50", justify="right")
    table.add_column("")
    for name, what, row, stage in lines:
        style = "bold" if name == "MINI" else ""
        cells = [f"{figures[row][stage][key]:.1f}" for key in ("nAP50", "bAP50")]
        table.add_row(name, *cells, f"[dim]{what}[/]", style=style)
    return table


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
