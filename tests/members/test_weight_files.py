"""Run: pytest tests/members/test_weight_files.py"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from axml_ray.members.weight_files import SCALES, group_size, load_weights, quantized, save_weights
from axml_ray.network.fast.int8_table import Int8Table


class TestWeights:
    @given(st.integers(1, 5), st.integers(1, 200), st.integers(0, 2**32 - 1), st.sampled_from([1e-30, 1.0, 1e20]))
    def test_int8_is_within_half_a_step(self, rows, width, seed, scale):
        matrix = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * scale
        matrix[0] = 0
        values, scales = quantized(matrix)
        assert values.shape == matrix.shape and len(scales) == rows * (width // group_size(width))
        step = scales.repeat_interleave(group_size(width)).view(rows, width)
        assert ((Int8Table(values, scales).unpacked() - matrix).abs() <= step * 0.501).all()

    @pytest.mark.parametrize(("width", "expected"), [(300, 60), (512, 64), (8, 8), (101, 101), (64, 64), (1, 1)])
    def test_groups(self, width, expected):
        assert group_size(width) == expected

    def test_vectors_stay_whole(self, tmp_path):
        state = {"table": torch.randn(4, 64), "bias": torch.randn(7), "one": torch.randn(())}
        save_weights(state, tmp_path / "x.safetensors", "int8")
        packed, found = load_file(tmp_path / "x.safetensors"), load_weights(tmp_path / "x.safetensors")
        assert packed["table"].dtype == torch.int8 and packed["table" + SCALES].dtype == torch.float32
        assert set(found) == set(state)
        assert torch.equal(found["bias"], state["bias"]) and torch.equal(found["one"], state["one"])
