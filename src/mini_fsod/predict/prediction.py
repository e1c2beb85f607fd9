"""The detections of one picture, and their forms in other libraries. Does not import torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mini_fsod.data.dataset import Floats, Ints
from mini_fsod.errors import UserError

if TYPE_CHECKING:
    import supervision


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prediction:
    """The detections of one picture, best first; N may be 0."""

    path: Path | None  # None for an array or a PIL image
    size: tuple[int, int]  # width, height, as viewers show it
    xywh: Floats  # (N, 4) x, y, width, height in pixels of the picture
    labels: Ints  # (N,) indices of the detector's class names
    scores: Floats  # (N,) from 0 to 1
    names: tuple[str, ...]  # (N,) class names
    frame: int | None = None  # of a video, from 0

    @property
    def boxes(self) -> Floats:
        """(N, 4) left, top, right, bottom in pixels of the picture."""
        return np.concatenate([self.xywh[:, :2], self.xywh[:, :2] + self.xywh[:, 2:]], axis=1)

    def __len__(self) -> int:
        return len(self.scores)

    def __repr__(self) -> str:
        where = f"{self.path}, " if self.path else ""
        where += f"frame {self.frame}, " if self.frame is not None else ""
        counts = ", ".join(f"{n} {name}" for name, n in Counter(self.names).items())
        best = f"; best score {self.scores[0]:.2f}" if len(self) else ""
        return f"Prediction({where}{self.size[0]} x {self.size[1]}: {counts or 'nothing'}{best})"

    def above(self, score: float) -> Prediction:
        """Only the detections with at least this score."""
        count = int((self.scores >= score).sum())
        kept = (self.xywh[:count], self.labels[:count], self.scores[:count], self.names[:count])
        return Prediction(self.path, self.size, *kept, self.frame)

    def to_coco(self, image_id: int = 1, first_id: int = 1) -> list[dict[str, Any]]:
        """COCO annotations with scores; their ids count from `first_id`.

        Category ids are labels plus 1, as in `records.coco_categories`.
        """
        rows = zip(
            self.xywh.tolist(), self.labels.tolist(), self.scores.tolist(), self.names, strict=True
        )
        return [
            {
                "id": id_,
                "image_id": image_id,
                "category_id": label + 1,
                "bbox": [round(v, 3) for v in box],
                "area": round(box[2] * box[3], 3),
                "iscrowd": 0,
                "score": round(score, 6),
                "category": name,
            }
            for id_, (box, label, score, name) in enumerate(rows, start=first_id)
        ]

    def to_supervision(self) -> supervision.Detections:
        """The same as `supervision.Detections`, with class names in `data["class_name"]`."""
        try:
            import supervision
        except ImportError:
            raise UserError(
                "The package supervision is not installed.", "Run: pip install supervision"
            ) from None
        return supervision.Detections(
            xyxy=self.boxes.astype(np.float32),
            confidence=self.scores.astype(np.float32),
            class_id=self.labels.astype(int),
            data={"class_name": np.array(self.names, dtype=np.str_)},
        )
