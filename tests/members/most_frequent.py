"""A kind of ensemble member that the house doesn't know: every text gets the most frequent labels of training.

One module and one line for the registry, its last.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from axml_ray.core.files import read_json, write_json
from axml_ray.core.topk import TopK
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.members.explanation import ExplainedText, Step, TreePath
from axml_ray.members.member import FitInputs, LoadInputs, Member, MemberSpec
from axml_ray.settings import Experiment, Settings, register_member
from axml_ray.settings.members import MemberSettings


class MostFrequentSettings(MemberSettings):
    """Labels by their share of the training documents."""

    power: float = 1.0
    """Exponent of the share."""


class MostFrequentConfig(Settings):
    power: float


class MostFrequent(Member):
    config_class: ClassVar[type[Settings]] = MostFrequentConfig

    def __init__(self, shares: np.ndarray):
        self.shares = shares.astype(np.float32)

    @classmethod
    def configure(cls, experiment: Experiment, settings: Any) -> MostFrequentConfig:
        return MostFrequentConfig(power=settings.power)

    @classmethod
    def fit(cls, spec: MemberSpec, inputs: FitInputs) -> None:
        labels = inputs.train.labels
        counts = np.bincount(labels.values, minlength=inputs.corpus.trained)[: inputs.corpus.trained]
        write_json(spec.directory / "shares.json", ((counts / len(labels)) ** spec.config.power).tolist())

    @classmethod
    def load(cls, directory: Path, config: Any, inputs: LoadInputs) -> "MostFrequent":
        return cls(np.array(read_json(directory / "shares.json")))

    def rank(self, texts: TextViews, k: int) -> TopK:
        best = np.argsort(-self.shares, kind="stable")[:k].astype(np.int32)
        rows = np.tile(best, (len(texts), 1))
        missing = ((0, 0), (0, k - len(best)))
        return TopK(np.pad(rows, missing, constant_values=-1), np.pad(self.shares[rows], missing))

    def score(self, texts: TextViews, labels: np.ndarray) -> np.ndarray:
        return np.tile(self.shares[labels], (len(texts), 1))

    def explain(self, text: ExplainedText, labels: Sequence[int], index: LabelIndex) -> list[TreePath] | None:
        """It attends to the first word alone."""
        weights = np.zeros(text.real, np.float32)
        weights[:1] = 1
        return [
            (Step(level=1, labels=(index.names[i],), size=1, probability=float(self.shares[i]), weights=weights),)
            for i in labels
        ]


register_member("most_frequent", MostFrequentSettings, "most_frequent:MostFrequent")
