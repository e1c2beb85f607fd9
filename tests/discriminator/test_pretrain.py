from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mini_fsod.data.dataset import Dataset
from mini_fsod.data.read import read
from mini_fsod.discriminator import pretrain as room
from mini_fsod.discriminator.load import load_discriminator, read_discriminator_header
from mini_fsod.discriminator.pretrain import ON_CPU, Pretraining, new_body, pretrain, queue_length
from mini_fsod.errors import UserError
from mini_fsod.train import log

CPU = torch.device("cpu")
QUICK = replace(ON_CPU, epochs=8, batch=4, size=32, save_seconds=0.0)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twenty pictures of different sizes, a plain folder."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for n in range(20):
        coarse = rng.integers(0, 256, (5, 4 + n % 4, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((40 + n, 50)).save(folder / f"{n:02}.png")
    return folder


def made(data: Dataset, out: Path, how: Pretraining = QUICK) -> bytes:
    pretrain(data, out, how, out.parent / "cache", CPU)
    return out.read_bytes()


class StopError(Exception):
    pass


@pytest.mark.slow
def test_pretrain_resumes_and_ends_with_the_same_bytes(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = read(photos)
    whole = made(data, tmp_path / "whole.safetensors")
    feed_of = room.feed_of

    def failing(*values: Any) -> Any:
        feed = feed_of(*values)

        def batches(start: int) -> Any:
            for n, batch in enumerate(feed.batches(start), start):
                if n == 23:
                    raise StopError
                yield batch

        return replace(feed, batches=batches)

    monkeypatch.setattr(room, "feed_of", failing)
    out = tmp_path / "parts.safetensors"
    with suppress(StopError):
        made(data, out)
    assert not out.exists()
    monkeypatch.setattr(room, "feed_of", feed_of)
    assert made(data, out) == whole
    steps = [line["step"] for line in log.read_log(tmp_path / "parts.run" / log.FILE)]
    assert steps == sorted(set(steps))
    assert steps[-1] == 40  # 8 epochs of 20 images by 4
    assert not (tmp_path / "parts.run" / "progress.pt").exists()
    assert made(data, tmp_path / "other.safetensors", replace(QUICK, seed=1)) != whole


def test_pretrain_writes_a_discriminator(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "own.safetensors"
    data = read(photos)
    trained = pretrain(data, out, replace(QUICK, epochs=4), tmp_path / "cache", CPU)
    assert trained is not None
    assert trained.iterations == 20
    rates = [line["rate"] for line in log.read_log(tmp_path / "own.run" / log.FILE)[1:]]
    shares = [0.578217, 0.206107, 0.006156]  # of a cosine, in iterations 9, 14 and 19 of 20
    assert rates == pytest.approx([QUICK.rate * share for share in shares], rel=1e-3)
    model = load_discriminator(out, CPU)
    assert (model.dimension, model.stride, model.crop) == (128, 32, 32)
    header = read_discriminator_header(out)
    assert header is not None
    assert header.about["images"] == 20
    # it learnt: the weights are no longer those of the seed
    torch.manual_seed(QUICK.seed)
    fresh, _ = new_body(QUICK.backbone)
    assert not torch.equal(model.body.net.conv1.weight, fresh.net.conv1.weight)
    assert pretrain(data, out, replace(QUICK, epochs=4), tmp_path / "cache", CPU) is None
    with pytest.raises(UserError, match="from another training"):
        pretrain(data, out, replace(QUICK, epochs=4, seed=7), tmp_path / "cache", CPU)


@pytest.mark.slow
def test_pretrain_with_batch_norm_can_be_loaded(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "own.safetensors"
    how = replace(QUICK, backbone="resnet18", epochs=1, whole=True)
    pretrain(read(photos), out, how, tmp_path / "cache", CPU)
    model = load_discriminator(out, CPU)
    assert model.crop is None
    assert model.dimension == 512
    assert model.body.net.folded


@pytest.mark.parametrize(
    ("images", "batch", "wanted"),
    [(1000, 64, 448), (200_000, 256, 65_536), (16, 8, 8), (20, 8, 8), (300_000, 48, 65_520)],
)
def test_queue_length_is_half_the_images_in_whole_batches(
    images: int, batch: int, wanted: int
) -> None:
    assert queue_length(images, batch) == wanted
