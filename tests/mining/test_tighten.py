"""Mined boxes on coloured shapes, tightened by a segmenter that knows the colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.run_data import run_data
from helpers.tiny_segmenter import ColourSegmenter, tiny_segmenter
from mini_fsod.data.dataset import Dataset
from mini_fsod.data.overlap import iou
from mini_fsod.mining.candidates import Candidates
from mini_fsod.mining.tighten import longest_side, tighten, tightened_boxes

CPU = torch.device("cpu")


def candidates(image: list[int], xywh: np.ndarray) -> Candidates:
    """Of one class, each less sure than the one before."""
    score = np.linspace(0.9, 0.5, len(image))
    labels = np.zeros(len(image), dtype=np.int64)
    return Candidates(np.array(image, dtype=np.int64), labels, xywh, score, score, None)


@pytest.fixture(scope="module")
def data(shapes_data: Path) -> Dataset:
    return run_data(shapes_data).mined


@pytest.fixture
def objects(data: Dataset) -> Candidates:
    """The objects of the novel class that are alone in their pictures, a quarter too high."""
    novel = data.boxes.take(data.boxes.label == 2)
    alone = np.bincount(novel.image, minlength=len(data))[novel.image] == 1
    assert alone.sum() >= 4
    return candidates(novel.image[alone].tolist(), novel.xywh[alone] * [1, 1, 1, 1.25])


def test_tightened_boxes_end_with_the_object(data: Dataset, objects: Candidates) -> None:
    found = tightened_boxes(ColourSegmenter(), data, objects, CPU)
    truth = objects.xywh / [1, 1, 1, 1.25]
    hidden = np.abs(found - truth).max(1) > 2  # another shape lies on it
    assert hidden.mean() < 0.5
    assert (iou(found[~hidden], truth[~hidden]) > iou(objects.xywh, truth)[~hidden]).all()


def test_tightened_boxes_stay_where_the_segmenter_is_unsure(
    data: Dataset, objects: Candidates
) -> None:
    unsure = ColourSegmenter(score=0.5)
    assert np.array_equal(tightened_boxes(unsure, data, objects, CPU), objects.xywh)


def test_tightened_boxes_of_a_whole_network(data: Dataset, objects: Candidates) -> None:
    """Random weights believe nothing, and see every box."""
    found = tightened_boxes(tiny_segmenter(), data, objects, CPU)
    assert np.isfinite(found).all()
    assert found.shape == objects.xywh.shape


def test_tighten_changes_the_pool_alone(data: Dataset, objects: Candidates) -> None:
    kept = np.ones(len(objects), dtype=np.bool_)
    kept[0] = False
    found, pool = tighten(ColourSegmenter(), data, objects, kept, CPU)
    assert np.array_equal(pool, kept)
    assert np.array_equal(found.xywh[0], objects.xywh[0])
    assert not np.array_equal(found.xywh, objects.xywh)
    assert np.array_equal(found.score, objects.score)


def test_tighten_keeps_the_better_of_two_boxes_of_one_object(
    data: Dataset, objects: Candidates
) -> None:
    """The left and the right 0.6 of an object become the object twice."""
    image, (x, y, width, height) = int(objects.image[0]), objects.xywh[0] / [1, 1, 1, 1.25]
    halves = np.array([[x, y, 0.6 * width, height], [x + 0.4 * width, y, 0.6 * width, height]])
    both = candidates([image, image], halves)
    found, pool = tighten(ColourSegmenter(), data, both, np.array([True, True]), CPU)
    assert pool.tolist() == [True, False]
    assert iou(found.xywh[:1], np.array([[x, y, width, height]]))[0] > 0.85
    assert np.array_equal(found.xywh[1], halves[1])


def test_tighten_an_empty_pool_and_no_candidates(data: Dataset, objects: Candidates) -> None:
    nobody = np.zeros(len(objects), dtype=np.bool_)
    found, pool = tighten(ColourSegmenter(), data, objects, nobody, CPU)
    assert np.array_equal(found.xywh, objects.xywh)
    assert not pool.any()
    none = objects.take(nobody)
    found, pool = tighten(ColourSegmenter(), data, none, nobody[:0], CPU)
    assert (len(found), len(pool)) == (0, 0)


def test_longest_side_of_small_pictures() -> None:
    assert longest_side(np.array([[320, 480], [512, 300], [320, 640]])) == 512
    assert longest_side(np.array([[320, 512], [320, 640], [640, 320]])) == 1024
