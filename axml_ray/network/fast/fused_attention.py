"""The loss of a level and its gradients in one pass: equation 2, head and cross-entropy, fused.

`multi_label_attention` is equation 2 as the paper writes it. Autograd through it would keep the scores of all texts,
words and nodes, and the context vectors of all texts and nodes. Here they exist for a few documents and a bounded
number of nodes at a time:

- Nodes do not interact before the loss, nor do documents, and a node's part of the loss is known as soon as its logit
  is. So a group of documents goes forward and at once backward through a chunk of nodes, and only sums of gradients
  remain. Nothing is computed twice, and memory does not grow with the level.
- How large a group is depends on the device (`Backend`). On a CPU it is as large as a core's cache, where the passes
  over scores and contexts cost little compared with the matrix products.
- The first fully connected layer is applied to words instead of context vectors (`Head.project`).

Legend: B documents, g documents of a group, T tokens, D hidden dimension, F units of the first layer, n nodes scored,
C parents, K children of a parent at most.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from axml_ray.network.backends.backend import backend_for
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.fast.fused_head import Attention, FusedHead
from axml_ray.network.fast.sparse_rows import sparse_gradient


@dataclass
class LevelPass:
    """One pass over a batch: logits only, or the loss and all gradients.

    Arguments:
        head: the network's head, new for this pass.
        states: encodings of the texts, [B, T, D], in the number format of matrix products.
        values: what attention averages over words, [B, T, F].
        lengths: int64 [B], rows of each encoding that are not padding.
        table: [rows, K·D], the shard of the label table.
        candidates: the candidates of each document; None if all nodes of the table are scored.
        positives: int64 [2, P], document and column (of the table's nodes or of C·K slots) of each true node. None asks
            for logits only.
        denominator: the summed loss is divided by it.
        gradient_scale: scalar by which all gradients, but not the loss, are multiplied; None for one. In float16 they
            would otherwise vanish (`loss_scale`).

    Results of `run`:
        logits: chunks of the logits, to be joined along dimension 1; filled without `positives`.
        loss: scalar, float32 or wider; this and the gradients are filled with `positives`.
        states_gradient, values_gradient: of the shapes of states and values, float32 or wider.
        table_gradient: of the shape of the table, or [distinct rows, K·D] for `candidates.rows`.
        head.gradients: of the head's parameters.
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

    def __post_init__(self) -> None:
        self.backend = backend_for(self.states.device)
        # Without values there is no attention, but one encoding of each text (`FusedDotProduct`).
        self.kernel = self.backend.attention_kernel(self.states.dtype) if self.values.shape[2] else None
        self.logits: list[Tensor] = []
        # Sums over many chunks: in bfloat16 small terms would be lost.
        self.wide = torch.promote_types(self.states.dtype, torch.float32)
        self.loss = torch.zeros((), device=self.states.device, dtype=self.wide)
        self.table_gradient: Tensor | None = None
        if self.positives is not None:
            self.states_gradient = torch.zeros_like(self.states, dtype=self.wide)
            self.values_gradient = torch.zeros_like(self.values, dtype=self.wide)

    def run(self) -> None:
        """Compute the results."""
        if self.candidates is None:
            self._run_all_nodes()
        else:
            self._run_candidates(self.candidates)

    # Levels all of whose nodes are scored: the scores of a chunk of nodes are one product for all documents.

    def _run_all_nodes(self) -> None:
        documents, tokens, _ = self.states.shape
        nodes = len(self.table)
        if not nodes:  # this shard holds none, because the level has fewer nodes than there are workers
            self.logits.append(self.loss.new_empty(documents, 0))
        size = self.backend.nodes_of_chunk(nodes, documents, tokens, self._values_per_node)
        chunks = _slices(nodes, size)
        targets = None
        if self.positives is not None:
            self.table_gradient = torch.empty_like(self.table)
            targets = self._targets(nodes + self._missing_nodes(chunks[-1]) if chunks else 0)
        for chunk in chunks:
            self._run_node_chunk(chunk, targets)

    def _missing_nodes(self, chunk: slice) -> int:
        """Return by how many nodes that do not count a chunk is padded."""
        return -(chunk.stop - chunk.start) % self.backend.node_multiple

    def _run_node_chunk(self, chunk: slice, targets: Tensor | None) -> None:
        """Score the nodes `chunk` of the table; with targets, go back as well."""
        documents, dimension = len(self.states), self.states.shape[2]
        queries, exists = self.table[chunk].to(self.states.dtype), None
        nodes = len(queries)
        if missing := self._missing_nodes(chunk):
            queries = pad(queries, (0, 0, 0, missing))
            exists = torch.arange(len(queries), device=queries.device) < nodes
        scores_BnT = None if self.kernel else self.backend.table_scores(self.states, queries)
        groups, logits = _slices(documents, self._documents_of_group(len(queries))), []
        for group in groups:
            scores = self.kernel(self.states[group], queries) if self.kernel else scores_BnT[group]  # type: ignore[index]
            group_logits, saved = self.head.forward(scores, self.values[group], self.lengths[group])
            if targets is None:
                logits.append(group_logits[:, :nodes])
                continue
            group_targets = targets[group, chunk.start : chunk.start + len(queries)]
            gradient = self._cross_entropy(group_logits, group_targets, exists)
            # The gradients take the place of the scores, which are no longer needed.
            score_gradients, values_gradient = self.head.backward(saved, gradient)
            if len(groups) == 1:
                scores_BnT = score_gradients
            else:
                if scores_BnT is None:
                    shape = len(queries), documents, self.states.shape[1]  # in memory as `Backend.table_scores`
                    scores_BnT = score_gradients.new_empty(shape).transpose(0, 1)
                scores_BnT[group] = score_gradients
            self._add_values_gradient(group, values_gradient)
        if targets is None:
            self.logits.append(torch.cat(logits))
            return
        assert self.table_gradient is not None and scores_BnT is not None
        gradients_nR = self.backend.flat_scores(scores_BnT)
        self.table_gradient[chunk] = (gradients_nR @ self.states.view(-1, dimension))[:nodes]
        self.states_gradient += (gradients_nR.t() @ queries).view_as(self.states_gradient)

    # Levels with candidates: each document has its own queries, gathered from the rows of its parents.

    def _run_candidates(self, candidates: Candidates) -> None:
        documents, _, dimension = self.states.shape
        block_size = self.table.shape[1] // dimension
        width = candidates.row_index.shape[1]
        if (
            candidates.rows is not None and not len(candidates.rows) and self.positives is None
        ):  # this shard holds no candidate of the batch
            self.logits.append(self.loss.new_full((documents, width * block_size), float("-inf")))
            return
        rows, row_index = self._gather_rows(candidates)
        if self.positives is not None:
            self.table_gradient = torch.zeros(rows.shape, dtype=self.table.dtype, device=rows.device)
        if not len(rows):
            return
        size = self.backend.columns_of_chunk(width, block_size, documents, self._values_per_node)
        chunks = _slices(width, size)
        exists = candidates.exists
        if missing := self._missing_columns(chunks[-1], block_size):
            row_index, exists = pad(row_index, (0, missing)), pad(exists, (0, missing * block_size))
        targets = None if self.positives is None else self._targets(exists.shape[1])
        for chunk in chunks:
            self._run_candidate_chunk(chunk, block_size, rows, row_index, exists, targets)
        if missing and targets is None:
            self.logits[-1] = self.logits[-1][:, : -missing * block_size]

    def _missing_columns(self, chunk: slice, block_size: int) -> int:
        """Return by how many parents that do not count a chunk is padded."""
        multiple = self.backend.node_multiple
        return -(chunk.stop - chunk.start) % (multiple // math.gcd(multiple, block_size))

    def _run_candidate_chunk(
        self,
        chunk: slice,
        block_size: int,
        rows: Tensor,
        row_index: Tensor,
        exists: Tensor,
        targets: Tensor | None,
    ) -> None:
        """Score the children of the parents in the columns `chunk`; with targets, go back as well."""
        documents, _, dimension = self.states.shape
        columns = slice(chunk.start, chunk.stop + self._missing_columns(chunk, block_size))
        slots = slice(columns.start * block_size, columns.stop * block_size)
        siblings, logits = torch.arange(block_size, device=self.states.device), []
        for group in _slices(documents, self._documents_of_group(slots.stop - slots.start)):
            states, index = self.states[group], row_index[group, columns].flatten()
            fused = self.kernel is not None and rows.dtype == states.dtype
            if not fused or targets is not None:
                # A row holds the vectors of K siblings, so that viewing it as [K, D] gives the children's queries.
                queries = rows.index_select(0, index).to(states.dtype).view(len(states), -1, dimension)
            if fused:
                assert self.kernel is not None
                # The row of each child among the vectors [rows · K, D].
                children = index.view(len(states), -1, 1) * block_size + siblings
                scores: Tensor | Attention = self.kernel(states, rows.view(-1, dimension), children.flatten(1))
            else:
                scores = self.backend.products(queries, states)
            group_logits, saved = self.head.forward(scores, self.values[group], self.lengths[group])
            if targets is None:
                logits.append(group_logits.masked_fill_(~exists[group, slots], float("-inf")))
                continue
            gradient = self._cross_entropy(group_logits, targets[group, slots], exists[group, slots])
            score_gradients, values_gradient = self.head.backward(saved, gradient)
            self._add_values_gradient(group, values_gradient)
            query_gradients = torch.bmm(score_gradients, states).view(len(index), -1)
            assert self.table_gradient is not None
            self.backend.add_rows_(self.table_gradient, index, query_gradients)
            self.states_gradient[group] += torch.bmm(score_gradients.transpose(1, 2), queries)
        if targets is None:
            self.logits.append(torch.cat(logits))

    def _gather_rows(self, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Return rows that hold all candidates, in the format of matrix products, and each parent's index in them.

        The index is int64 [B, C]. Each distinct row is read and converted once, however many documents share it.
        """
        rows = candidates.rows
        if rows is None:  # of a network that only predicts; `queries` are converted after they are gathered
            return self.table, candidates.row_index
        if self.table.dtype == self.states.dtype:
            if self.positives is None:  # nothing to convert and no gradient of distinct rows: index the table itself
                return self.table, rows[candidates.row_index]
            return self.table.index_select(0, rows), candidates.row_index
        return self.backend.gather_rows(self.table, rows, self.states.dtype), candidates.row_index

    # What both kinds of levels share.

    def _documents_of_group(self, nodes: int) -> int:
        """Return how many documents, scored against `nodes` nodes, make a group."""
        return self.backend.documents_of_group(len(self.states), nodes, self._values_per_node)

    @property
    def _values_per_node(self) -> int:
        """Return the values held for a node and a document: T scores, their gradients, and the head's."""
        return 2 * self.states.shape[1] + self.head.values_per_node

    def _add_values_gradient(self, group: slice, values_gradient: Tensor | None) -> None:
        if values_gradient is not None:
            self.values_gradient[group] += values_gradient

    def _targets(self, columns: int) -> Tensor:
        """Return 1 for each true node and 0 elsewhere, [B, columns]."""
        assert self.positives is not None
        targets = torch.zeros(len(self.states), columns, dtype=self.wide, device=self.states.device)
        # Not `targets[...] = 1`: PyTorch copies a Python number to a GPU, and the CPU waits for the copy.
        return targets.index_put_((self.positives[0], self.positives[1]), targets.new_ones(()))

    def _cross_entropy(self, logits: Tensor, targets: Tensor, exists: Tensor | None = None) -> Tensor:
        """Add the binary cross-entropy (paper, section 2.4.5) of a group to the loss; return the logits' gradient."""
        # -y log σ(z) - (1 - y) log(1 - σ(z)) = softplus(z) - y z, which does not overflow.
        losses, gradient = softplus(logits) - logits * targets, torch.sigmoid(logits) - targets
        if exists is not None:
            losses, gradient = losses * exists, gradient * exists
        self.loss += losses.sum() / self.denominator
        gradient = gradient / self.denominator
        return gradient if self.gradient_scale is None else gradient * self.gradient_scale


def _slices(length: int, size: int) -> list[slice]:
    """Cut `length` into slices of at most `size`; a size of 0 counts as 1, so that an empty shard has no slice."""
    size = max(1, size)
    return [slice(start, min(length, start + size)) for start in range(0, length, size)]


def fused_loss(level_pass: LevelPass) -> Tensor:
    """Run a pass; return its loss, differentiable in states, values, table and the head's parameters."""
    loss: Tensor = _FusedLoss.apply(
        level_pass, level_pass.states, level_pass.values, level_pass.table, *level_pass.head.parameters
    )
    return loss


def fused_logits(level_pass: LevelPass) -> Tensor:
    """Run a pass without gradients and return its logits, float32 or wider.

    They are [B, n] of all nodes, or [B, C·K] of the candidates' slots, -inf where there is no child.
    """
    with torch.no_grad(), torch.autocast(level_pass.backend.device_type, enabled=False):
        level_pass.run()
    return torch.cat(level_pass.logits, dim=1)


class _FusedLoss(torch.autograd.Function):
    """A node of the autograd graph whose gradients are computed in its forward pass.

    `backward` only returns them, times the gradient of the loss.
    """

    @staticmethod
    def forward(context: Any, level_pass: LevelPass, *_: Tensor) -> Tensor:
        with torch.autocast(level_pass.backend.device_type, enabled=False):
            level_pass.run()
        assert level_pass.table_gradient is not None
        table_gradient = level_pass.table_gradient
        if level_pass.candidates is not None:
            assert level_pass.candidates.rows is not None
            table_gradient = sparse_gradient(level_pass.candidates.rows, table_gradient, level_pass.table.shape)
        states_gradient = level_pass.states_gradient.to(level_pass.states)
        values_gradient = level_pass.values_gradient.to(level_pass.values)
        context.gradients = [states_gradient, values_gradient, table_gradient, *level_pass.head.gradients]
        context.backend = level_pass.backend
        return level_pass.loss

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients, context.gradients = context.gradients, None
        # The loss is nearly always the last thing computed, so its gradient is one, and the table's gradient is large.
        if not context.backend.is_one(gradient):  # see `Backend.first_gradient`
            gradients = [part * gradient for part in gradients]
        return None, *gradients
