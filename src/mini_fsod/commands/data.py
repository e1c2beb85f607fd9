"""`mini data`: arrange public data sets as few-shot detection uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from mini_fsod import console
from mini_fsod.commands.options import app, out_option

data_commands = typer.Typer(
    no_args_is_help=True,
    help="Arrange public data sets.\n\nExample: mini data coco coco2014 -o coco-fewshot",
)
app.add_typer(data_commands, name="data")


@data_commands.command("coco")
def coco_command(
    folder: Annotated[
        Path,
        Argument(
            metavar="DIR",
            help="The folder with train2014, val2014 and annotations, as unpacked from the "
            "official archives. Example: coco2014",
        ),
    ],
    out: Annotated[Path, out_option("The folder to write.", "coco-fewshot")],
) -> None:
    """Write COCO 2014's few-shot image sets: trainval (117,264 images) and test (5,000).

    Pictures are linked, not copied. Example: mini data coco coco2014 -o coco-fewshot
    """
    from mini_fsod.data.coco_2014 import arrange_coco

    done = arrange_coco(folder, out)
    if done.missing:
        console.note(
            f"{done.missing:,} of the 5,000 test images are not in {folder}: scores on the others "
            "cannot be compared with published ones"
        )
    console.note(f"{out}: trainval {done.trainval:,} images, test {done.test:,} images")
    console.note(f"next: mini run coco --set data.root={out} --shots 10")
