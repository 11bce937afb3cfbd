"""The Triton kernel of Adam on rows, in Triton's interpreter, against the eager way.

PyTorch's build for CPUs does not bring Triton; with `pip install triton` in another environment these tests run.

Run: pytest tests/network/test_row_adam.py
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from axml_ray.network.backends.backend import replaced_backend
from axml_ray.network.backends.cuda_backend import CudaBackend
from axml_ray.network.optimization.optimizer import LazyAdam

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
pytest.importorskip("triton")
from axml_ray.network.optimization import row_adam

STEPS = [[0, 3, 5], [5], [], [1, 2, 3, 4, 5, 6, 7, 8], [0, 8]]


def trained(row_kernel: bool, width: int, skipped: int = -1) -> list[torch.Tensor]:
    """Return weights, moments and step counter after steps on the rows of STEPS."""
    torch.manual_seed(0)
    table = nn.Parameter(torch.randn(9, width))
    optimizer = LazyAdam([table], lr=0.05)
    with replaced_backend(torch.device("cpu"), CudaBackend("cpu", row_kernel=row_kernel)):
        for number, rows in enumerate(STEPS):
            values = torch.randn(len(rows), width)
            table.grad = torch.sparse_coo_tensor(torch.tensor([rows], dtype=torch.int64), values, table.shape)
            skip = torch.tensor(float(number == skipped))
            optimizer.step(gradient_divisor=torch.tensor(3.0), skip=skip)
    return [table.detach(), *optimizer.state[table].values()]


@pytest.mark.parametrize("skipped", [-1, 0, 3])
@pytest.mark.parametrize("width", [1, 24, 1030])
def test_is_the_eager_step(width, skipped, monkeypatch):
    calls = []
    real = row_adam.adam_rows_
    monkeypatch.setattr(row_adam, "adam_rows_", lambda *given, **more: (calls.append(1), real(*given, **more)))
    expected, found = trained(False, width, skipped), trained(True, width, skipped)
    assert len(calls) == len(STEPS)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_repeated_rows_are_added_in_their_order():
    """To the last bit, whatever stands between them; another order of the terms has another sum."""
    terms = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])

    def moment(rows: list[int], values: torch.Tensor) -> torch.Tensor:
        weight, first, second = (torch.zeros(4, 1) for _ in range(3))
        row_adam.adam_rows_(
            weight, first, second, torch.tensor(rows), values, torch.zeros(()),
            lr=0.1, betas=(0.5, 0.999), eps=1e-8,
        )  # fmt: skip
        return first[2, 0]

    in_order = (((terms[0] + terms[1]) + terms[2]) + terms[3]).item()
    assert moment([2, 2, 2, 2], terms) == 0.5 * in_order
    between = torch.stack([terms[0], torch.ones(1), terms[1], terms[2], torch.ones(1), terms[3]])
    assert moment([2, 3, 2, 2, 1, 2], between) == 0.5 * in_order
    assert moment([2, 2, 2, 2], terms[[0, 2, 1, 3]]) == 0.5 * 2


def test_other_rows_rest():
    weight, first, second = (torch.ones(5, 3) for _ in range(3))
    row_adam.adam_rows_(
        weight, first, second, torch.tensor([4, 1]), torch.ones(2, 3), torch.zeros(()),
        lr=0.1, betas=(0.9, 0.999), eps=1e-8,
    )  # fmt: skip
    for tensor in (weight, first[:, :0], second[:, :0]):
        assert torch.equal(tensor[[0, 2, 3]], torch.ones_like(tensor[[0, 2, 3]]))
    assert (weight[[1, 4]] < 1).all()


COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from axml_ray.network.optimization.row_adam import _update

whole = {"rows": "*i64", "order": "*i64", "positions": "i32", "width": "i32", "BLOCK": "constexpr"}
numbers = ("lr", "beta1", "beta2", "rest1", "rest2", "eps")
types = {name: whole.get(name, "fp32" if name in numbers else "*fp32") for name in _update.arg_names}
for card in (70, 75, 80, 90):
    source = ASTSource(fn=_update, signature=types, constexprs={"BLOCK": 1024})
    done = compile(source, target=GPUTarget("cuda", card, 32))
    print(card, len(done.asm["cubin"]) > 0, "atom." in done.asm["ptx"])
"""


@pytest.mark.processes
def test_compiles_for_each_kind_of_card_without_atomic_operations(tmp_path):
    """Which needs the compiler of PTX that Triton brings, but no card. In a process without the interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [word for card in ("70", "75", "80", "90") for word in (card, "True", "False")]
