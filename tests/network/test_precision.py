"""Which number format a processor computes in."""

import pytest
import torch

from axml_ray.network.backends import cpu_precision as module
from axml_ray.network.backends.precision import fast_formats, product_format

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
    assert [fast_formats(CPU) for _ in range(3)] == [(torch.bfloat16,) * pays] * 3
    assert len(asked) == 2 * module.TIMED_ROUNDS  # once for all
    assert product_format(CPU, "auto") == (torch.bfloat16 if pays else torch.float32)
    assert product_format(CPU, "bfloat16") == torch.bfloat16
    assert {product_format(CPU, precision) for precision in ("float32", "float16", "tf32")} == {torch.float32}


def test_measures_nothing_without_the_instruction(monkeypatch):
    asked = processor(monkeypatch, capabilities={"avx512_f": True, "avx512_bf16": False}, seconds={})
    assert not fast_formats(CPU) and not asked


def test_measures_both_kinds_wherever_it_is_asked(monkeypatch):
    found = []
    real = module._seconds
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    monkeypatch.setattr(module, "_seconds", lambda matrix: found.append(torch.mm(matrix, matrix).dtype) or real(matrix))
    drawn = torch.get_rng_state()
    with torch.device("meta"), torch.autocast("cpu", torch.bfloat16):
        fast_formats(CPU)
    assert found == [torch.float32, torch.bfloat16] * module.TIMED_ROUNDS
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize(
    ("has_bfloat16", "capability", "chosen"),
    [
        (True, (9, 0), torch.bfloat16),  # H100
        (True, (8, 0), torch.bfloat16),  # A100
        (False, (7, 5), torch.float16),  # T4
        (False, (7, 0), torch.float16),  # V100
        (False, (6, 1), torch.float32),  # GTX 1080 Ti, which multiplies float16 at a 64th of its rate
    ],
)
def test_the_format_of_a_card_is_the_fastest_that_it_has(monkeypatch, has_bfloat16, capability, chosen):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bfloat16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    card = torch.device("cuda")
    assert product_format(card, "auto") == chosen
    asked = {"bfloat16": torch.bfloat16, "float16": torch.float16, "tf32": torch.float32, "float32": torch.float32}
    assert {precision: product_format(card, precision) for precision in asked} == asked
