"""The backend of a CPU: working sets of the size of a core's cache, and no pass over values that need none.

Legend: see `backend`. In memory, scores are [g, T, n]: a document's words are the rows of one product with the queries.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from axml_ray.core.memory import peak_gib
from axml_ray.network.backends.backend import Backend, HostCopy, Seeds, Staged
from axml_ray.network.backends.cpu_precision import measured_bfloat16_is_faster
from axml_ray.network.bilstm import both_directions
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.fast.torch_internals import softmax_backward
from axml_ray.network.tree_level import Level

GROUP = 1 << 23
"""Most values (scores, layer outputs and their gradients) of a group: what about fits a core's cache."""
CHUNK_SCORES = 1 << 26
"""Most scores of a chunk of nodes, of all documents of a batch."""
CAST_ROWS = 1 << 8
"""Rows of the label table that are converted at a time, so that both copies stay in the cache."""
SCORING_BATCH = 64
"""Documents that are encoded at a time for inference."""
MOST_COPIED = 1 << 28
"""Bytes of a table above which it is not held in a second format."""
CACHED_VALUES = 1 << 18
"""Values of each table that are updated at a time: weights, both moments and the gradient of this size fit a core's
cache together."""


class CpuBackend(Backend):
    """Everything in main memory; tensors are used where they are."""

    device_type = "cpu"
    reduced_formats = frozenset({torch.bfloat16})
    loss_interval = 1
    node_multiple = 1
    step_operations = 1e11
    scales_in_optimizer = False

    def fast_formats(self) -> tuple[torch.dtype, ...]:
        """Return bfloat16 if this processor multiplies it in hardware and faster than float32."""
        return (torch.bfloat16,) if measured_bfloat16_is_faster() else ()

    def set_rounding(self, tf32: bool) -> None:
        """Do nothing: a CPU has no TF32."""

    def stage(self, tensors: Mapping[str, Tensor]) -> Staged:
        """Return the tensors as they are."""
        return _InPlace(dict(tensors))

    def fetch(self, tensors: Sequence[Tensor]) -> HostCopy:
        """Return the tensors as they are."""
        return _SameTensors(list(tensors))

    def store_like(self, parameter: Tensor) -> Tensor:
        """Return an uninitialised tensor of the parameter's shape."""
        return torch.empty_like(parameter)

    def synchronize(self) -> None:
        """Do nothing: a CPU's work is complete when a call returns."""

    def peak_memory_gib(self) -> float:
        """Return the peak of this process's main memory in GiB."""
        return peak_gib()

    def reset_peak_memory(self) -> None:
        """Do nothing: the peak is that of the process."""

    def limit_memory(self, device: torch.device, share: float) -> None:
        """Do nothing: Ray counts main memory (`resources.memory_gib`)."""

    def frozen_table(self, table: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Convert a small table; a large one stays as it was given, such as memory-mapped."""
        return table.to(dtype) if table.numel() * dtype.itemsize <= MOST_COPIED else table

    def frozen_lstm_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the format of products."""
        return dtype

    def dropout_seeds(self, step_seed: int, documents: Tensor) -> Seeds:
        """Return uint64 seeds, spread by the golden ratio's multiplier (2^64 / φ), as in Fibonacci hashing."""
        # The product wraps around; PyTorch takes seeds of 63 bits.
        with np.errstate(over="ignore"):
            spread = documents.numpy().astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            return (np.uint64(step_seed) + spread) >> np.uint64(1)

    def dropout(self, values: Tensor, rate: float, seeds: Seeds | None, layer: int) -> Tensor:
        """Draw the masks as random bytes, since PyTorch draws them one by one, which took a sixth of a step.

        The rate is rounded to a multiple of 1/256, and the scale is that of the rounded rate.
        """
        if seeds is None:
            seeds = torch.randint(2**62, (len(values),)).numpy()
        dropped = min(255, round(256 * rate))
        words = -(-values[0].numel() // 8)  # 64-bit words that hold one byte for each value
        random = np.stack([np.random.SFC64((int(seed), layer)).random_raw(words) for seed in seeds]).view(np.uint8)
        kept = torch.from_numpy(random)[:, : values[0].numel()].view_as(values) >= dropped
        return values * kept.to(values.dtype).mul_(256 / (256 - dropped))

    def both_directions(
        self, lstms: Sequence[nn.LSTM], words: Sequence[Tensor], states: Sequence[Tensor]
    ) -> list[Tensor]:
        """Run the two LSTMs at the same time, each on half of the threads."""
        return both_directions(lstms, words, states)

    def nodes_of_chunk(self, nodes: int, documents: int, tokens: int, values_per_node: int) -> int:
        """Return the number of nodes that fit a group of a single document and the largest chunk."""
        return min(nodes, CHUNK_SCORES // (documents * tokens), GROUP // values_per_node)

    def columns_of_chunk(self, columns: int, block_size: int, documents: int, values_per_node: int) -> int:
        """Return the number of parents that fit a group of a single document."""
        return min(columns, GROUP // (block_size * values_per_node))

    def documents_of_group(self, documents: int, nodes: int, values_per_node: int) -> int:
        """Return the number of documents that fit a group."""
        return min(documents, GROUP // (nodes * values_per_node))

    def table_scores(self, states_BTD: Tensor, queries_nD: Tensor) -> Tensor:
        """Return one product of all documents' words."""
        documents, tokens, _ = states_BTD.shape
        return (states_BTD.flatten(0, 1) @ queries_nD.t()).view(documents, tokens, -1).transpose(1, 2)

    def flat_scores(self, scores_BnT: Tensor) -> Tensor:
        """Return the transpose of the product."""
        return scores_BnT.transpose(1, 2).flatten(0, 1).t()

    def products(self, rows_gnX: Tensor, words_gTX: Tensor, like: Tensor | None = None) -> Tensor:
        """Return one product for each document."""
        return torch.bmm(words_gTX, rows_gnX.transpose(1, 2)).transpose(1, 2)

    def mask_padding_(self, scores_gnT: Tensor, lengths_g: Tensor) -> None:
        """Write the few rows of padding only: texts of a batch are about equally long."""
        scores_gTn = scores_gnT.transpose(1, 2)
        is_padding_gT = torch.arange(scores_gTn.shape[1], device=scores_gTn.device) >= lengths_g[:, None]
        padding = is_padding_gT.flatten().nonzero()[:, 0]
        scores_gTn.flatten(0, 1).index_fill_(0, padding, float("-inf"))

    def softmax(self, scores_gnT: Tensor) -> Tensor:
        """Return the softmax, over the dimension of words in memory."""
        return torch.softmax(scores_gnT.transpose(1, 2), 1).transpose(1, 2)

    def softmax_backward(self, gradients_gnT: Tensor, weights_gnT: Tensor) -> Tensor:
        """Return the gradient, over the dimension of words in memory."""
        return softmax_backward(gradients_gnT.transpose(1, 2), weights_gnT.transpose(1, 2), 1).transpose(1, 2)

    def attention_kernel(self, dtype: torch.dtype) -> None:
        """Return None."""

    def candidates(self, parents_BC: Tensor, level: Level, first_child: Tensor) -> Candidates:
        """Select the distinct rows, so that each is converted once."""
        return Candidates.from_parents(parents_BC.numpy(), level)

    def gather_rows(self, table: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert `CAST_ROWS` rows at a time."""
        gathered = torch.empty(len(rows), table.shape[1], dtype=dtype, device=table.device)
        for start in range(0, len(rows), CAST_ROWS):
            some = slice(start, start + CAST_ROWS)
            gathered[some] = table.index_select(0, rows[some])
        return gathered

    def add_rows_(self, table: Tensor, row_index_R: Tensor, values_RX: Tensor) -> None:
        """Add row by row, in their order."""
        table.index_add_(0, row_index_R, values_RX.to(table.dtype))

    def documents_to_score(self, longest: int, nodes: int) -> int:
        """Return `SCORING_BATCH`."""
        return SCORING_BATCH

    def rows_per_update(self, rows: int, width: int) -> int:
        """Return the number of rows that fit `CACHED_VALUES`."""
        return max(1, CACHED_VALUES // max(1, width))

    def row_update(self) -> Callable[..., None] | None:
        """Return None."""
        return None

    def needs_scaling(self, scale: Tensor) -> bool:
        """Return whether the scale is below one; reading it costs nothing here."""
        return bool(scale < 1)

    def first_gradient(self, loss: Tensor) -> Tensor | None:
        """Return None: reading a scalar costs nothing here."""
        return None

    def is_one(self, scalar: Tensor) -> bool:
        """Return whether the scalar is one."""
        return bool(scalar == 1)


class _InPlace(Staged):
    def __init__(self, tensors: dict[str, Tensor]):
        self._tensors = tensors

    def to(self, device: torch.device) -> dict[str, Tensor]:
        return self._tensors


class _SameTensors(HostCopy):
    def __init__(self, tensors: list[Tensor]):
        self._tensors = tensors

    def result(self) -> list[Tensor]:
        return self._tensors
