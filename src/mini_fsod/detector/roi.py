"""The heads after RoIAlign: box head, classifier and box predictor, IoU branch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_fsod.detector.on_cpu import linear
from mini_fsod.detector.settings import Classifier

COSINE_SCALE = 20.0  # as in TFA


class BoxHead(nn.Module):
    """Pooled features (R, channels, size, size) to vectors (R, width). R = 0 is fine.

    The first layer's input is ordered by cell, then channel, the order in which the pooling kernel
    writes it; torchvision's is ordered by channel, then cell.
    """

    def __init__(self, channels: int, size: int, convs: int, layers: int, width: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(channels, channels, 3, padding=1) for _ in range(convs)
        )
        widths = [channels * size * size] + [width] * layers
        self.layers = nn.ModuleList(nn.Linear(widths[i], width) for i in range(layers))
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 4:
                nn.init.kaiming_normal_(parameter, mode="fan_out", nonlinearity="relu")
            else:
                nn.init.kaiming_uniform_(parameter, a=1)

    def forward(self, pooled: Tensor) -> Tensor:
        x = pooled
        for conv in self.convs:
            x = F.relu(conv(x), inplace=True)
        x = x.permute(0, 2, 3, 1).flatten(1)
        layer: Any
        for layer in self.layers:
            x = F.relu(linear(layer, x), inplace=True)
        return x


class CosineClassifier(nn.Module):
    """20 times the cosine similarity with each class's weight; no bias (TFA, Eq. 1)."""

    def __init__(self, width: int, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x / (x.norm(dim=-1, keepdim=True) + 1e-5)
        weight = self.weight / (self.weight.norm(dim=-1, keepdim=True) + 1e-5)
        return COSINE_SCALE * F.linear(x, weight)


class Predictor(nn.Module):
    """Class logits and class-specific boxes.

    Rows of `classifier`: the background, further `negatives` that count as background, then the
    classes. Rows of `boxes`: four per class. New classes are rows appended to both. Always float32:
    bfloat16 rounds logits near 16 to 0.06, so that scores would tie.
    """

    def __init__(
        self, width: int, num_classes: int, classifier: Classifier, negatives: int = 0
    ) -> None:
        super().__init__()
        self.classifier: nn.Module
        rows = 1 + negatives + num_classes
        if classifier == "linear":
            self.classifier = nn.Linear(width, rows)
            nn.init.zeros_(self.classifier.bias)
        else:
            self.classifier = CosineClassifier(width, rows)
        self.boxes = nn.Linear(width, 4 * num_classes)
        nn.init.normal_(self.classifier.weight, std=0.01)
        nn.init.normal_(self.boxes.weight, std=0.001)
        nn.init.zeros_(self.boxes.bias)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (R, 1 + N + C) and deltas (R, C, 4) of vectors (R, width); N negatives.

        R = 0 is fine.
        """
        with torch.autocast(hidden.device.type, enabled=False):
            hidden = hidden.float()
            deltas = self.boxes(hidden)
            return self.classifier(hidden), deltas.unflatten(1, (-1, 4))


class IoUBranch(nn.Module):
    """Predicts the IoU of a RoI's final box ("IoU Branching Correction"), one for all classes.

    Two layers of its own on the pooled features and one output, a logit: its sigmoid is the IoU.
    """

    def __init__(self, channels: int, size: int, width: int) -> None:
        super().__init__()
        self.head = BoxHead(channels, size, convs=0, layers=2, width=width)
        self.predict = nn.Linear(width, 1)
        nn.init.normal_(self.predict.weight, std=0.01)
        nn.init.zeros_(self.predict.bias)

    def forward(self, pooled: Tensor) -> Tensor:
        """Logits (R,) of pooled features (R, channels, size, size)."""
        return self.logits(self.head(pooled))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (...) of the head's vectors (..., width), in float32."""
        with torch.autocast(hidden.device.type, enabled=False):
            logits: Tensor = self.predict(hidden.float())
        return logits.squeeze(-1)
