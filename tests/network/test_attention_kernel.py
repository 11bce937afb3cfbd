"""The Triton kernels of attention, in Triton's interpreter, against float64 and the literal network.

PyTorch's build for CPUs does not bring Triton; with `pip install triton` in another environment these tests run.

Run: pytest tests/network/test_attention_kernel.py
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_attention_xml import batch, compare, every_case, fast_loss, fast_rows, gradients

from axml_ray.network.backends.backend import replaced_backend
from axml_ray.network.backends.cuda_backend import CudaBackend

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
pytest.importorskip("triton")
from axml_ray.network.fast import attention_kernel
from axml_ray.network.fast.attention_kernel import KernelAttention

CPU = torch.device("cpu")
LENGTHS = [1, 9, 40, 23]
CLOSE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.mark.parametrize("gathered", [False, True], ids=["all nodes", "sibling blocks"])
@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(("dimension", "units", "nodes"), [(16, 16, 64), (70, 21, 75), (33, 270, 3)])
def test_is_the_equation_in_float64(gathered, dtype, dimension, units, nodes):
    """Sums and gradients; widths are no multiples of a tile, and what stands at padding is not read."""
    torch.manual_seed(0)
    states, values = torch.randn(4, 40, dimension) / dimension**0.5, torch.randn(4, 40, units)
    states, values, bias = states.to(dtype), values.to(dtype), torch.randn(units).to(dtype)
    queries = (2 * torch.randn(100 if gathered else nodes, dimension)).to(dtype)
    index = torch.randint(100, (4, nodes)) if gathered else None
    lengths = torch.tensor(LENGTHS)
    padding = torch.arange(40) >= lengths[:, None]
    exact = [one.double().masked_fill(padding[..., None], 0).requires_grad_() for one in (states, values)]
    wide = queries.double()[index] if gathered else queries.double()
    scores = (wide @ exact[0].mT).masked_fill(padding[:, None], -torch.inf)
    scores.retain_grad()
    expected, log_sums = scores.softmax(-1) @ exact[1] + bias.double(), scores.logsumexp(-1)
    gradient, of_logs = torch.randn(4, nodes, units).to(dtype), torch.randn(4, nodes)
    ((expected * gradient.double()).sum() + (log_sums * of_logs.double()).sum()).backward()

    states[padding], values[padding] = torch.nan, torch.nan
    attention = KernelAttention(states, queries, index)
    found, found_logs = attention.forward(values, lengths, bias, True)
    of_scores, of_values = attention.backward(gradient, of_logs)
    assert {found.dtype, of_scores.dtype, of_values.dtype} == {dtype} and found_logs.dtype == torch.float32
    for one, other in (
        (found, expected), (found_logs, log_sums), (of_scores, scores.grad), (of_values, exact[1].grad)
    ):  # fmt: skip
        assert (one.double() - other).norm() < CLOSE[dtype] * other.norm()
    assert not of_scores.transpose(1, 2)[padding].any() and not of_values[padding].any()


def test_a_grid_has_room_for_any_batch(monkeypatch):
    """A card takes at most 65,535 programs along the second and third axes of a grid, 2^31 - 1 along the first."""

    class Launches(list):
        def __getitem__(self, grid):
            self.append(grid)
            return lambda *given, **more: None

    launches = Launches()
    monkeypatch.setattr(attention_kernel, "_forward", launches)
    monkeypatch.setattr(attention_kernel, "_backward", launches)
    states, values = torch.empty(70_000, 1, 16, device="meta"), torch.empty(70_000, 1, 16, device="meta")
    attention = KernelAttention(states, torch.empty(100, 16, device="meta"))
    sums, _ = attention.forward(values, torch.empty(70_000, device="meta"), torch.empty(16, device="meta"), False)
    attention.backward(torch.empty_like(sums), None)
    assert list(launches) == [(140_000, 1), (140_000, 1)]


@every_case
@pytest.mark.parametrize("several", [False, True], ids=["one group", "groups of one document"])
def test_is_the_literal_network(case, several, monkeypatch):
    """Logits, loss and all gradients in float32, by the kernels and no eager attention."""
    monkeypatch.setattr("axml_ray.network.fast.fused_attention.EagerAttention", None)
    backend = CudaBackend("cpu", row_kernel=False, fused_kernel=True)
    if several:
        backend.limits = replace(backend.limits, group_values=1, chunk_multiple=4, node_multiple=4)
    with replaced_backend(CPU, backend):
        compare(case.network(), case, rtol=1e-4, atol=2e-6)


@every_case
def test_bfloat16_is_close_to_the_eager_twin(case):
    found = []
    for fused in (False, True):
        network = case.network()
        one = batch(network, case)
        with replaced_backend(CPU, CudaBackend("cpu", fused_kernel=fused)), torch.autocast("cpu", torch.bfloat16):
            rows = torch.cat(fast_rows(network, one))
            loss = fast_loss(network, one)
        loss.backward()
        found.append((rows, gradients(network)))
    (rows, wanted), (fused_rows, fused_gradients) = found
    torch.testing.assert_close(fused_rows, rows, rtol=0.05, atol=0.05)
    for name, gradient in fused_gradients.items():
        assert (gradient - wanted[name]).norm() < 0.05 * wanted[name].norm() + 1e-3, name


COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from axml_ray.network.fast import attention_kernel as module

sizes = {"D": 1024, "F": 512, "GATHERED": True, "NODES": module.NODES, "WORDS": module.WORDS, "DEPTH": module.DEPTH}
LIMITS = {70: 96 << 10, 75: 64 << 10, 80: 163 << 10, 90: 227 << 10}  # shared memory of a program, in bytes
whole = {"index": "*i64", "lengths": "*i64", "tokens": "i32", "nodes": "i32", "document_stride": "i32",
         "node_stride": "i32", "log_sums": "*fp32", "offsets": "*fp32"}
for card, form in ((70, "fp16"), (75, "fp16"), (80, "bf16"), (90, "bf16"), (90, "fp32")):
    for kernel in (module._forward, module._backward):
        constants = {**sizes, "WIDE": False, "PRECISION": "ieee" if form == "fp32" else "tf32", "UNITS": module.UNITS}
        constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
        types = {name: "constexpr" if name in constants else whole.get(name, "*" + form) for name in kernel.arg_names}
        source = ASTSource(fn=kernel, signature=types, constexprs=constants)
        done = compile(source, target=GPUTarget("cuda", card, 32), options={"num_warps": module.WARPS})
        print(card, len(done.asm["cubin"]) > 0, "atom." in done.asm["ptx"], done.metadata.shared <= LIMITS[card])
"""


@pytest.mark.processes
def test_compiles_for_each_kind_of_card_without_atomic_operations(tmp_path):
    """At the largest sizes of the paper, in a process without the interpreter; this needs no card."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.pathsep.join([str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")])
    environment |= {"PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cards = ("70", "75", "80", "90", "90")
    assert done.stdout.split() == [word for card in cards for _ in range(2) for word in (card, "True", "False", "True")]


def test_the_kernels_are_one_setting():
    assert CudaBackend("cpu", fused_kernel=True).attention_kernel(torch.bfloat16) is KernelAttention
    assert CudaBackend("cpu", fused_kernel=True).attention_kernel(torch.float64) is None
    assert CudaBackend("cpu", fused_kernel=False).attention_kernel(torch.bfloat16) is None


@pytest.mark.parametrize(("capability", "found"), [((7, 0), None), ((7, 5), None), ((8, 0), KernelAttention)])
def test_cards_before_ampere_do_without_them(monkeypatch, capability, found):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert CudaBackend("cuda", fused_kernel=True).attention_kernel(torch.float16) is found
