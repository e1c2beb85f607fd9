"""`mini pretrain`: a discriminator for mining, trained on anybody's images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mini_fsod import console
from mini_fsod.data.read import read
from mini_fsod.device import torch_device
from mini_fsod.discriminator.pretrain import SMALL, Pretraining, pretrain
from mini_fsod.loader.cache import default_cache_folder


def run(
    images: Path,
    out: Path,
    subset: str | None,
    backbone: str | None,
    epochs: float | None,
    minutes: float | None,
    batch: int | None,
    size: int | None,
    flip: bool,
    whole: bool,
    seed: int,
    device: str,
    cache: Path | None,
) -> None:
    """What is None is as suits the device."""
    where = torch_device(device)
    how = Pretraining() if where.type == "cuda" else SMALL
    wishes: dict[str, Any] = {"backbone": backbone, "batch": batch, "size": size}
    how = replace(how, **{key: value for key, value in wishes.items() if value is not None})
    how = replace(how, flip=flip, whole=whole, seed=seed)
    if epochs is not None or minutes is not None:
        how = replace(how, epochs=epochs, minutes=minutes)
    data = read(images, subset)
    for line in data.notes:
        console.note(line)
    trained = pretrain(data, out, how, cache or default_cache_folder(), where)
    if trained is None:
        console.note(f"{out}: finished already")
    else:
        console.note(
            f"{out}: {how.backbone}, {trained.iterations:,} iterations on "
            f"{console.count(len(data), 'image')} in {console.duration(trained.seconds)}"
        )
