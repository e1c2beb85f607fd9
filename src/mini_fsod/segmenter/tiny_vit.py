"""The image encoder of MobileSAM (arXiv 2306.14289): TinyViT (arXiv 2207.10666) without classifier.

Convolutions at strides 4, attention within windows at strides 8 and 16. No position is encoded but
distances within a window, so images may have any size that is a multiple of 16. Modules are called
as in the file of weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

STRIDE = 16  # of the encoder's map
EXPANSION = 4  # of the inner layers of convolutional blocks and of MLPs


@dataclass(frozen=True, slots=True)
class Widths:
    """The sizes of the network."""

    stages: tuple[int, ...] = (64, 128, 160, 320)  # channels
    depths: tuple[int, ...] = (2, 2, 6, 2)  # blocks
    heads: tuple[int, ...] = (2, 4, 5, 10)  # of attention; the first stage has none
    windows: tuple[int, ...] = (7, 7, 14, 7)  # cells along a side
    decoder: int = 256  # channels of the encoder's map and of the mask decoder
    decoder_heads: int = 8
    decoder_mlp: int = 2048


class TinyViT(nn.Module):
    """Normalised images (B, 3, H, W) to maps (B, D, H / 16, W / 16); H and W multiples of 16."""

    def __init__(self, widths: Widths) -> None:
        super().__init__()
        first, last = widths.stages[0], widths.stages[-1]
        self.patch_embed = PatchEmbedding(first)
        self.layers = nn.ModuleList(Stage(widths, n) for n in range(len(widths.stages)))
        self.neck = nn.Sequential(
            nn.Conv2d(last, widths.decoder, 1, bias=False),
            ChannelNorm(widths.decoder),
            nn.Conv2d(widths.decoder, widths.decoder, 3, padding=1, bias=False),
            ChannelNorm(widths.decoder),
        )

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed(images)
        for stage in self.layers:
            x = stage(x)
        found: Tensor = self.neck(x)
        return found


class ConvNorm(nn.Module):
    """A convolution and BatchNorm, which `fold` makes one convolution once weights are loaded."""

    def __init__(
        self, channels: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.c = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn: nn.Module = nn.BatchNorm2d(out)

    def fold(self) -> None:
        if isinstance(self.bn, nn.BatchNorm2d):
            self.c, self.bn = fuse_conv_bn_eval(self.c.eval(), self.bn.eval()), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.bn(self.c(x))
        return found


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of a map (B, C, H, W)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class PatchEmbedding(nn.Module):
    """Images (B, 3, H, W) to maps (B, out, H / 4, W / 4)."""

    def __init__(self, out: int) -> None:
        super().__init__()
        self.seq = nn.Sequential(
            ConvNorm(3, out // 2, 3, 2), nn.GELU(), ConvNorm(out // 2, out, 3, 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.seq(x)
        return found


class Stage(nn.Module):
    """Blocks on maps (B, C, H, W), then a halving of the map, but for the last two stages."""

    def __init__(self, widths: Widths, n: int) -> None:
        super().__init__()
        channels, heads, window = widths.stages[n], widths.heads[n], widths.windows[n]
        self.blocks = nn.ModuleList(
            WindowBlock(channels, heads, window) if n else ConvBlock(channels)
            for _ in range(widths.depths[n])
        )
        self.downsample: nn.Module = nn.Identity()
        if n + 1 < len(widths.stages):
            to_last = n + 2 == len(widths.stages)  # MobileSAM keeps the map of the last stage
            self.downsample = Merging(channels, widths.stages[n + 1], 1 if to_last else 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.downsample(x)
        return found


class ConvBlock(nn.Module):
    """An inverted bottleneck (MBConv) with a residual sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = EXPANSION * channels
        self.conv1 = ConvNorm(channels, inner)
        self.conv2 = ConvNorm(inner, inner, 3, groups=inner)
        self.conv3 = ConvNorm(inner, channels)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.conv2(F.gelu(self.conv1(x))))
        return F.gelu(x + self.conv3(inner))


class Merging(nn.Module):
    """Maps (B, C, H, W) to (B, out, H / stride, W / stride)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = ConvNorm(channels, out)
        self.conv2 = ConvNorm(out, out, 3, stride, groups=out)
        self.conv3 = ConvNorm(out, out)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv3(F.gelu(self.conv2(F.gelu(self.conv1(x)))))
        return found


class WindowBlock(nn.Module):
    """Attention within windows, a depthwise convolution, and an MLP, on maps (B, C, H, W)."""

    def __init__(self, channels: int, heads: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.attn = WindowAttention(channels, heads, window)
        self.local_conv = ConvNorm(channels, channels, 3, groups=channels)
        self.mlp = Mlp(channels)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        cells = x.permute(0, 2, 3, 1)
        found = from_windows(self.attn(to_windows(cells, self.window)), self.window, height, width)
        cells = self.local_conv((cells + found).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        mixed: Tensor = cells + self.mlp(cells)
        return mixed.permute(0, 3, 1, 2)


class WindowAttention(nn.Module):
    """Attention among the N = window x window cells (n, N, C), biased by their distance."""

    distance: Tensor

    def __init__(self, channels: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.attention_biases = nn.Parameter(torch.zeros(heads, window**2))
        self.register_buffer("distance", distances(window), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        n, cells, channels = x.shape
        # by head, then query, key and value
        qkv = self.qkv(self.norm(x)).view(n, cells, self.heads, 3, channels // self.heads)
        query, key, value = qkv.permute(3, 0, 2, 1, 4)
        bias = self.attention_biases[:, self.distance].to(query.dtype)
        found = F.scaled_dot_product_attention(query, key, value, bias)
        projected: Tensor = self.proj(found.transpose(1, 2).reshape(n, cells, channels))
        return projected


class Mlp(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.fc1 = nn.Linear(channels, EXPANSION * channels)
        self.fc2 = nn.Linear(EXPANSION * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc2(F.gelu(self.fc1(self.norm(x))))
        return found


def distances(window: int) -> Tensor:
    """(N, N) the number of the distance between two cells of a window: |dy| x window + |dx|."""
    cell = torch.arange(window**2)
    row, column = cell // window, cell % window
    down, along = (row[:, None] - row).abs(), (column[:, None] - column).abs()
    return down * window + along


def to_windows(cells: Tensor, window: int) -> Tensor:
    """Cells (B, H, W, C), filled up with zeros, as windows (n, window x window, C)."""
    batch, height, width, channels = cells.shape
    cells = F.pad(cells, (0, 0, 0, -width % window, 0, -height % window))
    down, along = cells.shape[1] // window, cells.shape[2] // window
    parts = cells.view(batch, down, window, along, window, channels)
    return parts.transpose(2, 3).reshape(-1, window**2, channels)


def from_windows(parts: Tensor, window: int, height: int, width: int) -> Tensor:
    """The inverse of `to_windows`: cells (B, height, width, C)."""
    down, along = -(-height // window), -(-width // window)
    cells = parts.view(-1, down, along, window, window, parts.shape[-1]).transpose(2, 3)
    return cells.reshape(-1, down * window, along * window, parts.shape[-1])[:, :height, :width]
