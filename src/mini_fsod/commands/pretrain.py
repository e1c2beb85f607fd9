"""`mini pretrain`: a discriminator for mining, trained on any images with MoCo v2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from mini_fsod import console
from mini_fsod.commands.options import Data, Device, Subset, app, flag, out_option, read_data


@app.command("pretrain")
def pretrain_command(
    images: Data,
    out: Annotated[Path, out_option("The weights file to write.", "moco.safetensors")],
    subset: Subset = None,
    backbone: Annotated[
        str | None,
        Option(
            help="A ResNet; default: resnet50 on a GPU, resnet18-narrow on a CPU. "
            "Example: --backbone resnet18"
        ),
    ] = None,
    epochs: Annotated[
        float | None,
        Option(
            metavar="NUMBER",
            min=0.01,
            help="Default: 200 on a GPU, 25 on a CPU. Example: --epochs 50",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        Option(
            metavar="NUMBER",
            min=0.01,
            help="A time budget instead of epochs. Example: --minutes 10",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        Option(metavar="NUMBER", min=2, help="Images per iteration. Example: --batch 64"),
    ] = None,
    size: Annotated[
        int | None,
        Option(metavar="NUMBER", min=32, help="Side of a view in pixels. Example: --size 96"),
    ] = None,
    flip: Annotated[
        bool,
        Option("--flip/--no-flip", help="Whether views are flipped at random. Example: --no-flip"),
    ] = True,
    whole: Annotated[
        bool, flag("--whole", "Crop views from the whole image, not from a window of it.")
    ] = False,
    seed: Annotated[
        int, Option(metavar="NUMBER", min=0, help="Seed of weights and views. Example: --seed 1")
    ] = 0,
    device: Device = "auto",
    cache: Annotated[
        Path | None,
        Option(help="Folder of decoded images; default: ~/.cache/mini. Example: --cache /tmp/mini"),
    ] = None,
) -> None:
    """Train the discriminator for mining on your own images.

    An interrupted training resumes. Example: mini pretrain photos -o moco.safetensors
    """
    from mini_fsod.device import torch_device
    from mini_fsod.discriminator.pretrain import ON_CPU, Pretraining, pretrain
    from mini_fsod.files import default_cache_folder

    torch_dev = torch_device(device)
    settings = Pretraining() if torch_dev.type == "cuda" else ON_CPU
    given = {"backbone": backbone, "batch": batch, "size": size}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if epochs is not None or minutes is not None:
        changes |= {"epochs": epochs, "minutes": minutes}
    settings = replace(settings, flip=flip, whole=whole, seed=seed, **changes)
    data = read_data(images, subset)
    trained = pretrain(data, out, settings, cache or default_cache_folder(), torch_dev)
    if trained is None:
        console.note(f"{out}: already finished")
    else:
        console.note(
            f"{out}: {settings.backbone}, {trained.iterations:,} iterations on "
            f"{console.count(len(data), 'image')} in {console.duration(trained.seconds)}"
        )
