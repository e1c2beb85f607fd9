"""Commands about data: check, sample, eval, and the embedded data set."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mini_fsod.commands.options import AsJson, Data, Novel, Split, Subset, app


class MetricName(StrEnum):
    voc07 = "voc07"
    voc = "voc"
    coco = "coco"


@app.command()
def check(
    data: Data,
    novel: Novel = None,
    split: Split = None,
    subset: Subset = None,
    root: Annotated[
        Path | None,
        typer.Option(
            help="Where the pictures of a COCO file lie, if not beside it. Example: --root photos"
        ),
    ] = None,
    images: Annotated[
        bool,
        typer.Option(
            "--images",
            help="Decode every picture, not only its header, and compare them. Example: --images",
        ),
    ] = False,
    fix: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT", help="Write a repaired copy into a new folder. Example: --fix repaired"
        ),
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(
            help="Where the contact sheet goes, if not to NAME-check.png here (beside the data "
            "folder, if here is in it). "
            "Example: --sheet look.png"
        ),
    ] = None,
    no_sheet: Annotated[
        bool, typer.Option("--no-sheet", help="No contact sheet. Example: --no-sheet")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Look at a data set: counts, sizes, what can be mined, and all that is wrong with it.

    Exit code 2 if anything is wrong. Example: mini check data/VOCdevkit --split voc-split1 --images
    """
    from mini_fsod.commands.check import default_sheet, run

    if no_sheet:
        sheet = None
    elif sheet is None:
        sheet = default_sheet(data, root)
    if not run(data, novel, split, subset, root, images, fix, sheet, as_json):
        raise typer.Exit(2)


@app.command()
def sample(
    data: Data,
    shots: Annotated[
        int,
        typer.Option(
            min=1, max=10_000, show_default=False, help="Boxes of each class, K. Example: --shots 5"
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", show_default=False, help="The COCO JSON to write. Example: -o shots.json"
        ),
    ],
    novel: Novel = None,
    split: Split = None,
    subset: Subset = None,
    seed: Annotated[int, typer.Option(min=0, help="Which sample. Example: --seed 3")] = 0,
    official: Annotated[
        str | None,
        typer.Option(
            metavar="voc|FILE",
            help="The field's lists instead of a draw: those of VOC, or a file. "
            "Example: --official voc",
        ),
    ] = None,
) -> None:
    """Draw exactly K boxes of every class, base and novel, the same on every machine.

    Example: mini sample data/photos --novel bird,bus --shots 5 --seed 0 -o shots.json
    """
    from mini_fsod.commands.sample import run

    run(data, novel, split, subset, official, shots, seed, out)


@app.command("eval")
def evaluate(
    data: Data,
    detections: Annotated[
        list[Path],
        typer.Option(
            show_default=False,
            help="COCO results of any tool; several files: mean and 95 % interval. "
            "Example: --detections seed0.json --detections seed1.json",
        ),
    ],
    metric: Annotated[
        MetricName,
        typer.Option(help="VOC 2007 (11 points), VOC (area) or COCO. Example: --metric voc07"),
    ] = MetricName.coco,
    novel: Novel = None,
    split: Split = None,
    subset: Subset = None,
    as_json: AsJson = False,
) -> None:
    """Score detections with the field's own metrics, in percent: novel, base, all, each class.

    Example: mini eval VOCdevkit --subset test --split voc-split1 --metric voc07 --detections d.json
    """
    from mini_fsod.commands.eval import run

    run(data, detections, novel, split, subset, metric.value, as_json)


@app.command("demo-data")
def demo_data(
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", show_default=False, help="A new folder. Example: digits"),
    ],
) -> None:
    """Write the embedded data set: handwritten digits on photographs, no download.

    Example: mini demo-data digits
    """
    from mini_fsod.commands.demo import write_data

    write_data(out)


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The folder to work in. Example: -o runs/demo")
    ] = Path("runs/demo"),
    seed: Annotated[
        int, typer.Option(min=0, help="Of training and of the shots. Example: --seed 1")
    ] = 0,
) -> None:
    """See it at work on the embedded data set, on any machine. Example: mini demo"""
    from mini_fsod.commands.demo import run

    run(out, seed)
