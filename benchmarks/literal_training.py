"""The literal implementation of training: the AttentionXML paper in plain PyTorch.

It is the baseline of our training speed, so it is not slowed down anywhere: float32 on all cores, random batches cut to
their longest text and built without loops, packed sequences, and the optimizers of `torch.optim`, sparse ones where
they are faster. It has none of the optimisations of `axml_ray.network`: no batches of similar length, no bfloat16, no
folded layer, no blocks of siblings. It does not clip gradients, which the paper doesn't mention and which would take
time.

Shapes: B documents, T tokens, D hidden states' width (twice `hidden`), n nodes scored.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.optim.swa_utils import AveragedModel

from axml_ray.core.ragged import Ragged
from axml_ray.evaluation.metrics.metrics import ndcg_at


class Step(NamedTuple):
    """One step of training."""

    documents: int
    """Documents of the batch."""
    tokens: int
    """Words of these documents, without padding."""
    loss: float
    """Mean binary cross-entropy over the batch's candidates."""


class LiteralLevel(nn.Module):
    """The network of one level (paper, "Attention-Aware Deep Model"), layer by layer as it is written there.

    Args:
        nodes: number of nodes of the level.
        deep: whether candidates are scored instead of all nodes.
        vectors: first values of the embedding, float32 [words, E]; row 0 pads and is zero.
        hidden: units of the LSTM in each direction.
        fully_connected: units of the fully connected layers.
        dropouts: dropout rates after the embedding and after the LSTM.
    """

    def __init__(
        self,
        nodes: int,
        deep: bool,
        vectors: Tensor,
        hidden: int,
        fully_connected: Sequence[int],
        dropouts: tuple[float, float] = (0.2, 0.5),
    ):
        super().__init__()
        width = 2 * hidden
        self.deep = deep
        self.embedding = nn.Embedding.from_pretrained(vectors.clone(), freeze=False, padding_idx=0, sparse=True)
        self.lstm = nn.LSTM(vectors.shape[1], hidden, batch_first=True, bidirectional=True)
        self.first_hidden = nn.Parameter(torch.zeros(2, 1, hidden))
        self.first_cell = nn.Parameter(torch.zeros(2, 1, hidden))
        self.attention = nn.Embedding(nodes, width, sparse=True) if deep else nn.Linear(width, nodes, bias=False)
        sizes = [width, *fully_connected]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.output = nn.Linear(sizes[-1], 1)
        for layer in (self.attention, *self.layers, self.output):
            nn.init.xavier_uniform_(layer.weight)
        self.embedding_dropout, self.encoder_dropout = (nn.Dropout(share) for share in dropouts)
        self.evidence: float | None = None
        """Weight of the evidence, for a network trained with it. Not in the paper; never set when speed is measured."""

    def forward(self, tokens_BT: Tensor, lengths_B: Tensor, candidates_Bn: Tensor | None = None) -> Tensor:
        """Return the logits of all nodes or of the candidates, [B, n].

        Args:
            tokens_BT: int64, padded with 0 on the right to the longest text.
            lengths_B: int64, words of each text.
            candidates_Bn: int64, nodes; None unless the level is deep.
        """
        words_BTE = self.embedding_dropout(self.embedding(tokens_BT))
        packed = pack_padded_sequence(words_BTE, lengths_B, batch_first=True, enforce_sorted=False)
        shape = (-1, len(tokens_BT), -1)
        first = self.first_hidden.expand(shape).contiguous(), self.first_cell.expand(shape).contiguous()
        states_BTD, _ = pad_packed_sequence(self.lstm(packed, first)[0], batch_first=True)
        states_BTD = self.encoder_dropout(states_BTD)
        queries = self.attention.weight if candidates_Bn is None else self.attention(candidates_Bn)
        # Tokens before nodes: some percent faster on a CPU than [B, n, T], since one large product makes the scores.
        scores_BTn = torch.matmul(states_BTD, queries.mT)
        padding_BT = torch.arange(tokens_BT.shape[1]) >= lengths_B[:, None]
        scores_BTn = scores_BTn.masked_fill(padding_BT[:, :, None], float("-inf"))
        weights_BTn = scores_BTn.softmax(dim=1)
        values = torch.matmul(weights_BTn.mT, states_BTD)
        for layer in self.layers:
            values = torch.relu(layer(values))
        logits: Tensor = self.output(values).squeeze(-1)
        if self.evidence is not None:
            logits = logits + self.evidence * (scores_BTn.logsumexp(dim=1) - lengths_B[:, None].log())
        return logits


def optimizers(network: LiteralLevel, learning_rate: float = 1e-3) -> list[torch.optim.Optimizer]:
    """Return Adam, and SparseAdam for the tables of which a batch reads only some rows."""
    tables = [network.embedding.weight, *([network.attention.weight] if network.deep else [])]
    names = {id(table) for table in tables}
    dense = [parameter for parameter in network.parameters() if id(parameter) not in names]
    return [torch.optim.Adam(dense, lr=learning_rate), torch.optim.SparseAdam(tables, lr=learning_rate)]


def random_batches(rows: np.ndarray, batch_size: int, random: np.random.Generator) -> list[np.ndarray]:
    """Cut `rows` in random order into batches of `batch_size`."""
    order = random.permutation(rows)
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def train_steps(
    network: LiteralLevel,
    tokens: Ragged,
    positives: Ragged,
    batches: Iterable[np.ndarray],
    *,
    candidates: np.ndarray | None = None,
    optimizers: Sequence[torch.optim.Optimizer],
    average: AveragedModel | None = None,
    average_from: int = 0,
    eval_every_steps: int = 100,
) -> Iterator[Step]:
    """Train on one batch after another; each is requested after the step before.

    Args:
        network: network to train.
        tokens: word ids of all documents.
        positives: true nodes of all documents.
        batches: int64 [B] each, the documents of a step.
        candidates: int64 [documents, n], nodes to score, for a deep level. Other true nodes are ignored.
        optimizers: optimizers of the network.
        average: takes a snapshot of the network every `eval_every_steps` steps.
        average_from: steps before the first snapshot.
        eval_every_steps: steps between snapshots.

    Yields:
        The step, once it is done.
    """
    for number, rows in enumerate(batches, start=1):
        network.train()
        texts, truth = tokens.take(rows), positives.take(rows)
        chosen = None if candidates is None else torch.from_numpy(candidates[rows])
        logits = network(padded(texts), torch.from_numpy(texts.lengths), chosen)
        loss = binary_cross_entropy_with_logits(logits, targets(truth, logits, chosen))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        if average is not None and number % eval_every_steps == 0 and number > average_from:
            average.update_parameters(network)
        yield Step(len(rows), len(texts.values), loss.item())


def padded(tokens: Ragged) -> Tensor:
    """Return the word ids padded with 0 to the longest text, int64 [B, T]."""
    return torch.from_numpy(tokens.padded().astype(np.int64))


def targets(positives: Ragged, logits_Bn: Tensor, candidates_Bn: Tensor | None) -> Tensor:
    """Return 1 for the true nodes of each document and 0 for others, float32 [B, n]."""
    if candidates_Bn is not None:
        wanted_BP = torch.from_numpy(positives.padded(-1).astype(np.int64))
        return (candidates_Bn[:, :, None] == wanted_BP[:, None]).any(dim=-1).to(logits_Bn.dtype)
    documents = np.repeat(np.arange(len(positives)), positives.lengths)
    target_Bn = torch.zeros_like(logits_Bn)
    target_Bn[torch.from_numpy(documents), torch.from_numpy(positives.values.astype(np.int64))] = 1.0
    return target_Bn


@torch.inference_mode()
def validation_score(network: nn.Module, tokens: Ragged, positives: Ragged, batch_size: int = 64) -> float:
    """Return the mean nDCG@5 of a first level's nodes, in percent; `network` may be an average of networks."""
    network.eval()
    scores = []
    for start in range(0, len(tokens), batch_size):
        rows = np.arange(start, min(start + batch_size, len(tokens)))
        texts, truth = tokens.take(rows), positives.take(rows)
        best = network(padded(texts), torch.from_numpy(texts.lengths)).topk(5, dim=1).indices
        scores.append(ndcg_at(best.numpy(), truth.values, truth.offsets, 5))
    return float(100 * np.concatenate(scores).mean())


def train_first_level(
    network: LiteralLevel,
    train: tuple[Ragged, Ragged],
    valid: tuple[Ragged, Ragged],
    *,
    epochs: int,
    average_after: int,
    batch_size: int = 40,
    learning_rate: float = 1e-3,
    eval_every_steps: int = 100,
    seed: int = 0,
) -> float:
    """Train a whole first level, as `LevelTraining` does; return its best nDCG@5 on validation, in percent.

    Args:
        network: network to train.
        train: tokens and true nodes of the training documents.
        valid: tokens and true nodes of the validation documents, scored every `eval_every_steps` steps.
        epochs: passes over the training documents.
        average_after: epochs before averaging of the weights begins.
        batch_size: documents per step.
        learning_rate: learning rate of Adam.
        eval_every_steps: steps between snapshots and evaluations.
        seed: seed of the order of documents and of dropout.
    """
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    rows = np.arange(len(train[0]))
    batches = (batch for _ in range(epochs) for batch in random_batches(rows, batch_size, random))
    average_from = average_after * -(-len(rows) // batch_size)
    last = epochs * -(-len(rows) // batch_size)
    average = AveragedModel(network)
    steps = train_steps(
        network,
        *train,
        batches,
        optimizers=optimizers(network, learning_rate),
        average=average,
        average_from=average_from,
        eval_every_steps=eval_every_steps,
    )
    best = 0.0
    for number, _ in enumerate(steps, start=1):
        if number % eval_every_steps == 0 or number == last:
            scored = average if int(average.n_averaged) else network
            best = max(best, validation_score(scored, *valid))
    return best
