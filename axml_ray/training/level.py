"""The training of one level on one worker: plain torch, no Ray.

Each step takes a batch's mean binary cross-entropy over its candidates, clips the gradients by the history of their
norms and lets Adam update the touched rows. Every `score_every` steps, after the first `average_after` epochs, the
weights enter a running average; at the same pace the average (before it begins: the weights as they are) is scored by
nDCG@5 on the validation documents. The best scored weights are kept.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from axml_ray.evaluation.metrics import ndcg_at
from axml_ray.network.attention_xml import AttentionXML, Beam
from axml_ray.network.optimizer import LazyAdam, NormHistory, WeightAverage
from axml_ray.network.precision import autocast
from axml_ray.ragged import Ragged
from axml_ray.settings import Precision, TrainingSettings, at_level
from axml_ray.training.batches import Batch, LevelData, training_batches
from axml_ray.training.scoring import expand_all
from axml_ray.training.workers import Workers

REPORT_SECONDS = 15.0

Report = Callable[[dict[str, Any]], None]


class Diverged(RuntimeError):
    """The loss of a level is no longer a number."""


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
class LevelTraining:
    """One level's training; `run` leaves the network with its best weights.

    Attributes:
        network: of the level, on `workers.device`.
        data: training documents, all of them on every worker.
        validation: validation documents.
        settings: how to train.
        seed: of the order of documents and of dropout.
        workers: this worker and its like.
        report: called on the first worker with what a person follows.
    """

    network: AttentionXML
    data: LevelData
    validation: Validation
    settings: TrainingSettings
    seed: int
    workers: Workers = field(default_factory=Workers)
    report: Report = lambda record: None

    def __post_init__(self) -> None:
        number = self.network.level.number
        self.epochs = at_level(self.settings.epochs, number)
        self.average_after = at_level(self.settings.average_after, number)
        self.parameters = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        self.optimizer = LazyAdam(self.parameters, lr=self.settings.learning_rate)
        self.clip = NormHistory(self.settings.clip)
        self.average = WeightAverage()
        self.best_score = -1.0
        self.best: dict[str, Tensor] = {}
        self.scorings_without_gain = 0
        self.losses: list[float] = []

    def run(self) -> float:
        """Train until the epochs are over or patience is; returns the best nDCG@5 on validation, in percent.

        Raises:
            Diverged: the loss became infinite or no number; the network then holds the last good weights.
        """
        torch.manual_seed((self.seed * 1_000 + self.network.level.number) * 1_000 + 1 + self.workers.rank)
        began = reported = time.monotonic()
        steps = seen = 0
        for epoch in range(self.epochs):
            for batch in self._batches(epoch):
                self.losses.append(self._step(batch.to(self.workers.device)))
                steps, seen = steps + 1, seen + batch.size
                now = time.monotonic()
                if steps % self.settings.score_every == 0:
                    self._score(epoch)
                    if self.scorings_without_gain >= self.settings.patience:
                        break
                if now - reported > REPORT_SECONDS:
                    reported = now
                    self._report(epoch, steps, seen, now - began)
            if self.scorings_without_gain >= self.settings.patience:
                break
        if not self.best or steps % self.settings.score_every:
            self._score(self.epochs)
        self._report(self.epochs - 1, steps, seen, time.monotonic() - began)
        self._restore_best()
        return self.best_score

    def _batches(self, epoch: int) -> Iterator[Batch]:
        return training_batches(
            self.data,
            self.network.level,
            batch_size=self.settings.batch_size,
            seed=self.seed,
            epoch=epoch,
            rank=self.workers.rank,
            workers=self.workers.count,
        )

    def _step(self, batch: Batch) -> float:
        self.network.train()
        with autocast(self.workers.device, self.settings.precision):
            logits = self.network(batch.tokens, batch.lengths, batch.parents)
        loss, count = self._loss(logits, batch)
        totals = self.workers.sum(torch.stack([loss.detach(), count]))
        self.optimizer.zero_grad()
        (loss / totals[1]).backward()
        self.workers.sum_gradients(self.parameters)
        mean = float(totals[0] / totals[1])
        if not math.isfinite(mean):
            self._restore_best()
            raise Diverged(
                f"level {self.network.level.number}: the loss is {mean} after {len(self.losses)} steps; "
                "try a smaller training.learning_rate or training.precision float32"
            )
        self.clip.apply(self.parameters)
        self.optimizer.step()
        return mean

    def _loss(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Summed binary cross-entropy over this worker's candidates, and how many they are."""
        targets = torch.zeros_like(logits)
        targets[batch.positives[0], batch.positives[1]] = 1.0
        if batch.parents is None:
            loss = binary_cross_entropy_with_logits(logits, targets, reduction="sum")
            return loss, torch.tensor(float(logits.numel()), device=logits.device)
        exists = self.network.exists(batch.parents)
        # Places without a child are -inf; zero would be differentiated into no number, so they are left out here.
        loss = binary_cross_entropy_with_logits(
            logits.masked_fill(~exists, 0.0), targets, weight=exists.float(), reduction="sum"
        )
        return loss, exists.sum().float()

    def _score(self, epoch: int) -> None:
        if self.settings.averaging and epoch >= self.average_after:
            self.average.add(self.network)
        with self.average.inside(self.network):
            score = validation_score(self.network, self.validation, self.settings.precision, self.workers)
            if score > self.best_score:
                self.best_score = score
                self.scorings_without_gain = 0
                self.best = {
                    name: parameter.detach().clone()
                    for name, parameter in self.network.named_parameters()
                    if parameter.requires_grad
                }
            else:
                self.scorings_without_gain += 1

    def _restore_best(self) -> None:
        if self.best:
            with torch.no_grad():
                for name, parameter in self.network.named_parameters():
                    if name in self.best:
                        parameter.copy_(self.best[name])

    def _report(self, epoch: int, steps: int, seen: int, seconds: float) -> None:
        if not self.workers.first:
            return
        total = self.epochs * len(self.data.tokens)
        recent = self.losses[-50:]
        self.report(
            {
                "level": self.network.level.number,
                "nodes": self.network.level.nodes,
                "epoch": epoch + 1,
                "epochs": self.epochs,
                "step": steps,
                "loss": sum(recent) / max(1, len(recent)),
                "valid_nDCG@5": self.best_score if self.best else None,
                "documents_per_second": seen / seconds,
                "seconds": seconds,
                "seconds_left": max(0, total - seen) * seconds / max(1, seen),
            }
        )


def validation_score(network: AttentionXML, validation: Validation, precision: Precision, workers: Workers) -> float:
    """Mean nDCG@5 of a level's nodes over the validation documents of all workers, in percent."""
    total = torch.zeros(2, dtype=torch.float64)
    for rows, best in expand_all(
        network,
        validation.tokens,
        validation.beam,
        5,
        precision=precision,
        device=workers.device,
        rank=workers.rank,
        workers=workers.count,
    ):
        truth = validation.positives.take(rows)
        total[0] += float(ndcg_at(best.nodes.numpy(), truth.values, truth.offsets, 5).sum())
        total[1] += len(rows)
    total = workers.sum(total.float() if workers.device.type != "cpu" else total)
    return float(100 * total[0] / total[1])
