"""The GPU's code trained by eight workers on CPUs: the loss of every step is that of one worker.

Dropout is on, since its masks depend on the document and not on the worker. The last batch of an epoch has fewer
documents than there are workers, and the deep level has fewer parents.

Run: pytest tests/training/test_gpu_workers.py
"""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from tiny_corpus import small_network, small_training

from axml_ray.network.backends.backend import replaced_backend
from axml_ray.network.backends.cuda_backend import CudaBackend
from axml_ray.network.level_network import TABLE
from axml_ray.network.tree_level import Level
from axml_ray.training.distributed import CPU, DistributedContext
from axml_ray.training.level import LevelTraining

pytestmark = pytest.mark.processes

WORKERS = 8
FLAT, DEEP = Level(1, 21, None), Level(2, 11, np.array([0, 2, 5, 8, 11]))
CASES = {
    f"{level} {precision}": (level, precision)
    for level in ("flat", "deep")
    for precision in ("float32", "bfloat16", "float16")
}


def train(rank: int, home: str, count: int) -> None:
    """Train each case in one process of `count`, and leave the losses in a file."""
    torch.set_num_threads(1)
    if count > 1:
        dist.init_process_group("gloo", init_method=f"file://{home}/meet", rank=rank, world_size=count)
    context, found = DistributedContext.current(CPU), {}
    with replaced_backend(CPU, CudaBackend("cpu")):
        for name, (level, precision) in CASES.items():
            network = small_network(FLAT if level == "flat" else DEEP, 0.3, context.shard)
            training = small_training(
                network, 51, keep=2, workers=context,
                epochs=(2,), batch_size=16, eval_every_steps=4, average_after=(0,), precision=precision,
            )  # fmt: skip
            training.run()
            found[name] = training.state.recent, training.parameters[TABLE].detach().clone()
            if precision == "float16":
                found[f"overflow {name}"] = overflow(training)
    torch.save(found, Path(home) / f"{rank}-of-{count}.pt")
    if count > 1:
        dist.destroy_process_group()


def spoil(table: torch.Tensor) -> None:
    assert table.grad is not None
    table.grad.mul_(torch.inf)


def overflow(training: LevelTraining) -> dict[str, bool | float]:
    """Make one more step, in which a gradient overflows in one worker's rows of the label table alone."""
    training.state.epoch, training.state.batch = 0, 0
    batch, scale = next(training.batches()), training.loss_scale
    assert scale is not None
    before, factor = [value.detach().clone() for value in training.parameters.values()], scale.factor.item()
    if training.context.rank == min(3, training.context.world_size - 1):
        training.parameters[TABLE].register_post_accumulate_grad_hook(spoil)
    skipped = scale.skipped.item()
    training.step(batch)
    kept = all(map(torch.equal, before, training.parameters.values()))
    return {"kept": kept, "skipped": scale.skipped.item() - skipped, "factor": scale.factor.item() / factor}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    home = tmp_path_factory.mktemp("workers")
    train(0, str(home), 1)
    torch.multiprocessing.spawn(train, (str(home), WORKERS), nprocs=WORKERS)
    ranks = [torch.load(home / f"{rank}-of-{WORKERS}.pt", weights_only=False) for rank in range(WORKERS)]
    return torch.load(home / "0-of-1.pt", weights_only=False), ranks


@pytest.mark.parametrize("name", CASES)
def test_eight_workers_have_the_loss_curve_of_one(results, name):
    alone, ranks = results
    expected, table = alone[name]
    assert len(expected) == 8
    close = 1e-4 if name.endswith("float32") else 2e-2
    for found in ranks:
        np.testing.assert_allclose(found[name][0], expected, rtol=close)
    if name.endswith(" float16"):
        for found in (alone, *ranks):
            assert found[f"overflow {name}"] == {"kept": True, "skipped": 1, "factor": 0.5}
    joined = torch.empty_like(table)
    for rank, found in enumerate(ranks):
        joined[rank::WORKERS] = found[name][1]
    torch.testing.assert_close(joined, table, rtol=close, atol=close if close < 1e-3 else 0.05)
