"""Four ragged texts through the fused network, as training runs it, and through the plain one in float64."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from axml_ray.core.ragged import Ragged
from axml_ray.network.fast.attention_xml import FusedAttentionXML
from axml_ray.network.level_network import TABLE
from axml_ray.network.paper.attention_xml import AttentionXML
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

    def network(self, shard: Shard = WHOLE, seed: int = 1) -> AttentionXML:
        return network_of(self.first_child, self.layers, shard, seed=seed, evidence=self.evidence)

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


def network_of(
    first_child: list[int] | None,
    layers: tuple[int, ...] = (4,),
    shard: Shard = WHOLE,
    fused: bool = True,
    seed: int = 1,
    **changes: object,
) -> AttentionXML:
    """Random everywhere, unused rows, first states and biases too; a shard holds rows of the same table."""
    torch.manual_seed(seed)
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
