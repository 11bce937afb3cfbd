"""Equation 2 and the first fully connected layer in one pass over a text's words: Triton kernels.

The eager twin, `fused_head.EagerAttention`, writes and reads the scores of all nodes and words about twelve times. Here
the forward pass stores none: softmax and weighted sum are computed word by word, block by block (online softmax). The
backward pass computes the scores once more and stores two results in the format of products, the attention weights and
the gradients of the scores; the three products that remain are cuBLAS's, which multiplies them as fast as the card can.

A program scores `NODES` nodes for one document. The nodes' queries are the rows 0, 1, ... of a table, equal for all
documents, or rows that an index names for each document: the vectors of K siblings are K consecutive rows of a table of
blocks, so that candidates are read where they are, without a copy.

Not yet run on a GPU: Triton's interpreter holds both kernels against float64 on a CPU. They are used where the
environment variable AXML_RAY_TRITON is 1 (`CudaBackend`). This module needs Triton, which PyTorch's CUDA build brings.

Legend: g documents, T tokens, D dimension of states and queries, F units of the first layer, n nodes, R rows of the
table of queries.
"""

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

NODES, WORDS, DEPTH = 64, 32, 64
"""Nodes and words of a tile, and values of D or F that are multiplied at a time."""
UNITS = 256
"""Most units that a program of the forward kernel sums; with more of them, programs share the units and repeat the
scores. The sums of 64 nodes and 256 units are half of an SM's registers."""
WARPS = 8


@triton.jit
def _nodes_of_program(index, nodes, GATHERED: tl.constexpr, NODES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return a program's document, and NODES of its nodes: their numbers, which of them exist, and their rows."""
    # One axis for both: the second and third axes of a grid end at 65,535, and a batch may have more short documents.
    tiles = tl.cdiv(nodes, NODES)
    document = (tl.program_id(0) // tiles).to(tl.int64)
    node = tl.program_id(0) % tiles * NODES + tl.arange(0, NODES)
    exists = node < nodes
    row = tl.load(index + document * nodes + node, mask=exists, other=0) if GATHERED else node.to(tl.int64)
    return document, node, exists, row


@triton.jit
def _tile_scores(  # type: ignore[no-untyped-def]
    queries, row, row_exists, states, word, word_exists, D: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, WIDE: tl.constexpr, NODES: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Return the products of some rows of two matrices of D columns, float32 [NODES, WORDS]."""
    scores = tl.zeros((NODES, WORDS), dtype=tl.float32)
    for start in range(0, D, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        within = depth < D
        query = tl.load(queries + row[:, None] * D + depth, mask=row_exists[:, None] & within, other=0.0)
        inside = word_exists[None, :] & within[:, None]
        state = tl.load(states + word[None, :] * D + depth[:, None], mask=inside, other=0.0)
        if WIDE:
            query, state = query.to(tl.float32), state.to(tl.float32)
        scores = tl.dot(query, state, scores, input_precision=PRECISION)
    return scores


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    states, queries, index, values, bias, lengths, contexts, log_sums, tokens, nodes,
    D: tl.constexpr, F: tl.constexpr, GATHERED: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
    NODES: tl.constexpr, WORDS: tl.constexpr, DEPTH: tl.constexpr, UNITS: tl.constexpr,
):  # fmt: skip
    """Write UNITS of the contexts of NODES nodes for one document, and the logarithms of their sums of exponentials."""
    document, node, exists, row = _nodes_of_program(index, nodes, GATHERED, NODES)
    unit = tl.program_id(1) * UNITS + tl.arange(0, UNITS)
    length = tl.load(lengths + document)
    states += document * tokens * D
    values += document * tokens * F
    largest = tl.full((NODES,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((NODES,), dtype=tl.float32)
    summed = tl.zeros((NODES, UNITS), dtype=tl.float32)
    for start in range(0, length, WORDS):
        word = start + tl.arange(0, WORDS)
        is_word = word < length
        scores = _tile_scores(queries, row, exists, states, word, is_word, D, DEPTH, PRECISION, WIDE, NODES, WORDS)
        scores = tl.where(is_word[None, :], scores, float("-inf"))
        # Online softmax: sums so far are relative to the largest score so far, and shrink when a larger one is seen.
        larger = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp(largest - larger)
        weights = tl.exp(scores - larger[:, None])
        total = total * shrink + tl.sum(weights, 1)
        value = tl.load(values + word[:, None] * F + unit, mask=is_word[:, None] & (unit < F), other=0.0)
        weights = weights.to(value.dtype)
        if WIDE:
            weights, value = weights.to(tl.float32), value.to(tl.float32)
        summed = tl.dot(weights, value, summed * shrink[:, None], input_precision=PRECISION)
        largest = larger
    summed = summed / total[:, None] + tl.load(bias + unit, mask=unit < F, other=0.0).to(tl.float32)
    at = (document * nodes + node).to(tl.int64)
    within = exists[:, None] & (unit < F)
    tl.store(contexts + at[:, None] * F + unit, summed.to(contexts.dtype.element_ty), mask=within)
    if tl.program_id(1) == 0:
        tl.store(log_sums + at, largest + tl.log(total), mask=exists)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    states, queries, index, values, lengths, log_sums, gradients, offsets, weights, score_gradients, tokens, nodes,
    document_stride, node_stride, D: tl.constexpr, F: tl.constexpr, GATHERED: tl.constexpr,
    PRECISION: tl.constexpr, WIDE: tl.constexpr, NODES: tl.constexpr, WORDS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write the attention weights and the gradients of the scores of NODES nodes and WORDS words of one document."""
    document, node, exists, row = _nodes_of_program(index, nodes, GATHERED, NODES)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    is_word = word < tl.load(lengths + document)
    states += document * tokens * D
    values += document * tokens * F
    scores = _tile_scores(queries, row, exists, states, word, is_word, D, DEPTH, PRECISION, WIDE, NODES, WORDS)
    at = (document * nodes + node).to(tl.int64)
    log_sum = tl.load(log_sums + at, mask=exists, other=0.0)
    weight = tl.where(is_word[None, :], tl.exp(scores - log_sum[:, None]), 0.0)
    gradient = _tile_scores(gradients, at, exists, values, word, is_word, F, DEPTH, PRECISION, WIDE, NODES, WORDS)
    gradient = weight * (gradient - tl.load(offsets + at, mask=exists, other=0.0)[:, None])
    place = document * document_stride + node[:, None].to(tl.int64) * node_stride + word[None, :]
    within = exists[:, None] & (word < tokens)[None, :]
    tl.store(weights + place, weight.to(weights.dtype.element_ty), mask=within)
    tl.store(score_gradients + place, gradient.to(score_gradients.dtype.element_ty), mask=within)


class KernelAttention:
    """The attention of some nodes to the words of some documents; `fused_head.EagerAttention` is its eager twin.

    Args:
        states_gTD: hidden states ĥ_t, float32, bfloat16 or float16, as are queries and values.
        queries_RD: attention parameters ŵ_j.
        index_gn: int64, the row of each document's nodes; None if the nodes of all documents are the rows in order.
    """

    def __init__(self, states_gTD: Tensor, queries_RD: Tensor, index_gn: Tensor | None = None):
        self.states, self.queries = states_gTD.contiguous(), queries_RD.contiguous()
        self.index = None if index_gn is None else index_gn.contiguous()

    def forward(
        self, values_gTF: Tensor, lengths_g: Tensor, bias: Tensor, with_log_sums: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return weighted sums and logarithms as `EagerAttention.forward` does."""
        self.values, self.lengths = values_gTF.contiguous(), lengths_g.contiguous()
        self.bias = bias.contiguous()
        found = attend(self.states, self.queries, self.index, self.values, self.bias, self.lengths)
        self.contexts, self.log_sums = found
        return found

    def backward(self, gradients_gnF: Tensor, log_sum_gradients_gn: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the gradients of scores and values as `EagerAttention.backward` does."""
        gradients = gradients_gnF.contiguous()
        offsets = (gradients.float() * (self.contexts.float() - self.bias.float())).sum(2)
        if log_sum_gradients_gn is not None:
            offsets -= log_sum_gradients_gn
        weights, score_gradients = attend_backward(
            self.states, self.queries, self.index, self.values, self.lengths, self.log_sums, gradients, offsets
        )
        return score_gradients, torch.bmm(weights.transpose(1, 2), gradients)


def _rounding(dtype: torch.dtype) -> dict[str, Any]:
    """Return the kernels' settings of how products are computed; those in reduced formats are summed in float32.

    Triton's interpreter multiplies bfloat16 as the integers that it keeps it in, so there they are made float32, in
    which their products are exact.
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return {"PRECISION": "ieee" if dtype == torch.float32 else "tf32", "WIDE": interpreted and dtype == torch.bfloat16}


def attend(
    states_gTD: Tensor, queries_RD: Tensor, index_gn: Tensor | None, values_gTF: Tensor, bias: Tensor, lengths_g: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums of each document's values by the attention of its nodes, plus a bias.

    Arguments are as in `KernelAttention` and contiguous; words after a document's length (at least 1) are not read.

    Returns:
        [g, n, F] in the format of the values, and log Σ_t exp(ĥ_t·ŵ_j), float32 [g, n].
    """
    documents, tokens, dimension = states_gTD.shape
    units = values_gTF.shape[2]
    nodes = len(queries_RD) if index_gn is None else index_gn.shape[1]
    contexts = values_gTF.new_empty(documents, nodes, units)
    log_sums = values_gTF.new_empty(documents, nodes, dtype=torch.float32)
    at_once = min(UNITS, max(16, triton.next_power_of_2(units)))
    kernel: Any = _forward[triton.cdiv(nodes, NODES) * documents, triton.cdiv(units, at_once)]
    kernel(
        states_gTD, queries_RD, lengths_g if index_gn is None else index_gn, values_gTF, bias, lengths_g,
        contexts, log_sums, tokens, nodes, D=dimension, F=units, GATHERED=index_gn is not None,
        **_rounding(states_gTD.dtype), NODES=NODES, WORDS=WORDS, DEPTH=DEPTH, UNITS=at_once,
        num_warps=WARPS,
    )  # fmt: skip
    return contexts, log_sums


def attend_backward(
    states_gTD: Tensor,
    queries_RD: Tensor,
    index_gn: Tensor | None,
    values_gTF: Tensor,
    lengths_g: Tensor,
    log_sums_gn: Tensor,
    context_gradients_gnF: Tensor,
    offsets_gn: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the attention weights and the gradients of the scores, [g, n, T]; both are zero at padding.

    They are in the format of the states, in memory [n, g, T] without an index and [g, n, T] with one, as the eager twin
    has them. With p the weights and G the gradient of a context, that of a score is p_t (G·v_t - offset).

    Args:
        states_gTD, queries_RD, index_gn, values_gTF, lengths_g: as in `attend`.
        log_sums_gn: as `attend` returned them.
        context_gradients_gnF: contiguous, in the format of the values.
        offsets_gn: float32, G·(Σ_t p_t v_t), less the gradient of the logarithm of the sum of exponentials.
    """
    documents, tokens, dimension = states_gTD.shape
    nodes, units = context_gradients_gnF.shape[1:]
    shape = (nodes, documents, tokens) if index_gn is None else (documents, nodes, tokens)
    made = [states_gTD.new_empty(shape) for _ in range(2)]
    weights, gradients = [one.transpose(0, 1) for one in made] if index_gn is None else made
    kernel: Any = _backward[triton.cdiv(nodes, NODES) * documents, triton.cdiv(tokens, WORDS)]
    kernel(
        states_gTD, queries_RD, lengths_g if index_gn is None else index_gn, values_gTF, lengths_g, log_sums_gn,
        context_gradients_gnF, offsets_gn, weights, gradients, tokens, nodes, weights.stride(0), weights.stride(1),
        D=dimension, F=units, GATHERED=index_gn is not None, **_rounding(states_gTD.dtype),
        NODES=NODES, WORDS=WORDS, DEPTH=DEPTH, num_warps=WARPS,
    )  # fmt: skip
    return weights, gradients
