"""A trained network made ready to predict: no gradients, and weights once in the format that products are computed in.

- Nothing is drawn or copied that is then overwritten: the network is made without memory and given its weights.
- The LSTM's weights, which each batch would otherwise turn into bfloat16, are kept in it.
- Tables (word and attention vectors) too, if that costs little memory. A large one stays as it was given, such as
  mapped from a file that other processes map as well, and the rows that a batch needs are turned as they are read.
- A table of int8 stays so, however small: its rows are converted as they are read.
- Head, bottleneck and filters are small and stay float32, as the sums that they end in are.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.precision import product_format
from axml_ray.network.fast.int8_table import Int8Table
from axml_ray.network.kinds import build_network
from axml_ray.network.level_network import TABLE, LevelNetwork
from axml_ray.network.tree_level import Level
from axml_ray.settings import NetworkSettings, Precision

CPU = torch.device("cpu")
PIECE_VALUES = 1 << 24
"""Values of a table that are converted at a time on their way to another device."""
WORDS = "encoder.embedding.weight"
"""Name of the word vectors in every kind of network."""


def frozen(
    level: Level,
    state: Mapping[str, Tensor],
    settings: NetworkSettings,
    precision: Precision = "auto",
    device: torch.device = CPU,
) -> LevelNetwork:
    """Return a network of these weights for prediction alone.

    On a CPU, tensors that are already in the right format are used as they are.

    Args:
        level: the nodes to tell apart.
        state: every parameter by name, float32, bfloat16 or an `Int8Table`.
        settings: kind and sizes.
        precision: of matrix products.
        device: where the network computes.

    Raises:
        ValueError: a parameter is missing, unknown or of another size.
    """
    if WORDS not in state or state[WORDS].ndim != 2:
        raise ValueError(f"{WORDS} is missing or not a table")
    with torch.device("meta"):
        network = build_network(level, torch.empty(state[WORDS].shape), settings)
    narrow = product_format(device, precision) if settings.implementation == "fused" else torch.float32
    tensors = {name: _ready(name, value, narrow, settings.kind, device) for name, value in state.items()}
    try:
        network.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise ValueError("; ".join(line.strip() for line in str(error).splitlines()[1:])) from None
    return network.requires_grad_(False).eval().to(device)


def _ready(name: str, value: Tensor, narrow: torch.dtype, kind: str, device: torch.device) -> Tensor:
    """Return a parameter in the number format in which it is kept, on the device."""
    backend = backend_for(device)
    if isinstance(value, Int8Table):
        if name not in (WORDS, TABLE):
            value = value.unpacked()
        elif value.device == device:
            return value
    if name == WORDS or (name == TABLE and kind == "attention"):
        if value.numel() * narrow.itemsize > backend.limits.narrow_bytes:
            return value
        if value.device == device:
            return value.to(narrow)
        # In pieces, so that the device holds one copy of the table.
        result = torch.empty(value.shape, dtype=narrow, device=device)
        rows = max(1, PIECE_VALUES // max(1, value[:1].numel()))
        for start in range(0, len(value), rows):
            result[start : start + rows].copy_(value[start : start + rows].to(narrow))
        return result
    if name == TABLE:  # the products with it are exact, see `ablations`
        return value.to(device)
    if "_lstm." in name or name.endswith("first_state"):
        return value.to(device, narrow if narrow == torch.float32 else backend.lstm_dtype or narrow)
    return value.to(device, torch.float32)
