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


def test_cosine_of_rounded_products_stays_within_tau() -> None:
    dot = np.array([1.0000001, -1.0000001])
    assert cosine(dot, np.ones(2), np.ones(2), tau=3.0).tolist() == [3.0, -3.0]


def test_cosine_of_stored_products_is_computed_in_double_precision() -> None:
    rows, prototypes = np.array([[1 / 3, 2 / 3, 0.7]]), np.array([[0, 0, 1 / 7], [0, 0, 1 / 11]])
    products = DotProducts.of(rows, prototypes)
    dot, square = (np.float32(v).astype(np.float64) for v in (rows[0, :2], rows[0, 2]))
    expected = dot / (np.sqrt(square) * np.sqrt(prototypes[:, 2]))
    found = products.cosine(np.array([0, 0]), np.array([0, 1]), tau=0.5)
    assert found.tolist() == (0.5 * np.minimum(expected, 1.0)).tolist()


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
