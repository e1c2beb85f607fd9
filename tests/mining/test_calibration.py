"""Equations 2 to 4 on vectors worked by hand, and centring against the vectors themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_fsod.errors import UserError
from mini_fsod.mining.calibration import calibrated, centred, cosine, products, prototypes
from mini_fsod.mining.candidates import Dots


def test_a_prototype_is_the_mean_of_its_shots() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 8.0], [3.0, 2.0]])
    found = prototypes(features, torch.tensor([0, 1, 0]), ["bird", "bus"])
    assert found.tolist() == [[2.0, 1.0], [0.0, 8.0]]


def test_a_class_without_shots_is_named() -> None:
    with pytest.raises(UserError, match="no shot of bus, cow"):
        prototypes(torch.ones(2, 3), torch.tensor([0, 0]), ["bird", "bus", "cow"])


def test_cosine_by_hand() -> None:
    # f = (3, 4), p = (1, 0): 3 / (5 x 1); against it; at right angles; a zero vector
    dot = np.array([3.0, -3.0, 0.0, 0.0])
    square = np.array([25.0, 25.0, 25.0, 0.0])
    one = np.ones(4)
    assert cosine(dot, square, one).tolist() == pytest.approx([0.6, -0.6, 0, 0])
    assert cosine(dot, square, one, tau=4.0).tolist() == pytest.approx([2.4, -2.4, 0, 0])


def test_calibration_by_hand() -> None:
    score = np.array([0.25, 0.5, 0.5])
    assert calibrated(score, np.array([0.64, 1.0, -0.3])).tolist() == pytest.approx(
        [0.4, 0.5**0.5, 0]
    )
    assert calibrated(np.zeros(0), np.zeros(0)).shape == (0,)


def test_products_of_zero_features() -> None:
    assert products(torch.zeros(0, 3), torch.ones(2, 3), torch.ones(3)).shape == (0, 4)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100))
def test_centring_equals_that_of_the_vectors(seed: int, scale: float) -> None:
    rng = np.random.default_rng(seed)
    f, p, mean = rng.normal(size=(6, 5)), rng.normal(size=(3, 5)), scale * rng.normal(size=5)
    table = [torch.tensor(a) for a in (p, mean)]
    dots = Dots.of(*(products(torch.tensor(np.atleast_2d(a)), *table) for a in (f, p, mean)))
    proposal, label = np.repeat(np.arange(6), 3), np.tile(np.arange(3), 6)
    for centre in (False, True):
        a, b = (f - mean, p - mean) if centre else (f, p)
        expected = a @ b.T / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)
        found = dots.cosine(proposal, label, tau=2.0, centre=centre)
        # single precision of what is kept, times what centring cancels
        close = 1e-6 * (1 + scale**2) + 1e-5
        assert found == pytest.approx(np.maximum(2 * expected.ravel(), 0), abs=close)


def test_a_feature_at_the_mean_has_no_direction() -> None:
    one = np.ones(1)
    dot, square, prototype_square = centred(one, one, 4 * one, one, one, 1.0)
    assert (dot.tolist(), square.tolist(), prototype_square.tolist()) == ([0], [0], [3])
    assert cosine(dot, square, prototype_square).tolist() == [0]
