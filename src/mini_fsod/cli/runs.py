"""Commands that train, mine and predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mini_fsod.commands.options import AsJson, Data, RunOrCheckpoint, Subset, app, checkpoints


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
    extra: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            show_default=False,
            help="Pictures without annotations, mined too (mine.extra). Example: --extra photos",
        ),
    ] = None,
) -> None:
    """Mine again in a run, with other settings; what a scan has found is not looked for twice.

    Example: mini mine runs/first --set mine.alpha=2
    """
    from mini_fsod.commands.mine import run as mine_again

    mine_again(run, sets or [], extra)


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
def presets(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            show_default=False,
            help="Show every key of this one, with what it means: a preset or a YAML file. "
            "Example: photos",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the configurations with a name, or show all keys of one. Example: mini presets photos"""
    from mini_fsod.commands.presets import run, run_one

    run(as_json) if source is None else run_one(source, as_json)


@app.command()
def study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            show_default=False,
            help="tfa, components, mingling or plus, or a YAML file. Example: tfa",
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
    rows: Annotated[
        str | None,
        typer.Option(help="Rows of the table, others later. Example: --rows 1..4,8"),
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

    run(name, split, shots, seeds, rows, sets or [], full, out, dry_run)


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
