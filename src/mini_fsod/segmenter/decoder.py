"""Box prompts and the mask decoder of Segment Anything (arXiv 2304.02643, appendix A).

Modules are called as in the file of weights. What only points or masks as prompts need is left out.
"""

from __future__ import annotations

from math import tau

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_fsod.segmenter.tiny_vit import STRIDE, ChannelNorm, Widths

MASKS = 4  # of a prompt: one that is meant to fit at once, then a part of a part, a part, the whole
WHOLE = 3
UPSAMPLED = 4  # cells of a mask along a side of a cell of the encoder's map
CORNERS = (2, 3)  # embeddings of left top and right bottom; 0 and 1 are those of points


class PromptEncoder(nn.Module):
    """Positions and corners of boxes as vectors of D numbers."""

    def __init__(self, widths: Widths) -> None:
        super().__init__()
        self.pe_layer = FourierFeatures(widths.decoder)
        self.point_embeddings = nn.ModuleList(nn.Embedding(1, widths.decoder) for _ in range(4))
        self.no_mask_embed = nn.Embedding(1, widths.decoder)

    def forward(self, boxes: Tensor) -> Tensor:
        """(n, 2, D) the corners of boxes (n, 4), left, top, right, bottom as shares of the image's
        longest side.
        """
        corners = self.pe_layer(boxes.view(-1, 2, 2))
        kinds = tuple(self.point_embeddings.get_parameter(f"{n}.weight") for n in CORNERS)
        found: Tensor = corners + torch.cat(kinds)
        return found


class FourierFeatures(nn.Module):
    """Sines and cosines of random frequencies."""

    positional_encoding_gaussian_matrix: Tensor

    def __init__(self, dimension: int) -> None:
        super().__init__()
        frequencies = torch.randn(2, dimension // 2)
        self.register_buffer("positional_encoding_gaussian_matrix", frequencies)

    def forward(self, at: Tensor) -> Tensor:
        """(..., D) of positions (..., 2), x and y, from 0 to 1; in float32."""
        with torch.autocast(at.device.type, enabled=False):
            angle = tau * ((2 * at.float() - 1) @ self.positional_encoding_gaussian_matrix)
        return torch.cat([angle.sin(), angle.cos()], -1)


class MaskDecoder(nn.Module):
    """Masks of prompts, and how well each is believed to fit its object."""

    def __init__(self, widths: Widths) -> None:
        super().__init__()
        d = widths.decoder
        self.transformer = TwoWayTransformer(d, widths.decoder_heads, widths.decoder_mlp)
        self.iou_token = nn.Embedding(1, d)
        self.mask_tokens = nn.Embedding(MASKS, d)
        self.output_upscaling = nn.Sequential(
            nn.ConvTranspose2d(d, d // 4, 2, 2),
            ChannelNorm(d // 4),
            nn.GELU(),
            nn.ConvTranspose2d(d // 4, d // 8, 2, 2),
            nn.GELU(),
        )
        self.output_hypernetworks_mlps = nn.ModuleList(Mlp3(d, d // 8) for _ in range(MASKS))
        self.iou_prediction_head = Mlp3(d, MASKS)

    def forward(self, cells: Tensor, positions: Tensor, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (n, 4, 4 h, 4 w) and scores (n, 4) of prompts (n, p, D).

        cells (n, D, h, w) are the map of each prompt's image, positions (h, w, D) those of its
        cells.
        """
        n, dimension, height, width = cells.shape
        tokens = torch.cat([self.iou_token.weight, self.mask_tokens.weight])
        tokens = torch.cat([tokens.expand(n, -1, -1), prompts], 1)
        keys = cells.flatten(2).mT
        tokens, keys = self.transformer(tokens, keys, positions.flatten(0, 1))
        fine = self.output_upscaling(keys.mT.reshape(n, dimension, height, width))
        heads = [mlp(tokens[:, 1 + k]) for k, mlp in enumerate(self.output_hypernetworks_mlps)]
        logits = torch.stack(heads, 1) @ fine.flatten(2)
        masks = logits.view(n, MASKS, UPSAMPLED * height, UPSAMPLED * width)
        return masks.float(), self.iou_prediction_head(tokens[:, 0]).float()


class TwoWayTransformer(nn.Module):
    """Tokens (n, t, D) look at an image's cells (n, c, D), and the cells at them."""

    def __init__(self, dimension: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TwoWayBlock(dimension, heads, mlp, n == 0) for n in range(2))
        self.final_attn_token_to_image = Attention(dimension, heads, 2)
        self.norm_final_attn = nn.LayerNorm(dimension)

    def forward(self, tokens: Tensor, cells: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        names = tokens  # added to queries and keys again and again, as positions (c, D) are
        for layer in self.layers:
            tokens, cells = layer(tokens, cells, names, positions)
        found = self.final_attn_token_to_image(tokens + names, cells + positions, cells)
        return self.norm_final_attn(tokens + found), cells


class TwoWayBlock(nn.Module):
    def __init__(self, dimension: int, heads: int, mlp: int, first: bool) -> None:
        super().__init__()
        self.first = first  # its tokens are their names already
        self.self_attn = Attention(dimension, heads)
        self.norm1 = nn.LayerNorm(dimension)
        self.cross_attn_token_to_image = Attention(dimension, heads, 2)
        self.norm2 = nn.LayerNorm(dimension)
        self.mlp = ReluMlp(dimension, mlp)
        self.norm3 = nn.LayerNorm(dimension)
        self.cross_attn_image_to_token = Attention(dimension, heads, 2)
        self.norm4 = nn.LayerNorm(dimension)

    def forward(
        self, tokens: Tensor, cells: Tensor, names: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.first:
            tokens = self.self_attn(tokens, tokens, tokens)
        else:
            named = tokens + names
            tokens = tokens + self.self_attn(named, named, tokens)
        tokens = self.norm1(tokens)
        placed = cells + positions
        found = self.cross_attn_token_to_image(tokens + names, placed, cells)
        tokens = self.norm2(tokens + found)
        tokens = self.norm3(tokens + self.mlp(tokens))
        found = self.cross_attn_image_to_token(placed, tokens + names, tokens)
        return tokens, self.norm4(cells + found)


class Attention(nn.Module):
    """Attention of queries (n, q, D) to keys and values (n, k, D), in D / `narrower` channels."""

    def __init__(self, dimension: int, heads: int, narrower: int = 1) -> None:
        super().__init__()
        inner = dimension // narrower
        self.heads = heads
        self.q_proj = nn.Linear(dimension, inner)
        self.k_proj = nn.Linear(dimension, inner)
        self.v_proj = nn.Linear(dimension, inner)
        self.out_proj = nn.Linear(inner, dimension)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, x in ((self.q_proj, queries), (self.k_proj, keys), (self.v_proj, values))
        )
        found: Tensor = F.scaled_dot_product_attention(q, k, v)
        projected: Tensor = self.out_proj(found.transpose(1, 2).flatten(2))
        return projected


class ReluMlp(nn.Module):
    def __init__(self, dimension: int, inner: int) -> None:
        super().__init__()
        self.lin1 = nn.Linear(dimension, inner)
        self.lin2 = nn.Linear(inner, dimension)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.lin2(F.relu(self.lin1(x)))
        return found


class Mlp3(nn.Module):
    """Three linear layers with ReLU between them: (..., D) to (..., out)."""

    def __init__(self, dimension: int, out: int) -> None:
        super().__init__()
        sides = ((dimension, dimension), (dimension, dimension), (dimension, out))
        self.layers = nn.ModuleList(nn.Linear(*side) for side in sides)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.layers
        found: Tensor = third(F.relu(second(F.relu(first(x)))))
        return found


def cell_positions(height: int, width: int, side: int, device: torch.device) -> Tensor:
    """(height, width, 2) x and y of the centres of the encoder's cells, as shares of the image's
    longest side in pixels.
    """
    y = (torch.arange(height, device=device) + 0.5) * (STRIDE / side)
    x = (torch.arange(width, device=device) + 0.5) * (STRIDE / side)
    return torch.stack([x.expand(height, -1), y[:, None].expand(-1, width)], -1)
