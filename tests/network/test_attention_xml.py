"""Run: pytest tests/network/test_attention_xml.py

The fused network against the plain one of the paper in float64: scores, loss and gradients.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from four_texts import (
    CASES,
    FIRST_CHILD,
    TEXTS,
    Case,
    batch,
    compare,
    every_case,
    fast_loss,
    fast_rows,
    gradients,
    network_of,
)

from axml_ray.network.backends.cpu_backend import LIMITS, CpuBackend
from axml_ray.network.fast import fused_head
from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.network.level_network import TABLE
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings

two_cases = pytest.mark.parametrize("case", [CASES["all nodes"], CASES["fewer candidates"]], ids=["all", "fewer"])


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Documents and nodes of each group that goes through the head."""
    seen: list[tuple[int, int]] = []
    forward = fused_head.FusedHead.forward

    def counting(self, attention, values, lengths):
        seen.append(tuple(attention.scores.shape[:2]))
        return forward(self, attention, values, lengths)

    monkeypatch.setattr(fused_head.FusedHead, "forward", counting)
    return seen


@every_case
class TestAgainstTheEquations:
    def test_float32(self, case):
        compare(case.network(), case, rtol=1e-4, atol=2e-6)

    def test_float64(self, case):
        compare(case.network().double(), case, rtol=1e-9, atol=1e-11)

    def test_multiplied_loss(self, case):
        compare(case.network().double(), case, rtol=1e-9, atol=1e-11, times=3)

    def test_one_document_and_one_row_at_a_time(self, case, monkeypatch, passes):
        monkeypatch.setattr(CpuBackend, "limits", replace(LIMITS, group_values=1))
        compare(case.network().double(), case, rtol=1e-9, atol=1e-11)
        # 4 texts and 11 nodes, or 3 parents of up to 4 children; once for logits, once for the loss
        assert passes == ([(1, 1)] * 88 if case.first_child is None else [(1, 4)] * 24)

    def test_some_documents_and_some_rows_at_a_time(self, case, monkeypatch, passes):
        # texts of 7 words are padded to 8: two scores of each, and two of each unit
        each = 16 + 2 * sum(case.layers)
        if case.first_child is None:
            limits = replace(LIMITS, chunk_scores=3 * 4 * 8, group_values=2 * 3 * each)
            expected = [(2, 3)] * 6 + [(3, 2), (1, 2)]
        else:
            limits = replace(LIMITS, group_values=2 * 4 * each)
            expected = [(1, 8)] * 4 + [(2, 4)] * 2
        monkeypatch.setattr(CpuBackend, "limits", limits)
        compare(case.network().double(), case, rtol=1e-9, atol=1e-11)
        assert passes == expected * 2

    def test_bfloat16_is_close(self, case, monkeypatch):
        monkeypatch.setattr(CpuBackend, "limits", replace(LIMITS, cast_rows=2))
        network = case.network()
        one = batch(network, case)
        with torch.autocast("cpu", torch.bfloat16):
            assert network.encode(one.tokens, one.own_lengths).dtype == torch.bfloat16
            reduced = fast_rows(network, one)
        assert all(row.dtype == torch.float32 for row in reduced)
        # bfloat16 keeps 8 bits: a few parts in a hundred after five layers
        exact = torch.cat(fast_rows(network, one))
        torch.testing.assert_close(torch.cat(reduced), exact, rtol=0.05, atol=0.05)
        with torch.autocast("cpu", torch.bfloat16):
            value = fast_loss(network, one)
        assert value.dtype == torch.float32
        value.backward()
        found = gradients(network)
        network.zero_grad()
        fast_loss(network, one).backward()
        for name, wanted in gradients(network).items():
            # the evidence's weight is one number, and a sum in which much cancels
            assert (found[name] - wanted).norm() < 0.05 * wanted.norm() + 1e-3, name

    def test_a_text_does_not_see_the_others(self, case):
        network = case.network()
        together = fast_rows(network, batch(network, case))
        for row, expected in enumerate(together):
            alone = fast_rows(network, batch(network, case, [row]))[0]
            torch.testing.assert_close(alone, expected, rtol=1e-5, atol=1e-6)

    def test_what_stands_at_padding_does_not_count(self, case):
        network = case.network()
        one = batch(network, case)
        found = []
        for fill in (0.0, 1e4):
            states = network.encode(one.tokens, one.own_lengths).detach()
            for row, text in enumerate(TEXTS):
                states[row, len(text) :] = fill
            states.requires_grad_()
            value = network.loss(states, one.lengths, one.positives, one.count, one.candidates)
            value.backward()
            found.append((value.item(), states.grad))
            for row, text in enumerate(TEXTS):
                assert not states.grad[row, len(text) :].any() and states.grad[row, : len(text)].any()
        assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])


def test_states_are_the_equations():
    """The LSTMs, with and without gradients, and with words that nobody has looked for."""
    network = network_of(None).double()
    one, p = batch(network, Case()), Case().plain()
    with_words = network.encode(one.tokens, one.own_lengths, one.unique_ids)
    without = network.encode(one.tokens, one.own_lengths)
    with torch.no_grad():
        plain = network.encode(one.tokens, one.own_lengths)
    for row, text in enumerate(TEXTS):
        expected = p.encode(torch.tensor([text]), torch.tensor([len(text)]))[0]
        for found in (with_words, without, plain):
            torch.testing.assert_close(found[row, : len(text)], expected, rtol=1e-9, atol=1e-11)


class TestGradients:
    def test_only_touched_rows_of_tables_get_one(self):
        case = Case(FIRST_CHILD, parents=[[2, 4, -1]] * 4)
        network = case.network()
        fast_loss(network, batch(network, case)).backward()
        words = network.encoder.embedding.weight.grad
        blocks = network.attention.weight.grad
        assert words.is_sparse and blocks.is_sparse
        # padding's is zero
        assert words._indices()[0].tolist() == sorted({0, *(word for text in TEXTS for word in text)})
        assert not words.to_dense()[0].any()
        # not row 0, by which a missing parent might be replaced
        assert blocks._indices()[0].tolist() == [2, 4]

    def test_frozen_word_vectors_have_none(self):
        network, case = network_of(None, train_embeddings=False), Case()
        before = network.encoder.embedding.weight.clone()
        fast_loss(network, batch(network, case)).backward()
        assert network.encoder.embedding.weight.grad is None
        assert torch.equal(network.encoder.embedding.weight, before)
        # and the others have the same as ever
        found, expected = gradients(network), case.network()
        fast_loss(expected, batch(expected, case)).backward()
        for name, gradient in gradients(expected).items():
            if name != "encoder.embedding.weight":
                torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-7)

    def test_unused_rows_of_a_block_have_zero(self):
        case = CASES["candidates"]
        network = case.network()
        fast_loss(network, batch(network, case)).backward()
        gradient = network.attention.weight.grad.to_dense().view(5, 4, 6)
        for parent, children in enumerate(np.diff(FIRST_CHILD)):
            assert not gradient[parent, children:].any()
            assert gradient[parent, :children].any()

    @two_cases
    def test_add_up_over_steps(self, case):
        network = case.network()
        fast_loss(network, batch(network, case)).backward()
        once = gradients(network)
        fast_loss(network, batch(network, case)).backward()
        for name, twice in gradients(network).items():
            torch.testing.assert_close(twice, 2 * once[name], rtol=1e-5, atol=1e-7)


@every_case
def test_two_lstms_at_the_same_time(case):
    torch.set_num_threads(2)
    try:
        compare(case.network(), case, rtol=1e-4, atol=2e-6)
    finally:
        torch.set_num_threads(1)


class TestLevel:
    @pytest.mark.parametrize("shard", [WHOLE, Shard(1, 3)])
    def test_inherits_all_but_attention(self, shard):
        above = network_of(None, evidence=True)
        settings = NetworkSettings(hidden=3, fully_connected=(4,), evidence=True)
        below = FusedAttentionXML(Level(2, 11, np.array(FIRST_CHILD)), torch.zeros(12, 5), settings, shard)
        attention = below.attention.weight.clone()
        below.initialise_from_parent_level(above.shared_parameters())
        for name, value in below.state_dict().items():
            if name == TABLE:
                assert torch.equal(value, attention)
            else:
                assert torch.equal(value, above.state_dict()[name]), name
        with torch.no_grad():
            below.head.output.bias.add_(1)
        assert not torch.equal(below.head.output.bias, above.head.output.bias)

    @pytest.mark.parametrize("rate", [0.0, 0.01, 1.0])
    def test_expected_rate(self, rate):
        network = network_of(None)
        network.initialise_output_bias(rate)
        assert torch.sigmoid(network.head.output.bias).item() == pytest.approx(rate, abs=2e-3)

    def test_shards_start_as_the_whole_would(self):
        def fresh(shard: Shard) -> FusedAttentionXML:
            torch.manual_seed(4)
            settings = NetworkSettings(hidden=3, fully_connected=(4,))
            return FusedAttentionXML(Level(2, 11, np.array(FIRST_CHILD)), torch.zeros(12, 5), settings, shard)

        whole = dict(fresh(WHOLE).named_parameters())
        for rank in range(2):
            for name, value in fresh(Shard(rank, 2)).named_parameters():
                assert torch.equal(value, whole[name][rank::2] if name == TABLE else whole[name]), name
