"""Which number format a processor computes in."""

import pytest
import torch

from axml_ray.network import cpu_precision as module
from axml_ray.network.precision import bfloat16_is_faster, uses_bfloat16

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def measured_anew():
    module._measured_bfloat16_is_faster.cache_clear()
    yield
    module._measured_bfloat16_is_faster.cache_clear()


def processor(monkeypatch, *, capabilities: dict[str, bool], seconds: dict[torch.dtype, list[float]]) -> list[int]:
    """One with these capabilities, whose products take so long one after the other; returns what it was asked for."""
    asked, left = [], {kind: iter(each) for kind, each in seconds.items()}

    def timed(matrix: torch.Tensor) -> float:
        asked.append(matrix.shape[0])
        return next(left[matrix.dtype])

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(module, "_seconds", timed)
    return asked


def times(best: float) -> list[float]:
    """Of a busy machine: one product of them all had the core to itself."""
    return [best * (1 if number == 5 else 3 + number % 4) for number in range(module.TIMED_ROUNDS)]


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16", "bf16"])
@pytest.mark.parametrize(("narrow", "pays"), [(0.5, True), (2.0, False)])
def test_takes_bfloat16_where_its_products_are_the_faster(monkeypatch, flag, narrow, pays):
    seconds = {torch.float32: times(1.0), torch.bfloat16: times(narrow)}
    asked = processor(monkeypatch, capabilities={flag: True}, seconds=seconds)
    assert [bfloat16_is_faster(CPU) for _ in range(3)] == [pays] * 3
    assert len(asked) == 2 * module.TIMED_ROUNDS  # once for all
    assert uses_bfloat16(CPU, "auto") is pays
    assert uses_bfloat16(CPU, "bfloat16") and not uses_bfloat16(CPU, "float32")


def test_measures_nothing_without_the_instruction(monkeypatch):
    asked = processor(monkeypatch, capabilities={"avx512_f": True, "avx512_bf16": False}, seconds={})
    assert not bfloat16_is_faster(CPU) and not asked


def test_measures_both_kinds_wherever_it_is_asked(monkeypatch):
    found = []
    real = module._seconds
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    monkeypatch.setattr(module, "_seconds", lambda matrix: found.append(torch.mm(matrix, matrix).dtype) or real(matrix))
    drawn = torch.get_rng_state()
    with torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
        bfloat16_is_faster(CPU)
    assert found == [torch.float32, torch.bfloat16] * module.TIMED_ROUNDS
    assert torch.equal(torch.get_rng_state(), drawn)
