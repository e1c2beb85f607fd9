"""The feature pyramid (Lin et al., 2017) with torchvision's LastLevelMaxPool."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from mini_fsod.detector.convolution import conv_add_relu


class FeaturePyramid(nn.Module):
    """From maps C2 to C5 of a backbone to P2 to P6 with `channels` channels."""

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
        for inner, outer, x in reversed(list(zip(self.inner, self.outer, maps, strict=True))):
            top = conv_add_relu(inner, x, top)
            levels.insert(0, conv_add_relu(outer, top))
        return [*levels, levels[-1][:, :, ::2, ::2]]
