"""Run: pytest tests/network/test_attention_xml.py

Four ragged texts through the fused network, as training runs it, and through the plain one of the paper in float64.
"""

from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from axml_ray.core.ragged import Ragged
from axml_ray.network.backends.cpu_backend import LIMITS, CpuBackend
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.fast import fused_head
from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.network.fast.fused_attention import LevelGradients, _run_candidates, _slices
from axml_ray.network.level_network import TABLE, Beam
from axml_ray.network.paper.attention_xml import AttentionXML
from axml_ray.network.paper.dropout import dropout
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings
from axml_ray.training.batches import Batch, LevelData, make_batch

TEXTS = [[3, 7, 2, 2, 9], [4], [11, 3, 5, 8, 6, 10, 3], [2, 9, 4]]
FIRST_CHILD = [0, 3, 4, 8, 10, 11]  # 5 parents of 3, 1, 4, 2 and 1 children
PARENTS = [[2, 0, 4], [1, 3, 0], [4, 1, 2], [3, 2, 1]]
TRUTH = [[4, 7, 10], [3], [0, 5, 6], [8, 9]]  # 0 is no candidate of the third text
FEWER = [[-1, 2, 4], [1, -1, -1], [4, 1, 2], [-1, -1, 3]]


@dataclass(frozen=True)
class Case:
    first_child: list[int] | None = None
    layers: tuple[int, ...] = (4,)
    evidence: bool = False
    parents: list[list[int]] | None = None

    def network(self, shard: Shard = WHOLE) -> AttentionXML:
        return network_of(self.first_child, self.layers, shard, evidence=self.evidence)

    def plain(self) -> AttentionXML:
        """The paper's network with the same parameters, in float64."""
        return network_of(self.first_child, self.layers, fused=False, evidence=self.evidence).double()

    def data(self) -> LevelData:
        parents = None if self.first_child is None else np.array(self.parents)
        return LevelData(Ragged.from_rows(TEXTS), Ragged.from_rows(TRUTH), parents)

    def nodes(self, rows: list[int] | None = None) -> list[list[int]]:
        """Candidates of each text, in the order of the fast network's places."""
        rows = list(range(len(TEXTS))) if rows is None else rows
        if self.first_child is None or self.parents is None:
            return [list(range(11)) for _ in rows]
        starts = self.first_child
        return [[n for p in self.parents[row] if p >= 0 for n in range(starts[p], starts[p + 1])] for row in rows]


CASES = {
    "all nodes": Case(),
    "all nodes, two layers": Case(layers=(4, 3)),
    "all nodes, evidence": Case(evidence=True),
    "all nodes, two layers, evidence": Case(layers=(4, 3), evidence=True),
    "candidates": Case(FIRST_CHILD, parents=PARENTS),
    "candidates, two layers": Case(FIRST_CHILD, (5, 3), parents=PARENTS),
    "candidates, evidence": Case(FIRST_CHILD, (5,), True, PARENTS),
    "fewer candidates": Case(FIRST_CHILD, (4, 3), True, FEWER),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
two_cases = pytest.mark.parametrize("case", [CASES["all nodes"], CASES["fewer candidates"]], ids=["all", "fewer"])


def network_of(
    first_child: list[int] | None,
    layers: tuple[int, ...] = (4,),
    shard: Shard = WHOLE,
    fused: bool = True,
    **changes: object,
) -> AttentionXML:
    """Random everywhere, unused rows, first states and biases too; a shard holds rows of the same table."""
    torch.manual_seed(1)
    level = Level(1, 11, None) if first_child is None else Level(2, 11, np.array(first_child))
    settings = NetworkSettings(
        hidden=3, fully_connected=layers, **{"embedding_dropout": 0, "encoder_dropout": 0, **changes}
    )
    vectors = torch.randn(12, 5)
    vectors[0] = 0
    network = (FusedAttentionXML if fused else AttentionXML)(level, vectors, settings, shard)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name == TABLE:
                whole = torch.empty(network.attention.rows, parameter.shape[1])
                parameter.copy_(whole.normal_(0, 0.7)[shard.ids(len(whole))])
            elif name != "encoder.embedding.weight":
                parameter.normal_(0, 0.7)
            if "head.layers" in name and name.endswith("bias"):
                parameter.abs_()  # so that some units of each layer are alive
    return network


def batch(network: AttentionXML, case: Case, rows: list[int] | None = None) -> Batch:
    rows = list(range(len(TEXTS))) if rows is None else rows
    return make_batch(case.data(), network.level, np.array(rows), network.shard)


def fast_rows(network: AttentionXML, one: Batch) -> list[torch.Tensor]:
    """Logits of the candidates that exist, text by text."""
    encodings = network.encode(one.tokens, one.own_lengths, one.unique_ids)
    found = network.logits(encodings, one.lengths, one.candidates)
    if one.candidates is None:
        return list(found)
    assert torch.equal(one.candidates.exists, ~found.isneginf())
    return [row[here] for row, here in zip(found, one.candidates.exists, strict=True)]


def fast_loss(network: AttentionXML, one: Batch) -> torch.Tensor:
    encodings = network.encode(one.tokens, one.own_lengths, one.unique_ids)
    return network.loss(encodings, one.lengths, one.positives, one.count, one.candidates)


def gradients(network: AttentionXML) -> dict[str, torch.Tensor]:
    return {name: p.grad.to_dense().clone() for name, p in network.named_parameters() if p.grad is not None}


def compare(network: AttentionXML, case: Case, *, rtol: float, atol: float, times: float = 1) -> None:
    plain, one = case.plain(), batch(network, case)
    wide = torch.promote_types(network.attention.weight.dtype, torch.float32)
    with torch.no_grad():
        rows = fast_rows(network, one), fast_rows(plain, one)
    for fast, slow in zip(*rows, strict=True):
        assert fast.dtype == wide
        torch.testing.assert_close(fast.double(), slow, rtol=rtol, atol=atol)
    value, expected = fast_loss(network, one) * times, fast_loss(plain, one) * times
    torch.testing.assert_close(value.detach().double(), expected.detach(), rtol=rtol, atol=atol)
    value.backward()
    expected.backward()
    found, wanted = gradients(network), gradients(plain)
    assert found.keys() == wanted.keys() == dict(network.named_parameters()).keys()
    for name, fast in found.items():
        assert wanted[name].abs().max() > 1e-4, f"{name} is not tested"
        torch.testing.assert_close(
            fast.double(), wanted[name], rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}"
        )


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
