"""Loss and gradients of a level in one pass: attention, head and cross-entropy while their values are in the cache.

What stands between a document's states and its loss (paper, equation 2 to the loss) is one matrix of scores for each
document, and nothing that one document or label does waits for another. So a few documents at a time, for a bounded
number of labels, go all the way forward and, since a label's part of the loss is known at once, straight back:

- nothing is kept for a later backward pass, or computed twice: memory holds one group's values, whatever the level;
- in a processor's cache, the passes over scores and contexts cost little beside the products;
- attention weights sum to one and no dropout stands between attention and the first fully connected layer W₁, so
  (Σ α h) W₁ = Σ α (h W₁): T rows are multiplied by W₁ instead of one for each label. `values` are these products.

Legend: B documents, g documents of a group, T tokens, D hidden, F units of W₁, n nodes scored, C parents, K children.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import softplus

from axml_ray.network.candidates import Candidates
from axml_ray.network.rows import rows_gradient

# Values of scores and contexts of a group: about what a core's cache holds, and what fills an accelerator.
CPU_GROUP, ACCELERATOR_GROUP = 1 << 23, 1 << 28
# Scores of a chunk of labels, of all documents of a batch.
CHUNK_SCORES = 1 << 26
# Rows of a table that are turned into the format of the products at a time.
CAST_ROWS = 1 << 8


class Scorer(Protocol):
    """From attention scores to logits, and back."""

    parameters: tuple[Tensor, ...]
    gradients: list[Tensor]

    @property
    def width(self) -> int:
        """Values of a node and document beside its scores."""
        ...

    def forward(self, scores_gTn: Tensor, values_gTF: Tensor, lengths_g: Tensor) -> tuple[Tensor, Any]:
        """Logits [g, n], float32 or wider, and what `backward` needs. `scores_gTn` may be overwritten."""
        ...

    def backward(self, kept: Any, logits_gn: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients of scores and values from those of the logits; those of the parameters are added up."""
        ...


@dataclass
class AttentionScorer:
    """Softmax over a text's real tokens, the head's layers, and, where wanted, the evidence.

    Attributes:
        parameters: bias of the first layer; weight and bias of each further layer; weight and bias of the output;
            last, where wanted, the weight of the evidence.
        evidence: whether it is wanted.
    """

    parameters: tuple[Tensor, ...]
    evidence: bool = False
    gradients: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.gradients = [torch.zeros_like(one) for one in self.parameters]
        self._given: dict[torch.dtype, tuple[Tensor, ...]] = {}

    @property
    def width(self) -> int:
        """Values of contexts and of their gradients."""
        return 2 * sum(len(bias) for bias in self.parameters[: -2 - self.evidence : 2])

    def _split(self, of: list[Tensor] | tuple[Tensor, ...]) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
        end = len(of) - self.evidence
        layers = [(of[i], of[i + 1]) for i in range(1, end - 2, 2)]
        return layers, of[end - 2], of[end - 1]

    def _as(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        if dtype not in self._given:
            self._given[dtype] = tuple(one.to(dtype) for one in self.parameters)
        return self._given[dtype]

    def forward(self, scores_gTn: Tensor, values_gTF: Tensor, lengths_g: Tensor) -> tuple[Tensor, Any]:
        """As `Scorer.forward`."""
        own = self._as(values_gTF.dtype)
        layers, *_ = self._split(own)
        _hide_padding(scores_gTn, lengths_g)
        weights_gTn = torch.softmax(scores_gTn, 1)
        context = torch.baddbmm(own[0], weights_gTn.transpose(1, 2), values_gTF).relu_()
        outputs = [context]
        for matrix, offset in layers:
            flat = torch.addmm(offset, outputs[-1].flatten(0, 1), matrix.t()).relu_()
            outputs.append(flat.view(*context.shape[:2], -1))
        # The sum of the last layer in full precision: its rounding would make many labels' logits equal.
        wide = torch.promote_types(own[0].dtype, torch.float32)
        last = outputs[-1].flatten(0, 1)
        logits = torch.mv(last.to(wide), self._as(wide)[-2 - self.evidence].flatten()).view(context.shape[:2])
        logits = logits + self._as(wide)[-1 - self.evidence]
        found = None
        if self.evidence:
            # the largest weight is exp(largest score - log of the sum)
            norm = scores_gTn.amax(1).to(wide) - weights_gTn.amax(1).to(wide).log()
            found = norm - lengths_g[:, None].to(wide).log()
            logits = logits + self._as(wide)[-1] * found
        return logits, (weights_gTn, values_gTF, outputs, found)

    def backward(self, kept: Any, logits_gn: Tensor) -> tuple[Tensor, Tensor]:
        """As `Scorer.backward`."""
        weights_gTn, values_gTF, outputs, found = kept
        own, wide = self._as(values_gTF.dtype), logits_gn.dtype
        layers, weight, _ = self._split(own)
        of_layers, of_weight, of_bias = self._split(self.gradients)
        narrow_gn = logits_gn.to(values_gTF.dtype)
        of_bias += logits_gn.sum()
        of_weight += torch.mv(outputs[-1].flatten(0, 1).t(), narrow_gn.flatten())
        gradient = _before_relu(narrow_gn[..., None] * weight, outputs[-1])
        for i in range(len(layers) - 1, -1, -1):
            flat = gradient.flatten(0, 1)
            of_layers[i][0].add_(flat.t() @ outputs[i].flatten(0, 1))
            of_layers[i][1].add_(flat.sum(0, dtype=wide))
            gradient = _before_relu((flat @ layers[i][0]).view_as(outputs[i]), outputs[i])
        self.gradients[0] += gradient.sum((0, 1), dtype=wide)
        of_values = torch.bmm(weights_gTn, gradient)
        of_weights = torch.bmm(values_gTF, gradient.transpose(1, 2))
        of_scores = torch._softmax_backward_data(of_weights, weights_gTn, 1, weights_gTn.dtype)
        if found is not None:
            self.gradients[-1] += (logits_gn * found).sum()
            of_scores.addcmul_(weights_gTn, (narrow_gn * own[-1])[:, None])
        return of_scores, of_values


def _hide_padding(scores_gTn: Tensor, lengths_g: Tensor) -> None:
    padded_gT = torch.arange(scores_gTn.shape[1], device=scores_gTn.device) >= lengths_g[:, None]
    if scores_gTn.device.type == "cpu":
        # Texts of a batch are of like length: a few rows, instead of all of the scores.
        scores_gTn.flatten(0, 1).index_fill_(0, padded_gT.flatten().nonzero()[:, 0], float("-inf"))
    else:
        scores_gTn.masked_fill_(padded_gT[..., None], float("-inf"))


def _before_relu(gradient: Tensor, output: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)


@dataclass
class Pass:
    """One pass over a batch.

    Attributes:
        scorer: of the network.
        states: [B, T, D].
        values: [B, T, F].
        lengths: int64 [B], real tokens.
        table: [rows, K·D], the level's rows that are held here.
        candidates: rows scored for each document; None for all.
        positives: int64 [2, P], document and place of true nodes; None asks for logits alone.
        count: by which the summed loss is divided.
    """

    scorer: Scorer
    states: Tensor
    values: Tensor
    lengths: Tensor
    table: Tensor
    candidates: Candidates | None = None
    positives: Tensor | None = None
    count: float = 1.0

    def __post_init__(self) -> None:
        accelerated = self.states.device.type != "cpu"
        self.group_values = ACCELERATOR_GROUP if accelerated else CPU_GROUP
        self.logits: list[Tensor] = []
        self.loss = torch.zeros((), device=self.states.device, dtype=self._wide)
        self.of_table: Tensor | None = None
        if self.positives is not None:
            # Sums over chunks of labels: of hundreds of thousands, small parts would be lost in the products' format.
            self.of_states = torch.zeros_like(self.states, dtype=self._wide)
            self.of_values = torch.zeros_like(self.values, dtype=self._wide)

    @property
    def _wide(self) -> torch.dtype:
        return torch.promote_types(self.states.dtype, torch.float32)

    def run(self) -> None:
        """Fill `logits`, or `loss`, `of_states`, `of_values`, `of_table` and the scorer's gradients."""
        if self.candidates is None:
            self._all_nodes()
        else:
            self._candidates(self.candidates)

    def _group(self, nodes: int) -> int:
        each = nodes * (2 * self.states.shape[1] + self.scorer.width)
        return max(1, min(len(self.states), self.group_values // each))

    def _all_nodes(self) -> None:
        documents, tokens, dimension = self.states.shape
        nodes = len(self.table)
        if not nodes:  # a shard of a level of fewer nodes than workers
            self.logits.append(self.loss.new_empty(documents, 0))
        each = 2 * tokens + self.scorer.width
        chunk = max(1, min(nodes, CHUNK_SCORES // (documents * tokens), self.group_values // each))
        flat = self.states.view(-1, dimension)
        targets = None
        if self.positives is not None:
            self.of_table, targets = torch.empty_like(self.table), self._targets(nodes)
        for start in range(0, nodes, chunk):
            queries = self.table[start : start + chunk].to(self.states.dtype)
            scores = (flat @ queries.t()).view(documents, tokens, -1)
            found = []
            for group in _slices(documents, self._group(len(queries))):
                logits, kept = self.scorer.forward(scores[group], self.values[group], self.lengths[group])
                if targets is None:
                    found.append(logits)
                else:
                    gradient = self._cross_entropy(logits, targets[group, start : start + chunk])
                    scores[group], of_values = self.scorer.backward(kept, gradient)
                    self._add_values(group, of_values)
            if targets is None:
                self.logits.append(torch.cat(found))
            else:
                back = scores.view(-1, len(queries))
                assert self.of_table is not None
                self.of_table[start : start + chunk] = back.t() @ flat
                self.of_states += (back @ queries).view_as(self.of_states)

    def _candidates(self, candidates: Candidates) -> None:
        documents, tokens, dimension = self.states.shape
        block = self.table.shape[1] // dimension
        width = candidates.places.shape[1]
        if not len(candidates.rows) and self.positives is None:  # none of the candidates is in this shard
            self.logits.append(self.loss.new_full((documents, width * block), float("-inf")))
            return
        picked, row_of_place = self._picked(candidates)
        each = block * (2 * tokens + self.scorer.width)
        chunk = max(1, min(width, self.group_values // each))
        of_table = targets = None
        if self.positives is not None:
            of_table = self.of_table = torch.zeros(picked.shape, dtype=self.table.dtype, device=picked.device)
            targets = self._targets(width * block)
        if not len(picked):
            return
        for start in range(0, width, chunk):
            places = row_of_place[:, start : start + chunk]
            here = slice(start * block, (start + chunk) * block)
            found = []
            for group in _slices(documents, self._group(places.shape[1] * block)):
                states, flat = self.states[group], places[group].flatten()
                queries = picked.index_select(0, flat).view(len(states), -1, dimension)
                scores = torch.bmm(states, queries.transpose(1, 2))
                logits, kept = self.scorer.forward(scores, self.values[group], self.lengths[group])
                exists = candidates.exists[group, here]
                if of_table is None or targets is None:
                    found.append(logits.masked_fill_(~exists, float("-inf")))
                    continue
                gradient = self._cross_entropy(logits, targets[group, here], exists)
                of_scores, of_values = self.scorer.backward(kept, gradient)
                self._add_values(group, of_values)
                of_queries = torch.bmm(of_scores.transpose(1, 2), states).view(len(flat), -1)
                of_table.index_add_(0, flat, of_queries.to(of_table.dtype))
                self.of_states[group] += torch.bmm(of_scores, queries)
            if self.positives is None:
                self.logits.append(torch.cat(found))

    def _picked(self, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Rows that hold all candidates, in the format of the products, and which of them stands in which place."""
        rows = candidates.rows
        if self.table.dtype == self.states.dtype:
            if self.positives is None:
                return self.table, rows[candidates.places]
            return self.table.index_select(0, rows), candidates.places
        picked = torch.empty(len(rows), self.table.shape[1], dtype=self.states.dtype, device=self.table.device)
        # At least 1: a shard may hold none of the candidates of a batch.
        for some in _slices(len(rows), CAST_ROWS if self.table.device.type == "cpu" else max(1, len(rows))):
            picked[some] = self.table.index_select(0, rows[some])
        return picked, candidates.places

    def _add_values(self, group: slice, of_values: Tensor | None) -> None:
        if of_values is not None:
            self.of_values[group] += of_values

    def _targets(self, nodes: int) -> Tensor:
        assert self.positives is not None
        targets = torch.zeros(len(self.states), nodes, dtype=self._wide, device=self.states.device)
        targets[self.positives[0], self.positives[1]] = 1
        return targets

    def _cross_entropy(self, logits: Tensor, targets: Tensor, exists: Tensor | None = None) -> Tensor:
        """Adds to the loss; returns the gradient of the logits."""
        losses, gradient = softplus(logits) - logits * targets, torch.sigmoid(logits) - targets
        if exists is not None:
            losses, gradient = losses * exists, gradient * exists
        self.loss += losses.sum() / self.count
        return gradient / self.count


def _slices(length: int, size: int) -> list[slice]:
    return [slice(start, min(length, start + size)) for start in range(0, length, size)]


def level_loss(one: Pass) -> Tensor:
    """The loss of a pass, differentiable in its states, values, table and the scorer's parameters."""
    loss: Tensor = _LevelLoss.apply(one, one.states, one.values, one.table, *one.scorer.parameters)
    return loss


def level_logits(one: Pass) -> Tensor:
    """Logits, float32 [B, n] of all nodes or [B, C·K] of candidates, -inf where there is no child."""
    with torch.no_grad(), torch.autocast(one.states.device.type, enabled=False):
        one.run()
    return torch.cat(one.logits, dim=1)


class _LevelLoss(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, one: Pass, *_: Tensor) -> Tensor:
        with torch.autocast(one.states.device.type, enabled=False):
            one.run()
        assert one.of_table is not None
        of_table = one.of_table
        if one.candidates is not None:
            of_table = rows_gradient(one.candidates.rows, of_table, one.table.shape)
        of_states, of_values = one.of_states.to(one.states), one.of_values.to(one.values)
        context.found = [of_states, of_values, of_table, *one.scorer.gradients]
        return one.loss

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found, context.found = context.found, None
        if gradient.device.type != "cpu" or gradient != 1:  # nearly always one, and the table's gradient is large
            found = [part * gradient for part in found]
        return None, *found
