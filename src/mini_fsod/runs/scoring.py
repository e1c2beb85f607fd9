"""Scores on the test set of a run, and how long they will take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mini_fsod import console
from mini_fsod.config.schema import Config
from mini_fsod.data.dataset import Dataset, Ints
from mini_fsod.data.subsets import arranged, spread
from mini_fsod.detector.model import Detector
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.eval.errors import error_figures
from mini_fsod.eval.inference import detect_all
from mini_fsod.eval.kept_detections import write_detections
from mini_fsod.eval.score import score
from mini_fsod.labels import LabelMap
from mini_fsod.loader.cache import image_sizes
from mini_fsod.loader.schedule import Plan, each_once
from mini_fsod.runs.data import RunData, counted
from mini_fsod.train.distributed import ALONE, Team, gather
from mini_fsod.train.loop import clock

TEST_BATCH = {"cuda": 32}  # images per batch
TEST_BATCH_ELSEWHERE = 4
TIMED = {"cuda": 512}  # images that `scoring_seconds` looks at
TIMED_ELSEWHERE = 2


def score_test_set(
    config: Config,
    data: RunData,
    detector: Detector,
    labels: LabelMap,
    bf16: bool,
    file: Path | None = None,
    team: Team = ALONE,
) -> dict[str, Any]:
    """The detector's scores on the test set, as `eval.score.score` gives them, and its errors as
    `eval.errors.error_figures` does. The detections are written into `file`.

    The processes of the group share the images; rank 0 scores, the others get nothing.
    """
    metric, test = config.data.metric, data.test
    if test is None:
        nothing = dict.fromkeys(("nAP50", "bAP50", "AP50", "test_set"))
        none = dict.fromkeys(("images", "of_images", "detections"), 0)
        return {"metric": metric, **nothing, "per_class": {}, **none}
    images = arranged(test, labels)
    found = _detections(config, data, detector, images, bf16, team)
    if not team.leads:
        return {}
    if file is not None:
        write_detections(file, found, images)
    about = {"test_set": test.digest, "of_images": len(data.test_set or ())}
    errors = error_figures(images, found, labels, metric)
    return score(images, found, labels, metric) | about | {"errors": errors}


def scoring_seconds(
    config: Config, data: RunData, detector: Detector, labels: LabelMap, bf16: bool
) -> float:
    """How long it will take to score on the test set, by a few of its images; 0 without one.

    They are detected twice: the first time includes the start, as the choice of kernels.
    """
    device, test = detector.mean.device.type, data.test
    if test is None:
        return 0.0
    few = arranged(spread(test, TIMED.get(device, TIMED_ELSEWHERE)), labels)
    for _ in range(2):
        began = clock()
        _detections(config, data, detector, few, bf16)
        took = clock() - began
    whole, part = (
        sum(plan.batch * plan.canvas[0] * plan.canvas[1] for plan in plans)
        for plans in (batches_at_test(config, image_sizes(d), device) for d in (test, few))
    )
    return took * whole / part


def batches_at_test(config: Config, sizes: Ints, device: str) -> list[Plan]:
    """The batches of a test, for images of sizes (I, 2), on a type of device."""
    size = min(TEST_BATCH.get(device, TEST_BATCH_ELSEWHERE), len(sizes))
    return each_once(sizes, size, config.views.test, config.views.long)


def _detections(
    config: Config,
    data: RunData,
    detector: Detector,
    images: Dataset,
    bf16: bool,
    team: Team = ALONE,
) -> DatasetDetections:
    device = detector.mean.device
    batches, sizes = data.batches(images)
    plans = team.part(batches_at_test(config, sizes, device.type))
    with console.progress("testing", len(plans)) as report:
        part = detect_all(detector, counted(batches, report), plans, device, bf16)
    return DatasetDetections.joined(gather(part, team))
