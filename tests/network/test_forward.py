"""`AttentionXML.forward`, the paper's network as it is written, against the equations and against the fused one.

Run: pytest tests/network/test_forward.py
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from literal_attention_xml import hidden_states, logits, parameters_of
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from axml_ray.core.ragged import Ragged
from axml_ray.network.attention_xml import AttentionXML
from axml_ray.network.fast.fused_attention import _slices
from axml_ray.network.level_network import TABLE
from axml_ray.network.paper.multi_label_attention import attention_weights, evidence, multi_label_attention
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings
from axml_ray.training.batches import Batch, LevelData, make_batch

WORDS, DOCUMENTS, PARENTS = 40, 9, 12
FIRST_CHILD = np.cumsum([0, *np.random.default_rng(3).integers(1, 6, PARENTS)])
NODES = int(FIRST_CHILD[-1])
FLAT, DEEP = Level(1, NODES, None), Level(2, NODES, FIRST_CHILD)


@dataclass(frozen=True)
class Case:
    """A level, the fully connected layers, and whether the evidence (not in the paper) is added."""

    level: Level
    layers: tuple[int, ...]
    evidence: bool

    def network(self, shard: Shard = WHOLE, dropout: float = 0.0) -> AttentionXML:
        """Every parameter is random, among them those that start at zero."""
        torch.manual_seed(1)
        settings = NetworkSettings(
            hidden=5,
            fully_connected=self.layers,
            evidence=self.evidence,
            embedding_dropout=dropout,
            encoder_dropout=dropout,
        )
        network = AttentionXML(self.level, torch.randn(WORDS, 7).index_fill_(0, torch.tensor([0]), 0), settings, shard)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if name != "encoder.embedding.weight":
                    rows = network.attention.rows if name == TABLE else None
                    drawn = torch.randn(parameter.shape if rows is None else (rows, parameter.shape[1])).mul_(0.6)
                    parameter.copy_(drawn if rows is None else drawn[shard.ids(rows)])
        return network

    def batch(self, network: AttentionXML) -> Batch:
        """Texts of 1 to 24 words; below the first level up to four parents each, some texts with fewer."""
        random = np.random.default_rng(7)
        texts = Ragged.from_rows([random.integers(1, WORDS, length) for length in (1, 24, 3, 8, 17, 2, 24, 5, 11)])
        true = Ragged.from_rows([np.sort(random.permutation(NODES)[:4]) for _ in range(DOCUMENTS)])
        parents = np.stack([random.permutation(PARENTS)[:4] for _ in range(DOCUMENTS)])
        parents[2, 1:], parents[5, 0] = -1, -1
        data = LevelData(texts, true, None if self.level is FLAT else parents)
        return make_batch(data, self.level, np.arange(DOCUMENTS), network.shard)


CASES = {
    f"{'all nodes' if level is FLAT else 'candidates'}, {len(layers)} layers{', evidence' if extra else ''}": Case(
        level, layers, extra
    )
    for level in (FLAT, DEEP)
    for layers in ((6,), (6, 4))
    for extra in (False, True)
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def nodes_of(network: AttentionXML, batch: Batch) -> Tensor | None:
    """The candidates of each text as node numbers, int64 [B, C·K], -1 in an empty slot."""
    if batch.candidates is None:
        return None
    return network.children_of(batch.candidates.parents).masked_fill(~batch.candidates.exists, -1)


def plain_loss(network: AttentionXML, batch: Batch) -> Tensor:
    """Binary cross-entropy of `forward`, the mean over all candidates of all texts."""
    scores = network(batch.tokens, batch.lengths, nodes_of(network, batch))
    targets = torch.zeros_like(scores)
    targets[batch.positives[0], batch.positives[1]] = 1
    exists = ~scores.isneginf()
    return binary_cross_entropy_with_logits(scores[exists], targets[exists], reduction="sum") / batch.count


def fused_loss(network: AttentionXML, batch: Batch) -> Tensor:
    encodings = network.encode(batch.tokens, batch.own_lengths, batch.words)
    return network.loss(encodings, batch.lengths, batch.positives, batch.count, batch.candidates)


def gradients(network: AttentionXML) -> dict[str, Tensor]:
    found = {name: p.grad.to_dense().clone() for name, p in network.named_parameters() if p.grad is not None}
    network.zero_grad()
    return found


@every_case
@pytest.mark.parametrize(
    ("dtype", "rtol", "atol"), [(torch.float64, 1e-9, 1e-11), (torch.float32, 1e-4, 2e-6)], ids=["float64", "float32"]
)
class TestFusedAgainstForward:
    def test_logits(self, case, dtype, rtol, atol):
        network = case.network().to(dtype)
        batch = case.batch(network)
        expected = network(batch.tokens, batch.lengths, nodes_of(network, batch))
        encodings = network.encode(batch.tokens, batch.own_lengths, batch.words)
        found = network.logits(encodings, batch.lengths, batch.candidates)
        assert expected.requires_grad and found.dtype == expected.dtype == dtype
        torch.testing.assert_close(found, expected.detach(), rtol=rtol, atol=atol)

    @pytest.mark.parametrize("dropout", [0.0, 0.3])
    def test_loss_and_gradients(self, case, dtype, rtol, atol, dropout):
        network = case.network(dropout=dropout).to(dtype).train()
        batch = case.batch(network)
        losses, found = [], []
        for loss in (plain_loss, fused_loss):
            torch.manual_seed(11)  # both draw the same dropout masks
            value = loss(network, batch)
            value.backward()
            losses.append(value.detach())
            found.append(gradients(network))
        torch.testing.assert_close(losses[1], losses[0], rtol=rtol, atol=atol)
        assert found[0].keys() == found[1].keys() == dict(network.named_parameters()).keys()
        for name, expected in found[0].items():
            assert expected.abs().max() > 1e-5, f"{name} is not tested"
            torch.testing.assert_close(
                found[1][name], expected, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
            )


@every_case
class TestForward:
    def test_is_the_equations(self, case):
        network = case.network().double()
        batch = case.batch(network)
        nodes = nodes_of(network, batch)
        found = network(batch.tokens, batch.lengths, nodes)
        texts = [row[:length].tolist() for row, length in zip(batch.tokens, batch.lengths, strict=True)]
        every = (
            [list(range(NODES))] * DOCUMENTS
            if nodes is None
            else [[n for n in row if n >= 0] for row in nodes.tolist()]
        )
        first_child = None if case.level is FLAT else FIRST_CHILD.tolist()
        expected = logits(parameters_of(network), texts, every, first_child)
        for row, slow in zip(found, expected, strict=True):
            torch.testing.assert_close(row[~row.isneginf()], torch.stack(slow), rtol=1e-9, atol=1e-11)

    def test_without_nodes_scores_all_that_the_shard_holds(self, case):
        whole = case.network()
        batch = case.batch(whole)
        expected = whole(batch.tokens, batch.lengths)
        assert expected.shape == (DOCUMENTS, NODES)
        every = torch.arange(NODES).expand(DOCUMENTS, -1)
        torch.testing.assert_close(whole(batch.tokens, batch.lengths, every), expected, rtol=1e-5, atol=1e-6)
        for rank in range(3):
            shard = case.network(Shard(rank, 3))
            held = shard.attention.nodes(shard.first_child)
            found = shard(batch.tokens, batch.lengths)
            torch.testing.assert_close(found, expected[:, held], rtol=1e-5, atol=1e-6)

    def test_needs_no_tensor_of_another_device(self, case):
        network = case.network().to("meta")
        tokens, lengths = torch.ones(3, 8, dtype=torch.int64), torch.full((3,), 8)
        nodes = torch.zeros(3, 5, dtype=torch.int64)
        found = network(tokens.to("meta"), lengths.to("meta"), nodes.to("meta"))
        assert found.device.type == "meta" and found.shape == (3, 5)


def test_the_plain_encoder_is_the_equations():
    network = CASES["all nodes, 1 layers"].network().double()
    batch = CASES["all nodes, 1 layers"].batch(network)
    states = network.encoder.bilstm(network.encoder.embed(batch.tokens), batch.lengths)
    for row, length in enumerate(batch.lengths.tolist()):
        expected = hidden_states(parameters_of(network), batch.tokens[row, :length].tolist())
        torch.testing.assert_close(states[row, :length], torch.stack(expected), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("length", "size", "ends"), [(0, 0, []), (0, 3, []), (2, 0, [(0, 1), (1, 2)]), (5, 2, [(0, 2), (2, 4), (4, 5)])]
)
def test_slices_of_an_empty_shard(length, size, ends):
    """An accelerator converts all rows of a shard at once, of which there may be none."""
    assert [(piece.start, piece.stop) for piece in _slices(length, size)] == ends


class TestMultiLabelAttention:
    """Equation 2 term by term."""

    @pytest.mark.parametrize("shared", [True, False], ids=["the same nodes", "nodes of each text"])
    def test_is_equation_2(self, shared):
        states, lengths = torch.randn(3, 6, 4).double(), [6, 2, 1]
        queries = torch.randn(*(() if shared else (3,)), 5, 4).double()
        is_word = torch.arange(6) < torch.tensor(lengths)[:, None]
        contexts, weights = (of(states, queries, is_word) for of in (multi_label_attention, attention_weights))
        strength = evidence(states, queries, is_word)
        assert contexts.shape == (3, 5, 4) and weights.shape == (3, 5, 6) and strength.shape == (3, 5)
        for text, length in enumerate(lengths):
            for node in range(5):
                w = queries[node] if shared else queries[text, node]
                exponentials = [torch.exp(states[text, t] @ w) for t in range(length)]
                alpha = [one / sum(exponentials) for one in exponentials]
                torch.testing.assert_close(weights[text, node, :length], torch.stack(alpha))
                assert not weights[text, node, length:].any()
                context = sum(a * states[text, t] for t, a in enumerate(alpha))
                torch.testing.assert_close(contexts[text, node], context)
                torch.testing.assert_close(strength[text, node], torch.log(sum(exponentials) / length))

    def test_of_one_text_without_padding(self):
        states, queries = torch.randn(6, 4), torch.randn(5, 4)
        one = multi_label_attention(states[None], queries, torch.ones(1, 6, dtype=torch.bool))[0]
        torch.testing.assert_close(multi_label_attention(states, queries), one)
