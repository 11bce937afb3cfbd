"""Run: pytest tests/network/test_network_shards.py

Shards of a level's label table: together they compute what the whole does.
"""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from four_texts import CASES, TEXTS, batch, every_case, gradients

from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.fast.fused_attention import LevelGradients, _run_candidates, _slices
from axml_ray.network.level_network import TABLE, Beam
from axml_ray.network.paper.attention_xml import AttentionXML
from axml_ray.network.sharding import Shard
from axml_ray.training.batches import make_batch


@pytest.mark.parametrize("rank", [0, 11], ids=["some candidates", "no candidate"])
def test_a_pass_over_a_shard_takes_the_branches_of_an_accelerator(rank):
    """PyTorch's "meta" device computes no values but takes every branch that an accelerator takes."""
    case = CASES["candidates"]
    network = case.network(Shard(rank, 12))
    one = batch(network, case)
    assert bool(len(one.candidates.rows)) == (rank == 0)
    network.to("meta")
    states = torch.zeros(4, 7, 6, dtype=torch.bfloat16, device="meta")
    values = torch.zeros(4, 7, case.layers[0], dtype=torch.bfloat16, device="meta")
    lengths, positives, candidates = (part.to("meta") for part in (one.lengths, one.positives, one.candidates))
    table = network.attention.weight
    inputs = replace(network.level_inputs(states.float(), lengths, candidates, positives), states=states, values=values)
    sums = LevelGradients(inputs)
    with torch.no_grad():
        _run_candidates(inputs, candidates, sums)
    assert sums.table.shape == (len(one.candidates.rows), table.shape[1])
    assert sums.states.shape == states.shape


@pytest.mark.parametrize(
    ("length", "size", "ends"), [(0, 0, []), (0, 3, []), (2, 0, [(0, 1), (1, 2)]), (5, 2, [(0, 2), (2, 4), (4, 5)])]
)
def test_slices_of_an_empty_shard(length, size, ends):
    """An accelerator converts all rows of a shard at once, of which there may be none."""
    assert [(piece.start, piece.stop) for piece in _slices(length, size)] == ends


def in_double(network: AttentionXML) -> AttentionXML:
    return network.double().train()


@every_case
@pytest.mark.parametrize("count", [1, 2, 3, 5, 12])
class TestShards:
    """Three parents a text of five: of three shards and more, some hold none of a text's; of twelve, some hold none."""

    def test_losses_and_gradients_add_up_to_the_whole(self, case, count):
        whole = in_double(case.network())
        shards = [in_double(case.network(Shard(rank, count))) for rank in range(count)]
        parts = [batch(shard, case) for shard in shards]
        order = parts[0].rows
        # the texts' order is that of the workers; there, masks and all, the encodings are the whole's
        one = make_batch(case.data(), whole.level, order)
        with patch.object(whole.encoder, "encoder_dropout", 0.5):
            states = whole.encode(one.tokens, one.own_lengths, one.unique_ids, 1 + one.documents.numpy())
        value = whole.loss(states, one.lengths, one.positives, one.count, one.candidates)
        value.backward()

        encoded = []
        for shard, part in zip(shards, parts, strict=True):
            with patch.object(shard.encoder, "encoder_dropout", 0.5):
                encoded.append(shard.encode(part.tokens, part.own_lengths, part.unique_ids, 1 + part.documents.numpy()))
        sizes = [len(range(rank, len(TEXTS), count)) for rank in range(count)]
        gathered = torch.cat([own[:size] for own, size in zip(encoded, sizes, strict=True)]).detach()
        torch.testing.assert_close(gathered, states.detach(), rtol=1e-9, atol=1e-11)
        total, of_states = 0.0, torch.zeros_like(gathered)
        for shard, part in zip(shards, parts, strict=True):
            leaf = gathered.clone().requires_grad_()
            own = shard.loss(leaf, part.lengths, part.positives, part.count, part.candidates)
            own.backward()
            total += own.item()
            of_states += leaf.grad
        for own, size, gradient in zip(encoded, sizes, of_states.split(sizes), strict=True):
            own[:size].backward(gradient)

        assert total == pytest.approx(value.item(), rel=1e-9)
        expected = gradients(whole)
        rows = gradients(shards[0]).keys()
        assert rows == expected.keys()
        for name, gradient in expected.items():
            found = [gradients(shard)[name] for shard in shards]
            if name == TABLE:
                for rank, own in enumerate(found):
                    torch.testing.assert_close(own, gradient[rank::count], rtol=1e-9, atol=1e-11)
            else:
                torch.testing.assert_close(sum(found), gradient, rtol=1e-9, atol=1e-11)

    def test_expanded_beams_merge_to_the_wholes(self, case, count):
        whole = case.network().double().eval()
        one, keep = batch(whole, case), 5
        above = torch.randn(4, 3).sub(1)
        if case.parents is not None:
            above[torch.tensor(case.parents) < 0] = -torch.inf
        found = []
        with torch.inference_mode():
            encodings = whole.encode(one.tokens, one.own_lengths)
            expected = whole.expand(encodings, one.lengths, one.candidates, above, keep)
            for rank in range(count):
                shard = case.network(Shard(rank, count)).double().eval()
                candidates = None
                if case.parents is not None:
                    candidates = Candidates.from_parents(np.array(case.parents), shard.level, Shard(rank, count))
                best = shard.expand(encodings, one.lengths, candidates, above, keep)
                assert ((best.nodes < 0) == best.scores.isneginf()).all()
                found.append(best)
            every = whole.expand(encodings, one.lengths, one.candidates, above, 30)
        merged = Beam(torch.cat([b.nodes for b in found], 1), torch.cat([b.scores for b in found], 1)).top(keep)
        torch.testing.assert_close(merged.scores, expected.scores, rtol=1e-9, atol=1e-11)
        for row, nodes in enumerate(merged.nodes.tolist()):
            # without evidence, all nodes are alike to a text of one word: any of them will do
            scores = dict(zip(every.nodes[row].tolist(), every.scores[row].tolist(), strict=True))
            assert merged.scores[row].tolist() == pytest.approx([scores[node] for node in nodes], rel=1e-9)
            real = [node for node in nodes if node >= 0]
            assert len(set(real)) == len(real) == (expected.nodes[row] >= 0).sum()
