"""Run: pytest tests/network/test_sparse_rows.py"""

import pytest
import torch

import axml_ray.network.sharding as module
from axml_ray.network.fast.sparse_rows import gather_rows, sparse_gradient
from axml_ray.network.sharding import WHOLE, Shard, uniform_rows


class TestUniformRows:
    @pytest.mark.parametrize("drawn", [1, 4, 7, 4096])
    @pytest.mark.parametrize("count", [1, 2, 3, 5, 13])
    def test_shards_hold_what_the_whole_would(self, drawn, count, monkeypatch):
        monkeypatch.setattr(module, "DRAWN_ROWS", drawn)

        def table(shard: Shard) -> torch.Tensor:
            torch.manual_seed(5)
            return uniform_rows(11, 3, 0.5, shard)

        whole = table(WHOLE)
        assert whole.dtype == torch.float32 and whole.shape == (11, 3)
        for rank in range(count):
            assert torch.equal(table(Shard(rank, count)), whole[rank::count])

    def test_uniform_and_all_different(self, monkeypatch):
        monkeypatch.setattr(module, "DRAWN_ROWS", 50)
        table = uniform_rows(1_000, 20, 0.3, WHOLE)
        assert -0.3 <= table.min() < -0.299 and 0.299 < table.max() <= 0.3
        assert table.mean().item() == pytest.approx(0, abs=0.005)
        assert table.std().item() == pytest.approx(0.3 / 3**0.5, rel=0.02)
        assert len(table.unique(dim=0)) == 1_000  # no two pieces from the same seed

    def test_follow_pytorchs_seed_and_leave_it_alike(self):
        drawn = {}
        for seed in (1, 2):
            for shard in (WHOLE, Shard(1, 3)):
                torch.manual_seed(seed)
                first = uniform_rows(9, 2, 1.0, shard)
                drawn[seed, shard] = first, uniform_rows(9, 2, 1.0, shard), torch.rand(3)
        assert not torch.equal(drawn[1, WHOLE][0], drawn[2, WHOLE][0])
        assert not torch.equal(drawn[1, WHOLE][0], drawn[1, WHOLE][1])
        # what is drawn next, on all workers, does not hang on the shard
        assert torch.equal(drawn[1, WHOLE][2], drawn[1, Shard(1, 3)][2])


class TestGatherRows:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_is_indexing(self, dtype):
        table = torch.randn(9, 4, dtype=dtype, requires_grad=True)
        dense = table.detach().clone().requires_grad_()
        rows, places = torch.tensor([7, 0, 3]), torch.tensor([2, 0, 0, 1, 2, 2, 0])
        weights = torch.randn(7, 4, dtype=dtype)
        found, expected = gather_rows(table, rows, places, dtype), dense[rows][places]
        assert torch.equal(found, expected)
        (found.pow(2) * weights).sum().backward()
        (expected.pow(2) * weights).sum().backward()
        gradient = table.grad
        assert gradient.is_sparse and gradient._indices().tolist() == [[7, 0, 3]]
        torch.testing.assert_close(gradient.to_dense(), dense.grad)
        assert dense.grad[[7, 0, 3]].all()

    def test_in_bfloat16_adds_up_in_float32(self):
        """A word that stands at 4,096 places: bfloat16 would stop adding ones at 256."""
        table = torch.randn(3, 2, requires_grad=True)
        found = gather_rows(table, torch.tensor([2, 1]), torch.tensor([0] * 4096 + [1]), torch.bfloat16)
        assert found.dtype == torch.bfloat16
        assert torch.equal(found[0], table[2].bfloat16()) and torch.equal(found[-1], table[1].bfloat16())
        found.sum().backward()
        assert table.grad.dtype == torch.float32
        assert table.grad.to_dense().tolist() == [[0, 0], [1, 1], [4096, 4096]]

    def test_a_row_at_no_place_has_zero(self):
        table = torch.randn(3, 2, requires_grad=True)
        gather_rows(table, torch.tensor([1, 2]), torch.tensor([1, 1]), torch.float32).sum().backward()
        assert table.grad.to_dense().tolist() == [[0, 0], [0, 0], [2, 2]]


def test_gradient_of_rows_is_taken_as_it_is():
    values = torch.randn(2, 3)
    gradient = sparse_gradient(torch.tensor([1, 4]), values, torch.Size([6, 3]))
    assert gradient.is_coalesced() and gradient._values().data_ptr() == values.data_ptr()
    expected = torch.zeros(6, 3)
    expected[[1, 4]] = values
    assert torch.equal(gradient.to_dense(), expected)
    empty = sparse_gradient(torch.zeros(0, dtype=torch.int64), values[:0], torch.Size([6, 3]))
    assert not empty.to_dense().any()
