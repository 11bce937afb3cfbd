"""The interface of an ensemble member: a model that ranks and scores labels for texts.

`settings/members.py` maps the name of a kind to its class. A fitted member is a directory. Its manifest, `member.json`,
is written last and has the cache key of everything that the fit depended on; a directory without it, or with another
key, is fitted again.

Legend: N documents, n given labels, k best labels.
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from scipy import sparse

from axml_ray.core import storage
from axml_ray.core.errors import SettingsError
from axml_ray.core.files import content_digest, read_json, write_json
from axml_ray.core.topk import TopK, best_of_sparse
from axml_ray.corpus.counts import Counts
from axml_ray.corpus.labels.label_index import LabelIndex
from axml_ray.corpus.text.text_views import TextViews
from axml_ray.evaluation.metrics.predictions import title_of
from axml_ray.members.explanation import ExplainedText, TreePath
from axml_ray.members.featurizer import WORD_BYTES, Featurizer, counting_bytes
from axml_ray.members.weight_files import Weights
from axml_ray.settings import Experiment, Precision, Settings
from axml_ray.settings.members import kinds
from axml_ray.training.tree import TrainingInputs
from axml_ray.tree.halving import MapFunction
from axml_ray.tree.label_tree import LabelTree

Scope = Literal["tree", "run"]
"""Whether there is one member of a kind for each label tree, or one for the whole run."""
MANIFEST, FORMAT, VERSION = "member.json", "axml-ray member", 1


@dataclass(frozen=True)
class MemberInfo:
    """A member's place in an ensemble.

    Attributes:
        name: unique name in the ensemble, such as `knn` or `linear_tree-1`; it also names columns and files.
        kind: name of the kind in the registry.
        tree: number of its label tree, from 0; None for a member of the whole run.
        weight: weight in the ensemble's scores; the weights of all members add up to 1.
    """

    name: str
    kind: str
    tree: int | None
    weight: float

    @property
    def implementation(self) -> "type[Member]":
        """Return the class of the kind."""
        implementation: type[Member] = kinds()[self.kind].load()
        return implementation

    @property
    def title(self) -> str:
        """Return the name that people read, in which trees count from 1."""
        return title_of(self.name)


@dataclass(frozen=True)
class MemberSpec(MemberInfo):
    """A member of a run, with everything that is needed to fit or load it.

    Attributes:
        config: settings that the fit and the loaded member depend on.
        directory: directory of the fitted member.
        key: cache key of the fit.
    """

    config: Settings
    directory: Path
    key: str

    @property
    def is_fitted(self) -> bool:
        """Return whether the directory has all files of this member, fitted with the same corpus and settings."""
        try:
            files = self._manifest()["files"]
            return bool(files.items() <= storage.sizes(self.directory).items())
        except (KeyError, TypeError, AttributeError, FileNotFoundError):
            return False

    @property
    def digest(self) -> str | None:
        """Return the digest of the files that were fitted last, which may have gone since; None if there were none.

        A member that is fitted again with the same key may have other weights, on other processors for example.
        """
        return self._manifest().get("content")

    @property
    def content(self) -> str:
        """Return the digest of the files of the fitted member.

        Raises:
            SettingsError: it is not fitted.
        """
        if not self.is_fitted:
            raise SettingsError(f"{self.directory}: no {self.title} of these settings; run axml-ray train")
        return str(self.digest)

    def _manifest(self) -> dict[str, Any]:
        """Return the manifest of the fitted member; an empty one if there is none of this key."""
        storage.fetch(self.directory / MANIFEST)
        try:
            manifest = read_json(self.directory / MANIFEST)
            is_mine = (manifest["format"], manifest["version"], manifest["key"]) == (FORMAT, VERSION, self.key)
            return dict(manifest) if is_mine else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def mark_fitted(self) -> None:
        """Write the manifest, once all files of the member are complete."""
        storage.fetch(self.directory)
        files = sorted(path for path in self.directory.rglob("*") if path.is_file() and path.name != MANIFEST)
        sizes = {path.relative_to(self.directory).as_posix(): path.stat().st_size for path in files}
        content = {
            "format": FORMAT,
            "version": VERSION,
            "kind": self.kind,
            "key": self.key,
            "content": content_digest(self.directory, files),
            "files": sizes,
        }
        write_json(self.directory / MANIFEST, content)


class _Features:
    """Inputs with the featurizer of the run, if the kind `uses_features`."""

    featurizer: Featurizer | None

    @property
    def features(self) -> Featurizer:
        """Return the featurizer of a kind that `uses_features`; a ValueError if it is missing."""
        if self.featurizer is None:
            raise ValueError("the featurizer that it was fitted with is missing")
        return self.featurizer


@dataclass(frozen=True)
class FitInputs(_Features, TrainingInputs):
    """The inputs of `Member.fit` besides the settings.

    Attributes:
        featurizer: featurizer of the run, if the kind `uses_features`.
        parallel_map: maps parts of a long fit over processes; `map` where there are none.
    """

    featurizer: Featurizer | None = None
    parallel_map: MapFunction = map


@dataclass(frozen=True)
class LoadInputs(_Features):
    """The inputs of `Member.load` in addition to the member's own files, from a run or from a bundle.

    Attributes:
        labels: L, the number of trained labels.
        words: V, the size of the vocabulary.
        tree: the label tree of a member of scope `tree`.
        featurizer: featurizer of the run, if the kind `uses_features`.
        word_vectors: returns the corpus's word vectors, float32 or bfloat16 [V, E]; called only if they are needed.
        precision: number format of matrix products.
        device: device of the networks.
    """

    labels: int
    words: int
    tree: LabelTree | None = None
    featurizer: Featurizer | None = None
    word_vectors: Callable[[], torch.Tensor] | None = None
    precision: Precision = "auto"
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a device is immutable

    @property
    def label_tree(self) -> LabelTree:
        """Return the label tree of a member of scope `tree`; a ValueError if it is missing."""
        if self.tree is None:
            raise ValueError("its label tree is missing")
        return self.tree


@dataclass(frozen=True, kw_only=True)
class FitCosts:
    """An estimate of what the fit of a member and its predictions take; memory is beyond that of an empty process.

    Attributes:
        memory: bytes of the process that fits the member.
        files: bytes of the fitted member's files.
        moved: bytes that the fit reads from and writes to files.
        seconds: seconds of one core that the fit takes in its own process.
        text_seconds: seconds of one core in which the member ranks a text.
        parts: number of parts that are fitted by processes of their own; 0 if the fit is not divided.
        part_memory: bytes of a process that fits a part.
        part_seconds: seconds of one core of all parts together.
    """

    memory: int
    files: int
    moved: int = 0
    seconds: float = 0.0
    text_seconds: float = 0.0
    parts: int = 0
    part_memory: int = 0
    part_seconds: float = 0.0


class Member(ABC):
    """A scorer of labels. Subclasses set the class attributes and are listed in the registry."""

    config_class: ClassVar[type[Settings]]
    """Class of the configuration that `configure` returns."""
    scope: ClassVar[Scope] = "run"
    uses_features: ClassVar[bool] = False
    """Whether the kind reads the run's TF-IDF features (`featurizer.py`)."""
    trained_by_workers: ClassVar[bool] = False
    """Whether `fit` runs on every worker of a distributed group, instead of in one process."""
    holds_texts: ClassVar[bool] = False
    """Whether its files hold words of single training texts, of which the card of a model warns."""
    continues: ClassVar[bool] = False
    """Whether `fit` starts from the weights of the run that its run continues, instead of anew."""

    on_accelerator: bool = False
    """Whether an opened member computes on an accelerator, which is fastest with large batches."""

    @classmethod
    def number_in_run(cls, experiment: Experiment, own: Any, labels: int) -> int:
        """Return how many members of the kind a run over `labels` trained labels has, given the kind's settings."""
        return experiment.ensemble.trees if cls.scope == "tree" else 1

    @classmethod
    @abstractmethod
    def configure(cls, experiment: Experiment, settings: Any) -> Settings:
        """Return the configuration of a fit, from the experiment and from the kind's own settings.

        It has everything that the fitted member depends on, apart from the corpus, its label tree and the featurizer.
        `not_fitted` names the fields that only prediction reads.
        """

    not_fitted: ClassVar[frozenset[str]] = frozenset()
    """Fields of the configuration that may change without a new fit."""

    @classmethod
    @abstractmethod
    def fit(cls, spec: MemberSpec, inputs: FitInputs) -> None:
        """Fit the member, or resume an interrupted fit, and write its files into `spec.directory`, which exists."""

    @classmethod
    def costs(cls, experiment: Experiment, own: Any, counts: Counts) -> FitCosts:
        """Estimate what the fit takes, given the kind's settings; by default, the training texts and their features."""
        texts = WORD_BYTES * round(counts.documents * counts.tokens)
        features = counting_bytes(counts, experiment.features) if cls.uses_features else 0
        return FitCosts(memory=max(texts, features), files=texts)

    @classmethod
    @abstractmethod
    def load(cls, directory: Path, config: Any, inputs: LoadInputs) -> "Member":
        """Open a fitted or exported member.

        Raises:
            OSError, ValueError: a file is missing, broken, or does not fit the labels or words.
        """

    @classmethod
    def export(cls, spec: MemberSpec, to: Path, weights: Weights, word_vectors: torch.Tensor) -> bool:
        """Copy a fitted member's files into a directory of a bundle, large matrices in the number format `weights`.

        Returns:
            Whether the member needs `word_vectors`, the corpus's, float32 [V, E], from the bundle.
        """
        for path in sorted(path for path in spec.directory.rglob("*") if path.is_file() and path.name != MANIFEST):
            copy = to / path.relative_to(spec.directory)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        return False

    @abstractmethod
    def rank(self, texts: TextViews, k: int) -> TopK:
        """Return the best k labels of each text, [N, k]."""

    @abstractmethod
    def score(self, texts: TextViews, labels: np.ndarray) -> np.ndarray:
        """Return the scores of given labels (integer [n]), float32 [N, n], whether or not `rank` would return them."""

    def explain(self, text: ExplainedText, labels: Sequence[int], index: LabelIndex) -> list[TreePath] | None:
        """Return the path to each label in the tree, with attention to words; None if the member cannot explain."""
        return None


class SparseMember(Member):
    """A member that scores few labels of a text: `rank` and `score` read one sparse matrix, computed once a batch."""

    @abstractmethod
    def scores_of(self, texts: TextViews) -> sparse.csr_matrix:
        """Return the positive scores of each text's labels, float32 CSR [N, L]; labels that are left out score 0."""

    def rank(self, texts: TextViews, k: int) -> TopK:
        """Return the best k labels of each text, [N, k]; fewer where fewer labels have a positive score."""
        return best_of_sparse(self._cached_scores(texts), k)

    def score(self, texts: TextViews, labels: np.ndarray) -> np.ndarray:
        """Return the scores of given labels (integer [n]), float32 [N, n]."""
        scores: np.ndarray = self._cached_scores(texts)[:, labels].toarray()
        return scores

    def _cached_scores(self, texts: TextViews) -> sparse.csr_matrix:
        return texts.get_or_compute(("scores", id(self)), lambda: self.scores_of(texts))
