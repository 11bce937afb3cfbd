"""The GPU's backend with real numbers on a CPU, against the literal equations and the CPU's backend.

Run: pytest tests/network/test_backends.py
"""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from four_texts import batch, compare, every_case, fast_loss, fast_rows, gradients
from hypothesis import given
from hypothesis import strategies as st

from axml_ray.core.errors import SettingsError
from axml_ray.network.backends import backend as backend_module
from axml_ray.network.backends.backend import backend_for, replaced_backend
from axml_ray.network.backends.base import equal_chunks
from axml_ray.network.backends.cpu_backend import CpuBackend
from axml_ray.network.backends.cuda_backend import CudaBackend
from axml_ray.network.backends.devices import device_named, reserved_device
from axml_ray.network.backends.precision import autocast
from axml_ray.network.candidate_selection import Candidates
from axml_ray.network.fast.counter_dropout import counter_dropout, kept_values, seeds_of_documents
from axml_ray.network.fast.cuda_lstm import MOST_GRAPHS, _run, graph_tokens, run_both
from axml_ray.network.fast.frozen import frozen
from axml_ray.network.level_network import TABLE
from axml_ray.network.optimization.weight_average import store_like
from axml_ray.network.sharding import Shard
from axml_ray.settings import NetworkSettings
from axml_ray.training.distributed import DistributedContext

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def gpu_code() -> Iterator[CudaBackend]:
    """Tensors on the CPU go through the GPU's code."""
    backend = CudaBackend("cpu")
    with replaced_backend(CPU, backend):
        yield backend


def small_chunks(backend: CudaBackend) -> None:
    """Cut nodes into chunks of four, and go through the head with one document at a time."""
    backend.limits = replace(backend.limits, group_values=1, chunk_multiple=4, node_multiple=4)


def test_only_backends_ask_for_the_type_of_a_device():
    pattern = re.compile(r"\w\.device\.type|device\.type|is_cuda|\.cuda\(")
    files = [path for folder in ("axml_ray", "serve_app", "jobs") for path in (ROOT / folder).rglob("*.py")]
    asking = {path.name for path in files if pattern.search(path.read_text(encoding="utf-8"))}
    assert asking == {"backend.py", "devices.py"}


def test_each_device_has_its_backend():
    assert isinstance(backend_for(CPU), CpuBackend)
    assert isinstance(backend_for(torch.device("cuda", 1)), CudaBackend)
    assert backend_for(torch.device("cuda")) is backend_for(torch.device("cuda", 1))
    other = CpuBackend()
    with replaced_backend(CPU, other), replaced_backend(CPU, CpuBackend()):
        assert backend_for(CPU) is not other
    assert backend_for(CPU) is not other


@every_case
class TestAgainstTheEquations:
    def test_float64(self, case, gpu_code):
        compare(case.network().double(), case, rtol=1e-9, atol=1e-11)

    def test_float32(self, case, gpu_code):
        compare(case.network(), case, rtol=1e-4, atol=2e-6)

    def test_multiplied_loss(self, case, gpu_code):
        compare(case.network().double(), case, rtol=1e-9, atol=1e-11, times=3)

    def test_gradients_but_not_the_loss_are_scaled(self, case, gpu_code):
        network = case.network().double()
        found = []
        for scale in (None, torch.tensor(8.0)):
            one = batch(network, case)
            states = network.encode(one.tokens, one.own_lengths, one.unique_ids)
            loss = network.loss(states, one.lengths, one.positives, one.count, one.candidates, scale)
            network.zero_grad()
            loss.backward()
            found.append((loss.item(), gradients(network)))
        (loss, plain), (same_loss, scaled) = found
        assert loss == same_loss
        for name, gradient in plain.items():
            torch.testing.assert_close(scaled[name], 8 * gradient, rtol=1e-12, atol=0)

    def test_several_chunks_and_one_document_at_a_time(self, case, gpu_code):
        small_chunks(gpu_code)
        compare(case.network().double(), case, rtol=1e-9, atol=1e-11)

    @pytest.mark.parametrize("several", [False, True], ids=["one chunk", "several chunks"])
    @pytest.mark.parametrize("lstm", [torch.float16, torch.bfloat16], ids=["LSTM in float16", "LSTM in bfloat16"])
    def test_bfloat16_is_close(self, case, gpu_code, lstm, several):
        """In the median of five networks: rounding switches a unit close to zero on or off in about one of 25."""
        gpu_code.lstm_dtype = lstm
        if several:
            small_chunks(gpu_code)
        errors: dict[str, list[float]] = {}
        for seed in range(5):
            network = case.network(seed=seed)
            one = batch(network, case)
            exact = torch.cat(fast_rows(network, one))
            fast_loss(network, one).backward()
            wanted = gradients(network)
            network.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                reduced = fast_rows(network, one)
                value = fast_loss(network, one)
            assert value.dtype == torch.float32 and all(row.dtype == torch.float32 for row in reduced)
            torch.testing.assert_close(torch.cat(reduced), exact, rtol=0.05, atol=0.05)
            value.backward()
            for name, gradient in gradients(network).items():
                error = (gradient - wanted[name]).norm() / (wanted[name].norm() + 0.02)
                errors.setdefault(name, []).append(error.item())
        for name, of_networks in errors.items():
            assert np.median(of_networks) < 0.025, name

    @pytest.mark.parametrize("count", [2, 3, 12])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
    def test_shards_add_up(self, case, gpu_code, count, dtype):
        """Also where a shard holds no candidate of any text; of twelve shards, one holds no row."""

        whole = case.network()
        texts = batch(whole, case)
        encodings = whole.encode(texts.tokens, texts.own_lengths, texts.unique_ids).detach().to(dtype)

        def run(shard: Shard) -> tuple[float, dict[str, torch.Tensor]]:
            network = case.network(shard)
            network = network.double() if dtype == torch.float64 else network
            one, leaf = batch(network, case), encodings.clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                states = leaf[torch.from_numpy(one.rows)]  # in the order of the workers that encode them
                value = network.loss(states, one.lengths, one.positives, one.count, one.candidates)
            value.backward()
            return value.item(), {"states": leaf.grad.double(), **gradients(network)}

        (value, wanted), parts = run(Shard()), [run(Shard(rank, count)) for rank in range(count)]
        close = {"rtol": 1e-9, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 0.05, "atol": 0.01}
        assert sum(loss for loss, _ in parts) == pytest.approx(value, rel=close["rtol"])
        torch.testing.assert_close(sum(found["states"] for _, found in parts), wanted["states"], **close)
        for rank, (_, found) in enumerate(parts):
            torch.testing.assert_close(found[TABLE], wanted[TABLE][rank::count], **close)


class TestLSTM:
    def run(self, backend: CudaBackend, factor: float, documents: int = 5) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        lstms = [torch.nn.LSTM(6, 5, batch_first=True) for _ in range(2)]
        words = [torch.randn(documents, 7, 6).bfloat16().requires_grad_() for _ in range(2)]
        states = [torch.randn(2, 1, documents, 5, requires_grad=True) for _ in range(2)]
        with torch.autocast("cpu", torch.bfloat16):
            outputs = backend.both_directions(lstms, words, states)
        assert {output.dtype for output in outputs} == {torch.bfloat16}
        (sum(output.double().sum() for output in outputs) * factor).backward()
        for lstm, output, read, state in zip(lstms, outputs, words, states, strict=True):
            exact = lstm(read.float(), (state[0], state[1]))[0]
            torch.testing.assert_close(output.float(), exact, rtol=0.02, atol=0.02)
        found = {name: value.grad for name, value in lstms[0].named_parameters()}
        return {**found, "words": words[0].grad, "state": states[0].grad}

    def test_gradients_too_small_for_float16_come_through(self):
        for factor in (1e-9, 1e9):
            wanted, found = (self.run(CudaBackend("cpu"), by) for by in (1.0, factor))
            assert found["weight_ih_l0"].dtype == torch.float32
            for name, gradient in found.items():
                scaled = gradient.double() / factor
                torch.testing.assert_close(scaled, wanted[name].double(), rtol=0.02, atol=1e-3, msg=name)

    @pytest.mark.parametrize("longer", [0, 5])
    def test_one_call_is_two_lstms(self, longer, monkeypatch):
        """Outputs and gradients, also where texts are padded as for a graph."""

        class Graphs:
            def run(self, arguments):
                return _run(arguments)

        monkeypatch.setattr("axml_ray.network.fast.cuda_lstm.TOKEN_MULTIPLE", 7 + longer)
        assert graph_tokens(7) == 7 + longer
        torch.manual_seed(0)
        lstms = [torch.nn.LSTM(6, 5, batch_first=True).double() for _ in range(2)]
        words = [torch.randn(4, 7, 6, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        states = [torch.randn(2, 1, 4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        leaves = [*words, *states, *lstms[0].parameters(), *lstms[1].parameters()]
        factors = [torch.randn(4, 7, 5, dtype=torch.float64) for _ in range(2)]
        results = []
        for outputs in (
            run_both(lstms, words, states, torch.float64, Graphs() if longer else None),
            [lstm(read, (state[0], state[1]))[0] for lstm, read, state in zip(lstms, words, states, strict=True)],
        ):
            total = sum((output * factor).sum() for output, factor in zip(outputs, factors, strict=True))
            results.append([*outputs, *torch.autograd.grad(total, leaves)])
        for found, expected in zip(*results, strict=True):
            torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("longest", [64, 500, 1024, 2049, 8192])
    def test_graphs_of_all_lengths_are_kept(self, longest):
        """Else texts of one length would drop the graphs of others, which are then captured again."""
        widths = [graph_tokens(tokens) for tokens in range(1, longest + 1)]
        assert widths == sorted(widths) and len(set(widths)) < MOST_GRAPHS
        for tokens, width in enumerate(widths, 1):
            assert tokens <= width < tokens + max(64, tokens / 8)

    def test_weights_in_bfloat16_take_words_in_float32(self):
        """A network that predicts in float32 may keep its LSTMs in bfloat16."""
        lstms = [torch.nn.LSTM(6, 5, batch_first=True).bfloat16() for _ in range(2)]
        words, states = [torch.randn(3, 7, 6)] * 2, [torch.zeros(2, 1, 3, 5)] * 2
        for output in CudaBackend("cpu").both_directions(lstms, words, states):
            assert output.dtype == torch.float32


class TestCounterDropout:
    @pytest.mark.parametrize("rate", [0.2, 0.5])
    def test_drops_its_share_and_keeps_the_mean(self, rate):
        values = torch.full((200, 30, 10), 3.0, requires_grad=True)
        seeds = seeds_of_documents(2**63 + 5, torch.arange(200))
        dropped = counter_dropout(values, rate, seeds, 1)
        assert (dropped == 0).float().mean().item() == pytest.approx(rate, abs=0.01)
        assert dropped.mean().item() == pytest.approx(3, rel=0.02)
        dropped.sum().backward()
        torch.testing.assert_close(values.grad, dropped.detach() / 3)

    def test_a_mask_follows_the_documents_seed_and_layer_alone(self):
        seeds = torch.tensor([7, -(2**61), 9])
        one = kept_values(seeds, 0, 65, 128)
        assert torch.equal(kept_values(seeds.flip(0), 0, 65, 128).flip(0), one)
        assert torch.equal(kept_values(seeds, 0, 160, 128)[:, :65], one)
        assert not torch.equal(kept_values(seeds, 1, 65, 128), one)

    def test_masks_of_documents_and_places_are_unrelated(self):
        kept = kept_values(seeds_of_documents(1, torch.arange(64)), 0, 4096, 128).double().sub(0.5).mul(2)
        between = (kept @ kept.t() / 4096).fill_diagonal_(0)
        assert between.abs().max() < 0.1  # five standard deviations of independent masks are 0.08
        for shift in (1, 2, 3, 4, 5, 8, 64):
            assert (kept[:, shift:] * kept[:, :-shift]).mean(1).abs().max() < 0.1
        assert kept.mean(0).abs().mean() < 0.15  # independent: 0.1

    def test_seeds_are_those_of_any_number_of_workers(self):
        whole = seeds_of_documents(3, torch.arange(10))
        assert torch.equal(seeds_of_documents(3, torch.arange(10)[1::3]), whole[1::3])
        assert len(set(whole.tolist()) | set(seeds_of_documents(4, torch.arange(10)).tolist())) == 20


def test_tensors_are_moved_in_one_piece():
    random = np.random.default_rng(0)
    tensors = {
        "int64": torch.from_numpy(random.integers(0, 9, (3, 5))),
        "bool": torch.tensor([True, False, True]),
        "empty": torch.zeros(2, 0, dtype=torch.int64),
        "float32": torch.randn(7),
        "scalar": torch.tensor(3.0),
    }
    moved = CudaBackend("cpu").stage(tensors).to(CPU)
    assert moved.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert moved[name].dtype == tensor.dtype and torch.equal(moved[name], tensor), name
    assert len({tensor.untyped_storage().data_ptr() for tensor in moved.values()}) == 1


@given(st.integers(0, 5000), st.integers(0, 2000), st.sampled_from([1, 8, 64]))
def test_equal_chunks(count, most, multiple):
    size = equal_chunks(count, most, multiple)
    if count <= max(most // multiple * multiple, multiple):
        assert size == count
    else:
        assert size % multiple == 0 and multiple <= size <= max(most, multiple)
        chunks = -(-count // size)
        assert chunks == -(-count // max(multiple, most // multiple * multiple))


def test_large_parameters_are_stored_in_main_memory():
    with replaced_backend(torch.device("meta"), CudaBackend("meta")):
        assert store_like(torch.empty(8, 8, device="meta")).is_meta
        assert not store_like(torch.empty(1 << 12, (1 << 12) + 1, device="meta")).is_meta


class TestPrediction:
    """A network that only predicts, by the GPU's code against the CPU's."""

    @every_case
    @pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
    def test_beams(self, case, precision):
        """Candidates are made on the device, without the distinct rows, from beams of fewer nodes than it has room."""
        network, above = case.network(), torch.log(torch.tensor([[0.5, 0.25, 0.125]] * 4))
        settings = NetworkSettings(hidden=3, fully_connected=case.layers, evidence=case.evidence)
        texts = batch(network, case)
        found = []
        for backend in (CpuBackend(), CudaBackend("cpu")):
            with replaced_backend(CPU, backend), torch.inference_mode(), autocast(CPU, precision):
                ready = frozen(network.level, network.state_dict(), settings, precision)
                candidates = None
                if case.parents is not None:
                    candidates = Candidates.from_beam(torch.tensor(case.parents), ready.level, ready.first_child)
                    assert (candidates.rows is None) == isinstance(backend, CudaBackend)
                    above[torch.tensor(case.parents) < 0] = -torch.inf
                encodings = ready.encode(texts.tokens, texts.own_lengths)
                found.append(ready.expand(encodings, texts.lengths, candidates, above, 5))
        if precision == "float32":
            assert torch.equal(found[1].nodes, found[0].nodes) or not case.evidence
            torch.testing.assert_close(found[1].scores, found[0].scores, rtol=1e-4, atol=1e-5)
        else:
            torch.testing.assert_close(found[1].scores, found[0].scores, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("precision", ["tf32", "float32", "bfloat16", "float16"])
def test_only_tf32_rounds_float32_products(gpu_code, precision):
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        with autocast(CPU, precision):
            allowed = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
            assert allowed == (precision == "tf32",) * 2
            assert torch.is_autocast_enabled("cpu") == (precision in ("bfloat16", "float16"))
            if torch.is_autocast_enabled("cpu"):
                assert torch.get_autocast_dtype("cpu") == getattr(torch, precision)
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


def test_reduced_products_are_summed_in_float32(gpu_code):
    """PyTorch's default lets the card decide."""
    products = torch.backends.cuda.matmul
    names = "allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction"
    before = [getattr(products, name) for name in names]
    try:
        for name in names:
            setattr(products, name, True)
        autocast(CPU, "bfloat16")
        assert [getattr(products, name) for name in names] == [False, False]
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(products, name, value)


@pytest.mark.parametrize("of_user", [None, "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_libraries_are_configured_before_a_worker_uses_its_gpu(monkeypatch, of_user):
    """They read the environment once, at the first tensor on a GPU, which follows the worker's context."""
    names = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"
    for name in names:
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    if of_user:
        monkeypatch.setenv(of_user, "max_split_size_mb:512")
    monkeypatch.setattr(backend_module, "_backends", {})
    DistributedContext(device=torch.device("cuda", 1))
    expected = {
        names[2]: ":4096:8",
        **({of_user: "max_split_size_mb:512"} if of_user else {names[0]: "expandable_segments:True"}),
    }
    assert {name: os.environ[name] for name in names if name in os.environ} == expected


class TestDevices:
    def test_names(self):
        assert device_named("cpu") == CPU and reserved_device(0) == CPU

    @pytest.mark.parametrize("name", ["tpu", "meta", "cuda:99", ""])
    def test_unusable(self, name):
        with pytest.raises(SettingsError, match="device"):
            device_named(name)

    def test_a_gpu_that_is_not_there(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
        with pytest.raises(SettingsError, match="cuda"):
            reserved_device(0.5)

    def test_a_gpu_that_cannot_compute(self, monkeypatch):
        """As with an old driver, or a card for which this PyTorch has no kernels: only the counting works."""
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

        def fails(*shape, device):
            raise torch.AcceleratorError("no kernel image")

        monkeypatch.setattr(torch, "zeros", fails)
        with pytest.raises(SettingsError, match=r"device: PyTorch .* cannot compute on 'cuda': no kernel image"):
            reserved_device(1)

    def test_a_share_of_a_gpu_is_that_share_of_its_memory(self, monkeypatch):
        """PyTorch's allocator gets the limit; whole GPUs and the CPU have none."""
        limits = []
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch, "zeros", lambda *shape, device: torch.ones(1))
        monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: limits.append(given))
        devices = [reserved_device(gpus, "cuda:1") for gpus in (0, 0.25, 1, 2)]
        assert devices == [CPU, *[torch.device("cuda", 1)] * 3] and limits == [(0.25, 1)]
        # The GPU that Ray reserved is the only one that the process sees; PyTorch takes no device without a number.
        assert reserved_device(0.5) == torch.device("cuda") and limits[1:] == [(0.5, 0)]
