"""The application, and the options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="mini",
    help="Few-shot object detection: show it K boxes of a new class, and it finds that class.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)
checkpoints = typer.Typer(
    no_args_is_help=True,
    help="Look at checkpoints, make them smaller. Example: mini checkpoint show runs/demo",
)
app.add_typer(checkpoints, name="checkpoint")


Data = Annotated[
    Path,
    typer.Argument(
        metavar="DATA",
        show_default=False,
        help="A COCO .json, a VOC devkit, a YOLO folder with data.yaml, or a folder of pictures. "
        "Example: data/VOCdevkit",
    ),
]
Novel = Annotated[
    str | None,
    typer.Option(help="Novel classes, with commas; all others are base. Example: --novel bird,bus"),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="A split known by name: voc-split1, voc-split2, voc-split3, coco. "
        "Example: --split voc-split1"
    ),
]
Subset = Annotated[
    str | None,
    typer.Option(help="One image set, where the data has several. Example: --subset test"),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="JSON on standard output. Example: --json > result.json")
]
RunOrCheckpoint = Annotated[
    Path,
    typer.Argument(
        metavar="RUN_OR_CHECKPOINT",
        show_default=False,
        help="A run's folder (its last stage) or a checkpoint. Example: runs/demo",
    ),
]
