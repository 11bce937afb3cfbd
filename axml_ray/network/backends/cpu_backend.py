"""The backend of a CPU: working sets of the size of a core's cache, and no pass over values that need none.

Legend: see `base`. In memory, scores are [g, T, n]: a document's words are the rows of one product with the queries.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from axml_ray.network.backends.base import Backend, Limits, Seeds
from axml_ray.network.backends.cpu_precision import measured_bfloat16_is_faster
from axml_ray.network.fast.bilstm import both_directions

LIMITS = Limits(
    group_values=1 << 23,  # what about fits a core's cache
    chunk_scores=1 << 26,
    cast_rows=1 << 8,  # both copies stay in the cache
    update_values=1 << 18,  # weights, both moments and the gradient of this size fit a core's cache together
    scoring_documents=64,
    narrow_bytes=1 << 24,  # larger tables stay as given: mapped from a bundle, they take no memory of their own
)


class CpuBackend(Backend):
    """Everything in main memory; tensors are used where they are, and reading a value costs nothing."""

    device_type = "cpu"
    limits = LIMITS
    reduced_formats = frozenset({torch.bfloat16})
    step_operations = 1e11

    def fast_formats(self) -> tuple[torch.dtype, ...]:
        """Return bfloat16 if this processor multiplies it in hardware and faster than float32."""
        return (torch.bfloat16,) if measured_bfloat16_is_faster() else ()

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
        words_64 = -(-values[0].numel() // 8)  # 64-bit words that hold one byte for each value
        random = np.stack([np.random.SFC64((int(seed), layer)).random_raw(words_64) for seed in seeds]).view(np.uint8)
        is_kept = torch.from_numpy(random)[:, : values[0].numel()].view_as(values) >= dropped
        return values * is_kept.to(values.dtype).mul_(256 / (256 - dropped))

    def both_directions(
        self, lstms: Sequence[nn.LSTM], inputs: Sequence[Tensor], states: Sequence[Tensor]
    ) -> list[Tensor]:
        """Run the two LSTMs at the same time, each on half of the threads."""
        return both_directions(lstms, inputs, states)

    def table_scores(self, states_BTD: Tensor, queries_nD: Tensor) -> Tensor:
        """Return one product of all documents' words."""
        documents, tokens, _ = states_BTD.shape
        return (states_BTD.flatten(0, 1) @ queries_nD.t()).view(documents, tokens, -1).transpose(1, 2)

    def products(self, rows_gnX: Tensor, words_gTX: Tensor, like: Tensor | None = None) -> Tensor:
        """Return one product for each document."""
        return torch.bmm(words_gTX, rows_gnX.transpose(1, 2)).transpose(1, 2)

    def mask_padding_(self, scores_gnT: Tensor, lengths_g: Tensor, value: float) -> None:
        """Write the few rows of padding only: texts of a batch are about equally long."""
        scores_gTn = scores_gnT.transpose(1, 2)
        is_padding_gT = torch.arange(scores_gTn.shape[1], device=scores_gTn.device) >= lengths_g[:, None]
        padding = is_padding_gT.flatten().nonzero()[:, 0]
        scores_gTn.flatten(0, 1).index_fill_(0, padding, value)

    def add_rows_(self, table: Tensor, row_index_R: Tensor, values_RX: Tensor) -> None:
        """Add row by row, in their order."""
        table.index_add_(0, row_index_R, values_RX.to(table.dtype))
