"""The training of one level on one worker: plain torch, no Ray.

Each step takes a batch's mean binary cross-entropy over its candidates, clips the gradients by the history of their
norms and lets Adam update the touched rows. Every `score_every` steps, after the first `average_after` epochs, the
weights enter a running average; at the same pace the average (before it begins: the weights as they are) is scored by
nDCG@5 on the validation documents, and the best scored weights are kept.

After a scoring the whole state may go to a checkpoint. Orders, masks and first weights follow from seed, epoch, step
and document, never from what was drawn before, so training goes on from a checkpoint as if it had never stopped, on
any number of workers.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from axml_ray.evaluation.metrics import ndcg_at
from axml_ray.network.level_network import TABLE, Beam, LevelNetwork
from axml_ray.network.optimizer import GradientClipper, LazyAdam, gradient_values
from axml_ray.network.precision import autocast
from axml_ray.network.torch_internals import mark_coalesced_
from axml_ray.network.weight_average import WeightAverage
from axml_ray.ragged import Ragged
from axml_ray.settings import Precision, TrainingSettings, at_level
from axml_ray.training.batches import Batch, LevelData, training_batches
from axml_ray.training.checkpoints import Checkpoints
from axml_ray.training.progress import memory_gib
from axml_ray.training.scoring import expand_all
from axml_ray.training.workers import Workers

REPORT_SECONDS = 15.0
RECENT = 50
"""Steps whose mean loss is reported."""
DIVERGED = 5.0
"""A recent loss so many times the first one's is past mending."""

Report = Callable[[dict[str, Any]], None]


class Diverged(RuntimeError):
    """The loss of a level is no longer a number, or far above where it began."""


@dataclass(frozen=True)
class Validation:
    """Documents on which a level is scored.

    Attributes:
        tokens: word ids.
        positives: true nodes of the level.
        beam: the best nodes of the level above; None where all nodes are scored.
    """

    tokens: Ragged
    positives: Ragged
    beam: Beam | None = None


@dataclass
class Position:
    """Where a level's training is. Losses are the last ones, and the mean of the first few."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    documents: int = 0
    best_score: float = -1.0
    best_step: int = 0
    scorings_without_gain: int = 0
    first_loss: float = 0.0
    seconds: float = 0.0
    recent: list[float] = field(default_factory=list)


@dataclass
class LevelTraining:
    """One level's training; `run` leaves the network with its best weights.

    Attributes:
        network: of the level, on `workers.device`; its shard is the worker's.
        data: training documents, all of them on every worker.
        validation: validation documents.
        settings: how to train.
        seed: of the order of documents and of dropout.
        workers: this worker and its like.
        report: called on the first worker with what a person follows.
        checkpoints: where the state is kept after scorings; nowhere by default.
    """

    network: LevelNetwork
    data: LevelData
    validation: Validation
    settings: TrainingSettings
    seed: int
    workers: Workers = field(default_factory=Workers)
    report: Report = lambda record: None
    checkpoints: Checkpoints | None = None

    def __post_init__(self) -> None:
        number = self.network.level.number
        self.epochs = at_level(self.settings.epochs, number)
        self.average_after = at_level(self.settings.average_after, number)
        self.parameters = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.optimizer = LazyAdam(self.parameters.values(), lr=self.settings.learning_rate)
        self.clip = GradientClipper(self.settings.clip)
        self.average = WeightAverage()
        self.best: dict[str, Tensor] = {}
        self.at = Position()
        self._pending: list[Tensor] = []

    def run(self) -> float:
        """Train until the epochs are over or patience is; returns the best nDCG@5 on validation, in percent.

        Raises:
            Diverged: the loss is no number, or far above its first values; the network then holds the best weights.
        """
        self._began = reported = time.monotonic() - self.at.seconds
        self._since_start = self.at.documents, time.monotonic()
        while self.at.epoch < self.epochs and not self._patience_is_over:
            for batch in self.batches():
                self.step(batch)
                if self.at.step % self.settings.score_every == 0:
                    self._score()
                    self._keep()
                    if self._patience_is_over:
                        break
                if time.monotonic() - reported > REPORT_SECONDS:
                    reported = time.monotonic()
                    self._report()
            else:
                self.at.epoch, self.at.batch = self.at.epoch + 1, 0
        if not self.best or self.at.step % self.settings.score_every:
            self._score()
        self._report()
        self.at.seconds = time.monotonic() - self._began
        self._restore_best()
        return self.at.best_score

    @property
    def _patience_is_over(self) -> bool:
        return self.at.scorings_without_gain >= self.settings.patience

    def batches(self) -> Iterator[Batch]:
        """The rest of the epoch's batches."""
        return training_batches(
            self.data,
            self.network.level,
            batch_size=self.settings.batch_size,
            seed=self.seed,
            epoch=self.at.epoch,
            start=self.at.batch,
            shard=self.workers.shard,
        )

    def step(self, batch: Batch) -> None:
        """One step of the optimizer."""
        self.network.train()
        device = self.workers.device
        here = batch.to(device)
        seeds = self._seeds(batch.encoded)
        with autocast(device, self.settings.precision):
            encodings = self.network.encode(here.tokens, here.own_lengths, here.words, seeds)
            encodings = self.workers.exchange(encodings, batch.size)
            loss = self.network.loss(encodings, here.lengths, here.positives, here.count, here.candidates)
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.parameters.values():
            if parameter.grad is not None and parameter.grad.is_sparse:
                mark_coalesced_(parameter.grad)
        self._update(loss.detach())
        at = self.at
        at.batch, at.step, at.documents = at.batch + 1, at.step + 1, at.documents + batch.size
        # An accelerator would wait for each number that is looked at.
        if device.type == "cpu" or at.step % 10 == 0:
            self._check_loss()

    def _seeds(self, documents: np.ndarray) -> np.ndarray:
        state = np.random.SeedSequence((self.seed, self.network.level.number, self.at.step)).generate_state(
            1, np.uint64
        )
        if self.workers.device.type != "cpu":
            torch.manual_seed(int(state[0] >> 2) + self.workers.rank)
        with np.errstate(over="ignore"):
            return (state + documents.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(1)

    def _update(self, loss: Tensor) -> None:
        table = self.parameters[TABLE]
        replicated = [p for name, p in self.parameters.items() if name != TABLE]
        own = gradient_values([table])
        squares = torch.stack([torch.linalg.vector_norm(part).float() for part in own]).square().sum()
        loss, squares = self.workers.sum_gradients(replicated, torch.stack([loss.float(), squares]))
        others = gradient_values(replicated)
        norms = torch.stack([*(torch.linalg.vector_norm(part).float() for part in others), squares.sqrt()])
        self.clip.apply([*own, *others], torch.linalg.vector_norm(norms))
        self.optimizer.step()
        self._pending.append(loss)

    def _look_at_losses(self) -> None:
        if self._pending:
            self.at.recent = [*self.at.recent, *torch.stack(self._pending).tolist()][-RECENT:]
            self._pending.clear()

    def _check_loss(self) -> None:
        """After the same step on all workers: whoever left alone would let the others wait for it."""
        self._look_at_losses()
        at = self.at
        if not at.recent:
            return
        if at.step <= 10:
            at.first_loss = sum(at.recent) / len(at.recent)
        mean = sum(at.recent[-10:]) / len(at.recent[-10:])
        if not math.isfinite(at.recent[-1]) or mean > DIVERGED * at.first_loss:
            self._diverged(f"the loss is {mean:.3g} after {at.step} steps, {at.first_loss:.3g} at first")

    def _check_weights(self) -> None:
        """The loss of a step is of the weights before it; weights past mending must not be kept."""
        sums = torch.stack([parameter.detach().sum() for parameter in self.parameters.values()])
        if self.workers.sum((~sums.isfinite()).float().sum()[None]).item():
            self._diverged(f"after {self.at.step} steps, some weights are no numbers")

    def _diverged(self, how: str) -> NoReturn:
        self._restore_best()
        raise Diverged(
            f"level {self.network.level.number}: {how}; the best weights and the last checkpoint are kept. "
            "Try a smaller training.learning_rate, or training.precision float32"
        )

    def _score(self) -> None:
        self._check_loss()
        self._check_weights()
        at = self.at
        if self.settings.averaging and at.epoch >= self.average_after:
            self.average.add(self.network)
        with self.average.applied_to(self.network):
            score = validation_score(self.network, self.validation, self.settings.precision, self.workers)
            if score > at.best_score:
                at.best_score, at.best_step, at.scorings_without_gain = score, at.step, 0
                self._keep_best()
            else:
                at.scorings_without_gain += 1
        if self.workers.first:
            found = {"step": at.step, "documents": at.documents, "nDCG@5": score}
            self.report({"level": self.network.level.number, "scoring": found})

    @torch.no_grad()
    def _keep_best(self) -> None:
        for name, parameter in self.parameters.items():
            if name in self.best:
                self.best[name].copy_(parameter)
            else:
                self.best[name] = parameter.detach().clone()

    @torch.no_grad()
    def _restore_best(self) -> None:
        for name, kept in self.best.items():
            self.parameters[name].copy_(kept)

    def _keep(self) -> None:
        self.at.seconds = time.monotonic() - self._began
        if self.checkpoints is not None:
            self.checkpoints.keep(self)

    def _report(self) -> None:
        if not self.workers.first:
            return
        self._look_at_losses()  # no verdict: each worker reports by its own clock
        at, (documents, started) = self.at, self._since_start
        now = time.monotonic()
        rate = (at.documents - documents) / max(1e-9, now - started)
        left = max(0, self.epochs * len(self.data.tokens) - at.documents)
        self.report(
            {
                "level": self.network.level.number,
                "nodes": self.network.level.nodes,
                "epoch": min(at.epoch + 1, self.epochs),
                "epochs": self.epochs,
                "step": at.step,
                "loss": sum(at.recent) / max(1, len(at.recent)),
                "valid_nDCG@5": at.best_score if self.best else None,
                "documents_per_second": rate,
                "seconds": now - self._began,
                "seconds_left": left / rate if rate else None,
                "memory_gib": memory_gib(self.workers.device),
            }
        )


def validation_score(network: LevelNetwork, validation: Validation, precision: Precision, workers: Workers) -> float:
    """Mean nDCG@5 of a level's nodes over the validation documents, in percent; all workers score together."""
    total = 0.0
    for rows, best in expand_all(network, validation.tokens, validation.beam, 5, precision=precision, workers=workers):
        truth = validation.positives.take(rows)
        total += float(ndcg_at(best.nodes.numpy(), truth.values, truth.offsets, 5).sum())
    return 100 * total / len(validation.tokens)
