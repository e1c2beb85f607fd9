"""Prompts and masks: shapes, positions, and what a prompt depends on."""

from __future__ import annotations

import torch

from helpers.tiny_segmenter import TINY, tiny_segmenter
from mini_fsod.segmenter.decoder import cell_positions

CPU = torch.device("cpu")


def test_cell_positions_are_centres() -> None:
    found = cell_positions(2, 3, 64, CPU)
    assert found.shape == (2, 3, 2)
    assert found[0, 0].tolist() == [0.125, 0.125]
    assert found[1, 2].tolist() == [0.625, 0.375]


def test_prompt_encoder_of_corners() -> None:
    """The same place is another prompt as left top than as right bottom."""
    encoder = tiny_segmenter().prompt_encoder
    prompts = encoder(torch.tensor([[0.1, 0.2, 0.5, 0.6], [0.5, 0.6, 0.9, 0.9]]))
    assert prompts.shape == (2, 2, TINY.decoder)
    assert not torch.allclose(prompts[0, 1], prompts[1, 0])
    position = encoder.pe_layer(torch.tensor([0.5, 0.6]))
    left_top = prompts[1, 0] - position
    torch.testing.assert_close(left_top, encoder.point_embeddings[2].weight[0])
    assert encoder(torch.zeros(0, 4)).shape == (0, 2, TINY.decoder)


def test_mask_decoder_answers_each_prompt_by_itself() -> None:
    net = tiny_segmenter()
    cells, positions = torch.rand(3, 16, 4, 5), torch.rand(4, 5, 16)
    prompts = torch.rand(3, 2, 16)
    masks, scores = net.mask_decoder(cells, positions, prompts)
    assert (masks.shape, scores.shape) == ((3, 4, 16, 20), (3, 4))
    alone, score = net.mask_decoder(cells[1:2], positions, prompts[1:2])
    torch.testing.assert_close(alone[0], masks[1])
    torch.testing.assert_close(score[0], scores[1])
    assert not torch.allclose(masks[0], masks[1])
