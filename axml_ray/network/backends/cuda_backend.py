"""The backend of a GPU, in eager PyTorch: large aligned products, no step that waits for the device.

- Chunks of nodes have equal widths in multiples of 64, and the last is padded to a multiple of 8: a bfloat16 product
  with another leading dimension misses the fast kernels.
- In memory, a document's words are the last dimension of the scores, over which softmax runs fastest.
- Nothing reads a value on the CPU or has a size that only the device knows, so launches run ahead of the device.
- Sums over repeated rows have a fixed order, products in reduced formats are summed in float32, and dropout masks
  depend on the document's seed alone, so that a resumed training repeats itself. This holds for one kind of GPU and one
  version of PyTorch.

Tests run this code on a CPU, against the equations and for its launches and alignment; `benchmarks/gpu.py` compares it
on a GPU with float32 on a CPU.

Legend: see `base`.
"""

import os
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from axml_ray.network.backends.base import Backend, HostCopy, Limits, Seeds, TransferBatch
from axml_ray.network.fast.counter_dropout import counter_dropout, seeds_of_documents
from axml_ray.network.fast.cuda_lstm import LstmGraphs, run_both

STORED_ON_DEVICE = 1 << 26
"""Bytes of a parameter above which its average and its best values are kept in main memory."""
LIMITS = Limits(
    group_values=1 << 30,  # measured: a first level's step takes 138 ms at 2^26, 79 at 2^28, 68 at 2^30 and 64 at 2^32
    group_is_batch=True,
    chunk_multiple=64,  # widths of chunks, and below of the last one: what tensor cores need in reduced formats
    node_multiple=8,
    scoring_tokens=1 << 16,
    scoring_logits=1 << 26,
    stored_bytes=STORED_ON_DEVICE,
)
TRITON_VARIABLE = "AXML_RAY_TRITON"
"""Environment variable that is 1 where the Triton kernel of Adam is used."""
GRAPHS_VARIABLE = "AXML_RAY_CUDA_GRAPHS"
"""Environment variable that is 0 where the kernels of LSTMs are launched one by one."""
FLOAT16_CAPABILITY = (7, 0)
"""Compute capability from which GPUs multiply float16 matrices in tensor cores: Volta's."""
ALIGNMENT = 16
"""Bytes to which tensors are aligned in the buffer that is copied."""


class CudaBackend(Backend):
    """Operations of a GPU.

    Args:
        device_type: type of the tensors' device; tests pass "cpu".
        lstm_dtype: number format of the LSTMs where the other products are in bfloat16 or float16: cuDNN is fastest in
            float16; see `cuda_lstm`.
        limits: how much is computed at a time.
        row_kernel: whether Adam updates rows by a Triton kernel (`row_adam`); by default as AXML_RAY_TRITON says.
    """

    reduced_formats = frozenset({torch.bfloat16, torch.float16})
    runs_ahead = True
    loss_interval = 10
    lstm_dtype: torch.dtype

    def __init__(
        self,
        device_type: str = "cuda",
        lstm_dtype: torch.dtype = torch.float16,
        limits: Limits = LIMITS,
        row_kernel: bool | None = None,
    ):
        self.device_type, self.lstm_dtype, self.limits = device_type, lstm_dtype, limits
        switched_on = os.environ.get(TRITON_VARIABLE) == "1"
        self.row_kernel = switched_on if row_kernel is None else row_kernel
        self._is_gpu = device_type == "cuda"
        self.lstm_graphs = LstmGraphs() if self._is_gpu and os.environ.get(GRAPHS_VARIABLE) != "0" else None
        if self._is_gpu:  # what PyTorch and cuBLAS read when a process first uses a GPU; users' values remain
            if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the old name of the next one
                # Batches differ in width, which fragments memory of fixed segments.
                os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
            # With workspaces of another kind, cuDNN's LSTMs do not repeat their results to the last bit (`nn.LSTM`).
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def fast_formats(self) -> tuple[torch.dtype, ...]:
        """Return what the GPU multiplies in hardware; bfloat16 before float16, as it needs no loss scaling."""
        if not self._is_gpu:
            return ()
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16, torch.float16
        return (torch.float16,) if torch.cuda.get_device_capability() >= FLOAT16_CAPABILITY else ()

    def stage(self, tensors: Mapping[str, Tensor]) -> TransferBatch:
        """Pack the tensors into one page-locked buffer, so that one copy moves them and the CPU does not wait."""
        return _PackedTensors(tensors, self._is_gpu)

    def fetch(self, tensors: Sequence[Tensor]) -> HostCopy:
        """Copy to page-locked memory and record an event: `Tensor.cpu` would wait for all that was launched since."""
        return _PinnedCopy(tensors, self._is_gpu)

    def dropout_seeds(self, step_seed: int, documents: Tensor) -> Seeds:
        """Return int64 seeds, computed on the device."""
        return seeds_of_documents(step_seed, documents)

    def dropout(self, values: Tensor, rate: float, seeds: Seeds | None, layer: int) -> Tensor:
        """Draw the masks from PyTorch's generator without seeds, else from a counter and the seed."""
        if seeds is None:
            return functional.dropout(values, rate)
        assert isinstance(seeds, Tensor)
        return counter_dropout(values, rate, seeds, layer)

    def both_directions(
        self, lstms: Sequence[nn.LSTM], inputs: Sequence[Tensor], states: Sequence[Tensor]
    ) -> list[Tensor]:
        """Run both LSTMs in one call, in `lstm_dtype` where the words are in a reduced format."""
        reduced = inputs[0].dtype in (torch.bfloat16, torch.float16)
        dtype = self.lstm_dtype if reduced else inputs[0].dtype
        with torch.autocast(self.device_type, enabled=False):  # it would choose another format for cuDNN
            return run_both(lstms, inputs, states, dtype, self.lstm_graphs)

    def table_scores(self, states_BTD: Tensor, queries_nD: Tensor) -> Tensor:
        """Return one product of all documents' words, in memory [n, B, T]."""
        documents, tokens, _ = states_BTD.shape
        return (queries_nD @ states_BTD.flatten(0, 1).t()).view(-1, documents, tokens).transpose(0, 1)

    def products(self, rows_gnX: Tensor, words_gTX: Tensor, like: Tensor | None = None) -> Tensor:
        """Return one product for each document."""
        if like is None:
            return torch.bmm(rows_gnX, words_gTX.transpose(1, 2))
        # The layout of `like`, since softmax's backward pass would copy operands of different layouts.
        return torch.bmm(rows_gnX, words_gTX.transpose(1, 2), out=torch.empty_like(like))

    def mask_padding_(self, scores_gnT: Tensor, lengths_g: Tensor, value: float) -> None:
        """Pass over all scores: finding the padding first would make the CPU wait for the number of places."""
        is_padding_gT = torch.arange(scores_gnT.shape[2], device=scores_gnT.device) >= lengths_g[:, None]
        scores_gnT.masked_fill_(is_padding_gT[:, None], value)

    def add_rows_(self, table: Tensor, row_index_R: Tensor, values_RX: Tensor) -> None:
        """Sort the rows and add them in that order; `index_add_` would add in any order."""
        table.index_put_((row_index_R,), values_RX.to(table.dtype), accumulate=True)


class _PackedTensors(TransferBatch):
    """Tensors one after the other in one buffer of bytes."""

    def __init__(self, tensors: Mapping[str, Tensor], pinned: bool):
        self._layout: dict[str, tuple[int, int, torch.dtype, torch.Size]] = {}
        end = 0
        for name, tensor in tensors.items():
            size = tensor.numel() * tensor.element_size()
            self._layout[name] = end, size, tensor.dtype, tensor.shape
            end += -(-size // ALIGNMENT) * ALIGNMENT
        self._buffer = torch.empty(end, dtype=torch.uint8, pin_memory=pinned)
        for name, view in self._views(self._buffer).items():
            view.copy_(tensors[name])

    def to(self, device: torch.device) -> dict[str, Tensor]:
        return self._views(self._buffer.to(device, non_blocking=True))

    def _views(self, buffer: Tensor) -> dict[str, Tensor]:
        return {
            name: buffer[start : start + size].view(dtype).view(shape)
            for name, (start, size, dtype, shape) in self._layout.items()
        }


class _PinnedCopy(HostCopy):
    """Copies in page-locked memory, and the event after which they are complete."""

    def __init__(self, tensors: Sequence[Tensor], pinned: bool):
        self._copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned) for tensor in tensors]
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event() if pinned else None
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(tensors[0].device))

    def result(self) -> list[Tensor]:
        if self._event is not None:
            self._event.synchronize()
        return self._copies
