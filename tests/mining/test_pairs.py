"""Pairs of a proposal and a class: from detections, and to disk and back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from helpers.pairs import pairs_of, random_pairs, rows_of, with_cosines, with_crops
from mini_fsod.errors import UserError
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.mining.candidates import select_candidates
from mini_fsod.mining.pairs import Pairs, pairs_from_detections

BOX = (10.0, 10.0, 20.0, 20.0)
NEAR = (11.0, 10.0, 20.0, 20.0)
APART = (50.0, 10.0, 20.0, 20.0)


def test_pairs_from_detections_keeps_novel_ones_above_the_score() -> None:
    found = DatasetDetections.of(
        [2, 0, 1, 1], [1, 0, 2, 1], [BOX, BOX, NEAR, APART], [0.9, 0.9, 0.5, 0.04]
    )
    pairs = pairs_from_detections(found, ("car", "bird", "bus"), ("bus", "bird"), 0.05)
    assert pairs.image.tolist() == [2, 1]
    assert pairs.label.tolist() == [1, 0]
    assert pairs.proposal.tolist() == [0, 1]
    assert pairs.xywh.tolist() == [list(BOX), list(NEAR)]
    assert pairs.products is None
    nothing = DatasetDetections.of([], [], [], [])
    assert len(pairs_from_detections(nothing, ("bird",), ("bird",), 0.05)) == 0


@pytest.mark.parametrize("score", [87.0, -0.1])
def test_pairs_from_detections_refuses_scores_beyond_0_to_1(score: float) -> None:
    found = DatasetDetections.of([0], [0], [BOX], [score])
    with pytest.raises(UserError, match="from 0 to 1"):
        pairs_from_detections(found, ("bird",), ("bird",), 0.05)


@settings(max_examples=90, deadline=None)
@given(random_pairs(crops=True))
def test_save_and_load_give_the_same_candidates(
    tmp_path_factory: pytest.TempPathFactory, pairs: Pairs
) -> None:
    """To the last digit: the stage `mine` must not depend on who has scanned."""
    path = tmp_path_factory.mktemp("scan") / "raw.npz"
    replace(pairs, files=("a.png", "b c.png")).save(path)
    loaded = Pairs.load(path)
    assert loaded.files == ("a.png", "b c.png")
    assert (loaded.products is None) == (pairs.products is None)
    assert (loaded.crops is None) == (pairs.crops is None)
    for how in ({}, {"whiten": True, "refine": 2}):
        one, two = (select_candidates(each, **how) for each in (loaded, pairs))
        assert rows_of(one) == rows_of(two)
    if loaded.crops is not None and pairs.crops is not None:
        assert loaded.crops.correction.tolist() == pairs.crops.correction.tolist()


def write_damaged(path: Path, how: str) -> None:
    pairs = with_cosines(pairs_of((0, 0, 0.5, BOX), (0, 1, 0.5, BOX)), [1, 1])
    changed = {
        "lengths": replace(pairs, label=pairs.label[:1]),
        "finite": replace(pairs, score=np.array([np.nan, 1], dtype=np.float32)),
        "unknown": replace(pairs, proposal=np.array([0, 2])),
        "negative": replace(pairs, image=np.array([0, -1], dtype=np.int32)),
    }
    with_features = with_crops(replace(pairs, products=None), seed=0)
    assert with_features.crops is not None
    for name in ("pairs", "base", "shots", "correction"):
        short = replace(with_features.crops, **{name: getattr(with_features.crops, name)[:1]})
        changed[f"lengths of {name}"] = replace(with_features, crops=short)
    changed.get(how, pairs).save(path)
    if how == "cut off":
        path.write_bytes(path.read_bytes()[:700])
    if how == "flipped":
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 255
        path.write_bytes(content)
    if how == "text":
        path.write_text("no arrays")
    if how == "missing":
        path.unlink()
    if how == "version":
        np.savez(path, format=99)
    with np.load(path) if how in REWRITTEN else nullcontext({}) as stored:
        columns = dict(stored)
    if how == "compressed":
        np.savez_compressed(path, **columns)
    elif how in REWRITTEN:
        np.savez(path, **REWRITTEN[how](columns))


REWRITTEN: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "compressed": lambda columns: columns,
    "without a column of crops": lambda columns: (
        columns | {"crops_pairs": columns["xywh"], "crops_base_label": columns["image"]}
    ),
    "labels that are no integers": lambda columns: columns | {"label": np.array([0.0, 1.0])},
    "scores that are text": lambda columns: columns | {"score": np.array(["0", "1"])},
    "names of no bytes": lambda columns: columns | {"files": np.zeros(10**8, dtype="V0")},
    "one number": lambda columns: columns | {"crops_pairs": np.float64(1)},
}


@pytest.mark.parametrize(
    "how",
    [
        *("lengths", "lengths of pairs", "lengths of base", "lengths of shots", "finite"),
        *("lengths of correction", "unknown", "negative", "cut off", "flipped", "text"),
        *("missing", "version", *REWRITTEN),
    ],
)
def test_load_refuses_damaged_files(tmp_path: Path, how: str) -> None:
    path = tmp_path / "raw.npz"
    write_damaged(path, how)
    with pytest.raises(UserError, match=r"raw\.npz: not the result of a scan") as caught:
        Pairs.load(path)
    assert str(tmp_path) in caught.value.fix
