"""Multi-label attention, as equation 2 of the paper writes it.

The fused implementation that training and prediction use is `fused_attention`; tests compare the two.

Shapes: B documents, T tokens, D dimension of the hidden states, n nodes scored. Every function also takes arguments
without the dimension B.
"""

from torch import Tensor


def attention_scores(states_BTD: Tensor, queries_BnD: Tensor, is_word_BT: Tensor | None = None) -> Tensor:
    """Return the products ĥ_t·ŵ_j of every hidden state and every node's vector, [B, n, T]; -inf at padding."""
    scores_BnT = queries_BnD @ states_BTD.mT
    return scores_BnT if is_word_BT is None else scores_BnT.masked_fill(~is_word_BT[..., None, :], float("-inf"))


def attention_weights(states_BTD: Tensor, queries_BnD: Tensor, is_word_BT: Tensor | None = None) -> Tensor:
    """Return the coefficients α_tj = exp(ĥ_t·ŵ_j) / Σ_i exp(ĥ_i·ŵ_j), [B, n, T]; a node's sum to one over words."""
    return attention_scores(states_BTD, queries_BnD, is_word_BT).softmax(-1)


def multi_label_attention(states_BTD: Tensor, queries_BnD: Tensor, is_word_BT: Tensor | None = None) -> Tensor:
    """Return the context vector m̂_j = Σ_t α_tj ĥ_t of every node (paper, equation 2), [B, n, D].

    Args:
        states_BTD: hidden states ĥ_t of the texts.
        queries_BnD: attention parameters ŵ_j; [n, D] if all texts are scored against the same nodes.
        is_word_BT: bool, False at padding; None without padding.
    """
    return attention_weights(states_BTD, queries_BnD, is_word_BT) @ states_BTD


def evidence(states_BTD: Tensor, queries_BnD: Tensor, is_word_BT: Tensor) -> Tensor:
    """Return log((1/T) Σ_t exp(ĥ_t·ŵ_j)), how strongly a text speaks for a node, [B, n]. Not in the paper.

    The softmax of equation 2 removes the size of the scores: a text in which every word fits a node weakly and one in
    which every word fits it strongly have the same context vector. This term adds it again (`network.evidence`).
    """
    words_B1 = is_word_BT.sum(-1, keepdim=True).to(states_BTD.dtype)
    return attention_scores(states_BTD, queries_BnD, is_word_BT).logsumexp(-1) - words_B1.log()
