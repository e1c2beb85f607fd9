"""The feature pyramid (Lin et al., 2017) with torchvision's LastLevelMaxPool."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from mini_fsod.detector.convolution import convolved


class FeaturePyramid(nn.Module):
    """Maps C2 to C5 of a backbone in, P2 to P6 of `channels` channels out."""

    def __init__(self, in_channels: Sequence[int], channels: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Conv2d(c, channels, 1) for c in in_channels)
        self.outer = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in in_channels)
        for conv in [*self.inner, *self.outer]:
            nn.init.kaiming_uniform_(conv.weight, a=1)
            nn.init.zeros_(conv.bias)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        top: Tensor | None = None
        levels: list[Tensor] = []
        for inner, outer, each in reversed(list(zip(self.inner, self.outer, maps, strict=True))):
            top = convolved(inner, each, top)
            levels.insert(0, convolved(outer, top))
        return [*levels, levels[-1][:, :, ::2, ::2]]
