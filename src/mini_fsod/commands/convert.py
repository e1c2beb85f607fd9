"""`mini convert`: annotations, detections and pools in the formats of labelling tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from mini_fsod import console
from mini_fsod.commands.options import Subset, app
from mini_fsod.errors import UserError, nearest
from mini_fsod.files import is_file

FORMATS = "coco, cvat, label-studio, fiftyone, yolo or voc"


@app.command("convert")
def convert_command(
    source: Annotated[
        Path,
        Argument(
            metavar="IN",
            help="A data set, a pool.json, or the file of `mini predict --coco`. "
            "Example: runs/first/pool.json",
        ),
    ],
    out: Annotated[
        Path,
        Argument(
            metavar="OUT",
            help="A new file; a folder for fiftyone, yolo and voc. Example: tasks.json",
        ),
    ],
    to: Annotated[str, Option(help=f"{FORMATS}. Example: --to cvat")],
    root: Annotated[
        Path | None,
        Option(help="The folder of the pictures, if they lie elsewhere. Example: --root photos"),
    ] = None,
    score: Annotated[
        float | None,
        Option(
            metavar="NUMBER",
            min=0.0,
            max=1.0,
            help="Leave out boxes with lower scores. Example: --score 0.5",
        ),
    ] = None,
    subset: Subset = None,
) -> None:
    """Write annotations, detections or mined boxes for a labelling tool.

    Scores are kept; yolo and voc have no place for them, and take annotations only.
    Example: mini convert runs/first/pool.json tasks.json --to label-studio
    """
    import numpy as np

    from mini_fsod.data import convert
    from mini_fsod.data.read import read

    if to not in convert.FORMATS:
        raise UserError(f'There is no format "{to}".{nearest(to, convert.FORMATS)}', FORMATS)
    data = read(source, subset, root)
    for line in data.notes:
        console.note(line)
    if score is not None:
        data = data.with_boxes(data.boxes.take(~(data.boxes.score < score)))
    convert.convert(data, out, to)
    scored = int(np.isfinite(data.boxes.score).sum())
    images, boxes = console.count(len(data), "image"), console.count(len(data.boxes), "box")
    if to in convert.NAMING_PICTURES and len(data) and not is_file(data.path(0)):
        console.note(
            f"{data.path(0)} does not exist, so {out} names pictures that are not there: name the "
            "folder of the images with --root"
        )
    console.note(f"{out}: {images}, {boxes}, {scored:,} with a score")
