"""One training step of the GPU's code under a dispatch mode that sees every operator of PyTorch.

On a GPU each operator is a launch. The step must not read a value on the CPU, must stay within a number of launches,
and must multiply bfloat16 matrices whose leading dimensions are multiples of 8.

Run: pytest tests/training/test_gpu_audit.py
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_corpus import small_network, small_training
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from axml_ray.network.backends.backend import replaced_backend
from axml_ray.network.backends.base import HostCopy
from axml_ray.network.backends.cuda_backend import LIMITS, CudaBackend
from axml_ray.network.backends.precision import autocast
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.fast.frozen import frozen
from axml_ray.network.tree_level import Level
from axml_ray.planning.memory import level_memory, pass_bytes
from axml_ray.planning.shapes import LevelShape
from axml_ray.settings import NetworkSettings
from axml_ray.training.batches import Batch
from axml_ray.training.beam_search import expand_all
from axml_ray.training.level import LevelTraining

CPU = torch.device("cpu")
SYNCHRONISES = {
    "_local_scalar_dense", "item", "nonzero", "unique", "_unique", "_unique2", "unique_dim", "unique_consecutive",
    "masked_select", "is_nonzero", "equal", "bincount", "repeat_interleave", "_coalesce",
    "lift_fresh",
}  # fmt: skip
"""Operators after which the CPU waits for the device: they return a number, or a tensor of a size not known before, or
copy numbers that Python holds: `lift_fresh`, of `torch.tensor(1)` and of `values[index] = 1`."""
LAUNCHES_NOTHING = {
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias",
    "_sparse_coo_tensor_with_dims_and_tensors", "_indices", "_values", "_coalesced_", "is_coalesced", "is_pinned",
    "_nnz", "sparse_dim", "dense_dim", "_sparse_coo_tensor_unsafe", "_reshape_alias", "_unsafe_view", "view",
}  # fmt: skip
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
BUDGET = {"step": 275, "chunk": 70}
"""Launches of a step and of each chunk of nodes, apart from the LSTMs, which are one launch of cuDNN each for a part of
a batch. 44 belong to the masks of the two dropout layers."""
FLAT = Level(1, 200, None)
DEEP = Level(2, 400, np.arange(101) * 4)


class Audit(TorchDispatchMode):
    """Counts operators, collects misaligned products, and follows the memory of the tensors that are made."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.misaligned: list[str] = []
        self.products = self.peak = self._live = 0
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        result = func(*args, **(kwargs or {}))
        if self.paused:
            return result
        if (not func.is_view and name not in LAUNCHES_NOTHING) or name in SYNCHRONISES:
            self.launches[name] += 1
        if name in PRODUCTS:
            self._check(name, [one for one in (*args, result) if isinstance(one, Tensor) and one.dim() > 1])
        self._follow(result)
        return result

    def _check(self, name: str, operands: list[Tensor]) -> None:
        if operands[0].dtype not in (torch.bfloat16, torch.float16):
            return
        self.products += 1
        for one in operands:
            rows, columns = one.stride()[-2:]
            leading = columns if rows == 1 and columns != 1 else rows
            if leading % 8 or one.storage_offset() % 8 or 1 not in (rows, columns):
                self.misaligned.append(f"{name} {tuple(one.shape)} {one.stride()} + {one.storage_offset()}")

    def _follow(self, result: Any) -> None:
        for key in [key for key, (storage, _) in self._storages.items() if storage.expired()]:
            self._live -= self._storages.pop(key)[1]
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, Tensor) and not one.is_sparse:
                storage = one.untyped_storage()
                if storage._cdata not in self._storages:
                    self._storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                    self._live += storage.nbytes()
        self.peak = max(self.peak, self._live)


@contextmanager
def gpu_code(**options: Any) -> Iterator[CudaBackend]:
    with replaced_backend(CPU, CudaBackend("cpu", **options)) as backend:
        assert isinstance(backend, CudaBackend)
        yield backend


def step_of(training: LevelTraining, batch: Batch) -> Audit:
    """Audit one step, apart from what cuDNN does in the LSTMs."""
    audit = Audit()

    def paused(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            audit.paused = True
            try:
                return work(*arguments)
            finally:
                audit.paused = False

        return run

    class Layer(torch.autograd.Function):
        """The LSTM as one operator: its backward pass is recorded in the forward pass, and not audited either."""

        @staticmethod
        def forward(ctx: Any, words: Tensor, h: Tensor, c: Tensor, *weights: Tensor) -> Tensor:
            def record() -> tuple[list[Tensor], Tensor]:
                leaves = [one.detach().requires_grad_() for one in (words, h, c, *weights)]
                with torch.enable_grad():
                    output = torch._VF.lstm(leaves[0], leaves[1:3], leaves[3:], True, 1, 0.0, True, True, True)[0]
                return leaves, output

            ctx.leaves, ctx.output = paused(record)()
            return ctx.output.detach()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
            return paused(torch.autograd.grad)(ctx.output, ctx.leaves, gradient)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "axml_ray.network.fast.cuda_lstm.lstm_layer",
            lambda words, state, weights, training: Layer.apply(words, *state, *weights),
        )
        with audit:
            training.step(batch)
    return audit


def training_of(level: Level, **settings: Any) -> LevelTraining:
    network = small_network(level, 0.3, hidden=64, fully_connected=(32, 16), **settings)
    return small_training(network, 60, keep=40, precision="bfloat16", batch_size=20)


@pytest.mark.parametrize("evidence", [False, True], ids=["paper", "evidence"])
@pytest.mark.parametrize("level", [FLAT, DEEP], ids=["all nodes", "candidates"])
@pytest.mark.parametrize("chunks", ["one", "several"])
def test_a_step(level, evidence, chunks):
    # 200 nodes are three chunks of 64 and one of 8; 40 parents of 4 nodes are two chunks of 16 and one of 8.
    group = {"one": {}, "several": {"limits": replace(LIMITS, group_values=64 * 20 * 112)}}[chunks]
    with gpu_code(**group):
        training = training_of(level, evidence=evidence)
        batches = list(training.batches())
        training.step(batches[0])  # Adam's moments are made
        audit = step_of(training, batches[1])
    synchronising = {name for name in audit.launches if name in SYNCHRONISES}
    assert not synchronising
    assert audit.products > 11 and not audit.misaligned
    count = 1 if chunks == "one" else 4 if level is FLAT else 3
    assert audit.launches.total() < BUDGET["step"] + BUDGET["chunk"] * count, audit.launches.most_common()


@pytest.mark.parametrize("level", [FLAT, DEEP], ids=["all nodes", "candidates"])
def test_peak_memory_is_within_the_plan(level):
    """Of the forward and backward pass over a level; its inputs are counted in the plan, and not in the peak."""
    with gpu_code() as backend:
        training = training_of(level)
        batch = next(training.batches()).to(CPU)
        states = torch.randn(20, batch.tokens.shape[1], 128, dtype=torch.bfloat16, requires_grad=True)
        with Audit() as audit, torch.autocast("cpu", torch.bfloat16):
            training.network.loss(states, batch.lengths, batch.positives, batch.count, batch.candidates).backward()
        parents = None if level is FLAT else 40
        rows = 200 if level is FLAT else 100
        shape = LevelShape(number=level.number, nodes=level.nodes, rows=rows, block=level.block_size, parents=parents)
        network = SimpleNamespace(hidden=64, fully_connected=(32, 16))
        settings = SimpleNamespace(network=network, training=SimpleNamespace(batch_size=20))
        counts = SimpleNamespace(longest=batch.tokens.shape[1])
        planned = pass_bytes(settings, counts, shape, 1, 2, backend.limits)
    table = training.network.attention.weight.numel() * 4  # its gradient is another part of the plan
    assert audit.peak - table < planned < 4 * audit.peak


@pytest.mark.parametrize("level", [FLAT, DEEP], ids=["all nodes", "candidates"])
def test_peak_memory_of_a_step_is_within_the_plan(level):
    """Of all but the LSTMs' own memory; weights and moments, which the step changes in place, are among it."""
    with gpu_code():
        training = training_of(level)
        batches = list(training.batches())
        training.step(batches[0])
        audit = step_of(training, batches[1])
    parents, rows = (None, 200) if level is FLAT else (40, 100)
    shape = LevelShape(number=level.number, nodes=level.nodes, rows=rows, block=level.block_size, parents=parents)
    network = NetworkSettings(hidden=64, fully_connected=(32, 16))
    settings = SimpleNamespace(network=network, training=training.settings)
    words, width = training.network.encoder.embedding.weight.shape
    counts = SimpleNamespace(
        longest=batches[1].tokens.shape[1], words=words, word_dimension=width, documents=60, tokens=8
    )
    memory = level_memory(settings, counts, shape, workers=1, accelerator=True, width=2)
    held = memory.label_table + memory.word_table + memory.network + memory.moments
    assert audit.peak < held + memory.gradients + memory.activations < 2 * audit.peak


@pytest.mark.parametrize("level", [FLAT, DEEP], ids=["all nodes", "candidates"])
def test_a_beam_is_found_without_waiting(level):
    """By a network that only predicts, with candidates made on the device."""
    # Not in inference mode, which hides the products within `linear` and `matmul`.
    with gpu_code(), torch.no_grad(), autocast(CPU, "bfloat16"):
        trained = training_of(level)
        settings = NetworkSettings(hidden=64, fully_connected=(32, 16))
        network = frozen(level, trained.network.state_dict(), settings, "bfloat16")
        texts = next(trained.batches())
        parents = torch.arange(20)[:, None] + torch.arange(5)
        with Audit() as audit:
            candidates = scores = None
            if level is DEEP:
                candidates = Candidates.from_beam(parents, level, network.first_child)
                scores = parents.float().neg()
            states = network.encode(texts.tokens, texts.own_lengths)
            network.expand(states, texts.lengths, candidates, scores, 5)
    assert not {name for name in audit.launches if name in SYNCHRONISES}
    assert audit.products >= 4 and not audit.misaligned


def test_scores_are_fetched_while_the_next_batch_is_computed(monkeypatch):
    """Each copy begins before the next batch is launched, and is awaited after it."""
    calls: list[str] = []

    class Copied(HostCopy):
        def __init__(self, real: HostCopy):
            self.real = real

        def result(self) -> list[Tensor]:
            calls.append("result")
            return self.real.result()

    with gpu_code() as backend:
        training, real = training_of(FLAT), backend.fetch
        monkeypatch.setattr(backend, "fetch", lambda tensors: (calls.append("fetch"), Copied(real(tensors)))[1])
        backend.limits = replace(LIMITS, scoring_documents=8)
        expand = training.network.expand
        monkeypatch.setattr(training.network, "expand", lambda *given: (calls.append("expand"), expand(*given))[1])
        found = list(expand_all(training.network, training.data.tokens.take(np.arange(24)), None, 3))
    assert calls == ["expand", "fetch", *["expand", "fetch", "result"] * 2, "result"]
    assert sorted(np.concatenate([rows for rows, _ in found]).tolist()) == list(range(24))


def test_gradients_are_not_multiplied_by_one(monkeypatch):
    with gpu_code():
        training = training_of(DEEP)
        batches = list(training.batches())
        training.step(batches[0])
        with_it = step_of(training, batches[1]).launches["mul"]
        monkeypatch.setattr("axml_ray.training.level.first_gradient", lambda loss: None)
        without_it = step_of(training, batches[2]).launches["mul"]
    assert without_it - with_it >= 7  # states, values, table and four of the head


def test_the_audit_sees_what_it_looks_for():
    with Audit() as audit:
        torch.ones(3).nonzero()
        float(torch.ones(()))
        torch.zeros(4)[torch.arange(2)] = 1
        torch.tensor(1.0)
        torch.ones(8, 12, dtype=torch.bfloat16) @ torch.ones(12, 8, dtype=torch.bfloat16)
    assert {"nonzero", "_local_scalar_dense", "lift_fresh"} <= audit.launches.keys() & SYNCHRONISES
    assert audit.launches["lift_fresh"] == 2 and len(audit.misaligned) == 1
