"""Run: pytest tests/network/test_ablations.py

Ragged texts through XML-CNN and the max-pooled BiLSTM, as training runs them, and word by word in float64.
"""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from axml_ray.core.errors import SettingsError
from axml_ray.core.ragged import Ragged
from axml_ray.network import ablations
from axml_ray.network.ablations import XMLCNN, MaxPooledBiLSTM, PooledNetwork
from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.network.kinds import build_network
from axml_ray.network.level_network import TABLE, Beam
from axml_ray.network.paper.attention_xml import AttentionXML, Encoder
from axml_ray.network.sharding import WHOLE, Shard
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings, TrainingSettings
from axml_ray.settings.configuration import load
from axml_ray.training.batches import Batch, LevelData, make_batch
from axml_ray.training.level import LevelTraining

TEXTS = [[3, 7, 2, 2, 9], [4], [11, 3, 5, 8, 6, 10, 3, 7, 4], [2, 9, 4]]
FIRST_CHILD = [0, 3, 4, 8, 10, 11]  # 5 parents of 3, 1, 4, 2 and 1 children
PARENTS = [[2, 0, 4], [1, 3, -1], [4, 1, 2], [3, -1, -1]]  # a document may have fewer candidates
TRUTH = [[4, 7, 10], [3], [0, 5, 6], [8, 9]]  # 0 is no candidate of the third text
FLAT, DEEP = Level(1, 11, None), Level(2, 11, np.array(FIRST_CHILD))
CASES = [(kind, level) for kind in ("bilstm", "xml_cnn") for level in (FLAT, DEEP)]
IDS = [f"{kind}, {'all nodes' if level is FLAT else 'candidates'}" for kind, level in CASES]
SIZES = {"hidden": 3, "embedding_dropout": 0, "encoder_dropout": 0}
WIDTHS, CHUNKS = (1, 2, 4), 2
Parameters = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """XML-CNN with few filters."""
    for name, value in {"BOTTLENECK": 6, "FILTER_WIDTHS": WIDTHS, "FILTERS": 3, "CHUNKS": CHUNKS}.items():
        monkeypatch.setattr(ablations, name, value)


def network(kind: str, level: Level, shard: Shard = WHOLE, **changes: object) -> PooledNetwork:
    """Random everywhere: biases, first states, unused rows, and the vector of padding too."""
    torch.manual_seed(1)
    settings = NetworkSettings(kind=kind, **{**SIZES, **changes})
    built = build_network(level, torch.randn(12, 5), settings, shard)
    assert isinstance(built, PooledNetwork)
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if name not in ("encoder.embedding.weight", TABLE):
                parameter.normal_(0, 0.7)
        whole = torch.randn(built.attention.rows, built.attention.weight.shape[1])
        built.attention.weight.copy_(0.7 * whole[shard.rank :: shard.count])
    return built


def data(level: Level) -> LevelData:
    parents = None if level.first_child is None else np.array(PARENTS)
    return LevelData(Ragged.from_rows(TEXTS), Ragged.from_rows(TRUTH), parents)


def key_documents(documents: int, seed: int) -> tuple[Ragged, Ragged]:
    """Word ids and labels 0 to 9 of documents of which label i is true where word i + 2 occurs."""
    random = np.random.default_rng(seed)
    truth = [np.sort(random.permutation(10)[: random.integers(1, 4)]) for _ in range(documents)]
    tokens = [random.permutation([*(row + 2), *random.integers(12, 22, 4)]) for row in truth]
    return Ragged.from_rows(tokens), Ragged.from_rows(truth)


def nodes_of(level: Level) -> list[list[int]]:
    if level is FLAT:
        return [list(range(11)) for _ in TEXTS]
    return [[node for i in row if i >= 0 for node in range(FIRST_CHILD[i], FIRST_CHILD[i + 1])] for row in PARENTS]


def encodings(one: PooledNetwork, batch: Batch) -> Tensor:
    return one.encode(batch.tokens, batch.own_lengths, batch.unique_ids)


def fast_rows(one: PooledNetwork, batch: Batch) -> list[Tensor]:
    """Logits of the candidates that exist, text by text."""
    found = one.logits(encodings(one, batch), batch.lengths, batch.candidates)
    if batch.candidates is None:
        return list(found)
    assert torch.equal(batch.candidates.exists, ~found.isneginf())
    return [row[here] for row, here in zip(found, batch.candidates.exists, strict=True)]


def fast_loss(one: PooledNetwork, batch: Batch) -> Tensor:
    return one.loss(encodings(one, batch), batch.lengths, batch.positives, batch.count, batch.candidates)


def gradients(one: PooledNetwork) -> dict[str, Tensor]:
    return {name: parameter.grad.to_dense().clone() for name, parameter in one.named_parameters()}


# The literal networks


def largest(values: list[Tensor]) -> Tensor:
    result = values[0]
    for value in values[1:]:
        result = torch.where(value > result, value, result)
    return result


def parameters_of(one: PooledNetwork) -> Parameters:
    """A float64 copy of a network's parameters, each with a gradient of its own."""
    return {name: value.detach().double().clone().requires_grad_() for name, value in one.named_parameters()}


def pooled_states(p: Parameters, words: list[int]) -> Tensor:
    """The states are those of the paper's plain encoder, of one text without padding."""
    encoder = Encoder(torch.zeros(12, 5), NetworkSettings(**SIZES)).double()
    own = {name.removeprefix("encoder."): value for name, value in p.items() if name.startswith("encoder.")}
    states = torch.func.functional_call(encoder, own, (torch.tensor([words]), torch.tensor([len(words)])))
    return largest(list(states[0]))


def pooled_features(p: Parameters, words: list[int]) -> Tensor:
    """For each chunk, for each filter: the largest of what it makes of the words of the chunk and those behind."""
    chunks, count, result = CHUNKS, len(words), []
    for chunk in range(chunks):
        first, end = math.floor(chunk * count / chunks), math.ceil((chunk + 1) * count / chunks)
        for which, width in enumerate(WIDTHS):
            weight, bias = p[f"encoder.filters.{which}.weight"], p[f"encoder.filters.{which}.bias"]
            features = []
            for place in range(first, end):
                feature = bias
                for step in range(width):
                    if place + step < count:
                        feature = feature + weight[:, :, step] @ p["encoder.embedding.weight"][words[place + step]]
                features.append(torch.relu(feature))
            result.append(largest(features))
    return torch.cat(result)


def literal_logits(kind: str, p: Parameters, nodes: list[list[int]], level: Level) -> list[list[Tensor]]:
    result = []
    for words, candidates in zip(TEXTS, nodes, strict=True):
        pooled = (pooled_states if kind == "bilstm" else pooled_features)(p, words)
        x = torch.relu(p["bottleneck.weight"] @ pooled + p["bottleneck.bias"])
        rows = [node_vector(p, node, level) for node in candidates]
        result.append([row[:-1] @ x + row[-1] for row in rows])
    return result


def node_vector(p: Parameters, node: int, level: Level) -> Tensor:
    """w_j: row j where all nodes are scored; else the node's place in the block of its parent."""
    if level is FLAT:
        return p[TABLE][node]
    parent = max(i for i in range(5) if FIRST_CHILD[i] <= node)
    return p[TABLE][parent].view(level.block_size, -1)[node - FIRST_CHILD[parent]]


def literal_loss(scores: list[list[Tensor]], nodes: list[list[int]]) -> Tensor:
    """Binary cross-entropy, the mean over all candidates of all texts."""
    parts = []
    for row, candidates, true in zip(scores, nodes, TRUTH, strict=True):
        for score, node in zip(row, candidates, strict=True):
            probability = torch.sigmoid(score)
            parts.append(-torch.log(probability) if node in true else -torch.log(1 - probability))
    return torch.stack(parts).mean()


def compare(kind: str, level: Level, one: PooledNetwork, *, rtol: float, atol: float) -> None:
    nodes, batch, p = nodes_of(level), make_batch(data(level), level, np.arange(4)), parameters_of(one)
    expected = literal_logits(kind, p, nodes, level)
    for fast, slow in zip(fast_rows(one, batch), expected, strict=True):
        torch.testing.assert_close(fast.double(), torch.stack(slow), rtol=rtol, atol=atol)
    value, literal = fast_loss(one, batch), literal_loss(expected, nodes)
    torch.testing.assert_close(value.double(), literal, rtol=rtol, atol=atol)
    value.backward()
    literal.backward()
    for name, fast in gradients(one).items():
        wanted = p[name].grad.to_dense()
        assert wanted.abs().max() > 1e-4, f"{name} is not tested"
        torch.testing.assert_close(fast.double(), wanted, rtol=rtol, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(("kind", "level"), CASES, ids=IDS)
class TestAgainstTheLiteralNetworks:
    def test_float32(self, kind, level):
        compare(kind, level, network(kind, level), rtol=1e-4, atol=2e-6)

    def test_float64(self, kind, level):
        compare(kind, level, network(kind, level).double(), rtol=1e-9, atol=1e-11)

    def test_bfloat16_is_close(self, kind, level):
        one, batch = network(kind, level), make_batch(data(level), level, np.arange(4))
        with torch.autocast("cpu", torch.bfloat16):
            reduced = torch.cat(fast_rows(one, batch))
            fast_loss(one, batch).backward()
        assert reduced.dtype == torch.float32
        torch.testing.assert_close(reduced, torch.cat(fast_rows(one, batch)), rtol=0.05, atol=0.05)
        found = gradients(one)
        one.zero_grad()
        fast_loss(one, batch).backward()
        for name, wanted in gradients(one).items():
            assert (found[name] - wanted).norm() < 0.05 * wanted.norm() + 1e-3, name

    def test_the_products_with_the_table_are_exact_in_bfloat16(self, kind, level):
        one, batch = network(kind, level), make_batch(data(level), level, np.arange(4))
        with torch.autocast("cpu", torch.bfloat16):
            x = encodings(one, batch)
            found = one.logits(x, batch.lengths, batch.candidates)
        assert x.dtype == torch.float32
        torch.testing.assert_close(found, one.logits(x, batch.lengths, batch.candidates), rtol=0, atol=0)

    def test_two_shards_are_the_whole(self, kind, level):
        whole = network(kind, level)
        batches = [make_batch(data(level), level, np.arange(4), Shard(rank, 2)) for rank in range(2)]
        order = batches[0].rows
        one = make_batch(data(level), level, order)
        fast_loss(whole, one).backward()
        expected = whole.logits(encodings(whole, one), one.lengths, one.candidates)
        total, found, summed = 0.0, torch.full_like(expected, -torch.inf), {}
        for rank, batch in enumerate(batches):
            part = network(kind, level, Shard(rank, 2))
            # what `Workers.exchange` brings together
            x = torch.cat([encodings(part, each) for each in batches])
            value = part.loss(x, batch.lengths, batch.positives, batch.count, batch.candidates)
            value.backward()
            total += value.item()
            scores = part.logits(x, batch.lengths, batch.candidates)
            if batch.candidates is None:
                found[:, rank::2] = scores
            else:
                columns = (batch.candidates.beam_columns[:, :, None] * 4 + torch.arange(4)).flatten(1)
                real = batch.candidates.exists
                row = torch.arange(4)[:, None].expand_as(columns)
                found[row[real], columns[real]] = scores[real]
            for name, gradient in gradients(part).items():
                if name == TABLE:
                    torch.testing.assert_close(gradient, gradients(whole)[TABLE][rank::2])
                else:
                    summed[name] = summed.get(name, 0) + gradient
        assert total == pytest.approx(fast_loss(whole, one).item(), rel=1e-6)
        torch.testing.assert_close(found, expected)
        for name, gradient in summed.items():
            torch.testing.assert_close(gradient, gradients(whole)[name], rtol=1e-4, atol=1e-6)

    def test_learns(self, kind, level, monkeypatch):
        monkeypatch.undo()  # the sizes of the paper
        torch.manual_seed(4)
        level = Level(1, 10, None) if level is FLAT else Level(2, 10, np.array([0, 3, 4, 8, 10]))
        sizes = {**SIZES, "hidden": 10, "encoder_dropout": 0.1}
        one = build_network(level, torch.randn(22, 12), NetworkSettings(kind=kind, **sizes))
        one.initialise_output_bias(0.2)
        tokens, positives = key_documents(400, 0)
        valid_tokens, valid_positives = key_documents(40, 9)
        parents = beam = None
        if level.first_child is not None:
            random = np.random.default_rng(2)
            parents = np.stack([random.permutation(4)[:3] for _ in range(400)])
            beam = Beam(torch.arange(4).expand(40, 4), torch.zeros(40, 4))
        training = LevelTraining(
            one,
            LevelData(tokens, positives, parents),
            LevelData(valid_tokens, valid_positives, beam=beam),
            TrainingSettings(
                epochs=(12,),
                average_after=(9,),
                batch_size=20,
                learning_rate=0.01,
                eval_every_steps=20,
                precision="float32",
            ),
            1,
        )
        assert training.run() > 90
        assert training.average.snapshots > 0
        assert np.mean(training.state.recent[-10:]) < 0.5 * training.state.first_loss


@pytest.mark.parametrize("kind", ["bilstm", "xml_cnn"])
class TestPadding:
    def test_a_text_does_not_see_the_others(self, kind):
        one = network(kind, FLAT)
        together = encodings(one, make_batch(data(FLAT), FLAT, np.arange(4)))
        for row in range(4):
            alone = encodings(one, make_batch(data(FLAT), FLAT, np.array([row])))
            torch.testing.assert_close(alone[0], together[row], rtol=1e-5, atol=1e-6)

    def test_what_stands_there_has_no_influence(self, kind):
        one, lengths = network(kind, FLAT), torch.tensor([len(text) for text in TEXTS])
        clean, dirty = torch.zeros(4, 24, dtype=torch.int64), torch.ones(4, 17, dtype=torch.int64)
        for row, text in enumerate(TEXTS):
            clean[row, : len(text)] = dirty[row, : len(text)] = torch.tensor(text)
        found = []
        for tokens in (clean, dirty):
            x = one.encode(tokens, lengths)
            one.zero_grad()
            x.square().sum().backward()
            found.append((x, one.encoder.embedding.weight.grad.to_dense()))
        torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
        assert not found[0][1][:2].any() and found[0][1][2:].any(1).all()


@pytest.mark.parametrize("kind", ["bilstm", "xml_cnn"])
class TestNetwork:
    def test_encodings_are_one_row_that_ends_in_one(self, kind):
        one = network(kind, DEEP)
        x = encodings(one, make_batch(data(DEEP), DEEP, np.arange(4)))
        assert x.shape == (4, 1, 7) == (4, 1, one.attention.dimension)
        assert (x[..., -1] == 1).all()

    @pytest.mark.parametrize("level", [FLAT, DEEP], ids=["all nodes", "candidates"])
    def test_expected_rate(self, kind, level):
        one = network(kind, level)
        before = one.attention.weight.detach().view(-1, 7).clone()
        one.initialise_output_bias(0.01)
        after = one.attention.weight.detach().view(-1, 7)
        assert torch.equal(after[:, :-1], before[:, :-1])
        np.testing.assert_allclose(after[:, -1].sigmoid(), 0.01, rtol=1e-5)
        for rate in (0.0, 1.0):
            one.initialise_output_bias(rate)
            assert one.attention.weight.isfinite().all()

    def test_inherits_all_but_the_labels(self, kind):
        above, below = network(kind, FLAT), network(kind, DEEP)
        with torch.no_grad():
            for parameter in above.parameters():
                parameter.add_(1)
        own = below.attention.weight.clone()
        below.initialise_from_parent_level(above.shared_parameters())
        for name, value in below.named_parameters():
            assert torch.equal(value, own if name == TABLE else above.state_dict()[name]), name

    def test_drops_in_training_only_and_by_the_seed_of_a_text(self, kind):
        for changes in ({"embedding_dropout": 0.5}, {"encoder_dropout": 0.5}):
            one = network(kind, FLAT, **changes)
            whole, last = (make_batch(data(FLAT), FLAT, rows) for rows in (np.arange(4), np.array([2])))
            seeds = np.array([5, 6, 7, 8])
            x = one.encode(whole.tokens, whole.own_lengths, whole.unique_ids, seeds)
            assert torch.equal(x, one.encode(whole.tokens, whole.own_lengths, whole.unique_ids, seeds))
            assert not torch.equal(x, one.encode(whole.tokens, whole.own_lengths, whole.unique_ids, seeds + 9))
            assert (x[..., -1] == 1).all()
            alone = one.encode(last.tokens, last.own_lengths, last.unique_ids, seeds[2:3])
            torch.testing.assert_close(alone[0], x[2], rtol=1e-5, atol=1e-6)
            one.eval()
            torch.testing.assert_close(encodings(one, whole), encodings(network(kind, FLAT), whole))

    def test_frozen_word_vectors_stay(self, kind):
        one = network(kind, DEEP, train_embeddings=False)
        fast_loss(one, make_batch(data(DEEP), DEEP, np.arange(4))).backward()
        assert one.encoder.embedding.weight.grad is None
        assert one.bottleneck.weight.grad.any()

    def test_tables_have_gradients_of_touched_rows_only(self, kind):
        one = network(kind, DEEP)
        fast_loss(one, make_batch(data(DEEP), DEEP, np.array([1]))).backward()
        gradient = one.attention.weight.grad
        assert gradient.is_sparse and gradient._nnz() <= 3
        assert gradient.to_dense().any(1).nonzero().flatten().tolist() == [1, 3]

    def test_expand_keeps_what_exists(self, kind):
        one, batch = network(kind, DEEP, parent_score_exponent=1).eval(), make_batch(data(DEEP), DEEP, np.arange(4))
        above = torch.tensor([[-0.5, -1.0, -2.0]]).expand(4, 3)
        with torch.inference_mode():
            best = one.expand(encodings(one, batch), batch.lengths, batch.candidates, above, 5)
        rows = fast_rows(one, batch)
        for row, nodes in enumerate(nodes_of(DEEP)):
            counts = [FIRST_CHILD[i + 1] - FIRST_CHILD[i] for i in PARENTS[row] if i >= 0]
            parent_scores = above[row, : len(counts)].repeat_interleave(torch.tensor(counts))
            scores = torch.nn.functional.logsigmoid(rows[row]) + parent_scores
            order = scores.argsort(descending=True)[:5]
            missing = 5 - len(order)
            assert best.nodes[row].tolist() == [nodes[i] for i in order] + [-1] * missing
            torch.testing.assert_close(best.scores[row, : len(order)], scores[order], rtol=1e-5, atol=1e-6)


def test_chunks_of_short_texts_share_words(monkeypatch):
    one = network("xml_cnn", FLAT).encoder
    monkeypatch.setattr(ablations, "CHUNKS", 3)
    places = one._chunk_positions(torch.tensor([1, 2, 4, 6]), 8)
    distinct = [[sorted(set(chunk.tolist())) for chunk in text] for text in places]
    assert distinct == [
        [[0], [0], [0]],
        [[0], [0, 1], [1]],
        [[0, 1], [1, 2], [2, 3]],
        [[0, 1], [2, 3], [4, 5]],
    ]
    # a text's last chunk always ends in its last word, and all words are in some chunk
    monkeypatch.setattr(ablations, "CHUNKS", 7)
    for width in (8, 16, 24):
        lengths = torch.arange(1, width + 1)
        for length, text in zip(lengths.tolist(), one._chunk_positions(lengths, width), strict=True):
            assert sorted(set(text.flatten().tolist())) == list(range(length))
            assert text[-1, -1] == length - 1


class TestSettings:
    def test_each_kind_has_its_network(self):
        for kind, cls in (("attention", FusedAttentionXML), ("bilstm", MaxPooledBiLSTM), ("xml_cnn", XMLCNN)):
            built = build_network(FLAT, torch.zeros(12, 5), NetworkSettings(kind=kind, hidden=3), Shard(1, 2))
            assert type(built) is cls
            assert len(built.attention.weight) == 5
        plain = NetworkSettings(implementation="plain", hidden=3)
        assert type(build_network(FLAT, torch.zeros(12, 5), plain)) is AttentionXML
        assert NetworkSettings().kind == "attention"

    def test_shards_draw_what_the_whole_has(self):
        tables = []
        for shard in (WHOLE, Shard(0, 2), Shard(1, 2)):
            torch.manual_seed(6)
            settings = NetworkSettings(kind="xml_cnn", **SIZES)
            tables.append(build_network(DEEP, torch.zeros(12, 5), settings, shard).attention.weight)
        assert torch.equal(tables[0][0::2], tables[1]) and torch.equal(tables[0][1::2], tables[2])

    @pytest.mark.parametrize(
        ("changes", "fix"),
        [
            ({"evidence": True}, "set network.evidence to false"),
            ({"label_vector_init": "features"}, "set network.label_vector_init to random"),
            (
                {"evidence": True, "label_vector_init": "features"},
                "set network.evidence to false and network.label_vector_init to random",
            ),
        ],
    )
    def test_what_belongs_to_attention_is_refused(self, changes, fix):
        load(corpus={"source": "installed_packages"}, network=changes)
        with pytest.raises(SettingsError, match=f"network.kind xml_cnn has no attention; {fix}$"):
            load(corpus={"source": "installed_packages"}, network={"kind": "xml_cnn", **changes})
