from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from mini_fsod.demo import digits, write_demo_data
from mini_fsod.errors import UserError

pytest.importorskip("sklearn", reason="the demo extra is not installed")
pytest.importorskip("skimage", reason="the demo extra is not installed")

PARTS = ("train", "shots", "test")


def test_digit_indices_and_photographs_are_disjoint_between_parts() -> None:
    images, target = digits.digit_images()
    for digit in range(10):
        parts = [set(digits.digit_indices(part, digit)) for part in PARTS]
        assert all(not a & b for a, b in combinations(parts, 2))
        assert set.union(*parts) == set(np.flatnonzero(target == digit).tolist())
        assert all(len(part) >= 25 for part in parts)
        pixels = [{images[i].tobytes() for i in part} for part in parts]
        assert all(not a & b for a, b in combinations(pixels, 2)), "no image occurs twice"
    names = [name for part in PARTS for name in digits.PHOTOGRAPHS[part]]
    assert len(names) == len(set(names))


def test_digit_images_without_scikit_learn_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits.digit_images.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UserError, match="scikit-learn") as caught:
        write_demo_data(tmp_path / "out", 0.001)
    assert 'pip install "mini-fsod[demo]"' in caught.value.fix
    assert list(tmp_path.iterdir()) == []


def test_photograph_without_scikit_image_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="scikit-image") as caught:
        write_demo_data(tmp_path / "out", 0.001)
    assert 'pip install "mini-fsod[demo]"' in caught.value.fix
