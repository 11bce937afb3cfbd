"""`network/paper`, the plain network: each of its layers against its equation, and that it trains.

Run: pytest tests/network/test_paper.py. That the fused network computes the same is in `test_attention_xml.py`.
"""

import numpy as np
import pytest
import torch
from four_texts import CASES, TEXTS, TRUTH, batch, every_case, fast_loss, fast_rows, gradients, network_of
from tiny_corpus import DEEP, FLAT, key_documents, small_network, small_training

from axml_ray.network.fast.frozen import frozen
from axml_ray.network.kinds import build_network
from axml_ray.network.level_network import TABLE
from axml_ray.network.paper.attention_xml import AttentionXML, attention_weights, evidence, multi_label_attention
from axml_ray.network.paper.loss import cross_entropy
from axml_ray.network.sharding import Shard
from axml_ray.settings import NetworkSettings
from axml_ray.training.beam_search import expand_rows


def test_the_encoder_is_a_bidirectional_lstm():
    """Each text alone, without padding, through PyTorch's, whose initial states are those of the encoder."""
    encoder = CASES["all nodes"].plain().encoder
    lstm = torch.nn.LSTM(5, 3, batch_first=True, bidirectional=True).double()
    for direction, name in (("", "forward_lstm"), ("_reverse", "backward_lstm")):
        for parameter, value in encoder.get_submodule(name).named_parameters():
            lstm.get_parameter(parameter + direction).data.copy_(value)
    h, c = encoder.first_state.transpose(0, 1)[:, :, None]
    tokens, lengths = torch.zeros(4, 9, dtype=torch.int64), torch.tensor([len(text) for text in TEXTS])
    for row, text in enumerate(TEXTS):
        tokens[row, : len(text)] = torch.tensor(text)
    states = encoder(tokens, lengths)
    for row, text in enumerate(TEXTS):
        expected, _ = lstm(encoder.embedding.weight[torch.tensor([text])], (h.contiguous(), c.contiguous()))
        torch.testing.assert_close(states[row, : len(text)], expected[0], rtol=1e-9, atol=1e-11)


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


@every_case
class TestTheNetwork:
    def test_logits_are_the_equations_of_each_node(self, case):
        """Node by node, with its vector from its parent's block, through layers that are written out."""
        network = case.plain()
        one, p = batch(network, case), dict(network.named_parameters())
        states = network.encode(one.tokens, one.own_lengths, one.unique_ids)
        for row, (found, nodes) in enumerate(zip(fast_rows(network, one), case.nodes(), strict=True)):
            words = states[row, : len(TEXTS[row])]
            for logit, node in zip(found, nodes, strict=True):
                if case.first_child is None:
                    w = p[TABLE][node]
                else:
                    parent = max(i for i in range(5) if case.first_child[i] <= node)
                    w = p[TABLE][parent].view(4, -1)[node - case.first_child[parent]]
                hidden = multi_label_attention(words, w[None])[0]
                for layer in range(len(case.layers)):
                    hidden = torch.relu(p[f"head.layers.{layer}.weight"] @ hidden + p[f"head.layers.{layer}.bias"])
                expected = (p["head.output.weight"] @ hidden + p["head.output.bias"])[0]
                if case.evidence:
                    expected = expected + p["evidence_weight"] * torch.log(torch.exp(words @ w).mean())
                torch.testing.assert_close(logit, expected, rtol=1e-9, atol=1e-11)

    def test_the_loss_is_the_mean_cross_entropy_of_candidates(self, case):
        network = case.plain()
        one = batch(network, case)
        parts = []
        for row, nodes, true in zip(fast_rows(network, one), case.nodes(), TRUTH, strict=True):
            for probability, node in zip(torch.sigmoid(row), nodes, strict=True):
                parts.append(-torch.log(probability) if node in true else -torch.log(1 - probability))
        torch.testing.assert_close(fast_loss(network, one), torch.stack(parts).mean(), rtol=1e-9, atol=0)

    @pytest.mark.parametrize("count", [2, 12])
    def test_shards_add_up(self, case, count):
        """Of twelve shards, some hold no candidate of a text, and some no row."""
        whole = case.plain()
        one = batch(whole, case)
        states = whole.encode(one.tokens, one.own_lengths, one.unique_ids).detach()
        loss = whole.loss(states, one.lengths, one.positives, one.count, one.candidates)
        loss.backward()
        total = 0.0
        for rank in range(count):
            shard = network_of(
                case.first_child, case.layers, Shard(rank, count), False, evidence=case.evidence
            ).double()
            part = batch(shard, case)
            order = torch.from_numpy(part.rows)
            value = shard.loss(states[order], part.lengths, part.positives, part.count, part.candidates)
            value.backward()
            total += value.item()
            torch.testing.assert_close(gradients(shard)[TABLE], gradients(whole)[TABLE][rank::count])
        assert total == pytest.approx(loss.item(), rel=1e-9)

    def test_gradients_but_not_the_loss_are_scaled(self, case):
        network = case.plain()
        one, found = batch(network, case), []
        for scale in (None, torch.tensor(8.0)):
            network.zero_grad()
            states = network.encode(one.tokens, one.own_lengths, one.unique_ids)
            loss = network.loss(states, one.lengths, one.positives, one.count, one.candidates, scale)
            loss.backward()
            found.append((loss.item(), gradients(network)))
        assert found[0][0] == found[1][0]
        for name, gradient in found[0][1].items():
            torch.testing.assert_close(found[1][1][name], 8 * gradient)

    def test_computes_in_float32_under_autocast(self, case):
        network = case.plain().float()
        one = batch(network, case)
        expected = fast_rows(network, one)
        with torch.autocast("cpu", torch.bfloat16):
            found = fast_rows(network, one)
        assert all(torch.equal(row, other) for row, other in zip(found, expected, strict=True))


def test_a_loss_far_from_zero_does_not_overflow():
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]], requires_grad=True)
    loss = cross_entropy(logits, torch.tensor([[0, 1], [0, 0]]), torch.tensor([[True, True], [True, False]]), 3.0)
    loss.backward()
    assert loss.item() == pytest.approx(1e4 / 3)
    assert logits.grad.tolist() == [[0, 0], [pytest.approx(-1 / 3), 0]]


SIZES = {"hidden": 10, "fully_connected": (12,)}


@pytest.mark.parametrize("level", [FLAT, DEEP], ids=["all nodes", "candidates"])
class TestTraining:
    def trained(self, level, implementation: str, epochs: int = 3, learning_rate: float = 0.02) -> torch.nn.Module:
        """Train a tiny level with dropout; both implementations draw the same masks."""
        network = small_network(level, 0.1, evidence=False)
        settings = NetworkSettings(**SIZES, embedding_dropout=0.1, encoder_dropout=0.1, implementation=implementation)
        built = build_network(level, network.encoder.embedding.weight.detach(), settings)
        built.load_state_dict(network.state_dict())
        training = small_training(built, 200, epochs=(epochs,), learning_rate=learning_rate)
        self.score = training.run()
        return built

    def test_trains_as_the_fused_network_does(self, level):
        plain, fused = self.trained(level, "plain"), self.trained(level, "fused")
        assert type(plain) is AttentionXML and type(fused) is not AttentionXML
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(fused.state_dict()[name], value, rtol=0.02, atol=2e-3, msg=name)

    def test_learns(self, level):
        self.trained(level, "plain", epochs=10, learning_rate=0.05)
        assert self.score > 80

    def test_weights_serve_both(self, level):
        """A checkpoint of one implementation predicts with the other, also in bfloat16 files."""
        network = small_network(level)
        tokens, _ = key_documents(20, 10)
        beam = None
        if level is DEEP:
            from axml_ray.network.level_network import Beam

            beam = Beam(torch.arange(4).expand(20, 4), torch.zeros(20, 4))
        found = []
        for implementation in ("fused", "plain"):
            settings = NetworkSettings(**SIZES, implementation=implementation)
            ready = frozen(level, network.state_dict(), settings, "float32")
            found.append(expand_rows(ready, tokens, beam, 5, precision="float32"))
        np.testing.assert_array_equal(found[0].nodes, found[1].nodes)
        torch.testing.assert_close(found[0].scores, found[1].scores, rtol=1e-4, atol=1e-5)
