"""The interface of a device's backend, and as data the sizes of the chunks that it computes.

The network, its loss and its optimizer are written once and call the backend of the device that their tensors are on
(`backend.backend_for`). This module knows no device, so that each device's module can import it.

Legend: B documents, g documents of a group, T tokens, D hidden dimension, n nodes scored, K children of a parent at
most, R positions in a batch, X values of a row.
"""

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

Seeds = np.ndarray | Tensor
"""Dropout seeds, one for each document: uint64 on a CPU, int64 on a GPU."""
UNLIMITED = sys.maxsize


@dataclass(frozen=True)
class Limits:
    """The limits of what a kind of device computes, converts or keeps at a time.

    Attributes:
        group_values: most values (scores, layer outputs and their gradients) of a group of documents.
        group_is_batch: whether a group should be the whole batch, for which chunks of nodes are made narrow enough.
        chunk_scores: most attention scores of a chunk of nodes, of all documents of a batch.
        chunk_multiple: chunks of nodes have widths that are multiples of this, if there are several.
        node_multiple: a chunk of nodes is padded to a multiple of this, with nodes that do not count.
        cast_rows: most rows of the label table that are converted at a time.
        update_values: most values of a table that Adam updates at a time.
        scoring_documents, scoring_tokens, scoring_logits: most of each in a batch for inference.
        stored_bytes: most bytes of a parameter whose average and best values are kept on the device.
        narrow_bytes: most bytes of a table that a network which only predicts converts to the format of products.
    """

    group_values: int
    group_is_batch: bool = False
    chunk_scores: int = UNLIMITED
    chunk_multiple: int = 1
    node_multiple: int = 1
    cast_rows: int = UNLIMITED
    update_values: int = UNLIMITED
    scoring_documents: int = UNLIMITED
    scoring_tokens: int = UNLIMITED
    scoring_logits: int = UNLIMITED
    stored_bytes: int = UNLIMITED
    narrow_bytes: int = UNLIMITED

    def nodes_of_chunk(self, nodes: int, documents: int, tokens: int, values_per_node: int) -> int:
        """Return how many of a level's nodes are scored at a time for B documents of T tokens.

        Args:
            nodes: number of nodes to score.
            documents: B.
            tokens: T.
            values_per_node: values that are held for a node and a document.
        """
        together = documents if self.group_is_batch else 1
        most = min(self.chunk_scores // (documents * tokens), self.group_values // (together * values_per_node))
        return equal_chunks(nodes, most, self.chunk_multiple)

    def columns_of_chunk(self, columns: int, block_size: int, documents: int, values_per_node: int) -> int:
        """Return how many candidate parents of K = `block_size` children are scored at a time."""
        together = documents if self.group_is_batch else 1
        most = self.group_values // (together * values_per_node * block_size)
        # The children of a chunk's parents are then a multiple of `chunk_multiple`.
        return equal_chunks(columns, most, self.chunk_multiple // math.gcd(self.chunk_multiple, block_size))

    def documents_of_group(self, documents: int, nodes: int, values_per_node: int) -> int:
        """Return how many documents go through the head at a time, with `nodes` nodes each."""
        return min(documents, max(1, self.group_values // (nodes * values_per_node)))

    def documents_to_score(self, longest: int, nodes: int) -> int:
        """Return how many documents of at most `longest` words a worker encodes at a time to score `nodes` nodes."""
        most = min(self.scoring_documents, self.scoring_tokens // longest, self.scoring_logits // nodes)
        return max(1, most // self.node_multiple) * self.node_multiple


def equal_chunks(count: int, most: int, multiple: int) -> int:
    """Return the size of chunks of about `most` of `count`: all if they fit, else equal multiples of `multiple`."""
    most = max(multiple, most // multiple * multiple)
    chunks = max(1, -(-count // most))
    if chunks == 1:
        return count
    return -(-count // (chunks * multiple)) * multiple


class TransferBatch:
    """Tensors on the CPU that are ready to be copied to a device; here they are used where they are."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self._tensors = dict(tensors)

    def to(self, device: torch.device) -> dict[str, Tensor]:
        """Return the tensors on a device, by name."""
        return self._tensors


class HostCopy:
    """Tensors on their way to the CPU; here they are there."""

    def __init__(self, tensors: Sequence[Tensor]):
        self._tensors = list(tensors)

    def result(self) -> list[Tensor]:
        """Return the tensors on the CPU; wait until they are complete."""
        return self._tensors


class Backend(ABC):
    """Operations whose fastest or only correct form depends on the device.

    Attributes:
        device_type: type of the device that tensors are on, as autocast names it.
        limits: how much is computed at a time.
        reduced_formats: number formats besides float32 in which it can be asked to multiply matrices.
        runs_ahead: whether the device works while the CPU launches more, so that the CPU must not read a value or wait
            for a size that only the device knows.
        loss_interval: steps between two reads of the loss.
        step_operations: most operations of a step that is only measured, so that several fit in seconds.
        lstm_dtype: number format of LSTMs where the other products are in a reduced format; None for the same.
        row_kernel: whether Adam updates rows by a Triton kernel (`row_adam`).
    """

    device_type: str
    limits: Limits
    reduced_formats: frozenset[torch.dtype]
    runs_ahead: bool = False
    loss_interval: int = 1
    step_operations: float = math.inf
    lstm_dtype: torch.dtype | None = None
    row_kernel: bool = False

    @abstractmethod
    def fast_formats(self) -> tuple[torch.dtype, ...]:
        """Return the reduced formats in which matrix products are faster than in float32, the best first."""

    def stage(self, tensors: Mapping[str, Tensor]) -> TransferBatch:
        """Prepare tensors on the CPU for one copy to the device; a thread that prepares batches may call this."""
        return TransferBatch(tensors)

    def fetch(self, tensors: Sequence[Tensor]) -> HostCopy:
        """Begin to copy tensors to the CPU, so that what is computed afterwards does not delay the copy."""
        return HostCopy(tensors)

    @abstractmethod
    def dropout_seeds(self, step_seed: int, documents: Tensor) -> Seeds:
        """Return the dropout seed of each document (int64 [b], on the device), equal for any number of workers."""

    @abstractmethod
    def dropout(self, values: Tensor, rate: float, seeds: Seeds | None, layer: int) -> Tensor:
        """Set values to zero at random; see `dropout.dropout`."""

    @abstractmethod
    def both_directions(
        self, lstms: Sequence[nn.LSTM], inputs: Sequence[Tensor], states: Sequence[Tensor]
    ) -> list[Tensor]:
        """Run two LSTMs, each on its own input; see `bilstm.both_directions`."""

    @abstractmethod
    def table_scores(self, states_BTD: Tensor, queries_nD: Tensor) -> Tensor:
        """Return the products of all states and queries, [B, n, T], in the backend's memory layout."""

    @abstractmethod
    def products(self, rows_gnX: Tensor, words_gTX: Tensor, like: Tensor | None = None) -> Tensor:
        """Return the products of each document's rows and words, [g, n, T], in the memory layout of `like` if given."""

    @abstractmethod
    def mask_padding_(self, scores_gnT: Tensor, lengths_g: Tensor, value: float) -> None:
        """Set what stands at padding to a value in place."""

    @abstractmethod
    def add_rows_(self, table: Tensor, row_index_R: Tensor, values_RX: Tensor) -> None:
        """Add values to rows of a table in place; a row may occur several times."""
