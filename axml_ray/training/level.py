"""The training of one level (paper, "Learning AttentionXML"): one worker's loop in plain PyTorch, without Ray.

Each step computes the mean binary cross-entropy of a batch over its candidates, clips the gradients by the history of
their norms, and updates the touched rows by Adam. Every `eval_every_steps` steps after the first `average_after`
epochs, the weights enter a running average. At the same interval the average (before it begins: the current weights) is
evaluated by nDCG@5 on the validation documents, and the best weights are kept.

After an evaluation the whole state may be saved as a checkpoint. Document orders, dropout masks and first weights
derive from seed, epoch, step and document, never from earlier draws, so a resumed training gives the same weights as an
uninterrupted one, with any number of workers.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import torch
from scipy.special import entr
from torch import Tensor

from axml_ray.core.errors import JobError
from axml_ray.evaluation.metrics.metrics import ndcg_at
from axml_ray.network.backends.backend import backend_for
from axml_ray.network.backends.base import Seeds
from axml_ray.network.backends.devices import peak_memory_gib, reset_peak_memory
from axml_ray.network.backends.precision import autocast, product_format
from axml_ray.network.fast.fused_attention import first_gradient
from axml_ray.network.fast.torch_internals import mark_coalesced_
from axml_ray.network.level_network import TABLE, LevelNetwork
from axml_ray.network.optimization.loss_scale import SMALLEST, LossScale
from axml_ray.network.optimization.optimizer import GradientClipper, LazyAdam, gradient_values
from axml_ray.network.optimization.weight_average import WeightAverage, store_like
from axml_ray.settings import Precision, TrainingSettings, at_level
from axml_ray.training.batches import Batch, LevelData, training_batches
from axml_ray.training.beam_search import expand_all
from axml_ray.training.checkpoints import Checkpoints, TrainState
from axml_ray.training.distributed import DistributedContext
from axml_ray.training.progress import REPORT_SECONDS, Report

EVALUATED = 4_000
"""Most validation documents of an evaluation during training, always the same: the number of the authors' program for
its large corpora. Ranking a document takes a third of the time of a training step on it."""
RECENT = 50
"""Number of last steps whose mean loss is reported."""
DIVERGED = 5.0
"""Training has diverged if the mean of the last `FEW` losses is more than this many times the loss without knowledge.
That is the mean of the first `FEW` losses, or the loss of a constant probability if it is larger, as it is where
training continues from good weights."""
FEW = 10


class TrainingDivergedError(JobError):
    """The loss of a level is not finite, or far above its first values."""


@dataclass
class LevelTraining:
    """The training of one level; `run` leaves the network with its best weights.

    Attributes:
        network: network of the level, on `context.device`, with the shard of this worker.
        data: all training documents, on every worker.
        validation: validation documents.
        settings: settings of the training.
        seed: seed of document orders and dropout.
        context: the distributed context.
        report: rank-0 progress callback.
        checkpoints: where the state is saved after evaluations; by default it is not.
        evaluate_start: whether to evaluate the weights before the first step, so that the result is never worse on
            validation than trained weights that it continues from.
    """

    network: LevelNetwork
    data: LevelData
    validation: LevelData
    settings: TrainingSettings
    seed: int
    context: DistributedContext = field(default_factory=DistributedContext)
    report: Report = lambda record: None
    checkpoints: Checkpoints | None = None
    evaluate_start: bool = False

    def __post_init__(self) -> None:
        number = self.network.level.number
        self.epochs = at_level(self.settings.epochs, number)
        self.average_after = at_level(self.settings.average_after, number)
        self.parameters = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.optimizer = LazyAdam(self.parameters.values(), lr=self.settings.learning_rate)
        self.clip = GradientClipper()
        self.loss_scale: LossScale | None = None
        if product_format(self.context.device, self.settings.precision) == torch.float16:
            self.loss_scale = LossScale(self.settings.batch_size * self.data.candidates(self.network.level))
            self.loss_scale.to(self.context.device)
        self.positive_rate = min(1.0, self.data.positive_rate(self.network.level))
        self.average = WeightAverage()
        self.best: dict[str, Tensor] = {}
        self.state = TrainState()
        self._pending: list[Tensor] = []

    def run(self) -> float:
        """Train until all epochs are complete or patience is exhausted.

        Returns:
            The best nDCG@5 on validation, in percent.

        Raises:
            TrainingDivergedError: the loss is not finite, or far above its first values; the network then has the best
                weights.
        """
        reset_peak_memory(self.context.device)
        state, interval = self.state, self.settings.eval_every_steps
        self._began = reported = time.monotonic() - state.seconds
        self._since_start = state.documents, time.monotonic()
        if self.evaluate_start and not self.best:
            self._evaluate()
        # An epoch that ends without `break` is complete, so only then its number goes up.
        while state.epoch < self.epochs and not self._is_out_of_patience:
            for batch in self.batches():
                self.step(batch)
                state.seconds = time.monotonic() - self._began
                if state.step % interval == 0:
                    self._check_weights()
                    self._average()
                    self._evaluate()
                    if self.checkpoints is not None:
                        self.checkpoints.save(self)
                    # All workers have the same scores, so all of them stop here or none does.
                    if self._is_out_of_patience:
                        break
                if self.checkpoints is not None:
                    self.checkpoints.save_before_preemption(self)
                if time.monotonic() - reported > REPORT_SECONDS:
                    reported = time.monotonic()
                    self._report()
            else:
                state.epoch, state.batch = state.epoch + 1, 0
        # Evaluate once more if steps were made since the last evaluation.
        if not self.best or state.step % interval:
            self._check_weights()
            self._average()
            self._evaluate()
        self._report(is_last=True)
        state.seconds = time.monotonic() - self._began
        self._restore_best()
        return state.best_score

    @property
    def _is_out_of_patience(self) -> bool:
        # Counted to the last evaluation: steps after it have not been scored.
        evaluated = self.state.step - self.state.step % self.settings.eval_every_steps
        return evaluated - self.state.best_step >= self.settings.patience_steps

    def batches(self) -> Iterator[Batch]:
        """Yield the remaining batches of the current epoch."""
        return training_batches(
            self.data,
            self.network.level,
            batch_size=self.settings.batch_size,
            seed=self.seed,
            epoch=self.state.epoch,
            start=self.state.batch,
            shard=self.context.shard,
            device=self.context.device,
        )

    def step(self, batch: Batch) -> None:
        """Make one optimizer step on a batch.

        Raises:
            TrainingDivergedError: the loss is not finite, or far above its first values.
        """
        context, state, scale, backend = self.context, self.state, self.loss_scale, backend_for(self.context.device)
        self.network.train()
        self.optimizer.zero_grad()  # before the forward pass, so that it can use the memory of the last gradients
        local = batch.to(context.device)
        with autocast(context.device, self.settings.precision):
            encodings = self.network.encode(
                local.tokens, local.own_lengths, local.unique_ids, self.dropout_seeds(local.documents)
            )
            # Barrier: every worker gets the encodings of the whole batch, and scores them against its shard.
            encodings = context.exchange(encodings, batch.size)
            factor = None if scale is None else scale.factor
            loss = self.network.loss(encodings, local.lengths, local.positives, local.count, local.candidates, factor)
        loss.backward(first_gradient(loss))  # a one that the fused loss knows, so that it multiplies nothing by it
        # Autograd drops the mark that rows are distinct when it accumulates; without it they would be sorted again.
        for parameter in self.parameters.values():
            if parameter.grad is not None and parameter.grad.is_sparse:
                mark_coalesced_(parameter.grad)

        # The label table is sharded: the norm of its gradient is the root of the squares summed over workers. The
        # other parameters are replicated, and their gradients are summed in the same all-reduce.
        replicated = [p for name, p in self.parameters.items() if name != TABLE]
        of_table = gradient_values([self.parameters[TABLE]])
        squares = torch.stack([torch.linalg.vector_norm(values).float() for values in of_table]).square().sum()
        total_loss, squares = context.sum_gradients(replicated, torch.stack([loss.detach().float(), squares]))
        of_others = gradient_values(replicated)
        norms = [torch.linalg.vector_norm(values).float() for values in of_others]
        norm = torch.linalg.vector_norm(torch.stack([*norms, squares.sqrt()]))

        gradients = [*of_table, *of_others]
        if scale is None:
            self.optimizer.step(gradient_divisor=self.clip.apply(gradients, norm))
        else:
            # In float16, gradients are multiplied by the loss scale. The norm is that of all workers' gradients, so
            # that all of them skip a step that overflows, or none does.
            overflow = scale.overflows(norm)
            divisor = self.clip.apply(gradients, norm / scale.factor, overflow)
            divisor = scale.factor if divisor is None else divisor * scale.factor
            self.optimizer.step(gradient_divisor=divisor, skip=overflow)
            scale.update(overflow)

        # The loss stays on the device until it is checked, so that the CPU need not wait for it.
        self._pending.append(total_loss)
        state.batch, state.step, state.documents = state.batch + 1, state.step + 1, state.documents + batch.size
        if state.step % backend.loss_interval == 0:
            self._check_loss()

    def dropout_seeds(self, documents: Tensor) -> Seeds:
        """Return a seed of the dropout masks for each document (int64 [b]), equal for any number of workers."""
        sequence = np.random.SeedSequence((self.seed, self.network.level.number, self.state.step))
        return backend_for(documents.device).dropout_seeds(int(sequence.generate_state(1, np.uint64)[0]), documents)

    def _average(self) -> None:
        """Add the current weights to the running average, once it has begun."""
        if self.settings.averages_at(self.network.level.number) and self.state.epoch >= self.average_after:
            self.average.add(self.network)

    def _evaluate(self) -> None:
        """Evaluate the average, or before it begins the current weights, and keep them if they are the best so far."""
        state = self.state
        with self.average.applied_to(self.network):
            own = validation_score(self.network, self.validation, self.settings.precision, self.context)
            # On unlike GPUs, ties may be broken otherwise, and all workers must keep the same step.
            score = float(self.context.from_first(torch.tensor(own, dtype=torch.float64)))
            if score > state.best_score:
                state.best_score, state.best_step = score, state.step
                self._keep_best()
        if self.context.is_first:
            scoring = {"step": state.step, "documents": state.documents, "nDCG@5": score}
            self.report({"level": self.network.level.number, "scoring": scoring})

    @torch.no_grad()
    def _keep_best(self) -> None:
        """Copy the current parameters to `best`."""
        for name, parameter in self.parameters.items():
            if name not in self.best:
                self.best[name] = store_like(parameter.detach())
            self.best[name].copy_(parameter)

    @torch.no_grad()
    def _restore_best(self) -> None:
        """Copy `best` to the parameters."""
        for name, value in self.best.items():
            self.parameters[name].copy_(value)

    def read_losses(self) -> None:
        """Copy the losses of the last steps from the device to the state."""
        if self._pending:
            self.state.recent = [*self.state.recent, *torch.stack(self._pending).tolist()][-RECENT:]
            self._pending.clear()

    def _check_loss(self) -> None:
        """Raise if the loss has diverged.

        All workers call this after the same step, as a worker that raised alone would leave the others waiting.
        """
        self.read_losses()
        state = self.state
        if not state.recent:
            return
        if state.step <= FEW:
            state.first_loss = sum(state.recent) / len(state.recent)
        mean = sum(state.recent[-FEW:]) / len(state.recent[-FEW:])
        without_knowledge = max(state.first_loss, float(entr([self.positive_rate, 1 - self.positive_rate]).sum()))
        if not math.isfinite(state.recent[-1]) or mean > DIVERGED * without_knowledge:
            self._raise_diverged(
                f"the loss is {mean:.3g} after {state.step} steps; without knowledge it is {without_knowledge:.3g}"
            )

    def _check_weights(self) -> None:
        """Raise if the loss has diverged or a weight is not finite; all workers call this before an evaluation.

        A step's loss is that of the weights before it, so it may look fine when the weights no longer are.
        """
        self._check_loss()
        sums = torch.stack([parameter.detach().sum() for parameter in self.parameters.values()])
        if self.context.sum((~sums.isfinite()).float().sum()[None]).item():
            self._raise_diverged(f"after {self.state.step} steps, some weights are not finite")
        if self.loss_scale is not None and self.loss_scale.factor.item() < SMALLEST:
            self._raise_diverged(f"after {self.state.step} steps, gradients overflow float16 with every loss scale")

    def _raise_diverged(self, reason: str) -> NoReturn:
        if self.checkpoints is not None:
            self.checkpoints.wait()  # the process may end now, and another start needs it
        self._restore_best()
        raise TrainingDivergedError(
            f"level {self.network.level.number}: {reason}; the best weights and the last checkpoint are kept. "
            "Try a smaller training.learning_rate, or training.precision float32"
        )

    def _report(self, *, is_last: bool = False) -> None:
        """Report progress from rank 0."""
        if not self.context.is_first:
            return
        self.read_losses()  # without checking them: rank 0 reports by its own clock, so it would raise alone
        state, (documents, started) = self.state, self._since_start
        now = time.monotonic()
        rate = (state.documents - documents) / max(1e-9, now - started)
        remaining = max(0, self.epochs * len(self.data.tokens) - state.documents)
        self.report(
            {
                "level": self.network.level.number,
                "nodes": self.network.level.nodes,
                "epoch": min(state.epoch + 1, self.epochs),
                "epochs": self.epochs,
                "step": state.step,
                "loss": sum(state.recent) / max(1, len(state.recent)),
                "valid_nDCG@5": state.best_score if self.best else None,
                "documents_per_second": rate,
                "seconds": now - self._began,
                "seconds_left": 0.0 if is_last else remaining / rate if rate else None,  # patience may end it early
                "memory_gib": peak_memory_gib(self.context.device),
            }
        )


def validation_score(
    network: LevelNetwork, validation: LevelData, precision: Precision, context: DistributedContext
) -> float:
    """Return the mean nDCG@5 of a level's nodes over the validation documents, in percent; all workers call this."""
    total = 0.0
    for rows, best in expand_all(network, validation.tokens, validation.beam, 5, precision=precision, context=context):
        truth = validation.positives.take(rows)
        total += float(ndcg_at(best.nodes.numpy(), truth.values, truth.offsets, 5).sum())
    return 100 * total / len(validation.tokens)
