"""Run: pytest tests/network/test_attention_xml.py

Four ragged texts through the fast network, as training runs it, and through the literal one.
"""

import numpy as np
import pytest
import torch
from literal_attention_xml import logits, loss, parameters_of
from torch.nn.functional import binary_cross_entropy_with_logits

import axml_ray.network.attention_xml as module
from axml_ray.network.attention_xml import AttentionXML, Beam, Level
from axml_ray.network.encoder import dropout
from axml_ray.ragged import Ragged
from axml_ray.settings import NetworkSettings
from axml_ray.training.batches import Batch, LevelData, batch_of

TEXTS = [[3, 7, 2, 2, 9], [4], [11, 3, 5, 8, 6, 10, 3], [2, 9, 4]]
FIRST_CHILD = [0, 3, 4, 8, 10, 11]  # 5 parents of 3, 1, 4, 2 and 1 children
PARENTS = [[2, 0, 4], [1, 3, 0], [4, 1, 2], [3, 2, 1]]
TRUTH = [[4, 7, 10], [3], [0, 5, 6], [8, 9]]  # 0 is no candidate of the third text
CASES = {
    "all nodes": (None, (4,), False),
    "all nodes, two layers": (None, (4, 3), False),
    "all nodes, evidence": (None, (4,), True),
    "candidates": (FIRST_CHILD, (4,), False),
    "candidates, two layers": (FIRST_CHILD, (5, 3), False),
    "candidates, evidence": (FIRST_CHILD, (5,), True),
}


def network_of(first_child: list[int] | None, layers: tuple[int, ...] = (4,), **changes: object) -> AttentionXML:
    """Random everywhere, unused rows, first states and biases too."""
    torch.manual_seed(1)
    level = Level(1, 11, None) if first_child is None else Level(2, 11, np.array(first_child))
    settings = NetworkSettings(
        hidden=3, fully_connected=layers, **{"embedding_dropout": 0, "encoder_dropout": 0, **changes}
    )
    vectors = torch.randn(12, 5)
    vectors[0] = 0
    network = AttentionXML(level, vectors, settings)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter is not network.encoder.embedding.weight:
                parameter.normal_(0, 0.7)
    return network


def candidates_of(first_child: list[int] | None, parents: list[list[int]]) -> list[list[int]]:
    if first_child is None:
        return [list(range(11)) for _ in parents]
    return [[node for i in row for node in range(first_child[i], first_child[i + 1])] for row in parents]


def batch(network: AttentionXML) -> Batch:
    parents = None if network.level.first_child is None else np.array(PARENTS)
    data = LevelData(Ragged.from_rows(TEXTS), Ragged.from_rows(TRUTH), parents)
    return batch_of(data, network.level, np.arange(len(TEXTS)))


def fast_rows(network: AttentionXML, one: Batch) -> list[torch.Tensor]:
    """Logits of the candidates that exist, text by text."""
    found = network(one.tokens, one.lengths, one.parents)
    if one.parents is None:
        return list(found)
    exists = network.exists(one.parents)
    assert torch.equal(exists, ~found.isneginf())
    return [row[here] for row, here in zip(found, exists, strict=True)]


def fast_loss(network: AttentionXML) -> torch.Tensor:
    one = batch(network)
    found = network(one.tokens, one.lengths, one.parents)
    targets = torch.zeros_like(found)
    targets[one.positives[0], one.positives[1]] = 1
    real = ~found.isneginf()
    return binary_cross_entropy_with_logits(found[real], targets[real])


def compare(network: AttentionXML, *, rtol: float, atol: float) -> None:
    first_child = None if network.level.first_child is None else network.level.first_child.tolist()
    nodes = candidates_of(first_child, PARENTS)
    p = parameters_of(network)
    expected = logits(p, TEXTS, nodes, first_child)
    for fast, slow in zip(fast_rows(network, batch(network)), expected, strict=True):
        torch.testing.assert_close(fast.double(), torch.stack(slow), rtol=rtol, atol=atol)
    value, literal = fast_loss(network), loss(expected, nodes, TRUTH)
    torch.testing.assert_close(value.double(), literal, rtol=rtol, atol=atol)
    value.backward()
    literal.backward()
    for name, parameter in network.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        assert p[name].grad.abs().max() > 1e-4, f"{name} is not tested"
        fast = gradient.to_dense().double()
        torch.testing.assert_close(fast, p[name].grad, rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(("first_child", "layers", "evidence"), CASES.values(), ids=CASES)
class TestAgainstTheEquations:
    def test_float32(self, first_child, layers, evidence):
        compare(network_of(first_child, layers, evidence=evidence), rtol=1e-4, atol=2e-6)

    def test_float64(self, first_child, layers, evidence):
        # logits leave the network as float32, whose rounding is all that remains
        compare(network_of(first_child, layers, evidence=evidence).double(), rtol=1e-6, atol=2e-7)

    def test_chunk_by_chunk(self, first_child, layers, evidence, monkeypatch):
        chunks = []

        def counting(function, part, *rest, **options):
            chunks.append(part.shape[-2])
            return torch.utils.checkpoint.checkpoint(function, part, *rest, **options)

        # 4 texts of 7 words (padded to 8 in a batch), 4 or 5 units: 44 to 52 values a label, so three labels a chunk
        monkeypatch.setattr(module, "CHUNK_VALUES", 3 * 52)
        monkeypatch.setattr(module, "checkpoint", counting)
        compare(network_of(first_child, layers, evidence=evidence), rtol=1e-4, atol=2e-6)
        assert chunks[:4] == [3, 3, 3, 2 if first_child is None else 3]

    def test_one_label_a_chunk_in_float64(self, first_child, layers, evidence, monkeypatch):
        monkeypatch.setattr(module, "CHUNK_VALUES", 1)
        compare(network_of(first_child, layers, evidence=evidence).double(), rtol=1e-6, atol=2e-7)

    def test_bfloat16_is_close(self, first_child, layers, evidence):
        network = network_of(first_child, layers, evidence=evidence)
        with torch.autocast("cpu", torch.bfloat16):
            reduced = fast_rows(network, batch(network))
        exact = fast_rows(network, batch(network))
        assert all(row.dtype == torch.float32 for row in reduced)
        # bfloat16 keeps 8 bits: a few parts in a hundred after five layers
        torch.testing.assert_close(torch.cat(reduced), torch.cat(exact), rtol=0.05, atol=0.05)
        with torch.autocast("cpu", torch.bfloat16):
            value = fast_loss(network)
        value.backward()
        gradients = {name: p.grad.to_dense().clone() for name, p in network.named_parameters()}
        network.zero_grad()
        fast_loss(network).backward()
        for name, parameter in network.named_parameters():
            wanted = parameter.grad.to_dense()
            # the evidence's weight is one number, and a sum in which much cancels
            assert (gradients[name] - wanted).norm() < 0.05 * wanted.norm() + 1e-3, name

    def test_a_text_does_not_see_the_others(self, first_child, layers, evidence):
        network = network_of(first_child, layers, evidence=evidence)
        together = fast_rows(network, batch(network))
        parents = None if first_child is None else np.array(PARENTS)
        data = LevelData(Ragged.from_rows(TEXTS), Ragged.from_rows(TRUTH), parents)
        for row, expected in enumerate(together):
            alone = fast_rows(network, batch_of(data, network.level, np.array([row])))[0]
            torch.testing.assert_close(alone, expected, rtol=1e-5, atol=1e-6)


class TestGradients:
    def test_only_touched_rows_of_tables_get_one(self):
        network = network_of(FIRST_CHILD)
        fast_loss(network).backward()
        words = network.encoder.embedding.weight.grad
        blocks = network.attention.weight.grad
        assert words.is_sparse and blocks.is_sparse
        # padding has none
        assert words.coalesce().indices()[0].tolist() == sorted({word for text in TEXTS for word in text})
        assert blocks.coalesce().indices()[0].tolist() == [0, 1, 2, 3, 4]

    def test_frozen_word_vectors_have_none(self):
        network = network_of(None, train_embeddings=False)
        before = network.encoder.embedding.weight.clone()
        fast_loss(network).backward()
        assert network.encoder.embedding.weight.grad is None
        assert torch.equal(network.encoder.embedding.weight, before)

    def test_unused_rows_of_a_block_have_zero(self):
        network = network_of(FIRST_CHILD)
        fast_loss(network).backward()
        gradient = network.attention.weight.grad.to_dense().view(5, 4, 6)
        for parent, children in enumerate(np.diff(FIRST_CHILD)):
            assert not gradient[parent, children:].any()
            assert gradient[parent, :children].any()


class TestDropout:
    def test_both_drop_in_training_only(self):
        for one in ({"embedding_dropout": 0.5}, {"encoder_dropout": 0.5}):
            network = network_of(None, **one)
            tokens, lengths = batch(network).tokens, batch(network).lengths
            assert not torch.equal(network(tokens, lengths), network(tokens, lengths))
            network.eval()
            assert torch.equal(network(tokens, lengths), network_of(None)(tokens, lengths))

    @pytest.mark.parametrize("share", [0.2, 0.5])
    def test_drops_its_share_and_keeps_the_mean(self, share):
        values = torch.full((200, 30, 10), 3.0, requires_grad=True)
        dropped = dropout(values, share, True)
        assert (dropped == 0).float().mean().item() == pytest.approx(share, abs=0.01)
        assert dropped.mean().item() == pytest.approx(3, rel=0.02)
        kept = dropped[dropped != 0]
        assert (kept == kept[0]).all()
        dropped.sum().backward()
        torch.testing.assert_close(values.grad, dropped.detach() / 3)
        assert dropout(values, share, False) is values

    def test_masks_follow_the_seed(self):
        values = torch.ones(50, 50)
        masks = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            masks.append([dropout(values, 0.5, True) for _ in range(2)])
        assert torch.equal(masks[0][0], masks[1][0]) and torch.equal(masks[0][1], masks[1][1])
        assert not torch.equal(masks[0][0], masks[0][1]) and not torch.equal(masks[0][0], masks[2][0])


class TestLevel:
    def test_inherits_all_but_attention(self):
        above = network_of(None, evidence=True)
        settings = NetworkSettings(hidden=3, fully_connected=(4,), evidence=True)
        below = AttentionXML(Level(2, 11, np.array(FIRST_CHILD)), torch.zeros(12, 5), settings)
        attention = below.attention.weight.clone()
        below.inherit(above)
        for name, value in below.state_dict().items():
            if name == "attention.weight":
                assert torch.equal(value, attention)
            else:
                assert torch.equal(value, above.state_dict()[name]), name
        with torch.no_grad():
            below.head.output.bias.add_(1)
        assert not torch.equal(below.head.output.bias, above.head.output.bias)

    def test_candidates(self):
        network = network_of(FIRST_CHILD)
        parents = torch.tensor([[3, 0]])
        exists = network.exists(parents)[0]
        assert exists.tolist() == [True, True, False, False, True, True, True, False]
        assert network.candidates(parents)[0][exists].tolist() == [8, 9, 0, 1, 2]

    @pytest.mark.parametrize("rate", [0.0, 0.01, 1.0])
    def test_expected_rate(self, rate):
        network = network_of(None)
        network.head.expect(rate)
        assert torch.sigmoid(network.head.output.bias).item() == pytest.approx(rate, abs=2e-3)

    def test_expand_keeps_what_exists(self):
        network = network_of(FIRST_CHILD).eval()
        one = batch(network)
        above = Beam(torch.tensor([[4, 1]] * 4), torch.log(torch.tensor([[0.5, 0.25]] * 4)))
        with torch.inference_mode():
            best = network.expand(one.tokens, one.lengths, above, 5)
            found = network(one.tokens, one.lengths, above.nodes)
        for row in range(4):
            # of nodes 10 and 3, the only children
            scores = {10: 0.5 * found[row, 0].sigmoid().item(), 3: 0.25 * found[row, 4].sigmoid().item()}
            order = sorted(scores, key=scores.get, reverse=True)
            assert best.nodes[row].tolist() == [*order, -1, -1, -1]
            np.testing.assert_allclose(best.scores[row, :2].exp(), [scores[node] for node in order], rtol=1e-5)
            assert best.scores[row, 2:].isneginf().all()
