"""Two LSTMs on a CPU, at the same time and in turn. Run: pytest tests/network/test_bilstm.py"""

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
import torch

from axml_ray.network.fast import bilstm
from axml_ray.network.fast.bilstm import both_directions


class TestBothDirections:
    """Two LSTMs side by side on two threads, and in turn on one."""

    @pytest.fixture(autouse=True)
    def _threads_again(self):
        yield
        torch.set_num_threads(1)

    @staticmethod
    def run(threads: int, *, frozen_words: bool = False) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        torch.manual_seed(3)
        lstms = [torch.nn.LSTM(5, 4, batch_first=True) for _ in range(2)]
        words = [torch.randn(3, 6, 5, requires_grad=not frozen_words) for _ in range(2)]
        states = [torch.randn(2, 1, 3, 4, requires_grad=True) for _ in range(2)]
        weights = [torch.randn(3, 6, 4) for _ in range(2)]
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
        torch.set_num_threads(threads)
        with patch.object(bilstm, "_run_in_parallel", wraps=bilstm._run_in_parallel) as at_once:
            outputs = both_directions(lstms, [one.to(dtype) for one in words], states)
            if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
                sum((one.float() * w).sum() for one, w in zip(outputs, weights, strict=True)).backward()
        assert bool(at_once.call_count) == (threads > 1)
        assert torch.get_num_threads() == threads
        inputs = [*words, *states, *(p for lstm in lstms for p in lstm.parameters())]
        return [output.detach() for output in outputs], [tensor.grad for tensor in inputs]

    @pytest.mark.parametrize("frozen_words", [False, True], ids=["words", "frozen words"])
    @pytest.mark.parametrize("reduced", [False, True], ids=["float32", "bfloat16"])
    def test_same_outputs_and_gradients(self, reduced, frozen_words):
        with torch.autocast("cpu", torch.bfloat16, enabled=reduced):
            turns, expected = self.run(1, frozen_words=frozen_words)
            together, found = self.run(2, frozen_words=frozen_words)
        close = {"rtol": 0.02, "atol": 0.02} if reduced else {"rtol": 1e-5, "atol": 1e-6}
        for one, other in zip(together, turns, strict=True):
            assert one.dtype == (torch.bfloat16 if reduced else torch.float32)
            torch.testing.assert_close(one, other, **close)
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert (one is None) == (other is None) == (frozen_words and i < 2)
            if one is not None:
                assert other.abs().max() > 0.1
                torch.testing.assert_close(one, other, **close)

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    @pytest.mark.parametrize("reduced", [False, True], ids=["float32", "bfloat16"])
    def test_without_gradients(self, mode, reduced):
        recorded = []
        original = bilstm._run_lstm

        def watching(*arguments):
            output = original(*arguments)
            recorded.append((output.requires_grad, torch.is_grad_enabled(), torch.get_num_threads()))
            return output

        with mode(), torch.autocast("cpu", torch.bfloat16, enabled=reduced):
            turns, _ = self.run(1)
            with patch.object(bilstm, "_run_lstm", watching):
                together, found = self.run(2)
        close = {"rtol": 0.02, "atol": 0.02} if reduced else {"rtol": 1e-5, "atol": 1e-6}
        for one, other in zip(together, turns, strict=True):
            torch.testing.assert_close(one, other, **close)
        assert not any(gradient is not None for gradient in found)
        # nothing is kept for a backward pass, and each direction has half of the threads
        assert recorded == [(False, False, 1)] * 2

    def test_each_batch_has_its_own_two_threads(self):
        """Four batches at once run eight directions at once: each waits here until all have begun."""
        every = threading.Barrier(8, timeout=20)

        def batch(_: int) -> list[int]:
            return bilstm._run_in_parallel(1, lambda direction: every.wait())

        with ThreadPoolExecutor(4) as callers:
            assert len(list(callers.map(batch, range(4)))) == 4

    def test_pools_leave_the_threads_of_later_ones_alone(self):
        torch.set_num_threads(6)
        with bilstm.thread_pool(2, 3) as pool:
            assert pool.submit(torch.get_num_threads).result() == 3
            inner = pool.submit(bilstm.thread_pool, 2, 1).result()
            assert inner.submit(torch.get_num_threads).result() == 1
            assert pool.submit(torch.get_num_threads).result() == 3
            inner.shutdown()
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 6 == torch.get_num_threads()

    def test_an_error_arrives(self):
        torch.set_num_threads(2)
        lstms = [torch.nn.LSTM(5, 4, batch_first=True) for _ in range(2)]
        with pytest.raises(RuntimeError, match="input"):
            both_directions(lstms, [torch.randn(3, 6, 7)] * 2, [torch.zeros(2, 1, 3, 4)] * 2)
