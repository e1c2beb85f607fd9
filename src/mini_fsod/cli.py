"""The command `mini`: options in, exit code out.

What a command needs is imported inside it, so that help is there at once.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from mini_fsod import __version__
from mini_fsod.errors import UserError

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


class MetricName(StrEnum):
    voc07 = "voc07"
    voc = "voc"
    coco = "coco"


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


def _version(wanted: bool) -> None:
    if wanted:
        print(f"mini {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Show the version. Example: mini --version",
        ),
    ] = False,
) -> None:
    """Few-shot object detection: show it K boxes of a new class, and it finds that class."""


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
            "--images", help="Decode every picture, not only its header. Example: --images"
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
            "Example: --detections dets.json",
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
    from mini_fsod.commands.evaluate import run

    run(data, detections, novel, split, subset, metric.value, as_json)


@app.command("run")
def run_stages(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            show_default=False,
            help="A preset (`mini presets` lists them) or a YAML file. "
            "Example: voc-split1-1shot-320",
        ),
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            show_default=False,
            help="Change a key. Example: --set data.root=data/VOCdevkit",
        ),
    ] = None,
    first: Annotated[
        str | None,
        typer.Option("--from", help="Repeat from this stage on. Example: --from transfer"),
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", help="Stop behind this stage. Example: --to base")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="The run's folder, if not runs/NAME. Example: -o runs/first"
        ),
    ] = None,
) -> None:
    """Train and score a few-shot detector, stage by stage; a killed run goes on where it was.

    Example: mini run voc-split1-1shot-320 --set data.root=data/VOCdevkit
    """
    from mini_fsod.commands.run import run

    run(config, sets or [], first, last, out)


@app.command()
def mine(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            show_default=False,
            help="A run's folder with base and transfer. Example: runs/first",
        ),
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            show_default=False,
            help="Change a key of mining. Example: --set mine.alpha=2",
        ),
    ] = None,
) -> None:
    """Mine again in a run, with other settings; what a scan has found is not looked for twice.

    Example: mini mine runs/first --set mine.most=200
    """
    from mini_fsod.commands.mine import run as mine_again

    mine_again(run, sets or [], None)


@app.command()
def pretrain(
    images: Data,
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            show_default=False,
            help="The file to write. Example: -o own.safetensors",
        ),
    ],
    subset: Subset = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="resnet18 to resnet152, or resnet18-narrow; by default resnet50 on a GPU, else "
            "the narrow one. Example: --backbone resnet18"
        ),
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(min=0.01, help="200 on a GPU, else 25. Example: --epochs 50")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help="A budget of time instead. Example: --minutes 10"),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=2, help="Images an iteration. Example: --batch 64")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=32, help="Side of a view in pixels. Example: --size 96")
    ] = None,
    flip: Annotated[
        bool,
        typer.Option(
            "--flip/--no-flip", help="Whether a mirrored object is the same. Example: --no-flip"
        ),
    ] = True,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole", help="Views of whole pictures, as in MoCo v2, not windows. Example: --whole"
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and views. Example: --seed 1")] = 0,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda or cuda:1. Example: --device cpu")
    ] = "auto",
    cache: Annotated[
        Path | None,
        typer.Option(help="Decoded pictures, if not in ~/.cache. Example: --cache tmp"),
    ] = None,
) -> None:
    """Train a discriminator for mining on your own images (MoCo v2).

    Example: mini pretrain photos -o own.safetensors
    """
    from mini_fsod.commands.pretrain import run

    run(
        images,
        out,
        subset,
        backbone,
        epochs,
        minutes,
        batch,
        size,
        flip,
        whole,
        seed,
        device,
        cache,
    )


@app.command()
def presets(as_json: AsJson = False) -> None:
    """List the configurations with a name; --json shows every key of each. Example: mini presets"""
    from mini_fsod.commands.presets import run

    run(as_json)


@app.command()
def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            show_default=False,
            help="A study known by name (tfa), or a YAML file. Example: tfa",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            show_default=False,
            help="The study's folder; several processes may work in it. Example: -o runs/tfa",
        ),
    ],
    split: Annotated[
        str | None, typer.Option(help="Splits, if not the study's own. Example: --split 1,2")
    ] = None,
    shots: Annotated[
        str | None, typer.Option(help="K, if not the study's own. Example: --shots 1,5")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds of the shots. Example: --seeds 0..4")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="A key for all runs. Example: --set data.root=VOCdevkit",
        ),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="The paper's full schedule. Example: --full")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would run, and how long. Example: --dry-run"),
    ] = False,
) -> None:
    """Run a set of configurations as one plan that can be killed, resumed and shared.

    Example: mini study tfa --set data.root=VOCdevkit --seeds 0..4 -o runs/tfa
    """
    from mini_fsod.commands.study import run

    run(name, split, shots, seeds, sets or [], full, out, dry_run)


RunOrCheckpoint = Annotated[
    Path,
    typer.Argument(
        metavar="RUN_OR_CHECKPOINT",
        show_default=False,
        help="A run's folder (its last stage) or a checkpoint. Example: runs/demo",
    ),
]


@app.command()
def predict(
    run_or_checkpoint: RunOrCheckpoint,
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES...", show_default=False, help="Pictures, or folders. Example: photos"
        ),
    ],
    as_json: AsJson = False,
    draw: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Copies with boxes and names into this folder. Example: --draw seen"
        ),
    ] = None,
    score: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            show_default=False,
            help="The least score shown: 0.5 in table and drawings, all in --json. "
            "Example: --score 0.3",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto, cpu, cuda or cuda:1. Example: --device cpu")
    ] = "auto",
) -> None:
    """Find objects in pictures. Exit code 2 if any picture cannot be read.

    Example: mini predict runs/demo photos --draw seen
    """
    from mini_fsod.commands.predict import run

    if not run(run_or_checkpoint, images, as_json, draw, score, device):
        raise typer.Exit(2)


@checkpoints.command("show")
def checkpoint_show(file: RunOrCheckpoint) -> None:
    """What a checkpoint holds. Example: mini checkpoint show runs/demo"""
    from mini_fsod.commands.checkpoint import run_show

    run_show(file)


@checkpoints.command("slim")
def checkpoint_slim(
    file: RunOrCheckpoint,
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            show_default=False,
            help="The file to write. Example: -o small.safetensors",
        ),
    ],
) -> None:
    """Weights alone in float16, frozen layers left out.

    Example: mini checkpoint slim runs/demo -o small.safetensors
    """
    from mini_fsod.commands.checkpoint import run_slim

    run_slim(file, out)


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


def main() -> None:
    # Threads that spin while they wait lose a core to any other process, and then wait for each
    # other: beside one busy process, training on 2 cores fell from 25 to 2 images a second.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        # a terminal or pipe that knows ASCII alone still gets every word
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        from mini_fsod import show

        show.error(error)
        sys.exit(2)
    except OSError as error:
        # what nobody could foresee: standard output on a full disk, a folder that goes away
        print(f"Error {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
