"""Training in processes of its own, for `gpu.py`: killed and resumed, and by two workers that share a device.

No Ray: the processes are started by PyTorch, and meet by a file.
"""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.multiprocessing
from gpu_steps import CPU, BrokenBoundError, counts_of, gpu_code, settings_of, shape_of, training_of
from results_file import Result
from torch import Tensor

from axml_ray.network.backends.precision import use_threads
from axml_ray.network.level_network import TABLE
from axml_ray.settings import Precision
from axml_ray.training.checkpoints import Checkpoints
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.level import LevelTraining

LEVELS = ("level1", "deep")
EPOCHS = 6
"""Of four steps each."""
CHECKPOINT_STEPS, KILLED_AT = 5, 17
BOUNDS: dict[Precision, float] = {"float32": 1e-4, "bfloat16": 2e-2}
"""Largest relative difference of the losses of two workers from those of one."""
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Environment of processes that meet on a Linux machine whose name may not be resolved."""
KEY = "gpu"
"""Cache key of the checkpoints."""


def training_in_process(
    device: torch.device, quick: bool, level: str, precision: Precision, context: DistributedContext, **changes: Any
) -> LevelTraining:
    """Return the training of a small level, with changes of its settings."""
    hidden, batch, tokens = (16, 8, 12) if quick else (256, 48, 128)
    settings = settings_of(device, hidden, batch)
    values = {"epochs": (EPOCHS,), "precision": precision, **changes}
    settings = settings.model_copy(update={"training": settings.training.model_copy(update=values)})
    shape = shape_of(1, 520) if level == "level1" else shape_of(2, 150, block=8, parents=20)
    return training_of(settings, counts_of(tokens), shape, device, 1e-3, context)


def weights_of(training: LevelTraining) -> dict[str, Tensor]:
    """Return copies of all parameters on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in training.parameters.items()}


# Kill and resume


def train_with_checkpoints(device: torch.device, quick: bool, level: str, directory: Path, kill: bool) -> None:
    """Train in this process from the checkpoint if there is one, and leave the result in `directory`."""
    use_threads(1)
    with gpu_code(device):
        training = training_in_process(
            device, quick, level, "bfloat16", DistributedContext(device=device),
            eval_every_steps=CHECKPOINT_STEPS, average_after=(2,),
        )  # fmt: skip
        training.checkpoints = Checkpoints(directory / "checkpoint", KEY, 0.0)
        began_at = training.state.step if training.checkpoints.resume(training) else 0
        if kill:
            _kill_after_a_step(training)
        score = training.run()
        states = {name: training.optimizer.state[parameter] for name, parameter in training.parameters.items()}
        moments = {f"{name}|{key}": states[name][key].cpu() for name in states for key in ("first", "second")}
        result = {"began_at": began_at, "steps": training.state.step, "score": score}
        torch.save({**result, "tensors": weights_of(training) | moments}, directory / "result.pt")


def _kill_after_a_step(training: LevelTraining) -> None:
    step = training.step

    def killing(batch: Any) -> None:
        step(batch)
        assert training.checkpoints is not None
        training.checkpoints.wait()  # each checkpoint counts
        if training.state.step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)  # while the device may still work on the step

    training.step = killing  # type: ignore[method-assign]


def kill_and_resume(device: torch.device, quick: bool) -> Iterator[Result]:
    """Train a level undisturbed, twice, and killed and resumed; weights and moments must be equal to the last bit."""
    differing = repeated = 0
    for level in LEVELS[quick:]:
        with tempfile.TemporaryDirectory(prefix="axml-ray-gpu-") as home:
            at = {name: Path(home) / name for name in ("undisturbed", "repeated", "killed")}
            for directory in at.values():
                directory.mkdir()
            codes = _run([(device, quick, level, directory, name == "killed") for name, directory in at.items()])
            if codes != [0, 0, -signal.SIGKILL] or _run([(device, quick, level, at["killed"], False)]) != [0]:
                raise RuntimeError(f"the processes did not end as they should: {codes}")
            uninterrupted, again, resumed = (torch.load(directory / "result.pt") for directory in at.values())
        names = uninterrupted["tensors"]
        of_resumed = [name for name in names if not torch.equal(names[name], resumed["tensors"][name])]
        of_repeated = [name for name in names if not torch.equal(names[name], again["tensors"][name])]
        differing, repeated = differing + len(of_resumed), repeated + len(of_repeated)
        if resumed["began_at"] != KILLED_AT // CHECKPOINT_STEPS * CHECKPOINT_STEPS:
            raise BrokenBoundError(f"the training was not resumed from its checkpoint, but from {resumed['began_at']}")
        row = {
            "level": level,
            "steps": uninterrupted["steps"],
            "killed_at": KILLED_AT,
            "resumed_from": resumed["began_at"],
            "tensors": len(names),
            "differing": of_resumed,
            "differing_if_repeated": of_repeated,
            "scores": [uninterrupted["score"], again["score"], resumed["score"]],
        }
        yield {"resume_differing_tensors": differing, "repeat_differing_tensors": repeated}, [row]
    if differing:
        reason = "; an undisturbed training differs from itself, too" if repeated else ""
        raise BrokenBoundError(f"{differing} tensors differ after kill and resume{reason}")


def _run(argument_lists: Sequence[tuple[Any, ...]]) -> list[int | None]:
    """Train in processes at the same time, and return their exit codes."""
    start = torch.multiprocessing.get_context("spawn").Process
    processes = [start(target=train_with_checkpoints, args=arguments, daemon=True) for arguments in argument_lists]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


# Several workers


def train_as_worker(rank: int, count: int, device: torch.device, quick: bool, home: Path, staged: bool) -> None:
    """Train all cases as one of some workers, and leave the results in `home`."""
    use_threads(1)
    os.environ.update(LOOPBACK)
    with gpu_code(device), ExitStack() as stack:
        answers = {}
        if count > 1:
            dist.init_process_group("gloo", init_method=f"file://{home}/meet", rank=rank, world_size=count)
            answers = call_collectives(device)
            refused = [name for name in COLLECTIVES if staged or answers[name] != "works"]
            for name in refused:
                stack.enter_context(patch.object(dist, name, _through_main_memory(getattr(dist, name))))
        context = DistributedContext.current(device)
        cases = {}
        for level in LEVELS:
            for precision in BOUNDS:
                training = training_in_process(
                    device, quick, level, precision, context, eval_every_steps=1_000, average_after=(EPOCHS,)
                )
                start = weights_of(training)
                score = training.run()
                trained = {"start": start, "end": weights_of(training)}
                cases[level, precision] = {"losses": training.state.recent, "score": score, **trained}
        torch.save({"cases": cases, "collectives": answers}, home / f"{rank}-of-{count}.pt")
        if count > 1:
            dist.destroy_process_group()


def compare_workers(device: torch.device, quick: bool, staged: bool = False) -> Iterator[Result]:
    """Train by one worker and by two that share the device, and compare losses and changes of weights.

    Args:
        device: the device.
        quick: small shapes.
        staged: exchange tensors through main memory, which is done anyway where gloo refuses those of a GPU.
    """
    figures: dict[str, float] = {}
    broken = []
    with tempfile.TemporaryDirectory(prefix="axml-ray-gpu-") as directory:
        home = Path(directory)
        for count in (1, 2):
            arguments = (count, device, quick, home, staged)
            torch.multiprocessing.spawn(train_as_worker, arguments, nprocs=count, daemon=True)
        single, *ranks = (torch.load(home / f"{name}.pt") for name in ("0-of-1", "0-of-2", "1-of-2"))
        for (level, precision), of_one in single["cases"].items():
            two = [rank["cases"][level, precision] for rank in ranks]
            expected = torch.tensor(of_one["losses"])
            error = max(float(((torch.tensor(each["losses"]) - expected) / expected).abs().max()) for each in two)
            replicated = [name for name in of_one["end"] if name != TABLE]
            equal = all(torch.equal(two[0]["end"][name], two[1]["end"][name]) for name in replicated)
            joined = torch.empty_like(of_one["end"][TABLE])
            joined[0::2], joined[1::2] = (each["end"][TABLE] for each in two)
            change, difference = [
                torch.cat([(of_one["end"][name] - other[name]).flatten() for name in of_one["end"]]).norm()
                for other in (of_one["start"], two[0]["end"] | {TABLE: joined})
            ]
            row = {
                "level": level,
                "precision": precision,
                "steps": len(of_one["losses"]),
                "loss_error": error,
                "change_error": float(difference / change),
                "replicated_equal": equal,
                "scores": [of_one["score"], two[0]["score"]],
                "collectives": ranks[0]["collectives"],
            }
            if error > BOUNDS[precision] or not equal:
                broken.append(row)
            key = f"gloo_{precision}_loss_error"
            figures[key] = max(figures.get(key, 0.0), error)
            yield figures, [row]
        if device == CPU:
            yield figures, [{"skipped": "NCCL needs a GPU"}]
        else:
            torch.multiprocessing.spawn(call_nccl, (device, home), nprocs=1, daemon=True)
            answers = torch.load(home / "nccl.pt")
            figures["nccl_collectives"] = float(sum(answer == "works" for answer in answers.values()))
            yield figures, [{"backend": "nccl", "workers": 1, "collectives": answers}]
            broken += [{name: answer} for name, answer in answers.items() if answer != "works"]
    if broken:
        raise BrokenBoundError(f"two workers differ from one, or a collective fails: {broken}")


def call_nccl(rank: int, device: torch.device, home: Path) -> None:
    """Call all collectives in an NCCL group of one worker."""
    os.environ.update(LOOPBACK)
    with gpu_code(device):
        dist.init_process_group("nccl", init_method=f"file://{home}/meet-nccl", rank=rank, world_size=1)
        torch.save(call_collectives(device), home / "nccl.pt")
        dist.destroy_process_group()


def _all_reduce(own: Tensor, everyone: Tensor) -> tuple[Tensor, Tensor]:
    dist.all_reduce(values := own.clone())
    return values, everyone.view(-1, len(own)).sum(dim=0)


def _broadcast(own: Tensor, everyone: Tensor) -> tuple[Tensor, Tensor]:
    dist.broadcast(values := own.clone(), 0)
    return values, everyone[: len(own)]


def _all_gather(own: Tensor, everyone: Tensor) -> tuple[Tensor, Tensor]:
    dist.all_gather_into_tensor(values := torch.empty_like(everyone), own)
    return values, everyone


def _reduce_scatter(own: Tensor, everyone: Tensor) -> tuple[Tensor, Tensor]:
    dist.reduce_scatter_tensor(values := torch.empty_like(own), everyone.clone())
    return values, own * dist.get_world_size()


COLLECTIVES: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
}
"""Functions of `torch.distributed` that training uses; each returns its result and the right one."""


def call_collectives(device: torch.device) -> dict[str, str]:
    """Call what training uses of the process group; return "works", "is wrong" or the error by name."""
    answers = {}
    for name, call in COLLECTIVES.items():
        answers[name] = "works"
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            everyone = torch.arange(1, dist.get_world_size() + 1, device=device).repeat_interleave(4).to(dtype)
            own = everyone.view(-1, 4)[dist.get_rank()].clone()
            try:
                result, expected = call(own, everyone)
                if not torch.equal(result, expected):
                    answers[name] = f"is wrong in {dtype}"
            except (RuntimeError, ValueError) as error:  # a backend that lacks it for this device
                answers[name] = f"{dtype}: {str(error).splitlines()[0]}"
    dist.barrier()
    return answers


def _through_main_memory(real: Callable[..., Any]) -> Callable[..., None]:
    """Return a collective that exchanges copies of its tensors on the CPU."""

    def staged(*arguments: Any) -> None:
        copies = [each.cpu() if isinstance(each, Tensor) else each for each in arguments]
        real(*copies)
        for argument, copy in zip(arguments, copies, strict=True):
            if isinstance(argument, Tensor):
                argument.copy_(copy)

    return staged
