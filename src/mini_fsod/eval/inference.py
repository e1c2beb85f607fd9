"""Runs a detector on a data set; detections are in pixels of the original pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from mini_fsod.cuda_graph import Captured
from mini_fsod.detector.batch import Detections
from mini_fsod.detector.model import Detector
from mini_fsod.eval.detections import DatasetDetections
from mini_fsod.loader.resident import Batch, to_picture
from mini_fsod.loader.schedule import Plan


def detect_all(
    detector: Detector,
    batches: Callable[[Iterable[Plan]], Iterator[Batch]],
    plans: Sequence[Plan],
    device: torch.device,
    bf16: bool,
) -> DatasetDetections:
    """Detections in the images of `plans` (`schedule.each_once`), labels in the detector's order.
    `plans` may be empty.

    `batches` is that of `Resident` or `Stream`. Results are copied to the host after the last batch
    only, so that the device never waits. Batches that did not fit into the detector's fixed sizes
    are repeated without them.
    """

    def run(images: Tensor, sizes: Tensor, exact: bool = False) -> Detections:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            return detector.detect(images, sizes, exact=exact)

    if not plans:
        return DatasetDetections.of([], [], [], [])
    detector.eval()
    captured = Captured(run, device)
    parts, exact = [], []
    for batch in batches(plans):
        found = captured(batch.images, batch.sizes)
        parts.append(_without_padding(found, batch))
        exact.append(found.exact.all())
    inexact = (~torch.stack(exact)).nonzero().flatten().tolist()
    for n, batch in zip(inexact, batches([plans[n] for n in inexact]), strict=True):
        parts[n] = _without_padding(run(batch.images, batch.sizes, exact=True), batch)
    image, label, boxes, score = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
    real = score > 0
    xywh = torch.cat((boxes[:, :2], boxes[:, 2:] - boxes[:, :2]), dim=1).double()
    return DatasetDetections.of(image[real], label[real], xywh[real], score[real].double())


def _without_padding(found: Detections, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(N,) image, label, (N, 4) box, (N,) score, without padding images; score 0 is padding.

    Copies, because the next call of a captured function overwrites its results.
    """
    count = batch.plan.count
    image = batch.image_index[:, None].expand_as(found.labels)
    boxes = to_picture(found.boxes, batch)
    columns = (image, found.labels, boxes, found.scores * found.valid)
    image, label, boxes, score = (c[:count].flatten(0, 1).clone() for c in columns)
    return image, label, boxes, score
