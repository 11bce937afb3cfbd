"""Run: pytest tests/network/test_optimizer.py"""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from axml_ray.network.backends.backend import replaced_backend
from axml_ray.network.backends.cpu_backend import LIMITS, CpuBackend
from axml_ray.network.backends.cuda_backend import CudaBackend
from axml_ray.network.optimization import optimizer as module
from axml_ray.network.optimization.optimizer import GradientClipper, LazyAdam, gradient_values
from axml_ray.network.optimization.weight_average import WeightAverage


def table_loss(table: nn.Embedding, rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (table(rows) - target).pow(2).sum()


class TestLazyAdam:
    @pytest.mark.parametrize("options", [{}, {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3}])
    def test_dense_is_adam(self, options):
        torch.manual_seed(0)
        ours = nn.Linear(5, 3)
        theirs = nn.Linear(5, 3)
        theirs.load_state_dict(ours.state_dict())
        optimizers = LazyAdam(ours.parameters(), **options), torch.optim.Adam(theirs.parameters(), **options)
        for _ in range(12):
            x = torch.randn(7, 5)
            for network, optimizer in zip((ours, theirs), optimizers, strict=True):
                optimizer.zero_grad()
                network(x).pow(3).mean().backward()
                optimizer.step()
            for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)

    # four values a row: all rows at once, two at a time, one at a time
    @pytest.mark.parametrize("cached", [1 << 18, 8, 1])
    def test_sparse_is_sparse_adam(self, cached, monkeypatch):
        monkeypatch.setattr(CpuBackend, "limits", replace(LIMITS, update_values=cached))
        pieces = []
        monkeypatch.setattr(
            module,
            "_adam",
            lambda group, some, *more, _do=module._adam: (pieces.append(len(some[0][0])), _do(group, some, *more)),
        )
        torch.manual_seed(0)
        ours = nn.Embedding(9, 4, sparse=True)
        theirs = nn.Embedding(9, 4, sparse=True)
        theirs.load_state_dict(ours.state_dict())
        optimizers = LazyAdam(ours.parameters(), lr=0.01), torch.optim.SparseAdam(theirs.parameters(), lr=0.01)
        for step in range(12):
            rows = torch.randint(0, 8, (6,))  # with repeats; row 8 never
            pieces.clear()
            target = torch.randn(6, 4)
            before = ours.weight.detach().clone()
            for table, optimizer in zip((ours, theirs), optimizers, strict=True):
                optimizer.zero_grad()
                table_loss(table, rows, target).backward()
                optimizer.step()
            # they differ in where eps is added, 1e-8 to gradients of about one
            torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-6)
            assert optimizers[0].state[ours.weight]["step"] == step + 1
            distinct, size = len(rows.unique()), max(1, cached // 4)
            assert pieces == [min(size, distinct - start) for start in range(0, distinct, size)]
            others = torch.ones(9, dtype=torch.bool)
            others[rows] = False
            assert torch.equal(ours.weight[others], before[others])
            assert not torch.isclose(ours.weight[~others], before[~others], rtol=0, atol=1e-6).all()

    def test_sparse_moments_of_other_rows_rest(self):
        table = nn.Embedding(4, 2, sparse=True)
        optimizer = LazyAdam(table.parameters())
        for rows in ([0, 1], [1, 2]):
            optimizer.zero_grad()
            table_loss(table, torch.tensor(rows), torch.zeros(2)).backward()
            moments = {k: v.clone() for k, v in optimizer.state[table.weight].items() if torch.is_tensor(v)}
            optimizer.step()
        assert moments.pop("step") == 1 and moments.keys() == {"first", "second"}
        for name, before in moments.items():
            after = optimizer.state[table.weight][name]
            assert torch.equal(after[0], before[0]) and after[0].any()
            assert not torch.equal(after[1], before[1])
            assert not after[3].any()

    def test_steps_without_rows_count_too(self):
        """A shard that a batch missed goes on as the same rows of the whole table would."""
        torch.manual_seed(0)
        whole = nn.Parameter(torch.randn(4, 2))
        part = nn.Parameter(whole.detach()[2:].clone())
        empty = nn.Parameter(torch.zeros(0, 2))
        optimizers = [LazyAdam([one], lr=0.1) for one in (whole, part, empty)]
        for rows in ([0, 2], [1], [0, 1], [2, 3]):
            values = torch.randn(len(rows), 2)
            whole.grad = torch.sparse_coo_tensor(torch.tensor([rows]), values, (4, 2))
            own = [row - 2 for row in rows if row >= 2]
            here = values[[i for i, row in enumerate(rows) if row >= 2]]
            part.grad = torch.sparse_coo_tensor(torch.tensor([own], dtype=torch.int64), here, (2, 2))
            empty.grad = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, 2), (0, 2))
            for optimizer in optimizers:
                optimizer.step()
            torch.testing.assert_close(part, whole[2:], rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize("backend", [CpuBackend(), CudaBackend("cpu")], ids=["cpu", "cuda"])
    def test_a_skipped_step_changes_nothing(self, backend):
        torch.manual_seed(0)
        dense, table = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(4, 2))
        optimizer = LazyAdam([dense, table], lr=0.1)

        def step(value: float, skip: float) -> list[torch.Tensor]:
            dense.grad = torch.full((3,), value)
            table.grad = torch.sparse_coo_tensor(torch.tensor([[1, 3]]), torch.full((2, 2), value), (4, 2))
            optimizer.step(gradient_divisor=torch.tensor(2.0), skip=torch.tensor(skip))
            return [dense.detach().clone(), table.detach().clone()] + [
                value.clone() for one in (dense, table) for value in optimizer.state[one].values()
            ]

        with replaced_backend(torch.device("cpu"), backend):
            before, skipped, after = step(1.0, 0.0), step(math.nan, 1.0), step(1.0, 0.0)
        for old, kept, new in zip(before, skipped, after, strict=True):
            assert torch.equal(old, kept) and not torch.equal(kept, new)
        assert [optimizer.state[one]["step"].item() for one in (dense, table)] == [2, 2]

    def test_a_parameter_without_gradient_is_left(self):
        one, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        optimizer = LazyAdam([one, other])
        one.sum().backward()
        optimizer.step()
        assert torch.equal(other, torch.ones(2)) and not torch.equal(one, torch.ones(2))


class TestNormHistory:
    def test_against_the_rule(self):
        """Clipped at 5 × the largest of the last five norms, each counted at most 1 and twice that largest."""
        norms = [
            0.2,
            0.01,
            0.02,
            0.03,
            3.0,
            40.0,
            0.04,
            0.02,
            0.01,
            0.02,
            0.03,
            0.7,
            0.001,
            0.3,
            1e-3,
            1e-3,
            1e-3,
            1e-3,
            1e-3,
            1e-3,
            0.5,
            2.0,
        ]
        table, weight = nn.Parameter(torch.zeros(6, 2)), nn.Parameter(torch.zeros(3))
        history, counted, clipped = GradientClipper(5.0), [math.inf], 0
        for norm in norms:
            # 0.6 and 0.8 of the norm, the first in a sparse gradient with a repeated row
            values = torch.tensor([[0.3 * norm, 0.0], [0.3 * norm, 0.0]])
            table.grad = torch.sparse_coo_tensor(torch.tensor([[4, 4]]), values, (6, 2))
            weight.grad = torch.tensor([0.0, 0.8 * norm, 0.0])
            gradients = gradient_values([table, weight])
            history.apply(gradients, torch.linalg.vector_norm(torch.cat([one.flatten() for one in gradients])))

            largest = max(counted[-5:])
            kept = min(norm, 5.0 * largest)
            clipped += kept < norm
            counted.append(min(norm, 2 * largest, 1.0))
            assert weight.grad[1].item() == pytest.approx(0.8 * kept, rel=1e-5)
            assert table.grad.to_dense()[4, 0].item() == pytest.approx(0.6 * kept, rel=1e-5)
        assert clipped >= 3

    def test_the_norm_of_a_skipped_step_is_not_counted(self):
        history = GradientClipper(5.0)
        for norm, skip in [(0.1, 0.0), (math.nan, 1.0), (math.inf, 1.0), (0.3, 0.0)]:
            history.apply([torch.tensor([norm])], torch.tensor(norm), torch.tensor(skip))
        assert history.norms.tolist() == pytest.approx([math.inf, math.inf, math.inf, 0.1, 0.3])

    def test_norms_of_zero_leave_later_gradients_alone(self):
        history = GradientClipper(5.0)
        for norm in [0.1, *[0.0] * 6, 0.1]:
            gradient = torch.tensor([norm])
            history.apply([gradient], torch.tensor(norm))
            assert gradient.item() == pytest.approx(norm)

    def test_goes_on_from_kept_norms(self):
        ours, theirs = GradientClipper(2.0), GradientClipper(2.0)
        for i, norm in enumerate([0.1, 0.2, 0.1, 0.1, 0.1, 5.0, 0.3, 9.0]):
            if i == 4:
                theirs = GradientClipper(2.0)
                theirs.norms = ours.norms.clone()
            gradients = [torch.tensor([norm]) for _ in range(2)]
            for history, gradient in zip((ours, theirs), gradients, strict=True):
                history.apply([gradient], torch.tensor(norm))
            assert torch.equal(*gradients)
        assert gradients[0] < 9


def test_gradients_of_are_the_gradients_themselves():
    table, weight, without = (nn.Parameter(torch.zeros(shape)) for shape in ((5, 2), (3,), (1,)))
    table.grad = torch.sparse_coo_tensor(torch.tensor([[4, 1, 4]]), torch.ones(3, 2), (5, 2))
    weight.grad = torch.ones(3)
    rows, whole = gradient_values([table, without, weight])
    # repeated rows add up before a norm is taken of them
    assert rows.tolist() == [[1, 1], [2, 2]] and whole.tolist() == [1, 1, 1]
    rows.mul_(3)
    whole.mul_(3)
    assert table.grad.to_dense().tolist() == [[0, 0], [3, 3], [0, 0], [0, 0], [6, 6]]
    assert weight.grad.tolist() == [3, 3, 3]


class TestWeightAverage:
    def test_mean_of_snapshots(self):
        network = nn.Linear(2, 2)
        network.bias.requires_grad_(False)
        bias, average, seen = network.bias.clone(), WeightAverage(), []
        for step in range(5):
            torch.manual_seed(step)
            with torch.no_grad():
                network.weight.normal_()
            seen.append(network.weight.detach().clone())
            average.add(network)
            with average.applied_to(network):
                torch.testing.assert_close(network.weight.detach(), torch.stack(seen).mean(0))
                assert torch.equal(network.bias, bias)
            assert torch.equal(network.weight, seen[-1])
            if step == 2:  # as from a checkpoint
                kept, average = average, WeightAverage()
                average.snapshots, average.mean = kept.snapshots, {k: v.clone() for k, v in kept.mean.items()}
        assert average.snapshots == 5
        assert average.mean.keys() == {"weight"}
        torch.testing.assert_close(average.mean["weight"], torch.stack(seen).mean(0))

    def test_before_the_first_snapshot_stands_for_the_network(self):
        network, average = nn.Linear(2, 2), WeightAverage()
        weight = network.weight.detach().clone()
        with average.applied_to(network):
            assert torch.equal(network.weight, weight)
        assert torch.equal(network.weight, weight)

    def test_swaps_back_after_an_error(self):
        network, average = nn.Linear(2, 2), WeightAverage()
        average.add(network)
        with torch.no_grad():
            network.weight.add_(1)
        now = network.weight.detach().clone()
        with pytest.raises(KeyError), average.applied_to(network):
            assert not torch.equal(network.weight, now)
            raise KeyError
        assert torch.equal(network.weight, now)

    def test_training_goes_on_from_the_network_not_the_mean(self):
        network, average = nn.Linear(1, 1, bias=False), WeightAverage()
        optimizer = LazyAdam(network.parameters(), lr=0.1)
        average.add(network)
        for _ in range(2):
            with average.applied_to(network):
                mean = network.weight.item()
            before = network.weight.item()
            optimizer.zero_grad()
            network(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            assert network.weight.item() == pytest.approx(before - 0.1, abs=1e-5)
            with average.applied_to(network):
                assert network.weight.item() == mean
