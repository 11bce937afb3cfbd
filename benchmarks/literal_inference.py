"""The literal implementation of prediction: the AttentionXML paper in plain PyTorch, on the literal network.

It is the baseline of our prediction speed, so it is not slowed down anywhere: float32 on all cores, batches in the
order of the texts, cut to their longest text, packed sequences, no gradients, candidates gathered for a whole batch at
a time. It has none of the optimisations of `axml_ray`: no batches of similar length, no bfloat16, no folded layer, no
blocks of siblings.

Shapes: B documents, C parents, K children a parent at most, n candidates.
"""

from collections.abc import Sequence

import numpy as np
import torch
from literal_training import LiteralLevel, padded
from torch import Tensor

from axml_ray.core.ragged import Ragged
from axml_ray.members.network_tree import NetworkTree
from axml_ray.network.paper.attention_xml import AttentionXML
from axml_ray.tree.label_tree import LabelTree


class LiteralTree:
    """The literal networks of a tree's levels, with beam search.

    Args:
        tree: the label tree.
        levels: literal networks, from the top.
        beam: C.
        parent_score_exponent: exponent of a parent's score in its children's; 1 in the paper.
        max_tokens: number of first words of a text that are read; None for all.
    """

    def __init__(
        self,
        tree: LabelTree,
        levels: Sequence[LiteralLevel],
        beam: int,
        parent_score_exponent: float,
        max_tokens: int | None = None,
    ):
        self.levels = [level.eval() for level in levels]
        self.max_tokens = max_tokens
        self.beam, self.parent_score_exponent = beam, parent_score_exponent
        self.labels = torch.from_numpy(tree.label_order.astype(np.int64))
        self.children = [_children(first_child) for first_child in tree.first_child[1:]]

    @classmethod
    def like(cls, member: NetworkTree, *, evidence: bool) -> "LiteralTree":
        """Build the literal implementation of one of our trees, with the same weights.

        Args:
            member: our networks.
            evidence: also compute the evidence, which the paper doesn't have, if the networks were trained with it.
        """
        levels = [literal_level(network, evidence) for network in member.networks]
        return cls(member.tree, levels, member.beam, member.networks[0].parent_score_exponent, member.max_tokens)

    @torch.inference_mode()
    def predict(self, tokens: Ragged, top: int, batch_size: int = 64) -> tuple[np.ndarray, np.ndarray]:
        """Return the best labels of each document and their scores, int64 and float32 [documents, top]."""
        if self.max_tokens is not None:
            tokens = tokens.cut(self.max_tokens)
        batches = [
            self._batch(tokens.take(np.arange(start, min(start + batch_size, len(tokens)))), top)
            for start in range(0, len(tokens), batch_size)
        ]
        labels, scores = (torch.cat(parts).numpy() for parts in zip(*batches, strict=True))
        return labels, scores

    def _batch(self, texts: Ragged, top: int) -> tuple[Tensor, Tensor]:
        tokens_BT, lengths_B = padded(texts), torch.from_numpy(texts.lengths)
        keep = [self.beam] * (len(self.levels) - 1) + [top]
        scores_BC, nodes_BC = self.levels[0](tokens_BT, lengths_B).sigmoid().topk(keep[0], dim=1)
        for level, children, count in zip(self.levels[1:], self.children, keep[1:], strict=True):
            candidates_Bn = children[nodes_BC].flatten(1)
            exists_Bn = candidates_Bn >= 0
            logits_Bn = level(tokens_BT, lengths_B, candidates_Bn.clamp_min(0))
            above_Bn = scores_BC.repeat_interleave(children.shape[1], dim=1) ** self.parent_score_exponent
            scores_Bn = logits_Bn.sigmoid() * above_Bn * exists_Bn
            scores_BC, places = scores_Bn.topk(count, dim=1)
            nodes_BC = candidates_Bn.gather(1, places)
        return self.labels[nodes_BC], scores_BC


def _children(first_child: np.ndarray) -> Tensor:
    """Return the children of each node, int64 [nodes, K], -1 where there are fewer."""
    counts = np.diff(first_child)
    places = np.arange(counts.max())
    return torch.from_numpy(np.where(places < counts[:, None], first_child[:-1, None] + places, -1))


@torch.no_grad()
def literal_level(network: object, evidence: bool) -> LiteralLevel:
    """Return the literal network with the weights of one of ours, float32."""
    assert isinstance(network, AttentionXML)
    level, head, encoder = network.level, network.head, network.encoder
    vectors = encoder.embedding.weight.float()
    sizes = [len(head.get_parameter(f"layers.{layer}.bias")) for layer in range(len(head.layers))]
    literal = LiteralLevel(level.nodes, level.first_child is not None, vectors, encoder.forward_lstm.hidden_size, sizes)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        getattr(literal.lstm, f"{name}_l0").copy_(getattr(encoder.forward_lstm, f"{name}_l0"))
        getattr(literal.lstm, f"{name}_l0_reverse").copy_(getattr(encoder.backward_lstm, f"{name}_l0"))
    literal.first_hidden.copy_(encoder.first_state[:, 0, None])
    literal.first_cell.copy_(encoder.first_state[:, 1, None])
    literal.attention.weight.copy_(network.attention.vectors(torch.arange(level.nodes), network.first_child))
    for mine, theirs in zip([*literal.layers, literal.output], [*head.layers, head.output], strict=True):
        mine.weight.copy_(theirs.weight)
        mine.bias.copy_(theirs.bias)
    if evidence and network.evidence_weight is not None:
        literal.evidence = float(network.evidence_weight)
    return literal
