"""The feature pyramid (Lin et al., 2017) with torchvision's LastLevelMaxPool."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


def add_enlarged(fine: Tensor, coarse: Tensor) -> Tensor:
    """fine (B, C, 2h, 2w) plus coarse (B, C, h, w) enlarged twofold by repeating its cells.

    The repeated cells are never written, and the sum stays in the maps' own precision, which
    autocast takes from `interpolate`.
    """
    images, channels, height, width = coarse.shape
    blocks = fine.view(images, channels, height, 2, width, 2)
    return (blocks + coarse[:, :, :, None, :, None]).flatten(4, 5).flatten(2, 3)


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
        top = self.inner[-1](maps[-1])
        levels = [self.outer[-1](top)]
        for i in range(len(maps) - 2, -1, -1):
            top = add_enlarged(self.inner[i](maps[i]), top)
            levels.insert(0, self.outer[i](top))
        return [*levels, levels[-1][:, :, ::2, ::2]]
