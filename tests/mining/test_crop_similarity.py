"""Features of crops: principal axes, whitening and similarities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_fsod.errors import UserError
from mini_fsod.mining.crop_similarity import CropFeatures, principal_axes, whitening


def crops(pairs: object, **changes: object) -> CropFeatures:
    """Two novel classes whose shots lie on the axes; base boxes of two classes."""
    columns: dict[str, object] = {
        "pairs": pairs,
        "base": [[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]],
        "shots": [[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]],
    } | changes
    return CropFeatures(
        *(np.asarray(columns[n], dtype=np.float64).reshape(-1, 2) for n in ("pairs", "base")),
        np.array([0, 0, 1, 1]),
        np.asarray(columns["shots"], dtype=np.float64),
        np.array([0, 1, 1]),
        np.ones((2, 3)),
    )


def test_similarity_to_shots_of_hand_computed_features() -> None:
    features = crops([[3.0, 4.0], [3.0, 4.0], [-1.0, 0.0], [0.0, 0.0]])
    found = features.similarity_to_shots(np.arange(4), np.array([0, 1, 0, 1]))
    assert found.tolist() == pytest.approx([0.6, 0.8, 0.0, 0.0])  # opposite, no feature: 0
    twice = features.similarity_to_shots(np.array([1]), np.array([1]), tau=2.0)
    assert twice.tolist() == pytest.approx([1.6])


def test_similarity_to_best_uses_the_best_pairs_as_prototypes() -> None:
    # class 0: the best two point to (1, 1), its shot to (1, 0); the others have one candidate each
    features = crops([[2.0, 2.0], [5.0, 5.0], [1.0, 0.0], [0.0, 7.0], [3.0, 0.0]])
    label, score = np.array([0, 0, 0, 1, 2]), np.array([0.9, 0.8, 0.1, 0.2, 0.3])
    found = features.similarity_to_best(np.arange(5), label, score, count=2)
    assert found.tolist() == pytest.approx([1.0, 1.0, 0.5**0.5, 1.0, 1.0])
    # lengths do not matter
    one = features.similarity_to_best(np.arange(5), label, score[[2, 0, 1, 3, 4]], count=2)
    assert one[1] == pytest.approx(np.cos(np.pi / 8))


def test_competing_similarity_subtracts_a_share_of_the_best_other_class() -> None:
    # prototypes stay on the axes: the best pair of each class lies on its own
    features = crops([[2.0, 0.0], [0.0, 3.0], [4.0, 3.0], [4.0, 3.0], [4.0, -3.0]])
    label, score = np.array([0, 1, 0, 1, 0]), np.array([0.9, 0.9, 0.5, 0.5, 0.5])
    found = features.competing_similarity(np.arange(5), label, score, count=1, share=0.5)
    # the fourth is more like class 0: contested; the fifth is opposite to class 1, which costs 0
    assert found.tolist() == pytest.approx([1.0, 1.0, 0.8 - 0.3, 0.0, 0.8])
    half = features.competing_similarity(np.arange(5), label, score, 1, 0.5, tau=0.5)
    assert half == pytest.approx(found / 2)


def test_competing_similarity_refines_without_what_another_class_has() -> None:
    """Most candidates of class 0 are class 1's objects, seen in two poses; one is its own."""
    own, first, second = [1.0, 0.1], [0.1, 1.0], [-0.1, 1.0]
    features = crops([own, first, first, second, first, second])
    label = np.array([0, 0, 0, 0, 1, 1])
    score = np.array([0.6, 0.9, 0.9, 0.9, 0.9, 0.9])
    rows = np.arange(6)
    confused = features.similarity_to_best(rows, label, score, count=3)
    assert confused[1] > confused[0]
    found = features.competing_similarity(rows, label, score, count=3, share=0.5)
    assert found[0] > found[1:4].max()
    assert found[4:].min() > 0.5


def test_competing_similarity_of_one_class_alone() -> None:
    features = crops([[3.0, 4.0], [1.0, 0.0]])
    features = replace(features, shots=features.shots[:1], shots_label=features.shots_label[:1])
    found = features.competing_similarity(
        np.arange(2), np.zeros(2, dtype=np.int64), np.array([0.1, 0.9]), count=1, share=0.5
    )
    assert found.tolist() == pytest.approx([0.6, 1.0])


def test_crop_features_without_pairs() -> None:
    features, none = crops(np.zeros((0, 2))), np.zeros(0, dtype=np.int64)
    assert features.similarity_to_shots(none, none).shape == (0,)
    assert features.similarity_to_best(none, none, np.zeros(0), count=100).shape == (0,)
    assert features.competing_similarity(none, none, np.zeros(0), 100, 0.5).shape == (0,)
    assert features.whitened().pairs.shape == (0, 2)


def test_whitening_equalises_the_variance_within_classes() -> None:
    rng = np.random.default_rng(0)
    label = np.repeat([0, 1, 2], 400)
    wide = rng.normal(size=(1200, 3)) * [10.0, 1.0, 0.1]
    centres = rng.normal(size=(3, 3)) * 20
    features = wide + centres[label]
    to = whitening(features, label)
    away = np.concatenate([f - f.mean(0) for f in (features[label == c] @ to for c in range(3))])
    spread = np.sort(np.linalg.eigvalsh(away.T @ away / len(away)))
    # with shrinkage the widest direction ends above 1, the narrowest far below
    assert 0.9 < spread[-1] < 1.2
    assert spread[0] < 0.05


def test_whitening_ignores_where_the_single_box_of_a_class_lies() -> None:
    boxes, label = [[1.0, 0.0], [-1.0, 0.5]], np.array([0, 0, 1])
    near, far = (whitening(np.array([*boxes, one]), label) for one in ([2.0, 3.0], [90.0, -40.0]))
    assert near.tolist() == far.tolist()


@given(st.integers(0, 2**16), st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_whitening_is_finite_for_any_boxes(seed: int, boxes: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(boxes, 4)) * rng.integers(0, 2, size=4)
    to = whitening(features, rng.integers(0, 3, size=boxes))
    assert to.shape == (4, 4)
    assert np.isfinite(to).all()


def test_whitened_ignores_directions_that_vary_within_classes() -> None:
    # the first number varies within each base class (light), the second between classes
    base = [[-9.0, 1.0], [9.0, 1.0], [-9.0, -1.0], [9.0, -1.0]]
    features = crops(
        [[9.0, 1.0], [9.0, -1.0]], base=base, shots=[[9.0, 1.0], [0.0, 1.0], [0.0, 1.0]]
    )
    label = np.zeros(2, dtype=np.int64)
    plain, white = (
        s.similarity_to_shots(np.arange(2), label) for s in (features, features.whitened())
    )
    assert plain[1] > 0.97
    assert white[0] == pytest.approx(1.0)
    assert white[1] < 0.7


def test_principal_axes_keep_directions_with_variance() -> None:
    features = torch.tensor(
        [[3.0, 1.0, 5.0], [-3.0, -1.0, 5.0], [3.0, -1.0, 5.0], [-3.0, 1.0, 5.0]]
    )
    mean, axes = principal_axes(features)
    assert mean.tolist() == [0, 0, 5]
    assert axes.shape == (3, 2)  # the third number is constant
    assert axes.abs().round(decimals=5).tolist() == [[1, 0], [0, 1], [0, 0]]
    assert principal_axes(1e-6 * features)[1].shape == (3, 2)  # whatever the scale
    assert principal_axes(features, count=1)[1].shape == (3, 1)
    assert principal_axes(features[:1])[1].shape == (3, 1)  # one box has no variance
    with pytest.raises(UserError, match="no box of a base class"):
        principal_axes(features[:0])
