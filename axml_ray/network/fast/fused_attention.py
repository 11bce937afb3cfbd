"""The loss of a level and its gradients in one pass: equation 2, head and cross-entropy, fused.

`paper.attention_xml` has equation 2 as the paper writes it. Autograd through it would keep the scores of all texts,
words and nodes, and the context vectors of all texts and nodes. Here they exist for a few documents and a bounded
number of nodes at a time:

- Nodes do not interact before the loss, nor do documents, and a node's part of the loss is known as soon as its logit
  is. So a group of documents goes forward and at once backward through a chunk of nodes, and only sums of gradients
  remain. Nothing is computed twice, and memory does not grow with the level.
- How large a group is depends on the device (`Limits`). On a CPU it is as large as a core's cache, where the passes
  over scores and contexts cost little compared with the matrix products.
- The first fully connected layer is applied to words instead of context vectors (`FusedAttentionXML.level_inputs`).

Legend: B documents, g documents of a group, T tokens, D hidden dimension, F units of the first layer, n nodes scored,
C parents, K children of a parent at most.
"""

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.base import Backend
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.fast.eager_attention import EagerAttention, ExponentialAttention, SoftmaxAttention
from axml_ray.network.fast.fused_head import FusedHead


@dataclass(frozen=True)
class LevelInputs:
    """The inputs of a pass over a batch.

    Attributes:
        head: the network's head, new for this pass.
        states: hidden states of the texts, [B, T, D], in the number format of matrix products.
        values: what attention averages over words, [B, T, F].
        lengths: int64 [B], words of each text.
        table: [rows, K·D], the shard of the label table.
        candidates: the candidates of each document; None if all nodes of the table are scored.
        positives: int64 [2, P], document and column (of the table's nodes or of C·K slots) of each true node. None asks
            for logits only.
        denominator: the summed loss is divided by it.
        gradient_scale: scalar by which all gradients, but not the loss, are multiplied; None for one. In float16 they
            would otherwise vanish (`loss_scale`).
    """

    head: FusedHead
    states: Tensor
    values: Tensor
    lengths: Tensor
    table: Tensor
    candidates: Candidates | None = None
    positives: Tensor | None = None
    denominator: float = 1.0
    gradient_scale: Tensor | None = None

    @cached_property
    def backend(self) -> Backend:
        """The backend of the tensors' device."""
        return backend_for(self.states.device)

    @property
    def wide(self) -> torch.dtype:
        """The number format of logits and sums."""
        return torch.promote_types(self.states.dtype, torch.float32)

    @property
    def values_per_node(self) -> int:
        """The values held for a node and a document: T scores, their gradients, and the head's."""
        return 2 * self.states.shape[1] + self.head.values_per_node

    @property
    def attention(self) -> type[EagerAttention]:
        """The form of attention; the faster one on a CPU is for one layer, and reads what a GPU would not have yet."""
        return SoftmaxAttention if self.backend.runs_ahead or self.head.has_layers else ExponentialAttention

    def groups(self, nodes: int) -> list[slice]:
        """Return the groups of documents that go through the head one after the other, with `nodes` nodes each."""
        documents = len(self.states)
        return _slices(documents, self.backend.limits.documents_of_group(documents, nodes, self.values_per_node))


class LevelGradients:
    """The loss of a batch and its gradients, summed over chunks of nodes and groups of documents.

    Sums are float32 or wider: in bfloat16 small terms would be lost.

    Attributes:
        loss: scalar.
        states, values: gradients of the shapes of states and values.
        table: gradient of the shape of the table, or [distinct rows, K·D] for `candidates.rows`.
        targets: 1 for each true node and 0 elsewhere, [B, columns].
    """

    table: Tensor
    targets: Tensor

    def __init__(self, inputs: LevelInputs):
        self._inputs = inputs
        self.loss = torch.zeros((), device=inputs.states.device, dtype=inputs.wide)
        self.states = torch.zeros_like(inputs.states, dtype=inputs.wide)
        self.values = torch.zeros_like(inputs.values, dtype=inputs.wide)

    def set_targets(self, columns: int) -> None:
        """Set the targets of a level with this many columns, those of padding included."""
        assert self._inputs.positives is not None
        targets = torch.zeros(len(self.states), columns, dtype=self.loss.dtype, device=self.states.device)
        document, column = self._inputs.positives
        # Not `targets[...] = 1`: PyTorch copies a Python number to a GPU, and the CPU waits for the copy.
        self.targets = targets.index_put_((document, column), targets.new_ones(()))

    def go_back(self, group: slice, columns: slice, logits: Tensor, saved: Any, exists: Tensor | None) -> Tensor:
        """Add the cross-entropy (paper, section 2.4.5) of a group and its gradients; return those of the scores."""
        inputs, targets = self._inputs, self.targets[group, columns]
        # -y log σ(z) - (1 - y) log(1 - σ(z)) = softplus(z) - y z, which does not overflow.
        losses, gradient = softplus(logits) - logits * targets, torch.sigmoid(logits) - targets
        if exists is not None:
            losses, gradient = losses * exists, gradient * exists
        self.loss += losses.sum() / inputs.denominator
        gradient = gradient / inputs.denominator
        if inputs.gradient_scale is not None:
            gradient = gradient * inputs.gradient_scale
        score_gradients, values_gradient = inputs.head.backward(saved, gradient)
        self.values[group] += values_gradient
        return score_gradients


def _run(inputs: LevelInputs, sums: LevelGradients | None) -> Tensor | None:
    """Go forward, and with `sums` back; return the logits, or None with `sums`."""
    with torch.autocast(inputs.backend.device_type, enabled=False):
        if inputs.candidates is None:
            return _run_all_nodes(inputs, sums)
        return _run_candidates(inputs, inputs.candidates, sums)


def _run_all_nodes(inputs: LevelInputs, sums: LevelGradients | None) -> Tensor | None:
    """Score all nodes of the table: the scores of a chunk of nodes are one product for all documents."""
    backend, states, nodes = inputs.backend, inputs.states, len(inputs.table)
    documents, tokens, dimension = states.shape
    chunks = _slices(nodes, backend.limits.nodes_of_chunk(nodes, documents, tokens, inputs.values_per_node))
    logits = [] if chunks else [inputs.values.new_empty(documents, 0, dtype=inputs.wide)]
    if sums is not None:
        sums.table = torch.empty_like(inputs.table)
        # Only the last chunk is padded, as the others have widths of `chunk_multiple`.
        sums.set_targets(nodes + (_missing(chunks[-1], backend.limits.node_multiple) if chunks else 0))
    for chunk in chunks:
        queries, exists = inputs.table[chunk].to(states.dtype), None
        count = len(queries)
        if missing := _missing(chunk, backend.limits.node_multiple):
            queries = pad(queries, (0, 0, 0, missing))
            exists = torch.arange(len(queries), device=queries.device) < count
        columns = slice(chunk.start, chunk.start + len(queries))
        scores_BnT = backend.table_scores(states, queries)
        groups, chunk_logits = inputs.groups(len(queries)), []
        for group in groups:
            attention = inputs.attention(scores_BnT[group])
            group_logits, saved = inputs.head.forward(attention, inputs.values[group], inputs.lengths[group])
            if sums is None:
                chunk_logits.append(group_logits[:, :count])
                continue
            score_gradients = sums.go_back(group, columns, group_logits, saved, exists)
            # The gradients take the place of the scores, which are no longer needed.
            if len(groups) == 1:
                scores_BnT = score_gradients
            elif score_gradients.data_ptr() != scores_BnT[group].data_ptr():
                scores_BnT[group] = score_gradients
        if sums is None:
            logits.append(torch.cat(chunk_logits))
            continue
        gradients_nR = scores_BnT.transpose(0, 1).flatten(1)  # a view in either backend's memory layout, R = B·T
        sums.table[chunk] = (gradients_nR @ states.view(-1, dimension))[:count]
        sums.states += (gradients_nR.t() @ queries).view_as(sums.states)
    return torch.cat(logits, dim=1) if sums is None else None


def _run_candidates(inputs: LevelInputs, candidates: Candidates, sums: LevelGradients | None) -> Tensor | None:
    """Score the candidates: each document has its own queries, gathered from the rows of its parents."""
    backend, states = inputs.backend, inputs.states
    documents, _, dimension = states.shape
    block_size = inputs.table.shape[1] // dimension
    width = candidates.row_index.shape[1]
    if sums is None and candidates.rows is not None and not len(candidates.rows):  # this shard holds no candidate
        return states.new_full((documents, width * block_size), float("-inf"), dtype=inputs.wide)
    rows, row_index = _gather_rows(inputs, candidates, with_gradient=sums is not None)
    if sums is not None:
        sums.table = torch.zeros(rows.shape, dtype=inputs.table.dtype, device=rows.device)
        if not len(rows):
            return None
    size = backend.limits.columns_of_chunk(width, block_size, documents, inputs.values_per_node)
    chunks, exists, logits = _slices(width, size), candidates.exists, []
    # K siblings of each parent: a multiple of parents whose children are a multiple of `node_multiple`.
    multiple = backend.limits.node_multiple // math.gcd(backend.limits.node_multiple, block_size)
    if missing := _missing(chunks[-1], multiple):
        row_index, exists = pad(row_index, (0, missing)), pad(exists, (0, missing * block_size))
    if sums is not None:
        sums.set_targets(exists.shape[1])
    for chunk in chunks:
        columns = slice(chunk.start, chunk.stop + _missing(chunk, multiple))
        slots = slice(columns.start * block_size, columns.stop * block_size)
        chunk_logits = []
        for group in inputs.groups(slots.stop - slots.start):
            group_states, index = states[group], row_index[group, columns].flatten()
            # A row holds the vectors of K siblings, so that viewing it as [K, D] gives the children's queries.
            queries = rows.index_select(0, index).to(states.dtype).view(len(group_states), -1, dimension)
            attention = inputs.attention(backend.products(queries, group_states))
            group_logits, saved = inputs.head.forward(attention, inputs.values[group], inputs.lengths[group])
            if sums is None:
                chunk_logits.append(group_logits.masked_fill_(~exists[group, slots], float("-inf")))
                continue
            score_gradients = sums.go_back(group, slots, group_logits, saved, exists[group, slots])
            query_gradients = torch.bmm(score_gradients, group_states).view(len(index), -1)
            backend.add_rows_(sums.table, index, query_gradients)
            sums.states[group] += torch.bmm(score_gradients.transpose(1, 2), queries)
        if sums is None:
            logits.append(torch.cat(chunk_logits))
    return torch.cat(logits, dim=1)[:, : width * block_size] if sums is None else None


def _gather_rows(inputs: LevelInputs, candidates: Candidates, with_gradient: bool) -> tuple[Tensor, Tensor]:
    """Return rows that hold all candidates, in the format of matrix products, and each parent's index in them.

    The index is int64 [B, C]. Each distinct row is read and converted once, however many documents share it.
    """
    table, rows, dtype = inputs.table, candidates.rows, inputs.states.dtype
    if rows is None:  # of a network that only predicts; queries are converted after they are gathered
        return table, candidates.row_index
    if table.dtype == dtype:
        if not with_gradient:  # nothing to convert and no gradient of distinct rows: index the table itself
            return table, rows[candidates.row_index]
        return table.index_select(0, rows), candidates.row_index
    gathered = torch.empty(len(rows), table.shape[1], dtype=dtype, device=table.device)
    for some in _slices(len(rows), inputs.backend.limits.cast_rows):
        gathered[some] = table.index_select(0, rows[some])
    return gathered, candidates.row_index


def _slices(length: int, size: int) -> list[slice]:
    """Cut `length` into slices of at most `size`; a size of 0 counts as 1, so that an empty shard has no slice."""
    size = max(1, size)
    return [slice(start, min(length, start + size)) for start in range(0, length, size)]


def _missing(chunk: slice, multiple: int) -> int:
    """Return by how many nodes or parents that do not count a chunk is padded."""
    return -(chunk.stop - chunk.start) % multiple


def fused_logits(inputs: LevelInputs) -> Tensor:
    """Return logits without gradients, float32 or wider.

    They are [B, n] of all nodes, or [B, C·K] of the candidates' slots, -inf where there is no child.
    """
    with torch.no_grad():
        logits = _run(inputs, None)
    assert logits is not None
    return logits


def fused_loss(inputs: LevelInputs) -> Tensor:
    """Return the loss, differentiable in states, values, table and the head's parameters."""
    loss: Tensor = _FusedLoss.apply(inputs, inputs.states, inputs.values, inputs.table, *inputs.head.parameters)
    return loss


def first_gradient(loss: Tensor) -> Tensor:
    """Return a one for `loss.backward` that `fused_loss` knows by its address, so that nothing is multiplied by it.

    Reading its value would make the CPU wait for a GPU, and the gradient of the table is large.
    """
    return _kept_one(loss.device, loss.dtype)


@cache
def _kept_one(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.ones((), device=device, dtype=dtype)


class _FusedLoss(torch.autograd.Function):
    """A node of the autograd graph whose gradients are computed in its forward pass.

    `backward` only returns them, times the gradient of the loss.
    """

    @staticmethod
    def forward(context: Any, inputs: LevelInputs, *_: Tensor) -> Tensor:
        sums = LevelGradients(inputs)
        _run(inputs, sums)
        table_gradient = sums.table
        if inputs.candidates is not None:
            rows = inputs.candidates.rows
            assert rows is not None
            # The rows are ascending and distinct; checking it would take time, and their values need no copy.
            table_gradient = torch.sparse_coo_tensor(
                rows[None], sums.table, inputs.table.shape, is_coalesced=True, check_invariants=False
            )
        states_gradient, values_gradient = sums.states.to(inputs.states), sums.values.to(inputs.values)
        context.gradients = [states_gradient, values_gradient, table_gradient, *inputs.head.gradients]
        return sums.loss

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients, context.gradients = context.gradients, None
        if gradient.data_ptr() != first_gradient(gradient).data_ptr():
            gradients = [value * gradient for value in gradients]
        return None, *gradients
