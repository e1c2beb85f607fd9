"""Equations 2 to 4 on hand-computed vectors, and dot products against the features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_fsod.errors import UserError
from mini_fsod.mining.calibration import DotProducts, calibrated, cosine, dot_products, prototypes


def test_prototypes_are_means_of_shots() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 8.0], [3.0, 2.0]])
    found = prototypes(features, torch.tensor([0, 1, 0]), ["bird", "bus"])
    assert found.tolist() == [[2.0, 1.0], [0.0, 8.0]]


def test_prototypes_refuses_a_class_without_shots() -> None:
    with pytest.raises(UserError, match="no shot of bus, cow"):
        prototypes(torch.ones(2, 3), torch.tensor([0, 0]), ["bird", "bus", "cow"])


def test_cosine_of_hand_computed_vectors() -> None:
    # f = (3, 4), p = (1, 0): 3 / (5 x 1); opposite; orthogonal; a zero vector
    dot = np.array([3.0, -3.0, 0.0, 0.0])
    square = np.array([25.0, 25.0, 25.0, 0.0])
    one = np.ones(4)
    assert cosine(dot, square, one).tolist() == pytest.approx([0.6, -0.6, 0, 0])
    assert cosine(dot, square, one, tau=4.0).tolist() == pytest.approx([2.4, -2.4, 0, 0])


def test_calibrated_of_hand_computed_scores() -> None:
    score = np.array([0.25, 0.5, 0.5])
    assert calibrated(score, np.array([0.64, 1.0, -0.3])).tolist() == pytest.approx(
        [0.4, 0.5**0.5, 0]
    )
    assert calibrated(np.zeros(0), np.zeros(0)).shape == (0,)


def test_dot_products_of_no_features() -> None:
    assert dot_products(torch.zeros(0, 3), torch.ones(2, 3)).shape == (0, 3)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_dot_products_give_the_cosines_of_the_features(seed: int) -> None:
    rng = np.random.default_rng(seed)
    f, p = rng.normal(size=(6, 5)), rng.normal(size=(3, 5))
    table = torch.tensor(p)
    products = DotProducts.of(*(dot_products(torch.tensor(a), table) for a in (f, p)))
    proposal, label = np.repeat(np.arange(6), 3), np.tile(np.arange(3), 6)
    expected = f @ p.T / np.linalg.norm(f, axis=1)[:, None] / np.linalg.norm(p, axis=1)
    found = products.cosine(proposal, label, tau=2.0)
    assert found == pytest.approx(np.maximum(2 * expected.ravel(), 0), abs=1e-5)
