"""The operations that differ by device, behind one object: `CpuBackend` on a CPU, `CudaBackend` on a GPU.

The network, its loss and its optimizer are written once and call the backend of the device that their tensors are on.
No other module asks which device it runs on. A backend can be replaced (`replaced_backend`), so that tests run the
GPU's code with real numbers on a CPU.

Legend: B documents, g documents of a group, T tokens, D hidden dimension, n nodes scored, K children of a parent at
most, R positions in a batch, X values of a row.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.tree_level import Level

if TYPE_CHECKING:
    from axml_ray.network.fast.attention_kernel import KernelAttention

Seeds = np.ndarray | Tensor
"""Dropout seeds, one for each document: uint64 on a CPU, int64 on a GPU."""


class Backend(ABC):
    """Operations whose fastest or only correct form depends on the device.

    Attributes:
        device_type: type of the device that tensors are on, as autocast names it.
        reduced_formats: number formats besides float32 in which it can be asked to multiply matrices.
        loss_interval: steps between two reads of the loss; each makes the CPU wait for a GPU.
        node_multiple: a chunk of nodes is padded to a multiple of this, with nodes that do not count.
        step_operations: most operations of a step that is only measured, so that several fit in seconds.
        scales_in_optimizer: whether the optimizer applies the factor of gradient clipping while it reads gradients.
    """

    device_type: str
    reduced_formats: frozenset[torch.dtype]
    loss_interval: int
    node_multiple: int
    step_operations: float
    scales_in_optimizer: bool

    # Number formats

    @abstractmethod
    def fast_formats(self) -> tuple[torch.dtype, ...]:
        """Return the reduced formats in which matrix products are faster than in float32, the best first."""

    @abstractmethod
    def set_rounding(self, tf32: bool) -> None:
        """Set for this process how products are rounded.

        Args:
            tf32: whether float32 products, those of LSTMs included, may be rounded to TF32. Products in reduced formats
                are always summed in float32, on every card.
        """

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """The number format of matrix products under autocast; None outside of it."""
        if not torch.is_autocast_enabled(self.device_type):
            return None
        return torch.get_autocast_dtype(self.device_type)

    # Memory and copies

    @abstractmethod
    def stage(self, tensors: Mapping[str, Tensor]) -> "Staged":
        """Prepare tensors on the CPU for one copy to the device; a thread that prepares batches may call this."""

    @abstractmethod
    def fetch(self, tensors: Sequence[Tensor]) -> "HostCopy":
        """Begin to copy tensors to the CPU, so that what is computed afterwards does not delay the copy."""

    @abstractmethod
    def store_like(self, parameter: Tensor) -> Tensor:
        """Return an uninitialised tensor for a copy of a parameter that is seldom read, such as the best weights."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has completed its work."""

    @abstractmethod
    def peak_memory_gib(self) -> float:
        """Return the peak memory of this process in GiB, on the device."""

    @abstractmethod
    def limit_memory(self, device: torch.device, share: float) -> None:
        """Let this process take at most a share of the device's memory, where processes share a device."""

    @abstractmethod
    def frozen_table(self, table: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a table of a network that only predicts on its device, in the format of products if that pays."""

    @abstractmethod
    def frozen_lstm_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the format in which a network that only predicts keeps its LSTMs, given that of products."""

    @abstractmethod
    def reset_peak_memory(self) -> None:
        """Begin a new measurement of the peak memory, where the device can."""

    # Encoder

    @abstractmethod
    def dropout_seeds(self, step_seed: int, documents: Tensor) -> Seeds:
        """Return the dropout seed of each document (int64 [b], on the device), equal for any number of workers."""

    @abstractmethod
    def dropout(self, values: Tensor, rate: float, seeds: Seeds | None, layer: int) -> Tensor:
        """Set values to zero at random; see `dropout.dropout`."""

    @abstractmethod
    def both_directions(
        self, lstms: Sequence[nn.LSTM], words: Sequence[Tensor], states: Sequence[Tensor]
    ) -> list[Tensor]:
        """Run two LSTMs, each on its own input; see `bilstm.both_directions`."""

    # Attention

    @abstractmethod
    def nodes_of_chunk(self, nodes: int, documents: int, tokens: int, values_per_node: int) -> int:
        """Return how many of a level's nodes are scored at a time for all documents.

        Args:
            nodes: number of nodes to score.
            documents: B.
            tokens: T.
            values_per_node: values that are held for a node and a document.
        """

    @abstractmethod
    def columns_of_chunk(self, columns: int, block_size: int, documents: int, values_per_node: int) -> int:
        """Return how many candidate parents of K = `block_size` children are scored at a time."""

    @abstractmethod
    def documents_of_group(self, documents: int, nodes: int, values_per_node: int) -> int:
        """Return how many documents go through the head at a time, with `nodes` nodes each."""

    @abstractmethod
    def table_scores(self, states_BTD: Tensor, queries_nD: Tensor) -> Tensor:
        """Return the products of all states and queries, [B, n, T], in the backend's memory layout."""

    @abstractmethod
    def flat_scores(self, scores_BnT: Tensor) -> Tensor:
        """Return `table_scores` (or their gradients) as a view of shape [n, B·T]."""

    @abstractmethod
    def products(self, rows_gnX: Tensor, words_gTX: Tensor, like: Tensor | None = None) -> Tensor:
        """Return the products of each document's rows and words, [g, n, T], in the memory layout of `like` if given."""

    @abstractmethod
    def mask_padding_(self, scores_gnT: Tensor, lengths_g: Tensor) -> None:
        """Set the scores of padding to -inf in place, so that its attention weights are zero."""

    @abstractmethod
    def softmax(self, scores_gnT: Tensor) -> Tensor:
        """Return the softmax over words."""

    @abstractmethod
    def softmax_backward(self, gradients_gnT: Tensor, weights_gnT: Tensor) -> Tensor:
        """Return the gradient of the scores from that of `softmax`'s result, `weights_gnT`."""

    @abstractmethod
    def attention_kernel(self, dtype: torch.dtype) -> type["KernelAttention"] | None:
        """Return `KernelAttention` where it is used for states of this format; None where attention is eager."""

    @abstractmethod
    def candidates(self, parents_BC: Tensor, level: Level, first_child: Tensor) -> Candidates:
        """Return the children of the nodes of a beam, as candidates of a network that only predicts.

        Args:
            parents_BC: int64, nodes of the level above, on the device; -1 for none.
            level: the level whose nodes are scored.
            first_child: of the level, on the device.
        """

    @abstractmethod
    def gather_rows(self, table: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Return some rows of a table in a number format."""

    @abstractmethod
    def add_rows_(self, table: Tensor, row_index_R: Tensor, values_RX: Tensor) -> None:
        """Add values to rows of a table in place; a row may occur several times."""

    @abstractmethod
    def documents_to_score(self, longest: int, nodes: int) -> int:
        """Return how many documents a worker encodes at a time for inference.

        Args:
            longest: words of the longest of them.
            nodes: nodes that are scored for a document.
        """

    # Optimizer

    @abstractmethod
    def rows_per_update(self, rows: int, width: int) -> int:
        """Return how many of `rows` rows of `width` values Adam updates at a time; at least 1, also for no rows."""

    @abstractmethod
    def row_update(self) -> Callable[..., None] | None:
        """Return `row_adam.adam_rows_` where it is used; None where rows are copied, updated and written back."""

    @abstractmethod
    def needs_scaling(self, scale: Tensor) -> bool:
        """Return whether gradients must be multiplied by `scale`, without making a GPU wait."""

    @abstractmethod
    def first_gradient(self, loss: Tensor) -> Tensor | None:
        """Return a one for `loss.backward`, which `is_one` knows without reading it; None leaves it to PyTorch."""

    @abstractmethod
    def is_one(self, scalar: Tensor) -> bool:
        """Return whether a scalar is known to be one; a GPU's is known only if it is `first_gradient`."""


class Staged(ABC):
    """Tensors on the CPU that are ready to be copied to a device."""

    @abstractmethod
    def to(self, device: torch.device) -> dict[str, Tensor]:
        """Return the tensors on a device, by name."""


class HostCopy(ABC):
    """Tensors on their way to the CPU."""

    @abstractmethod
    def result(self) -> list[Tensor]:
        """Return the tensors on the CPU; wait until they are complete."""


_replaced: dict[str, Backend] = {}


def backend_for(device: torch.device) -> Backend:
    """Return the backend of a device."""
    backend = _replaced.get(device.type)
    return backend if backend is not None else _backend_of_type(device.type)


def _backend_of_type(device_type: str) -> Backend:
    backend = _created.get(device_type)
    if backend is None:
        from axml_ray.network.backends.cpu_backend import CpuBackend
        from axml_ray.network.backends.cuda_backend import CudaBackend

        backend = _created[device_type] = CpuBackend() if device_type == "cpu" else CudaBackend(device_type)
    return backend


_created: dict[str, Backend] = {}


@contextmanager
def replaced_backend(device: torch.device, backend: Backend) -> Iterator[Backend]:
    """Use another backend for all devices of this type until the block ends, in all threads of this process."""
    before = _replaced.get(device.type)
    _replaced[device.type] = backend
    try:
        yield backend
    finally:
        if before is None:
            del _replaced[device.type]
        else:
            _replaced[device.type] = before
