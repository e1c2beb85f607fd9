"""MoCo v2 (He et al. 2020, Chen et al. 2020): two views of a picture are alike, others are not.

Keys of earlier batches, in a queue, are the others. They come from an encoder that trails the one
that learns. Here it normalises by trailing statistics too (EMAN, Cai et al. 2021): nothing in a key
tells which batch it came from, so that no batch has to be shuffled.
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

    query and key (B, D) belong together row by row; the n are the rows of queue (K, D). All rows
    have length 1.
    """
    alike = (query * key).sum(1, keepdim=True)
    logits = torch.cat([alike, query @ queue.T], dim=1) / temperature
    return (logits.logsumexp(1) - logits[:, 0]).mean()


def put(queue: Tensor, seen: Tensor, keys: Tensor) -> None:
    """Keys (B, D) over the oldest of the queue (K, D), in place; K is a multiple of B.

    seen () int64 is how many keys came before, and is counted on.
    """
    rows = seen % len(queue) + torch.arange(len(keys), device=queue.device)
    queue.index_copy_(0, rows, keys)
    seen.add_(len(keys))


class Encoder(nn.Module):
    """A body that gives one map (B, C, h, w), its mean, and a head of two layers: rows of length 1.

    MoCo v2's head, with a BatchNorm between its layers as in later work. Where the body has none
    (GroupNorm), it decides how soon learning sets in.
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
    """The encoder that learns (query), the one that trails (key), and the queue.

    Nothing is learnt before the queue is full of keys: against anything else the easiest answer is
    the same vector for all pictures, which does not come apart again. All that moves is a weight
    that learns or a buffer, for that is what the state of a run keeps; and it moves on the device,
    so that a step can be recorded.
    """

    queue: Tensor
    seen: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, encoder: Encoder, queue: int, momentum: float) -> None:
        super().__init__()
        self.query = encoder
        self.key = as_buffers(deepcopy(encoder))
        self.momentum = momentum
        self.register_buffer("queue", torch.zeros(queue, DIMENSION))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.tensor(IMAGENET.mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(IMAGENET.std).view(1, 3, 1, 1))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.key.eval()
        return self

    def losses(self, views: Tensor, sizes: Tensor) -> dict[str, Tensor]:
        """views (2 B, 3, S, S) uint8: first one of each picture, then another of each."""
        pixels = normalise(views, sizes, self.mean, self.std, IMAGENET)
        one, other = pixels.chunk(2)
        with torch.no_grad():
            self.follow()
            keys = self.key(other)
        query = self.query(one)
        with torch.autocast(views.device.type, enabled=False):
            loss = info_nce(query, keys, self.queue.clone(), TEMPERATURE)
        full = self.seen >= len(self.queue)
        put(self.queue, self.seen, keys)
        return {"loss_contrast": loss * full}

    @torch.no_grad()
    def follow(self) -> None:
        """key <- m key + (1 - m) query, MoCo's Eq. 2: weights, and the statistics of norms."""
        theirs = self.query.state_dict()
        pairs = [
            (own, theirs[name])
            for name, own in self.key.state_dict().items()
            if own.is_floating_point()
        ]
        own, their = (list(column) for column in zip(*pairs, strict=True))
        torch._foreach_lerp_(own, their, 1 - self.momentum)


def as_buffers(model: Encoder) -> Encoder:
    """The model with its weights turned into buffers: they move, but nothing learns them."""
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, weight.detach())
    return model
