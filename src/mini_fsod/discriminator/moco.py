"""MoCo v2 (He et al. 2020, Chen et al. 2020): contrastive learning with a queue of negatives.

The negatives are keys of earlier batches, from an encoder whose weights are a moving average of the
trained one's. So are its BatchNorm statistics (EMAN, Cai et al. 2021): a key does not depend on its
batch, so batches need no shuffling.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_fsod.detector.preprocess import normalise
from mini_fsod.detector.settings import IMAGENET

DIMENSION = 128
TEMPERATURE = 0.2


def info_nce(query: Tensor, key: Tensor, queue: Tensor, temperature: float) -> Tensor:
    """() MoCo's Eq. 1, the mean over a batch of -log(e^(q.k/t) / (e^(q.k/t) + sum of e^(q.n/t))).

    query and key (B, D) are positive pairs row by row; the negatives n are the rows of queue
    (K, D). All rows have length 1.
    """
    positive = (query * key).sum(1, keepdim=True)
    logits = torch.cat([positive, query @ queue.T], dim=1) / temperature
    return (logits.logsumexp(1) - logits[:, 0]).mean()


def enqueue(queue: Tensor, count: Tensor, keys: Tensor) -> None:
    """Replace the oldest keys of the queue (K, D) by keys (B, D), in place; K is a multiple of B.

    count () int64 is the number of keys so far; it is increased in place.
    """
    rows = count % len(queue) + torch.arange(len(keys), device=queue.device)
    queue.index_copy_(0, rows, keys)
    count.add_(len(keys))


class Encoder(nn.Module):
    """A body with a feature map (B, C, h, w), average pooling, and a head of two layers.

    The output rows have length 1. The head is MoCo v2's, with a BatchNorm between its layers as in
    later work: with a GroupNorm body, training is much slower to start without it.
    """

    def __init__(self, body: nn.Module, channels: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Sequential(
            nn.Linear(channels, channels),
            nn.BatchNorm1d(channels),
            nn.ReLU(),
            nn.Linear(channels, DIMENSION),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        found = self.head(self.body(pixels).mean((2, 3)))
        return F.normalize(found.float(), dim=1)


class MoCo(nn.Module):
    """The trained encoder (query), its moving average (key), and the queue.

    Losses are zero until the queue is full of keys: with fewer negatives training collapses to one
    vector for all images. Everything that changes is a parameter or a buffer, which training states
    store, and changes on the device, so that a step can be recorded.
    """

    queue: Tensor
    count: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, encoder: Encoder, queue: int, momentum: float) -> None:
        super().__init__()
        self.query = encoder
        self.key = as_buffers(deepcopy(encoder))
        self.momentum = momentum
        self.register_buffer("queue", torch.zeros(queue, DIMENSION))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.tensor(IMAGENET.mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(IMAGENET.std).view(1, 3, 1, 1))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.key.eval()
        return self

    def losses(self, views: Tensor, sizes: Tensor) -> dict[str, Tensor]:
        """views (2 B, 3, S, S) uint8: one view of each image, then another of each."""
        pixels = normalise(views, sizes, self.mean, self.std, IMAGENET)
        one, other = pixels.chunk(2)
        with torch.no_grad():
            self.update_key()
            keys = self.key(other)
        query = self.query(one)
        with torch.autocast(views.device.type, enabled=False):
            loss = info_nce(query, keys, self.queue.clone(), TEMPERATURE)
        full = self.count >= len(self.queue)
        enqueue(self.queue, self.count, keys)
        return {"loss_contrast": loss * full}

    @torch.no_grad()
    def update_key(self) -> None:
        """MoCo's Eq. 2, key <- m key + (1 - m) query, for weights and BatchNorm statistics."""
        query = self.query.state_dict()
        pairs = [
            (key, query[name])
            for name, key in self.key.state_dict().items()
            if key.is_floating_point()
        ]
        keys, queries = (list(column) for column in zip(*pairs, strict=True))
        torch._foreach_lerp_(keys, queries, 1 - self.momentum)


def as_buffers(model: Encoder) -> Encoder:
    """The model with its parameters turned into buffers, which no optimiser trains."""
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, weight.detach())
    return model
