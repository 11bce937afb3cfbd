"""Settings of the training of each level (package `axml_ray.training`)."""

from typing import Annotated

from pydantic import Field

from axml_ray.settings.base import NotNegative, Positive, Precision, Settings, at_level


class TrainingSettings(Settings):
    """Settings of the training of a level. Lists have a value per level; the last also serves all deeper levels."""

    epochs: Annotated[tuple[Positive, ...], Field(min_length=1)] = (10,)
    """E: largest number of epochs, per level."""
    average_after: Annotated[tuple[NotNegative, ...], Field(min_length=1)] = (2,)
    """Epochs before stochastic weight averaging begins, per level. A level with `epochs` or more of them has no
    averages, and keeps the best checkpoint by validation nDCG@5."""
    batch_size: Positive = 40
    """B: documents per step, over all workers."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate of Adam."""
    eval_every_steps: Positive = 100
    """Steps between evaluations on at most 4,000 documents of the validation split, each of a snapshot of the averaged
    weights."""
    patience_steps: Positive = 5_000
    """Early-stopping patience: steps since the best evaluation by validation nDCG@5 after which a level stops."""
    documents: Positive | None = None
    """Number of training documents to train on, always the same ones; by default all. Trees are clustered by all."""
    include_true_parents: bool = True
    """Include the children of a text's true nodes among a level's candidates, even where the beam missed them (the
    paper). Without it, candidates are the children of the beam alone, as in prediction."""
    precision: Precision = "auto"
    """Number format of matrix products. `auto` takes the fastest that the hardware of the first tree to start has, for
    all trees of the run: bfloat16 on newer GPUs and some CPUs, float16 on GPUs from Volta on, else float32. `float16`
    trains with loss scaling. `tf32` is float32 whose products a GPU rounds to 10 bits. On a CPU, `float16` and `tf32`
    are float32. Master weights are float32."""

    def averages_at(self, level: int) -> bool:
        """Return whether the weights of a level (numbered from 1) are averaged."""
        return at_level(self.average_after, level) < at_level(self.epochs, level)
