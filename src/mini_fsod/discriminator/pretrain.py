"""Training a discriminator on the user's own images: MoCo v2, into one file."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torchvision.models import get_model

from mini_fsod import console
from mini_fsod.config.schema import TimedTraining
from mini_fsod.data.dataset import NO_BOXES, Dataset
from mini_fsod.detector.backbone import NARROW, RESNETS, make_backbone
from mini_fsod.detector.settings import BackboneSettings
from mini_fsod.discriminator.load import (
    DiscriminatorHeader,
    LastMap,
    read_discriminator_header,
    save_discriminator,
)
from mini_fsod.discriminator.moco import Encoder, MoCo
from mini_fsod.discriminator.moco_views import WHOLE, WINDOWS, coloured, draw_colours, draw_crops
from mini_fsod.errors import UserError, nearest
from mini_fsod.files import mode
from mini_fsod.loader.cache import Pictures, cached_pictures
from mini_fsod.loader.resident import Annotations, Resident
from mini_fsod.loader.schedule import Schedule
from mini_fsod.train import state
from mini_fsod.train.loop import Feed, Trained, train
from mini_fsod.train.step import Inputs

QUEUE = 65_536  # keys, at most
SMALL_QUEUE = 16_384  # up to this length the key encoder follows faster: trainings are short
MIN_IMAGES = 16
STORED = 2.5  # short side of the stored images, in sides of a view
MAX_RATIO = 4  # of a stored image's long side to the short one


@dataclass(frozen=True, slots=True)
class Pretraining:
    """Settings of a pretraining, by default MoCo v2's. Give either `epochs` or `minutes`."""

    backbone: str = (
        "resnet50"  # resnet18 to resnet152 with BatchNorm, resnet18-narrow with GroupNorm
    )
    epochs: float | None = 200
    minutes: float | None = None
    batch: int = 256
    size: int = 224  # side of a view
    rate: float = 0.03
    flip: bool = True
    whole: bool = False  # views of whole images, not of windows: see `moco_views.Crops`
    seed: int = 0
    save_seconds: float = 60.0


class _CosineTraining(TimedTraining):
    cosine = True


# For a CPU: a thousand images in two minutes
ON_CPU = Pretraining(backbone=NARROW, epochs=25, batch=64, size=64, rate=0.06)


def pretrain(
    data: Dataset, out: Path, how: Pretraining, cache: Path, device: torch.device
) -> Trained | None:
    """Train on the images of a data set, without its boxes, and write a file for `discriminator`.

    Decoded images go to `cache`; the log and the training state, from which a stopped training
    resumes, to the folder `out` with the suffix .run. None where the same training has written
    `out` already.
    """
    images, batch = len(data), min(how.batch, len(data) // 2)
    _refuse(out, how, images)
    torch.manual_seed(how.seed)
    body, channels = new_body(how.backbone)
    queue = queue_length(images, batch)
    model = MoCo(Encoder(body, channels), queue, 0.999 if queue > SMALL_QUEUE else 0.99).to(device)
    model.to(memory_format=torch.channels_last)
    short = round(STORED * how.size)
    with console.progress("decoding pictures") as progress:
        pictures = cached_pictures(data, cache, short, MAX_RATIO * short, progress=progress)
    feed = feed_of(pictures, batch, how, device)
    iterations = None if how.epochs is None else max(1, round(how.epochs * images / batch))
    if mode(out):
        _refuse_other(out, feed.identity, iterations)
        return None
    section = _CosineTraining(
        iterations=iterations,
        minutes=how.minutes,
        batch=batch,
        rate=how.rate,
        save_seconds=how.save_seconds,
    )
    folder = out.with_suffix(".run")
    folder.mkdir(parents=True, exist_ok=True)
    bf16 = device.type == "cuda"
    _, trained = train(
        model, lambda views: model.losses(*views), feed, section, bf16, folder, "pretrain", device
    )
    net = body.net if isinstance(body, LastMap) else body
    header = DiscriminatorHeader(
        how.backbone,
        "group" if how.backbone == NARROW else "frozen",
        None if how.whole else how.size,
        {
            "identity": feed.identity,
            "iterations": trained.iterations,
            "batch": batch,
            "images": images,
            "seed": how.seed,
        },
    )
    save_discriminator(out, net, header)
    (folder / state.FILE).unlink(missing_ok=True)
    return trained


def queue_length(images: int, batch: int) -> int:
    """At most half the number of images, a multiple of the batch."""
    return max(min(QUEUE, images // 2) // batch, 1) * batch


def new_body(backbone: str) -> tuple[nn.Module, int]:
    """A ResNet with random weights up to its last feature map, and the channels of that."""
    if backbone == NARROW:
        body = LastMap(make_backbone(BackboneSettings(NARROW, "group")))
        return body, body.dimension
    parts = OrderedDict(get_model(backbone, weights=None).named_children())
    channels = int(parts.pop("fc").in_features)
    del parts["avgpool"]
    return nn.Sequential(parts), channels


def feed_of(pictures: Pictures, batch: int, how: Pretraining, device: torch.device) -> Feed:
    """Batches of two views of each image: inputs of `MoCo.losses`."""
    images, size = len(pictures.files), how.size
    # crops are drawn below; to the schedule all images have one size
    schedule = Schedule(np.full((images, 2), size), batch, (size,), size, how.seed, flip=False)
    resident = Resident(pictures, Annotations.of(NO_BOXES, images), device)
    crops = WHOLE if how.whole else WINDOWS

    def batches(start: int) -> Generator[Sequence[Inputs]]:
        for n in count(start):
            plan = draw_crops(schedule.plan(n), pictures.stored, size, crops, how.flip, how.seed)
            views = resident.batch(plan)
            colours = draw_colours(plan, how.seed)
            yield [(coloured(views.images, views.sizes, colours), views.sizes)]

    def names(n: int) -> list[str]:
        return [pictures.files[i] for i in schedule.plan(n).images.tolist()]

    training = how.backbone, how.rate, how.flip, crops, "cosine"
    identity = (schedule.identity, pictures.files, *training)
    return Feed(batches, names, hashlib.sha256(repr(identity).encode()).hexdigest()[:16])


def _refuse(out: Path, how: Pretraining, images: int) -> None:
    """Refuse what would fail after the images were decoded."""
    known = (*RESNETS, NARROW)
    if how.backbone not in known:
        raise UserError(
            f'"{how.backbone}" cannot be pretrained.{nearest(how.backbone, known)}',
            f"Use one of {', '.join(known)}.",
        )
    if images < MIN_IMAGES:
        raise UserError(
            f"{console.count(images, 'image')}: too few to pretrain on.",
            f"Give at least {MIN_IMAGES}; thousands are better.",
        )
    if out.suffix != ".safetensors":
        raise UserError(
            f"{out}: the name must end with .safetensors.", f"Name it {out}.safetensors."
        )
    if (how.epochs is None) == (how.minutes is None):
        raise UserError("The length of the training is missing.", "Give either epochs or minutes.")
    if not math.isfinite(how.epochs or how.minutes or 0):
        raise UserError("The training would never end.", "Give a number of epochs or minutes.")


def _refuse_other(out: Path, identity: str, iterations: int | None) -> None:
    header = read_discriminator_header(out)
    if header is None or header.about.get("identity") != identity:
        raise UserError(f"{out}: exists already, from another training.", "Choose another -o.")
    done = header.about["iterations"]
    if iterations not in (None, done):
        raise UserError(
            f"{out}: exists already, after {done:,} iterations, not {iterations:,}.",
            "Choose another -o.",
        )
