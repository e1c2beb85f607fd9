"""A detector of a run or checkpoint, computed as in the evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from mini_fsod import checkpoint
from mini_fsod.data.dataset import NO_BOXES
from mini_fsod.detector.model import Detector
from mini_fsod.device import fast_bf16, torch_device
from mini_fsod.eval.inference import detect_all
from mini_fsod.labels import LabelMap
from mini_fsod.loader.cache import Pictures
from mini_fsod.loader.resident import Annotations, Resident
from mini_fsod.loader.schedule import each_once
from mini_fsod.predict.model import Found, Model
from mini_fsod.predict.pictures import Decoded

BATCH = 8  # images per batch on a GPU


class TorchModel(Model):
    """A detector in PyTorch."""

    def __init__(self, detector: Detector, labels: LabelMap, source: Path, device: str) -> None:
        self._device = torch_device(device)
        self.detector = detector.to(self._device).eval()
        self.detector.to(memory_format=torch.channels_last)
        self.bf16 = fast_bf16(self._device)
        self.source, self.labels, self.device = source, labels, str(self._device)
        test = detector.settings.test
        self.min_size, self.max_size = test.min_size, test.max_size
        self.score_threshold = test.score_cut

    @classmethod
    def read(cls, path: Path, device: str = "auto") -> TorchModel:
        """The detector of a run's folder, a stage's folder or a checkpoint."""
        source = checkpoint.find(path)
        saved = checkpoint.load(source)
        return cls(saved.detector, saved.labels, source, device)

    def detect(self, pictures: Sequence[Decoded]) -> list[Found]:
        device = self._device
        kept = np.array([picture.pixels.shape[:2] for picture in pictures], dtype=np.int64)
        ends = np.cumsum(3 * kept.prod(axis=1))
        flat = Pictures(
            files=tuple(map(str, range(len(pictures)))),
            pixels=np.concatenate([picture.pixels.reshape(-1) for picture in pictures]),
            offset=np.concatenate([[0], ends[:-1]]),
            stored=kept,
            sizes=np.array([picture.size for picture in pictures], dtype=np.int64),
        )
        source = Resident(flat, Annotations.of(NO_BOXES, len(pictures)), device)
        number = len(pictures)
        if device.type == "cpu":  # each image alone needs no padding
            plans = each_once(flat.sizes, 1, self.min_size, self.max_size, most_canvases=number)
        else:
            plans = each_once(flat.sizes, min(BATCH, number), self.min_size, self.max_size)
        found = detect_all(self.detector, source.batches, plans, device, self.bf16)
        order = np.lexsort((-found.score, found.image))
        cuts = np.searchsorted(found.image[order], np.arange(1, number))
        return [
            (found.xywh[rows], found.label[rows], found.score[rows])
            for rows in np.split(order, cuts)
        ]
