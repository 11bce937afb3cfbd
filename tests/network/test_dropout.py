"""Run: pytest tests/network/test_dropout.py"""

import numpy as np
import pytest
import torch
from four_texts import TEXTS, Case, batch, network_of

from axml_ray.network.paper.dropout import dropout


class TestDropout:
    @pytest.mark.parametrize("layer", ["embedding_dropout", "encoder_dropout"])
    def test_drops_in_training_only(self, layer):
        network = network_of(None, **{layer: 0.5})
        one = batch(network, Case())
        assert not torch.equal(*(network.encode(one.tokens, one.own_lengths) for _ in range(2)))
        network.eval()
        plain = network_of(None).encode(one.tokens, one.own_lengths)
        assert torch.equal(network.encode(one.tokens, one.own_lengths), plain)

    @pytest.mark.parametrize("share", [0.2, 0.5])
    def test_drops_its_share_and_keeps_the_mean(self, share):
        values = torch.full((200, 30, 10), 3.0, requires_grad=True)
        dropped = dropout(values, share, True)
        assert (dropped == 0).float().mean().item() == pytest.approx(share, abs=0.01)
        assert dropped.mean().item() == pytest.approx(3, rel=0.02)
        kept = dropped[dropped != 0]
        assert (kept == kept[0]).all()
        assert kept[0].item() == pytest.approx(3 * 256 / (256 - round(256 * share)), rel=1e-6)
        dropped.sum().backward()
        torch.testing.assert_close(values.grad, dropped.detach() / 3)
        assert dropout(values, share, False) is values and dropout(values, 0.0, True) is values

    def test_masks_without_seeds_follow_pytorchs(self):
        values = torch.ones(50, 50)
        masks = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            masks.append([dropout(values, 0.5, True) for _ in range(2)])
        assert torch.equal(masks[0][0], masks[1][0]) and torch.equal(masks[0][1], masks[1][1])
        assert not torch.equal(masks[0][0], masks[0][1]) and not torch.equal(masks[0][0], masks[2][0])

    def test_a_texts_mask_follows_its_own_seed_alone(self):
        """Not its batch, its place there, its padded width, the worker's seed, or the number format."""

        def masks(seeds: list[int], width: int, layer: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            torch.manual_seed(width)
            return dropout(torch.ones(len(seeds), width, 5, dtype=dtype), 0.5, True, np.array(seeds), layer) != 0

        one = masks([7, 2**61, 9], 13)
        assert torch.equal(masks([9, 7], 13)[1], one[0]) and torch.equal(masks([9, 7], 13)[0], one[2])
        assert torch.equal(masks([2**61], 32)[0, :13], one[1])
        assert torch.equal(masks([2**61], 6)[0], one[1, :6])
        assert torch.equal(masks([7], 13, dtype=torch.bfloat16)[0], one[0])
        for other in (masks([8], 13)[0], masks([7], 13, layer=1)[0], one[1], one[2]):
            assert not torch.equal(other, one[0])

    def test_a_networks_masks_follow_the_texts_seeds(self):
        network = network_of(None, embedding_dropout=0.5, encoder_dropout=0.5)
        together, seeds = batch(network, Case()), np.array([5, 6, 7, 8])
        states = network.encode(together.tokens, together.own_lengths, together.unique_ids, seeds)
        for row, text in enumerate(TEXTS):
            alone = batch(network, Case(), [row])
            found = network.encode(alone.tokens, alone.own_lengths, None, seeds[row : row + 1])
            torch.testing.assert_close(found[0, : len(text)], states[row, : len(text)], rtol=1e-5, atol=1e-6)
        other = network.encode(together.tokens, together.own_lengths, together.unique_ids, seeds + 1)
        assert not torch.allclose(other[0, :5], states[0, :5])
