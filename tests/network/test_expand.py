"""Run: pytest tests/network/test_expand.py

The best nodes of a level for each text, with their scores.
"""

import numpy as np
import pytest
import torch
from four_texts import CASES, FEWER, FIRST_CHILD, Case, batch, fast_rows, network_of

from axml_ray.network.candidate_selection import Candidates


class TestExpand:
    @pytest.mark.parametrize("parent_score_exponent", [0, 0.5, 1])
    @pytest.mark.parametrize("keep", [1, 4, 8, 30])
    def test_against_the_equations(self, keep, parent_score_exponent):
        case = CASES["fewer candidates"]
        network = case.network().double().eval()
        network.parent_score_exponent = parent_score_exponent
        one = batch(network, case)
        above = torch.log(torch.tensor([[0.5, 0.25, 0.125]] * 4))
        above[torch.tensor(FEWER) < 0] = -torch.inf
        with torch.inference_mode():
            encodings = network.encode(one.tokens, one.own_lengths)
            best = network.expand(encodings, one.lengths, one.candidates, above, keep)
        assert best.nodes.shape == best.scores.shape == (4, min(keep, 12))
        for row, slow in enumerate(fast_rows(case.plain(), one)):
            scores = {}
            for node, score in zip(case.nodes()[row], slow, strict=True):
                parent = np.searchsorted(FIRST_CHILD, node, side="right") - 1
                scores[node] = torch.sigmoid(score).item() * 0.5 ** (
                    parent_score_exponent * (1 + FEWER[row].index(parent))
                )
            order = sorted(scores, key=scores.get, reverse=True)[:keep]
            missing = best.nodes.shape[1] - len(order)
            assert best.nodes[row].tolist() == [*order, *[-1] * missing]
            np.testing.assert_allclose(best.scores[row, : len(order)].exp(), [scores[node] for node in order], 1e-6)
            assert best.scores[row, len(order) :].isneginf().all()

    def test_of_all_nodes(self):
        network = network_of(None, evidence=True).eval()
        one = batch(network, Case())
        with torch.inference_mode():
            encodings = network.encode(one.tokens, one.own_lengths)
            found = network.logits(encodings, one.lengths)
            best = network.expand(encodings, one.lengths, None, None, 3)
            every = network.expand(encodings, one.lengths, None, None, 30)
        assert torch.equal(best.nodes, found.argsort(dim=1, descending=True)[:, :3])
        torch.testing.assert_close(best.scores.exp(), found.sigmoid().sort(dim=1, descending=True)[0][:, :3])
        assert every.nodes.shape == (4, 11) and torch.equal(every.top(3).nodes, best.nodes)

    def test_nodes_of_blocks(self):
        network = network_of(FIRST_CHILD)
        exists = Candidates.from_parents(np.array([[3, 0]]), network.level).exists
        assert network.children_of(torch.tensor([[3, 0]]))[exists].tolist() == [8, 9, 0, 1, 2]
