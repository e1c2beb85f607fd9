from __future__ import annotations

from math import e, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from mini_fsod.discriminator.moco import DIMENSION, Encoder, MoCo, enqueue, info_nce


class Mean(nn.Module):
    """A body of one map with one weight a channel, and a norm with statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


def model(queue: int = 8, momentum: float = 0.75) -> MoCo:
    torch.manual_seed(0)
    return MoCo(Encoder(Mean(), 3), queue, momentum).train()


def views(pictures: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (2 * pictures, 3, 8, 8), generator=rng, dtype=torch.uint8)
    return images, torch.full((2 * pictures, 2), 8)


def test_info_nce_of_hand_computed_queries() -> None:
    query = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    key = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    queue = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    # the first: 2 for its key, 0 and -2 for the others; the second: 0, and 2 and 0
    first = -log(e**2 / (e**2 + 1 + e**-2))
    second = -log(1 / (1 + e**2 + 1))
    found = info_nce(query, key, queue, 0.5)
    assert found.item() == pytest.approx((first + second) / 2, abs=1e-6)


@given(st.integers(1, 6), st.integers(1, 9), st.floats(0.05, 2))
def test_info_nce_equals_cross_entropy(b: int, k: int, t: float) -> None:
    rng = torch.Generator().manual_seed(b * 10 + k)
    unit = [nn.functional.normalize(torch.randn(n, 5, generator=rng), dim=1) for n in (b, b, k)]
    query, key, queue = unit
    logits = torch.cat(
        [torch.stack([q @ p for q, p in zip(query, key, strict=True)])[:, None], query @ queue.T], 1
    )
    wanted = nn.functional.cross_entropy(logits / t, torch.zeros(b, dtype=torch.int64))
    torch.testing.assert_close(info_nce(query, key, queue, t), wanted)


def test_enqueue_overwrites_the_oldest_keys() -> None:
    queue, count = torch.zeros(4, 1), torch.tensor(0)
    held = []
    for n in (1.0, 3.0, 5.0):
        enqueue(queue, count, torch.tensor([[n], [n + 1]]))
        held.append(queue.flatten().tolist())
    assert held == [[1, 2, 0, 0], [1, 2, 3, 4], [5, 6, 3, 4]]
    assert count == 6


def test_update_key_averages_weights_and_statistics() -> None:
    moco = model(momentum=0.75)
    with torch.no_grad():
        moco.query.head[0].weight.fill_(4)
        moco.key.head[0].weight.fill_(0)
        moco.query.body.norm.running_mean.fill_(8)
    for wanted in (1.0, 1.75):  # 0.75 x 0 + 0.25 x 4; 0.75 x 1 + 0.25 x 4
        moco.update_key()
        assert moco.key.head[0].weight.unique().tolist() == [wanted]
    assert moco.key.body.norm.running_mean.unique().tolist() == [3.5]
    assert moco.query.head[0].weight.unique().tolist() == [4]


def test_losses_compute_keys_independent_of_the_batch() -> None:
    """Otherwise keys reveal their batch, and batches have to be shuffled."""
    images, sizes = views()
    one, other = model(), model()
    one.losses(images, sizes)
    changed = images.clone()
    changed[5:] = 0  # of the second views all but the first
    other.losses(changed, sizes)
    torch.testing.assert_close(one.queue[0], other.queue[0])
    assert not torch.allclose(one.queue[1], other.queue[1])


def test_losses_are_zero_until_the_queue_is_full() -> None:
    moco = model(queue=8)
    for n, learns in enumerate((False, False, True, True)):
        moco.zero_grad()
        losses = moco.losses(*views(seed=n))
        losses["loss_contrast"].backward()
        gradient = sum(p.grad.abs().sum() for p in moco.parameters() if p.grad is not None)
        assert bool(losses["loss_contrast"] > 0) is bool(gradient > 0) is learns
    assert moco.count == 16
    torch.testing.assert_close(moco.queue.norm(dim=1), torch.ones(8))
    assert moco.queue.shape == (8, DIMENSION)


def test_moco_trains_the_query_encoder_and_stores_the_rest_as_buffers() -> None:
    """The training state stores parameters and buffers."""
    moco = model()
    assert all(name.startswith("query.") for name, _ in moco.named_parameters())
    assert {n.split(".")[0] for n in moco.state_dict()} == {
        "query",
        "key",
        "queue",
        "count",
        "mean",
        "std",
    }
    assert not moco.key.training
    assert moco.query.training
