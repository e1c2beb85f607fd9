"""Values that depend on K, the number of shots: a preset or a file says `auto` for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

AUTO = "auto"

# By K: iterations, the fraction of them after which the learning rate falls, warm-up. As in the
# configurations of TFA and mmfewshot for split 1.
TRANSFER = {
    1: (4_000, 0.75, 0),
    2: (8_000, 0.875, 0),
    3: (12_000, 0.916667, 10),
    5: (20_000, 0.9, 10),
    10: (40_000, 0.9, 10),
}

# By K: iterations of the last fine-tuning (the paper's Appendix A)
TUNE = {1: 4_000, 2: 8_000, 3: 8_000, 5: 8_000, 10: 12_000}

# COCO: TFA's lengths, and the paper's (Appendix A)
TRANSFER_COCO = {10: (160_000, 0.9, 10), 30: (240_000, 0.9, 10)}
TUNE_COCO = {10: 4_000, 30: 8_000}

# By K: mine.mean_score. One-shot detectors are right more often than their scores say, five-shot
# detectors are not (measured at K = 1 and 5; the others are guesses).
MEAN_SCORE = {1: 0.65, 2: 0.75, 3: 0.75, 5: 0.75, 10: 0.8}

# By K: online.start. A detector re-trained from ImageNet weights never learned novel objects as
# background. With five shots, where mining works well, that brings novel classes 1.8 AP50 and costs
# base classes 2.5 (docs/results.md; K = 2, 3 and 10 were not measured).
START = {1: "transfer", 5: "weights"}

# By online.start. The few-shot detector is a good teacher from the start, and needs fewer
# iterations: 7,000 at 320 pixels take five minutes on an H200.
ONLINE_ITERATIONS = {"transfer": 7_000, "weights": 12_000}
EMA_WARM_UP = {"transfer": 0.1, "weights": 1}


def auto_values(k: int, start: str = AUTO, split: str | None = None) -> Mapping[str, Any]:
    """What `auto` means for each key that takes it: at K shots, with this online.start, on this
    data.split.
    """
    transfer, tune = (TRANSFER_COCO, TUNE_COCO) if split == "coco" else (TRANSFER, TUNE)
    iterations, decay, warm_up = _at_most(transfer, k)
    start = start if start in ONLINE_ITERATIONS else _at_most(START, k)
    return MappingProxyType(
        {
            "transfer.iterations": iterations,
            "transfer.warm_up": warm_up,
            "transfer.decay": [decay],
            "mine.mean_score": _at_most(MEAN_SCORE, k),
            "online.start": start,
            "online.iterations": ONLINE_ITERATIONS[start],
            "online.ema_warm_up": EMA_WARM_UP[start],
            "tune.iterations": _at_most(tune, k),
        }
    )


def _at_most(table: Mapping[int, Any], k: int) -> Any:
    """The entry of the largest K that is not above `k`, or of the smallest K."""
    return table[max((n for n in table if n <= k), default=min(table))]
